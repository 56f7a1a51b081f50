"""Functions for :class:`feeder.transforms.Lambda` that workers can import; imports torch."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import numpy.typing as npt
import torch


def add_noise(image: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Noise from three generators."""
    noise = np.random.randint(0, 80, image.shape) + random.randrange(80) + int(torch.randint(80, (1,)))
    return (image // 2 + noise).clip(0, 255).astype(np.uint8)
