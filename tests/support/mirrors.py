"""A mirror that has the bytes that were asked for, and no others."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from feeder.system.files import open_regular

__all__ = ["StrictMirror"]

_PIECE_BYTES = 1 << 20


class StrictMirror:
    """A mirror of a set in another folder. Its files are of zeros but for the ranges that were asked for.

    Args:
        source: The set.
        folder: The mirror's folder.

    Attributes:
        calls: The ranges of each call of :meth:`need`.
        opened: Names of the opened files, in turn.
    """

    place, budget_bytes, reads_crops = "s3://bucket/set", 1 << 40, False

    def __init__(self, source: Path, folder: Path) -> None:
        self.source, self.folder = source, folder
        self.calls: list[list[tuple[str, int, int]]] = []
        self.opened: list[str] = []

    @property
    def index(self) -> str:
        """Path of the index in the mirror."""
        return str(self.folder / "index.bin")

    def need(self, wants: Sequence[tuple[str, int, int]], *, again: bool = False) -> None:
        self.calls.append(list(wants))
        for name, start, end in wants:
            path = self.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            with open(path, "r+b" if path.exists() else "w+b") as file, open(self.source / name, "rb") as whole:
                size = os.fstat(whole.fileno()).st_size
                assert 0 <= start <= end, wants
                file.truncate(size)
                for at in range(start, min(end, size), _PIECE_BYTES):
                    count = min(_PIECE_BYTES, min(end, size) - at)
                    os.pwrite(file.fileno(), os.pread(whole.fileno(), count, at), at)

    def open(self, name: str, expected: bytes = b"") -> int:
        self.opened.append(name)
        return open_regular(str(self.folder / name))
