"""The ops that turn uint8 pixels into a model's input numbers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from feeder.errors import ArgumentError
from feeder.system.arrays import Float32s
from feeder.system.checks import check_one_of
from feeder.transforms.op import Op

# float32 [3] scale and bias per channel.
Affine = tuple[Float32s, Float32s]

_DTYPES = ("uint8", "float16", "bfloat16", "float32")


@dataclass(frozen=True, init=False)
class ToDtype(Op):
    """Converts the images to a dtype.

    Args:
        dtype: uint8, float16, bfloat16 or float32, as a torch or numpy dtype or by name.
        scale: True to scale 0-255 to 0.0-1.0.

    Raises:
        ArgumentError: for any other dtype.
    """

    dtype: str
    scale: bool
    on_arrays = True

    def __init__(self, dtype: object, scale: bool = False) -> None:
        name = getattr(dtype, "__name__", None) or str(dtype)  # numpy scalar types, else torch and numpy dtypes
        name = name.removeprefix("torch.")
        check_one_of("dtype", name, _DTYPES)
        self._set(dtype=name, scale=bool(scale))


@dataclass(frozen=True, init=False)
class Normalize(Op):
    """Subtracts ``mean`` and divides by ``std``, per channel.

    Images that are still uint8 are first converted to float32 in 0.0-1.0.

    Args:
        mean: Three numbers (R, G, B), or one for all.
        std: Three numbers (R, G, B), or one for all; not 0.
        inplace: Accepted as in torchvision, and without effect.

    Raises:
        ArgumentError: for another count, or a zero in ``std``.
    """

    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    on_arrays = True

    def __init__(self, mean: float | Iterable[float], std: float | Iterable[float], inplace: bool = False) -> None:
        self._set(mean=_channels("mean", mean), std=_channels("std", std))
        if 0.0 in self.std:
            raise ArgumentError(f"std must not be 0, got {self.std}")


def _channels(name: str, value: float | Iterable[float]) -> tuple[float, float, float]:
    numbers = tuple(float(v) for v in ((value,) if isinstance(value, (int, float)) else value))
    if len(numbers) not in (1, 3):
        raise ArgumentError(f"{name} must be one number or three (R, G, B), got {len(numbers)}")
    return numbers[0], numbers[len(numbers) // 2], numbers[-1]


def compose_affine(ops: Sequence[Op], *, is_float: bool) -> Affine:
    """Composes the value ops among ``ops``: output = input * scale + bias, per channel.

    Args:
        ops: Any ops; only ``ToDtype`` and ``Normalize`` count.
        is_float: True if the input is float already; else it is uint8, 0-255.
    """
    scale = np.ones(3)
    bias = np.zeros(3)
    for op in ops:
        if isinstance(op, Normalize):
            scale = scale / (np.array(op.std) * (1.0 if is_float else 255.0))
            bias = (bias - np.array(op.mean)) / np.array(op.std)
            is_float = True
        elif isinstance(op, ToDtype) and op.dtype != "uint8":
            if op.scale and not is_float:
                scale = scale / 255.0
            is_float = True
    return scale.astype(np.float32), bias.astype(np.float32)
