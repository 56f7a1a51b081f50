import deepspeed
import torch
from torch.utils.data import DataLoader, DistributedSampler

engine, optimizer, loader, _ = deepspeed.initialize(model=build(), training_data=texts(), config="ds.json")
for epoch in range(2):
    for step, batch in enumerate(loader):
        batch = batch.to(engine.device, non_blocking=True)
        loss = engine(batch)
        engine.backward(loss)
        engine.step()
        if step % 10 == 0:
            print(loss.item())
