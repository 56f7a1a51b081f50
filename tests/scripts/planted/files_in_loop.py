import torch
from torch.utils.data import DataLoader

model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step, name in enumerate(DataLoader(names(), num_workers=4)):
    x = torch.load(name[0])  # expect: file-in-loop
    loss = model(x).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    torch.save(model.state_dict(), "last.pt")  # expect: file-in-loop
    if step % 100 == 0:
        torch.save(model.state_dict(), f"{step}.pt")
