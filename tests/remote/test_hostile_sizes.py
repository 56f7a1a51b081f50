"""Sets in a store that claim sizes which they can't have: the tools refuse them before they fetch what is claimed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy.typing as npt
import pytest

from feeder.tools import cli
from tests.support.google_store import GoogleStore
from tests.support.remote_sets import make_set
from tests.support.shard_sets import change_rows


@pytest.fixture
def url(google: GoogleStore, tmp_path: Path) -> str:
    """A set of two shards on a web server."""
    for path in make_set(tmp_path, shards=2).iterdir():
        if path.is_file():
            google.put(f"set/{path.name}", path.read_bytes())
    return f"{google.url}/set"


def claimed(google: GoogleStore, folder: Path, change: Callable[[npt.NDArray[Any]], None]) -> None:
    """Replaces the header by one with other rows, as a hostile program would write it."""
    path = folder / "index.bin"
    path.write_bytes(google.objects["set/index.bin"].data)
    change_rows(path, change)
    google.put("set/index.bin", path.read_bytes())


def fetched(google: GoogleStore) -> list[str]:
    """Names of the shards' indexes that were asked for."""
    names = [target.rpartition("/")[2] for method, target in google.requests if method == "GET"]
    return [name for name in names if name.endswith(".fidx")]


@pytest.mark.parametrize("options", [[], ["--verify"]])
def test_an_index_of_gigabytes_for_a_few_samples_is_refused(
    google: GoogleStore,
    url: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    options: list[str],
) -> None:
    def change(rows: npt.NDArray[Any]) -> None:
        rows["index_bytes"][0] = 0xFFFF_FFF0

    claimed(google, tmp_path, change)
    assert cli.main(["inspect", url, *options]) == 1
    assert "shard 0 would have an index of 4,294,967,280 bytes for 4 samples" in capsys.readouterr().err
    assert fetched(google) == []


@pytest.mark.parametrize("options", [[], ["--verify"]])
def test_no_more_is_fetched_of_an_index_than_there_is(
    google: GoogleStore,
    url: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    options: list[str],
) -> None:
    def change(rows: npt.NDArray[Any]) -> None:
        rows["index_bytes"][0] = 15 << 20

    claimed(google, tmp_path, change)
    assert cli.main(["inspect", url, *options]) == 1
    assert "shard-000000.fidx" in capsys.readouterr().err
    # Asked for once, for its first 8 MiB, which it does not have.
    assert fetched(google).count("shard-000000.fidx") == 1
