"""Any Python function as an op."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt

from feeder.errors import ArgumentError
from feeder.transforms.op import Drawn, IntArray, Op, Uniforms

__all__ = ["Lambda"]


@dataclass(frozen=True, init=False)
class Lambda(Op):
    """Calls a function on every image, in the worker.

    A module's function can be pickled; with a ``lambda`` or a local function, workers are forked. Its draws from the
    global generators of ``random``, numpy and torch are functions of (seed, epoch, sample) too: the same whatever the
    workers, the ranks or a resume. The calling process's own generators are left as they were.

    Args:
        lambd: Takes and returns an array [3, H, W]: uint8, 0-255, or float32 after ``ToDtype`` or ``Normalize``. It may
            write to its argument; shape and dtype must not change.

    Raises:
        ArgumentError: if it is no function.
    """

    lambd: Callable[[npt.NDArray[Any]], npt.NDArray[Any]]
    on_arrays = True
    draws_from_size = False

    def __init__(self, lambd: Callable[[npt.NDArray[Any]], npt.NDArray[Any]]) -> None:
        if not callable(lambd):
            raise ArgumentError(f"lambd must be a function of an array, got {lambd!r}")
        self._set(lambd=lambd)

    def draw(self, uniforms: Uniforms, sizes: IntArray) -> Drawn:
        return Drawn({"key": uniforms.keys()}, sizes)
