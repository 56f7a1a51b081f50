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
    Of a set in a store the fetcher checks all bytes, but by the header that is in the store by then. So a shard is
    opened only if it still has the hash that it has in the reader's own header.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
import zlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from feeder.dataset.open_files import OpenFile, OpenFiles, read_into
from feeder.dataset.reader import SWAPPING_ORIENTATIONS, ReadSamples, Wanted, label_dtype
from feeder.dataset.shard_fields import ShardFields
from feeder.decoders.packed import add_codebooks
from feeder.decoders.staged.capacity import Peek
from feeder.errors import DecodeError, FormatError
from feeder.order.shard_sizes import EqualSizes, ShardSizes, compact_sizes
from feeder.shard.format.open_index import open_index
from feeder.shard.format.set_index import RecordRows
from feeder.shard.source.image_file import LARGE_BYTES, MAX_FILE_BYTES, check_size
from feeder.shard.store.mirror import Mirror
from feeder.system.arrays import AnyArray, Int32s, Int64s, Uint8s
from feeder.system.files import open_regular

if TYPE_CHECKING:
    from feeder._native import OpenShards

READ_AHEAD_BYTES = 1 << 18  # smaller reads are done before advice would help
ADVISED_READS = 30  # number of reads with posix_fadvise before the disk is timed again
_JPEG = ("fpk", "jpeg", "jpg")


