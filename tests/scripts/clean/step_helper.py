import torch
from torch.utils.data import DataLoader
from tqdm import tqdm

from engine import update


def loop(model, optimizer, scheduler, dataset, device, log_interval):
    loader = DataLoader(dataset, batch_size=32, num_workers=4, pin_memory=True)
    progress = tqdm(loader)
    for n, batch in enumerate(progress):
        batch = {key: value.to(device, non_blocking=True) for key, value in batch.items()}
        with torch.autocast("cuda"):
            loss = model(**batch)
        loss.backward()
        update(optimizer)
        optimizer.step()
        scheduler.step()
        if n % log_interval:
            continue
        progress.set_postfix(loss=loss.item())
