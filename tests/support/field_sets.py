"""Sets whose samples have members of one's own, and functions of such members."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np

from feeder.shard.write.index_tars import index_tars
from tests.support.loader_data import encode
from tests.support.shard_sets import write_tar

__all__ = ["length_of", "members_set", "npy"]


def members_set(folder: Path, samples: Iterable[Mapping[str, bytes]]) -> Path:
    """A shard set of small PNGs, keys "0000", "0001", ..., with these further members."""
    folder.mkdir(parents=True, exist_ok=True)
    found = []
    for i, members in enumerate(samples):
        for name, data in {"png": encode(i, (8, 8)), **members}.items():
            found.append((f"{i:04d}.{name}", data))
    write_tar(folder / "set.tar", found)
    index_tars(str(folder))
    return folder


def npy(array: np.ndarray) -> bytes:
    """An array as an ``.npy`` file, pickled if it holds objects."""
    file = io.BytesIO()
    np.save(file, array, allow_pickle=True)
    return file.getvalue()


def length_of(data: bytes) -> int:
    """A function of a member's bytes that refuses the word "bad"."""
    if data == b"bad":
        raise KeyError("no such thing")
    return len(data)
