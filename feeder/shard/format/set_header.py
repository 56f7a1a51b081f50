"""The header of a shard set, ``index.bin``: its layout, its writer and its reader.

Note [Set header]
The file has a sealed head with the magic ``FEEDERST``, see Note [Sealed head], and then, little-endian and each at an
offset from the end of the head that the head has:
    table    for each page of 1,024 shards: number of the first sample u64, hash of the page
    pages    for each shard 48 bytes: samples u32, size of its index u32, size of the shard u64, hash of the shard,
             hash of the head of its index
    names    only where shard names follow no pattern: for each page its offset u64 from the end of the head, its size
             u32 and its hash; then the pages, the names of the shards with a byte 0 between them
The size of a shard's index does not count optional groups, which come last. The head has
    format        2
    version       number of this version of the set, from 1; `versions` has [samples, shards] of the earlier ones
    samples, shards, size_bytes (of all shards), page (shards in a page), fields, classes (names by label, or null),
    targets (names), index_suffix (of the shards' indexes, in place of the shards' own), is_numbered, fingerprint
    equal         samples in each shard, if all but the last one have as many, else 0
    labelled, max_label   number of samples with a label, and the largest label
    pattern       [prefix, digits, suffix] of shard names, or null: the number of a shard, padded with zeros
    codebooks     those of packed JPEGs, in base64; absent without any
    taken_down    number of samples that were taken down, see Note [Tombstones]; absent without any
    image_of      [identity, left_out], only where the image is another field than in the set that this header was made
                  from: the hash of the head of that set's header, in hexadecimal digits, and the number of its samples
                  that are left out, as they have no readable image in that field. The members of a sample are then all
                  of its fields, the image included, and its crc32 covers these
    table, pages, names   [offset, size in bytes, hash or null]
A version of the set that is not the newest is kept as ``index-000001.bin``, by its number.
"""

from __future__ import annotations

import base64
import contextlib
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from feeder.decoders.packed import read_codebooks
from feeder.errors import FormatError
from feeder.order.shard_sizes import CompactSizes, EqualSizes, compact_sizes
from feeder.shard.format.header_file import HEADER_BYTES, HEADER_MAGIC, HeaderFile
from feeder.shard.format.sealed_head import damaged, sealed, short_hash
from feeder.shard.format.shard_index import IndexedShard
from feeder.shard.store.mirror import Mirror
from feeder.system.files import atomic_file

__all__ = ["INDEX_SUFFIX", "ROW", "ImageOf", "SetHeader", "SetInfo", "write_header"]

INDEX_SUFFIX = ".fidx"
PAGE_SHARDS = 1024
ROW = np.dtype(
    [("samples", "<u4"), ("index_bytes", "<u4"), ("size_bytes", "<u8"), ("shard_hash", "V16"), ("index_hash", "V16")]
)
_TABLE_ROW = np.dtype([("first", "<u8"), ("hash", "V16")])
_NAMES_ROW = np.dtype([("offset", "<u8"), ("size", "<u4"), ("hash", "V16")])
_FORMAT = 2
_NUMBERED = re.compile(r"(.*?)(\d+)(\D*)", re.DOTALL)
_MAX_DIGITS = 20
_MAX_SHARDS = 1 << 40
# The most of the index of a shard: for head and codebooks, for a record, key and path of each sample, and for members,
# of which each takes 512 bytes of the tar or more. A damaged or hostile header may claim 4 GiB for each shard.
_INDEX_BYTES, _SAMPLE_BYTES, _MEMBER_SHARE = 16 << 20, 16 << 10, 16
_KEPT_SHARDS = 1024  # below 1 MB
_KEPT_PAGES = 1024  # 56 MB; reading one again takes 0.1 ms

_Page: TypeAlias = tuple[npt.NDArray[Any], npt.NDArray[np.int64]]  # rows, and the number of each shard's first sample


class ImageOf(NamedTuple):
    """Origin of a set in which another field is the image.

    Attributes:
        identity: Identity of the index that it was made from, hexadecimal.
        left_out: Number of samples of that index that have no readable image in that field.
    """

    identity: str
    left_out: int


