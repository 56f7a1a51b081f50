import functools

import torch
from torch.utils.data import DataLoader

model = torch.compile(make().to("cuda"))
optimizer = torch.optim.AdamW(model.parameters(), fused=True)


def step(x, y):
    with torch.autocast("cuda", torch.bfloat16):
        loss = torch.nn.functional.cross_entropy(model(x), y)
    loss.backward()
    for p in model.parameters():
        p.data -= 0.1 * p.grad
        p.grad = None
    return loss.detach()


fast = torch.compile(step)
loader = DataLoader(photos(), batch_size=64, num_workers=4, pin_memory=True)
losses = [fast(x.to("cuda", non_blocking=True), y.to("cuda", non_blocking=True)) for x, y in loader]
for x, y in loader:
    losses.append(fast(x.to("cuda", non_blocking=True), y.to("cuda", non_blocking=True)))
print(torch.stack(losses).mean().item())
