"""Training from a set in a bucket: the samples of a local copy, in its order, whichever way they are loaded."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import pickle
import shutil
import signal
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.utils.data
from PIL import Image
from prometheus_client.parser import text_string_to_metric_families

import feeder
from feeder import transforms as T
from feeder.errors import ArgumentError, FormatError, NotFoundError, StoreError
from feeder.loader.observe.stats import REMOTE_COUNTS
from feeder.shard.cache.presence import Record
from feeder.shard.write.index_tars import index_tars
from feeder.shard.write.set_append import append
from feeder.shard.write.shard_options import ShardOptions
from feeder.shard.write.sharding import shard
from tests.support import ROOT
from tests.support.fault_proxy import FaultProxy, Faults
from tests.support.images import encode, pixels
from tests.support.processes import all_ended, wait_until
from tests.support.remote import Bucket
from tests.support.remote_sets import asked_bytes, end_fetchers, make_set, upload
from tests.support.shard_sets import write_tar

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


@pytest.mark.parametrize("encode", ["seekable", "packed"])
def test_an_epoch_from_a_bucket_is_that_of_a_local_copy(
    bucket: Bucket, local: Path, tmp_path: Path, cache: Path, encode: str
) -> None:
    with end_fetchers(tmp_path):
        made = local if encode == "seekable" else make_set(tmp_path, encoding=encode)
        check_epoch(upload(bucket, made), made, local, cache)


def test_a_scrape_gives_the_counts_of_the_store(bucket: Bucket, local: Path, tmp_path: Path, cache: Path) -> None:
    with end_fetchers(tmp_path):
        remote = loader(dataset(upload(bucket, local), cache), metrics=0)
        for _ in remote:
            pass
        counts = remote.stats()["remote"]
        with urllib.request.urlopen(remote.metrics_url or "", timeout=60) as answer:
            families = {each.name: each for each in text_string_to_metric_families(answer.read().decode())}
        assert counts["bytes"] > 0
        for name in REMOTE_COUNTS.keys() - {"waited_ns"}:
            (sample,) = families[f"feeder_remote_{name}"].samples
            assert sample.value == counts[name], name
        (waited,) = families["feeder_remote_waited_seconds"].samples
        assert waited.value == pytest.approx(counts["waited_ns"] / 1e9)
        remote.close()


def check_epoch(url: str, made: Path, local: Path, cache: Path) -> None:
    """Fails unless two epochs of a set in a store are those of ``local``, and take nearly its bytes from there."""
    remote = loader(dataset(url, cache))
    expected = digests(loader(dataset(local)))
    assert digests(remote) == expected
    size = sum(path.stat().st_size for path in made.iterdir() if path.suffix in (".tar", ".fidx", ".bin"))
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
    # A set has few requests, and which of them gets which fault depends on their order. Blocks of shards are counted.
    flipped = [request for request in fault_proxy.requests() if request.fault == "flip" and ".tar" in request.target]
    assert counts["wrong"] > 0 or not flipped


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


def kept_bytes(cache: Path) -> int:
    """Returns the size of the shards that stay in a cache."""
    records = [Record(str(path)) for path in cache.glob("*/.have/*.tar")]
    return sum(record.size_bytes for record in records if record.is_pinned)


def test_a_cache_that_keeps_half_of_the_set_downloads_the_other_half(url: str, local: Path, cache: Path) -> None:
    total = sum(path.stat().st_size for path in local.glob("*.tar"))
    budget = total * 15 // 16  # beside that half the shards that the order reads from at a time, and two more
    options: dict[str, Any] = {"batch_size": 4, "seed": 1, "shuffle": feeder.Lanes(1, 4), "num_workers": 1}
    remote = feeder.DataLoader(dataset(url, cache, cache_bytes=budget), **options)
    expected = feeder.DataLoader(dataset(local), **options)
    asked = [0]
    for epoch in range(4):
        remote.set_epoch(epoch)
        expected.set_epoch(epoch)
        assert digests(remote) == digests(expected)
        assert remote.stats()["remote"]["cached_bytes"] <= budget
        asked.append(asked_bytes(remote))
    assert 0.4 * total <= kept_bytes(cache) <= 0.6 * total
    first, *later = np.diff(asked).tolist()
    # On a busy machine the plan may be behind the workers, and some shards come twice.
    assert first < 2 * total
    assert all(each <= 1.02 * (total - kept_bytes(cache)) for each in later)


def test_a_cache_that_is_too_small_for_the_order_is_refused(url: str, cache: Path) -> None:
    small = loader(dataset(url, cache, cache_bytes=1 << 20), shuffle=feeder.Lanes(1, 16))
    with pytest.raises(StoreError, match=r"bytes of cache are too few for .* Give cache_bytes="):
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


_NOTES_FORKS = """
import os, sys
def note(event, arguments):
    if event == "os.fork":
        with open(os.environ["FORKS"], "a") as file:
            print("feeder.shard.cache.fetcher" in sys.modules, "obstore" in sys.modules, file=file)
