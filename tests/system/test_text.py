"""Text that comes from data, such as names, reaches no terminal raw."""

from __future__ import annotations

import os
import tarfile
from pathlib import Path

import pytest

from feeder.dataset.folders import FolderDataset
from feeder.dataset.shards import ShardDataset
from feeder.errors import ArgumentError, DecodeError, FeederError, WorkerError
from feeder.loader.dataloader import DataLoader
from feeder.system.text import count, printable
from feeder.system.warning import warn
from feeder.tools.cli import main
from feeder.transforms import Resize
from tests.support.images import encode, make_tree, pixels

# Moves the cursor, turns the text around, ends the line, and is no UTF-8.
NAME = "cat\x1b[2J\x9b31m\u202e\n\r" + os.fsdecode(b"\xff")


def test_counts_have_plurals() -> None:
    assert [count(n, "class", "classes") for n in (0, 1, 2_000)] == ["0 classes", "1 class", "2,000 classes"]


def test_what_a_terminal_acts_on_is_escaped_and_letters_stay() -> None:
    assert printable(NAME) == r"cat\x1b[2J\x9b31m\u202e\n\r\udcff"
    assert printable("a\nb\tc\x00", lines=True) == "a\nb\\tc\\x00"
    for text in ("", "plain text", "Käfer, 猫, кошка, 🐈", r"C:\images"):
        assert printable(text) == text
    assert printable(printable(NAME)) == printable(NAME)


def test_errors_and_warnings_are_printable() -> None:
    for kind in (FeederError, ArgumentError):
        assert str(kind(f"{NAME}: wrong")) == printable(f"{NAME}: wrong")
    assert str(WorkerError(f"a traceback\n{NAME}")) == printable(f"a traceback\n{NAME}", lines=True)
    error = DecodeError(f"no field {NAME}", key=NAME, shard=NAME)
    assert error.key == NAME
    assert_printable(str(error))
    with pytest.warns(UserWarning, match="cat") as caught:
        warn(f"{NAME}: a warning")
    assert_printable(str(caught[0].message))
    assert caught[0].filename == __file__


def assert_printable(text: str) -> None:
    assert "cat" in text
    assert printable(text) == text


def test_commands_print_names_from_data_escaped(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    source, out = tmp_path / "src", tmp_path / NAME
    folder = make_tree(source, 1, 3) / NAME
    (source / "class-0").rename(folder)
    (folder / f"{NAME}.jpg").write_bytes(b"no image")
    shown: list[str] = []

    def run(*arguments: str) -> int:
        code = main(list(arguments))
        shown.append("".join(capfd.readouterr()))
        return code

    assert run("shard", str(source), "--out", str(out), "--max-bad", "100%") == 0
    assert run("inspect", str(out)) == 0
    assert r"cat\x1b[2J" in shown[-1]
    assert run("inspect", str(source / NAME)) == 1
    assert run("shard", str(source / f"{NAME}.csv")) == 1
    assert run("doctor", str(source / f"{NAME}.py")) == 1
    with pytest.raises(SystemExit):
        run("inspect", str(out), NAME)
    shown.append(capfd.readouterr().err)

    tars = tmp_path / "tars"
    tars.mkdir()
    (tmp_path / "good").write_bytes(encode(pixels(1)))
    (tmp_path / "bad").write_bytes(b"no image")
    with tarfile.open(tars / "0.tar", "w") as tar:
        for key, file in (("good", "good"), (f"a{NAME}", "bad"), (f"b{NAME}", "good")):
            tar.add(tmp_path / file, f"{key}.jpg")
    assert run("index", str(tars)) == 3
    assert r"cat\x1b[2J\x9b31m\u202e\n\r\udcff" in shown[-1]
    damaged = bytearray((tars / "0.tar").read_bytes())
    damaged[-11_000:] = b"\0" * 11_000
    (tars / "0.tar").write_bytes(damaged)
    assert run("inspect", str(tars), "--verify") == 1
    assert [printable(text, lines=True) for text in shown] == shown
    assert not any("\n\\r" in text for text in shown)  # as the name would have it where its line end is none


def test_a_loaders_errors_print_names_from_data_escaped(tmp_path: Path) -> None:
    folder = tmp_path / NAME
    folder.mkdir()
    (folder / f"{NAME}.jpg").write_bytes(b"no image")
    for workers in (0, 1):
        dataset = FolderDataset(tmp_path, transform=Resize((8, 8)))
        with pytest.raises(DecodeError) as caught:
            list(DataLoader(dataset, batch_size=1, num_workers=workers))
        assert_printable(str(caught.value))
    with pytest.raises(FeederError) as failed:
        ShardDataset(tmp_path / NAME)
    assert_printable(str(failed.value))
