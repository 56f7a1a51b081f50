"""The protocol for reading the encoded bytes of samples. Needs no torch."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from feeder.decoders.staged.capacity import Peek
from feeder.errors import ArgumentError, DecodeError
from feeder.order.shard_sizes import ShardSizes
from feeder.system.arrays import AnyArray, Int32s, Int64s, Uint8s

REFUSED_FIELDS = frozenset({"pickle", "pkl", "pt", "pth", "pyd"})
SWAPPING_ORIENTATIONS = (5, 6, 7, 8)  # EXIF's that swap width and height

# A function of orientations, uint8 [N], and upright sizes, int32 [N, 2], (height, width). It returns the range of rows
# wanted of each image, int32 [N, 2], (first, end), in pixels as stored.
Wanted = Callable[[Uint8s, Int32s], Int32s]


@dataclass
class ReadSamples:
    """N samples as they were read.

    Attributes:
        buffers: N encoded images; empty where ``errors`` has an entry. Valid until the same thread's next call on
            the reader.
        labels: int64 [N], or float32 [N] or [N, K].
        orientations: uint8 [N], EXIF orientation to apply, 1-8.
        sizes: int32 [N, 2], upright (height, width), pixels.
        errors: One entry per sample: None, or the error if it could not be read.
        first_rows: int32 [N], -1 for a whole image. Otherwise the buffer has a seekable JPEG's header, followed by the
            bytes of the wanted rows, from the marker before this row of pixels. None if all images are whole.
    """

    buffers: list[memoryview]
    labels: AnyArray
    orientations: Uint8s
    sizes: Int32s
    errors: list[DecodeError | None]
    first_rows: Int32s | None = None

    @classmethod
    def unread(cls, labels: AnyArray) -> ReadSamples:
        """Returns samples with these labels, to be filled: without bytes, 1x1 and upright."""
        count = len(labels)
        sizes = np.ones((count, 2), np.int32)
        return cls([memoryview(b"")] * count, labels, np.ones(count, np.uint8), sizes, [None] * count)

    def take(self, rows: list[int]) -> ReadSamples:
        """Returns some of the samples."""
        buffers, errors = [self.buffers[row] for row in rows], [self.errors[row] for row in rows]
        first_rows = None if self.first_rows is None else self.first_rows[rows]
        return ReadSamples(buffers, self.labels[rows], self.orientations[rows], self.sizes[rows], errors, first_rows)


class Reader(Protocol):
    """A source of samples. Cheap to pickle; opens its files on first use in each process and thread.

    Attributes:
        classes: Class names by label; None if they are not known.
        label_dtype: The dtype of one label: int64, float32, or a subarray of K float32.
        place: Path of the index or folder.
    """

    classes: list[str] | None
    label_dtype: np.dtype[Any]

    @property
    def place(self) -> str: ...

    def __len__(self) -> int: ...

    def read(self, ids: Int64s, wanted: Wanted | None = None) -> ReadSamples:
        """Reads the encoded images of N samples.

        Args:
            ids: int64 [N].
            wanted: Returns the rows of each image that are wanted. A reader that knows the places of rows calls it
                before it reads, and reads no other rows. None: all rows.
        """

    def stored(self, ids: Int64s) -> tuple[Uint8s, Int32s] | None:
        """Returns the orientations to apply, uint8 [N], and upright sizes, int32 [N, 2], as in :class:`ReadSamples`;
        None if they are known only from the samples' files."""

    def measure(self, ids: Int64s | None = None) -> None:
        """Reads the sizes of N samples for :meth:`stored`, from their files' headers where nothing else has them.

        Args:
            ids: int64 [N]; None: all.
        """

    def orientation(self, i: int) -> int:
        """Returns the EXIF orientation to apply to a sample's image, 1-8."""

    def peek(self, ids: Int64s) -> Peek:
        """Returns the sizes of N samples; those that can't be read count as empty."""

    def field(self, i: int, name: str) -> Any:
        """Returns one field of a sample: "key", "path" (str), one of :data:`NUMBER_FIELDS` (int), "json" (parsed), any
        other member (bytes); None where the sample has no such member."""

    def member(self, i: int, name: str) -> bytes | None:
        """Returns the bytes of one member of a sample; None where the sample has no such member."""

    def field_names(self) -> list[str]:
        """Names of the known fields, sorted."""

    def column(self, name: str) -> AnyArray | list[Any]:
        """Returns one field of all samples: int64 [samples] for numbers, else a list."""

    def at(self, error: DecodeError, i: int) -> DecodeError:
        """Returns the error, with the sample's place filled in."""

    def fingerprint(self) -> str:
        """Returns the short hash of the samples and their order."""

    def labels(self) -> AnyArray:
        """Returns the labels of all samples: int64 [samples], or float32 [samples] or [samples, K]."""

    def shard_sizes(self) -> ShardSizes:
        """Returns the number of samples in each shard, in stored order; empty without shards."""


def label_dtype(labels: AnyArray) -> np.dtype[Any]:
    """Returns the dtype of one label of ``labels``, int64 or float32 [N] or [N, K]; a subarray for rows of K."""
    return labels.dtype if labels.ndim == 1 else np.dtype((labels.dtype, labels.shape[1:]))


def parsed(name: str, data: bytes) -> Any:
    """Returns a member's bytes, or its parsed value if it is the member "json".

    Raises:
        DecodeError: if that is no JSON.
    """
    try:
        return json.loads(data) if name == "json" else data
    except (ValueError, RecursionError) as error:
        raise DecodeError(f"field 'json' is not JSON: {error}") from None


def check_fields(fields: Sequence[str]) -> tuple[str, ...]:
    """Checks the names of fields, and refuses those whose format can run code.

    Raises:
        ArgumentError: naming the field.
    """
    if isinstance(fields, str):
        raise ArgumentError(f"fields must be a sequence of names, got {fields!r}; write [{fields!r}]")
    if not isinstance(fields, Iterable):
        raise ArgumentError(f"fields must be a sequence of names, or a mapping of them to kinds, got {fields!r}")
    for name in fields:
        if not isinstance(name, str) or not name:
            raise ArgumentError(f"fields must be names such as 'key' or 'json', got {name!r}")
        if member_and_key(name)[0].rpartition(".")[2].lower() in REFUSED_FIELDS:
            raise ArgumentError(
                f"field {name!r} is refused: its format runs code when it is loaded; store it as json, npy or text"
            )
    return tuple(fields)


def member_and_key(name: str) -> tuple[str, str | None]:
    """Returns the member and the key in it that a field's name has: "json:caption" is "caption" of the member "json".

    The key is None for any other name, which is a member's or the reader's own.
    """
    member, _, key = name.partition(":")
    return (member, key) if key and f".{member}".endswith(".json") else (name, None)