sys.addaudithook(note)
"""


def test_no_process_forks_once_it_has_a_client_of_stores(url: str, cache: Path, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(_NOTES_FORKS)
    code = (
        "import sys, feeder\n"
        "for method in ('fork', 'forkserver'):\n"
        "    data = feeder.ShardDataset(sys.argv[1], feeder.transforms.CenterCrop(32), cache_dir=sys.argv[2])\n"
        "    loader = feeder.DataLoader(data, 8, num_workers=1, multiprocessing_context=method)\n"
        "    assert len(list(loader)) == 8\n"
        "    loader.close()"
    )
    environment = os.environ | {"PYTHONPATH": f"{tmp_path}:{ROOT}", "FORKS": str(tmp_path / "forks")}
    subprocess.run([sys.executable, "-c", code, url, str(cache)], check=True, cwd=tmp_path, env=environment)
    forks = (tmp_path / "forks").read_text().splitlines()
    assert {"False False", "True False"} == {*forks}  # of the trainer, and of the fetcher before it has one


def test_shards_come_before_the_first_batch_is_asked_for(url: str, cache: Path, fault_proxy: FaultProxy) -> None:
    loads = loader(dataset(url, cache), num_workers=0)  # nobody else reads meanwhile

    def shards_asked_for() -> int:
        return len({request.target for request in fault_proxy.requests() if ".tar" in request.target})

    assert not shards_asked_for()
    iterator = iter(loads)
    wait_until(lambda: shards_asked_for() >= 4)  # those of two batches
    assert len(digests(iterator)) == 8
    loads.close()


def test_a_set_that_is_not_there_is_an_error_that_names_it(bucket: Bucket, cache: Path, tmp_path: Path) -> None:
    with end_fetchers(tmp_path), pytest.raises(StoreError, match=rf"{bucket.url}/none/index\.bin"):
        dataset(f"{bucket.url}/none", cache)


def add_samples(folder: Path, url: str, tmp_path: Path) -> None:
    """Adds the same samples to a set and to its copy in a bucket."""
    for k in range(3):
        path = tmp_path / "more" / "class-0" / f"new-{k}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encode(pixels(100 + k, 400, 300)))
    for place in (str(folder), url):
        append(place, str(tmp_path / "more"), ShardOptions())


def test_a_run_goes_on_with_its_version_of_a_set_in_a_bucket(
    url: str, local: Path, bucket: Bucket, cache: Path, tmp_path: Path
) -> None:
    folder = shutil.copytree(local, tmp_path / "set")
    whole = digests(loader(dataset(folder)))
    data = dataset(url, cache)
    old, pickled = loader(data), pickle.dumps(data)
    iterator = iter(old)
    found = digests(next(iterator) for _ in range(2))
    state = old.state_dict()
    add_samples(folder, url, tmp_path)
    newest = loader(dataset(url, cache))
    assert digests(newest) == digests(loader(dataset(folder)))
    assert len(pickle.loads(pickled)) == 64  # as workers open it
    assert found + digests(iterator) == whole
    with pytest.raises(ArgumentError, match=r"ShardDataset\(path, version=1\)"):
        newest.load_state_dict(state)
    for place in (cache, tmp_path / "another"):
        resumed = loader(dataset(url, place, version=1))
        resumed.load_state_dict(state)
        assert digests(resumed) == whole[2:]
    with pytest.raises(ArgumentError, match="has the versions 1 to 2, asked for version 3"):
        dataset(url, cache, version=3)


def test_labels_from_json_come_from_a_bucket(bucket: Bucket, cache: Path, tmp_path: Path) -> None:
    members = [(f"{k}.{name}", data) for k in range(6) for name, data in (
        ("jpg", encode(pixels(k))), ("json", b'{"name": "c%d"}' % (k % 2)))]  # fmt: skip
    (tmp_path / "tars").mkdir()
    write_tar(tmp_path / "tars" / "0.tar", members)
    index_tars(str(tmp_path / "tars"))
    with end_fetchers(tmp_path):
        data = dataset(upload(bucket, tmp_path / "tars"), cache, labels="name")
        assert (data.classes, data.reader.labels().tolist()) == (["c0", "c1"], [0, 1] * 3)


def test_a_job_with_other_credentials_is_refused_while_another_one_reads(
    url: str, local: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = dataset(url, cache)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    with pytest.raises(StoreError, match=rf"{url}: another job .* by other credentials .* another cache_dir"):
        dataset(url, cache)
    with pytest.raises(StoreError, match="another job"):
        dataset(url, cache, allow_http=False if os.environ.get("AWS_ENDPOINT_URL", "").startswith("https") else None)
    assert digests(loader(first)) == digests(loader(dataset(local)))  # its workers have the credentials of its start


def test_a_job_with_other_credentials_gets_bytes_by_its_own_once_the_first_is_over(
    url: str, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader: Any = dataset(url, cache).reader
    reader.mirror.close()
    before = next(cache.rglob("fetcher.lock")).read_text()
    secret = os.environ["AWS_SECRET_ACCESS_KEY"]
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    with pytest.raises(StoreError, match="SignatureDoesNotMatch"):
        dataset(url, cache)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", secret)
    assert len(dataset(url, cache)) == 64
    assert next(cache.rglob("fetcher.lock")).read_text() != before


def test_secrets_are_in_no_file_of_the_cache_and_on_no_command_line(
    url: str, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SESSION_TOKEN_OF_MINE", "s3cr3t-t0k3n")
    data = dataset(url, cache)
    pid = next(cache.rglob("fetcher.lock")).read_text().strip()
    shown = Path(f"/proc/{pid}/cmdline").read_bytes() + pickle.dumps(data)
    files = [path.read_bytes() for path in cache.rglob("*") if path.is_file()]
    for secret in (b"s3cr3t-t0k3n", os.environ["AWS_SECRET_ACCESS_KEY"].encode()):
        assert not [each for each in (shown, *files) if secret in each]


def test_the_url_of_no_set_is_an_error_that_names_it(bucket: Bucket, cache: Path) -> None:
    with pytest.raises(
        NotFoundError, match=r"none/index\.bin.*: there is no such object; expected the URL of a shard set"
    ):
        dataset(f"{bucket.url}/none", cache)


def test_a_cache_may_lie_on_another_file_system(url: str, local: Path) -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as cache, end_fetchers(Path(cache)):
        assert digests(loader(dataset(url, Path(cache)))) == digests(loader(dataset(local)))


@pytest.mark.parametrize("place", ["file/cache", "file", "/sys/feeder-cache"])
def test_a_cache_that_cant_be_made_is_an_error_that_names_it(url: str, tmp_path: Path, place: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ArgumentError, match=r".*: can't be used as a cache: .*; name another cache_dir"):
        dataset(url, tmp_path / place)


def test_a_file_in_the_place_of_the_cache_of_a_set_is_an_error(url: str, cache: Path) -> None:
    dataset(url, cache)
    with end_fetchers(cache):
        pass
    folder = next(cache.iterdir())
    shutil.rmtree(folder)
    folder.write_text("")
    with pytest.raises(ArgumentError, match="can't be used as a cache: File exists"):
        dataset(url, cache)


@pytest.mark.parametrize("path", ["nowhere", "nowhere/index.bin"])
def test_a_local_set_that_is_not_there_is_an_error_that_names_it(tmp_path: Path, path: str) -> None:
    with pytest.raises(FormatError, match=rf"{tmp_path}/nowhere.*feeder shard"):
        dataset(tmp_path / path)


def test_only_the_blocks_of_crops_come_where_that_is_asked_for(bucket: Bucket, cache: Path, tmp_path: Path) -> None:
    for number in range(6):
        path = tmp_path / "images" / "class" / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        noise = np.random.default_rng(number).integers(0, 256, (1600, 1200, 3), np.uint8)
        path.write_bytes(encode(Image.fromarray(noise), quality=95))
    folder = tmp_path / "set"
    shard(str(tmp_path / "images"), str(folder), ShardOptions(samples_per_shard=3))
    url, recipe = upload(bucket, folder), T.Compose([T.RandomResizedCrop(32, scale=(0.001, 0.002))])
    with end_fetchers(tmp_path):
        data = feeder.ShardDataset(url, recipe, ["key"], cache_dir=cache, fetch_crops=True)
        remote = loader(data)
        assert digests(remote) == digests(loader(feeder.ShardDataset(folder, recipe, ["key"])))
        assert remote.stats()["remote"]["bytes"] < sum(path.stat().st_size for path in folder.glob("*.tar")) / 2
