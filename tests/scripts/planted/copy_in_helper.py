import torch
from torch.utils.data import DataLoader

device = "cuda" if torch.cuda.is_available() else "cpu"
model = torch.nn.Linear(4, 4).to(device)
optimizer = torch.optim.SGD(model.parameters(), 0.1)


def to_device(batch):
    return [part.to(device) for part in batch]  # expect: blocking-copy


def step(batch):
    x, y = to_device(batch)
    optimizer.zero_grad()
    with torch.autocast(device):
        loss = (model(x) - y).mean()
    loss.backward()
    optimizer.step()
    return loss.item()  # expect: sync-item


for batch in DataLoader(cells(), num_workers=2, pin_memory=True):
    step(batch)
