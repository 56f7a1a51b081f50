"""Small images and datasets for tests."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from pathlib import Path
from typing import IO, NoReturn

import numpy as np
from PIL import Image

__all__ = ["encode", "make_tree", "other_format", "pixels"]


def pixels(seed: int, width: int = 24, height: int = 16) -> Image.Image:
    """A smooth colour gradient with some noise, different for each seed."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[0:height, 0:width]
    phase = rng.uniform(0, 6.3, 3)
    wave = np.stack([128 + 100 * np.sin(x / width * 4 + y / height * 3 + p) for p in phase], axis=-1)
    return Image.fromarray((wave + rng.normal(0, 4, wave.shape)).clip(0, 255).astype(np.uint8))


def encode(image: Image.Image, kind: str = "JPEG", *, orientation: int | None = None, **options: object) -> bytes:
    """The image as a file's bytes."""
    buffer = io.BytesIO()
    if orientation is not None:
        exif = Image.Exif()
        exif[0x0112] = orientation
        options["exif"] = exif
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def make_tree(root: Path, classes: int = 3, per_class: int = 10, *, first_seed: int = 0) -> Path:
    """A class-per-folder tree of JPEGs: ``class-0/img-000.jpg`` and so on."""
    for label in range(classes):
        folder = root / f"class-{label}"
        folder.mkdir(parents=True)
        for i in range(per_class):
            (folder / f"img-{i:03d}.jpg").write_bytes(encode(pixels(first_seed + label * 1000 + i)))
    return root


@contextlib.contextmanager
def other_format() -> Iterator[list[bytes]]:
    """Adds a format to Pillow's that takes any file for its own, as one that starts a program might; the list has what
    it was given, and nothing of files that Pillow opens as one of the formats that it was told to."""
    given: list[bytes] = []

    def opened(file: IO[bytes], name: str | bytes) -> NoReturn:
        file.seek(0)
        given.append(file.read())
        raise SyntaxError("no such format")

    Image.init()
    Image.register_open("OTHER", opened)
    Image.ID.insert(0, Image.ID.pop())  # asked first
    try:
        yield given
    finally:
        Image.ID.remove("OTHER")
        del Image.OPEN["OTHER"]
