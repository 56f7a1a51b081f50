"""Shard sets and tars to try things on, and readers of what was written."""

from __future__ import annotations

import functools
import hashlib
import io
import json
import os
import tarfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from feeder.shard.format.header_file import HEADER_MAGIC
from feeder.shard.format.index import Index
from feeder.shard.format.index_builder import IndexBuilder
from feeder.shard.format.index_file import COLUMNS, ShardEntry, write_index
from feeder.shard.format.manifest import Manifest
from feeder.shard.format.open_index import open_index
from feeder.shard.format.sealed_head import read_head, sealed, short_hash
from feeder.shard.format.set_header import ROW
from feeder.shard.format.set_index import SetIndex
from feeder.shard.source.table_file import ManifestColumns
from feeder.shard.write.encode import EncodeOptions
from feeder.shard.write.options import ShardOptions
from feeder.shard.write.sharding import shard
from feeder.system.files import file_sha256
from feeder.system.progress import Progress
from feeder.tools.verify import verify
from tests.support.images import encode, pixels

__all__ = [
    "KEEP",
    "StopAtOnce",
    "change_rows",
    "contents",
    "damage_row",
    "header_of",
    "kept",
    "member",
    "one_image_index",
    "rejected",
    "samples_of",
    "shard_entries",
    "sharded",
    "tar_members",
    "to_version_1",
    "with_header",
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


def shard_entries(index: Index) -> list[ShardEntry]:
    """Names and sizes of all shards."""
    return [index.shard_entry(number) for number in range(index.shard_count)]


def samples_of(folder: Path) -> list[tuple[str, bytes, int]]:
    """(original path, image bytes, label) as the index has them, in order."""
    index = open_index(folder / "index.bin")
    found = []
    for i in range(len(index)):
        with open(index.shard_path(int(index.column("shard")[i])), "rb") as file:
            data = os.pread(file.fileno(), int(index.column("length")[i]), int(index.column("offset")[i]))
        found.append((index.source_path(i), data, int(index.column("label")[i])))
    return found


def header_of(data: bytes | bytearray) -> dict[str, Any]:
    header: dict[str, Any] = json.loads(data[16 : 16 + int.from_bytes(data[8:16], "little")])
    return header


def with_header(data: bytes, header: dict[str, Any], *, checksums: bool = True) -> bytes:
    """An index file with another header of the same length, and checksums that match; or none, as old files have."""
    length = int.from_bytes(data[8:16], "little")
    columns = header["columns"].items() if isinstance(header["columns"], dict) else ()
    for name, entry in columns:
        column = header_of(data)["columns"][name]
        start, size = column["offset"], column["count"] * np.dtype(column["dtype"]).itemsize
        entry.pop("crc32", None)
        if checksums:
            entry["crc32"] = f"{zlib.crc32(data[start : start + size]):08x}"
    header = {name: value for name, value in header.items() if name != "header_crc32"}
    if checksums:
        header = {"header_crc32": "00000000"} | header
    text = json.dumps(header, separators=(",", ":")).encode().ljust(length)
    assert len(text) == length
    if checksums:
        text = text.replace(b"00000000", b"%08x" % zlib.crc32(data[:16] + text), 1)
    return data[:16] + text + data[16 + length :]


def write_rows(builder: IndexBuilder, path: Path | str, shard: ShardEntry) -> str:
    """Writes the rows of one shard as an index of version 1, and returns its path."""
    columns = builder.columns()
    columns["shard"] = np.zeros(len(builder), np.uint32)
    counts = {name: column.size for name, column in columns.items()}
    pieces = {name: [column] for name, column in columns.items()}
    write_index(str(path), [shard], list(builder.fields), pieces, counts, targets=builder.targets)
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
    return write_rows(builder, folder / "x.bin", ShardEntry("x.tar", tar.stat().st_size))


def to_version_1(path: Path | str) -> str:
    """Converts an index to version 1, as earlier feeders wrote it, if it is not that already; returns its path."""
    index = open_index(path)
    if not isinstance(index, SetIndex):
        return str(path)
    names = [*COLUMNS, *(["target"] if index.targets else []), *(["source_row"] if index.has_source_rows else [])]
    pieces = {name: [np.array(index.column(name))] for name in names}
    counts = {name: column.size for name, (column,) in pieces.items()}
    is_own = (Path(path).parent / "manifest.json").exists()  # which has the classes
    labels: Any = {"targets": index.targets, "classes": None if is_own else index.classes}
    write_index(str(path), shard_entries(index), index.fields, pieces, counts, codebooks=index.codebooks, **labels)
    for number in range(index.shard_count):
        (Path(path).parent / index.header.index_name(number)).unlink()
    manifest = (Path(path).parent / "manifest.json").exists() and json.loads(
        (Path(path).parent / "manifest.json").read_text()
    )
    if manifest and "index" in manifest:
        found = Manifest.read(str(Path(path).parent))
        assert found is not None
        entry = {"size_bytes": os.stat(path).st_size, "sha256": file_sha256(str(path))}
        found.with_index(entry).write(str(Path(path).parent))
    return str(path)


def damage_row(path: str, column: str, row: int, value: int) -> None:
    """Writes another value into a column of an index, which becomes one of version 1, as someone would who knows its
    checksums."""
    to_version_1(path)
    data = bytearray(Path(path).read_bytes())
    header = header_of(data)
    entry = header["columns"][column]
    size = np.dtype(entry["dtype"]).itemsize
    start = entry["offset"] + row * size
    data[start : start + size] = value.to_bytes(size, "little")
    Path(path).write_bytes(with_header(bytes(data), header))


def change_rows(path: Path | str, change: Callable[[npt.NDArray[Any]], None]) -> None:
    """Changes the shards' rows in the header of a set, as someone would who knows its hashes.

    Args:
        path: The header.
        change: Changes rows, :data:`ROW` [shards], in place.
    """
    data = bytearray(Path(path).read_bytes())
    head, _, end = read_head(str(path), HEADER_MAGIC, memoryview(bytes(data)))
    rows = np.frombuffer(data, ROW, head["shards"], end + head["pages"][0])
    change(rows)
    dtype = np.dtype([("first", "<u8"), ("hash", "V16")])
    table = np.frombuffer(data, dtype, head["table"][1] // dtype.itemsize, end + head["table"][0])
    for page in range(len(table)):
        own = rows[page * head["page"] : (page + 1) * head["page"]]
        table["hash"][page] = np.void(short_hash(own.tobytes()))
    head["table"][2] = short_hash(table.tobytes()).hex()
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
