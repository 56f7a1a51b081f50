"""A set behind a web server is read object by object: nothing is listed there, and nothing written."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import feeder
from feeder.errors import StoreError
from feeder.shard.store.open_store import open_store
from feeder.shard.write.index_tars import index_tars
from feeder.shard.write.set_append import append
from feeder.shard.write.set_takedown import takedown
from feeder.shard.write.shard_options import ShardOptions
from feeder.shard.write.sharding import shard
from feeder.tools import cli
from feeder.tools.exported_images import export
from feeder.transforms import CenterCrop, Compose
from tests.support.google_store import GoogleStore
from tests.support.remote_sets import end_fetchers, make_set


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A set of four shards, beside the folder ``images`` that it was made of."""
    return make_set(tmp_path_factory.mktemp("web"), shards=4)


@pytest.fixture
def url(google: GoogleStore, local: Path, tmp_path: Path) -> Iterator[str]:
    """The set's URL on a web server."""
    for path in local.iterdir():
        if path.is_file():
            google.put(f"sets/it/{path.name}", path.read_bytes())
    with end_fetchers(tmp_path):
        yield f"{google.url}/sets/it"


def check_requests(google: GoogleStore) -> None:
    """Checks that all requests read objects: a path of a file, without a query, by GET or HEAD."""
    for method, target in google.requests:
        assert method in ("GET", "HEAD"), (method, target)
        folder, _, name = target.rpartition("/")
        assert folder == "/sets/it", target
        assert name, target
        assert not set(name) & set("?;#"), target


def test_opening_reading_inspecting_and_verifying_list_nothing(
    google: GoogleStore, url: str, local: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def epoch(place: str, **options: Any) -> list[str]:
        data = feeder.ShardDataset(place, Compose([CenterCrop(32)]), ["key"], **options)
        with contextlib.closing(feeder.DataLoader(data, 4, shuffle=feeder.Lanes(2, 4), num_workers=1)) as loader:
            return [key for batch in loader for key in batch[-1]]

    assert epoch(url, cache_dir=tmp_path / "cache") == epoch(str(local))
    assert cli.main(["inspect", url]) == 0
    assert cli.main(["inspect", url, "--verify"]) == 0
    assert "4 shards" in capsys.readouterr().out
    asked = {target.rpartition("/")[2] for _, target in google.requests}
    assert asked >= {"index.bin", *(path.name for path in local.glob("shard-*"))}
    check_requests(google)


def test_a_job_that_is_redirected_into_private_networks_shares_no_cache_with_one_that_is_not(
    url: str, tmp_path: Path
) -> None:
    first = feeder.ShardDataset(url, cache_dir=tmp_path / "cache")
    with pytest.raises(StoreError, match=r"another job .* allow_private"):
        feeder.ShardDataset(url, cache_dir=tmp_path / "cache", allow_private=True)
    assert len(first)


_WRITERS: dict[str, Callable[[str, str], object]] = {
    "shard": lambda url, images: shard(images, url),
    "shard, replacing": lambda url, images: shard(images, url, force=True),
    "shard, dry": lambda url, images: shard(images, url, dry_run=True),
    "write_shards": lambda url, images: feeder.write_shards(iter(()), url),
    "append": lambda url, images: append(url, images, ShardOptions()),
    "takedown": lambda url, images: takedown(url, ["00000001"]),
    "index": lambda url, images: index_tars(f"{url}/shard-00000{{0..3}}.tar"),
    "export": lambda url, images: export(str(Path(images).parent / "set"), url),
}


@pytest.mark.parametrize("writer", _WRITERS)
def test_all_that_writes_is_refused_before_it_asks_for_anything(
    google: GoogleStore, url: str, local: Path, writer: str
) -> None:
    before = dict(google.objects)
    with pytest.raises(StoreError, match=rf"^{url}\S*: a web server is only read; write to s3://"):
        _WRITERS[writer](url, str(local.parent / "images"))
    assert google.requests == []
    assert google.objects == before


@pytest.mark.parametrize("source", ["", "/shard-*.tar"])
def test_a_source_that_must_be_listed_is_refused(google: GoogleStore, url: str, tmp_path: Path, source: str) -> None:
    with pytest.raises(StoreError, match=r"a web server can't list its files; name them one by one"):
        shard(url + source, str(tmp_path / "out"))
    assert google.requests == []


def test_a_store_behind_a_web_server_deletes_nothing(google: GoogleStore, url: str) -> None:
    with pytest.raises(StoreError, match="a web server is only read"):
        open_store(url).delete("index.bin")
    assert google.requests == []