@dataclass(frozen=True)
class SetInfo:
    """Properties of a shard set that its header keeps beside the shards.

    Attributes:
        fields: Names of the fields, by number.
        classes: Class names by label; None if the set has none.
        targets: Names of the numbers that each sample has in place of a label.
        labelled: Number of samples with a label.
        max_label: The largest label; -1 without any.
        is_numbered: True if the samples come from rows of a table, whose numbers are kept.
        fingerprint: Hash of the samples and their order, hexadecimal.
        index_suffix: Suffix of the shards' indexes, in place of the shards' own.
        version: Number of this version of the set, from 1.
        versions: (samples, shards) of the earlier ones.
        codebooks: Codebooks of packed JPEGs.
        taken_down: Number of samples that were taken down.
        image_of: Origin of a set in which another field is the image; None for any other.
    """

    fields: tuple[str, ...]
    classes: tuple[str, ...] | None
    targets: tuple[str, ...]
    labelled: int
    max_label: int
    is_numbered: bool
    fingerprint: str
    index_suffix: str = INDEX_SUFFIX
    version: int = 1
    versions: tuple[tuple[int, int], ...] = ()
    codebooks: tuple[bytes, ...] = ()
    taken_down: int = 0
    image_of: ImageOf | None = None


def write_header(
    path: str, info: SetInfo, rows: npt.NDArray[Any], names: Sequence[str], *, page_shards: int = PAGE_SHARDS
) -> None:
    """Writes the header of a set atomically.

    Args:
        path: The file.
        info: Properties of the set.
        rows: :data:`ROW` [shards].
        names: File names of the shards, relative to the folder of the file.
        page_shards: Number of shards in a page.

    Raises:
        FormatError: if the index of a shard, or the names of all classes, are larger than readers take.
    """
    long = _long_index(rows, info.targets)
    if long is not None:
        raise FormatError(
            f"{names[long]}: its index has {rows['index_bytes'][long]:,} bytes for {rows['samples'][long]:,} samples, "
            "more than readers take: use shorter keys and paths"
        )

    starts = np.concatenate([[0], np.cumsum(rows["samples"], dtype=np.int64)])
    sizes = compact_sizes(rows["samples"])
    pages = range(0, len(rows), page_shards)

    table = np.zeros(len(pages), _TABLE_ROW)
    table["first"] = starts[:-1][::page_shards]
    for k, start in enumerate(pages):
        table["hash"][k] = np.void(short_hash(rows[start : start + page_shards].tobytes()))
    pattern = _pattern(names)
    blobs = [] if pattern else [b"\0".join(map(os.fsencode, names[start : start + page_shards])) for start in pages]
    at_pages = table.nbytes
    at_names = at_pages + rows.nbytes
    name_table = _name_table(blobs, at_names)

    head = {
        "format": _FORMAT,
        "version": info.version,
        "versions": info.versions,
        "samples": int(starts[-1]),
        "shards": len(rows),
        "size_bytes": int(rows["size_bytes"].sum()),
        "page": page_shards,
        "equal": sizes.size if isinstance(sizes, EqualSizes) else 0,
        "labelled": info.labelled,
        "max_label": info.max_label,
        "fields": info.fields,
        "classes": info.classes,
        "targets": info.targets,
        "is_numbered": info.is_numbered,
        "index_suffix": info.index_suffix,
        "fingerprint": info.fingerprint,
        "pattern": pattern,
        "table": [0, table.nbytes, short_hash(table.tobytes()).hex()],
        "pages": [at_pages, rows.nbytes, None],
        "names": [at_names, name_table.nbytes, short_hash(name_table.tobytes()).hex()],
    }
    head |= _rarer(info)

    with atomic_file(path) as file:
        file.write(sealed(HEADER_MAGIC, head, most_bytes=HEADER_BYTES))
        file.write(table.tobytes())
        for start in pages:
            file.write(rows[start : start + page_shards].tobytes())
        file.write(name_table.tobytes())
        file.writelines(blobs)


def _name_table(blobs: Sequence[bytes], at: int) -> npt.NDArray[Any]:
    """Returns the table, at a byte of the file, of the pages' names, which follow it."""
    table = np.zeros(len(blobs), _NAMES_ROW)
    offset = at + table.nbytes
    for k, blob in enumerate(blobs):
        table[k] = (offset, len(blob), np.void(short_hash(blob)))
        offset += len(blob)
    return table


def _rarer(info: SetInfo) -> dict[str, Any]:
    """Returns those entries of the head that few sets have."""
    head: dict[str, Any] = {}
    if info.codebooks:
        head["codebooks"] = [base64.b64encode(codebook).decode() for codebook in info.codebooks]
    if info.taken_down:
        head["taken_down"] = info.taken_down
    if info.image_of is not None:
        head["image_of"] = info.image_of
    return head


