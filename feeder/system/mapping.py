"""Files mapped into memory.

Python's own mmap keeps a descriptor for each mapping, so that a process soon runs out of descriptors.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import weakref

__all__ = ["map_file"]

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
