import torch
from torch.utils.data import DataLoader

device = torch.device("cuda")
model = torch.nn.Linear(2, 2).to(device)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for epoch in range(3):
    for x in DataLoader(photos(), num_workers=4, pin_memory=True):  # expect: autocast
        loss = model(x.to(device, non_blocking=True)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
