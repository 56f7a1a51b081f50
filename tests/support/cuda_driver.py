"""The CUDA backend without a GPU: a driver that runs the kernels on the CPU in place of libcuda, and tensors there."""

from __future__ import annotations

import ctypes
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
import torch

from feeder.decoders.cuda import cuda_decoder, driver
from feeder.loader.dataloader import DataLoader
from tests.support.cuda_emulator import compiled

__all__ = ["CudaLoader", "FakeDriver", "install"]

_FATBIN = b"\x50\xed\x55\xba"  # how such a file begins


def _path() -> Path:
    return compiled("driver", ("cuda/emulated_driver.cc",))


@lru_cache(maxsize=1)
def _library() -> ctypes.CDLL:
    return ctypes.CDLL(str(_path()))


class FakeDriver:
    """The driver, see kernels/cuda/emulated_driver.cc."""

    def describe(self, version: int = 13000, capability: tuple[int, int] = (9, 0), order: int = 0) -> None:
        """Begins anew.

        Args:
            version: The driver's version of CUDA.
            capability: The GPU's compute capability.
            order: Of threads: 0 forward, 1 backward, 2 shuffled.
        """
        _library().feeder_set_driver(version, *capability, order)
        driver.load_kernels.cache_clear()

    def refuse_launches(self, code: int) -> None:
        """Answers each launch with a code of CUresult; 0 for none."""
        _library().feeder_refuse_launch(code)

    def refuse_loads(self, code: int) -> None:
        """Answers each load of a fat binary with a code of CUresult; 0 for none."""
        _library().feeder_refuse_load(code)

    @property
    def loaded(self) -> int:
        """Number of fat binaries that were loaded."""
        return int(_library().feeder_count_loaded())

    @property
    def launches(self) -> int:
        """Number of kernels that were launched."""
        return int(_library().feeder_count_launches())


def install(monkeypatch: pytest.MonkeyPatch, folder: Path) -> FakeDriver:
    """Has CUDA decoders take the driver, and the CPU for their device.

    Args:
        monkeypatch: Undoes it.
        folder: For a file in place of the kernels' fat binary.
    """
    path = folder / "_native.fatbin"
    path.write_bytes(_FATBIN)
    monkeypatch.setattr(driver, "fatbin_path", lambda: path)
    monkeypatch.setattr(driver, "LIBRARY", str(_path()))
    monkeypatch.setattr(cuda_decoder, "checked_device", torch.device)
    found = FakeDriver()
    found.describe()
    return found


class CudaLoader(DataLoader[Any]):
    """A loader that decodes with the CUDA backend."""

    def __init__(self, dataset: Any, *arguments: Any, backend: str = "cuda", **options: Any) -> None:
        super().__init__(dataset, *arguments, backend=backend, **options)
