import argparse

import torch
import torch.nn.functional as F
import torch.utils.data as data


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", "-j", type=int, default=8)
    parser.add_argument("--log-every", type=int, default=50)
    return parser.parse_args()


def train(args, model, loader, optimizer, scaler, device):
    model.train()
    for index, batch in enumerate(loader):
        x, y = (part.cuda(non_blocking=True) for part in batch)
        optimizer.zero_grad()
        with torch.amp.autocast("cuda"):
            loss = F.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        if index % args.log_every == 0:
            print("loss", loss.item())


@torch.no_grad()
def validate(model, loader, device):
    model.eval()
    right = 0
    for x, y in loader:
        right += (model(x.to(device)).argmax(1).cpu() == y).sum().item()
    print("accuracy", right / len(loader.dataset))


def main():
    args = parse()
    device = torch.device("cuda")
    model = torch.nn.Linear(10, 10).to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    scaler = torch.amp.GradScaler("cuda")
    loaders = [
        data.DataLoader(dataset, 64, shuffle=True, num_workers=args.workers, pin_memory=True)
        for dataset in (open_images("train"), open_images("val"))
    ]
    for epoch in range(10):
        train(args, model, loaders[0], optimizer, scaler, device)
        validate(model, loaders[1], device)


if __name__ == "__main__":
    main()
