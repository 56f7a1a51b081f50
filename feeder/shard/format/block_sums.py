"""Checksums of the blocks of a shard: CRC-32C of each 256 KiB, so that a part of a shard can be checked alone."""

from __future__ import annotations

import hashlib
from array import array

import numpy as np

from feeder.system.arrays import Uint32s
from feeder.system.files import open_regular

BLOCK_BYTES = 1 << 18
_CHUNK_BYTES = 1 << 22


class BlockSums:
    """Collects the checksums of the blocks of a file that comes in pieces."""

    def __init__(self) -> None:
        from feeder import _native

        self._crc32c = _native.crc32c
        self._sums = array("I")
        self._filled = 0

    def update(self, data: bytes | memoryview) -> None:
        """Takes the next piece."""
        view = memoryview(data)
        while view:
            piece = view[: BLOCK_BYTES - self._filled]
            if self._filled:
                self._sums[-1] = self._crc32c(piece, self._sums[-1])
            else:
                self._sums.append(self._crc32c(piece))
            self._filled = (self._filled + len(piece)) % BLOCK_BYTES
            view = view[len(piece) :]

    def sums(self) -> Uint32s:
        """Returns the checksums of all blocks so far, uint32 [blocks]."""
        return np.array(self._sums, np.uint32)


def file_sums(path: str) -> tuple[str, Uint32s]:
    """Returns the SHA-256 of a file, hexadecimal, and the checksums of its blocks, uint32 [blocks].

    Raises:
        OSError: if it can't be read.
    """
    digest, blocks = hashlib.sha256(), BlockSums()
    with open(path, "rb", opener=open_regular) as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
            blocks.update(chunk)
    return digest.hexdigest(), blocks.sums()
