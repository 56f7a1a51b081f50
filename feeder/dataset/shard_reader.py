"""Reads the encoded images of samples in shards, by pread.

Note [Shards are untrusted]
    Shards are read by pread, never mapped: touching a mapping past the end of a truncated file kills the process.
    Offsets and lengths come from the index and are checked against the file before anything is allocated.

Note [Shards that change]
    Shards may be rewritten or replaced while an index of the old ones is in use. After a rename an open descriptor
    still reads the old file, but a process that opens the file again reads the new one. So if a shard's ctime changed
    after the reader was made, or after the shard was opened, each sample read from it is compared with its checksum in
    the index: a sample that is still the same is used, any other is an error. A copy of the reader in another process
    refuses any index but the one that the reader was made with.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import resource
import sys
import threading
import time
import weakref
import zlib
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from feeder.dataset.reader import SWAPPING_ORIENTATIONS, Encoded, Peek, Wanted, label_dtype
from feeder.dataset.shard_fields import ShardFields
from feeder.errors import DecodeError, FormatError
from feeder.shard.format.index import Index
from feeder.shard.source.image_file import LARGE_BYTES, MAX_FILE_BYTES, check_size
from feeder.system.files import open_regular

__all__ = ["ShardReader"]

# Shards that a thread keeps open, unless all threads together would take over a quarter of the process's descriptors.
OPEN_SHARDS = 512
_FEWEST_SHARDS = 2
_LIMIT_SHARE = 4
READ_AHEAD_BYTES = 1 << 18  # smaller reads are done before advice would help
ADVISED_PARTS = 30  # number of reads with posix_fadvise before the disk is timed again
_JPEG = ("jpeg", "jpg")


class _Shard(NamedTuple):
    descriptor: int
    size_bytes: int
    changed_ns: int


class _Files:
    """One thread's open shards in one process, and the memory that their images are read into.

    Attributes:
        entries: Open shards by number, the one used last at the end.
        arena: Memory for the images of one :meth:`ShardReader.read`.
        advised_parts: Number of further reads with posix_fadvise; 0 while the disk is fast.
    """

    def __init__(self) -> None:
        self.entries: OrderedDict[int, _Shard] = OrderedDict()
        self.arena = bytearray()
        self.advised_parts = 0
        self.pid = os.getpid()
        _all_files.add(self)

    @property
    def most(self) -> int:
        """Number of shards that may be open here."""
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        if limit == resource.RLIM_INFINITY:
            return OPEN_SHARDS
        return max(_FEWEST_SHARDS, min(OPEN_SHARDS, limit // _LIMIT_SHARE // len(_all_files)))

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if is_finalizing():  # see Note [At the interpreter's end]
            return
        if self.entries and self.pid == os.getpid():  # after a fork the descriptors are the parent's to close
            for entry in self.entries.values():
                os.close(entry.descriptor)


_all_files: weakref.WeakSet[_Files] = weakref.WeakSet()


class ShardReader(ShardFields):
    """Samples of a shard set. Several threads may share one reader: each has its own open files and memory.

    Args:
        index: Path of the index file.
        exif: Whether to apply EXIF orientation.
        classes: Class names by label, if known.
    """

    def __init__(self, index: str, *, exif: bool = True, classes: list[str] | None = None) -> None:
        self.index = Index(index)
        self.exif = exif
        self._labels, self._has_own_labels = _own_labels(self.index), True
        self.relabel(self._labels, classes)
        self._made_ns = time.time_ns()
        self._local = threading.local()  # a thread's files are closed when the thread or the reader goes

    def __reduce__(self) -> tuple[Any, ...]:
        labels = None if self._has_own_labels else self._labels
        return _shard_reader, (self.index.path, self.exif, self.classes, self.index.identity, self._made_ns, labels)

    def __len__(self) -> int:
        return len(self.index)

    def read(self, ids: npt.NDArray[np.int64], wanted: Wanted | None = None) -> Encoded:
        """See :meth:`Reader.read`. Reads in stored order, so that neighbours come from one place on the disk."""
        index, count = self.index, len(ids)
        orientations, sizes, errors = self._stored(ids)
        found = None if wanted is None else index.row_extents(ids, wanted(orientations, sizes))
        first_rows = None if found is None else found[:, 0].astype(np.int32)
        shards, offsets, lengths = index.shard[ids], index.offset[ids], index.length[ids]
        places = list(zip(shards.tolist(), offsets.tolist(), lengths.tolist(), strict=True))
        size_of = {shard: self._open(shard)[1] for shard in {shard for shard, _, _ in places}}
        inside = [length <= size_of[shard] and offset <= size_of[shard] - length for shard, offset, length in places]
        # The bytes to read of each image, as (head, begin, end): the first ``head``, and those from begin to end.
        ranges = [(0, 0, length) for _, _, length in places] if found is None else found[:, 1:].tolist()
        if count and int(lengths.max()) > LARGE_BYTES:
            self._refuse_large(ids, places, inside, errors)
        total = sum(head + end - begin for (head, begin, end), good in zip(ranges, inside, strict=True) if good)
        files = self._own_files()
        if total > len(files.arena):
            try:
                files.arena = bytearray(max(total, 2 * len(files.arena)))
            except MemoryError:
                at = f"{index.path}: samples {', '.join(index.key(i) for i in ids[:3].tolist())}, ..."
                raise MemoryError(f"{at}: not enough memory for the {total:,} bytes of {count} images") from None
        view = memoryview(files.arena)
        buffers = [view[:0]] * count
        stored_order = np.lexsort((offsets, shards)).tolist()
        advise = files.advised_parts > 0 and total > READ_AHEAD_BYTES
        if advise:
            files.advised_parts -= 1
            self._advise([(places[row], ranges[row]) for row in stored_order if inside[row]])
        started = time.perf_counter_ns()
        start, opened, descriptor = 0, -1, -1
        for row in stored_order:
            if errors[row] is not None:
                continue
            shard, offset, length = places[row]
            if not inside[row]:
                errors[row] = self.at(
                    DecodeError(
                        f"expected {length} bytes at byte {offset}, but the shard has {size_of[shard]} bytes: it "
                        "was cut off, or the index is of another shard; run `feeder inspect --verify`"
                    ),
                    int(ids[row]),
                )
                continue
            if shard != opened:
                opened, descriptor = shard, self._open(shard)[0]
            head, begin, end = ranges[row]
            size = head + end - begin
            buffer = buffers[row] = view[start : start + size]
            start += size
            try:
                if head:
                    _pread(descriptor, offset, buffer[:head])
                _pread(descriptor, offset + begin, buffer[head:] if head else buffer)
            except DecodeError as error:
                errors[row] = self.at(error, int(ids[row]))
                buffers[row] = view[:0]
        # The page cache gives more than a byte per nanosecond; slower reads came from a disk.
        if not advise and total > READ_AHEAD_BYTES and time.perf_counter_ns() - started > total:
            files.advised_parts = ADVISED_PARTS
        changed = {shard for shard in size_of if self._has_changed(shard)}
        if changed:
            for row, i in enumerate(ids.tolist()):
                if places[row][0] in changed and errors[row] is None:
                    self._check(i)
        return Encoded(buffers, self._labels[ids], orientations, sizes, errors, first_rows)

    def _advise(self, images: list[tuple[tuple[int, int, int], tuple[int, int, int]]]) -> None:
        """Announces reads from a slow disk to the kernel, so that they overlap.

        Args:
            images: For each image (shard, offset, length) and (head, begin, end), as in :meth:`read`.
        """
        with contextlib.suppress(OSError):  # it is only advice
            for (shard, offset, _), (head, begin, end) in images:
                descriptor = self._open(shard)[0]
                if head:
                    os.posix_fadvise(descriptor, offset, head, os.POSIX_FADV_WILLNEED)
                os.posix_fadvise(descriptor, offset + begin, end - begin, os.POSIX_FADV_WILLNEED)

    def _stored(
        self, ids: npt.NDArray[np.int64]
    ) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int32], list[DecodeError | None]]:
        """Returns orientations to apply, upright sizes, and errors for samples with impossible values in the index."""
        index = self.index
        errors: list[DecodeError | None] = [None] * len(ids)
        orientations = np.array(index.orientation[ids]) if self.exif else np.ones(len(ids), np.uint8)
        turned_wrongly = orientations - np.uint8(1) > 7  # 0 becomes 255
        for i in np.flatnonzero(turned_wrongly).tolist():
            errors[i] = self.at(
                DecodeError(
                    f"{index.path} gives it orientation {orientations[i]}, expected 1 to 8; the index is damaged: "
                    "rebuild it with `feeder index`, or shard the dataset again"
                ),
                int(ids[i]),
            )
        orientations[turned_wrongly] = 1
        sizes = np.empty((len(ids), 2), np.int32)
        sizes[:, 0], sizes[:, 1] = index.height[ids], index.width[ids]
        for i in np.flatnonzero(sizes.min(axis=1, initial=1) < 1).tolist():
            height, width = sizes[i].tolist()
            errors[i] = self.at(
                DecodeError(f"the index gives its size as {width}x{height}; rebuild it with `feeder index`"),
                int(ids[i]),
            )
        swapped = orientations >= SWAPPING_ORIENTATIONS[0]
        if swapped.any():
            sizes[swapped] = sizes[swapped, ::-1]
        return orientations, sizes, errors

    def _refuse_large(
        self,
        ids: npt.NDArray[np.int64],
        places: list[tuple[int, int, int]],
        inside: list[bool],
        errors: list[DecodeError | None],
    ) -> None:
        """Turns large samples that are not images into errors, before memory is allocated for them."""
        for row, (shard, offset, length) in enumerate(places):
            if inside[row] and length > LARGE_BYTES:
                try:
                    check_size(self._open(shard).descriptor, offset, length)
                except (OSError, ValueError) as error:
                    inside[row] = False
                    errors[row] = self.at(DecodeError(str(error)), int(ids[row]))

    def stored(self, ids: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int32]]:
        """See :meth:`Reader.stored`."""
        return self._stored(ids)[:2]

    def orientation(self, i: int) -> int:
        """See :meth:`Reader.orientation`."""
        return int(self.index.orientation[i]) if self.exif else 1

    def peek(self, ids: npt.NDArray[np.int64]) -> Peek:
        """See :meth:`Reader.peek`."""
        index = self.index
        jpeg = [number for number, name in enumerate(index.fields) if name.rpartition(".")[2].lower() in _JPEG]
        sizes = np.stack([index.height[ids], index.width[ids]], axis=1).astype(np.int64)
        return Peek(index.length[ids].astype(np.int64), sizes, np.isin(index.field[ids], jpeg))

    @property
    def is_remote(self) -> bool:
        """See :class:`Reader`."""
        return False

    @property
    def place(self) -> str:
        """Path of the index."""
        return self.index.path

    def fingerprint(self) -> str:
        """Hash of shards, places, lengths and labels."""
        digest = hashlib.blake2b(digest_size=16)
        digest.update(json.dumps([*self.index.shards]).encode())
        for column in (*map(self.index.column, ("shard", "offset", "length")), self._labels):
            digest.update(np.ascontiguousarray(column).data)
        return digest.hexdigest()

    def labels(self) -> npt.NDArray[Any]:
        """See :meth:`Reader.labels`."""
        return self._labels

    def relabel(self, labels: npt.NDArray[Any], classes: list[str] | None) -> None:
        """Replaces the labels by ``labels``, int64 [N] or float32 [N] or [N, K], and the class names by ``classes``."""
        self._has_own_labels = self._has_own_labels and labels is self._labels
        self._labels, self.label_dtype, self.classes = labels, label_dtype(labels), classes

    def shard_sizes(self) -> npt.NDArray[np.int64]:
        """See :meth:`Reader.shard_sizes`."""
        counts = self.index.shard_counts()
        return counts[counts > 0]

    def read_bytes(self, i: int, offset: int, length: int) -> bytes:
        """See :meth:`ShardFields.read_bytes`."""
        shard = int(self.index.shard[i])
        size = self._open(shard)[1]
        if length > MAX_FILE_BYTES:
            raise self.at(DecodeError(f"a field of {length:,} bytes is more than the {MAX_FILE_BYTES:,} allowed"), i)
        if length > size or offset > size - length:
            raise self.at(DecodeError(f"expected {length} bytes at byte {offset}, the shard has {size} bytes"), i)
        data = bytearray(length)
        try:
            _pread(self._open(shard)[0], offset, memoryview(data))
        except DecodeError as error:
            raise self.at(error, i) from error.__cause__
        if self._has_changed(shard):
            self._check(i)
        return bytes(data)

    def _has_changed(self, shard: int) -> bool:
        """Returns whether a shard may have changed since the reader was made; see Note [Shards that change]."""
        entry = self._open(shard)
        return entry.changed_ns > self._made_ns or os.fstat(entry.descriptor).st_ctime_ns != entry.changed_ns

    def _check(self, i: int) -> None:
        """Raises FormatError unless a sample's bytes match their checksum in the index."""
        index = self.index
        shard = int(index.shard[i])
        descriptor = self._open(shard).descriptor
        size, checksum = os.fstat(descriptor).st_size, 0
        is_same = True
        for _, offset, length in index.parts(i):
            is_same = is_same and length <= min(size, MAX_FILE_BYTES) and offset <= size - length
            if is_same:
                data = bytearray(length)
                with contextlib.suppress(DecodeError):  # the file has just been cut off, so the checksum will differ
                    _pread(descriptor, offset, memoryview(data))
                checksum = zlib.crc32(data, checksum)
        if not is_same or checksum != int(index.crc32[i]):
            raise FormatError(
                f"{index.shard_path(shard)}: it was changed or replaced while it was in use, and sample "
                f"{index.key(i)!r} no longer matches {index.path}; create the dataset again to use the present shards, "
                "or restore the earlier ones and go on"
            )

    def _open(self, shard: int) -> _Shard:
        files = self._own_files()
        entries = files.entries
        entry = entries.get(shard)
        if entry is not None:
            entries.move_to_end(shard)
            return entry
        path = self.index.shard_path(shard)
        try:
            descriptor = open_regular(path)
        except OSError as error:
            raise FormatError(
                f"{path}: the index names this shard, but it can't be opened ({error.strerror}); "
                "restore it, or run `feeder inspect --verify`"
            ) from None
        status = os.fstat(descriptor)
        entry = entries[shard] = _Shard(descriptor, status.st_size, status.st_ctime_ns)
        while len(entries) > files.most:
            os.close(entries.popitem(last=False)[1].descriptor)
        return entry

    def _own_files(self) -> _Files:
        files: _Files | None = getattr(self._local, "files", None)
        if files is None or files.pid != os.getpid():
            files = self._local.files = _Files()
        return files


def _pread(descriptor: int, offset: int, view: memoryview) -> None:
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


def _own_labels(index: Index) -> npt.NDArray[Any]:
    """Returns the labels in an index, or its targets if it has any, as [N] if each sample has one number."""
    if not index.targets:
        return index.label
    target = index.column("target")
    return target[:, 0] if target.shape[1] == 1 else target


def _shard_reader(
    index: str,
    exif: bool,
    classes: list[str] | None,
    identity: bytes,
    made_ns: int,
    labels: npt.NDArray[Any] | None = None,
) -> ShardReader:
    reader = ShardReader(index, exif=exif, classes=classes)
    if reader.index.identity != identity:
        raise FormatError(
            f"{index}: it was replaced by another index while it was in use; create the dataset again, or restore the "
            "earlier index and shards and go on"
        )
    reader._made_ns = made_ns
    if labels is not None:
        reader.relabel(labels, classes)
    return reader
