"""A data set's storage: its size, its share in memory, and its disk's speed."""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import random
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass

from feeder.errors import ArgumentError
from feeder.system.cores import memory_limit
from feeder.system.text import count
from feeder.tools.doctor.finding import Finding
from feeder.tools.terminal import size

__all__ = ["Data", "ReadRate", "cached_bytes", "check_data", "read_rate", "survey"]

_IMAGES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff", ".gif", ".ppm", ".pgm", ".avif", ".jp2")
_NETWORK = {"nfs", "nfs4", "cifs", "smb3", "ceph", "lustre", "beegfs", "gpfs", "glusterfs", "9p", "afs"}
_MEMORY = {"tmpfs", "ramfs", "devtmpfs"}
_CHUNK_BYTES = 1 << 20
_SMALL_FILE_BYTES = 4 << 20
_SAMPLE_FILES = 1000
_THREADS = 8
_CACHESTAT = 451  # the same on every architecture; since Linux 6.5
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True)
class Data:
    """The files of a folder.

    Args:
        files: (path, size in bytes) of each file.
        samples: Number of images: image files, or samples of a shard set's manifest; None for tars without one.
        complete: True if all files were listed within the time limit.
        kind: The file system's kind, such as "ext4"; "" if unknown.
        rotates: True on a hard disk; None if unknown.
    """

    files: list[tuple[str, int]]
    samples: int | None
    complete: bool
    kind: str
    rotates: bool | None

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
    end, files, complete = time.monotonic() + seconds, list[tuple[str, int]](), True
    stack = [folder] if os.path.isdir(folder) else []
    if not stack:
        files.append((folder, os.path.getsize(folder)))
    while stack and complete:
        try:
            with os.scandir(stack.pop()) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        stack.append(entry.path)
                    elif entry.is_file():
                        files.append((entry.path, entry.stat().st_size))
        except OSError:
            continue
        complete = time.monotonic() < end
    if not files:
        raise ArgumentError(f"expected the folder of a data set, found no file in {folder}")
    images = sum(path.lower().endswith(_IMAGES) for path, _ in files)
    kind, rotates = _file_system(folder)
    return Data(files, _samples_of_shards(folder) or images or None, complete and not stack, kind, rotates)


def read_rate(data: Data, seconds: float = 2.0, seed: int = 0) -> ReadRate | None:
    """Reads files, or pieces of large ones, in random order with a few threads, bypassing the page cache if possible.

    Returns:
        None if nothing could be read.
    """
    draw = random.Random(seed)
    done: list[tuple[int, bool]] = []
    lock, started = threading.Lock(), time.monotonic()

    def pick() -> tuple[str, int]:
        with lock:
            path, size = draw.choice(data.files)
            return path, draw.randrange(size - _CHUNK_BYTES) if size > _SMALL_FILE_BYTES else 0

    def read() -> None:
        buffer = mmap.mmap(-1, _SMALL_FILE_BYTES)  # O_DIRECT needs memory aligned to a page
        while True:  # at least once, however short the time
            path, offset = pick()
            found = _read(path, offset // 4096 * 4096, _CHUNK_BYTES if offset else _SMALL_FILE_BYTES, buffer)
            if found is not None:
                done.append(found)
            if time.monotonic() - started >= seconds:
                break

    threads = [threading.Thread(target=read) for _ in range(_THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
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
    cached = _cached_share(data)
    share = f"{cached:.0%} of it in memory" if cached is not None else "share in memory unknown"
    if data.kind in _MEMORY:
        yield Finding("data set", "ok", f"{said}: in memory")
        return
    if data.size_bytes > 0.8 * memory:
        why = f"It does not fit into the page cache ({size(memory)}): every epoch reads it from disk."
        remedy = "smaller images (feeder shard --encode jpeg --max-side), more memory, or a fast enough disk (see disk)"
        yield Finding("data set", "note", f"{said}; {share}", why, remedy)
    else:
        yield Finding("data set", "ok", f"{said}; {share}; it fits into memory ({size(memory)})")
    many = data.samples is not None and len(data.files) > 10_000 and data.size_bytes / len(data.files) < _CHUNK_BYTES
    if many and (data.kind in _NETWORK or data.kind.startswith("fuse") or data.rotates):
        where = "a hard disk" if data.rotates else "a network file system"
        why = "Each file costs a round trip or a seek, whatever its size."
        yield Finding("files", "warning", f"{len(data.files):,} small files on {where}", why, f"feeder shard {folder}")
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


def _cached_share(data: Data) -> float | None:
    files = random.Random(0).sample(data.files, min(_SAMPLE_FILES, len(data.files)))
    cached = size = 0
    for path, length in files:
        try:
            found = cached_bytes(path)
        except OSError:
            continue
        if found is None:
            return None
        cached, size = cached + found, size + length
    return cached / size if size else None


def _samples_of_shards(folder: str) -> int | None:
    try:
        with open(os.path.join(folder, "manifest.json"), encoding="utf-8") as file:
            found = json.load(file).get("samples")
    except (OSError, ValueError, AttributeError):
        return None
    return found if isinstance(found, int) and found > 0 else None


def _file_system(folder: str) -> tuple[str, bool | None]:
    """Returns the kind of a folder's file system, and True if its disk is a hard disk."""
    device = os.stat(folder).st_dev
    name = f"{os.major(device)}:{os.minor(device)}"
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as file:
            lines = [line.split() for line in file]
    except OSError:
        return "", None
    kind = next((line[line.index("-") + 1] for line in lines if line[2] == name), "")
    for place in (f"/sys/dev/block/{name}/queue/rotational", f"/sys/dev/block/{name}/../queue/rotational"):
        try:
            with open(place, encoding="ascii") as flag:
                return kind, flag.read().strip() == "1"
        except OSError:
            continue
    return kind, None


class _Range(ctypes.Structure):
    _fields_ = [("offset", ctypes.c_uint64), ("length", ctypes.c_uint64)]


class _Stat(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("cached", "dirty", "writeback", "evicted", "recently_evicted")]


def cached_bytes(path: str) -> int | None:
    """Returns how many of a file's bytes are in memory; None if the kernel, before Linux 6.5, does not report it.

    Raises:
        OSError: if the file can't be opened.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        size = os.fstat(descriptor).st_size
        if size == 0:
            return 0
        found = _Stat()
        code = _libc.syscall(_CACHESTAT, descriptor, ctypes.byref(_Range(0, 0)), ctypes.byref(found), 0)
        return min(size, int(found.cached) * mmap.PAGESIZE) if code == 0 else None
    finally:
        os.close(descriptor)
