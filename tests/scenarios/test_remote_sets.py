"""Training from a set in a bucket: the samples of a local copy, in its order, whichever way they are loaded."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.utils.data

import feeder
from feeder import transforms as T
from feeder.errors import ArgumentError, FormatError, StoreError
from tests.support import ROOT
from tests.support.fault_proxy import FaultProxy, Faults
from tests.support.processes import all_ended
from tests.support.remote import Bucket
from tests.support.remote_sets import asked_bytes, end_fetchers, make_set, upload

SHUFFLE = feeder.Lanes(2, 8)


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The set as a local folder, of 64 samples in 16 shards."""
    return make_set(tmp_path_factory.mktemp("local"))


@pytest.fixture
def url(bucket: Bucket, local: Path, tmp_path: Path) -> Iterator[str]:
    """The set in a bucket."""
    with end_fetchers(tmp_path):
        yield upload(bucket, local)


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def dataset(path: Any, cache: Path | None = None, **options: Any) -> feeder.ShardDataset:
    return feeder.ShardDataset(str(path), T.Compose([T.RandomResizedCrop(32)]), ["key"], cache_dir=cache, **options)


def loader(data: Any, **options: Any) -> feeder.DataLoader:
    return feeder.DataLoader(data, batch_size=8, seed=1, **{"shuffle": SHUFFLE, "num_workers": 2, **options})


def digests(batches: Iterable[Any]) -> list[str]:
    """One for each batch, of its pixels, labels and keys."""
    found = []
    for images, labels, keys in batches:
        digest = hashlib.sha256(np.ascontiguousarray(images).tobytes())
        digest.update(np.ascontiguousarray(labels).tobytes() + repr(list(keys)).encode())
        found.append(digest.hexdigest())
    return found


def test_an_epoch_from_a_bucket_is_that_of_a_local_copy(url: str, local: Path, cache: Path) -> None:
    remote = loader(dataset(url, cache))
    expected = digests(loader(dataset(local)))
    assert digests(remote) == expected
    size = sum(path.stat().st_size for path in local.iterdir() if path.suffix in (".tar", ".fidx", ".bin"))
    assert remote.stats()["remote"]["waits"] > 0
    remote.set_epoch(0)
    assert digests(remote) == expected
    assert size / 2 < asked_bytes(remote) <= 1.02 * size


def test_samples_come_one_by_one_and_from_pickles(url: str, local: Path, cache: Path) -> None:
    here, there = dataset(local), dataset(url, cache)
    plain, remote = here.reader, pickle.loads(pickle.dumps(there)).reader
    ids = np.array([0, 63, 5])
    expected = [bytes(buffer) for buffer in plain.read(ids).buffers]
    assert [bytes(buffer) for buffer in remote.read(ids).buffers] == expected
    assert [remote.field(i, "key") for i in (0, 40)] == [plain.field(i, "key") for i in (0, 40)]
    assert len(there) == 64
    assert there.classes == here.classes
    assert there[3][1:] == here[3][1:]


@pytest.mark.parametrize("method", [None, "fork"])
def test_the_workers_of_every_kind_read_it(url: str, local: Path, cache: Path, method: str | None) -> None:
    expected = digests(loader(dataset(local), num_workers=0))
    data = dataset(url, cache)
    data.reader.read(np.array([0]))  # this process has a connection of its own before it forks
    assert digests(loader(data, multiprocessing_context=method)) == expected
    assert digests(loader(data, num_workers=0)) == expected


def test_torchs_loader_reads_it(url: str, local: Path, cache: Path) -> None:
    def labels(path: Any, cache: Path | None = None) -> list[Any]:
        batches = torch.utils.data.DataLoader(dataset(path, cache), batch_size=8, num_workers=2)
        return [(labels.tolist(), keys) for _, labels, keys in batches]

    assert labels(url, cache) == labels(local)


def test_a_run_resumes_within_an_epoch_on_an_empty_cache(url: str, local: Path, cache: Path) -> None:
    expected = digests(loader(dataset(local)))
    first = loader(dataset(url, cache / "a"))
    iterator = iter(first)
    digests(next(iterator) for _ in range(3))
    state = first.state_dict()
    second = loader(dataset(url, cache / "b"))
    second.load_state_dict(state)
    assert digests(second) == expected[3:]
    copy = loader(dataset(local), shuffle=True)
    copy.load_state_dict(state)
    assert digests(copy) == expected[3:]


