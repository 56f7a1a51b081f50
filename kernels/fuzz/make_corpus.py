"""Writes a small starting corpus for the fuzz targets: JPEGs of every kind that the decoder knows, and an .npy."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import numpy as np
from PIL import Image

__all__ = ["main"]


def main(folder: str) -> None:
    """Writes the corpus into ``folder``."""
    out = Path(folder)
    out.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    small = rng.integers(0, 256, (7, 9, 3), dtype=np.uint8)
    image = Image.fromarray(small).resize((75, 43), Image.Resampling.BICUBIC)
    kinds = {
        "420": (image, {"subsampling": "4:2:0"}),
        "422": (image, {"subsampling": "4:2:2"}),
        "444": (image, {"subsampling": "4:4:4"}),
        "411": (image, {"subsampling": "4:1:1"}),
        "rgb": (image, {"keep_rgb": True}),
        "progressive": (image, {"progressive": True}),
        "restart": (image, {"restart_marker_blocks": 1}),
        "restart_rows": (image, {"restart_marker_rows": 1, "optimize": True}),
        "gray": (image.convert("L"), {}),
        "gray_restart": (image.convert("L"), {"restart_marker_blocks": 2}),
        "cmyk": (image.convert("CMYK"), {}),
    }
    choice = bytes([1, 0, 5, 0, 3, 0, 40, 0, 30, 0, 9, 9])
    for name, (picture, options) in kinds.items():
        buffer = io.BytesIO()
        picture.save(buffer, "jpeg", quality=80, **options)
        (out / name).write_bytes(buffer.getvalue() + choice)
    array = io.BytesIO()
    np.save(array, np.asarray(image))
    (out / "npy").write_bytes(array.getvalue() + choice)


if __name__ == "__main__":
    main(sys.argv[1])
