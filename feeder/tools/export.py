"""Original files from a shard set."""

from __future__ import annotations

import os
from dataclasses import dataclass

from feeder.decoders.packed import add_codebooks, is_packed, unpack_checked
from feeder.errors import DecodeError, ShardError
from feeder.shard.format.index import Index
from feeder.shard.source.image_file import MAX_FILE_BYTES
from feeder.system.files import atomic_file, open_regular
from feeder.system.progress import Progress
from feeder.tools.inspect import open_set

__all__ = ["ExportSummary", "export"]


@dataclass(frozen=True)
class ExportSummary:
    """The result of an export.

    Attributes:
        out: The folder.
        unpacked: Number of images that were packed: the original files, compared with their SHA-256.
        stored: Number of other images, written as they are stored: original files only if the set kept them.
    """

    out: str
    unpacked: int
    stored: int


def export(path: str, out: str, *, progress: Progress | None = None) -> ExportSummary:
    """Writes the image of each sample to its original path below a folder.

    Args:
        path: A shard set's folder, or an index file.
        out: The folder, new or empty.
        progress: Advanced with every image.

    Raises:
        ShardError: if the folder holds something, or two samples have one path.
        FormatError: if there is no index, or it is damaged.
        DecodeError: for an image that can't be read or unpacked.
    """
    index = open_set(path)
    index.check()
    if os.path.isdir(out) and os.listdir(out):
        raise ShardError(f"{out}: is not empty; choose another --out")
    add_codebooks(index.codebooks)
    progress = progress or Progress()
    progress.begin(len(index), index.size_bytes, 0, 0)
    unpacked = 0
    for i in range(len(index)):
        data = _read(index, i)
        if is_packed(data):
            unpacked += 1
            try:
                data = unpack_checked(data)
            except DecodeError as error:
                raise _at(error, index, i) from None
        target = os.path.join(out, _relative(index, i))
        if os.path.lexists(target):
            raise ShardError(f"{target}: several samples have this path; nothing is overwritten")
        os.makedirs(os.path.dirname(target), exist_ok=True)
        with atomic_file(target) as file:
            file.write(data)
        progress.advance(1, index.place(i)[2])
    progress.end()
    return ExportSummary(out, unpacked, len(index) - unpacked)


def _read(index: Index, i: int) -> bytes:
    shard, offset, length = index.place(i)
    with open(index.shard_path(shard), "rb", opener=open_regular) as file:
        if length > MAX_FILE_BYTES or offset + length > os.fstat(file.fileno()).st_size:
            raise _at(DecodeError("the shard was cut off; run `feeder inspect --verify`"), index, i)
        return os.pread(file.fileno(), length, offset)


def _relative(index: Index, i: int) -> str:
    """Returns the path below the folder: the original one, or the key where that leads out of it or is not a file's."""
    path = index.source_path(i)
    extension = index.image_field(i).replace("fpk", "jpg")
    if not path or os.path.isabs(path) or ".." in path.split("/") or "\0" in path or path.endswith("/"):
        return f"{index.key(i)}.{extension}"
    return path if "." in os.path.basename(path) else f"{path}.{extension}"


def _at(error: DecodeError, index: Index, i: int) -> DecodeError:
    shard, offset, _ = index.place(i)
    return error.at(key=index.key(i), shard=os.path.basename(index.shard_name(shard)), offset_bytes=offset)
