"""The part of a file that is in the page cache, from cachestat(2) or, if that fails, mincore(2)."""

from __future__ import annotations

import ctypes
import mmap
import os

__all__ = ["cached_bytes"]

_CACHESTAT = 451  # the same on every architecture; since Linux 6.5
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]


class _Range(ctypes.Structure):
    _fields_ = [("offset", ctypes.c_uint64), ("length", ctypes.c_uint64)]


class _Stat(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("cached", "dirty", "writeback", "evicted", "recently_evicted")]


def cached_bytes(path: str, *, use_cachestat: bool = True) -> int | None:
    """Returns how many of a file's bytes are in memory; None if the kernel does not report it.

    Raises:
        OSError: if the file can't be opened.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        size = os.fstat(descriptor).st_size
        if size == 0:
            return 0
        pages = _by_cachestat(descriptor) if use_cachestat else None
        if pages is None:
            pages = _by_mincore(descriptor, size)
        return None if pages is None else min(size, pages * mmap.PAGESIZE)
    finally:
        os.close(descriptor)


def _by_cachestat(descriptor: int) -> int | None:
    found = _Stat()
    code = _libc.syscall(_CACHESTAT, descriptor, ctypes.byref(_Range(0, 0)), ctypes.byref(found), 0)
    return int(found.cached) if code == 0 else None


def _by_mincore(descriptor: int, size: int) -> int | None:
    # To a process that may not write to the file, the kernel reports that it is entirely in memory.
    if not os.access(f"/proc/self/fd/{descriptor}", os.W_OK):
        return None
    address = _libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, descriptor, 0)
    if address in (None, ctypes.c_void_p(-1).value):
        return None
    try:
        vector = ctypes.create_string_buffer(-(-size // mmap.PAGESIZE))
        if _libc.mincore(address, size, vector) != 0:
            return None
        return sum(page & 1 for page in vector.raw[: len(vector)])
    finally:
        _libc.munmap(address, size)
