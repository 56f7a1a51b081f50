"""Shards whose samples hold two images, a left one and a right one."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image

from feeder.shard.write.index_tars import index_tars
from tests.support.shard_sets import write_tar

__all__ = ["encoded_pixels", "pair_pixels", "write_pairs"]


def pair_pixels(i: int, size: tuple[int, int] = (40, 56)) -> npt.NDArray[np.uint8]:
    """Squares of random colors, uint8 [height, width, 3], another image for each number."""
    squares = np.random.default_rng(i).integers(0, 256, (-(-size[0] // 8), -(-size[1] // 8), 3), np.uint8)
    return squares.repeat(8, axis=0).repeat(8, axis=1)[: size[0], : size[1]]


def encoded_pixels(pixels: npt.NDArray[np.uint8], extension: str = "png", orientation: int = 1) -> bytes:
    """An image file of pixels as they are stored."""
    file, exif = io.BytesIO(), Image.Exif()
    exif[0x0112] = orientation
    options = {"exif": exif} if orientation != 1 else {}
    Image.fromarray(pixels).save(file, {"png": "PNG", "jpg": "JPEG"}[extension], **options)
    return file.getvalue()


def write_pairs(
    folder: Path,
    count: int = 16,
    *,
    extension: str = "png",
    right: Mapping[int, bytes | None] | None = None,
    alike: bool = False,
) -> Path:
    """Writes one shard and its index; sample i has the members "left.png" and "right.png", and the label i % 5.

    Args:
        folder: Its folder.
        count: Number of samples.
        extension: Of the images.
        right: Other bytes for some right images; None leaves the member out.
        alike: True for two times the same image in each sample.
    """
    folder.mkdir(parents=True, exist_ok=True)
    members: list[tuple[str, bytes]] = []
    for i in range(count):
        members.append((f"{i:04d}.left.{extension}", encoded_pixels(pair_pixels(i), extension)))
        other = encoded_pixels(pair_pixels(i if alike else 1000 + i), extension)
        given = (right or {}).get(i, other)
        if given is not None:
            members.append((f"{i:04d}.right.{extension}", given))
        members.append((f"{i:04d}.cls", str(i % 5).encode()))
    write_tar(folder / "shard-000000.tar", members)
    index_tars(str(folder))
    return folder
