"""The index of a shard set as its readers see it: samples by their ids, whichever version the files are of."""

from __future__ import annotations

import hashlib
import json
import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from feeder.order.shard_sizes import ShardSizes
from feeder.shard.format.index_file import ImageOf, ShardEntry

if TYPE_CHECKING:
    from feeder._native import HeldIndex

__all__ = ["NUMBER_FIELDS", "FieldPlaces", "Index", "Located", "Rows", "SetSize"]

# Fields that are integers: "index" is the sample id; "width" and "height" are those of the image before the recipe, in
# pixels, upright if orientation is applied; "orientation" is EXIF's, as stored, 1-8; "row" is the sample's row in its
# manifest, from 0.
NUMBER_FIELDS = ("index", "width", "height", "orientation", "row")


class Rows(Protocol):
    """Properties of N samples; each attribute is an array [N], as Note [Index file] describes it.

    Attributes:
        shard: Numbers of the shards.
        offset, length: Places of the images in them, bytes.
        width, height: As stored, pixels.
        orientation: uint8.
        field: Numbers of the images' fields.
        crc32: Checksums of the samples.
        labels: int64 [N], -1 for none; or the targets, float32 [N] or [N, K].
    """

    @property
    def shard(self) -> npt.NDArray[Any]: ...
    @property
    def offset(self) -> npt.NDArray[Any]: ...
    @property
    def length(self) -> npt.NDArray[Any]: ...
    @property
    def width(self) -> npt.NDArray[Any]: ...
    @property
    def height(self) -> npt.NDArray[Any]: ...
    @property
    def orientation(self) -> npt.NDArray[np.uint8]: ...
    @property
    def field(self) -> npt.NDArray[Any]: ...
    @property
    def crc32(self) -> npt.NDArray[np.uint32]: ...
    @property
    def labels(self) -> npt.NDArray[Any]: ...

    def extents(self, rows: npt.NDArray[np.int32]) -> npt.NDArray[np.int64] | None:
        """Returns the bytes of the images that some of their rows need.

        Args:
            rows: int32 [N, 2], first and end row, in pixels as stored.

        Returns:
            int64 [N, 4], see :func:`feeder._native.row_extents`; None if all bytes of all images are needed.
        """


class FieldPlaces(NamedTuple):
    """The places of one field of all samples that have it, each [N].

    Attributes:
        ids: The samples.
        shards: Numbers of their shards.
        offsets, lengths: Places in these, bytes; not checked.
    """

    ids: npt.NDArray[np.int64]
    shards: npt.NDArray[np.int64]
    offsets: npt.NDArray[np.uint64]
    lengths: npt.NDArray[np.uint64]


class Located(NamedTuple):
    """Samples as the kernels find them in an index, see :meth:`feeder._native.PartRunner.run`.

    Attributes:
        shards: int64 [N], numbers of the shards; None: they follow from the rows.
        rows: int64 [N], rows in the shards, or in the set if there are no shards.
        per_shard: Samples in each shard but the last; 0: that is not what ``rows`` depends on.
    """

    shards: npt.NDArray[np.int64] | None
    rows: npt.NDArray[np.int64]
    per_shard: int


class SetSize(NamedTuple):
    """Sizes of a set's files, bytes, without the optional groups of indexes.

    Attributes:
        indexes_bytes: Of the shards' own indexes.
        header_bytes: Of the set's header.
        largest_bytes: Of the largest shard.
    """

    indexes_bytes: int
    header_bytes: int
    largest_bytes: int


