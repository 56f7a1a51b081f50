"""Shards of images with masks, boxes and keypoints that say the same: a rectangle of each number, and its corner."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps

from feeder import transforms as T
from feeder.shard.write.index_tars import index_tars
from tests.support.shard_sets import write_tar

__all__ = ["SCALE", "TARGETS", "boxes_in", "members", "write_target_folder", "write_target_shards"]

# Red, green and blue of a pixel: its number in the mask times this.
SCALE = 60
TARGETS = {"seg.png": T.Mask(), "boxes.json": T.BoundingBoxes(), "kp.json": T.KeyPoints()}
_SIZE = 24, 32


def numbers(i: int) -> npt.NDArray[np.uint8]:
    """The mask of sample i: numbers 1 to 3 on zeros, apart from each other."""
    rng = np.random.default_rng(i)
    mask = np.zeros(_SIZE, np.uint8)
    for number in (1, 2, 3):
        y, x = rng.integers(0, 18), 10 * (number - 1) + rng.integers(0, 4)
        mask[y : y + 6, x : x + 6] = number
    return mask


def boxes_in(mask: npt.NDArray[Any]) -> dict[int, list[float]]:
    """The box around each number of a mask, (left, top, right, bottom)."""
    found = {}
    for number in np.unique(mask[mask > 0]).tolist():
        y, x = np.nonzero(mask == number)
        found[number] = [float(x.min()), float(y.min()), float(x.max()) + 1, float(y.max()) + 1]
    return found


def png(array: npt.NDArray[np.uint8], orientation: int = 1) -> bytes:
    image, file = Image.fromarray(array), io.BytesIO()
    exif = Image.Exif()
    exif[0x0112] = orientation
    image.save(file, "PNG", **({"exif": exif} if orientation != 1 else {}))
    return file.getvalue()


def members(i: int, orientation: int = 1, canvas: str = "stored") -> dict[str, bytes]:
    """The members of sample i, by name."""
    mask = numbers(i)
    image = png(np.repeat(mask[..., None] * np.uint8(SCALE), 3, axis=2), orientation)
    if canvas == "upright":
        with Image.open(io.BytesIO(png(mask, orientation))) as stored:
            mask = np.asarray(ImageOps.exif_transpose(stored))
    boxes = boxes_in(mask)
    labels = list(boxes)
    areas = [(x1 - x0) * (y1 - y0) for x0, y0, x1, y1 in boxes.values()]
    corners = [[box[0], box[1]] for box in boxes.values()]
    return {
        "png": image,
        "cls": str(i % 7).encode(),
        "seg.png": png(mask),
        "boxes.json": json.dumps({"boxes": list(boxes.values()), "labels": labels, "area": areas, "id": i}).encode(),
        "kp.json": json.dumps({"keypoints": corners, "labels": labels}).encode(),
    }


def write_target_shards(
    folder: Path,
    count: int = 24,
    *,
    orientations: Mapping[int, int] | None = None,
    canvas: str = "stored",
    replaced: Mapping[tuple[int, str], bytes | None] | None = None,
) -> Path:
    """Writes one shard and its index.

    Args:
        folder: Its folder.
        count: Number of samples.
        orientations: EXIF orientation of some images.
        canvas: Pixels of their targets: "stored" or "upright".
        replaced: Other bytes for some members of some samples; None leaves the member out.
    """
    folder.mkdir(parents=True, exist_ok=True)
    listed = []
    for i in range(count):
        found: dict[str, bytes | None] = {**members(i, (orientations or {}).get(i, 1), canvas)}
        found |= {name: data for (sample, name), data in (replaced or {}).items() if sample == i}
        listed += [(f"{i:04d}.{name}", data) for name, data in found.items() if data is not None]
    write_tar(folder / "shard-000000.tar", listed)
    index_tars(str(folder))
    return folder


def write_target_folder(folder: Path, count: int = 9) -> Path:
    """Writes images of several aspect ratios into a class folder, with the members of :data:`TARGETS` beside them.

    Args:
        folder: The folder of the class folder.
        count: Number of samples.
    """
    (folder / "class-0").mkdir(parents=True)
    for i in range(count):
        height, width = ((30, 45), (45, 30), (36, 36))[i % 3]
        levels = np.random.default_rng(i).integers(0, 256, (height, width, 3), np.uint8)
        found = {
            "png": png(levels),
            "seg.png": png(levels[..., 0] % np.uint8(4)),
            "boxes.json": json.dumps({"boxes": [[2, 2, 4, 4], [0, 5, 20, 25]], "labels": [1, 2]}).encode(),
            "kp.json": json.dumps({"keypoints": [[3, 4], [25, 28]]}).encode(),
        }
        for name, data in found.items():
            (folder / f"class-0/{i:04d}.{name}").write_bytes(data)
    return folder
