"""The header of a shard set, ``index.bin``: its layout, its writer and its reader.

Note [Set header]
The file has a sealed head with the magic ``FEEDERST``, see Note [Sealed head], and then, little-endian,
    shards   for each shard 48 bytes: samples u32, size of its index u32, size of the shard u64, hash of the shard,
             hash of the head of its index
    names    only where shard names follow no pattern: the names of the shards with a byte 0 between them
The head has
    format        3
    version       number of this version of the set, from 1; `versions` has [samples, shards] of the earlier ones
    fields, classes (names by label, or null), targets (names), index_suffix (of the shards' indexes, in place of the
    shards' own), is_numbered, fingerprint
    max_label     the largest label, -1 without any
    pattern       [prefix, digits, suffix] of shard names, or null: the number of a shard, padded with zeros
    codebooks     those of packed JPEGs, in base64
    taken_down    number of samples that were taken down, see Note [Tombstones]
    samples, shards, size_bytes (of all shards)
    equal         samples in each shard, if all but the last one have as many, else 0
    body          hash of the bytes after the head
A version of the set that is not the newest is kept as ``index-000001.bin``, by its number.
"""

from __future__ import annotations

import base64
import dataclasses
import functools
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from feeder.decoders.packed import read_codebooks
from feeder.errors import FormatError
from feeder.order.shard_sizes import CompactSizes, EqualSizes, compact_sizes
from feeder.shard.format.index_file import INDEX_NAME
from feeder.shard.format.sealed_head import damaged, mapped_file, read_head, sealed, short_hash
from feeder.shard.format.shard_index import IndexedShard
from feeder.shard.store.mirror import Mirror
from feeder.system.arrays import AnyArray, Int64s
from feeder.system.files import atomic_file

HEADER_MAGIC = b"FEEDERST"
INDEX_SUFFIX = ".fidx"
ROW = np.dtype(
    [("samples", "<u4"), ("index_bytes", "<u4"), ("size_bytes", "<u8"), ("shard_hash", "V16"), ("index_hash", "V16")]
)
_FORMAT = 3
# The head names all classes: this is enough for four million of 13 bytes, as the largest sets of faces have. Parsed,
# it takes several times as much memory, and nothing has shown yet that a set is what it claims to be.
_HEADER_BYTES = 64 << 20
_WHOLE = 1 << 62  # the end of a range of all of a file
_NUMBERED = re.compile(r"(.*?)(\d+)(\D*)", re.DOTALL)
_MAX_DIGITS = 20
# The most of the index of a shard: for head and codebooks, for a record, key, path and places of rows of each sample,
# and for members, of which each takes 512 bytes of the tar or more. A damaged or hostile header may claim 4 GiB for
# each shard.
_INDEX_BYTES, _SAMPLE_BYTES, _MEMBER_SHARE = 16 << 20, 48 << 10, 16


@dataclass(frozen=True)
class SetInfo:
    """Properties of a shard set that its header keeps beside the shards.

    Attributes:
        fields: Names of the fields, by number.
        classes: Class names by label; None if the set has none.
        targets: Names of the numbers that each sample has in place of a label.
        max_label: The largest label; -1 without any.
        is_numbered: True if the samples come from rows of a table, whose numbers are kept.
        fingerprint: Hash of the samples and their order, hexadecimal.
        index_suffix: Suffix of the shards' indexes, in place of the shards' own.
        version: Number of this version of the set, from 1.
        versions: (samples, shards) of the earlier ones.
        codebooks: Codebooks of packed JPEGs.
        taken_down: Number of samples that were taken down.
    """

    fields: tuple[str, ...]
    classes: tuple[str, ...] | None
    targets: tuple[str, ...]
    max_label: int
    is_numbered: bool
    fingerprint: str
    index_suffix: str = INDEX_SUFFIX
    version: int = 1
    versions: tuple[tuple[int, int], ...] = ()
    codebooks: tuple[bytes, ...] = ()
    taken_down: int = 0


