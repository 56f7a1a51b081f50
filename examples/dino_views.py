"""Self-supervised training on two large and six small views of each image, as in DINO.

python examples/dino_views.py DIR [--epochs 3] [--size 224] [--small-size 96]

Beside a plain torch loop with Pillow, where a dataset returns a list of eight crops, only the lines with T.Views and
feeder's names differ:

    class MultiCrop:                                                  # gone
        def __call__(self, image): return [large(image), large(image), *(small(image) for _ in range(6))]
    dataset = ImageFolder(root, MultiCrop())                          # ShardDataset(root, T.Views([...]))
"""

from __future__ import annotations

import argparse
import copy

import torch

from feeder import DataLoader, ShardDataset
from feeder import transforms as T


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("dir", help="a folder that `feeder shard` wrote")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--small-size", type=int, default=96)
    return parser.parse_args()


def views(size: int, small_size: int) -> T.Views:
    """Returns DINO's recipe (Caron et al., "Emerging properties in self-supervised vision transformers", 2021)."""
    colors = [
        T.RandomHorizontalFlip(),
        T.RandomApply([T.ColorJitter(0.4, 0.4, 0.2, 0.1)], p=0.8),
        T.RandomGrayscale(0.2),
    ]
    values = [T.ToDtype(torch.float32, scale=True), T.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))]
    blur = T.GaussianBlur(9, (0.1, 2.0))
    first = [T.RandomResizedCrop(size, scale=(0.4, 1.0)), *colors, blur, *values]
    solarized = [T.RandomApply([blur], p=0.1), T.RandomSolarize(128, p=0.2)]
    second = [T.RandomResizedCrop(size, scale=(0.4, 1.0)), *colors, *solarized, *values]
    small = [T.RandomResizedCrop(small_size, scale=(0.05, 0.4)), *colors, T.RandomApply([blur], p=0.5), *values]
    return T.Views([first, second, *[small] * 6])


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
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    dataset = ShardDataset(args.dir, views(args.size, args.small_size))
    loader: DataLoader[tuple[list[torch.Tensor], torch.Tensor]] = DataLoader(
        dataset, args.batch_size, shuffle=True, num_workers=args.workers, drop_last=True, device=device
    )
    student = Model().to(device)
    teacher = copy.deepcopy(student).requires_grad_(False)
    center = torch.zeros(32, device=device)
    optimizer = torch.optim.AdamW(student.parameters(), lr=1e-3)
    for epoch in range(args.epochs):
        total, steps = torch.zeros((), device=device), 0
        for images, _ in loader:
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
