"""Shard sets and tars to try things on, and readers of what was written."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import io
import json
import os
import tarfile
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from feeder.shard.format.block_sums import BLOCK_BYTES
from feeder.shard.format.index_builder import IndexBuilder
from feeder.shard.format.manifest import Manifest, ShardRecord
from feeder.shard.format.open_index import open_index
from feeder.shard.format.sealed_head import read_head, sealed, short_hash
from feeder.shard.format.set_header import HEADER_MAGIC, ROW, SetHeader, write_header
from feeder.shard.format.shard_index import SampleRow, write_shard_index
from feeder.shard.source.table_file import ManifestColumns
from feeder.shard.write.encode import EncodeOptions
from feeder.shard.write.set_writer import index_path, own_suffix, write_set
from feeder.shard.write.shard_options import ShardOptions
from feeder.shard.write.sharding import shard
from feeder.system.progress import Progress
from feeder.tools.verify import verify
from tests.support.images import encode, pixels

__all__ = [
    "KEEP",
    "StopAtOnce",
    "change_rows",
    "change_samples",
    "contents",
    "damage_row",
    "kept",
    "member",
    "one_image_index",
    "rejected",
    "samples_of",
    "set_classes",
    "sharded",
    "tar_members",
    "write_rows",
    "write_tar",
]

KEEP = EncodeOptions("keep")
kept = functools.partial(ShardOptions, encode=KEEP)


class StopAtOnce(Progress):
    """Interrupts the run after its first sample."""

    def advance(self, samples: int, size_bytes: int) -> None:
        raise KeyboardInterrupt


def contents(folder: Path) -> dict[str, str]:
    """Every file below a folder with its checksum."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def samples_of(folder: Path) -> list[tuple[str, bytes, int]]:
    """(original path, image bytes, label) as the index has them, in order."""
    index = open_index(folder / "index.bin")
    found = []
    for i in range(len(index)):
        with open(index.shard_path(int(index.column("shard")[i])), "rb") as file:
            data = os.pread(file.fileno(), int(index.column("length")[i]), int(index.column("offset")[i]))
        found.append((index.source_path(i), data, int(index.column("label")[i])))
    return found


def write_rows(builder: IndexBuilder, path: Path | str, shard: str, size_bytes: int) -> str:
    """Writes an index of one shard, whose bytes are not looked at, and returns its path."""
    suffix = own_suffix(str(path))
    blocks = np.zeros(-(-size_bytes // BLOCK_BYTES), np.uint32)
    builder.write(index_path(os.path.dirname(path), shard, suffix), blocks, size_bytes)
    write_set(str(path), [ShardRecord(shard, len(builder), size_bytes, "00" * 32)], None, suffix=suffix)
    return str(path)


def one_image_index(folder: Path, samples: list[tuple[str, str]]) -> str:
    """An index of one image as several samples, with these keys and paths."""
    data = encode(pixels(1))
    tar = write_tar(folder / "x.tar", [("0.jpg", data)])
    builder = IndexBuilder()
    for key, path in samples:
        builder.add(
            key=key.encode(), path=path.encode(), field="jpg", offset=512, length=len(data), label=-1, width=8,
            height=8, orientation=1, source_bytes=len(data), crc32=zlib.crc32(data), members=[],
        )  # fmt: skip
    return write_rows(builder, folder / "x.bin", "x.tar", tar.stat().st_size)


def change_samples(path: Path | str, change: Callable[[int, list[SampleRow]], list[SampleRow]]) -> None:
    """Changes the samples in the indexes of a set's shards, as someone would who knows their hashes.

    Args:
        path: The header.
        change: Returns the samples of a shard, given its number and those that it has.
    """
    index = open_index(path)
    shards = []
    for number in range(index.header.shards):
        own, shard = index.shard_index(number), index.header.shard(number)
        samples = change(number, [own.sample(row) for row in range(own.samples)])
        rest = own.fields, own.targets, own.blocks(), own.tar_bytes, own.codebooks()
        write_shard_index(own.path, samples, *rest, is_numbered=own.is_numbered)
        shards.append(ShardRecord(shard.name, len(samples), shard.size_bytes, shard.shard_hash.hex()))
    write_set(str(path), shards, index.classes, suffix=index.header.info.index_suffix)


def set_classes(path: Path | str, classes: Sequence[str] | None) -> None:
    """Changes the names of classes in the header of a set, as someone would who knows its hashes."""
    header = SetHeader(str(path))
    names = [header.shard_name(number) for number in range(header.shards)]
    info = dataclasses.replace(header.info, classes=None if classes is None else tuple(classes))
    write_header(str(path), info, header.rows.copy(), names)


def damage_row(path: Path | str, column: str, row: int, value: Any) -> None:
    """Writes another value into a column of a set's sample, as someone would who knows the hashes."""
    start = 0

    def change(_: int, samples: list[SampleRow]) -> list[SampleRow]:
        nonlocal start
        if start <= row < start + len(samples):
            samples[row - start] = samples[row - start]._replace(**{column: value})
        start += len(samples)
        return samples

    change_samples(path, change)


def change_rows(path: Path | str, change: Callable[[npt.NDArray[Any]], None]) -> None:
    """Changes the shards' rows in the header of a set, as someone would who knows its hashes.

    Args:
        path: The header.
        change: Changes rows, :data:`ROW` [shards], in place.
    """
    data = bytearray(Path(path).read_bytes())
    head, _, end = read_head(str(path), HEADER_MAGIC, memoryview(bytes(data)))
    rows = np.frombuffer(data, ROW, head["shards"], end)
    change(rows)
    head["body"] = short_hash(bytes(data[end:])).hex()
    Path(path).write_bytes(sealed(HEADER_MAGIC, head) + data[end:])


def rejected(out: Path) -> dict[str, str]:
    """Reason by path, after checking that nothing got lost."""
    manifest = Manifest.read(str(out))
    rows = [json.loads(line) for line in (out / "rejected.jsonl").read_text().splitlines()]
    assert manifest is not None
    assert len(rows) == manifest.rejected
    assert manifest.samples == len(open_index(out / "index.bin"))
    assert manifest.inputs == manifest.samples + manifest.rejected
    assert verify(str(out)) == []
    return {row["path"]: row["reason"] for row in rows}


def sharded(source: Path | str, tmp_path: Path, columns: ManifestColumns | None = None) -> Path:
    out = tmp_path / "out"
    shard(str(source), str(out), kept(max_bad=1, samples_per_shard=5, columns=columns or ManifestColumns()))
    return out


def member(out: Path, path: str, field: str) -> bytes | None:
    """A field of the sample with this original path."""
    index = open_index(out / "index.bin")
    i = next(i for i in range(len(index)) if index.source_path(i) == path)
    with tarfile.open(index.shard_path(int(index.column("shard")[i]))) as tar:
        try:
            return tar.extractfile(f"{index.key(i)}.{field}").read()  # type: ignore[union-attr]
        except KeyError:
            return None


def write_tar(path: Path, members: list[tuple[str, bytes]], mode: str = "w") -> Path:
    with tarfile.open(path, mode) as tar:  # type: ignore[call-overload]
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return path


def tar_members(count: int, first: int = 0) -> list[tuple[str, bytes]]:
    found = []
    for i in range(first, first + count):
        fields = [("jpg", encode(pixels(i))), ("cls", b"%d" % (i % 3)), ("json", b'{"i":%d}' % i), ("seg.png", b"\x89")]
        found += [(f"dir/{i:04d}.{field}", data) for field, data in fields]
    return found