class Index(ABC):
    """The index of a shard set.

    Attributes:
        path: The index file.
        fields: Names of the fields, by number.
        classes: Class names by label; None if the index has none.
        codebooks: Codebooks of packed JPEGs.
        targets: Names of the numbers that each sample has in place of a label; empty if there are none.
        identity: Hash that differs if another index has replaced this one.
        image_of: Origin of an index in which another field is the image; None for any other.
        version: Number of this version of the set, from 1.
        shard_count: Number of shards.
        size_bytes: Size of all shards.
        has_source_rows: True if the samples come from rows of a table, whose numbers are kept.
        max_label: The largest label; -1 without any.
    """

    path: str
    fields: tuple[str, ...]
    classes: list[str] | None
    codebooks: tuple[bytes, ...] = ()
    targets: tuple[str, ...]
    identity: bytes
    image_of: ImageOf | None = None
    version: int = 1

    @property
    @abstractmethod
    def shard_count(self) -> int: ...
    @property
    @abstractmethod
    def size_bytes(self) -> int: ...
    @property
    @abstractmethod
    def has_source_rows(self) -> bool: ...
    @property
    @abstractmethod
    def max_label(self) -> int: ...
    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def shard_entry(self, shard: int) -> ShardEntry:
        """Name and size of a shard, by its number.

        Raises:
            FormatError: if there is no such shard.
        """

    @abstractmethod
    def index_entry(self, shard: int) -> ShardEntry | None:
        """Name and size, without the optional groups, of the index of a shard; None if no shard has one of its own."""

    @abstractmethod
    def steps_bytes(self, shard: int) -> int:
        """Size of the places of rows of a shard, where a mirror has them as a file of their own; else 0."""

    @abstractmethod
    def extent(self) -> SetSize:
        """Sizes of the set's files besides the shards; reads all of its header."""

    def file_sizes(self, shards: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Sizes of some shards, and of their own indexes as :meth:`index_entry` has them, each int64 [N], bytes."""
        entries = [(self.shard_entry(shard), self.index_entry(shard)) for shard in shards.tolist()]
        own = [0 if index is None else index.size_bytes for _, index in entries]
        return np.array([shard.size_bytes for shard, _ in entries], np.int64), np.array(own, np.int64)

    @abstractmethod
    def shard_counts(self) -> ShardSizes:
        """Number of samples in each shard.

        Raises:
            FormatError: if a sample is in a shard that does not exist.
        """

    @abstractmethod
    def shards_of(self, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Numbers of the shards of some samples, int64 [N]."""

    @abstractmethod
    def rows(self, ids: npt.NDArray[np.int64]) -> Rows:
        """Properties of some samples, int64 [N].

        Raises:
            FormatError: if the index of a shard is missing or damaged.
        """

    @property
    @abstractmethod
    def native(self) -> HeldIndex | None:
        """The same index as the kernels read it; None without them."""

    @abstractmethod
    def located(self, ids: npt.NDArray[np.int64]) -> Located:
        """Returns some samples as :attr:`native` finds them."""

    @abstractmethod
    def hold(self, shards: Iterable[int], *, by_rows: bool = True) -> None:
        """Has :attr:`native` hold the samples of some shards, where it holds them by shards.

        Args:
            shards: Their numbers.
            by_rows: False leaves out the places of rows.

        Raises:
            FormatError: if the index of a shard is missing or damaged.
        """

    @abstractmethod
    def missing_steps(self, shards: Iterable[int]) -> list[tuple[str, int, int]]:
        """Returns what :meth:`hold` will ask the mirror for, so that it can be asked for together with the images.

        Raises:
            FormatError: if the index of a shard is missing or damaged.
        """

    @abstractmethod
    def labels(self) -> npt.NDArray[Any]:
        """Labels of all samples, int64 [samples], or targets, float32 [samples] or [samples, K]."""

    @abstractmethod
    def key(self, i: int) -> str:
        """The sample's WebDataset key."""

    @abstractmethod
    def source_path(self, i: int) -> str:
        """The sample's original path; undecodable bytes as surrogates, as in :func:`os.fsdecode`."""

    @abstractmethod
    def source_rows(self, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Row numbers of samples in their table, int64 [N]."""

    @abstractmethod
    def row_data(self, i: int) -> bytes:
        """The sample's ``row_data``, see Note [Index file]; empty if it is not a seekable JPEG."""

    @abstractmethod
    def members(self, i: int) -> list[tuple[str, int, int]]:
        """The sample's fields besides the image: (field, offset, length) in its shard, bytes."""

    @abstractmethod
    def field_places(self, name: str) -> FieldPlaces:
        """The places of one field of all samples that have it."""

    @abstractmethod
    def fingerprint(self, labels: npt.NDArray[Any] | None = None) -> str:
        """Hash of the samples, their order and their labels, or of other ``labels`` that they were given.

        From the set's second version on its number follows, after a point.
        """

    def columns_fingerprint(self, labels: npt.NDArray[Any]) -> str:
        """Fingerprint of a set of version 1: hash of shards, places, lengths and ``labels``, of all samples."""
        digest = hashlib.blake2b(digest_size=16)
        digest.update(json.dumps([self.shard_entry(number) for number in range(self.shard_count)]).encode())
        for column in (*map(self.column, ("shard", "offset", "length")), labels):
            digest.update(np.ascontiguousarray(column).data)
        return digest.hexdigest()

    @abstractmethod
    def column(self, name: str) -> npt.NDArray[Any]:
        """Column of all samples, by its name in Note [Index file]; "target" as [N, K]."""

    @abstractmethod
    def checked_parts(self, names: Sequence[str]) -> Iterator[dict[str, npt.NDArray[Any]]]:
        """Yields the columns of some samples at a time, of all in order, compared with their checksums.

        Args:
            names: Their names in Note [Index file], but for "shard" and starts.

        Raises:
            FormatError: if one does not match.
        """

    @abstractmethod
    def check(self, names: Iterable[str] | None = None) -> None:
        """Compares columns, by default all, with their checksums.

        Raises:
            FormatError: if one does not match.
        """

    @abstractmethod
    def check_fields(self, fields: Iterable[str]) -> None:
        """Compares the columns that every sample and these ``fields`` need with their checksums, unless that is done
        when they are read.

        Raises:
            FormatError: if one does not match.
        """

    @property
    def label_dtype(self) -> np.dtype[Any]:
        """The dtype of one label: int64, float32, or a subarray of K float32."""
        if not self.targets:
            return np.dtype(np.int64)
        return np.dtype(np.float32) if len(self.targets) == 1 else np.dtype((np.float32, (len(self.targets),)))

    @abstractmethod
    def shard_ids(self, shard: int) -> npt.NDArray[np.int64]:
        """The samples of a shard, by its number, int64 [N]."""

    def shard_name(self, shard: int) -> str:
        """File name of a shard, by its number.

        Raises:
            FormatError: if there is no such shard.
        """
        return self.shard_entry(shard).name

    def shard_hash(self, shard: int) -> bytes:
        """Hash of a shard, 16 bytes, by its number; empty if the index has none."""
        return b""

    def shard_path(self, shard: int) -> str:
        """Full path of a shard, by its number."""
        return os.path.join(os.path.dirname(self.path), self.shard_name(shard))

    def row(self, i: int) -> Rows:
        """Properties of one sample."""
        return self.rows(np.array([i]))

    def place(self, i: int) -> tuple[int, int, int]:
        """The place of the sample's image: shard, offset and length, bytes."""
        row = self.row(i)
        return int(row.shard[0]), int(row.offset[0]), int(row.length[0])

    def member_place(self, i: int, name: str) -> tuple[int, int, int] | None:
        """The place of one of the sample's fields, as :meth:`place` has that of its image; None if it lacks it."""
        for member, offset, length in self.members(i):
            if member == name:
                return self.place(i)[0], offset, length
        return self.place(i) if self.image_field(i) == name else None

    def parts(self, i: int) -> list[tuple[str, int, int]]:
        """All fields of the sample, in the order of its checksum: (field, offset, length) in its shard, bytes."""
        members = self.members(i)
        if self.image_of is not None:
            return members
        return [(self.image_field(i), *self.place(i)[1:]), *members]

    def image_field(self, i: int) -> str:
        """Name of the sample's image field, such as "jpg".

        Raises:
            FormatError: if the index has no such field.
        """
        return self.field_name(int(self.row(i).field[0]))

    @abstractmethod
    def field_name(self, field: int) -> str:
        """Name of a field, by its number.

        Raises:
            FormatError: if there is no such field.
        """
