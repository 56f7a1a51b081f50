"""The CUDA driver, by ctypes: loads feeder's kernels on a GPU and launches them.

No CUDA toolkit, compiler or Python package is needed where it runs, only the driver: its libcuda reads the fat binary
that nvcc made when feeder was built.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

from feeder.errors import BackendError

# A kernel's name, its blocks of threads, the threads of each, and its argument; see ``_native.CudaBatch``.
Launch = tuple[str, int, int, bytes]

LIBRARY = "libcuda.so.1"

# What nvcc 13 makes needs a driver of 580 or newer, which tells of itself that it is of CUDA 13.0.
_LEAST_VERSION, _LEAST_DRIVER = 13000, "580"
_LEAST_CAPABILITY = (7, 5)
_MAJOR, _MINOR = 75, 76  # members of CUdevice_attribute
# Codes of CUresult that say what to do.
_REASONS = {
    209: " (this build has no code for the GPU)",
    222: " (the GPU is later than this build's machine code, and its PTX later than the driver: update the driver)",
}
_ELSE = "use backend='dali' or 'cpu'"


class Kernels:
    """feeder's kernels, loaded on one GPU for as long as the process lives.

    Args:
        driver: libcuda.
        device: Number of the GPU, as torch counts.
        fatbin: The kernels.

    Raises:
        BackendError: if the driver or the GPU is too old, or the driver refuses.
    """

    def __init__(self, driver: ctypes.CDLL, device: int, fatbin: bytes) -> None:
        self._driver = driver
        self._check("cuInit", 0)
        version = ctypes.c_int()
        self._check("cuDriverGetVersion", ctypes.byref(version))
        if version.value < _LEAST_VERSION:
            has = f"{version.value // 1000}.{version.value % 1000 // 10}"
            raise BackendError(
                f"backend 'cuda' needs NVIDIA's driver {_LEAST_DRIVER} or newer, which is of CUDA 13.0, and this one "
                f"is of CUDA {has}: update the driver, or {_ELSE}"
            )
        handle, major, minor = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
        self._check("cuDeviceGet", ctypes.byref(handle), device)
        for number, attribute in ((major, _MAJOR), (minor, _MINOR)):
            self._check("cuDeviceGetAttribute", ctypes.byref(number), attribute, handle)
        if (major.value, minor.value) < _LEAST_CAPABILITY:
            raise BackendError(
                f"backend 'cuda' needs a GPU of compute capability 7.5 or newer (Turing), and cuda:{device} is of "
                f"{major.value}.{minor.value}: {_ELSE}"
            )
        self._context = ctypes.c_void_p()  # torch's own
        self._check("cuDevicePrimaryCtxRetain", ctypes.byref(self._context), handle)
        self._module = ctypes.c_void_p()
        self._functions: dict[str, ctypes.c_void_p] = {}
        with self._in_context():
            self._check("cuModuleLoadData", ctypes.byref(self._module), fatbin)

    def launch(self, launches: Iterable[Launch], stream: int) -> None:
        """Queues kernels, one after the other.

        Args:
            launches: The kernels.
            stream: Handle of the stream; 0 is the default one.

        Raises:
            BackendError: if the driver refuses one.
        """
        with self._in_context():
            for name, blocks, threads, argument in launches:
                memory = ctypes.create_string_buffer(argument, len(argument))
                arguments = (ctypes.c_void_p * 1)(ctypes.addressof(memory))
                self._check(
                    "cuLaunchKernel",
                    self._function(name),
                    *map(ctypes.c_uint, (blocks, 1, 1, threads, 1, 1, 0)),
                    ctypes.c_void_p(stream),
                    arguments,
                    None,
                )

    def _function(self, name: str) -> ctypes.c_void_p:
        found = self._functions.get(name)
        if found is None:
            found = ctypes.c_void_p()
            self._check("cuModuleGetFunction", ctypes.byref(found), self._module, name.encode())
            self._functions[name] = found
        return found

    @contextlib.contextmanager
    def _in_context(self) -> Iterator[None]:
        """Makes the GPU's context current: in a thread that has not called CUDA yet there is none."""
        self._check("cuCtxPushCurrent_v2", self._context)
        try:
            yield
        finally:
            self._check("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))

    def _check(self, call: str, *arguments: Any) -> None:
        code = getattr(self._driver, call)(*arguments)
        if code == 0:
            return
        text = ctypes.c_char_p()
        known = self._driver.cuGetErrorName(code, ctypes.byref(text)) == 0 and text.value is not None
        name = text.value.decode() if known and text.value is not None else "unknown"
        raise BackendError(f"backend 'cuda': {call} failed with error {code}, {name}{_REASONS.get(code, '')}: {_ELSE}")


def fatbin_path() -> Path:
    """Returns the file that has the kernels, beside the native module; a build without nvcc lacks it."""
    from feeder import _native

    return Path(_native.__file__).with_name("_native.fatbin")


@cache
def load_kernels(device: int) -> Kernels:
    """Returns the kernels on a GPU, loaded once.

    Args:
        device: Number of the GPU, as torch counts.

    Raises:
        BackendError: if feeder was built without them, there is no driver, or the driver or the GPU is too old.
    """
    try:
        fatbin = fatbin_path().read_bytes()
    except FileNotFoundError:
        raise BackendError(
            "backend 'cuda' was left out when this feeder was built, as nvcc was missing: install a wheel of feeder, "
            f"or build it with nvcc 13 on the path; or {_ELSE}"
        ) from None
    try:
        driver = ctypes.CDLL(LIBRARY)
    except OSError as error:
        raise BackendError(
            f"backend 'cuda' needs NVIDIA's driver, and there is none ({error}): install driver {_LEAST_DRIVER} or "
            f"newer (in a container, start it with --gpus), or {_ELSE}"
        ) from None
    return Kernels(driver, device, fatbin)
