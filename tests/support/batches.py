"""Epochs of batches, kept and compared."""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["check_same", "copied_epoch", "same_batches", "sample_ids"]


def copied_epoch(loader: Any) -> list[tuple[Any, ...]]:
    """An epoch's batches, in memory of their own."""
    return [tuple(x.clone() if isinstance(x, torch.Tensor) else x for x in batch) for batch in loader]


def same_batches(a: list[tuple[Any, ...]], b: list[tuple[Any, ...]]) -> bool:
    """True if two epochs have the same batches, bit for bit."""
    return len(a) == len(b) and all(
        torch.equal(x, y) if isinstance(x, torch.Tensor) else x == y
        for p, q in zip(a, b, strict=True)
        for x, y in zip(p, q, strict=True)
    )


def check_same(batches: list[Any], expected: list[Any]) -> None:
    """Fails unless two epochs have the same batches, bit for bit; those of the first may lie on a device."""
    assert len(batches) == len(expected)
    for batch, other in zip(batches, expected, strict=True):
        for a, b in zip(batch, other, strict=True):
            assert torch.equal(a.cpu(), b) if isinstance(a, torch.Tensor) else a == b


def sample_ids(batches: list[tuple[Any, ...]]) -> list[int]:
    """Numbers of an epoch's samples, for loaders with fields=("index",)."""
    return [i for batch in batches for i in batch[2].tolist()]