class ShardReader(ShardFields):
    """Samples of a shard set. Several threads may share one reader: each has its own open files and memory.

    Args:
        index: Path of the index file.
        exif: True to apply EXIF orientation.
        version: Number of the version of the set, from 1; None for the newest.
        mirror: The mirror of a remote set, in whose folder the index is; None for a local set.

    Attributes:
        given_labels: The labels that :meth:`relabel` gave the samples; None: they have their own.
        hub: The URL of a set on the Hub, at its commit, with the pattern of its tars; None for any other.
    """

    hub: str | None = None

    def __init__(
        self,
        index: str,
        *,
        exif: bool = True,
        version: int | None = None,
        mirror: Mirror | None = None,
    ) -> None:
        self.index = open_index(index, version, mirror)
        add_codebooks(self.index.codebooks)
        self.exif = exif
        self.mirror = mirror
        self.classes = self.index.classes
        self.label_dtype = self.index.label_dtype
        self.given_labels: AnyArray | None = None
        self.made_ns = time.time_ns()
        self._local = threading.local()  # a thread's files are closed when the thread or the reader goes

    def __getstate__(self) -> dict[str, Any]:
        header = self.index.header
        return self.__dict__ | {"index": (self.index.path, header.info.version, header.hash), "_local": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        path, version, expected = state["index"]
        self.__dict__ |= state | {"index": open_index(path, version, state["mirror"]), "_local": threading.local()}
        if self.index.header.hash != expected:
            raise FormatError(
                f"{path}: it was replaced by another index while it was in use, as by `feeder takedown`; create the "
                "dataset again, or restore the earlier index and shards and go on"
            )
        add_codebooks(self.index.codebooks)

    def __len__(self) -> int:
        return len(self.index)

    def read(self, ids: Int64s, wanted: Wanted | None = None) -> ReadSamples:
        """See :meth:`Reader.read`. Reads in stored order, so that neighbours come from one place on the disk."""
        rows = self.index.rows(ids)
        orientations, sizes, errors = self._stored(ids, rows)

        # The index has the sizes, so crops are drawn, and the bytes that they need known, before anything is read.
        found = None if wanted is None else rows.extents(wanted(orientations, sizes))
        first_rows = None if found is None else found[:, 0].astype(np.int32)
        shards, offsets, lengths = rows.shard, rows.offset, rows.length
        places = list(zip(shards.tolist(), offsets.tolist(), lengths.tolist(), strict=True))
        # The bytes of each image to read, as (head, begin, end): the first ``head``, and those from begin to end.
        ranges = [(0, 0, length) for _, _, length in places] if found is None else found[:, 1:].tolist()
        if self.mirror is not None:
            self._bring(places, ranges)

        # Nothing is allocated for an image that does not lie in its shard.
        entries = {shard: self._open(shard) for shard in {shard for shard, _, _ in places}}
        size_of = {shard: entry.size_bytes for shard, entry in entries.items()}
        inside = [length <= size_of[shard] and offset <= size_of[shard] - length for shard, offset, length in places]
        if len(ids) and int(lengths.max()) > LARGE_BYTES:
            self._refuse_large(ids, places, inside, errors)

        # All images are read into one piece of memory, in the order in which they lie on the disk.
        total = sum(head + end - begin for (head, begin, end), good in zip(ranges, inside, strict=True) if good)
        files = self._own_files()
        stay_open = files.entries.keys() >= entries.keys()  # False if some were closed to open others
        view = self._arena(files, total, ids)
        buffers = [view[:0]] * len(ids)
        stored_order = np.lexsort((offsets, shards)).tolist()
        if files.advised_reads and total > READ_AHEAD_BYTES:
            self._advise([(places[row], ranges[row]) for row in stored_order if inside[row]])
        started = time.perf_counter_ns()
        start, opened, descriptor = 0, -1, -1
        for row in stored_order:
            if errors[row] is not None:
                continue
            shard, offset, length = places[row]
            if not inside[row]:
                errors[row] = self.at(_cut_off(length, offset, size_of[shard]), int(ids[row]))
                continue
            if shard != opened:
                opened, descriptor = shard, (entries[shard] if stay_open else self._open(shard)).descriptor
            head, begin, end = ranges[row]
            size = head + end - begin
            buffer = buffers[row] = view[start : start + size]
            start += size
            try:
                _read_both(descriptor, offset, head, begin, buffer)
            except DecodeError as error:
                errors[row] = self.at(error, int(ids[row]))
                buffers[row] = view[:0]

        self.note_read(total, time.perf_counter_ns() - started)
        changed = {s for s, entry in entries.items() if self._has_changed(entry if stay_open else self._open(s))}
        for i, (shard, _, _), failed in zip(ids.tolist() if changed else (), places, errors, strict=False):
            if shard in changed and failed is None:
                self._check(i)

        labels = rows.labels if self.given_labels is None else self.given_labels[ids]
        return ReadSamples(buffers, labels, orientations, sizes, errors, first_rows)

    def _arena(self, files: OpenFiles, size_bytes: int, ids: Int64s) -> memoryview:
        """Returns this thread's memory for the bytes of some images, made larger where they need it."""
        if size_bytes > len(files.arena):
            try:
                files.arena = bytearray(max(size_bytes, 2 * len(files.arena)))
            except MemoryError:
                at = f"{self.index.path}: samples {', '.join(self.index.key(i) for i in ids[:3].tolist())}, ..."
                needed = f"not enough memory for the {size_bytes:,} bytes of {len(ids)} images"
                raise MemoryError(f"{at}: {needed}") from None
        return memoryview(files.arena)

    def bring(self, places: Sequence[Sequence[int]]) -> None:
        """See :meth:`ShardFields.bring`; nothing to do for a local set."""
        if self.mirror is not None and places:
            self._bring(places, [(0, 0, length) for _, _, length in places])

    def note_read(self, size_bytes: int, time_ns: int) -> None:
        """Decides, by the time that a read took, if the next reads are announced to the kernel.

        Args:
            size_bytes: The bytes that were read.
            time_ns: The time of all of them.
        """
        files = self._own_files()
        if size_bytes <= READ_AHEAD_BYTES:
            return
        if files.advised_reads:
            files.advised_reads -= 1
        # The page cache gives more than a byte per nanosecond; slower reads came from a disk.
        elif time_ns > size_bytes:
            files.advised_reads = ADVISED_READS

    @property
    def takes_parts(self) -> bool:
        """True if the kernels may read the samples by themselves: whole images, and labels."""
        reads_crops = self.mirror is not None and self.mirror.reads_crops
        return not reads_crops and not self.index.targets

    @property
    def advise_from(self) -> int | None:
        """Bytes from which on this thread's reads are announced to the kernel; None while the disk is fast."""
        return READ_AHEAD_BYTES if self._own_files().advised_reads else None

    @property
    def unchanged_since_ns(self) -> int | None:
        """Time since when shards must not have changed, nanoseconds; None: a mirror has checked their bytes."""
        return self.made_ns if self.mirror is None else None

    def bring_images(self, ids: Int64s) -> None:
        """Brings the images of a remote set into the mirror and opens their shards, for the kernels.

        Args:
            ids: int64 [N], the samples.

        Raises:
            StoreError: if they can't be had.
        """
        if self.mirror is None:
            return
        rows = self.index.rows(ids)
        self.bring([*zip(rows.shard.tolist(), rows.offset.tolist(), rows.length.tolist(), strict=True)])
        for shard in set(rows.shard.tolist()):
            self._open(shard)

    @property
    def native_shards(self) -> OpenShards:
        """This thread's open shards for the kernels; others are opened by :meth:`open_shards`."""
        return self._own_files().native

    def open_shards(self, shards: list[int], ids: Int64s, *, by_rows: bool) -> None:
        """Opens shards and their indexes for the kernels; leaves out those that can't be opened.

        Args:
            shards: Numbers of those that are missing.
            ids: The samples to be read, whose other shards are to stay open.
            by_rows: True to have the places of rows in the indexes, too.
        """
        entries = self._own_files().entries
        with contextlib.suppress(FormatError, IndexError):  # reading a sample says what is wrong
            for shard in entries.keys() & set(self.index.header.locate(ids)[0].tolist()):
                entries.move_to_end(shard)
        for shard in set(shards):
            with contextlib.suppress(FormatError, IndexError):
                self.index.hold([shard], by_rows=by_rows)
                self._open(shard)

    def _bring(self, places: Sequence[Sequence[int]], ranges: list[Any]) -> None:
        """Brings the bytes of images into the mirror, all in one go; those outside a shard are left out.

        Args:
            places, ranges: (shard, offset, length) and (head, begin, end), as in :meth:`read`.
        """
        assert self.mirror is not None
        self._own_files().close()  # the mirror may have made a shard's file anew
        shards = {shard: self.index.header.shard(shard) for shard in {shard for shard, _, _ in places}}
        wants = []
        for (shard, offset, length), (head, begin, end) in zip(places, ranges, strict=True):
            name, size_bytes = shards[shard].name, shards[shard].size_bytes
            if length <= size_bytes and offset <= size_bytes - length:
                if head:
                    wants.append((name, offset, offset + head))
                wants.append((name, offset + begin, offset + end))
        self.mirror.need(wants)

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

    def _stored(self, ids: Int64s, rows: RecordRows) -> tuple[Uint8s, Int32s, list[DecodeError | None]]:
        """Returns orientations to apply, upright sizes, and errors for samples with impossible values in the index."""
        index = self.index
        errors: list[DecodeError | None] = [None] * len(ids)
        orientations = np.array(rows.orientation) if self.exif else np.ones(len(ids), np.uint8)
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
        sizes[:, 0], sizes[:, 1] = rows.height, rows.width
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
        ids: Int64s,
        places: list[tuple[int, int, int]],
        inside: list[bool],
        errors: list[DecodeError | None],
    ) -> None:
        """Refuses large samples that are no images, before memory is allocated; changes ``inside`` and ``errors``."""
        for row, (shard, offset, length) in enumerate(places):
            if inside[row] and length > LARGE_BYTES:
                try:
                    check_size(self._open(shard).descriptor, offset, length)
                except (OSError, ValueError) as error:
                    inside[row] = False
                    errors[row] = self.at(DecodeError(str(error)), int(ids[row]))

    def stored(self, ids: Int64s) -> tuple[Uint8s, Int32s]:
        """See :meth:`Reader.stored`."""
        return self._stored(ids, self.index.rows(ids))[:2]

    def measure(self, ids: Int64s | None = None) -> None:
        """See :meth:`Reader.measure`. The index has all sizes."""

    def orientation(self, i: int) -> int:
        """See :meth:`Reader.orientation`."""
        return int(self.index.row(i).orientation[0]) if self.exif else 1

    def peek(self, ids: Int64s) -> Peek:
        """See :meth:`Reader.peek`."""
        index = self.index
        jpeg = [number for number, name in enumerate(index.fields) if name.rpartition(".")[2].lower() in _JPEG]
        rows = index.rows(ids)
        sizes = np.stack([rows.height, rows.width], axis=1).astype(np.int64)
        return Peek(rows.length.astype(np.int64), sizes, np.isin(rows.field, jpeg))

    @property
    def is_remote(self) -> bool:
        """True if samples come from an object store, by way of a cache."""
        return self.mirror is not None

    @property
    def store_bytes(self) -> int:
        """Bytes of cache that hold all of a remote set: its shards with their indexes and its header, and once more the
        largest shard, for what is on its way."""
        header = self.index.header
        return header.size_bytes + header.file_bytes + sum(header.extent())

    @property
    def cache_bytes(self) -> int:
        """Most bytes that the cache of a remote set may hold."""
        assert self.mirror is not None
        return self.mirror.budget_bytes

    @property
    def place(self) -> str:
        """Path of the index, or the URL of a remote set."""
        return self.index.path if self.mirror is None else self.mirror.place

    def fingerprint(self) -> str:
        """See :meth:`Reader.fingerprint`."""
        return self.index.fingerprint(self.given_labels)

    def labels(self) -> AnyArray:
        """See :meth:`Reader.labels`."""
        return self.index.labels() if self.given_labels is None else self.given_labels

    @property
    def max_label(self) -> int:
        """The largest label; -1 without any."""
        return self.index.header.info.max_label if self.given_labels is None else int(self.given_labels.max(initial=-1))

    def relabel(self, labels: AnyArray, classes: list[str] | None) -> None:
        """Replaces the labels by ``labels``, int64 [N] or float32 [N] or [N, K], and the class names by ``classes``."""
        self.given_labels = labels
        self.label_dtype = label_dtype(labels)
        self.classes = classes

    def shard_sizes(self) -> ShardSizes:
        """See :meth:`Reader.shard_sizes`."""
        counts = compact_sizes(self.index.header.shard_sizes)
        if isinstance(counts, EqualSizes) or counts.smallest:
            return counts
        sizes = np.asarray(counts)
        return compact_sizes(sizes[sizes > 0])

    def read_bytes(self, i: int, shard: int, offset: int, length: int) -> bytes:
        """See :meth:`ShardFields.read_bytes`."""
        self.bring([(shard, offset, length)])
        entry = self._open(shard)
        if length > MAX_FILE_BYTES:
            raise self.at(DecodeError(f"a field of {length:,} bytes is more than the {MAX_FILE_BYTES:,} allowed"), i)
        if length > entry.size_bytes or offset > entry.size_bytes - length:
            reason = f"expected {length} bytes at byte {offset}, the shard has {entry.size_bytes} bytes"
            raise self.at(DecodeError(reason), i)

        data = bytearray(length)
        try:
            read_into(entry.descriptor, offset, memoryview(data))
        except DecodeError as error:
            raise self.at(error, i) from error.__cause__
        if self._has_changed(entry):
            self._check(i)
        return bytes(data)

    def _has_changed(self, entry: OpenFile) -> bool:
        """Returns True if a shard may have changed since the reader was made; see Note [Shards that change].

        The bytes of a mirror are checked before they are read, and its shards when they are opened.
        """
        if self.mirror is not None:
            return False
        return entry.changed_ns > self.made_ns or os.fstat(entry.descriptor).st_ctime_ns != entry.changed_ns

    def _check(self, i: int) -> None:
        """Raises FormatError unless a sample's bytes match their checksum in the index."""
        index = self.index
        shard = index.place(i)[0]
        descriptor = self._open(shard).descriptor
        size, checksum = os.fstat(descriptor).st_size, 0
        is_same = True
        for _, offset, length in index.stored_fields(i):
            is_same = is_same and length <= min(size, MAX_FILE_BYTES) and offset <= size - length
            if is_same:
                data = bytearray(length)
                with contextlib.suppress(DecodeError):  # the file has just been cut off, so the checksum will differ
                    read_into(descriptor, offset, memoryview(data))
                checksum = zlib.crc32(data, checksum)
        if not is_same or checksum != int(index.row(i).crc32[0]):
            raise FormatError(
                f"{index.shard_path(shard)}: it was changed or replaced while it was in use, as by `feeder takedown`, "
                f"and sample {index.key(i)!r} no longer matches {index.path}; create the dataset again to use the "
                "present shards, or restore the earlier ones and go on"
            )

    def _open(self, shard: int) -> OpenFile:
        """Returns a shard that is open in this thread, and opens it if need be; raises FormatError if it can't be."""
        files = self._own_files()
        entries = files.entries
        entry = entries.get(shard)
        if entry is not None:
            entries.move_to_end(shard)
            return entry
        try:
            if self.mirror is None:
                descriptor = open_regular(self.index.shard_path(shard))
            else:
                found = self.index.header.shard(shard)
                descriptor = self.mirror.open(found.name, found.shard_hash)
        except OSError as error:
            raise FormatError(
                f"{self.index.shard_path(shard)}: the index names this shard, but it can't be opened "
                f"({error.strerror}); restore it, or run `feeder inspect --verify`"
            ) from None
        status = os.fstat(descriptor)
        entry = OpenFile(descriptor, status.st_size, status.st_ctime_ns)
        files.add(shard, entry)
        return entry

    def _own_files(self) -> OpenFiles:
        """Returns the open files of this thread, and of this process after a fork."""
        files: OpenFiles | None = getattr(self._local, "files", None)
        if files is None or files.pid != os.getpid():
            files = self._local.files = OpenFiles()
        return files


def _read_both(descriptor: int, offset: int, head: int, begin: int, buffer: memoryview) -> None:
    """Fills a buffer with the first ``head`` bytes of an image, and with those from ``begin`` on."""
    if head:
        read_into(descriptor, offset, buffer[:head])
    read_into(descriptor, offset + begin, buffer[head:] if head else buffer)


def _cut_off(length: int, offset: int, size_bytes: int) -> DecodeError:
    """Returns the error of an image beyond the end of its shard."""
    return DecodeError(
        f"expected {length} bytes at byte {offset}, but the shard has {size_bytes} bytes: it was cut off, or the index "
        "is of another shard; run `feeder inspect --verify`"
    )
