"""Small shard sets for the loader's tests: every image is told apart by its pixels."""

from __future__ import annotations

import io
import json
import os
import signal
import tarfile
import time
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from feeder.dataset.reader import Encoded, Wanted
from feeder.dataset.shard_reader import ShardReader
from feeder.shard.format.index_builder import IndexBuilder, merge_indexes
from feeder.shard.format.index_file import INDEX_NAME, ShardEntry


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
) -> Path:
    """Shards of PNGs with cls and json members, and their index; samples in ``bad`` hold no image.

    With ``jpegs`` two of three images are JPEGs; those in ``cut`` are :func:`without_tables`.

    Label of sample i: i % 7; key: eight digits; original path: class/i.png.
    """
    folder.mkdir(parents=True, exist_ok=True)
    parts = []
    for shard, first in enumerate(range(0, samples, per_shard)):
        name = f"shard-{shard:06d}.tar"
        builder = IndexBuilder(shard)
        with tarfile.open(folder / name, "w") as tar:
            for i in range(first, min(samples, first + per_shard)):
                kind = "jpg" if jpegs and i % 3 else "png"
                data = b"no image at all" if i in bad else encode(i, extension=kind)
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
                    width=32,
                    height=24,
                    orientation=1,
                    source_bytes=len(data),
                    crc32=checksum,
                    members=members,
                )
        part = str(folder / f"part-{shard}")
        builder.write(part, [ShardEntry(name, os.path.getsize(folder / name))])
        parts.append(part)
    merge_indexes(parts, str(folder / INDEX_NAME))
    for part in parts:
        os.unlink(part)
    (folder / "manifest.json").write_text(json.dumps({"classes": [f"class{k}" for k in range(7)]}))
    return folder


def _add(tar: tarfile.TarFile, name: str, data: bytes) -> int:
    info = tarfile.TarInfo(name)
    info.size = len(data)
    tar.addfile(info, io.BytesIO(data))
    return tar.offset - (-(-len(data) // 512) * 512)


class RogueReader(ShardReader):
    """Does something to its own process when it reads a given sample; or waits until another reads the fifth after."""

    def __init__(self, index: str, sample: int, deed: str, mark: str = "") -> None:
        super().__init__(index)
        self.sample, self.deed, self.mark = sample, deed, mark

    def __reduce__(self) -> tuple[Any, ...]:
        return RogueReader, (self.index.path, self.sample, self.deed, self.mark)

    def read(self, ids: np.ndarray, wanted: Wanted | None = None) -> Encoded:
        if self.sample in ids:
            first = not self.mark
            if self.deed == "wait":
                while not os.path.exists(self.mark):
                    time.sleep(0.001)
            elif self.mark:
                try:
                    os.close(os.open(self.mark, os.O_CREAT | os.O_EXCL))
                    first = True
                except FileExistsError:
                    pass
            if first and self.deed == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            elif first and self.deed == "stop":
                os.kill(os.getpid(), signal.SIGSTOP)
            elif first and self.deed == "abort":
                os.abort()
            elif first and self.deed == "raise":
                raise RuntimeError("a bug in the reader")
            elif first and self.deed == "exit":
                os._exit(3)
        elif self.deed == "wait" and self.sample + 5 in ids:
            open(self.mark, "w").close()
        return super().read(ids, wanted)


class WideReader(ShardReader):
    """Has a field of 100,000 bytes for each sample."""

    def __reduce__(self) -> tuple[Any, ...]:
        return WideReader, (self.index.path,)

    def field(self, i: int, name: str) -> Any:
        return np.random.default_rng(i).bytes(100_000)


def die_if_told(word: str) -> None:
    """Kills this process if the file is there, and no other process has taken it away."""
    try:
        os.unlink(word)
    except FileNotFoundError:
        return
    os.kill(os.getpid(), signal.SIGKILL)


class ToldReader(ShardReader):
    """Dies at work when told."""

    def __init__(self, index: str, word: str) -> None:
        super().__init__(index)
        self.word = word

    def __reduce__(self) -> tuple[Any, ...]:
        return ToldReader, (self.index.path, self.word)

    def read(self, ids: np.ndarray, wanted: Wanted | None = None) -> Encoded:
        die_if_told(self.word)
        return super().read(ids, wanted)


class DyingAndWaitingReader(ShardReader):
    """At sample 12, waits until sample 8 was read twice. At the first time that 8 is, waits for a word, and kills its
    process."""

    def __init__(self, index: str, marks: str) -> None:
        super().__init__(index)
        self.marks = marks

    def __reduce__(self) -> tuple[Any, ...]:
        return DyingAndWaitingReader, (self.index.path, self.marks)

    def read(self, ids: np.ndarray, wanted: Wanted | None = None) -> Encoded:
        if 8 in ids:
            if self.mark("dying"):
                self.wait("die")
                os.kill(os.getpid(), signal.SIGKILL)
            self.mark("again")
        elif 12 in ids:
            self.mark("waiting")
            self.wait("again")
        return super().read(ids, wanted)

    def mark(self, name: str) -> bool:
        """Leaves a mark; returns whether it is new."""
        try:
            os.close(os.open(os.path.join(self.marks, name), os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return False
        return True

    def wait(self, name: str) -> None:
        """Waits for a mark."""
        while not os.path.exists(os.path.join(self.marks, name)):
            time.sleep(0.001)
