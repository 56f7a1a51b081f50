"""The table of buckets in a file that all ranks of a machine map, so that memory holds it once. Needs no torch."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import time
from typing import Any

import numpy as np
import numpy.typing as npt

from feeder.errors import FormatError
from feeder.order.bucket_order import BucketTable
from feeder.shard.cache.places import default_cache
from feeder.system.files import open_regular
from feeder.system.mapping import map_file

__all__ = ["LEAST_BYTES", "TableFile", "shared_table"]

LEAST_BYTES = 1 << 24  # of a table: a smaller one each rank keeps for itself
_COMPARED_AT_ONCE = 1 << 16
_UNUSED_S = 30 * 86_400.0  # after which other tables are removed
_SUFFIX = ".u32"

_log = logging.getLogger(__name__)


class TableFile(BucketTable):
    """A table whose samples are mapped; pickles hold the file's name.

    Args:
        path: The file: uint32, native order.
        starts: See :class:`BucketTable`.

    Raises:
        OSError: if it can't be mapped.
        FormatError: if it is not of that size.
    """

    def __init__(self, path: str, starts: npt.NDArray[np.int64]) -> None:
        descriptor = open_regular(path)
        try:
            expected, found = 4 * int(starts[-1]), os.fstat(descriptor).st_size
            if found != expected:
                raise FormatError(f"{path}: expected {expected:,} bytes, got {found:,}; remove it")
            members = np.frombuffer(map_file(descriptor, expected), np.uint32)
        finally:
            os.close(descriptor)
        super().__init__(members, starts)
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return TableFile, (self.path, self.starts)


def shared_table(table: BucketTable) -> BucketTable:
    """Returns the table, mapped from a file in the user's cache if it is large, and the file can be had.

    The file is named after its content, and compared with the table, so nothing rests on what is in the cache.
    """
    if table.members.nbytes < LEAST_BYTES:
        return table
    folder = os.path.join(default_cache(), "buckets")
    path = os.path.join(folder, hashlib.blake2b(table.members.data, digest_size=16).hexdigest() + _SUFFIX)
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        mapped = _mapped(path, table)
        if mapped is None:
            _write(path, table)
            mapped = _mapped(path, table)
        return mapped or table
    except OSError as error:
        size = f"{table.members.nbytes / 2**20:,.0f} MiB"
        _log.warning("%s: can't be kept (%s), so each rank keeps a table of buckets of %s", path, error.strerror, size)
        return table


def _mapped(path: str, table: BucketTable) -> TableFile | None:
    """Returns the table of a file; None if there is none, or another one."""
    try:
        found = TableFile(path, table.starts)
    except FileNotFoundError:
        return None
    except FormatError:
        found = None
    if found is None or not _is_same(found.members, table.members):
        with contextlib.suppress(FileNotFoundError):  # another rank has noticed it, too
            os.unlink(path)
        return None
    os.utime(path)
    return found


def _is_same(a: npt.NDArray[np.uint32], b: npt.NDArray[np.uint32]) -> bool:
    """Returns True if tables of one length are equal; compares some samples at a time, to need no memory for all."""
    places = range(0, len(a), _COMPARED_AT_ONCE)
    return all(np.array_equal(a[i : i + _COMPARED_AT_ONCE], b[i : i + _COMPARED_AT_ONCE]) for i in places)


def _write(path: str, table: BucketTable) -> None:
    """Writes a table, unless another rank has just done so, and removes those that have long not been used."""
    folder = os.path.dirname(path)
    for name in os.listdir(folder):
        with contextlib.suppress(OSError):
            if os.stat(os.path.join(folder, name)).st_mtime < time.time() - _UNUSED_S:
                os.unlink(os.path.join(folder, name))
    temporary = f"{path}.{os.urandom(4).hex()}.tmp"
    try:
        with open(temporary, "xb") as file:
            file.write(table.members.data)
        with contextlib.suppress(FileExistsError):  # all ranks map one file
            os.link(temporary, path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
