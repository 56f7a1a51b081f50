import torch
from torch.utils.data import DataLoader

model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for epoch in range(3):
    for x in DataLoader(photos(), num_workers=4):
        loss = model(x).mean()
        loss.backward()
        optimizer.step()  # expect: zero-grad
