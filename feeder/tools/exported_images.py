"""Original files from a shard set."""

from __future__ import annotations

import collections
import os
import posixpath
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from feeder.decoders.packed import add_codebooks, is_packed_field, packed_head, unpack_checked
from feeder.errors import DecodeError, ShardError
from feeder.shard.format.set_index import SetIndex
from feeder.shard.source.image_file import MAX_FILE_BYTES
from feeder.shard.store.open_store import open_store
from feeder.shard.store.url import Url, is_remote, local_path
from feeder.shard.write.set_copy import SetCopy
from feeder.system.arrays import Int64s
from feeder.system.cores import cores
from feeder.system.files import atomic_file, open_regular
from feeder.system.progress import Progress
from feeder.tools.verify import check_sample

_REQUESTS = 16  # at once, of a store


@dataclass(frozen=True)
class ExportSummary:
    """The result of an export.

    Attributes:
        out: The folder, or its URL.
        unpacked: Number of images that were packed: the original files, compared with their SHA-256.
        copies: Number of images that were packed as sequential copies of progressive files: the copies, compared, too.
        stored: Number of other images, written as they are stored: original files only if the set kept them.
        renamed: Number of images, among all of these, with their key in the name, as an earlier one has their path.
    """

    out: str
    unpacked: int
    stored: int
    copies: int = 0
    renamed: int = 0


def export(path: str, out: str, *, progress: Progress | None = None) -> ExportSummary:
    """Writes the image of each sample to its original path below a folder.

    Images that have the path of an earlier one, as in sets of several sources, get their key into their name:
    ``cat/0.jpg`` becomes ``cat/0.00000012.jpg``.

    Args:
        path: A shard set's folder, an index file, or the URL of a set in a store.
        out: The folder, new or empty; or such a place in a store.
        progress: Advanced with every image.

    Raises:
        ShardError: if the folder holds something, or a sample has no name of its own inside it. Then nothing is
            written. Also if a file can't be written.
        FormatError: if there is no index, or it is damaged.
        DecodeError: for an image that can't be read or unpacked, or whose bytes changed.
        StoreError: if a store can't be read or written.
    """
    with SetCopy.of(path) as copy:
        index = copy.index()
        index.check()
        write: Callable[[str, bytes], object] = _into_store(out) if is_remote(out) else _into_folder(local_path(out))
        add_codebooks(index.codebooks)
        # Others stand in the places of samples that were taken down.
        gone = [[*index.shard_index(number).taken_down()] for number in range(index.header.shards)]
        ids = [np.delete(np.arange(*index.header.sample_range(number)), each) for number, each in enumerate(gone)]
        renamed = _renamed(index, np.concatenate([np.empty(0, np.int64), *ids]))
        progress = progress or Progress()

        def export_one(i: int) -> tuple[str, int]:
            is_packed = is_packed_field(index.image_field(i))
            try:
                data = _read(index, i)
                write(renamed.get(i) or _relative(index, i), unpack_checked(data) if is_packed else data)
            except DecodeError as error:
                shard, offset, _ = index.place(i)
                name = os.path.basename(index.header.shard_name(shard))
                raise error.at(key=index.key(i), shard=name, offset_bytes=offset) from None
            if not is_packed:
                return "stored", len(data)
            return "copies" if packed_head(data).sequential_copy else "unpacked", len(data)

        counts = collections.Counter[str]()
        threads = _REQUESTS if is_remote(out) else cores().usable
        with progress.running(len(index), index.header.size_bytes), ThreadPoolExecutor(threads) as pool:
            for number, exported in enumerate(ids):
                with copy.shard(index.header.shard_name(number)):
                    for kind, size_bytes in pool.map(export_one, exported.tolist()):
                        counts[kind] += 1
                        progress.advance(1, size_bytes)
    shown = str(Url.parse(out)) if is_remote(out) else out
    return ExportSummary(shown, counts["unpacked"], counts["stored"], counts["copies"], len(renamed))


