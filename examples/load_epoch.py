"""Loads one epoch of a shard set with training augmentation and prints the rate.

python examples/load_epoch.py DIR [--batch-size 64] [--workers N]
"""

from __future__ import annotations

import argparse
import os
import time

import torch

import feeder
from feeder import transforms


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("dir", help="a folder that `feeder shard` wrote")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    args = parser.parse_args()

    transform = transforms.Compose(
        [
            transforms.RandomResizedCrop(224),
            transforms.RandomHorizontalFlip(),
            transforms.ToDtype(torch.float32, scale=True),
            transforms.Normalize(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225)),
        ]
    )
    dataset = feeder.ShardDataset(args.dir, transform=transform)
    loader = feeder.DataLoader(dataset, batch_size=args.batch_size, shuffle=True, num_workers=args.workers, seed=0)

    started = time.perf_counter()
    seen, first_s = 0, 0.0
    for batch in loader:
        images, labels = batch
        first_s = first_s or time.perf_counter() - started
        seen += len(labels)
    elapsed_s = time.perf_counter() - started
    if seen != len(dataset):
        raise SystemExit(f"expected {len(dataset)} samples in the epoch, got {seen}")
    print(f"{seen} samples in {len(loader)} batches, the last one {images.dtype} {tuple(images.shape)}")
    rate = seen / elapsed_s
    print(f"first batch after {first_s:.2f} s, {rate:.0f} images/s with {args.workers} workers, start included")


if __name__ == "__main__":
    main()
