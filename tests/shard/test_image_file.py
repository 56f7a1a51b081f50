"""Files that other people put in an image's or a shard's place."""

from __future__ import annotations

import errno
import gzip
import os
import socket
import tarfile
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from feeder.dataset.folders import FolderDataset
from feeder.dataset.shards import ShardDataset
from feeder.errors import ArgumentError, DecodeError, FormatError, ShardError, SourceError
from feeder.shard.format.index_builder import IndexBuilder
from feeder.shard.source import image_file, tars
from feeder.shard.write.index_tars import index_tars
from feeder.shard.write.sharding import shard
from feeder.system.progress import Progress
from feeder.tools.verify import Damage, verify
from tests.support.images import encode, make_tree, pixels
from tests.support.shard_sets import kept, rejected, tar_members, write_rows, write_tar

JPEG = encode(pixels(1))
GIB = 1 << 30


@pytest.fixture
def little_memory() -> Iterator[None]:
    """Holds that Python's objects take less than 64 MiB."""
    tracemalloc.start()
    yield
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 64 << 20


def put(path: Path, kind: str) -> None:
    """Puts what is no regular file in a file's place."""
    path.unlink(missing_ok=True)
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        with socket.socket(socket.AF_UNIX) as bound:
            folder = os.open(path.parent, os.O_RDONLY)  # as a socket's path is at most 108 bytes long
            bound.bind(f"/proc/self/fd/{folder}/{path.name}")
            os.close(folder)


@pytest.mark.parametrize("kind", ["fifo", "device", "socket"])
def test_a_sets_files_must_be_regular(tmp_path: Path, kind: str) -> None:
    out = tmp_path / "out"
    shard(str(make_tree(tmp_path / "images", 2, 4)), str(out), kept(samples_per_shard=4, shuffle=False))
    name = "shard-000001.tar"
    put(out / name, kind)
    assert verify(str(out)) == [Damage(name, None, "can't be read: not a regular file")]
    dataset = ShardDataset(out)
    dataset[0]
    with pytest.raises(FormatError, match=rf"{name}: .*can't be opened \(not a regular file\)"):
        dataset[4]
    put(out / "manifest.json", kind)
    with pytest.raises(FormatError, match=r"manifest\.json: .*not a regular file"):
        verify(str(out))
    (out / "manifest.json").unlink()
    put(out / "index.bin", kind)
    for opened in (lambda: ShardDataset(out), lambda: verify(str(out))):
        with pytest.raises(FormatError, match=r"index\.bin: .*not a regular file"):
            opened()


@pytest.mark.parametrize("kind", ["fifo", "device", "socket"])
def test_an_images_file_must_be_regular(tmp_path: Path, kind: str) -> None:
    source = make_tree(tmp_path / "images", 1, 3)
    put(source / "class-0" / "img-001.jpg", kind)
    dataset = FolderDataset(source)
    dataset[0]
    with pytest.raises(DecodeError, match=r"'class-0/img-001\.jpg': can't be read: not a regular file"):
        dataset[1]
    (source / "list.csv").write_text("path\nclass-0/img-000.jpg\nclass-0/img-001.jpg\n")
    for given in (source, source / "list.csv"):
        out = tmp_path / f"out-{given.name}"
        shard(str(given), str(out), kept(max_bad=1))
        assert rejected(out)["class-0/img-001.jpg"] == "not a regular file"


