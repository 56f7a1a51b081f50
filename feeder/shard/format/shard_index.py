"""The index of one shard, a file beside it: its layout, its writer and its reader.

Note [Shard index]
The file has a sealed head with the magic ``FEEDERFX``, see Note [Sealed head], and groups of columns behind it. The
head has version (3), samples (N), tar_bytes (size of the shard), fields (names), targets (K names), is_wide,
is_numbered, and groups {name: [offset from the end of the head, size in bytes, hash in hexadecimal digits]}. All is
little-endian:
    records  a record for each sample, packed: offset u32, length u32, crc32 u32, steps u32, label i32, width u16,
             height u16, field u8, orientation u8. If is_wide, offset u64, length u64, label i64, crc32 u32, steps u32,
             width u32, height u32, field u16, orientation u8, a zero. As in Note [Sample]; field is a number in
             `fields`; steps is the number of the image's first value in the group of that name, 2**32-1 for none
    target   K float32 for each sample; only with targets
    blocks   u32: CRC-32C of each 256 KiB of the shard
    details  what few reads need, in chunks of 64 samples: an end u32 for each chunk, counted from the last of these
             ends, and the chunks, each compressed with zlib. A chunk has a line of JSON for each sample,
             [key, path, source_bytes, source_row, members]. Bytes of key and path that are no UTF-8 are surrogates, as
             in :func:`os.fsdecode`. A member is [field, length, gap]; the gap is the number of bytes that its offset is
             more than in a plain tar: the end of the member before it, or of the image, rounded up to 512, and a header
             of 512 bytes
    codebooks  those of packed JPEGs, a JSON list of texts in base64; only where there are any
    taken_down  see Note [Tombstones], JSON; only where there are any
    steps    u16: for a seekable or packed JPEG the height of a band in pixels, the offset of the first band, and the
             difference of each further value of `row_data`, see Note [Sample], to the one before it. For 65535 or
             more, 65535 and the number in the next two, its low half first
A group of any other name is for readers that know it.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from feeder.decoders.packed import read_codebooks
from feeder.errors import FormatError
from feeder.shard.format.block_sums import BLOCK_BYTES
from feeder.shard.format.sealed_head import damaged, mapped_file, read_head, sealed, short_hash
from feeder.system.arrays import AnyArray, Uint32s
from feeder.system.files import atomic_file

NO_STEPS = (1 << 32) - 1
TAKEN_DOWN = "taken_down"
NARROW = np.dtype(
    [
        ("offset", "<u4"),
        ("length", "<u4"),
        ("crc32", "<u4"),
        ("steps", "<u4"),
        ("label", "<i4"),
        ("width", "<u2"),
        ("height", "<u2"),
        ("field", "|u1"),
        ("orientation", "|u1"),
    ]
)
WIDE = np.dtype(
    [
        ("offset", "<u8"),
        ("length", "<u8"),
        ("label", "<i8"),
        ("crc32", "<u4"),
        ("steps", "<u4"),
        ("width", "<u4"),
        ("height", "<u4"),
        ("field", "<u2"),
        ("orientation", "|u1"),
        ("zero", "|u1"),
    ]
)
_MAGIC = b"FEEDERFX"
_VERSION = 3
_ESCAPE = 0xFFFF
_CHUNK_ROWS = 64
MAX_CHUNK_BYTES = 1 << 27  # 64 names of a mebibyte each; a damaged or hostile chunk may inflate to more
_BLOCK_BYTES = 512


class IndexedShard(NamedTuple):
    """A shard as the set's header has it.

    Attributes:
        name: File name of the shard, relative to the set's folder.
        samples: Number of its samples.
        size_bytes: Its size.
        shard_hash: Its hash, see Note [Sealed head].
        index_bytes: Size of its index.
        index_hash: Hash of the head of its index, which has those of its groups.
    """

    name: str
    samples: int
    size_bytes: int
    shard_hash: bytes
    index_bytes: int
    index_hash: bytes


class SampleRow(NamedTuple):
    """All that the index of a shard has of a sample.

    Note [Sample]
    The numbers of fields are those in the index. ``row_data`` has the places of the rows of pixels of a seekable or
    packed JPEG, which are stored in bands: u32, the height of a band in pixels, the offset of each band in the image's
    bytes, and the offset of the end of the last band, with its marker. It is empty for other images.

    Attributes:
        key: Its WebDataset key.
        path: Its original path, in the file system's bytes.
        field: Number of the image's field.
        offset, length: Place of the encoded image in its shard, bytes.
        label: Its label, -1 for none.
        width, height: As stored, before orientation, pixels.
        orientation: EXIF's, 1-8.
        source_bytes: Size of its source, before any re-encoding.
        crc32: CRC-32 of the image's bytes followed by those of the other fields.
        members: Its other fields: (number of the field, offset, length), bytes.
        row_data: Places of the image's rows.
        target: Numbers in place of a label, NaN for none.
        source_row: Number, from 0, of its row in a table.
    """

    key: bytes
    path: bytes
    field: int
    offset: int
    length: int
    label: int
    width: int
    height: int
    orientation: int
    source_bytes: int
    crc32: int
    members: Sequence[tuple[int, int, int]] = ()
    row_data: bytes = b""
    target: Sequence[float] = ()
    source_row: int = 0


class Details(NamedTuple):
    """The details of a sample, which few reads need; see Note [Sample].

    Members are (field, length, gap), see Note [Shard index].
    """

    key: bytes
    path: bytes
    source_bytes: int
    source_row: int
    members: list[tuple[int, int, int]]


def write_shard_index(
    path: str,
    samples: Sequence[SampleRow],
    fields: Sequence[str],
    targets: Sequence[str],
    blocks: Uint32s,
    tar_bytes: int,
    codebooks: Sequence[bytes] = (),
    *,
    is_numbered: bool = False,
    further: Mapping[str, bytes] | None = None,
) -> None:
    """Writes the index of one shard atomically; its bytes depend only on the arguments.

    Args:
        path: The file.
        samples: The samples, in the order of their ids.
        fields: Names of the fields, by number.
        targets: Names of the samples' targets.
        blocks: CRC-32C of each 256 KiB of the shard.
        tar_bytes: Size of the shard.
        codebooks: Codebooks of its packed JPEGs.
        is_numbered: True if the samples come from rows of a table.
        further: Further groups, by name.
    """
    steps = [_steps(sample) for sample in samples]
    values_of_steps = np.array([len(own) // 2 for own in steps], np.int64)
    records = np.zeros(len(samples), WIDE)
    for name in ("offset", "length", "label", "crc32", "width", "height", "field", "orientation"):
        records[name] = [getattr(sample, name) for sample in samples]
    records["steps"] = np.where(values_of_steps, np.cumsum(values_of_steps) - values_of_steps, NO_STEPS)

    narrow = np.zeros(len(samples), NARROW)
    for name in NARROW.names or ():
        narrow[name] = records[name]
    is_wide = any((narrow[name] != records[name]).any() for name in NARROW.names or ())

    groups = {"records": (records if is_wide else narrow).tobytes()}
    if targets:
        groups["target"] = np.array([sample.target for sample in samples], "<f4").tobytes()
    groups["blocks"] = blocks.astype("<u4").tobytes()
    groups["details"] = _packed([_line(sample) for sample in samples])
    if codebooks:
        groups["codebooks"] = json.dumps([base64.b64encode(codebook).decode() for codebook in codebooks]).encode()
    groups |= {**(further or {}), "steps": b"".join(steps)}

    places, at = {}, 0
    for name, data in groups.items():
        places[name] = [at, len(data), short_hash(data).hex()]
        at += len(data)

    head = {"version": _VERSION, "samples": len(samples), "tar_bytes": tar_bytes, "fields": [*fields]}
    head |= {"targets": [*targets], "is_wide": is_wide, "is_numbered": is_numbered, "groups": places}
    with atomic_file(path) as file:
        file.write(sealed(_MAGIC, head))
        file.writelines(groups.values())


def _steps(sample: SampleRow) -> bytes:
    """Returns a sample's part of the group of steps. Places that do not have as many bands as the image are left out,
    as readers ignore them."""
    places = np.frombuffer(sample.row_data, "<u4")
    if len(places) < 3 or not places[0] or -(-sample.height // int(places[0])) + 2 != len(places):
        return b""
    steps = np.concatenate([places[:2], np.diff(places[1:])])
    if steps.max() < _ESCAPE:
        return steps.astype("<u2").tobytes()
    wide = ([_ESCAPE, step & 0xFFFF, step >> 16] if step >= _ESCAPE else [step] for step in steps.tolist())
    return np.array([value for values in wide for value in values], "<u2").tobytes()


def _line(sample: SampleRow) -> bytes:
    """Returns a sample's line in the group of details."""
    members, end = [], sample.offset + sample.length
    for field, offset, length in sample.members:
        members.append([field, length, offset - _next_offset(end)])
        end = offset + length
    texts = [each.decode("utf-8", "surrogateescape") for each in (sample.key, sample.path)]
    return json.dumps([*texts, sample.source_bytes, sample.source_row, members], separators=(",", ":")).encode()


