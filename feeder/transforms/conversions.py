"""torchvision's other names for conversions to tensors: images of a batch are tensors already."""

from __future__ import annotations

from feeder.transforms.recipe import Compose
from feeder.transforms.values import ToDtype


def ToImage() -> Compose:
    """Returns an empty ``Compose``, which does nothing in any place."""
    return Compose([])


def PILToTensor() -> Compose:
    """Returns an empty ``Compose``, which does nothing in any place."""
    return Compose([])


def ToPureTensor() -> Compose:
    """Returns an empty ``Compose``, which does nothing in any place."""
    return Compose([])


def ToTensor() -> ToDtype:
    """Returns ``ToDtype("float32", scale=True)``."""
    return ToDtype("float32", scale=True)


def ConvertImageDtype(dtype: object = "float32") -> ToDtype:
    """Returns ``ToDtype(dtype, scale=True)``."""
    return ToDtype(dtype, scale=True)
