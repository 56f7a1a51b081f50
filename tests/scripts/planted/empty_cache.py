import torch
from torch import cuda
from torch.utils.data import DataLoader

model = torch.nn.Linear(2, 2).cuda()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for x in DataLoader(photos(), num_workers=4, pin_memory=True):
    with torch.autocast("cuda"):
        loss = model(x.cuda(non_blocking=True)).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    del loss
    cuda.empty_cache()  # expect: empty-cache