def version_path(path: str, version: int) -> str:
    """Returns the path of the header of an earlier version of a set, beside the newest one at ``path``."""
    stem, extension = os.path.splitext(path)
    return f"{stem}-{version:06d}{extension}"


def write_header(path: str, info: SetInfo, rows: AnyArray, names: Sequence[str]) -> None:
    """Writes the header of a set atomically.

    Args:
        path: The file.
        info: Properties of the set.
        rows: :data:`ROW` [shards].
        names: File names of the shards, relative to the folder of the file.

    Raises:
        FormatError: if the index of a shard, or the names of all classes, are larger than readers take.
    """
    long = _long_index(rows, info.targets)
    if long is not None:
        raise FormatError(
            f"{names[long]}: its index has {rows['index_bytes'][long]:,} bytes for {rows['samples'][long]:,} samples, "
            "more than readers take: use shorter keys and paths"
        )

    pattern = _pattern(names)
    body = rows.tobytes() + (b"" if pattern else b"\0".join(map(os.fsencode, names)))
    head = {"format": _FORMAT, **dataclasses.asdict(info)}
    head["codebooks"] = [base64.b64encode(codebook).decode() for codebook in info.codebooks]
    sizes = compact_sizes(rows["samples"])
    head |= {"samples": sizes.samples, "shards": len(rows), "size_bytes": int(rows["size_bytes"].sum())}
    head |= {"equal": sizes.size, "pattern": pattern, "body": short_hash(body).hex()}

    with atomic_file(path) as file:
        file.write(sealed(HEADER_MAGIC, head, most_bytes=_HEADER_BYTES))
        file.write(body)


def _pattern(names: Sequence[str]) -> list[Any] | None:
    """Returns the pattern that the names of all shards follow; None if they follow none."""
    match = _NUMBERED.fullmatch(names[0]) if names else None
    if match is None:
        return ["shard-", 6, ".tar"] if not names else None
    prefix, digits, suffix = match[1], len(match[2]), match[3]
    same = all(name == f"{prefix}{number:0{digits}d}{suffix}" for number, name in enumerate(names))
    return [prefix, digits, suffix] if same else None


