"""A line of advice for datasets whose format decodes slowly, with the cost measured on this machine."""

from __future__ import annotations

import io
import time

import numpy as np

from feeder.decoders.image_header import PILLOW_FORMATS
from feeder.shard.format.manifest import Manifest
from feeder.shard.format.set_index import SetIndex

__all__ = ["decode_advice"]

_SAMPLES = 5
_MIN_SHARE = 0.05
_QUALITY = 90


def decode_advice(index: SetIndex, manifest: Manifest) -> str | None:
    """Returns advice if at least 5 % of the samples are not JPEGs; else None."""
    slow = {name: count for name, count in manifest.formats.items() if name not in ("jpg", "fpk", "npy")}
    if not manifest.samples or sum(slow.values()) < _MIN_SHARE * manifest.samples:
        return None
    name = max(slow, key=lambda n: slow[n])
    fields = [i for i, field in enumerate(index.fields) if field.rpartition(".")[2].lower() in (name, name[:3])]
    rows = np.flatnonzero(np.isin(index.column("field"), fields))[:_SAMPLES].tolist()
    if not rows:
        return None
    from PIL import Image

    original_s = jpeg_s = 0.0
    measured = 0
    for row in rows:
        shard, offset, length = index.place(row)
        with open(index.shard_path(shard), "rb") as file:
            file.seek(offset)
            data = file.read(length)
        start = time.perf_counter()
        try:
            image = Image.open(io.BytesIO(data), formats=PILLOW_FORMATS).convert("RGB")
        except Exception:  # Pillow raises nearly any error; advice must not fail a finished set
            continue
        original_s += time.perf_counter() - start
        measured += 1
        buffer = io.BytesIO()
        image.save(buffer, "JPEG", quality=_QUALITY)
        start = time.perf_counter()
        Image.open(buffer).convert("RGB")
        jpeg_s += time.perf_counter() - start
    if not measured:
        return None
    original_ms, jpeg_ms = 1000 * original_s / measured, 1000 * jpeg_s / measured
    return (
        f"{sum(slow.values())} of {manifest.samples} images are not JPEGs; a {name} took "
        f"{original_ms:.1f} ms to decode here, the same image as JPEG (quality {_QUALITY}) {jpeg_ms:.1f} ms "
        f"(mean of {measured}): --encode jpeg makes such copies, which are lossy"
    )
