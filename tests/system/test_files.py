from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from feeder.errors import ArgumentError
from feeder.system.files import atomic_file, check_writable, write_text


def test_a_file_gets_its_name_between_the_fsync_of_its_bytes_and_that_of_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.bin"
    calls: list[tuple[str, str, bool]] = []
    fsync, replace = os.fsync, os.replace

    def recorded_fsync(descriptor: int) -> None:
        name = os.readlink(f"/proc/self/fd/{descriptor}")
        if os.path.isfile(name):
            assert Path(name).read_bytes() == b"x" * 5000  # nothing waits in a buffer
        calls.append(("fsync", name, path.exists()))
        fsync(descriptor)

    def recorded_replace(source: str, target: str) -> None:
        calls.append(("replace", source, path.exists()))
        replace(source, target)

    monkeypatch.setattr(os, "fsync", recorded_fsync)
    monkeypatch.setattr(os, "replace", recorded_replace)
    with atomic_file(str(path)) as file:
        file.write(b"x" * 5000)
        file.flush()
        assert not path.exists()
        (temporary,) = map(str, tmp_path.iterdir())
    assert calls == [("fsync", temporary, False), ("replace", temporary, False), ("fsync", str(tmp_path), True)]
    assert path.read_bytes() == b"x" * 5000


def test_an_exception_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    path.write_bytes(b"old")

    def fail() -> None:
        with atomic_file(str(path)) as file:
            file.write(b"new")
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("name", ["x" * 255, "ü" * 127])
def test_a_name_may_be_as_long_as_the_disk_allows(tmp_path: Path, name: str) -> None:
    with atomic_file(str(tmp_path / name)) as file:
        file.write(b"bytes")
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [(name, b"bytes")]


def test_two_writers_of_one_path_do_not_write_into_one_file(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    with atomic_file(str(path)) as first, atomic_file(str(path)) as second:
        first.write(b"first")
        second.write(b"second, longer")
    assert path.read_bytes() == b"first"
    assert list(tmp_path.iterdir()) == [path]


def test_a_report_replaces_what_was_there_or_leaves_it(tmp_path: Path) -> None:
    path = tmp_path / "new" / "report.json"
    check_writable(str(path))
    assert write_text(str(path), "one") == str(path)
    check_writable(str(path))
    write_text(str(path), "two")
    assert path.read_text() == "two"
    assert os.listdir(path.parent) == ["report.json"]


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file" / "report.json", tmp_path):
        for check in (check_writable, lambda p: write_text(p, "x")):
            with pytest.raises(ArgumentError, match=re.escape(f"{path}: can't be written")):
                check(str(path))
    assert write_text("/dev/null", "x") == "/dev/null"
    assert not os.path.isfile("/dev/null")
