import torch
from torch.utils.data import DataLoader, TensorDataset, random_split

data = TensorDataset(torch.randn(100, 3, 8, 8), torch.randint(0, 9, (100,)))
train, val = random_split(data, [80, 20])
train_loader = DataLoader(train, batch_size=10, shuffle=True)
val_loader = DataLoader(val, batch_size=10)
model = torch.nn.Linear(3 * 64, 9)
optimizer = torch.optim.Adam(model.parameters())
for x, y in train_loader:
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(model(x.flatten(1)), y).backward()
    optimizer.step()
first = next(iter(DataLoader(ImageFolder("x"), batch_size=1)))