class SetHeader:
    """The mapped header of a shard set; what follows its head is compared with its hash when it is used first.

    Args:
        path: The file.
        mirror: The mirror of the file's folder, which is asked for it; None for a local set.

    Attributes:
        info: Properties of the set.
        samples, shards, size_bytes: Totals.
        equal: Samples in each shard, if all but the last one have as many, else 0.
        hash: Hash of the head, which has that of the rest.
        file_bytes: Size of the file.

    Raises:
        FormatError: if it can't be read, or is damaged.
    """

    def __init__(self, path: str, mirror: Mirror | None = None) -> None:
        name = os.path.basename(path)
        self._shown = path if mirror is None else f"{mirror.place}/{name}"
        self._numbers: dict[str, int] | None = None  # by name
        if mirror is not None:
            mirror.need([(name, 0, _WHOLE)])
        data = _mapped(path, self._shown)
        self.file_bytes = len(data)
        head, self.hash, end = read_head(self._shown, HEADER_MAGIC, data, most_bytes=_HEADER_BYTES)
        self._body = data[end:]
        try:
            self._take(head)
        except (KeyError, IndexError, TypeError, ValueError, OverflowError, AttributeError) as error:
            raise damaged(self._shown, f"its head is wrong: {error!r}") from None

    def _take(self, head: dict[str, Any]) -> None:
        if head["format"] != _FORMAT:
            raise FormatError(
                f"{self._shown}: format {head['format']}, this feeder reads {_FORMAT}; update feeder, or shard again"
            )

        classes = head["classes"]
        self.info = SetInfo(
            fields=tuple(str(name) for name in head["fields"]),
            classes=None if classes is None else tuple(str(name) for name in classes),
            targets=tuple(str(name) for name in head["targets"]),
            max_label=int(head["max_label"]),
            is_numbered=bool(head["is_numbered"]),
            fingerprint=str(head["fingerprint"]),
            index_suffix=str(head["index_suffix"]),
            codebooks=read_codebooks(head["codebooks"]),
            version=int(head["version"]),
            versions=tuple((int(samples), int(shards)) for samples, shards in head["versions"]),
            taken_down=int(head["taken_down"]),
        )
        pattern = head["pattern"]
        self._pattern = None if pattern is None else (str(pattern[0]), int(pattern[1]), str(pattern[2]))
        if self._pattern and not 0 < self._pattern[1] <= _MAX_DIGITS:
            raise ValueError(f"shard numbers of {self._pattern[1]} digits")
        if {"/", "\0"} & {*self.info.index_suffix} or not _is_encodable(self.info.index_suffix):
            raise ValueError(f"index_suffix {self.info.index_suffix!r}")

        self.samples = int(head["samples"])
        self.shards = int(head["shards"])
        self.size_bytes = int(head["size_bytes"])
        self.equal = int(head["equal"])
        self._body_hash = bytes.fromhex(head["body"])
        if not (0 <= self.shards * ROW.itemsize <= len(self._body) and 0 <= self.samples < 1 << 62):
            raise ValueError(f"{self.samples} samples in {self.shards} shards, which have {len(self._body)} bytes")
        if self.equal and (self.equal < 0 or self.shards != -(-self.samples // self.equal)):
            raise ValueError(f"{self.samples} samples, {self.equal} in each of {self.shards} shards")

    @functools.cached_property
    def rows(self) -> AnyArray:
        """All shards, :data:`ROW` [shards]; FormatError if they are damaged."""
        rows = np.frombuffer(self._body[: self.shards * ROW.itemsize], ROW)
        if short_hash(self._body) != self._body_hash:
            raise damaged(self._shown, "what follows its head does not match its hash")
        long = _long_index(rows, self.info.targets)
        if long is not None:
            index_bytes, samples = (int(rows[name][long]) for name in ("index_bytes", "samples"))
            raise damaged(
                self._shown, f"shard {long} would have an index of {index_bytes:,} bytes for {samples:,} samples"
            )
        sizes = compact_sizes(rows["samples"])
        if (sizes.samples, sizes.size) != (self.samples, self.equal):
            raise damaged(self._shown, f"its shards have {sizes.samples} samples, its head says {self.samples}")
        return rows

    @functools.cached_property
    def _names(self) -> list[bytes]:
        """Names of the shards, where they follow no pattern."""
        names = bytes(self._body[self.rows.nbytes :]).split(b"\0")
        if len(names) != self.shards:
            raise damaged(self._shown, f"it has {len(names)} names of {self.shards} shards")
        return names

    @functools.cached_property
    def shard_sizes(self) -> CompactSizes:
        """Number of samples in each shard."""
        return EqualSizes(self.samples, self.equal) if self.equal else compact_sizes(self.rows["samples"])

    def shard(self, number: int) -> IndexedShard:
        """Returns a shard, by its number.

        Raises:
            FormatError: if there is no such shard, or its name leads out of the folder.
        """
        name = self.shard_name(number)
        samples, index_bytes, size_bytes, shard_hash, index_hash = self.rows[number].item()
        return IndexedShard(name, samples, size_bytes, shard_hash, index_bytes, index_hash)

    def extent(self) -> tuple[int, int]:
        """Returns the size of all shards' indexes, bytes, and that of the largest shard."""
        return int(self.rows["index_bytes"].sum(dtype=np.int64)), int(self.rows["size_bytes"].max(initial=0))

    def file_sizes(self, shards: Int64s) -> tuple[Int64s, Int64s]:
        """Returns the sizes of some shards and of their indexes, each int64 [N], bytes."""
        rows = self.rows[shards]
        return rows["size_bytes"].astype(np.int64), rows["index_bytes"].astype(np.int64)

    def shard_name(self, number: int) -> str:
        """Returns the file name of a shard, by its number.

        Raises:
            FormatError: if there is no such shard, or its name leads out of the folder.
        """
        if not 0 <= number < self.shards:
            raise FormatError(f"{self._shown}: has no shard {number}, but {self.shards} of them")
        if self._pattern is None:
            name = os.fsdecode(self._names[number])
        else:
            name = f"{self._pattern[0]}{number:0{self._pattern[1]}d}{self._pattern[2]}"
        if not name or name.startswith("/") or ".." in name.split("/"):
            raise FormatError(f"{self._shown}: shard name {name!r} leads out of the index's folder")
        if "\0" in name or not _is_encodable(name):
            raise FormatError(f"{self._shown}: shard name {name!r} can't be a file's; the index is damaged")
        return name

    def number_of(self, name: str) -> int | None:
        """Returns the number of the shard that a file is, or is the index of; None if it is neither."""
        if self._pattern is not None:
            digits = re.match(r"\d{1,20}", name[len(self._pattern[0]) :])
            number = int(digits[0]) if digits else self.shards
            is_own = number < self.shards and name in (self.shard_name(number), self.index_name(number))
            return number if is_own else None
        if self._numbers is None:
            pairs = ((self.shard_name(number), self.index_name(number)) for number in range(self.shards))
            self._numbers = {name: number for number, names in enumerate(pairs) for name in names}
        return self._numbers.get(name)

    def sample_range(self, number: int) -> tuple[int, int]:
        """Returns the number of the first sample of a shard, and that after its last one."""
        first, end = self.shard_sizes.starts(np.array([number, number + 1])).tolist()
        return first, end

    def index_name(self, number: int) -> str:
        """Returns the file name of the index of a shard, by the shard's number."""
        return os.path.splitext(self.shard_name(number))[0] + self.info.index_suffix

    def locate(self, ids: Int64s) -> tuple[Int64s, Int64s]:
        """Returns the shards of samples, int64 [N], and their rows there, int64 [N].

        Raises:
            IndexError: if there is no such sample.
        """
        if len(ids) and int(ids.view(np.uint64).max()) >= self.samples:
            raise IndexError(
                f"{self._shown}: has samples 0 to {self.samples - 1}, asked for {ids.min()} to {ids.max()}"
            )
        shards = self.shard_sizes.shards_of(ids)
        return shards, ids - self.shard_sizes.starts(shards)


def _mapped(path: str, shown: str) -> memoryview:
    """Returns the bytes of a header."""
    try:
        return mapped_file(path)
    except IsADirectoryError:
        raise FormatError(f"{shown}: is a folder, expected an index file") from None
    except (FileNotFoundError, NotADirectoryError):
        folder = os.path.dirname(shown) if os.path.basename(path) == INDEX_NAME else ""
        found = f"{shown}: no such folder or index; make a shard set"
        if folder and os.path.isdir(folder):
            found = f"{folder}: no {INDEX_NAME} in this folder, so it is not a shard set; make one"
        raise FormatError(f"{found} with `feeder shard`, or index tars with `feeder index`") from None
    except OSError as error:
        raise FormatError(f"{shown}: this index can't be read: {error.strerror}") from None


def _long_index(rows: AnyArray, targets: Sequence[str]) -> int | None:
    """Returns the first of some shards whose index is larger than it can be, by its number among these."""
    most = _INDEX_BYTES + rows["samples"] * np.float64(_SAMPLE_BYTES + 4 * len(targets))
    found = np.flatnonzero(rows["index_bytes"] > most + rows["size_bytes"] / _MEMBER_SHARE)
    return int(found[0]) if len(found) else None


def _is_encodable(name: str) -> bool:
    try:
        os.fsencode(name)
    except UnicodeEncodeError:
        return False
    return True
