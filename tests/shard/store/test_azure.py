"""Azure Blob Storage, before Microsoft's own emulator."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import feeder
from feeder import transforms as T
from feeder.errors import ChangedError, ConflictError, NotFoundError, StoreError
from feeder.shard.store.open_store import open_store
from feeder.shard.store.store import RANGE_BYTES
from feeder.shard.write.sharding import shard
from feeder.tools.cli import main
from tests.support.azure_server import AzureServer, azurite_is_installed
from tests.support.batches import copied_epoch, sample_ids
from tests.support.remote_sets import end_fetchers, make_set
from tests.support.shard_sets import contents, kept


@pytest.fixture(scope="module")
def azure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AzureServer]:
    if not azurite_is_installed():
        pytest.skip("needs Azurite: npm install -g azurite")
    server = AzureServer(tmp_path_factory.mktemp("azure"))
    yield server
    server.close()


@pytest.fixture
def url(azure: AzureServer, monkeypatch: pytest.MonkeyPatch) -> str:
    """URL of a new container."""
    for name, value in azure.environment().items():
        monkeypatch.setenv(name, value)
    name = f"test-{uuid.uuid4()}"
    azure.create_container(name)
    return f"az://{name}"


def test_objects_of_azure_are_read_and_written_on_conditions(url: str) -> None:
    store = open_store(f"{url}/set")
    first = store.put("a b.tar", b"first", if_absent=True)
    with pytest.raises(ConflictError):
        store.put("a b.tar", b"second", if_absent=True)
    second = store.put("a b.tar", b"second", if_match=first)
    with pytest.raises(ConflictError):
        store.put("a b.tar", b"third", if_match=first)
    with pytest.raises(ChangedError):
        store.get("a b.tar", 0, 2, first.etag)
    assert store.get("a b.tar", 1, 3, second.etag) == b"ec"
    assert [(entry.key, entry.etag) for entry in store.list()] == [("a b.tar", second.etag)]
    store.delete("a b.tar")
    store.delete("a b.tar")
    with pytest.raises(NotFoundError, match=rf"{url}/set/a b\.tar \(at 127\.0\.0\.1:\d+\): there is no such object"):
        store.get("a b.tar")


def test_a_large_file_is_sent_in_parts_and_read_in_ranges(url: str, tmp_path: Path) -> None:
    data = bytes(range(251)) * (RANGE_BYTES // 120)
    (tmp_path / "large").write_bytes(data)
    store = open_store(url)
    entry = store.put("large", tmp_path / "large")
    assert (entry.size_bytes, store.get("large") == data) == (len(data), True)
    assert store.get("large", 5, len(data) - 1, entry.etag) == data[5:-1]


def test_a_set_is_written_to_azure_trained_from_and_read_back(url: str, tmp_path: Path) -> None:
    make_set(tmp_path, shards=4)
    shard(str(tmp_path / "images"), f"{url}/set", kept(samples_per_shard=4))
    shard(str(tmp_path / "images"), str(tmp_path / "kept"), kept(samples_per_shard=4))
    recipe = T.Compose([T.CenterCrop(16)])
    options: dict[str, Any] = {"shuffle": feeder.Lanes(1, 4), "num_workers": 1, "seed": 1}

    def ids(path: str) -> list[int]:
        data = feeder.ShardDataset(path, recipe, fields=("index",), cache_dir=tmp_path / "cache")
        return sample_ids(copied_epoch(feeder.DataLoader(data, 4, **options)))

    with end_fetchers(tmp_path):
        assert ids(f"{url}/set") == ids(str(tmp_path / "kept"))
    assert main(["inspect", f"{url}/set", "--verify"]) == 0
    assert main(["export", f"{url}/set", "--out", str(tmp_path / "out")]) == 0
    assert contents(tmp_path / "out") == contents(tmp_path / "images")


def test_errors_of_azure_name_the_reason_and_no_key(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(StoreError, match=r"there is no such (bucket|object)"):
        list(open_store("az://none").list())
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", "c2VjcmV0")
    with pytest.raises(StoreError, match="403") as caught:
        open_store(url).size("a")
    assert "c2VjcmV0" not in str(caught.value)
