"""The decode seam: a batch of encoded bytes plus drawn parameters in, pixels in the caller's buffer out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

from feeder.errors import DecodeError

if TYPE_CHECKING:
    from feeder.transforms import Draws, Recipe

__all__ = ["MAX_PIXELS", "Buffer", "Decoder"]

Buffer = bytes | bytearray | memoryview

# The largest image that is decoded unless the caller says otherwise: Pillow's own limit, 256 MiB of RGB.
MAX_PIXELS = 89_478_485


class Decoder(Protocol):
    """One way to turn encoded images into a batch.

    A decoder holds no state that changes a pixel: the same buffers and draws give the same output, whatever came
    before, and whatever the batch size or thread count.
    """

    name: str

    def check(self, recipe: Recipe) -> None:
        """Refuses, by the op's name, a recipe that this backend can't run.

        Raises:
            BackendError: naming the op and the backends that can run it.
        """

    def decode(
        self,
        buffers: Sequence[Buffer],
        orientations: npt.NDArray[np.uint8],
        recipe: Recipe,
        draws: Draws,
        out: npt.NDArray[np.generic],
    ) -> list[DecodeError | None]:
        """Decodes and augments N images into ``out``.

        Args:
            buffers: N encoded images (JPEG, PNG, ...).
            orientations: uint8 [N], EXIF orientation 1-8 to apply; 1 leaves the image as stored.
            recipe: What is done to every image.
            draws: What was drawn for these N images; boxes are in upright coordinates (after orientation).
            out: [N, C, H, W], C-contiguous, of ``recipe.output_dtype``: uint8 0-255, or normalized floats.

        Returns:
            One entry per image: None, or why it could not be decoded (its part of ``out`` is then undefined).
        """
        ...