def test_a_fetcher_that_dies_in_an_epoch_changes_no_batch(url: str, local: Path, cache: Path) -> None:
    expected, found = digests(loader(dataset(local))), []
    for number, batch in enumerate(loader(dataset(url, cache))):
        if number in (0, 3, 5):
            pid = int(next(cache.rglob("fetcher.lock")).read_text())
            os.kill(pid, signal.SIGKILL)
            assert all_ended([pid])
            for path in cache.rglob("*.tar"):
                path.unlink()  # what was cached has to come again
        found += digests([batch])
    assert found == expected


def test_an_epoch_over_a_bad_network_is_the_same(url: str, local: Path, cache: Path, fault_proxy: FaultProxy) -> None:
    fault_proxy.set(Faults({"cut": 0.1, "flip": 0.1, "reset": 0.1, "503": 0.1}, seed=3))
    remote = loader(dataset(url, cache))
    assert digests(remote) == digests(loader(dataset(local)))
    counts = remote.stats()["remote"]
    assert counts["retries"] > 0
    assert counts["wrong"] > 0


def read_epoch(data: feeder.ShardDataset, rank: int, results: Any) -> None:
    results.put((rank, digests(loader(data, rank=rank, world_size=2, num_workers=0))))


def test_two_ranks_on_a_machine_download_one_copy(url: str, local: Path, cache: Path) -> None:
    data, context = dataset(url, cache), multiprocessing.get_context("fork")
    results = context.Queue()
    ranks = [context.Process(target=read_epoch, args=(data, rank, results)) for rank in range(2)]
    for each in ranks:
        each.start()
    found = dict(results.get(timeout=60) for _ in ranks)
    for rank, each in enumerate(ranks):
        each.join()
        assert found[rank] == digests(loader(dataset(local), rank=rank, world_size=2, num_workers=0))
    size = sum(path.stat().st_size for path in local.iterdir() if path.suffix in (".tar", ".fidx", ".bin"))
    assert asked_bytes(loader(data)) <= 1.02 * size


def test_a_cache_for_a_part_of_the_set_downloads_the_others_in_each_epoch(url: str, local: Path, cache: Path) -> None:
    total = sum(path.stat().st_size for path in local.glob("*.tar"))
    budget = total * 3 // 4
    options: dict[str, Any] = {"batch_size": 4, "seed": 1, "shuffle": feeder.Lanes(1, 4), "num_workers": 1}
    remote = feeder.DataLoader(dataset(url, cache, cache_bytes=budget), **options)
    expected = feeder.DataLoader(dataset(local), **options)
    for epoch in range(3):
        remote.set_epoch(epoch)
        expected.set_epoch(epoch)
        assert digests(remote) == digests(expected)
        assert remote.stats()["remote"]["cached_bytes"] <= budget
    assert 1.1 * total < asked_bytes(remote) <= 3.3 * total


def test_a_cache_that_is_too_small_for_the_order_is_refused(url: str, cache: Path) -> None:
    small = loader(dataset(url, cache, cache_bytes=1 << 20), shuffle=feeder.Lanes(1, 16))
    with pytest.raises(StoreError, match=r"bytes of cache are too few: .* Give cache_bytes="):
        iter(small)


def test_a_set_that_was_replaced_is_read_anew_and_refused_to_pickles(
    url: str, bucket: Bucket, cache: Path, tmp_path: Path
) -> None:
    data = dataset(url, cache)
    pickled = pickle.dumps(data)
    other = make_set(tmp_path / "other", shards=4)
    upload(bucket, other)
    now = dataset(url, cache)
    assert len(now) == 16
    assert [bytes(each) for each in now.reader.read(np.arange(16)).buffers] == [
        bytes(each) for each in dataset(other).reader.read(np.arange(16)).buffers
    ]
    with pytest.raises(FormatError, match="it was replaced by another index"):
        pickle.loads(pickled)


def test_a_cache_is_no_set(url: str, cache: Path) -> None:
    dataset(url, cache)
    folder = next(cache.rglob("fetcher.lock")).parent
    with pytest.raises(ArgumentError, match=rf"is the cache of {url}"):
        dataset(folder)


def test_trainers_and_workers_import_no_client_of_stores(url: str, cache: Path) -> None:
    code = (
        "import sys, feeder\n"
        "data = feeder.ShardDataset(sys.argv[1], cache_dir=sys.argv[2])\n"
        "data[0]\n"
        "assert not {'obstore', 'boto3'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", code, url, str(cache)], check=True, cwd=ROOT)


def test_a_set_that_is_not_there_is_an_error_that_names_it(bucket: Bucket, cache: Path, tmp_path: Path) -> None:
    with end_fetchers(tmp_path), pytest.raises(StoreError, match=rf"{bucket.url}/none/index\.bin"):
        dataset(f"{bucket.url}/none", cache)
