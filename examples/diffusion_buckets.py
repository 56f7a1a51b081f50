"""Trains a small diffusion model on batches of many aspect ratios, conditioned on sizes and crops as SDXL is.

feeder shard images --out shards
python examples/diffusion_buckets.py shards [--epochs 3] [--size 512] [--step 64]
python examples/diffusion_buckets.py images --plain    # torch's DataLoader and torchvision
"""

from __future__ import annotations

import argparse
import math
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import nn

import feeder
from feeder import transforms as T

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


class Images(torch.utils.data.Dataset):
    """The plain version's dataset: images of a folder, each cut to the size of its bucket."""

    def __init__(self, folder: str, sizes: list[tuple[int, int]]) -> None:
        self.paths = sorted(Path(folder).glob("*/*.jpg"))
        self.classes = sorted({path.parent.name for path in self.paths})
        self.size_of = []  # opens every file once
        for path in self.paths:
            with Image.open(path) as image:
                aspect = math.log(image.height / image.width)
            self.size_of.append(min(sizes, key=lambda size: abs(math.log(size[0] / size[1]) - aspect)))

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, i: int) -> tuple[Any, ...]:
        from torchvision.transforms import v2

        height, width = self.size_of[i]
        with Image.open(self.paths[i]) as file:
            image = file.convert("RGB")
        original = image.height, image.width
        scale = max(height / image.height, width / image.width)
        image = v2.functional.resize(image, [math.ceil(image.height * scale), math.ceil(image.width * scale)])
        top, left = random.randint(0, image.height - height), random.randint(0, image.width - width)
        image = v2.functional.to_image(v2.functional.crop(image, top, left, height, width))
        values = v2.functional.to_dtype(image, torch.float32, scale=True)
        values = v2.functional.normalize(values, [0.5] * 3, [0.5] * 3)
        label = self.classes.index(self.paths[i].parent.name)
        return values, label, torch.tensor(original), torch.tensor([top, left, height, width])


class BucketBatches:
    """The plain version's batch sampler: batches of one bucket, in random order; incomplete ones are left out."""

    def __init__(self, dataset: Images, batch_size: int) -> None:
        self.dataset, self.batch_size = dataset, batch_size

    def __iter__(self) -> Iterator[list[int]]:
        buckets: dict[tuple[int, int], list[int]] = {}
        for i, size in enumerate(self.dataset.size_of):
            buckets.setdefault(size, []).append(i)
        batches = []
        for samples in buckets.values():
            random.shuffle(samples)
            whole = len(samples) - len(samples) % self.batch_size
            batches += [samples[i : i + self.batch_size] for i in range(0, whole, self.batch_size)]
        random.shuffle(batches)
        return iter(batches)


def plain_loader(args: argparse.Namespace, buckets: feeder.Buckets) -> Any:
    dataset = Images(args.dir, list(buckets.sizes))
    sampler = BucketBatches(dataset, args.batch_size)
    return torch.utils.data.DataLoader(dataset, batch_sampler=sampler, num_workers=args.workers)


def loader(args: argparse.Namespace, buckets: feeder.Buckets) -> Any:
    recipe = T.Compose(
        [
            T.Resize(T.BUCKET, cover=True),
            T.RandomCrop(T.BUCKET),
            T.ToDtype(torch.float32, scale=True),
            T.Normalize([0.5] * 3, [0.5] * 3),
        ]
    )
    dataset = feeder.ShardDataset(args.dir, recipe, fields=["original_size", "crop_box"])
    options = {"num_workers": args.workers, "device": DEVICE}
    return feeder.DataLoader(dataset, args.batch_size, shuffle=True, sizes=buckets, **options)


class Denoiser(nn.Module):
    """Predicts the noise in images of any size, from their level of noise, class, original size and crop."""

    def __init__(self, classes: int, width: int = 32) -> None:
        super().__init__()
        self.classes = nn.Embedding(classes, width)
        self.numbers = nn.Linear(5, width)
        self.first = nn.Conv2d(3, width, 3, padding=1)
        self.last = nn.Sequential(nn.SiLU(), nn.Conv2d(width, width, 3, padding=1), nn.SiLU(), nn.Conv2d(width, 3, 1))

    def forward(self, noisy: torch.Tensor, level: torch.Tensor, labels: torch.Tensor, sizes: Any) -> torch.Tensor:
        condition = self.classes(labels) + self.numbers(
            torch.cat([level[:, None], *(size / 1024 for size in sizes)], 1)
        )
        return self.last(self.first(noisy) + condition[:, :, None, None])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("dir", help="a folder that `feeder shard` wrote; with --plain one of class folders")
    parser.add_argument("--plain", action="store_true", help="load by torch and torchvision")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--classes", type=int, default=1000)
    parser.add_argument("--size", type=int, default=512, help="side of a square of a bucket's pixels")
    parser.add_argument("--step", type=int, default=64, help="sides are multiples of it")
    args = parser.parse_args()

    torch.manual_seed(0)
    random.seed(0)
    buckets = feeder.Buckets(pixels=args.size**2, step=args.step, max_aspect=2.0)
    batches = (plain_loader if args.plain else loader)(args, buckets)
    model = Denoiser(args.classes).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for epoch in range(args.epochs):
        total, steps, sizes = torch.zeros((), device=DEVICE), 0, set()
        for batch in batches:
            images, labels, original_size, crop_box = (tensor.to(DEVICE) for tensor in batch)
            sizes.add(tuple(images.shape[2:]))
            level = torch.rand(len(images), device=DEVICE)
            noise = torch.randn_like(images)
            noisy = (1 - level)[:, None, None, None].sqrt() * images + level[:, None, None, None].sqrt() * noise
            predicted = model(noisy, level, labels, [original_size, crop_box[:, :2]])
            loss = nn.functional.mse_loss(predicted, noise)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.detach()
            steps += 1
        print(f"epoch {epoch}: {steps} batches of {len(sizes)} sizes, loss {float(total) / steps:.4f}")


if __name__ == "__main__":
    main()
