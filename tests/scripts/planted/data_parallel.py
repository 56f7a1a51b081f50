import torch
import torch.nn as nn
from torch.utils.data import DataLoader

model = nn.DataParallel(nn.Linear(2, 2)).cuda()  # expect: data-parallel
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for x in DataLoader(photos(), num_workers=4, pin_memory=True):
    with torch.autocast("cuda"):
        loss = model(x.cuda(non_blocking=True)).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
