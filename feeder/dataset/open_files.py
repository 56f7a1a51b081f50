"""The shards that a thread has open, and the memory that it reads images into."""

from __future__ import annotations

import os
import resource
import sys
import weakref
from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple

from feeder.errors import DecodeError

# Shards that a thread keeps open, unless all threads together would take over a quarter of the process's descriptors.
OPEN_SHARDS = 512
_FEWEST_SHARDS = 2
_LIMIT_SHARE = 4


class OpenFile(NamedTuple):
    """An open shard.

    Attributes:
        descriptor: Its descriptor.
        size_bytes: Its size.
        changed_ns: Its ctime when it was opened.
    """

    descriptor: int
    size_bytes: int
    changed_ns: int


class OpenFiles:
    """One thread's open shards in one process, and the memory that their images are read into.

    Attributes:
        entries: Open shards by number, the one used last at the end.
        native: The same open shards for the kernels.
        arena: Memory for the images of one :meth:`feeder.dataset.shard_reader.ShardReader.read`.
        advised_reads: Number of further reads with posix_fadvise; 0 while the disk is fast.
    """

    def __init__(self) -> None:
        from feeder import _native

        self.entries: OrderedDict[int, OpenFile] = OrderedDict()
        self.native = _native.OpenShards()
        self.arena = bytearray()
        self.advised_reads = 0
        self.pid = os.getpid()
        _all_files.add(self)

    @property
    def most(self) -> int:
        """Number of shards that may be open here: all threads share the descriptors that shards may take."""
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        if limit == resource.RLIM_INFINITY:
            return OPEN_SHARDS
        return max(_FEWEST_SHARDS, min(OPEN_SHARDS, limit // _LIMIT_SHARE // len(_all_files)))

    def add(self, shard: int, entry: OpenFile) -> None:
        """Takes an open shard; closes those that were used longest ago."""
        self.entries[shard] = entry
        self.native.put(shard, *entry)
        while len(self.entries) > self.most:
            oldest, closed = self.entries.popitem(last=False)
            self.native.remove(oldest)
            os.close(closed.descriptor)

    def close(self) -> None:
        """Closes the shards."""
        while self.entries:
            shard, closed = self.entries.popitem()
            self.native.remove(shard)
            os.close(closed.descriptor)

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if is_finalizing():  # see Note [At the interpreter's end]
            return
        if self.entries and self.pid == os.getpid():  # after a fork the descriptors are the parent's to close
            self.close()


_all_files: weakref.WeakSet[OpenFiles] = weakref.WeakSet()


def read_into(descriptor: int, offset: int, view: memoryview) -> None:
    """Fills a memoryview with the bytes of a shard from an offset on.

    Raises:
        DecodeError: if they can't be read, or there are fewer.
    """
    done = 0
    while done < len(view):
        try:
            count = os.preadv(descriptor, [view[done:] if done else view], offset + done)
        except OSError as error:
            raise DecodeError(f"read failed at byte {offset + done}: {error.strerror}") from error
        if count == 0:
            raise DecodeError(
                f"expected {len(view)} bytes at byte {offset}, got {done}: the shard was cut off; "
                "run `feeder inspect --verify`"
            )
        done += count