class Replace(Progress):
    """Puts a FIFO in a file's place when everything has been listed."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def begin(self, samples: int, size_bytes: int, done_samples: int, done_bytes: int) -> None:
        put(self.path, "fifo")


def test_a_fifo_that_takes_a_files_place_after_it_was_listed_ends_the_run(tmp_path: Path) -> None:
    source, tar = make_tree(tmp_path / "images", 1, 3), write_tar(tmp_path / "x.tar", tar_members(3))
    with pytest.raises(ShardError, match=r"class-0/img-001\.jpg: not a regular file"):
        shard(str(source), str(tmp_path / "a"), kept(), progress=Replace(source / "class-0" / "img-001.jpg"))
    with pytest.raises(ShardError, match=r"x\.tar: not a regular file"):
        shard(str(tar), str(tmp_path / "b"), kept(), progress=Replace(tar))


@pytest.mark.usefixtures("little_memory")
def test_a_sparse_file_among_images_is_rejected_unread(tmp_path: Path) -> None:
    source = make_tree(tmp_path / "images", 1, 1)
    sizes = {"large.jpg": 3 * GIB, "fits.jpg": GIB, "head.jpg": GIB + 1}
    for name, size in sizes.items():
        (source / "class-0" / name).write_bytes(JPEG if name == "head.jpg" else b"")
        os.truncate(source / "class-0" / name, size)
    expected = {
        "class-0/fits.jpg": r"not an image: starts with b'\x00\x00\x00\x00\x00\x00\x00\x00'",
        "class-0/head.jpg": "1,073,741,825 bytes are more than the 1,073,741,824 that an image or field may have",
        "class-0/large.jpg": "3,221,225,472 bytes are more than the 1,073,741,824 that an image or field may have",
    }
    dataset = FolderDataset(source)
    paths = dataset.column("path")
    for i in range(4):
        if paths[i] in expected:
            with pytest.raises(DecodeError) as caught:
                dataset[i]
            assert caught.value.reason == expected[paths[i]]
    shard(str(source), str(tmp_path / "out"), kept(max_bad=1))
    assert rejected(tmp_path / "out") == expected


@pytest.mark.usefixtures("little_memory")
def test_an_index_or_manifest_of_zeros_is_not_read(tmp_path: Path) -> None:
    shard(str(make_tree(tmp_path / "images", 1, 2)), str(tmp_path / "out"), kept())
    os.truncate(tmp_path / "out" / "manifest.json", 3 * GIB)
    with pytest.raises(FormatError, match=r"manifest\.json: 3,221,225,472 bytes are more than any manifest has"):
        verify(str(tmp_path / "out"))
    index = tmp_path / "index.bin"
    index.write_bytes((tmp_path / "out" / "index.bin").read_bytes()[:8] + (2 * GIB).to_bytes(8, "little"))
    os.truncate(index, 3 * GIB)
    with pytest.raises(FormatError, match=r"index\.bin: damaged: its head would have 2,147,483,648 bytes"):
        ShardDataset(tmp_path)


@pytest.mark.usefixtures("little_memory")
def test_an_index_that_names_large_images_where_none_are_is_not_believed(tmp_path: Path) -> None:
    (tmp_path / "a.tar").touch()
    os.truncate(tmp_path / "a.tar", 15 * GIB)
    builder = IndexBuilder()
    for i in range(14):
        builder.add(
            key=b"%d" % i,
            path=b"",
            field="jpg",
            offset=i * GIB + 512,
            length=GIB,
            label=0,
            width=4,
            height=4,
            orientation=1,
            source_bytes=1,
            crc32=0,
            members=[("json", 512, 2 * GIB)],
        )
    write_rows(builder, tmp_path / "index.bin", "a.tar", 15 * GIB)
    dataset = ShardDataset(tmp_path)
    found = dataset.reader.read(np.arange(14))
    assert [error.reason for error in found.errors if error] == [
        r"not an image: starts with b'\x00\x00\x00\x00\x00\x00\x00\x00'"
    ] * 14
    assert found.errors[3].key == "3"  # type: ignore[union-attr]
    with pytest.raises(DecodeError, match="a field of 2,147,483,648 bytes is more"):
        dataset.reader.field(0, "json")


@pytest.mark.usefixtures("little_memory")
def test_a_tars_large_members_are_rejected_unread(tmp_path: Path) -> None:
    path = tmp_path / "x.tar"
    with path.open("wb") as file:
        for name, head, size in (("a.jpg", JPEG, len(JPEG)), ("b.jpg", b"", 256 << 20), ("c.jpg", JPEG, GIB + 1)):
            member = tarfile.TarInfo(name)
            member.size = size
            file.write(member.tobuf() + head)
            file.seek(size - len(head) + -size % 512, os.SEEK_CUR)
        file.truncate(file.tell() + 1024)
    reasons = {
        "x.tar/b": r"not an image: starts with b'\x00\x00\x00\x00\x00\x00\x00\x00'",
        "x.tar/c": "1,073,741,825 bytes are more than the 1,073,741,824 that an image or field may have",
    }
    shard(str(path), str(tmp_path / "out"), kept(max_bad=1))
    assert rejected(tmp_path / "out") == reasons
    assert {r.path: r.reason for r in index_tars(str(path)).rejected} == reasons


def test_max_file_bytes_rejects_what_is_larger(tmp_path: Path) -> None:
    source = make_tree(tmp_path / "images", 1, 2)
    large = encode(pixels(3, 200, 200))
    (source / "class-0" / "z.jpg").write_bytes(large)
    out = tmp_path / "out"
    shard(str(source), str(out), kept(max_bad=1, max_file_bytes=len(large) - 1))
    size = f"{len(large):,} bytes are more than the {len(large) - 1:,} that an image or field may have"
    assert rejected(out) == {"class-0/z.jpg": size}
    with pytest.raises(ShardError, match="max_file_bytes"):
        shard(str(source), str(out), kept())
    assert shard(str(source), str(tmp_path / "b"), kept(max_file_bytes=len(large))).samples == 3
    for size_bytes in (0, GIB + 1):
        with pytest.raises(ArgumentError, match="max_file_bytes must be an integer from 1 to 1073741824"):
            kept(max_file_bytes=size_bytes)


def test_a_gzip_that_unpacks_to_too_much_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tars, "UNPACKED_BYTES", 1 << 20)
    (tmp_path / "bomb.tar.gz").write_bytes(gzip.compress(bytes(3 << 20)))
    with pytest.raises(SourceError, match=r"bomb\.tar\.gz: unpacks to more than 1,048,576 bytes"):
        shard(str(tmp_path / "bomb.tar.gz"), str(tmp_path / "out"), kept())
    assert not (tmp_path / "out").exists()
    packed = gzip.compress(write_tar(tmp_path / "x.tar", [("a.jpg", JPEG), ("a.txt", bytes(1 << 20))]).read_bytes(), 1)
    monkeypatch.setattr(image_file, "UNPACKED_TIMES", 2 + (1 << 20) // len(packed))
    (tmp_path / "x.tar.gz").write_bytes(packed)
    assert shard(str(tmp_path / "x.tar.gz"), str(tmp_path / "out"), kept()).samples == 1


def test_a_lack_of_memory_names_the_file_and_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = make_tree(tmp_path / "images", 1, 3)
    path = source / "class-0" / "img-001.jpg"
    real = os.read

    def fail(descriptor: int, count: int) -> bytes:
        if os.readlink(f"/proc/self/fd/{descriptor}") == str(path):
            raise MemoryError
        return real(descriptor, count)

    with monkeypatch.context() as patch:
        patch.setattr(os, "read", fail)
        with pytest.raises(MemoryError, match=rf"{path}: not enough memory for its \d+ bytes"):
            FolderDataset(source)[1]
        with pytest.raises(ShardError, match=r"class-0/img-001\.jpg: not enough memory .*--workers"):
            shard(str(source), str(tmp_path / "out"), kept(samples_per_shard=1))
    assert shard(str(source), str(tmp_path / "out"), kept(samples_per_shard=1)).samples == 3


@pytest.mark.parametrize("code", [errno.EIO, errno.ESTALE])
def test_a_disk_that_fails_in_a_tar_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    write_tar(tmp_path / "x.tar", tar_members(9))
    from feeder.shard.format import tar

    def fail(file: object, size: int) -> bytes:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(tar.TarHeaders, "read", fail)
    with pytest.raises(SourceError, match=rf"x\.tar: can't be read: {os.strerror(code)}"):
        shard(str(tmp_path / "x.tar"), str(tmp_path / "out"), kept())


def test_a_disk_that_fails_in_a_members_bytes_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_tar(tmp_path / "x.tar", tar_members(3))
    real = os.pread

    def fail(descriptor: int, count: int, offset: int) -> bytes:
        if count > 64 and os.readlink(f"/proc/self/fd/{descriptor}") == str(tmp_path / "x.tar"):
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        return real(descriptor, count, offset)

    with monkeypatch.context() as patch:
        patch.setattr(os, "pread", fail)
        with pytest.raises(ShardError, match=r"x\.tar: Stale file handle; nothing is lost"):
            shard(str(tmp_path / "x.tar"), str(tmp_path / "out"), kept())
        with pytest.raises(OSError, match=r"x\.tar"):
            index_tars(str(tmp_path / "x.tar"))
    assert shard(str(tmp_path / "x.tar"), str(tmp_path / "out"), kept()).samples == 3
