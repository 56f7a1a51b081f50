"""torchvision's other names for what turns images into tensors: here they are tensors already."""

from __future__ import annotations

from feeder.transforms.recipe import Compose
from feeder.transforms.values import ToDtype

__all__ = ["ConvertImageDtype", "PILToTensor", "ToImage", "ToPureTensor", "ToTensor"]


def ToImage() -> Compose:
    """Nothing, wherever it stands: an empty ``Compose``."""
    return Compose([])


def PILToTensor() -> Compose:
    """Nothing, wherever it stands: an empty ``Compose``."""
    return Compose([])


def ToPureTensor() -> Compose:
    """Nothing, wherever it stands: an empty ``Compose``."""
    return Compose([])


def ToTensor() -> ToDtype:
    """``ToDtype("float32", scale=True)``."""
    return ToDtype("float32", scale=True)


def ConvertImageDtype(dtype: object = "float32") -> ToDtype:
    """``ToDtype(dtype, scale=True)``; see there."""
    return ToDtype(dtype, scale=True)
