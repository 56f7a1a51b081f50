import torch
from torch.utils.data import *

loader = DataLoader(photos(), batch_size=4)  # expect: num-workers, pin-memory
Parallel = torch.nn.DataParallel
model = Parallel(torch.nn.Linear(1, 1).cuda())
loader2 = DataLoader(photos(), batch_size=4, num_workers=2)  # expect: pin-memory
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for x in loader2:
    optimizer.zero_grad()
    loss = model(x).mean()
    loss.backward()
    optimizer.step()
    norms = [p.grad.norm().item() for p in model.parameters()]