def _renamed(index: SetIndex, ids: Int64s) -> dict[int, str]:
    """Returns the paths of those of the samples that can't have their own: an earlier one's, or that of a folder.

    Raises:
        ShardError: if a key does not make a path that no other sample has.
    """
    hashes, folders = np.empty(len(ids), np.int64), {""}  # hashes, as the paths of a large set take gigabytes
    for n, i in enumerate(ids.tolist()):
        path = _relative(index, i)
        hashes[n] = hash(path)
        while (path := posixpath.dirname(path)) not in folders:
            folders.add(path)

    values, counts = np.unique(hashes, return_counts=True)
    unsure = [*values[counts > 1].tolist(), *map(hash, folders)]
    taken, renamed = set[str](), dict[int, str]()
    for i in ids[np.isin(hashes, unsure)].tolist():
        path = _relative(index, i)
        if path in taken or path in folders:
            stem, extension = posixpath.splitext(path)
            renamed[i] = f"{stem}.{index.key(i).replace('/', '_')}{extension}"
        taken.add(path)

    names = np.array([hash(name) for name in renamed.values()], np.int64)
    for i, is_taken in zip(renamed, np.isin(names, values), strict=True):
        if is_taken or renamed[i] in taken or renamed[i] in folders:
            raise ShardError(
                f"sample {index.key(i)!r}: other samples have its path and {renamed[i]!r}, too; "
                "`feeder shard SET --out DIR --encode keep` makes a set of the original files"
            )
        taken.add(renamed[i])
    return renamed


def _into_folder(out: str) -> Callable[[str, bytes], None]:
    """Returns a function that writes a file below a folder, by its name and bytes."""
    if os.path.isdir(out) and os.listdir(out):
        raise ShardError(f"{out}: is not empty; choose another --out")

    def write(name: str, data: bytes) -> None:
        target = os.path.join(out, name)
        if os.path.lexists(target):
            raise ShardError(f"{target}: is there already; nothing is overwritten")
        try:
            os.makedirs(os.path.dirname(target), exist_ok=True)
            with atomic_file(target) as file:
                file.write(data)
        except OSError as error:
            raise ShardError(f"{target}: can't be written: {error.strerror}; choose another --out") from error

    return write


def _into_store(out: str) -> Callable[[str, bytes], object]:
    """Returns a function that writes an object below a URL, by its name and bytes; for any thread."""
    store = open_store(out, writes=True)
    if next(store.list(), None) is not None:
        raise ShardError(f"{store.url}: is not empty; choose another --out")

    return store.put


def _read(index: SetIndex, i: int) -> bytes:
    """Returns the image of a sample as it is stored, and compares the sample's fields with their checksum.

    A packed image is left to its own SHA-256, whose error says more.
    """
    shard, offset, length = index.place(i)
    with open(index.shard_path(shard), "rb", opener=open_regular) as file:
        if not is_packed_field(index.image_field(i)):
            check_sample(file, index, i)
        elif length > MAX_FILE_BYTES or offset + length > os.fstat(file.fileno()).st_size:
            raise DecodeError("the shard was cut off; run `feeder inspect --verify`")
        return os.pread(file.fileno(), length, offset)


def _relative(index: SetIndex, i: int) -> str:
    """Returns the path below the folder: the original one, or the key where that leads out of it or is not a file's.

    Raises:
        ShardError: if the key leads out of the folder, too.
    """
    path, key, extension = index.source_path(i), index.key(i), index.image_field(i)
    if is_packed_field(extension):
        extension = f"{extension[: -len('fpk')]}jpg"
    if _is_inside(path):
        path = posixpath.normpath(path)
        return path if "." in posixpath.basename(path) else f"{path}.{extension}"
    if not _is_inside(key):
        raise ShardError(f"sample {key!r}: its key leads out of the folder, and it has no other path to export it to")
    return posixpath.normpath(f"{key}.{extension}")


def _is_inside(path: str) -> bool:
    """Returns whether a path names a file below the folder that it is joined to."""
    parts = path.split("/")
    return parts[-1] not in ("", ".") and not os.path.isabs(path) and ".." not in parts and "\0" not in path
