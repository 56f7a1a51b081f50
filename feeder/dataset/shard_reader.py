"""The encoded bytes of samples in shards, by pread.

Note [Shards are untrusted]
    Shards are read by pread, never mapped: touching a mapping past the end of a truncated file kills the process.
    Offsets and lengths come from the index and are checked against the file before anything is allocated.

Note [Shards that change]
    Shards may be written anew, or others be put in their place, while an index of what was there is in use. An open
    file stays the old one when another is renamed to its place; a process that comes later, or a file that is opened
    again, gets the new one. So a file whose status changed after the reader was made, or after it was opened, has each
    sample checked against the index's checksum after it is read: what is the same still is used, and anything else is
    an error. A copy of the reader in another process refuses another index than the one that the reader was made with.
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
from feeder.decode.image_header import ImageInfo, image_info
from feeder.errors import DecodeError, FormatError
from feeder.shard.format.index import NUMBER_FIELDS, Index
from feeder.shard.format.jpeg_rows import extents
from feeder.shard.source.image_file import LARGE_BYTES, MAX_FILE_BYTES, check_size
from feeder.system.files import open_regular

__all__ = ["ShardReader"]

# Of a thread. All threads together take a quarter of the descriptors that the process may have, if that is less.
_OPEN_SHARDS = 512
_FEWEST_SHARDS = 2
_SHARE = 4
# Less than this is read at once, so that the disk needs no word of it beforehand.
_READ_AHEAD_BYTES = 1 << 18
# So often it is told before it is looked at again whether it has to be.
_ADVISED_PARTS = 30
_JPEG = ("jpeg", "jpg")
_HEADER_BYTES = 1 << 14


class _Shard(NamedTuple):
    descriptor: int
    size_bytes: int
    changed_ns: int


class _Files:
    """Open shards, at most a few hundred, and the memory for what is read from them: of one thread in one process."""

    def __init__(self) -> None:
        self.entries: OrderedDict[int, _Shard] = OrderedDict()
        self.arena = bytearray()
        self.advised_parts = 0
        self.pid = os.getpid()
        _all_files.add(self)

    @property
    def most(self) -> int:
        """How many shards may be open here."""
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        if limit == resource.RLIM_INFINITY:
            return _OPEN_SHARDS
        return max(_FEWEST_SHARDS, min(_OPEN_SHARDS, limit // _SHARE // len(_all_files)))

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if is_finalizing():  # see Note [At the interpreter's end]
            return
        if self.entries and self.pid == os.getpid():  # after a fork the descriptors are the parent's to close
            for entry in self.entries.values():
                os.close(entry.descriptor)


_all_files: weakref.WeakSet[_Files] = weakref.WeakSet()


class ShardReader:
    """Samples of a shard set. Several threads may use one reader: each has its own open files and memory.

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
        self._local = threading.local()  # its parts go, and close their descriptors, with their thread or the reader

    def __reduce__(self) -> tuple[Any, ...]:
        labels = None if self._has_own_labels else self._labels
        return _shard_reader, (self.index.path, self.exif, self.classes, self.index.identity, self._made_ns, labels)

    def __len__(self) -> int:
        return len(self.index)

    def read(self, ids: npt.NDArray[np.int64], wanted: Wanted | None = None) -> Encoded:
        """See :meth:`Reader.read`. In stored order, so that neighbours come from one place on the disk; a disk
        that turned out slow is told at once of all that will be read."""
        index, count = self.index, len(ids)
        orientations, sizes, errors = self._stored(ids)
        found = None if wanted is None else extents(index, ids, wanted(orientations, sizes))
        first_rows = None if found is None else found[:, 0].astype(np.int32)
        shards, offsets, lengths = index.shard[ids], index.offset[ids], index.length[ids]
        places = list(zip(shards.tolist(), offsets.tolist(), lengths.tolist(), strict=True))
        size_of = {shard: self._open(shard)[1] for shard in {shard for shard, _, _ in places}}
        inside = [length <= size_of[shard] and offset <= size_of[shard] - length for shard, offset, length in places]
        # Of each: so many bytes from its start, then those from here to there, counted from its start.
        parts = [(0, 0, length) for _, _, length in places] if found is None else found[:, 1:].tolist()
        if count and int(lengths.max()) > LARGE_BYTES:
            self._refuse_large(ids, places, inside, errors)
        total = sum(head + end - begin for (head, begin, end), good in zip(parts, inside, strict=True) if good)
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
        advise = files.advised_parts > 0 and total > _READ_AHEAD_BYTES
        if advise:
            files.advised_parts -= 1
            with contextlib.suppress(OSError):  # it is only advice
                for i in filter(inside.__getitem__, stored_order):
                    (shard, offset, _), (head, begin, end) = places[i], parts[i]
                    descriptor = self._open(shard)[0]
                    if head:
                        os.posix_fadvise(descriptor, offset, head, os.POSIX_FADV_WILLNEED)
                    os.posix_fadvise(descriptor, offset + begin, end - begin, os.POSIX_FADV_WILLNEED)
        started = time.perf_counter_ns()
        start, opened, descriptor = 0, -1, -1
        for i in stored_order:
            if errors[i] is not None:
                continue
            shard, offset, length = places[i]
            if not inside[i]:
                errors[i] = self.at(
                    DecodeError(
                        f"expected {length} bytes at byte {offset}, but the shard has {size_of[shard]} bytes: it "
                        "was cut off, or the index is of another shard; run `feeder inspect --verify`"
                    ),
                    int(ids[i]),
                )
                continue
            if shard != opened:
                opened, descriptor = shard, self._open(shard)[0]
            head, begin, end = parts[i]
            size = head + end - begin
            buffer = buffers[i] = view[start : start + size]
            start += size
            try:
                if head:
                    _pread(descriptor, offset, buffer[:head])
                _pread(descriptor, offset + begin, buffer[head:] if head else buffer)
            except DecodeError as error:
                errors[i] = self.at(error, int(ids[i]))
                buffers[i] = view[:0]
        # Slower than a byte a nanosecond: not from memory.
        if not advise and total > _READ_AHEAD_BYTES and time.perf_counter_ns() - started > total:
            files.advised_parts = _ADVISED_PARTS
        changed = {shard for shard in size_of if self._has_changed(shard)}
        if changed:
            for row, i in enumerate(ids.tolist()):
                if places[row][0] in changed and errors[row] is None:
                    self._check(i)
        return Encoded(buffers, self._labels[ids], orientations, sizes, errors, first_rows)

    def _stored(
        self, ids: npt.NDArray[np.int64]
    ) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int32], list[DecodeError | None]]:
        """Orientations to apply, upright sizes, and what is wrong already."""
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
        """Takes large images that can be none for errors, and no longer for inside, before memory is taken for them."""
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

    def peek(self, ids: npt.NDArray[np.int64]) -> Peek:
        """See :meth:`Reader.peek`."""
        index = self.index
        jpeg = [number for number, name in enumerate(index.fields) if name.rpartition(".")[2].lower() in _JPEG]
        sizes = np.stack([index.height[ids], index.width[ids]], axis=1).astype(np.int64)
        return Peek(index.length[ids].astype(np.int64), sizes, np.isin(index.field[ids], jpeg))

    def field(self, i: int, name: str) -> Any:
        """See :meth:`Reader.field`."""
        if name == "key":
            return self.index.key(i)
        if name == "path":
            return self.index.source_path(i)
        if name == "index":
            return i
        if name in NUMBER_FIELDS:
            return int(self._numbers(name, np.array([i]))[0])
        for member, offset, length in self.index.members(i):
            if member == name:
                data = self._member(i, offset, length)
                return self._parsed(i, data) if name == "json" else data
        if self.index.image_field(i) == name:
            return self._member(i, int(self.index.offset[i]), int(self.index.length[i]))
        return None

    def header(self, i: int, offset: int, length: int) -> ImageInfo:
        """Reads the header of an image in the shard of sample ``i``: of a JPEG no more than that, of others all.

        Args:
            i: The sample.
            offset: Where the image starts in the shard.
            length: Its bytes.

        Raises:
            DecodeError: if its bytes can't be read; an error of the disk is the cause.
            ValueError: if it is no image.
        """
        data = self._member(i, offset, min(length, _HEADER_BYTES))
        if length > len(data):
            if data.startswith(b"\xff\xd8"):
                with contextlib.suppress(ValueError):  # a long one, with metadata
                    return image_info(data)
            data = self._member(i, offset, length)
        return image_info(data)

    @property
    def place(self) -> str:
        """Path of the index."""
        return self.index.path

    def field_names(self) -> list[str]:
        """See :meth:`Reader.field_names`."""
        numbers = [name for name in NUMBER_FIELDS if name != "row" or self.index.has_column("source_row")]
        return sorted({"key", "path", *numbers, *self.index.fields})

    def column(self, name: str) -> npt.NDArray[Any] | list[Any]:
        """See :meth:`Reader.column`. Members are read in stored order."""
        index, count = self.index, len(self)
        index.check_fields([name])
        if name in ("key", "path"):
            text = index.key if name == "key" else index.source_path
            return [text(i) for i in range(count)]
        if name in NUMBER_FIELDS:
            return self._numbers(name, np.arange(count))
        number = index.fields.index(name) if name in index.fields else -1
        rows = np.flatnonzero(index.column("member_field") == number)
        owners = np.searchsorted(index.column("member_start"), rows, side="right") - 1
        images = np.flatnonzero(index.field == number)
        ids = np.concatenate([owners, images])
        offsets = np.concatenate([index.column("member_offset")[rows], index.offset[images]])
        lengths = np.concatenate([index.column("member_length")[rows], index.length[images]])
        is_inside = (ids >= 0) & (ids < count)  # others are of a damaged index
        ids, offsets, lengths = ids[is_inside], offsets[is_inside], lengths[is_inside]
        values: list[Any] = [None] * count
        for k in np.lexsort((offsets, index.shard[ids])).tolist():
            i = int(ids[k])
            data = self._member(i, int(offsets[k]), int(lengths[k]))
            values[i] = self._parsed(i, data) if name == "json" else data
        return values

    def _numbers(self, name: str, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """One of the fields that are integers, int64 [N], of samples in [0, count)."""
        index = self.index
        if name == "index":
            return ids
        if name == "row":
            return index.column("source_row")[ids].astype(np.int64)
        orientations = index.orientation[ids]
        if name == "orientation":
            return orientations.astype(np.int64)
        width, height = index.width[ids], index.height[ids]
        swapped = (orientations >= SWAPPING_ORIENTATIONS[0]) & self.exif
        sides = np.where(swapped, height, width) if name == "width" else np.where(swapped, width, height)
        return sides.astype(np.int64)

    def at(self, error: DecodeError, i: int) -> DecodeError:
        """See :meth:`Reader.at`."""
        shard = self.index.shard_name(int(self.index.shard[i]))
        return error.at(key=self.index.key(i), shard=shard, offset_bytes=int(self.index.offset[i]))

    def fingerprint(self) -> str:
        """A hash of shards, places, lengths and labels."""
        digest = hashlib.blake2b(digest_size=16)
        digest.update(json.dumps([*self.index.shards]).encode())
        for column in (*map(self.index.column, ("shard", "offset", "length")), self._labels):
            digest.update(np.ascontiguousarray(column).data)
        return digest.hexdigest()

    def labels(self) -> npt.NDArray[Any]:
        """See :meth:`Reader.labels`."""
        return self._labels

    def relabel(self, labels: npt.NDArray[Any], classes: list[str] | None) -> None:
        """Gives the samples other labels, int64 [N] or float32 [N] or [N, K], and the classes other names."""
        self._has_own_labels = self._has_own_labels and labels is self._labels
        self._labels, self.label_dtype, self.classes = labels, label_dtype(labels), classes

    def shard_sizes(self) -> tuple[int, ...]:
        """See :meth:`Reader.shard_sizes`."""
        counts = self.index.shard_counts()
        return tuple(counts[counts > 0].tolist())

    def _member(self, i: int, offset: int, length: int) -> bytes:
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
        """Whether a shard may have other contents than when the reader was made; see Note [Shards that change]."""
        entry = self._open(shard)
        return entry.changed_ns > self._made_ns or os.fstat(entry.descriptor).st_ctime_ns != entry.changed_ns

    def _check(self, i: int) -> None:
        """Raises FormatError unless a sample is what the index says."""
        index = self.index
        shard = int(index.shard[i])
        descriptor = self._open(shard).descriptor
        size, checksum = os.fstat(descriptor).st_size, 0
        is_same = True
        for _, offset, length in index.parts(i):
            is_same = is_same and length <= min(size, MAX_FILE_BYTES) and offset <= size - length
            if is_same:
                data = bytearray(length)
                with contextlib.suppress(DecodeError):  # cut off just now: then the checksum is another
                    _pread(descriptor, offset, memoryview(data))
                checksum = zlib.crc32(data, checksum)
        if not is_same or checksum != int(index.crc32[i]):
            raise FormatError(
                f"{index.shard_path(shard)}: it was changed or replaced while it was in use, and sample "
                f"{index.key(i)!r} is no longer what {index.path} says; make the dataset anew from the shards that are "
                "there now, or put the earlier ones back and go on"
            )

    def _parsed(self, i: int, data: bytes) -> Any:
        try:
            return json.loads(data)
        except (ValueError, RecursionError) as error:
            raise self.at(DecodeError(f"field 'json' is not JSON: {error}"), i) from None

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
    """The labels that an index gives: its targets where it has some, [N] if there is one of each sample."""
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
            f"{index}: it was replaced by another index while it was in use; make the dataset anew, or put the earlier "
            "index and shards back and go on"
        )
    reader._made_ns = made_ns
    if labels is not None:
        reader.relabel(labels, classes)
    return reader
