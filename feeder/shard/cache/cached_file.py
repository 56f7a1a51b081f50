"""A file of a set in the cache: the contents that it must have, its blocks, and the plans that need it."""

from __future__ import annotations

import collections
import functools
import hashlib
import itertools
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from feeder._native import crc32c
from feeder.shard.cache.presence import BLOCK_BYTES, IDENTITY_BYTES, Record
from feeder.shard.store.store import Entry
from feeder.system.arrays import Uint32s

Block = Sequence[memoryview]  # the bytes of a block, in pieces
ATTEMPTS = 4  # to get bytes that are right


@dataclass(frozen=True, eq=False)
class Contents:
    """The contents that a file of a set must have.

    Attributes:
        size_bytes: Its size.
        identity: 16 bytes that differ for other contents.
        etag: The ETag that each range must come with; empty: any.
        blocks: uint32 [blocks], CRC-32C of each block; None where none are known.
        fetch: Returns all of it, fetched and checked, or raises OSError if the disk takes no more; None for a file that
            comes in ranges.
        check: Raises FormatError if the file at a path does not have these contents; None where nobody can tell.
        is_kept: True for a file that stays in the cache while the set is in use.
        lock: Held while all of it is fetched.
    """

    size_bytes: int
    identity: bytes
    etag: str = ""
    blocks: Uint32s | None = None
    fetch: Callable[[], bytes | memoryview] | None = None
    check: Callable[[str], object] | None = None
    is_kept: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)


def entry_identity(entry: Entry) -> bytes:
    """Returns the identity of contents that are known by an object's entry alone, see :class:`Contents`."""
    text = f"{entry.size_bytes} {entry.etag} {entry.modified_ns}"
    return hashlib.sha256(text.encode()).digest()[:IDENTITY_BYTES]


class CachedFile:
    """A file in the cache.

    Attributes:
        name: Its name in the set.
        contents: The contents that it must have; None for one that has not been asked for.
        record: Its record.
        present_bytes: Size of its blocks that are present.
        busy: Number of downloads of its blocks that are on their way.
        is_done: True once a plan has come past its last use of it.
        inode: Number of the file; -1: not looked up yet.
    """

    __slots__ = ("busy", "contents", "inode", "is_done", "name", "present_bytes", "record")

    def __init__(self, name: str, record: Record) -> None:
        self.name = name
        self.record = record
        self.contents: Contents | None = None
        self.present_bytes = record.present_bytes()
        self.busy = 0
        self.is_done = False
        self.inode = -1

    @property
    def is_kept(self) -> bool:
        """True for a file that stays in the cache while the set is in use."""
        return self.contents is not None and self.contents.is_kept

    @property
    def is_complete(self) -> bool:
        """True if all of its blocks are present, and none is doubtful."""
        return not self.record.missing(0, self.record.blocks)

    def is_of(self, contents: Contents) -> bool:
        """Returns True if its blocks are of these contents."""
        return (self.record.size_bytes, self.record.identity) == (contents.size_bytes, contents.identity)

    def block_range(self, first: int, end: int) -> tuple[int, int]:
        """Returns the first byte and the end of some blocks."""
        return first * BLOCK_BYTES, min(end * BLOCK_BYTES, self.record.size_bytes)

    def absent_bytes(self, blocks: Iterable[int]) -> int:
        """Returns the size of those of some blocks that are not in the cache, not even as doubtful ones."""
        ranges = (self.block_range(block, block + 1) for block in blocks if not self.record.holds(block))
        return sum(end - begin for begin, end in ranges)

    def wrong_blocks(self, first: int, blocks: Sequence[Block]) -> list[int]:
        """Returns the blocks, of these from ``first`` on, that are not as they must be."""
        contents = self.contents
        assert contents is not None
        if contents.blocks is None:
            return []
        known = contents.blocks[first : first + len(blocks)].tolist()
        return [
            number
            for number, block, checksum in zip(itertools.count(first), blocks, known, strict=False)
            if functools.reduce(lambda before, view: crc32c(view, before), block, 0) != checksum
        ]


@dataclass(eq=False)
class Plan:
    """The plan of one iterator.

    Attributes:
        step: The step that its trainer has reached.
        last_steps: By file, the last step known to need it.
        first: Ranges of its first batch, which come alone, so that they share the network with no others.
        ranges: Ranges to get ahead, in the order of need: (file, first block, end).
        working_bytes: Size of the shards that it reads from at a time, and of their indexes.
    """

    step: int = 0
    last_steps: dict[str, int] = field(default_factory=dict)
    first: list[tuple[CachedFile, int, int]] = field(default_factory=list)
    ranges: collections.deque[tuple[CachedFile, int, int]] = field(default_factory=collections.deque)
    working_bytes: int = 0
