import torch
from torch.utils.data import DataLoader

scaler = torch.amp.GradScaler("cuda")
model = torch.nn.Linear(2, 2).cuda()
opt = torch.optim.SGD(model.parameters(), 0.1)
while True:
    for x in DataLoader(photos(), num_workers=4, pin_memory=True):
        with torch.autocast("cuda"):
            loss = model(x.cuda(non_blocking=True)).mean()
        scaler.scale(loss).backward()
        scaler.step(opt)  # expect: zero-grad
        scaler.update()
