"""The choice between an op's Triton kernel and its torch reference."""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import os
import shutil
import sysconfig
from functools import lru_cache
from typing import Any

import torch

from feeder.errors import ArgumentError
from feeder.system.checks import check_one_of

_log = logging.getLogger(__name__)


@lru_cache(maxsize=1)
def has_triton() -> bool:
    """Returns whether Triton can be imported."""
    return importlib.util.find_spec("triton") is not None


@lru_cache(maxsize=1)
def lacks() -> str | None:
    """Returns what Triton lacks to run kernels on a GPU here, and the remedy; None if it lacks nothing.

    Triton compiles its access to the driver, in C, before its first launch. This needs a compiler and Python's headers,
    which slim containers don't have.
    """
    if not has_triton():
        return "Triton: pip install 'feeder-data[gpu]'"
    if os.environ.get("TRITON_INTERPRET") == "1":
        return "Triton's compiler, replaced with the interpreter for CPUs by TRITON_INTERPRET=1: unset it"
    if not (os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")):
        return "a C compiler, which Triton needs: install gcc"
    scheme = sysconfig.get_default_scheme()
    # As in Triton: Debian's own scheme names a folder without headers.
    folder = sysconfig.get_paths(scheme="posix_prefix" if scheme == "posix_local" else scheme)["include"]
    if not os.path.exists(os.path.join(folder, "Python.h")):
        return f"Python's headers, which Triton needs, in {folder}: install python3-dev"
    return None


@lru_cache(maxsize=1)
def say_once(lacking: str) -> None:
    _log.warning("the GPU kernels' torch references run in their place, more slowly; missing is %s", lacking)


def runs_triton(device: torch.device, using: str) -> bool:
    """Returns whether an op on this device runs its kernel.

    Args:
        device: The images' device.
        using: "triton", "torch" (the reference), or "auto": the kernel on CUDA if Triton can run there.

    Raises:
        ArgumentError: if the kernel is requested and can't run.
    """
    check_one_of("using", using, ("auto", "triton", "torch"))
    if using == "torch" or (using == "auto" and device.type != "cuda"):
        return False
    lacking = lacks() if device.type == "cuda" else None if has_triton() else "Triton: pip install 'feeder-data[gpu]'"
    if lacking is not None:
        if using == "triton":
            raise ArgumentError(f"using='triton' can't run here; missing is {lacking}")
        say_once(lacking)
        return False
    if device.type != "cuda" and os.environ.get("TRITON_INTERPRET") != "1":
        raise ArgumentError(
            f"Triton needs a CUDA device, got images on {device}; set TRITON_INTERPRET=1 before the first import of "
            "feeder.decoders.gpu to interpret the kernels on the CPU"
        )
    return True


def launching_on(device: torch.device) -> contextlib.AbstractContextManager[Any]:
    """Makes a GPU the current one for a launch: Triton uses the current GPU, not the tensors'."""
    return torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext()
