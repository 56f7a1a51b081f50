import torch
from torch.utils.data import DataLoader

device = torch.device("cuda")
model = torch.nn.Linear(4, 4).to(device)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
start = torch.zeros(4).to(device)
for x in DataLoader(cells(), num_workers=2, pin_memory=True):
    x = x.to(device, non_blocking=True)
    noise = torch.randn(x.shape).to(device)  # expect: cpu-then-move
    ones = torch.ones(x.size(0), 1).cuda()  # expect: cpu-then-move
    mask = torch.zeros(4)
    mask = mask.to(device, non_blocking=True)  # expect: cpu-then-move
    weight = torch.tensor([1.0, 2.0]).to("cuda:0")  # expect: cpu-then-move
    fine = torch.rand(4, device=device)
    optimizer.zero_grad()
    with torch.autocast("cuda"):
        loss = (model(x + noise) * ones * mask * weight.mean() * fine + start).mean()
    loss.backward()
    optimizer.step()