def _pattern(names: Sequence[str]) -> list[Any] | None:
    """Returns the pattern that the names of all shards follow; None if they follow none."""
    match = _NUMBERED.fullmatch(names[0]) if names else None
    if match is None:
        return ["shard-", 6, ".tar"] if not names else None
    prefix, digits, suffix = match[1], len(match[2]), match[3]
    same = all(name == f"{prefix}{number:0{digits}d}{suffix}" for number, name in enumerate(names))
    return [prefix, digits, suffix] if same else None


class SetHeader:
    """The mapped header of a shard set; its pages are read, and compared with their hashes, when they are used first.

    Args:
        path: The file.
        mirror: The mirror of the file's folder; None for a local set.

    Attributes:
        info: Properties of the set.
        samples, shards, size_bytes: Totals.
        hash: Hash of the head, which has those of the tables.

    Raises:
        FormatError: if it can't be read, or is damaged.
    """

    def __init__(self, path: str, mirror: Mirror | None = None) -> None:
        self._file = HeaderFile(path, mirror)
        self._shown = self._file.shown
        self.hash = self._file.hash
        self._end = self._file.head_end
        try:
            self._take(self._file.head)
        except (KeyError, IndexError, TypeError, ValueError, OverflowError, AttributeError) as error:
            raise damaged(self._shown, f"its head is wrong: {error!r}") from None
        self._file.version = self.info.version
        self._pages: dict[int, _Page] = {}
        self._names: dict[int, list[str]] = {}
        self._shards: dict[int, IndexedShard] = {}

    def _take(self, head: dict[str, Any]) -> None:
        if head["format"] != _FORMAT:
            raise FormatError(f"{self._shown}: format {head['format']}, this feeder reads {_FORMAT}; update feeder")

        classes, origin = head["classes"], head.get("image_of")
        self.info = SetInfo(
            fields=tuple(str(name) for name in head["fields"]),
            classes=None if classes is None else tuple(str(name) for name in classes),
            targets=tuple(str(name) for name in head["targets"]),
            labelled=int(head["labelled"]),
            max_label=int(head["max_label"]),
            is_numbered=bool(head["is_numbered"]),
            fingerprint=str(head["fingerprint"]),
            index_suffix=str(head["index_suffix"]),
            codebooks=read_codebooks(head.get("codebooks", ())),
            version=int(head["version"]),
            versions=tuple((int(samples), int(shards)) for samples, shards in head["versions"]),
            taken_down=int(head.get("taken_down", 0)),
            image_of=None if origin is None else ImageOf(bytes.fromhex(origin[0]).hex(), int(origin[1])),
        )

        self.samples = int(head["samples"])
        self.shards = int(head["shards"])
        self.size_bytes = int(head["size_bytes"])
        self.page_shards = int(head["page"])
        self.equal = int(head["equal"])
        pattern = head["pattern"]
        self._pattern = None if pattern is None else (str(pattern[0]), int(pattern[1]), str(pattern[2]))

        if not (0 <= self.shards <= _MAX_SHARDS and 0 <= self.samples < 1 << 62 and 0 < self.page_shards <= 1 << 20):
            raise ValueError(f"{self.samples} samples in {self.shards} shards, {self.page_shards} a page")
        if self.equal and (self.equal < 0 or self.shards != -(-self.samples // self.equal)):
            raise ValueError(f"{self.samples} samples, {self.equal} in each of {self.shards} shards")
        if self._pattern and not 0 < self._pattern[1] <= _MAX_DIGITS:
            raise ValueError(f"shard numbers of {self._pattern[1]} digits")
        if {"/", "\0"} & {*self.info.index_suffix} or not _is_encodable(self.info.index_suffix):
            raise ValueError(f"index_suffix {self.info.index_suffix!r}")

        pages = -(-self.shards // self.page_shards)
        self._table = self._array(head["table"], pages, _TABLE_ROW)
        self._name_table = self._array(head["names"], 0 if self._pattern else pages, _NAMES_ROW)
        self._pages_at = self._end + int(head["pages"][0])
        if int(head["pages"][0]) < 0 or self._pages_at + self.shards * ROW.itemsize > self._file.size_bytes:
            raise ValueError(f"pages at byte {self._pages_at} of {self._file.size_bytes}")

        first = self._first = self._table["first"].astype(np.int64)
        if len(first) and (first[0] != 0 or (first[1:] < first[:-1]).any() or first[-1] > self.samples):
            raise ValueError("numbers of the pages' first samples decrease")

    @property
    def file_bytes(self) -> int:
        """Size of the file."""
        return self._file.size_bytes

    def shard(self, number: int) -> IndexedShard:
        """A shard, by its number.

        Raises:
            FormatError: if there is no such shard, or the header is damaged.
        """
        found = self._shards.get(number)
        if found is not None:
            return found
        name = self.shard_name(number)
        row = self._page(number // self.page_shards)[0][number % self.page_shards]
        hashes = row["shard_hash"].tobytes(), row["index_hash"].tobytes()
        sizes = int(row["samples"]), int(row["size_bytes"]), int(row["index_bytes"])
        if len(self._shards) >= _KEPT_SHARDS:
            self._shards = {}
        found = self._shards[number] = IndexedShard(name, sizes[0], sizes[1], hashes[0], sizes[2], hashes[1])
        return found

    def rows(self) -> npt.NDArray[Any]:
        """All shards, :data:`ROW` [shards]."""
        return np.concatenate([np.zeros(0, ROW), *self._each_page()])

    def shard_sizes(self) -> CompactSizes:
        """Number of samples in each shard; reads all of the header unless they are equal."""
        if self.equal and self.samples:
            return EqualSizes(self.samples, self.equal)
        sizes = np.empty(self.shards, ROW["samples"])
        for page, rows in enumerate(self._each_page()):
            sizes[page * self.page_shards :][: len(rows)] = rows["samples"]
        return compact_sizes(sizes)

    def extent(self) -> tuple[int, int]:
        """Size of all shards' indexes, bytes, and that of the largest shard; reads all of the header."""
        indexes_bytes = largest_bytes = 0
        for rows in self._each_page():
            indexes_bytes += int(rows["index_bytes"].sum(dtype=np.int64))
            largest_bytes = max(largest_bytes, int(rows["size_bytes"].max()))
        return indexes_bytes, largest_bytes

    def file_sizes(self, shards: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Returns the sizes of some shards and of their indexes, each int64 [N], bytes."""
        found = np.empty((2, len(shards)), np.int64)
        pages = shards // self.page_shards
        numbers = np.unique(pages)
        for first in range(0, len(numbers), _KEPT_PAGES):
            for page, (rows, _) in self._open_pages(numbers[first : first + _KEPT_PAGES].tolist()).items():
                own = np.flatnonzero(pages == page)
                chosen = rows[shards[own] - page * self.page_shards]
                found[0, own], found[1, own] = chosen["size_bytes"], chosen["index_bytes"]
        return found[0], found[1]

    def _each_page(self) -> Iterator[npt.NDArray[Any]]:
        """Yields the rows of all pages in turn, and keeps none; a mirror is asked for all of them in one go."""
        if len(self._table):
            self._file.need((self._pages_at, self._pages_at + self.shards * ROW.itemsize))
        for page in range(len(self._table)):
            yield self._read_page(page)[0]

    def shard_name(self, number: int) -> str:
        """File name of a shard, by its number.

        Raises:
            FormatError: if there is no such shard, or its name leads out of the folder.
        """
        if not 0 <= number < self.shards:
            raise FormatError(f"{self._shown}: has no shard {number}, but {self.shards} of them")
        if self._pattern is not None:
            prefix, digits, suffix = self._pattern
            return self._checked_name(f"{prefix}{number:0{digits}d}{suffix}")
        page, row = divmod(number, self.page_shards)
        if page not in self._names:
            self._names[page] = self._read_names(page)
        return self._names[page][row]

    def sample_range(self, number: int) -> tuple[int, int]:
        """Number of the first sample of a shard, and that after its last one."""
        samples = self.shard(number).samples
        first = int(self._page(number // self.page_shards)[1][number % self.page_shards])
        return first, first + samples

    def index_name(self, number: int) -> str:
        """File name of the index of a shard, by the shard's number."""
        return os.path.splitext(self.shard_name(number))[0] + self.info.index_suffix

    def locate(self, ids: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Returns the shards of samples, int64 [N], and their rows there, int64 [N].

        Raises:
            IndexError: if there is no such sample.
        """
        if len(ids) and int(ids.view(np.uint64).max()) >= self.samples:
            raise IndexError(
                f"{self._shown}: has samples 0 to {self.samples - 1}, asked for {ids.min()} to {ids.max()}"
            )
        if self.equal:
            shards = ids // self.equal
            return shards, ids - shards * self.equal
        pages = np.searchsorted(self._first, ids, side="right") - 1
        if len(ids) and (pages == pages[0]).all():
            return self._in_page(int(pages[0]), self._page(int(pages[0]))[1], ids)
        found = np.unique(pages).tolist()
        opened = self._open_pages(found)
        shards, rows = np.empty_like(ids), np.empty_like(ids)
        for page in found:
            own = np.flatnonzero(pages == page)
            shards[own], rows[own] = self._in_page(page, opened[page][1], ids[own])
        return shards, rows

    def _in_page(
        self, page: int, starts: npt.NDArray[np.int64], ids: npt.NDArray[np.int64]
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        own = np.searchsorted(starts, ids, side="right") - 1
        return own + page * self.page_shards, ids - starts[own]

    def open_pages(self, shards: Iterable[int]) -> None:
        """Opens the pages of some shards; a mirror is asked for all of them in one go."""
        self._open_pages({number // self.page_shards for number in shards})

    def _open_pages(self, pages: Iterable[int]) -> dict[int, _Page]:
        found = {page: kept for page in pages if (kept := self._pages.get(page)) is not None}
        missing = sorted(set(pages) - found.keys())
        if missing:
            self._file.need(*(self._page_range(page) for page in missing))
        for page in missing:
            found[page] = self._pages[page] = self._read_page(page)
            if len(self._pages) > _KEPT_PAGES:
                with contextlib.suppress(KeyError, RuntimeError):  # another thread has just done so
                    del self._pages[next(iter(self._pages))]
        return found

    def _page_range(self, page: int) -> tuple[int, int]:
        first, end = (min(k * self.page_shards, self.shards) for k in (page, page + 1))
        return self._pages_at + first * ROW.itemsize, self._pages_at + end * ROW.itemsize

    def _page(self, page: int) -> _Page:
        return self._pages.get(page) or self._open_pages([page])[page]

    def _read_page(self, page: int) -> _Page:
        if not 0 <= page < len(self._table):
            raise FormatError(f"{self._shown}: has no page {page} of shards, but {len(self._table)}")
        expected = self._table["hash"][page].tobytes()
        data = self._file.hashed(*self._page_range(page), expected, f"page {page} of its shards")
        rows = np.frombuffer(data, ROW)
        first = int(self._first[page])
        last = int(self._first[page + 1]) if page + 1 < len(self._first) else self.samples
        long = _long_index(rows, self.info.targets)
        if long is not None:
            row = rows[long]
            raise damaged(
                self._shown,
                f"shard {page * self.page_shards + long} would have an index of {row['index_bytes']:,} bytes for "
                f"{row['samples']:,} samples",
            )
        sizes = rows["samples"].astype(np.int64)
        ends = first + np.cumsum(sizes)
        if ends[-1] != last or (self.equal and (sizes[:-1] != self.equal).any()):
            raise damaged(self._shown, f"page {page} of its shards has {ends[-1] - first} samples, not {last - first}")
        return rows, ends - sizes

    def _read_names(self, page: int) -> list[str]:
        row = self._name_table[page]
        start, size = self._end + int(row["offset"]), int(row["size"])
        if start + size > self._file.size_bytes:
            raise damaged(
                self._shown, f"page {page} of its names ends at byte {start + size} of {self._file.size_bytes}"
            )
        self._file.need((start, start + size))
        data = self._file.hashed(start, start + size, row["hash"].tobytes(), f"page {page} of its names")
        names = [self._checked_name(os.fsdecode(name)) for name in bytes(data).split(b"\0")]
        if len(names) != min(self.page_shards, self.shards - page * self.page_shards):
            raise damaged(self._shown, f"page {page} of its names has {len(names)} names")
        return names

    def _checked_name(self, name: str) -> str:
        if not name or name.startswith("/") or ".." in name.split("/"):
            raise FormatError(f"{self._shown}: shard name {name!r} leads out of the index's folder")
        if "\0" in name or not _is_encodable(name):
            raise FormatError(f"{self._shown}: shard name {name!r} can't be a file's; the index is damaged")
        return name

    def _array(self, place: Any, count: int, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
        """Reads one of the tables."""
        offset, size, expected = int(place[0]), int(place[1]), bytes.fromhex(str(place[2]))
        start = self._end + offset
        if offset < 0 or size != count * dtype.itemsize or start + size > self._file.size_bytes:
            raise ValueError(f"{size} bytes at byte {start} of {self._file.size_bytes} for {count} pages")
        self._file.need((start, start + size))
        return np.frombuffer(self._file.hashed(start, start + size, expected, "a table of its pages"), dtype)


def _long_index(rows: npt.NDArray[Any], targets: Sequence[str]) -> int | None:
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
