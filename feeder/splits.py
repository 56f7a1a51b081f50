"""Folders that hold a training and a validation set side by side, and are easily taken for two classes."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["splits_advice"]

_SPLITS = frozenset({"eval", "test", "testing", "train", "training", "val", "valid", "validation"})


def splits_advice(root: str, classes: Sequence[str]) -> str | None:
    """What to do if all class folders are named as splits of a dataset are; None if they are not.

    Args:
        root: The folder.
        classes: Names of the folders in it.
    """
    if not classes or not _SPLITS.issuperset(name.lower() for name in classes):
        return None
    return (
        f"{root}: its folders {', '.join(classes)} are taken as classes; if they are parts of one dataset, name each "
        f"by itself, {root.rstrip('/')}/{classes[0]} for example"
    )
