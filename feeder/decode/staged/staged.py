"""What a worker hands to a decoder in the trainer: encoded bytes, cut and checked, with their boxes.

Needs neither torch nor DALI. What the other device can't decode, or should not, is decoded here and travels as pixels:
other formats, outliers in size, and what the header and marker check finds fault with, so that the CPU backend has the
last word on it.

Note [Stored pixels]
    Decoders crop the image as it is stored, so boxes are turned from upright to stored pixels here. What is left of
    the EXIF orientation, together with the flip, is one of eight turns, applied to the resized image at the end: bit 0
    mirrors the stored image left to right, bit 1 top to bottom, and bit 2 then swaps rows and columns.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from feeder.decode.decoder import MAX_PIXELS, Buffer, Decoder, check_options
from feeder.decode.image_header import image_info, jpeg_has_end
from feeder.errors import ArgumentError, BackendError, DecodeError
from feeder.transforms import Draws, Normalize, Recipe, ToDtype

__all__ = ["ROW", "Kind", "Staged", "Stager", "by_size", "stored_boxes", "stored_rows", "turn_codes"]

_NPY_MAGIC = b"\x93NUMPY"

# Past this an image is decoded here: 12 photos of it would fill what a whole batch of usual ones takes.
_OUTLIER_PIXELS = 24_000_000

# The offset of a payload that found no room.
_ELSEWHERE = -1

# In place of a first row: the image is whole.
_WHOLE = -1

# The turn of each EXIF orientation without a flip; entry 0 is no orientation.
_TURNS = np.array([0, 0, 1, 3, 2, 4, 6, 7, 5], np.uint8)


class Kind(IntEnum):
    """What a row of a staged batch holds."""

    JPEG = 0
    """A JPEG to be decoded, cropped and resized."""
    PIXELS = 1
    """uint8 [H, W, 3] of the output's size, turned already."""
    FAILED = 2
    """Nothing."""


# One row a sample. Boxes are (left, top, right, bottom) in stored pixels of the payload's image; size is the (height,
# width) to resize to, before the turn; offset and length say where a packed batch has the payload.
ROW = np.dtype(
    [
        ("kind", "u1"),
        ("turn", "u1"),
        ("size", "i4", 2),
        ("window", "i4", 4),
        ("source", "f8", 4),
        ("offset", "i8"),
        ("length", "i8"),
    ],
    align=True,
)


@dataclass(frozen=True, eq=False)
class Staged:
    """A batch that waits for its decoder.

    Args:
        rows: [N] of :data:`ROW`.
        payloads: The bytes of each row, as its kind says.
    """

    rows: npt.NDArray[np.void]
    payloads: list[Buffer]

    def __len__(self) -> int:
        return len(self.payloads)

    @property
    def packed_bytes(self) -> int:
        """What :meth:`pack` takes if nothing is to be left over."""
        return int(self.rows.nbytes) + sum(map(len, self.payloads))

    def pack(self, memory: npt.NDArray[np.uint8]) -> dict[int, Buffer]:
        """Writes the batch to memory: the rows, then the payloads that find room.

        Args:
            memory: uint8, aligned to 8 bytes, with room for the rows at least.

        Returns:
            The payloads that found no room, by row.

        Raises:
            ArgumentError: if not even the rows fit; nothing was written then.
        """
        offset = int(self.rows.nbytes)
        if offset > len(memory):
            raise ArgumentError(f"{len(self)} staged rows take {offset} bytes, the slot has {len(memory)}")
        rows = memory[:offset].view(ROW)
        rows[:] = self.rows
        left_over: dict[int, Buffer] = {}
        for row, payload in enumerate(self.payloads):
            end = offset + len(payload)
            if end > len(memory):
                left_over[row] = payload
                rows["offset"][row], rows["length"][row] = _ELSEWHERE, 0
                continue
            memory[offset:end] = np.frombuffer(payload, np.uint8)
            rows["offset"][row], rows["length"][row] = offset, len(payload)
            offset = end
        return left_over

    @classmethod
    def unpack(cls, memory: npt.NDArray[np.uint8], count: int, left_over: Mapping[int, Buffer] | None = None) -> Staged:
        """The batch that :meth:`pack` wrote; its payloads are views of the memory.

        Args:
            memory: uint8.
            count: How many samples it has.
            left_over: What :meth:`pack` returned.

        Raises:
            ArgumentError: if a row does not lie in the memory.
        """
        if count * ROW.itemsize > len(memory):
            raise ArgumentError(f"{count} staged rows take {count * ROW.itemsize} bytes, the slot has {len(memory)}")
        left_over = left_over or {}
        rows = memory[: count * ROW.itemsize].view(ROW)
        starts, lengths = rows["offset"], rows["length"]
        here = (starts >= 0) & (lengths >= 0) & (starts <= len(memory)) & (lengths <= len(memory) - starts)
        if any(row not in left_over for row in np.flatnonzero(~here).tolist()):
            raise ArgumentError(f"a staged row does not lie in its slot of {len(memory)} bytes")
        places = zip(starts.tolist(), (starts + lengths).tolist(), strict=True)
        payloads = [left_over[row] if row in left_over else memory[a:b].data for row, (a, b) in enumerate(places)]
        return cls(rows, payloads)

    @classmethod
    def join(cls, parts: Sequence[Staged]) -> Staged:
        """Several batches as one, at least one of them."""
        if len(parts) == 1:
            return parts[0]
        return cls(np.concatenate([part.rows for part in parts]), [each for part in parts for each in part.payloads])


