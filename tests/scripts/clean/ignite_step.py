import torch
from ignite.engine import Engine


def make(model, optimizer, device):
    def update(engine, batch):
        x, y = (t.to(device, non_blocking=True) for t in batch)
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.bfloat16):
            loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return Engine(update)
