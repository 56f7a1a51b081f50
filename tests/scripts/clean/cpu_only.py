import torch
from torch.utils.data import DataLoader

loader = DataLoader(words(), batch_size=4, num_workers=2)
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
total = 0.0
for epoch in range(3):
    for x, y in loader:
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        total += loss.item()
        print(loss)
