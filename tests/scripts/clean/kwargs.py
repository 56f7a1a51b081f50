import torch
from torch.utils.data import DataLoader

use_cuda = torch.cuda.is_available()
device = torch.device("cuda" if use_cuda else "cpu")
settings = {"batch_size": 64}
if use_cuda:
    settings.update({"num_workers": 4, "pin_memory": True, "shuffle": True})
loader = DataLoader(digits(), **settings)
options = {"non_blocking": True}
model = torch.nn.Linear(1, 1).to(device)
optimizer = torch.optim.Adadelta(model.parameters())
for x, y in loader:
    x, y = x.to(device, **options), y.to(device, **options)
    optimizer.zero_grad()
    with torch.autocast(device.type, dtype=torch.bfloat16, enabled=use_cuda):
        loss = (model(x) - y).abs().mean()
    loss.backward()
    optimizer.step()
