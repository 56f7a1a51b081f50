"""A function for :class:`feeder.transforms.Lambda` that imports torch only when it is called."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt


def draw_late(image: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """One random level for the whole image."""
    import torch

    image[...] = int(torch.randint(256, (1,)))
    return image
