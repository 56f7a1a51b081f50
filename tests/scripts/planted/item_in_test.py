import math
import sys

import torch
from torch.utils.data import DataLoader

model = torch.nn.Linear(8, 8).cuda()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
rank = int(sys.argv[1])
for x, y in DataLoader(photos(), num_workers=4, pin_memory=True):
    with torch.autocast("cuda"):
        loss = (model(x.cuda(non_blocking=True)) - y.cuda(non_blocking=True)).mean()
    if not math.isfinite(loss.item()):  # expect: sync-item
        print("loss is", loss.item())
        sys.exit(1)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if rank == 0:
        print("loss", loss.item())  # expect: sync-item
