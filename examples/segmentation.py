"""Trains a small U-Net on masks, which get the crops, flips and rotations of their images.

feeder shard --pair images=images masks=masks --out shards
python examples/segmentation.py shards [--epochs 3] [--size 256] [--classes 21]
python examples/segmentation.py . --plain    # torch's DataLoader and torchvision on images/*.jpg and masks/*.png

Masks are PNGs with class numbers per pixel, 255 for none.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import nn

import feeder
from feeder import transforms as T

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
IGNORED = 255


class Pairs(torch.utils.data.Dataset):
    """The plain version's dataset: images and masks of two folders."""

    def __init__(self, folder: Path, transform: Any) -> None:
        self.images, self.masks = sorted(folder.glob("images/*.jpg")), sorted(folder.glob("masks/*.png"))
        self.transform = transform

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, i: int) -> tuple[torch.Tensor, torch.Tensor]:
        from torchvision import tv_tensors

        with Image.open(self.images[i]) as file, Image.open(self.masks[i]) as mask_file:
            image, mask = self.transform(tv_tensors.Image(file.convert("RGB")), tv_tensors.Mask(mask_file))
        return image, mask[0]


def plain_loader(args: argparse.Namespace) -> Any:
    from torchvision import tv_tensors
    from torchvision.transforms import v2

    transform = v2.Compose(
        [
            v2.RandomRotation(10, fill={tv_tensors.Image: 0, tv_tensors.Mask: IGNORED}),
            v2.RandomResizedCrop(args.size, scale=(0.5, 1.0)),
            v2.RandomHorizontalFlip(),
            v2.ColorJitter(0.2, 0.2, 0.2),
            v2.ToDtype({tv_tensors.Image: torch.float32, "others": None}, scale=True),
        ]
    )
    dataset = Pairs(Path(args.dir), transform)
    return torch.utils.data.DataLoader(dataset, args.batch_size, shuffle=True, num_workers=args.workers)


def loader(args: argparse.Namespace) -> Any:
    transform = T.Compose(
        [
            T.RandomRotation(10),
            T.RandomResizedCrop(args.size, scale=(0.5, 1.0)),
            T.RandomHorizontalFlip(),
            T.ColorJitter(0.2, 0.2, 0.2),
            T.ToDtype(torch.float32, scale=True),
        ]
    )
    dataset = feeder.ShardDataset(args.dir, transform, labels=False, targets={"masks.png": T.Mask(fill=IGNORED)})
    return feeder.DataLoader(dataset, args.batch_size, shuffle=True, num_workers=args.workers, device=DEVICE)


def convolutions(inputs: int, outputs: int) -> nn.Sequential:
    layers = [nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU()]
    return nn.Sequential(*layers, nn.Conv2d(outputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU())


class UNet(nn.Module):
    """Ronneberger et al., "U-Net", 2015, with few channels. The image's sides must be multiples of 8."""

    def __init__(self, classes: int, width: int = 16, levels: int = 3) -> None:
        super().__init__()
        widths = [width << level for level in range(levels + 1)]
        self.down = nn.ModuleList(convolutions(*pair) for pair in zip([3, *widths], widths, strict=False))
        self.up = nn.ModuleList(convolutions(3 * w, w) for w in widths[:-1])
        self.last = nn.Conv2d(width, classes, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept = []
        for block in self.down[:-1]:
            kept.append(block(x))
            x = nn.functional.max_pool2d(kept[-1], 2)
        x = self.down[-1](x)
        for block, skip in zip(reversed(self.up), reversed(kept), strict=True):
            x = block(torch.cat([nn.functional.interpolate(x, scale_factor=2), skip], dim=1))
        return self.last(x)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("dir", help="a folder of shards; with --plain that of images/ and masks/")
    parser.add_argument("--plain", action="store_true", help="load by torch and torchvision")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--size", type=int, default=256)
    parser.add_argument("--classes", type=int, default=21)
    args = parser.parse_args()

    torch.manual_seed(0)
    batches = (plain_loader if args.plain else loader)(args)
    model = UNet(args.classes).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for epoch in range(args.epochs):
        total = torch.zeros(3, device=DEVICE)  # loss, right pixels, pixels of a class
        for batch in batches:
            images, masks = batch[0].to(DEVICE), batch[-1].to(DEVICE).long()  # [N, 3, size, size] and [N, size, size]
            scores = model(images)
            loss = nn.functional.cross_entropy(scores, masks, ignore_index=IGNORED)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += torch.stack([loss.detach(), (scores.argmax(1) == masks).sum(), (masks != IGNORED).sum()])
        loss, right, pixels = total.tolist()
        print(f"epoch {epoch}: {right / pixels:.1%} of pixels right, loss {loss / len(batches):.4f}")


if __name__ == "__main__":
    main()