class Stager:
    """Makes staged batches.

    Args:
        max_pixels: Larger images are refused.
        threads: For the images that are decoded here.
        fidelity: "fast", or "exact", which cuts nothing: at a cut's edge the chroma of its neighbours is missing.
        outlier_pixels: Images with more stored pixels are decoded here.

    Attributes:
        clipped, slow: How many images of the last call were decoded here with a loss of range, or slowly; see
            :class:`feeder.decode.decoder.Decoder`.
    """

    def __init__(
        self,
        *,
        max_pixels: int = MAX_PIXELS,
        threads: int = 1,
        fidelity: str = "fast",
        outlier_pixels: int = _OUTLIER_PIXELS,
    ) -> None:
        check_options(max_pixels, threads, fidelity)
        if outlier_pixels < 0:
            raise ArgumentError(f"outlier_pixels must be 0 or more, got {outlier_pixels}")
        self.max_pixels = max_pixels
        self.outlier_pixels = outlier_pixels
        self._options: dict[str, Any] = {"max_pixels": max_pixels, "threads": threads, "fidelity": fidelity}
        self._cuts = fidelity == "fast"
        self._here: Decoder | None = None
        self.clipped = self.slow = 0

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_here": None}

    @property
    def takes_rows(self) -> bool:
        """Whether :meth:`stage` takes images without the rows that are not needed."""
        try:
            from feeder import _native  # noqa: F401
        except ImportError:
            return False
        return self._cuts

    def with_threads(self, threads: int) -> Stager:
        """The same with another number of threads."""
        options = {**self._options, "threads": threads, "outlier_pixels": self.outlier_pixels}
        return Stager(**options)

    def prepare(self) -> None:
        """Makes the backend for the images that are decoded here, which is otherwise made for the first of them."""
        if self._here is None:
            self._here = _cpu_decoder(self._options)

    def stage(
        self,
        buffers: Sequence[Buffer],
        orientations: npt.NDArray[np.uint8],
        recipe: Recipe,
        draws: Draws,
        first_rows: npt.NDArray[np.int32] | None = None,
    ) -> tuple[Staged, list[DecodeError | None]]:
        """Checks, cuts and turns N images.

        Args:
            buffers: N encoded images.
            orientations: uint8 [N], EXIF orientation 1-8 to apply.
            recipe: What is done to every image; only its base path matters here.
            draws: What was drawn for them.
            first_rows: int32 [N], see :class:`feeder.dataset.reader.Encoded`; None: all are whole.

        Returns:
            The batch, and for each image None or why it can't be decoded; its kind is then FAILED.
        """
        count = len(buffers)
        self.clipped = self.slow = 0
        rows = np.zeros(count, ROW)
        rows["turn"] = turn_codes(orientations, draws.flip)
        swapped = (rows["turn"] & 4) != 0
        rows["size"] = np.where(swapped[:, None], draws.base_size[:, ::-1], draws.base_size)
        rows["window"], rows["source"] = stored_boxes(draws, orientations)
        payloads: list[Buffer] = []
        errors: list[DecodeError | None] = []
        for row, buffer in enumerate(buffers):
            try:
                first_row = _WHOLE if first_rows is None else int(first_rows[row])
                kind, payload = self._one(buffer, first_row, orientations, recipe, draws, row, rows)
                errors.append(None)
            except DecodeError as error:
                kind, payload = Kind.FAILED, b""
                errors.append(error)
            rows["kind"][row] = kind
            payloads.append(payload)
        return Staged(rows, payloads), errors

    def _one(
        self,
        buffer: Buffer,
        first_row: int,
        orientations: npt.NDArray[np.uint8],
        recipe: Recipe,
        draws: Draws,
        row: int,
        rows: npt.NDArray[np.void],
    ) -> tuple[Kind, Buffer]:
        height, width = draws.base_size[row].tolist()
        if height * width > self.max_pixels:
            raise DecodeError(f"the recipe makes {width}x{height} pixels, more than max_pixels={self.max_pixels}")
        data = buffer if isinstance(buffer, bytes) else bytes(buffer)
        if self._is_for_the_decoder(data, first_row, int(orientations[row]), draws.image_size[row]):
            payload = self._cut(data, first_row, row, rows)
            if payload is not None:
                return Kind.JPEG, payload
        one = slice(row, row + 1)
        pixels = self._decode_here(data, first_row, orientations[one], recipe, draws.take(one))
        rows["turn"][row] = 0
        rows["size"][row] = height, width
        return Kind.PIXELS, pixels

    def _is_for_the_decoder(
        self, data: bytes, first_row: int, orientation: int, image_size: npt.NDArray[np.int32]
    ) -> bool:
        """Whether it is a plain JPEG of the expected size, no outlier, whose header and end are as they should be."""
        if data[:2] != b"\xff\xd8":
            return False
        try:
            info = image_info(data)
        except ValueError:
            return False
        stored = (info.height_px, info.width_px)
        return (
            (stored[::-1] if orientation > 4 else stored) == tuple(image_size.tolist())
            and info.width_px * info.height_px <= min(self.outlier_pixels, self.max_pixels)
            and (first_row != _WHOLE or jpeg_has_end(data))
            and _is_plain(data)
        )

    def _cut(self, data: bytes, first_row: int, row: int, rows: npt.NDArray[np.void]) -> bytes | None:
        """The JPEG cut to the window, where it is seekable; the boxes then follow it. None: its markers are damaged."""
        try:
            from feeder import _native
        except ImportError:
            return data
        try:
            cut = _native.cut(data, tuple(rows["window"][row].tolist()), max(first_row, 0))
            unsound = False
        except ValueError:
            cut, unsound = None, True
        if cut is None and first_row != _WHOLE:
            raise DecodeError("JPEG: its rows are not where they were said to be")
        if cut is None or not self._cuts:
            return None if unsound else data
        smaller, x, y = cut
        rows["window"][row] -= (x, y, x, y)
        rows["source"][row] -= (x, y, x, y)
        return smaller

    def _decode_here(
        self, data: bytes, first_row: int, orientations: npt.NDArray[np.uint8], recipe: Recipe, draws: Draws
    ) -> bytes:
        """uint8 [H, W, 3] after the base path, by the CPU backend, or by Pillow where that is not built."""
        self.prepare()
        assert self._here is not None
        steps = zip(recipe.ops[: recipe.base_length], draws.ops, strict=False)
        kept = [(op, params) for op, params in steps if not isinstance(op, (ToDtype, Normalize))]
        base = Recipe(tuple(op for op, _ in kept))
        height, width = draws.base_size[0].tolist()
        out = np.empty((1, 3, height, width), np.uint8)
        drawn = replace(draws, ops=tuple(params for _, params in kept), output_size=draws.base_size)
        first_rows = None if first_row == _WHOLE else np.array([first_row], np.int32)
        (error,) = self._here.decode([data], orientations, base, drawn, out, first_rows)
        if error is not None:
            raise error
        self.clipped += self._here.clipped
        self.slow += self._here.slow
        return np.ascontiguousarray(out[0].transpose(1, 2, 0)).tobytes()


