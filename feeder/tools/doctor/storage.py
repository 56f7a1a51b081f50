"""A data set's storage: its size beside the memory's, and its disk's speed."""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import random
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from feeder.errors import ArgumentError
from feeder.system.cores import memory_limit
from feeder.system.text import count
from feeder.tools.doctor.finding import Finding
from feeder.tools.terminal import size

__all__ = ["Data", "ReadRate", "check_data", "read_rate", "survey"]

_IMAGES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff", ".gif", ".ppm", ".pgm", ".avif", ".jp2")
_NETWORK = {"nfs", "nfs4", "cifs", "smb3", "ceph", "lustre", "beegfs", "gpfs", "glusterfs", "9p", "afs"}
_MEMORY = {"tmpfs", "ramfs", "devtmpfs"}
_CHUNK_BYTES = 1 << 20
_SMALL_FILE_BYTES = 4 << 20
_THREADS = 8


@dataclass(frozen=True)
class Data:
    """The files of a folder.

    Args:
        files: (path, size in bytes) of each file.
        samples: Number of images: image files, or samples of a shard set's manifest; None for tars without one.
        complete: True if all files were listed within the time limit.
        kind: The file system's kind, such as "ext4"; "" if unknown.
    """

    files: list[tuple[str, int]]
    samples: int | None
    complete: bool
    kind: str

    @property
    def size_bytes(self) -> int:
        """Size of all files."""
        return sum(size for _, size in self.files)


@dataclass(frozen=True)
class ReadRate:
    """A disk's speed.

    Args:
        bytes_s: Bytes read per second.
        files_s: Files, or pieces of larger files, read per second.
        direct: True if the reads bypassed the page cache.
    """

    bytes_s: float
    files_s: float
    direct: bool


def survey(folder: str, seconds: float = 10.0) -> Data:
    """Lists a folder's files.

    Args:
        folder: The folder, or one file.
        seconds: Time limit; files not seen by then are not counted.

    Raises:
        ArgumentError: if there is no such folder, or nothing in it.
    """
    if not os.path.exists(folder):
        raise ArgumentError(f"expected the folder of a data set, found nothing at {folder}")
    end = time.monotonic() + seconds
    files: list[tuple[str, int]] = []
    complete = True
    top, name = os.path.split(os.path.abspath(folder))
    for root, _, names in os.walk(folder) if os.path.isdir(folder) else [(top, [], [name])]:
        for path in (os.path.join(root, name) for name in names):
            with contextlib.suppress(OSError):
                files.append((path, os.path.getsize(path)))
        complete = time.monotonic() < end
        if not complete:
            break

    if not files:
        raise ArgumentError(f"expected the folder of a data set, found no file in {folder}")
    images = sum(path.lower().endswith(_IMAGES) for path, _ in files)
    return Data(files, _samples_of_shards(folder) or images or None, complete, _file_system(folder))


