"""The worker's side of a decoder in the trainer: encoded images are checked, cut and staged.

Images that the other device can't or should not decode are decoded here and travel as pixels: other formats, outliers
in size, and files whose header or markers are faulty, so that the CPU backend has the last word on them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from feeder import _native
from feeder.decoders.decoder import MAX_PIXELS, Buffer, Decoder, DecodeResult, View, check_options
from feeder.decoders.image_header import image_info, is_plain_jpeg, jpeg_has_end
from feeder.decoders.packed import is_packed, packed_head, unpack
from feeder.decoders.registry import get_decoder
from feeder.decoders.staged.staged import ROW, RowKind, Staged
from feeder.decoders.stored_boxes import stored_boxes, turn_codes
from feeder.errors import DecodeError
from feeder.system.arrays import Int32s, Int64s, Records, Uint8s
from feeder.system.checks import check_int
from feeder.transforms import Draws, Normalize, Recipe, ToDtype

# Larger images are decoded here: 12 of this size would take the memory of a whole batch of usual ones.
_OUTLIER_PIXELS = 24_000_000

# First row of a whole image.
_WHOLE = -1


class Stager:
    """Makes staged batches.

    Args:
        max_pixels: Larger images are refused.
        threads: Number of threads for the images that are decoded here.
        fidelity: "fast", or "exact", which cuts nothing: at a cut's edge the chroma of its neighbours is missing.
        outlier_pixels: Images with more stored pixels are decoded here.
        apart: True to cut a seekable image once for each view where that takes fewer pixels than one cut for all; False
            for a decoder whose batches have each image once.

    Attributes:
        plans: True if its JPEGs are staged as plans, see ``_native.plan_images``.
        takes_rows: True if :meth:`stage` takes images without the rows that are not needed.
    """

    plans = False

    def __init__(
        self,
        *,
        max_pixels: int = MAX_PIXELS,
        threads: int = 1,
        fidelity: str = "fast",
        outlier_pixels: int = _OUTLIER_PIXELS,
        apart: bool = True,
    ) -> None:
        check_options(max_pixels, threads, fidelity)
        check_int("outlier_pixels", outlier_pixels, 0)
        self.max_pixels = max_pixels
        self.outlier_pixels = outlier_pixels
        self._options: dict[str, Any] = {"max_pixels": max_pixels, "threads": threads, "fidelity": fidelity}
        self.takes_rows = fidelity == "fast"
        self._apart = apart
        self._here: Decoder | None = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_here": None}

    def with_threads(self, threads: int) -> Stager:
        """Returns a stager with another number of threads."""
        options = {**self._options, "threads": threads, "outlier_pixels": self.outlier_pixels}
        other = type(self)(**options)
        other._apart = self._apart
        return other

    def on_cpu(self) -> Stager:
        """Returns a stager that decodes all images here."""
        return Stager(**self._options, outlier_pixels=0)

    def prepare(self) -> Decoder:
        """Makes the backend for the images that are decoded here; otherwise the first of them makes it."""
        if self._here is None:
            self._here = get_decoder("cpu", **self._options)
        return self._here

    def stage(
        self,
        buffers: Sequence[Buffer],
        orientations: Uint8s,
        recipes: Sequence[Recipe],
        draws: Sequence[Draws],
        first_rows: Int32s | None = None,
    ) -> tuple[Staged, DecodeResult]:
        """Checks, cuts and turns N images.

        Args:
            buffers: N encoded images.
            orientations: uint8 [N], EXIF orientation 1-8 to apply.
            recipes: The ops of each view; only their base paths matter here.
            draws: Drawn parameters of each view.
            first_rows: int32 [N], see :class:`feeder.dataset.reader.ReadSamples`; None: all are whole.

        Returns:
            The batch, and what became of its images: for each None or why it can't be decoded, when the kind of its
            rows is FAILED. Only the images that were decoded here count as clipped or slow.
        """
        count = len(recipes)
        rows = np.zeros((len(buffers), count), ROW)
        for view, drawn in zip(rows.T, draws, strict=True):
            view["turn"] = turn_codes(orientations, drawn.flip)
            swapped = (view["turn"] & 4) != 0
            view["size"] = np.where(swapped[:, None], drawn.base_size[:, ::-1], drawn.base_size)
            view["window"], view["source"] = stored_boxes(drawn, orientations)

        payloads: list[Buffer] = []
        results = []
        for number in range(len(buffers)):
            kind, found, result = self._one(number, buffers, orientations, recipes, draws, first_rows, rows[number])
            rows["kind"][number] = kind
            payloads += found
            results.append(result)
        return Staged(rows.reshape(-1), payloads, count), DecodeResult.join(results)

    def _one(
        self,
        number: int,
        buffers: Sequence[Buffer],
        orientations: Uint8s,
        recipes: Sequence[Recipe],
        draws: Sequence[Draws],
        first_rows: Int32s | None,
        rows: Records,
    ) -> tuple[RowKind, list[Buffer], DecodeResult]:
        data, first_row = _image(number, buffers, first_rows)
        is_small = all(drawn.base_size[number].prod() <= self.max_pixels for drawn in draws)
        if is_small and self._is_for_the_decoder(
            data, first_row, int(orientations[number]), draws[0].image_size[number]
        ):
            try:
                jpegs = self._cut(data, first_row, rows)
            except DecodeError as error:
                return RowKind.FAILED, [b""] * len(rows), DecodeResult([error])
            if jpegs is not None:
                return RowKind.JPEG, jpegs, DecodeResult([None])

        pixels, result = self._pixels(number, buffers, orientations, recipes, draws, first_rows)
        rows["turn"] = rows["back"] = 0
        rows["size"] = [drawn.base_size[number] for drawn in draws]
        return RowKind.FAILED if result.errors[0] else RowKind.PIXELS, pixels, result

    def _pixels(
        self,
        number: int,
        buffers: Sequence[Buffer],
        orientations: Uint8s,
        recipes: Sequence[Recipe],
        draws: Sequence[Draws],
        first_rows: Int32s | None,
    ) -> tuple[list[Buffer], DecodeResult]:
        """Decodes one image here.

        Returns:
            uint8 [H, W, 3] of each view after the base path, empty where it failed, and the result.
        """
        one, views = slice(number, number + 1), []
        for recipe, drawn in zip(recipes, (drawn.take(one) for drawn in draws), strict=True):
            height, width = drawn.base_size[0].tolist()
            if height * width > self.max_pixels:
                reason = f"the recipe makes {width}x{height} pixels, more than max_pixels={self.max_pixels}"
                return [b""] * len(draws), DecodeResult([DecodeError(reason)])
            steps = zip(recipe.ops[: recipe.base_length], drawn.ops, strict=False)
            kept = [(op, params) for op, params in steps if not isinstance(op, (ToDtype, Normalize))]
            own = replace(drawn, ops=tuple(params for _, params in kept), output_size=drawn.base_size)
            views.append(View(Recipe(tuple(op for op, _ in kept)), own, np.empty((1, 3, height, width), np.uint8)))

        data, first_row = _image(number, buffers, first_rows)
        rows = None if first_row == _WHOLE else np.array([first_row], np.int32)
        result = self.prepare().decode([data], orientations[one], views, rows)
        if result.errors[0]:
            return [b""] * len(draws), result
        return [np.ascontiguousarray(view.out[0].transpose(1, 2, 0)).tobytes() for view in views], result

    def _is_for_the_decoder(self, data: bytes, first_row: int, orientation: int, image_size: Int32s) -> bool:
        """Returns whether this is a plain JPEG of the expected size, no outlier, with a sound header and an end."""
        packed = is_packed(data)
        if data[:2] != b"\xff\xd8" and not packed:
            return False
        try:
            info = image_info(data)
        except ValueError:
            return False
        stored = (info.height_px, info.width_px)
        return (
            (stored[::-1] if orientation > 4 else stored) == tuple(image_size.tolist())
            and info.width_px * info.height_px <= min(self.outlier_pixels, self.max_pixels)
            and (packed or first_row != _WHOLE or jpeg_has_end(data))
            and is_plain_jpeg(packed_head(data).jpeg_header if packed else data)
        )

    def _cut(self, data: bytes, first_row: int, rows: Records) -> list[Buffer] | None:
        """Cuts a JPEG to what its views need, and fills their rows in: the columns of :data:`ROW`.

        Returns:
            The payload of each row; None where the CPU has to decode the image, as its markers are not sound.

        Raises:
            DecodeError: if only some of its lines are here, and they are not where the index says.

        A JPEG that is seekable or packed is cut to the window around those of all views or, where that takes fewer
        pixels, to each one, and the boxes are moved along. Another one is decoded from its start to the last row that
        is needed, so it is decoded once.
        """
        packed = is_packed(data)
        if packed and not self.takes_rows:
            return _whole(unpack(data), rows)
        apart = len(rows) > 1 and self._apart and _areas(rows["window"]).sum() < _areas(_around(rows["window"]))
        jpegs: list[Buffer] = []
        for group in np.split(rows, len(rows)) if apart else [rows]:
            window = _around(group["window"])
            try:
                cut = _native.cut(data, tuple(window.tolist()), first_row if packed else max(first_row, 0))
                unsound = False
            except ValueError:
                cut, unsound = None, True
            if cut is None and first_row != _WHOLE:
                raise DecodeError("JPEG: its rows are not where the index says")
            if cut is None or not self.takes_rows:
                return None if unsound else _whole(data, rows)

            smaller, x, y = cut
            group["decoded"] = window - (x, y, x, y)
            group["window"] -= (x, y, x, y)
            group["source"] -= (x, y, x, y)
            group["back"] = np.arange(len(group))
            jpegs += [smaller, *[b""] * (len(group) - 1)]
        return jpegs


def _whole(jpeg: bytes, rows: Records) -> list[Buffer]:
    """Returns the payloads of an image's rows where all views come from one JPEG as it is."""
    rows["decoded"], rows["back"] = _around(rows["window"]), np.arange(len(rows))
    return [jpeg, *[b""] * (len(rows) - 1)]


def _around(windows: Int32s) -> Int32s:
    """Returns the window around N windows (left, top, right, bottom)."""
    return np.concatenate([windows[:, :2].min(axis=0), windows[:, 2:].max(axis=0)])


def _areas(windows: Int32s) -> Int64s:
    """Returns the pixels of windows, int64 [...] for int32 [..., 4]."""
    areas: Int64s = (windows[..., 2:] - windows[..., :2]).astype(np.int64).prod(axis=-1)
    return areas


def _image(number: int, buffers: Sequence[Buffer], first_rows: Int32s | None) -> tuple[bytes, int]:
    """Returns the bytes of an image and their first number."""
    buffer = buffers[number]
    data = buffer if isinstance(buffer, bytes) else bytes(buffer)
    return data, _WHOLE if first_rows is None else int(first_rows[number])
