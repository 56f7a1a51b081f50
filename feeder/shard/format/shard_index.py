"""The index of one shard, a file beside it: its layout, its writer and its reader.

Note [Shard index]
The file has a sealed head with the magic ``FEEDERFX``, see Note [Sealed head], and groups of columns behind it. The
head has version (2), samples (N), tar_bytes (size of the shard), fields (names), targets (K names), is_wide, and groups
{name: [offset from the end of the head, size in bytes, hash in hexadecimal digits]}. All is little-endian:
    records  a record for each sample, packed: offset u32, length u32, crc32 u32, steps u32, label i32, width u16,
             height u16, field u8, orientation u8. If is_wide, offset u64, length u64, label i64, crc32 u32, steps u32,
             width u32, height u32, field u16, orientation u8, a zero. As in Note [Index file]; field is a number in
             `fields`; steps is the number of the image's first value in the next group, 2**32-1 for none
    target   K float32 for each sample; only with targets
    blocks   u32: CRC-32C of each 256 KiB of the shard
    source_bytes, source_row (only with numbered samples), keys, paths, members: see Note [Chunks]
    codebooks  those of packed JPEGs, a JSON list of texts in base64; only where there are any
    taken_down  see Note [Tombstones], JSON; only where there are any
Optional groups come last: only who needs one reads it, and of a set in a store it is fetched only then.
    steps    u16: for a seekable or packed JPEG the height of a band in pixels, the offset of the first band, and the
             difference of each further value of `row_data`, see Note [Index file], to the one before it. For 65535 or
             more, 65535 and the number in the next two, its low half first
A group of any other name is optional, too, and for readers that know it.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from feeder.decoders.packed import read_codebooks
from feeder.errors import FormatError
from feeder.shard.format import chunks
from feeder.shard.format.block_sums import BLOCK_BYTES
from feeder.shard.format.chunks import CHUNK_ROWS, MemberRows
from feeder.shard.format.index_file import COLUMNS, OPTIONAL_COLUMNS, STARTS
from feeder.shard.format.sealed_head import damaged, read_head, sealed, short_hash
from feeder.system.files import atomic_file, open_regular
from feeder.system.limit_errors import explained
from feeder.system.mapping import map_file

__all__ = ["NARROW", "NO_STEPS", "TAKEN_DOWN", "WIDE", "IndexedShard", "ShardIndex", "take_rows", "write_shard_index"]

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
_VERSION = 2
_ESCAPE = 0xFFFF
# Groups that come with the head; all others are optional.
_CORE = (
    *("records", "target", "blocks", "source_bytes", "source_row", "keys", "paths", "members", "codebooks"),
    TAKEN_DOWN,
)

_T = TypeVar("_T")


class IndexedShard(NamedTuple):
    """A shard as the set's header has it.

    Attributes:
        name: File name of the shard, relative to the set's folder.
        samples: Number of its samples.
        size_bytes: Its size.
        shard_hash: Its hash, see Note [Sealed head].
        index_bytes: Size of its index up to the optional groups.
        index_hash: Hash of the head of its index, which has those of its groups.
    """

    name: str
    samples: int
    size_bytes: int
    shard_hash: bytes
    index_bytes: int
    index_hash: bytes


def write_shard_index(
    path: str,
    columns: Mapping[str, npt.NDArray[Any]],
    fields: Sequence[str],
    targets: Sequence[str],
    blocks: npt.NDArray[np.uint32],
    tar_bytes: int,
    codebooks: Sequence[bytes] = (),
    further: Mapping[str, bytes] | None = None,
) -> None:
    """Writes the index of one shard atomically; its bytes depend only on the arguments.

    Args:
        path: The file.
        columns: The columns of Note [Index file], but for "shard".
        fields: Names of the fields, by number.
        targets: Names of the numbers in the column "target".
        blocks: CRC-32C of each 256 KiB of the shard.
        tar_bytes: Size of the shard.
        codebooks: Codebooks of its packed JPEGs.
        further: Further groups, by name.
    """
    count = len(columns["offset"])
    steps, first_steps = _steps(columns["row_start"], columns["row_data"], columns["height"])
    values = {name: columns[name] for name in NARROW.names or () if name != "steps"} | {"steps": first_steps}
    is_wide = not all(_fits(values[name], NARROW[name]) for name in values)

    records = np.zeros(count, WIDE if is_wide else NARROW)
    for name, column in values.items():
        records[name] = column

    starts = columns["member_start"].astype(np.int64)
    found = (columns[f"member_{name}"] for name in ("field", "offset", "length"))
    members = MemberRows(starts[1:] - starts[:-1], *found)

    groups: dict[str, bytes] = {"records": records.tobytes()}
    if targets:
        groups["target"] = np.ascontiguousarray(columns["target"], "<f4").tobytes()
    groups["blocks"] = blocks.astype("<u4").tobytes()
    for name in ("source_bytes", "source_row"):
        if name in columns:
            groups[name] = chunks.pack_numbers(columns[name])
    for name in ("key", "path"):
        groups[f"{name}s"] = chunks.pack_texts(columns[f"{name}_start"], columns[f"{name}_data"].tobytes())
    groups["members"] = chunks.pack_members(members, columns["offset"], columns["length"])
    if codebooks:
        groups["codebooks"] = json.dumps([base64.b64encode(codebook).decode() for codebook in codebooks]).encode()
    groups |= further or {}
    groups["steps"] = steps.tobytes()  # the optional ones from here on

    places, at = {}, 0
    for name, data in groups.items():
        places[name] = [at, len(data), short_hash(data).hex()]
        at += len(data)

    head = {"version": _VERSION, "samples": count, "tar_bytes": tar_bytes, "fields": [*fields]}
    with atomic_file(path) as file:
        file.write(sealed(_MAGIC, head | {"targets": [*targets], "is_wide": is_wide, "groups": places}))
        file.writelines(groups.values())


def take_rows(columns: Mapping[str, npt.NDArray[Any]], rows: npt.NDArray[np.int64]) -> dict[str, npt.NDArray[Any]]:
    """Returns the columns of some rows of a shard, int64 [N], in their order."""
    found: dict[str, npt.NDArray[Any]] = {}
    values = {start: [data] for start, data in STARTS.items()}
    values["member_start"] = ["member_field", "member_offset", "member_length"]
    for start, own in values.items():
        starts = columns[start].astype(np.int64)
        counts = (starts[1:] - starts[:-1])[rows]
        ends = np.cumsum(counts)
        places = np.repeat(starts[:-1][rows] - (ends - counts), counts) + np.arange(int(counts.sum()))
        found[start] = _starts(counts)
        found |= {name: columns[name][places] for name in own}
    return found | {name: column[rows] for name, column in columns.items() if name not in found}


def _fits(column: npt.NDArray[Any], dtype: np.dtype[Any]) -> bool:
    if not len(column):
        return True
    limits = np.iinfo(dtype)
    return limits.min <= int(column.min()) and int(column.max()) <= limits.max


def _steps(
    starts: npt.NDArray[Any], places: npt.NDArray[Any], heights: npt.NDArray[Any]
) -> tuple[npt.NDArray[np.uint16], npt.NDArray[np.int64]]:
    """Returns the group of steps, and the number of each sample's first value.

    Places that do not have as many bands as the image are left out, as readers ignore them.
    """
    begins, counts = starts[:-1].astype(np.int64), np.diff(starts.astype(np.int64))
    has = np.flatnonzero(counts >= 3)
    bands = places[begins[has]].astype(np.int64)
    has = has[(bands > 0) & (-(-heights[has].astype(np.int64) // np.maximum(bands, 1)) + 2 == counts[has])]
    kept, first = counts[has], np.cumsum(counts[has]) - counts[has]
    rows = np.repeat(begins[has] - first, kept) + np.arange(int(kept.sum()))
    values = places[rows].astype(np.uint32)
    differences = values.copy()
    differences[1:] -= values[:-1]
    differences[first], differences[first + 1] = values[first], values[first + 1]
    is_large = differences >= _ESCAPE
    at = np.arange(len(values)) + 2 * (np.cumsum(is_large) - is_large)
    steps = np.empty(len(values) + 2 * int(is_large.sum()), "<u2")
    steps[at] = np.minimum(differences, _ESCAPE)
    steps[at[is_large] + 1] = differences[is_large] & 0xFFFF
    steps[at[is_large] + 2] = differences[is_large] >> 16
    found = np.full(len(counts), NO_STEPS, np.int64)
    found[has] = at[first]
    return steps, found


class ShardIndex:
    """The mapped index of one shard.

    Args:
        path: The file; its name in messages where it is open.
        shard: The shard as the set's header has it; None to take the file as it is.
        targets: Names of the targets that each sample has; None to take the file as it is.
        fetch: Returns the bytes of an optional group, by its name, size and hash, if the file ends before it; None:
            such a file is damaged.
        descriptor: The open file, which may be closed afterwards; None: the one at the path.

    Attributes:
        samples: Number of samples.
        is_wide: True if the records are :data:`WIDE`.
        records: The records' bytes.
        fields: Names of the fields, by their numbers in the records.
        targets: Names of the targets.
        hash: Hash of the head.
        core_bytes: Size of the file up to the optional groups.
        tar_bytes: Size of the shard.

    Raises:
        FormatError: if the file can't be read, or is not the one that the header means.
    """

    __slots__ = (
        *("_data", "_end", "_fetch", "_good", "_groups", "_last_texts", "core_bytes", "fields", "hash", "is_wide"),
        *("path", "records", "samples", "tar_bytes", "targets"),
    )

    def __init__(
        self,
        path: str,
        *,
        shard: IndexedShard | None = None,
        targets: tuple[str, ...] | None = None,
        fetch: Callable[[str, int, bytes], memoryview] | None = None,
        descriptor: int | None = None,
    ) -> None:
        self.path = path
        self._fetch = fetch

        self._data = _mapped(path, descriptor)
        size = len(self._data)

        head, self.hash, self._end = read_head(path, _MAGIC, self._data)
        if shard is not None and (self.hash != shard.index_hash or size < shard.index_bytes):
            if TAKEN_DOWN in head.get("groups", ()):
                raise FormatError(
                    f"{path}: is not the index of the set that was opened: samples were taken "
                    "down since then. Create the dataset again; a run goes on with its state. If it is refused again, "
                    "run the takedown again"
                )
            raise damaged(path, "it is not the index that the set's header means, or it was cut off")

        self._groups: dict[str, tuple[int, int, str]] | None = None
        self._good: dict[str, memoryview] = {}
        self._last_texts: dict[str, tuple[range, list[bytes]]] = {}  # a search reads each chunk once, not 64 times

        try:
            if head["version"] != _VERSION:
                raise FormatError(f"{path}: version {head['version']}, this feeder reads {_VERSION}; update feeder")
            self.samples = int(head["samples"])
            self.is_wide = bool(head["is_wide"])
            self.tar_bytes = int(head["tar_bytes"])
            self.fields = tuple(str(name) for name in head["fields"])
            self.targets = tuple(str(name) for name in head["targets"])
            sizes = {"records": self.samples * self.dtype.itemsize, "target": 4 * self.samples * len(self.targets)}
            sizes["blocks"] = 4 * -(-int(head["tar_bytes"]) // BLOCK_BYTES)
            groups = _placed(head["groups"])
            self.core_bytes = self._end + max((at + own for name, (at, own, _) in groups.items() if name in _CORE))
            if size < self.core_bytes:
                raise ValueError(f"{self.core_bytes} bytes before its optional groups, of {size}")
            wrong = [name for name, expected in sizes.items() if groups.get(name, (0, 0))[1] != expected]
            if wrong:
                raise ValueError(f"wrong number of bytes of {wrong[0]!r} for {self.samples} samples")
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise damaged(path, f"its head is wrong: {error!r}") from None

        if shard is not None and (self.samples, int(head["tar_bytes"])) != (shard.samples, shard.size_bytes):
            raise damaged(path, f"it has {self.samples} samples, and the set's header {shard.samples}")
        if targets is not None and self.targets != targets:
            raise damaged(path, f"it has the targets {self.targets}, and the set's header {targets}")

        self.records = self._checked("records", groups)

    @property
    def dtype(self) -> np.dtype[Any]:
        """dtype of a record."""
        return WIDE if self.is_wide else NARROW

    @property
    def size_bytes(self) -> int:
        """Size of the file."""
        return len(self._data)

    def read_steps(self) -> memoryview:
        """Reads the group of steps."""
        return self.group("steps")

    def group(self, name: str) -> memoryview:
        """Bytes of a group, compared with its hash.

        Raises:
            FormatError: if there is no such group, or it is damaged.
        """
        found = self._good.get(name)
        if found is None:
            found = self._good[name] = self._checked(name, self.groups())
        return found

    def missing_bytes(self, name: str) -> int:
        """Size of a group if it is still to be fetched, else 0."""
        offset, size, _ = self.groups().get(name, (0, 0, ""))
        return 0 if name in self._good or self._end + offset + size <= len(self._data) else size

    def place(self, name: str) -> tuple[int, int, str]:
        """First byte of a group in the file, its end, and its hash in hexadecimal digits.

        Raises:
            FormatError: if there is no such group.
        """
        if name not in self.groups():
            raise damaged(self.path, f"it has no group {name!r}")
        offset, size, expected = self.groups()[name]
        return self._end + offset, self._end + offset + size, expected

    def groups(self) -> dict[str, tuple[int, int, str]]:
        """Offset, size and hash of each group, by its name."""
        if self._groups is None:
            self._groups = _placed(read_head(self.path, _MAGIC, self._data)[0]["groups"])
        return self._groups

    def check(self, *, optional: bool = True) -> None:
        """Compares groups with their hashes.

        Args:
            optional: False to leave out the optional ones.

        Raises:
            FormatError: naming the first that differs.
        """
        for name in self.groups():
            if optional or name in _CORE:
                self.group(name)

    def rows(self) -> npt.NDArray[Any]:
        """All records, a view."""
        return np.frombuffer(self.records, self.dtype)

    def blocks(self) -> npt.NDArray[np.uint32]:
        """CRC-32C of each 256 KiB of the shard, uint32 [blocks]."""
        return np.frombuffer(self.group("blocks"), "<u4")

    def codebooks(self) -> list[bytes]:
        """Codebooks of the shard's packed JPEGs."""
        if "codebooks" not in self.groups():
            return []
        try:
            return [*read_codebooks(json.loads(bytes(self.group("codebooks"))))]
        except (TypeError, ValueError) as error:
            raise damaged(self.path, f"its codebooks: {error}") from None

    def taken_down(self) -> dict[int, str]:
        """Hash of the key of each sample that was taken down, by its row; see Note [Tombstones] in tombstones.py."""
        if TAKEN_DOWN not in self.groups():
            return {}
        try:
            found = json.loads(bytes(self.group(TAKEN_DOWN)))
            return {int(row): str(key) for row, key in zip(found["rows"], found["keys"], strict=True)}
        except (KeyError, TypeError, ValueError) as error:
            raise damaged(self.path, f"its samples that were taken down: {error!r}") from None

    def key(self, row: int) -> bytes:
        """Key of a sample."""
        return self._text("keys", row)

    def source_path(self, row: int) -> bytes:
        """Original path of a sample."""
        return self._text("paths", row)

    def source_row(self, row: int) -> int:
        """Row number of a sample in its table."""
        return int(self._numbers("source_row", _chunk(row))[row % CHUNK_ROWS])

    def members(self, row: int, record: Any = None) -> list[tuple[int, int, int]]:
        """The sample's fields besides the image: (number of the field, offset, length) in the shard, bytes.

        Args:
            row: The sample's row.
            record: Its record, if it is at hand.
        """
        group, record = self.group("members"), self.rows()[row] if record is None else record
        place = int(record["offset"]), int(record["length"])
        return self._read(lambda: chunks.members_of_row(group, self.samples, row, *place))

    def row_data(self, row: int) -> list[int]:
        """The sample's values of ``row_data``, see Note [Index file]."""
        record = self.rows()[row]
        at, height, found = int(record["steps"]), int(record["height"]), list[int]()
        steps = np.frombuffer(self.read_steps(), "<u2")
        while at < len(steps) and (not found or len(found) < 2 + -(-height // max(found[0], 1))):
            step, at = int(steps[at]), at + 1
            if step == _ESCAPE:
                low, high = steps[at : at + 2].tolist() if at + 2 <= len(steps) else (0, 0)
                step, at = low + (high << 16), at + 2
            found.append(step if len(found) < 2 else (found[-1] + step) % (1 << 32))
        return found

    def texts(self, name: str, rows: range) -> list[bytes]:
        """Keys or paths of rows that follow one another; the name is "keys" or "paths"."""
        some = range(rows.start // CHUNK_ROWS, -(-rows.stop // CHUNK_ROWS))
        found = self._read(lambda: chunks.texts(self.group(name), self.samples, some))
        first = some.start * CHUNK_ROWS
        return found[rows.start - first : rows.stop - first]

    def column(self, name: str) -> npt.NDArray[Any]:
        """A column of all samples, as Note [Index file] has it, but for "shard"; fields are numbered as here."""
        rows = self.rows()
        if name in (WIDE.names or ()):
            return rows[name]
        every = range(_chunk(self.samples + CHUNK_ROWS - 1).start)
        if name == "target":
            return np.frombuffer(self.group("target"), "<f4").reshape(self.samples, len(self.targets))
        if name in ("source_bytes", "source_row"):
            return self._numbers(name, every)
        if name.startswith(("key_", "path_")):
            text, _, part = name.partition("_")
            found = self.texts(f"{text}s", range(self.samples))
            return (
                _starts([len(each) for each in found]) if part == "start" else np.frombuffer(b"".join(found), np.uint8)
            )
        if name.startswith("row_"):
            values = [self.row_data(row) for row in range(self.samples)]
            if name == "row_start":
                return _starts([len(each) for each in values])
            return np.array([value for each in values for value in each], np.uint32)
        found_members = self._members(every)
        if name == "member_start":
            return _starts(found_members.counts)
        values_of: dict[str, npt.NDArray[Any]] = {
            "member_field": found_members.fields,
            "member_offset": found_members.offsets,
            "member_length": found_members.lengths,
        }
        return values_of[name]

    def columns(self) -> dict[str, npt.NDArray[Any]]:
        """All columns, as :func:`write_shard_index` takes them."""
        optional = [name for name in OPTIONAL_COLUMNS if name in self.groups()]
        return {name: self.column(name) for name in (*COLUMNS, *optional) if name != "shard"}

    def _checked(self, name: str, groups: dict[str, tuple[int, int, str]]) -> memoryview:
        if name not in groups:
            raise damaged(self.path, f"it has no group {name!r}")
        offset, size, expected = groups[name]
        data = self._data[self._end + offset : self._end + offset + size]
        if len(data) < size and self._fetch is not None:
            data = self._fetch(name, size, bytes.fromhex(expected))
        if len(data) != size or short_hash(data).hex() != expected:
            raise damaged(self.path, f"the bytes of {name!r} do not match their hash")
        return data

    def _text(self, name: str, row: int) -> bytes:
        chunk, known = _chunk(row), self._last_texts.get(name)
        if known is None or known[0] != chunk:
            group = self.group(name)
            known = self._last_texts[name] = chunk, self._read(lambda: chunks.texts(group, self.samples, chunk))
        return known[1][row % CHUNK_ROWS]

    def _numbers(self, name: str, some: range) -> npt.NDArray[np.uint64]:
        group = self.group(name)
        return self._read(lambda: chunks.numbers(group, self.samples, some))

    def _members(self, some: range) -> MemberRows:
        group = self.group("members")
        own = self.rows()[some.start * CHUNK_ROWS : some.stop * CHUNK_ROWS]
        return self._read(lambda: chunks.members(group, self.samples, some, own["offset"], own["length"]))

    def _read(self, read: Callable[[], _T]) -> _T:
        try:
            return read()
        except ValueError as error:
            raise damaged(self.path, str(error)) from None


def _placed(groups: Any) -> dict[str, tuple[int, int, str]]:
    """Returns the places of the groups."""
    found = {str(name): (int(entry[0]), int(entry[1]), bytes.fromhex(entry[2]).hex()) for name, entry in groups.items()}
    for name, (offset, size, _) in found.items():
        if offset < 0 or size < 0 or offset + size >= 1 << 32:
            raise ValueError(f"{size} bytes of {name!r} at byte {offset}")
    return found


def _starts(sizes: Any) -> npt.NDArray[np.uint64]:
    return np.concatenate([[0], np.cumsum(sizes)]).astype(np.uint64)


def _chunk(row: int) -> range:
    """The chunk of a row, as a range of one."""
    return range(row // CHUNK_ROWS, row // CHUNK_ROWS + 1)


def _mapped(path: str, descriptor: int | None) -> memoryview:
    """Returns the bytes of an index; a descriptor that was given stays open."""
    try:
        opened = open_regular(path) if descriptor is None else descriptor
        try:
            with explained():
                return map_file(opened, os.fstat(opened).st_size)
        finally:
            if descriptor is None:
                os.close(opened)
    except OSError as error:
        raise FormatError(
            f"{path}: the index of a shard, which can't be opened ({error.strerror}); restore it, or run "
            "`feeder inspect --verify`"
        ) from None
