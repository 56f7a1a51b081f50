import torch
from torch.utils import data

device = torch.device("cuda:1")
loader = data.DataLoader(sounds(), batch_size=4, num_workers=4)  # expect: pin-memory
plain = data.DataLoader(sounds(), batch_size=4, num_workers=4, pin_memory=False)  # expect: pin-memory
model = torch.nn.Linear(2, 2).to(device).half()
optim = torch.optim.SGD(model.parameters(), 0.1)
for x, y in loader:
    x, y = x.to(device), y.to(device=device)  # expect: blocking-copy, blocking-copy
    loss = model(x).sub(y).mean()
    optim.zero_grad()
    loss.backward()
    optim.step()