def read_rate(data: Data, seconds: float = 2.0, seed: int = 0) -> ReadRate | None:
    """Reads files, or pieces of large ones, in random order with a few threads, bypassing the page cache if possible.

    Returns:
        None if nothing could be read.
    """
    started = time.monotonic()

    def read(number: int) -> list[tuple[int, bool]]:
        draw = random.Random(_THREADS * seed + number)
        buffer = mmap.mmap(-1, _SMALL_FILE_BYTES)  # O_DIRECT needs memory aligned to a page
        done = []
        while True:  # at least once, however short the time
            path, size = draw.choice(data.files)
            offset = draw.randrange(size - _CHUNK_BYTES) if size > _SMALL_FILE_BYTES else 0
            done.append(_read(path, offset // 4096 * 4096, _CHUNK_BYTES if offset else _SMALL_FILE_BYTES, buffer))
            if time.monotonic() - started >= seconds:
                return [found for found in done if found is not None]

    with ThreadPoolExecutor(_THREADS) as pool:
        done = [found for of_thread in pool.map(read, range(_THREADS)) for found in of_thread]
    elapsed = time.monotonic() - started
    total = sum(count for count, _ in done)
    return ReadRate(total / elapsed, len(done) / elapsed, all(direct for _, direct in done)) if total else None


def check_data(folder: str, root: str = "/", seconds: float = 2.0) -> Iterator[Finding]:
    """Checks a data set's size, page cache and disk."""
    data = survey(folder)
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = memory_limit(root)
    memory = min(total, limit.limit_bytes) if limit is not None else total
    at_least = "" if data.complete else "at least "
    samples = f", {count(data.samples, 'image')}" if data.samples else ""
    said = f"{at_least}{size(data.size_bytes)} in {count(len(data.files), 'file')}{samples}"
    said += f", on {data.kind}" if data.kind else ""
    if data.kind in _MEMORY:
        yield Finding("data set", "ok", f"{said}: in memory")
        return
    if data.size_bytes > 0.8 * memory:
        why = f"It does not fit into the page cache ({size(memory)}): every epoch reads it from disk."
        remedy = "smaller images (feeder shard --encode jpeg --max-side), more memory, or a fast enough disk (see disk)"
        yield Finding("data set", "note", said, why, remedy)
    else:
        yield Finding("data set", "ok", f"{said}; it fits into memory ({size(memory)})")
    many = data.samples is not None and len(data.files) > 10_000 and data.size_bytes / len(data.files) < _CHUNK_BYTES
    if many and (data.kind in _NETWORK or data.kind.startswith("fuse")):
        why = "Each file costs a round trip, whatever its size."
        found = f"{len(data.files):,} small files on a network file system"
        yield Finding("files", "warning", found, why, f"feeder shard {folder}")
    rate = read_rate(data, seconds)
    if rate is not None:
        yield disk_of(data, rate)


def disk_of(data: Data, rate: ReadRate) -> Finding:
    said = f"{rate.bytes_s / 1e6:,.0f} MB/s, {rate.files_s:,.0f} reads/s, by {_THREADS} threads in random order"
    if not rate.direct:
        return Finding("disk", "ok", said + " (page cache included: this file system has no direct reads)")
    if data.samples:
        images_s = rate.bytes_s / (data.size_bytes / data.samples)
        said += f": {images_s:,.0f} images/s at most from disk"
        if images_s < 1000:
            why = "A GPU that trains a small network needs more. The disk is then the limit in the first epoch, and in "
            why += "every epoch if the data set is larger than memory."
            remedy = (
                "a local NVMe drive in place of a network or hard disk; shards (feeder shard), which need fewer reads"
            )
            return Finding("disk", "warning", said, why, remedy)
    return Finding("disk", "ok", said)


def _read(path: str, offset: int, length: int, buffer: mmap.mmap) -> tuple[int, bool] | None:
    """Returns the bytes read, and True if the read bypassed the page cache; None if it failed."""
    for flags in (os.O_DIRECT, 0):
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | flags)
        except OSError:
            continue
        try:
            return os.preadv(descriptor, [memoryview(buffer)[:length]], offset), bool(flags)
        except OSError:
            continue
        finally:
            os.close(descriptor)
    return None


def _samples_of_shards(folder: str) -> int | None:
    try:
        with open(os.path.join(folder, "manifest.json"), encoding="utf-8") as file:
            found = json.load(file).get("samples")
    except (OSError, ValueError, AttributeError):
        return None
    return found if isinstance(found, int) and found > 0 else None


def _file_system(folder: str) -> str:
    """Returns the kind of a folder's file system; "" if the kernel does not tell."""
    device = os.stat(folder).st_dev
    name = f"{os.major(device)}:{os.minor(device)}"
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as file:
            lines = [line.split() for line in file]
    except OSError:
        return ""
    return next((line[line.index("-") + 1] for line in lines if line[2] == name), "")
