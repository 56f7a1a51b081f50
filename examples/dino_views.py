"""Self-supervised training on two large and six small views of each image, as in DINO.

python examples/dino_views.py DIR [--epochs 3] [--size 224] [--small-size 96]
python examples/dino_views.py DIR --plain    # torch's DataLoader and torchvision, on a folder of class folders
"""

from __future__ import annotations

import argparse
import copy
from typing import Any

import torch

from feeder import DataLoader, ShardDataset, transforms

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("dir", help="a folder that `feeder shard` wrote; with --plain one of class folders")
    parser.add_argument("--plain", action="store_true", help="load by torch and torchvision")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--small-size", type=int, default=96)
    return parser.parse_args()


def recipes(T: Any, size: int, small_size: int) -> list[list[Any]]:
    """Returns the ops of DINO's eight views.

    Source: Caron et al., "Emerging properties in self-supervised vision transformers", 2021.

    Args:
        T: feeder.transforms or torchvision.transforms.v2.
        size: Side of the first two views, pixels.
        small_size: Side of the six others.
    """
    colors = [
        T.RandomHorizontalFlip(),
        T.RandomApply([T.ColorJitter(0.4, 0.4, 0.2, 0.1)], p=0.8),
        T.RandomGrayscale(0.2),
    ]
    values = [
        T.ToImage(),
        T.ToDtype(torch.float32, scale=True),
        T.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    ]
    blur = T.GaussianBlur(9, (0.1, 2.0))
    first = [T.RandomResizedCrop(size, scale=(0.4, 1.0)), *colors, blur, *values]
    solarized = [T.RandomApply([blur], p=0.1), T.RandomSolarize(128, p=0.2)]
    second = [T.RandomResizedCrop(size, scale=(0.4, 1.0)), *colors, *solarized, *values]
    small = [T.RandomResizedCrop(small_size, scale=(0.05, 0.4)), *colors, T.RandomApply([blur], p=0.5), *values]
    return [first, second, *[small] * 6]


def plain_loader(args: argparse.Namespace) -> Any:
    from torchvision.datasets import ImageFolder
    from torchvision.transforms import v2

    views = [v2.Compose(ops) for ops in recipes(v2, args.size, args.small_size)]
    dataset = ImageFolder(args.dir, lambda image: [view(image) for view in views])
    return torch.utils.data.DataLoader(dataset, args.batch_size, shuffle=True, num_workers=args.workers, drop_last=True)


def loader(args: argparse.Namespace) -> Any:
    dataset = ShardDataset(args.dir, transforms.Views(recipes(transforms, args.size, args.small_size)))
    options = {"num_workers": args.workers, "device": DEVICE}
    return DataLoader(dataset, args.batch_size, shuffle=True, drop_last=True, **options)


class Model(torch.nn.Module):
    """A small network for images of any size; returns the scores of prototypes."""

    def __init__(self, prototypes: int = 32) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Conv2d(3, 16, 7, stride=4),
            torch.nn.ReLU(),
            torch.nn.AdaptiveAvgPool2d(2),
            torch.nn.Flatten(),
            torch.nn.Linear(64, prototypes),
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.layers(images)
        return scores


def dino_loss(student: list[torch.Tensor], teacher: list[torch.Tensor], center: torch.Tensor) -> torch.Tensor:
    """Returns the mean cross entropy of every pair of a teacher's view and another view of the student."""
    targets = [((scores - center) / 0.04).softmax(dim=-1) for scores in teacher]
    logs = [(scores / 0.1).log_softmax(dim=-1) for scores in student]
    pairs = [-(t * s).sum(dim=-1).mean() for i, t in enumerate(targets) for j, s in enumerate(logs) if i != j]
    return torch.stack(pairs).mean()


def main() -> None:
    args = arguments()
    torch.manual_seed(0)
    batches = (plain_loader if args.plain else loader)(args)
    student = Model().to(DEVICE)
    teacher = copy.deepcopy(student).requires_grad_(False)
    center = torch.zeros(32, device=DEVICE)
    optimizer = torch.optim.AdamW(student.parameters(), lr=1e-3)
    for epoch in range(args.epochs):
        total, steps = torch.zeros((), device=DEVICE), 0
        for views, _ in batches:
            images = [view.to(DEVICE) for view in views]
            with torch.no_grad():
                targets = [teacher(view) for view in images[:2]]
            loss = dino_loss([student(view) for view in images], targets, center)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            with torch.no_grad():
                center.lerp_(torch.cat(targets).mean(dim=0), 0.1)
                for mean, new in zip(teacher.parameters(), student.parameters(), strict=True):
                    mean.lerp_(new, 0.004)
            total += loss.detach()
            steps += 1
        print(f"epoch {epoch}: {steps} steps, loss {float(total) / steps:.4f}")


if __name__ == "__main__":
    main()