def turn_codes(orientations: npt.NDArray[np.uint8], flips: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """What is left to do after the resize, uint8 [N]; see Note [Stored pixels].

    Args:
        orientations: uint8 [N], EXIF orientation 1-8.
        flips: uint8 [N], 1 where the upright output is mirrored.
    """
    turns = _TURNS[orientations]
    # Mirroring what has been swapped is mirroring the other axis before.
    codes: npt.NDArray[np.uint8] = turns ^ np.where(flips != 0, np.where(turns & 4, 2, 1), 0).astype(np.uint8)
    return codes


def stored_boxes(
    draws: Draws, orientations: npt.NDArray[np.uint8]
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float64]]:
    """The support and source boxes in stored pixels, (left, top, right, bottom): int32 [N, 4] and float64 [N, 4].

    Args:
        draws: Boxes in upright pixels.
        orientations: uint8 [N], EXIF orientation 1-8.
    """
    turns = _TURNS[orientations]
    swapped = (turns & 4) != 0
    stored_size = np.where(swapped[:, None], draws.image_size[:, ::-1], draws.image_size).astype(np.float64)
    boxes = []
    for upright in (draws.support_box.astype(np.float64), draws.source_box):
        box = np.where(swapped[:, None], upright[:, [1, 0, 3, 2]], upright)
        for bit, axis, length in ((1, 0, stored_size[:, 1]), (2, 1, stored_size[:, 0])):
            mirrored = (turns & bit) != 0
            low, high = box[:, axis].copy(), box[:, axis + 2].copy()
            box[:, axis] = np.where(mirrored, length - high, low)
            box[:, axis + 2] = np.where(mirrored, length - low, high)
        boxes.append(box)
    return boxes[0].astype(np.int32), boxes[1]


