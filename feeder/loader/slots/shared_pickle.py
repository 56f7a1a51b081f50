"""A pickled value in shared memory: workers get their work this way."""

from __future__ import annotations

import array
import pickle
from typing import Any

from feeder.loader.slots.region import Region

__all__ = ["pack", "unpack"]


def pack(value: Any) -> Region:
    """Pickles a value into shared memory; large arrays are there once, and every worker maps them."""
    buffers: list[pickle.PickleBuffer] = []
    data = pickle.dumps(value, protocol=5, buffer_callback=buffers.append)
    pieces = [memoryview(data), *(buffer.raw() for buffer in buffers)]
    sizes = array.array("q", [len(pieces), *(piece.nbytes for piece in pieces)]).tobytes()
    region = Region(len(sizes) + sum(piece.nbytes for piece in pieces))
    region.memory.write(sizes)
    for piece in pieces:
        region.memory.write(piece)
    return region


def unpack(region: Region) -> Any:
    """Returns the value that :func:`pack` put there; its large arrays are views of the region's memory."""
    memory = memoryview(region.memory)
    count = int.from_bytes(memory[:8], "little")
    sizes = memory[8 : 8 + 8 * count].cast("q").tolist()
    at = 8 + 8 * count
    pieces = []
    for size in sizes:
        pieces.append(memory[at : at + size])
        at += size
    return pickle.loads(pieces[0], buffers=pieces[1:])
