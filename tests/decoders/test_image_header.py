from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image, ImageOps, features

from feeder.decoders.decode import decode
from feeder.decoders.image_header import ImageInfo, image_info, is_plain_jpeg, is_whole, jpeg_has_end
from feeder.transforms import Resize
from tests.support.images import encode, pixels


def test_a_thumbnails_end_marker_is_not_the_images() -> None:
    thumbnail = encode(pixels(1, 8, 8))
    assert thumbnail.endswith(b"\xff\xd9")
    data = encode(pixels(2, 200, 150), exif=b"Exif\0\0" + Image.Exif().tobytes()[6:] + thumbnail)
    end_of_thumbnail = data.index(thumbnail) + len(thumbnail)
    assert is_whole(data, image_info(data))
    cut = data[: len(data) * 2 // 3]
    assert end_of_thumbnail < len(cut)
    assert cut.rfind(b"\xff\xd9") == end_of_thumbnail - 2  # the only end marker that is left
    assert not is_whole(cut, image_info(cut))


@pytest.mark.parametrize("size", [(1, 1), (30, 1), (1, 20)])
@pytest.mark.parametrize(("format", "extension"), [("JPEG", "jpg"), ("PNG", "png")])
def test_images_of_one_row_or_column_are_images(format: str, extension: str, size: tuple[int, int]) -> None:
    data = encode(pixels(1, *size), format)
    assert image_info(data) == ImageInfo(extension, *size, 1)


def test_padding_between_segments_hides_neither_the_end_marker_nor_itself() -> None:
    thumbnail = encode(pixels(1, 8, 8))
    data = encode(pixels(2, 200, 150), exif=b"Exif\0\0" + Image.Exif().tobytes()[6:] + thumbnail)
    padded = data[:2] + b"\0\0\0" + data[2:]
    assert image_info(padded) == image_info(data)
    assert jpeg_has_end(padded + b"\0")
    assert not jpeg_has_end(padded[: len(padded) * 2 // 3])
    assert is_plain_jpeg(data)
    assert not is_plain_jpeg(padded)  # not every decoder skips it


@pytest.mark.skipif(not features.check("avif"), reason="Pillow without AVIF")
def test_avif_is_read_as_pillow_reads_it() -> None:
    data = encode(pixels(3, 60, 40), "AVIF", orientation=6)
    assert image_info(data) == ImageInfo("avif", 60, 40, 6)
    expected = ImageOps.exif_transpose(Image.open(io.BytesIO(data)).convert("RGB"))
    made = decode([data], Resize((60, 40)))
    np.testing.assert_array_equal(made[0].permute(1, 2, 0), np.asarray(expected))
    with pytest.raises(ValueError, match=r"damaged image|not an image|is AVIF"):
        image_info(data[: len(data) // 9])