def by_size(rows: npt.NDArray[np.void]) -> Iterator[tuple[tuple[int, int], npt.NDArray[np.int64]]]:
    """Each (height, width) that rows are resized to, and which they are: images that are still to be turned may be as
    high as others are wide."""
    for height, width in np.unique(rows["size"], axis=0).tolist():
        yield (height, width), np.flatnonzero((rows["size"] == (height, width)).all(axis=1))


def stored_rows(draws: Draws, orientations: npt.NDArray[np.uint8]) -> npt.NDArray[np.int32]:
    """(First, end) row of the support boxes in stored pixels, int32 [N, 2]; arguments as of :func:`stored_boxes`."""
    box = draws.support_box if (orientations == 1).all() else stored_boxes(draws, orientations)[0]
    return box[:, 1::2]


def _is_plain(data: bytes) -> bool:
    """Whether a JPEG is gray or YCbCr, 8 bits, Huffman-coded: what every JPEG decoder decodes alike."""
    position, adobe_rgb = 2, False
    while position + 12 <= len(data):
        marker = data[position + 1]
        if marker == 0xFF:
            position += 1
            continue
        if marker == 0x01 or 0xD0 <= marker <= 0xD7:
            position += 2
            continue
        length = data[position + 2] << 8 | data[position + 3]
        if marker == 0xEE and data[position + 4 : position + 9] == b"Adobe" and length >= 14:
            adobe_rgb = data[position + 15] == 0
        if marker in (0xC0, 0xC1, 0xC2):
            components = data[position + 9]
            ids = bytes(data[position + 10 : position + 10 + 3 * components : 3])
            return data[position + 4] == 8 and (
                components == 1 or (components == 3 and not adobe_rgb and ids != b"RGB")
            )
        if 0xC3 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            return False
        position += 2 + length
    return False


def _cpu_decoder(options: dict[str, Any]) -> Decoder:
    from feeder.decode.registry import get_decoder

    try:
        return get_decoder("cpu", **options)
    except BackendError:
        return get_decoder("pillow", **options)
