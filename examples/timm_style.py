"""A training loop in timm's style: MixUp, label smoothing, a cosine schedule by updates, averaged weights.

python examples/timm_style.py DIR [--val DIR] [--epochs 3] [--size 224] [--log loss.csv]
"""

from __future__ import annotations

import argparse
import math
import time
from typing import Any

import torch

from feeder import CsvWriter, DataLoader, DeviceLog, ShardDataset, transforms

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def create_loader(path: str, size: int, batch_size: int, workers: int, device: str, training: bool) -> DataLoader[Any]:
    if training:
        geometry = [transforms.RandomResizedCrop(size), transforms.RandomHorizontalFlip()]
    else:
        geometry = [transforms.Resize(size * 8 // 7), transforms.CenterCrop(size)]
    to_floats = [transforms.ToDtype(torch.float32, scale=True), transforms.Normalize(MEAN, STD)]
    dataset = ShardDataset(path, transform=transforms.Compose([*geometry, *to_floats]))
    return DataLoader(
        dataset,
        batch_size=batch_size,
        shuffle=training,
        drop_last=training,
        num_workers=workers,
        persistent_workers=workers > 0,
        device=device,
        mix=transforms.MixUp(alpha=0.2, num_classes=len(dataset.classes or ())) if training else None,
        seed=42,
    )


def train_one_epoch(
    epoch: int, model: Any, loader: Any, optimizer: Any, schedule: Any, average: Any, log: DeviceLog
) -> float:
    loss_fn = torch.nn.CrossEntropyLoss(label_smoothing=0.1)
    model.train()
    total = torch.zeros((), device=next(model.parameters()).device)
    for step, (images, shares) in enumerate(loader):  # shares: float32 [N, classes], from MixUp
        loss = loss_fn(model(images), shares)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        average.update_parameters(model)
        log.write(epoch * len(loader) + step, loss=loss.detach())  # loss.item() would wait for the device
        total += loss.detach()
    return total.item() / len(loader)


@torch.no_grad()
def validate(model: Any, loader: Any) -> float:
    model.eval()
    right = torch.zeros((), device=next(model.parameters()).device)
    for images, labels in loader:
        right += (model(images).argmax(1) == labels).sum()
    return 100 * right.item() / len(loader.dataset)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("dir", help="a folder that `feeder shard` wrote")
    parser.add_argument("--val", help="another such folder, for validation (default: DIR)")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--log", default="loss.csv", help="the loss of each step, as CSV")
    args = parser.parse_args()

    torch.manual_seed(42)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    train = create_loader(args.dir, args.size, args.batch_size, args.workers, device, training=True)
    val = create_loader(args.val or args.dir, args.size, args.batch_size, args.workers, device, training=False)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 32, 7, stride=4),
        torch.nn.BatchNorm2d(32),
        torch.nn.ReLU(),
        torch.nn.AdaptiveAvgPool2d(1),
        torch.nn.Flatten(),
        torch.nn.Linear(32, len(train.dataset.classes)),
    ).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9, nesterov=True, weight_decay=2e-5)
    updates = args.epochs * len(train)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5 + 0.5 * math.cos(math.pi * step / updates))
    average = torch.optim.swa_utils.AveragedModel(
        model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9), use_buffers=True
    )
    with DeviceLog(CsvWriter(args.log), every=50) as log:
        for epoch in range(args.epochs):
            started = time.perf_counter()
            loss = train_one_epoch(epoch, model, train, optimizer, schedule, average, log)
            rate = len(train) * args.batch_size / (time.perf_counter() - started)
            print(f"epoch {epoch}: loss {loss:.4f}, top-1 {validate(average, val):.1f} %, {rate:.0f} images/s")


if __name__ == "__main__":
    main()
