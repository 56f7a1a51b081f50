"""Small shard sets for the loader's tests: every image is told apart by its pixels."""

from __future__ import annotations

import io
import json
import os
import tarfile
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from feeder.shard.format.block_sums import file_sums
from feeder.shard.format.index_builder import IndexBuilder
from feeder.shard.format.index_file import INDEX_NAME
from feeder.shard.format.manifest import ShardRecord
from feeder.shard.write.set_writer import index_path, write_set
from feeder.transforms import Compose, RandomHorizontalFlip, RandomResizedCrop

CROP_AND_FLIP = Compose([RandomResizedCrop(16), RandomHorizontalFlip()])


def encode(i: int, size: tuple[int, int] = (24, 32), *, extension: str = "png", orientation: int = 1) -> bytes:
    """An image (height, width) whose pixels say which one it is: red i % 256, green i // 256, blue a gradient."""
    height, width = size
    pixels = np.zeros((height, width, 3), np.uint8)
    pixels[..., 0], pixels[..., 1] = i % 256, i // 256
    pixels[..., 2] = np.arange(width) * 255 // max(1, width - 1)
    image, file = Image.fromarray(pixels), io.BytesIO()
    exif = Image.Exif()
    exif[0x0112] = orientation
    image.save(file, {"jpg": "JPEG", "png": "PNG"}[extension], **({"exif": exif} if orientation != 1 else {}))
    return file.getvalue()


def without_tables(jpeg: bytes) -> bytes:
    """A JPEG that no decoder can decode, and only a decoder finds out: its markers, sizes and end are in order."""
    kept, position = [jpeg[:2]], 2
    while True:
        marker, end = jpeg[position + 1], position + 2 + int.from_bytes(jpeg[position + 2 : position + 4], "big")
        if marker == 0xDA:
            return b"".join([*kept, jpeg[position:]])
        if marker not in (0xC4, 0xDB):
            kept.append(jpeg[position:end])
        position = end


def write_shards(
    folder: Path,
    samples: int,
    per_shard: int = 16,
    *,
    bad: tuple[int, ...] = (),
    cut: tuple[int, ...] = (),
    jpegs: bool = False,
    sizes: Sequence[tuple[int, int]] = ((24, 32),),
    turned: tuple[int, ...] = (),
) -> Path:
    """Shards of PNGs with cls and json members, and their index; samples in ``bad`` hold no image.

    With ``jpegs`` two of three images are JPEGs; those in ``cut`` are :func:`without_tables`. Image i has the upright
    (height, width) number i of ``sizes``, which are taken in turn; those in ``turned`` are stored on their side.

    Label of sample i: i % 7; key: eight digits; original path: class/i.png.
    """
    folder.mkdir(parents=True, exist_ok=True)
    shards = []
    for shard, first in enumerate(range(0, samples, per_shard)):
        name = f"shard-{shard:06d}.tar"
        builder = IndexBuilder()
        with tarfile.open(folder / name, "w") as tar:
            for i in range(first, min(samples, first + per_shard)):
                kind = "jpg" if jpegs and i % 3 else "png"
                height, width = sizes[i % len(sizes)]
                stored = (width, height) if i in turned else (height, width)
                orientation = 6 if i in turned else 1
                data = encode(i, stored, extension=kind, orientation=orientation)
                data = b"no image at all" if i in bad else data
                data = without_tables(data) if i in cut else data
                members, checksum = [], zlib.crc32(data)
                offset = _add(tar, f"{i:08d}.{kind}", data)
                for field, value in (("cls", str(i % 7).encode()), ("json", json.dumps({"i": i}).encode())):
                    members.append((field, _add(tar, f"{i:08d}.{field}", value), len(value)))
                    checksum = zlib.crc32(value, checksum)
                builder.add(
                    key=f"{i:08d}".encode(),
                    path=f"{i % 7}/{i}.png".encode(),
                    field=kind,
                    offset=offset,
                    length=len(data),
                    label=i % 7,
                    width=stored[1],
                    height=stored[0],
                    orientation=orientation,
                    source_bytes=len(data),
                    crc32=checksum,
                    members=members,
                )
        sha256, blocks = file_sums(str(folder / name))
        shards.append(ShardRecord(name, len(builder), os.path.getsize(folder / name), sha256))
        builder.write(index_path(str(folder), name), blocks, shards[-1].size_bytes)
    write_set(str(folder / INDEX_NAME), shards, [f"class{k}" for k in range(7)])
    return folder


def write_tree(
    folder: Path,
    samples: int,
    *,
    bad: tuple[int, ...] = (),
    sizes: Sequence[tuple[int, int]] = ((24, 32),),
    turned: tuple[int, ...] = (),
    extension: str = "png",
) -> Path:
    """The images of :func:`write_shards` as files of one class, in the same order."""
    (folder / "class").mkdir(parents=True, exist_ok=True)
    for i in range(samples):
        height, width = sizes[i % len(sizes)]
        stored, orientation = ((width, height), 6) if i in turned else ((height, width), 1)
        data = b"no image at all" if i in bad else encode(i, stored, extension=extension, orientation=orientation)
        (folder / "class" / f"{i:08d}.{extension}").write_bytes(data)
    return folder


def _add(tar: tarfile.TarFile, name: str, data: bytes) -> int:
    info = tarfile.TarInfo(name)
    info.size = len(data)
    tar.addfile(info, io.BytesIO(data))
    return tar.offset - (-(-len(data) // 512) * 512)
