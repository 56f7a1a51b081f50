"""The CPU's decode of staged JPEGs, for batches on which the decoder they were staged for has failed."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from feeder.decoders.decoder import Buffer
from feeder.decoders.image_header import quiet_pillow
from feeder.decoders.staged.staged import by_size
from feeder.errors import DecodeError

__all__ = ["decode_on_cpu"]


def decode_on_cpu(
    rows: npt.NDArray[np.void], payloads: Sequence[Buffer], threads: int, fidelity: str = "fast"
) -> tuple[npt.NDArray[np.uint8], list[DecodeError | None]]:
    """Decodes, crops and resizes, by feeder's CPU kernels, or by Pillow where they are not built.

    Pixels are those of fidelity "exact", as close as possible to the decoder's. Errors are those of ``fidelity``, the
    CPU backend's own: the two look at different parts of a damaged file.

    Args:
        rows: [N] of :data:`feeder.decoders.staged.staged.ROW`, of JPEGs.
        payloads: N JPEGs.
        threads: Number of threads.
        fidelity: The CPU backend's, "fast" or "exact".

    Returns:
        uint8 [N, H * W * 3] of the largest image, as stored (not turned), a smaller one in the first bytes of its row;
        and for each image None or the reason why it can't be decoded.
    """
    pixels = np.zeros((len(rows), 3 * int(rows["size"].prod(axis=1).max())), np.uint8)
    errors: list[DecodeError | None] = [None] * len(rows)
    try:
        from feeder import _native
    except ImportError:
        for row, payload in enumerate(payloads):
            try:
                found = _with_pillow(rows[row], payload)
                pixels[row, : len(found)] = found
            except DecodeError as error:
                errors[row] = error
        return pixels, errors
    for size, here in by_size(rows):

        def decoded(way: str, here: npt.NDArray[np.int64] = here, size: tuple[int, int] = size) -> Any:
            out = np.zeros((len(here), *size, 3), np.uint8)
            statuses, reasons = _native.decode_batch(
                [payloads[row] for row in here.tolist()],
                np.ascontiguousarray(rows["source"][here]),
                np.ascontiguousarray(rows["window"][here]),
                np.zeros(len(here), np.uint8),
                np.ones(len(here), np.uint8),
                out,
                layout="nhwc",
                dtype="uint8",
                threads=threads,
                fidelity=way,
            )
            return out.reshape(len(here), -1), statuses, reasons

        found, statuses, reasons = decoded(fidelity)
        if fidelity != "exact":
            exact, failed, _ = decoded("exact")
            found[failed == 0] = exact[failed == 0]
        pixels[here, : found.shape[1]] = found
        for row, status, reason in zip(here.tolist(), statuses.tolist(), reasons, strict=True):
            errors[row] = DecodeError(reason) if status else None
    return pixels, errors


def _with_pillow(row: np.void, payload: Buffer) -> npt.NDArray[np.uint8]:
    """Returns the pixels of one image, or raises DecodeError."""
    from PIL import Image

    left, top, right, bottom = row["window"].tolist()
    height, width = row["size"].tolist()
    try:
        with quiet_pillow(), Image.open(io.BytesIO(payload), formats=["JPEG"]) as stored:
            window = stored.convert("RGB").crop((left, top, right, bottom))
        box = (row["source"] - (left, top, left, top)).tolist()
        resized = window.resize((width, height), Image.Resampling.BILINEAR, box=box)
    except Exception as error:  # Pillow raises nearly every kind on damaged files
        raise DecodeError(str(error) or type(error).__name__) from None
    return np.asarray(resized).reshape(-1)
