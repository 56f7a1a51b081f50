"""Packed JPEGs for tests."""

from __future__ import annotations

import functools
import hashlib

from feeder import _native as native
from feeder.decoders.packed import add_codebooks, codebook_id
from tests.support import jpegs

__all__ = ["codebook", "packed"]


@functools.cache
def codebook() -> bytes:
    """A codebook trained on some of :data:`jpegs.KINDS`, known to all decoders."""
    trained = native.train_codebook([jpegs.jpeg(kind) for kind in ("4:2:0", "4:4:4", "gray", "high quality")])
    add_codebooks([trained])
    return trained


def packed(data: bytes) -> bytes:
    """A JPEG packed with that codebook."""
    return native.pack(data, codebook_id(codebook()), hashlib.sha256(data).digest())