def _next_offset(end: int) -> int:
    """Returns the offset of a member in a plain tar, by the end of the one before it."""
    return end + -end % _BLOCK_BYTES + _BLOCK_BYTES


def _packed(lines: Sequence[bytes]) -> bytes:
    """Returns the group of lines."""
    starts = range(0, len(lines), _CHUNK_ROWS)
    blobs = [zlib.compress(b"\n".join(lines[start : start + _CHUNK_ROWS]), 9) for start in starts]
    return np.cumsum([len(blob) for blob in blobs]).astype("<u4").tobytes() + b"".join(blobs)


def _unpacked(group: memoryview, lines: int, chunk: int) -> bytes:
    """Returns the lines of a chunk of a group of so many; raises ValueError if it is damaged."""
    base = 4 * -(-lines // _CHUNK_ROWS)
    start, end = (int.from_bytes(group[4 * k : 4 * k + 4], "little") if k >= 0 else 0 for k in (chunk - 1, chunk))
    inflate = zlib.decompressobj()
    try:
        data = inflate.decompress(group[base + start : base + end], MAX_CHUNK_BYTES)
    except zlib.error as error:
        raise ValueError(f"chunk {chunk}: {error}") from None
    if not inflate.eof:
        raise ValueError(f"chunk {chunk} is cut off, or inflates to more than {MAX_CHUNK_BYTES} bytes")
    if (found := data.count(b"\n") + 1) != min(_CHUNK_ROWS, lines - chunk * _CHUNK_ROWS):
        raise ValueError(f"chunk {chunk} has {found} lines")
    return data


class ShardIndex:
    """The mapped index of one shard.

    Args:
        path: The file; its name in messages where it is open.
        shard: The shard as the set's header has it; None to take the file as it is.
        targets: Names of the targets that each sample has; None to take the file as it is.
        descriptor: The open file, which may be closed afterwards; None: the one at the path.

    Attributes:
        samples: Number of samples.
        is_wide: True if the records are :data:`WIDE`.
        is_numbered: True if the samples come from rows of a table.
        groups: Offset, size and hash of each group, by its name.
        records: The records' bytes.
        fields: Names of the fields, by their numbers in the records.
        targets: Names of the targets.
        hash: Hash of the head.
        tar_bytes: Size of the shard.

    Raises:
        FormatError: if the file can't be read, or is not the one that the header means.
    """

    __slots__ = (
        *("_chunk", "_data", "_end", "_good", "fields", "groups", "hash", "is_numbered", "is_wide"),
        *("path", "records", "samples", "tar_bytes", "targets"),
    )

    def __init__(
        self,
        path: str,
        *,
        shard: IndexedShard | None = None,
        targets: tuple[str, ...] | None = None,
        descriptor: int | None = None,
    ) -> None:
        self.path = path
        try:
            self._data = mapped_file(path, descriptor)
        except OSError as error:
            raise FormatError(
                f"{path}: the index of a shard, which can't be opened ({error.strerror}); restore it, or run "
                "`feeder inspect --verify`"
            ) from None
        size = len(self._data)

        head, self.hash, self._end = read_head(path, _MAGIC, self._data)
        if shard is not None and (self.hash != shard.index_hash or size != shard.index_bytes):
            if TAKEN_DOWN in head.get("groups", ()):
                raise FormatError(
                    f"{path}: is not the index of the set that was opened: samples were taken "
                    "down since then. Create the dataset again; a run goes on with its state. If it is refused again, "
                    "run the takedown again"
                )
            raise damaged(path, "it is not the index that the set's header means, or it was cut off")

        self._good: dict[str, memoryview] = {}
        self._chunk: tuple[int, list[bytes]] = (-1, [])  # the last one: a search reads each once, not 64 times

        try:
            if head["version"] != _VERSION:
                raise FormatError(f"{path}: version {head['version']}, this feeder reads {_VERSION}; update feeder")
            self.samples = int(head["samples"])
            self.is_wide = bool(head["is_wide"])
            self.is_numbered = bool(head["is_numbered"])
            self.tar_bytes = int(head["tar_bytes"])
            self.fields = tuple(str(name) for name in head["fields"])
            self.targets = tuple(str(name) for name in head["targets"])
            sizes = {"records": self.samples * self.dtype.itemsize, "target": 4 * self.samples * len(self.targets)}
            sizes["blocks"] = 4 * -(-int(head["tar_bytes"]) // BLOCK_BYTES)
            self.groups = _placed(head["groups"])
            if size < (needed := self._end + max(at + own for at, own, _ in self.groups.values())):
                raise ValueError(f"{needed} bytes, of which there are {size}")
            wrong = [name for name, expected in sizes.items() if self.groups.get(name, (0, 0))[1] != expected]
            if wrong:
                raise ValueError(f"wrong number of bytes of {wrong[0]!r} for {self.samples} samples")
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise damaged(path, f"its head is wrong: {error!r}") from None

        if shard is not None and (self.samples, int(head["tar_bytes"])) != (shard.samples, shard.size_bytes):
            raise damaged(path, f"it has {self.samples} samples, and the set's header {shard.samples}")
        if targets is not None and self.targets != targets:
            raise damaged(path, f"it has the targets {self.targets}, and the set's header {targets}")

        self.records = self.group("records")

    @property
    def dtype(self) -> np.dtype[Any]:
        """dtype of a record."""
        return WIDE if self.is_wide else NARROW

    @property
    def size_bytes(self) -> int:
        """Size of the file."""
        return len(self._data)

    def group(self, name: str) -> memoryview:
        """Returns the bytes of a group, compared with its hash.

        Raises:
            FormatError: if there is no such group, or it is damaged.
        """
        if name in self._good:
            return self._good[name]
        if name not in self.groups:
            raise damaged(self.path, f"it has no group {name!r}")
        offset, size, expected = self.groups[name]
        data = self._data[self._end + offset : self._end + offset + size]
        if len(data) != size or short_hash(data).hex() != expected:
            raise damaged(self.path, f"the bytes of {name!r} do not match their hash")
        return self._good.setdefault(name, data)

    def check(self) -> None:
        """Compares the groups with their hashes.

        Raises:
            FormatError: naming the first that differs.
        """
        for name in self.groups:
            self.group(name)

    def rows(self) -> AnyArray:
        """Returns all records, a view."""
        return np.frombuffer(self.records, self.dtype)

    def blocks(self) -> Uint32s:
        """Returns the CRC-32C of each 256 KiB of the shard, uint32 [blocks]."""
        return np.frombuffer(self.group("blocks"), "<u4")

    def codebooks(self) -> list[bytes]:
        """Returns the codebooks of the shard's packed JPEGs."""
        if "codebooks" not in self.groups:
            return []
        try:
            return [*read_codebooks(json.loads(bytes(self.group("codebooks"))))]
        except (TypeError, ValueError) as error:
            raise damaged(self.path, f"its codebooks: {error}") from None

    def taken_down(self) -> dict[int, str]:
        """Returns the hash of the key of each sample that was taken down, by its row; see Note [Tombstones] in
        tombstones.py."""
        if TAKEN_DOWN not in self.groups:
            return {}
        try:
            found = json.loads(bytes(self.group(TAKEN_DOWN)))
            return {int(row): str(key) for row, key in zip(found["rows"], found["keys"], strict=True)}
        except (KeyError, TypeError, ValueError) as error:
            raise damaged(self.path, f"its samples that were taken down: {error!r}") from None

    def stored_fields(self, row: int) -> list[tuple[int, int, int]]:
        """Returns all fields of a sample, the image first, in the order of its checksum: (number of the field, offset,
        length) in the shard, bytes."""
        record = self.rows()[row]
        found = [(int(record["field"]), int(record["offset"]), int(record["length"]))]
        end = found[0][1] + found[0][2]
        for field, length, gap in self.details(row).members:
            offset = _next_offset(end) + gap
            end = offset + length
            if min(field, offset, length) < 0 or end >= 1 << 63:
                raise damaged(self.path, f"a member of {length} bytes at byte {offset}")
            found.append((field, offset, length))
        return found

    def row_data(self, row: int) -> list[int]:
        """Returns the sample's values of ``row_data``, see Note [Sample]."""
        record = self.rows()[row]
        at, height, found = int(record["steps"]), int(record["height"]), list[int]()
        steps = np.frombuffer(self.group("steps"), "<u2")
        while at < len(steps) and (not found or len(found) < 2 + -(-height // max(found[0], 1))):
            step, at = int(steps[at]), at + 1
            if step == _ESCAPE:
                low, high = steps[at : at + 2].tolist() if at + 2 <= len(steps) else (0, 0)
                step, at = low + (high << 16), at + 2
            found.append(step if len(found) < 2 else (found[-1] + step) % (1 << 32))
        return found

    def sample(self, row: int) -> SampleRow:
        """Returns all that the index has of a sample."""
        record, details = self.rows()[row], self.details(row)
        numbers = {name: int(record[name]) for name in SampleRow._fields if name in (WIDE.names or ())}
        return SampleRow(
            key=details.key,
            path=details.path,
            source_bytes=details.source_bytes,
            source_row=details.source_row,
            members=self.stored_fields(row)[1:],
            row_data=np.array(self.row_data(row), "<u4").tobytes(),
            target=self.column("target")[row].tolist() if self.targets else (),
            **numbers,
        )

    def details(self, row: int) -> Details:
        """Returns the details of a sample.

        Raises:
            FormatError: if they are damaged.
        """
        chunk, at = divmod(row, _CHUNK_ROWS)
        try:
            known = self._chunk
            if known[0] != chunk:
                known = self._chunk = chunk, _unpacked(self.group("details"), self.samples, chunk).split(b"\n")
            key, path, source_bytes, source_row, members = json.loads(known[1][at])
            key, path = (text.encode("utf-8", "surrogateescape") for text in (key, path))
            places = [(int(field), int(length), int(gap)) for field, length, gap in members]
            return Details(key, path, int(source_bytes), int(source_row), places)
        except (AttributeError, OverflowError, RecursionError, TypeError, ValueError) as error:
            raise damaged(self.path, f"row {row} of its details: {error}") from None

    def detail_lines(self, first: int, end: int) -> bytes:
        """Returns the lines of some rows in the group of details, from the first row to that before the end.

        Raises:
            FormatError: if they are damaged.
        """
        chunks = range(first // _CHUNK_ROWS, -(-end // _CHUNK_ROWS))
        try:
            group, parts, size = self.group("details"), list[bytes](), 0
            for chunk in chunks:
                parts.append(_unpacked(group, self.samples, chunk))
                size += len(parts[-1])
                if size > MAX_CHUNK_BYTES:
                    raise ValueError(f"rows {first} to {end} inflate to more than {MAX_CHUNK_BYTES} bytes")
            text = b"\n".join(parts)
        except ValueError as error:
            raise damaged(self.path, f"its details: {error}") from None
        if first % _CHUNK_ROWS == 0 and end in (self.samples, chunks.stop * _CHUNK_ROWS):
            return text
        start = chunks.start * _CHUNK_ROWS
        return b"\n".join(text.split(b"\n")[first - start : end - start])

    def column(self, name: str) -> AnyArray:
        """Returns a column of all samples: one of the records, "target" as [N, K], "source_bytes" or "source_row"; or
        "member_field", the numbers of the members' fields."""
        if name in (WIDE.names or ()):
            return self.rows()[name]
        if name == "target":
            return np.frombuffer(self.group("target"), "<f4").reshape(self.samples, len(self.targets))
        every = map(self.details, range(self.samples))
        if name == "member_field":
            return np.array([field for details in every for field, _, _ in details.members], np.uint64)
        return np.array([getattr(details, name) for details in every], np.uint64)


def _placed(groups: Any) -> dict[str, tuple[int, int, str]]:
    """Returns the places of the groups."""
    found = {str(name): (int(entry[0]), int(entry[1]), bytes.fromhex(entry[2]).hex()) for name, entry in groups.items()}
    for name, (offset, size, _) in found.items():
        if offset < 0 or size < 0 or offset + size >= 1 << 32:
            raise ValueError(f"{size} bytes of {name!r} at byte {offset}")
    return found
