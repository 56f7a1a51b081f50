"""The loop around each script's loader: a small model, a few epochs, labels counted."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import torch

__all__ = ["parse", "train"]


def parse(doc: str | None, given: Sequence[str] | None = None) -> argparse.Namespace:
    """Parses the arguments that all scripts have."""
    parser = argparse.ArgumentParser(description=doc)
    parser.add_argument("data", help="a folder with a folder for each class, or shards")
    for name, default in (("size", 224), ("batch-size", 64), ("workers", 1), ("epochs", 1)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--pin", action="store_true", help="pin batches, where there is a GPU")
    return parser.parse_args(given)


def train(args: argparse.Namespace, loader: Iterable[Any]) -> Counter[int]:
    """Trains a small model, and returns how often each label came."""
    model = torch.nn.Sequential(torch.nn.AdaptiveAvgPool2d(8), torch.nn.Flatten(), torch.nn.Linear(192, 1000))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    seen: Counter[int] = Counter()
    for _ in range(args.epochs):
        for batch in loader:
            images, labels = (batch["image"], batch["label"]) if isinstance(batch, dict) else batch
            views = images if isinstance(images, list) else [images]
            loss = torch.stack([torch.nn.functional.cross_entropy(model(view), labels) for view in views]).sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            seen.update(labels.tolist())
    print(f"{sum(seen.values())} images of {len(seen)} classes")
    return seen
