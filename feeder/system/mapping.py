"""Files, and memory of other processes on this machine, mapped into memory.

Python's own mmap keeps a descriptor for each mapping, so that a process soon runs out of descriptors.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import weakref

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int64)
_libc.mmap.restype = ctypes.c_void_p
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_FAILED = ctypes.c_void_p(-1).value


def map_file(descriptor: int, size_bytes: int) -> memoryview:
    """Maps the start of a file, read-only; the mapping ends with the last view of it.

    Args:
        descriptor: The open file, which may be closed afterwards.
        size_bytes: Number of bytes to map, at most the file's.

    Raises:
        OSError: if it can't be mapped.
    """
    if not size_bytes:
        return memoryview(b"")
    address = _libc.mmap(None, size_bytes, mmap.PROT_READ, mmap.MAP_SHARED, descriptor, 0)
    if address == _FAILED:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    array = (ctypes.c_ubyte * size_bytes).from_address(address)
    weakref.finalize(array, _libc.munmap, address, size_bytes).atexit = False
    return memoryview(array).cast("B").toreadonly()


def map_other_memory(descriptor: int, size_bytes: int) -> memoryview:
    """Maps a memfd of another process for reading, see :func:`map_file`.

    Args:
        descriptor: The memfd.
        size_bytes: Its size.

    Raises:
        OSError: if it can't be mapped.
        ValueError: if it has another size, or may shrink: to read behind its end would kill this process.
    """
    try:
        is_fixed = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK
    except OSError:  # it is no memfd
        is_fixed = 0
    if not is_fixed or size_bytes < 1 or os.fstat(descriptor).st_size != size_bytes:
        raise ValueError("memory that may shrink, or of another size")
    return map_file(descriptor, size_bytes)
