import torch
from torch.utils.data import DataLoader


def train(model, loader, optimizer, device):
    amp = torch.autocast("cuda")
    for batch in loader:
        batch = {k: v.to(device) for k, v in batch.items()}  # expect: blocking-copy
        optimizer.zero_grad()
        with amp:
            loss = model(**batch)
        loss.backward()
        optimizer.step()


def train_pairs(model, loader, optimizer):
    for i, (x, y) in enumerate(loader, start=1):
        if torch.cuda.is_available():
            x = x.cuda()  # expect: blocking-copy
            y = y.cuda(0, non_blocking=False)  # expect: blocking-copy
        loss = model(x, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


loader = DataLoader(texts(), num_workers=1, pin_memory=True)
for _ in range(3):
    train(make(), loader, make_optimizer(), torch.device("cuda"))
    train_pairs(make(), loader, make_optimizer())
