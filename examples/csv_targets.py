"""Predicts several numbers for each image of a table, as in many a competition, and validates on every fifth row.

feeder shard train.csv --image-root images --suffix .jpg --target-column weight --target-column height --out shards
python examples/csv_targets.py shards [--epochs 3] [--size 224]
python examples/csv_targets.py . --plain    # torch's DataLoader and torchvision on train.csv and images/
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import nn

import feeder
from feeder import transforms as T

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
TARGETS = ("weight", "height")
FOLDS = 5  # the last one validates


class Table(torch.utils.data.Dataset):
    """The plain version's dataset: images and targets of some rows of ``train.csv``."""

    def __init__(self, folder: Path, transform: Any, is_val: bool) -> None:
        with (folder / "train.csv").open() as file:
            rows = list(enumerate(csv.DictReader(file)))
        self.rows = [row for i, row in rows if (i % FOLDS == FOLDS - 1) == is_val]
        self.folder, self.transform = folder, transform

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, i: int) -> tuple[torch.Tensor, torch.Tensor]:
        row = self.rows[i]
        with Image.open(self.folder / "images" / f"{row['id']}.jpg") as image:
            return self.transform(image.convert("RGB")), torch.tensor([float(row[name]) for name in TARGETS])


def plain_loaders(args: argparse.Namespace) -> list[Any]:
    from torchvision.transforms import v2

    values = [v2.ToImage(), v2.ToDtype(torch.float32, scale=True)]
    train = v2.Compose([v2.RandomResizedCrop(args.size, scale=(0.5, 1.0)), v2.RandomHorizontalFlip(), *values])
    val = v2.Compose([v2.Resize((args.size, args.size)), *values])
    folder = Path(args.dir)
    return [
        torch.utils.data.DataLoader(
            Table(folder, transform, is_val), args.batch_size, shuffle=not is_val, num_workers=args.workers
        )
        for transform, is_val in ((train, False), (val, True))
    ]


def loaders(args: argparse.Namespace) -> list[Any]:
    values = [T.ToDtype(torch.float32, scale=True)]
    train = T.Compose([T.RandomResizedCrop(args.size, scale=(0.5, 1.0)), T.RandomHorizontalFlip(), *values])
    val = T.Compose([T.Resize((args.size, args.size)), *values])
    found = []
    for transform, is_val in ((train, False), (val, True)):
        dataset = feeder.ShardDataset(args.dir, transform)
        rows = torch.as_tensor(dataset.column("row"))  # in train.csv; shards are shuffled
        part = torch.utils.data.Subset(dataset, ((rows % FOLDS == FOLDS - 1) == is_val).nonzero()[:, 0].tolist())
        options = {"num_workers": args.workers, "device": DEVICE}
        found.append(feeder.DataLoader(part, args.batch_size, shuffle=not is_val, **options))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("dir", help="a folder that `feeder shard` wrote; with --plain that of train.csv")
    parser.add_argument("--plain", action="store_true", help="load by torch and torchvision")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--size", type=int, default=224)
    args = parser.parse_args()

    torch.manual_seed(0)
    train, val = (plain_loaders if args.plain else loaders)(args)
    model = nn.Sequential(
        nn.Conv2d(3, 32, 7, stride=4),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, len(TARGETS)),
    ).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for epoch in range(args.epochs):
        for images, targets in train:  # float32 [N, 3, size, size] and [N, 2]
            loss = nn.functional.mse_loss(model(images.to(DEVICE)), targets.to(DEVICE))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        squares, samples = torch.zeros(len(TARGETS), device=DEVICE), 0
        with torch.no_grad():
            for images, targets in val:
                squares += (model(images.to(DEVICE)) - targets.to(DEVICE)).square().sum(dim=0)
                samples += len(images)
        errors = (squares / samples).sqrt().tolist()
        text = ", ".join(f"{name} {error:.4f}" for name, error in zip(TARGETS, errors, strict=True))
        print(f"epoch {epoch}: root mean square error on {samples} samples: {text}")


if __name__ == "__main__":
    main()
