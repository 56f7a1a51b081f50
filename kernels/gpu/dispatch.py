"""Whether an op runs as a Triton kernel or as its torch reference."""

from __future__ import annotations

import importlib.util
import os
from functools import lru_cache

import torch

from feeder.errors import ArgumentError

__all__ = ["has_triton", "runs_triton"]


@lru_cache(maxsize=1)
def has_triton() -> bool:
    """Whether Triton can be imported."""
    return importlib.util.find_spec("triton") is not None


def runs_triton(device: torch.device, using: str) -> bool:
    """Whether an op on this device runs its kernel.

    Args:
        device: Where the images are.
        using: "triton", "torch" (the reference), or "auto": the kernel on CUDA if Triton is installed.

    Raises:
        ArgumentError: if the kernel is asked for and can't run.
    """
    if using == "torch" or (using == "auto" and (device.type != "cuda" or not has_triton())):
        return False
    if using not in ("auto", "triton"):
        raise ArgumentError(f"using must be 'auto', 'triton' or 'torch', got {using!r}")
    if not has_triton():
        raise ArgumentError("using='triton' needs Triton; install it: pip install 'feeder-data[gpu]'")
    if device.type != "cuda" and os.environ.get("TRITON_INTERPRET") != "1":
        raise ArgumentError(
            f"Triton needs a CUDA device, got images on {device}; set TRITON_INTERPRET=1 before the first import of "
            "feeder._gpu to interpret the kernels on the CPU"
        )
    return True
