"""The formats that Pillow may open: the usual ones, wherever bytes of a set reach it."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable

import numpy as np
import pytest
from PIL import Image, UnidentifiedImageError

from feeder.decoders.decoder import View
from feeder.decoders.image_header import image_info
from feeder.decoders.pillow.pillow_decoder import PillowDecoder
from feeder.decoders.targets.mask import decode_mask
from feeder.errors import DecodeError
from feeder.tools.bench.bench_options import BenchOptions
from feeder.tools.bench.pillow import preprocess
from feeder.transforms import Recipe
from tests.support.images import other_format

DATA = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\n"
PNG_HEAD = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR"


def decode(data: bytes) -> None:
    recipe = Recipe.of([])
    draws = recipe.draw(0, 0, [0], [[8, 8]])
    view = View(recipe, draws, np.empty((1, 3, 8, 8), np.uint8))
    (error,) = PillowDecoder().decode([data], np.ones(1, np.uint8), [view]).errors
    if error is not None:
        raise error


READERS: dict[str, Callable[[bytes], object]] = {
    "decoder": decode,
    "header": image_info,
    "mask": lambda data: decode_mask(PNG_HEAD + bytes([0, 0, 0, 8, 0, 0, 0, 8, 1, 3]) + data, "uint8"),
    "bench": lambda data: preprocess(data, BenchOptions()),
}


@pytest.mark.parametrize("reader", READERS)
def test_no_other_format_is_opened(reader: str) -> None:
    with other_format() as given:
        with contextlib.suppress(DecodeError, ValueError, UnidentifiedImageError):
            READERS[reader](DATA)
        assert given == []
        Image.open(io.BytesIO(DATA)).close()
        assert given == [DATA]
