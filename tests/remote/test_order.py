"""The order of remote sets: lanes unless the caller says otherwise, kept by a run wherever its set then lies."""

from __future__ import annotations

import copy
import json
import warnings
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import ConcatDataset, Subset

from feeder.dataset.mixture import Mixture
from feeder.dataset.shard_reader import ShardReader
from feeder.dataset.shards import ShardDataset
from feeder.errors import ArgumentError
from feeder.loader.dataloader import DataLoader
from feeder.order.buckets import Buckets
from feeder.order.lanes import Lanes
from feeder.order.sample_order import Window
from feeder.transforms import BUCKET, Compose, RandomCrop, Resize
from tests.support.batches import check_same, copied_epoch, sample_ids
from tests.support.fault_proxy import FaultProxy
from tests.support.loader_data import write_shards
from tests.support.processes import wait_until
from tests.support.remote import Bucket
from tests.support.remote_sets import end_fetchers, make_set

_SIZE, _PER_SHARD = 150, 6


class _RemoteReader(ShardReader):
    """Reads a local set as if it was remote."""

    is_remote = True
    store_bytes = 2_000_000_000
    cache_bytes = 2_000_000_000


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """25 shards of 6 samples."""
    return write_shards(tmp_path_factory.mktemp("shards"), _SIZE, _PER_SHARD)


@pytest.fixture(scope="module")
def local(shards: Path) -> ShardDataset:
    return ShardDataset(shards, Resize((8, 8)), fields=("index",))


@pytest.fixture
def remote(shards: Path) -> ShardDataset:
    return _remote(shards)


@pytest.fixture
def small_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_RemoteReader, "cache_bytes", 500_000_000)


@pytest.fixture(autouse=True)
def _small_lanes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lanes of a size for sets as small as these."""
    monkeypatch.setattr(Lanes.__init__, "__defaults__", (4, 8, None))


def _remote(shards: Path, transform: Any = None) -> ShardDataset:
    dataset = ShardDataset(shards, transform or Resize((8, 8)), fields=("index",))
    dataset.reader.__class__ = _RemoteReader
    return dataset


def _loader(dataset: Any, batch_size: int = 5, **options: Any) -> DataLoader[Any]:
    keywords: dict[str, Any] = {"shuffle": True, "seed": 4} | options
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "(.* is remote, so|this loader runs torch's path)")
        return DataLoader(dataset, batch_size, **keywords)


def _ids(loader: DataLoader[Any]) -> list[int]:
    return sample_ids(copied_epoch(loader))


def test_a_remote_set_is_shuffled_in_lanes_and_says_so(local: ShardDataset, remote: ShardDataset) -> None:
    with pytest.warns(UserWarning, match=r"is remote, so shuffle=True shuffles it in lanes.*feeder.Lanes\(\)"):
        loader = DataLoader(remote, 5, shuffle=True, seed=4)
    epochs = [_ids(loader), _ids(loader)]
    assert loader.state_dict()["shuffle"] == {"lanes": 4, "window": 8, "block": 5}
    given = DataLoader(local, 5, shuffle=Lanes(), seed=4)
    assert [_ids(given), _ids(given)] == epochs
    assert _ids(DataLoader(remote, 5, shuffle=Lanes(), seed=4)) == epochs[0]
    assert _ids(DataLoader(remote, 5, shuffle=False)) == list(range(_SIZE))
    assert _ids(DataLoader(remote, 5, shuffle=Window(8), seed=4)) == _ids(_loader(local, shuffle=Window(8)))


def test_one_rank_says_so_for_all(remote: ShardDataset) -> None:
    assert len(_ids(DataLoader(remote, 5, shuffle=True, rank=1, world_size=2, seed=0))) == _SIZE // 2


def test_a_run_keeps_its_lanes_on_a_local_copy(shards: Path, local: ShardDataset, remote: ShardDataset) -> None:
    begun = _loader(remote)
    fresh, iterator = begun.state_dict(), iter(begun)
    seen = sample_ids([next(iterator) for _ in range(7)])
    state = json.loads(json.dumps(begun.state_dict()))
    whole = [_ids(loader) for loader in [_loader(local, shuffle=Lanes())] * 2]
    for dataset in (local, _remote(shards)):
        for shuffle in (True, Lanes()):
            resumed = _loader(dataset, 6, shuffle=shuffle)
            resumed.load_state_dict(state)
            assert seen + _ids(resumed) == whole[0]
            assert _ids(resumed) == whole[1]
            resumed.load_state_dict(fresh)
            assert list(copy.copy(resumed.sampler)) == whole[0]
        with pytest.raises(ArgumentError, match="shuffle is"):
            _loader(dataset, shuffle="full").load_state_dict(state)


def test_a_run_keeps_its_full_shuffle_in_a_store(local: ShardDataset, remote: ShardDataset) -> None:
    begun = _loader(local)
    iterator = iter(begun)
    seen = sample_ids([next(iterator) for _ in range(7)])
    state = begun.state_dict()
    for shuffle in (True, "full"):
        resumed = _loader(remote, shuffle=shuffle)
        resumed.load_state_dict(state)
        assert seen + _ids(resumed) == _ids(_loader(local))
    with pytest.raises(ArgumentError, match="shuffle is True"):
        _loader(remote, shuffle=Lanes()).load_state_dict(state)


def test_a_full_shuffle_that_does_not_fit_the_cache_is_refused(
    shards: Path, local: ShardDataset, remote: ShardDataset, small_cache: None
) -> None:
    match = (
        r"the 2 GB of .* do not fit its cache of 0.5 GB: give shuffle=feeder.Lanes\(\), or cache_bytes=2_000_000_000"
    )
    recipe = Compose([Resize(BUCKET, cover=True), RandomCrop(BUCKET)])
    buckets = {"sizes": Buckets(sizes=[(8, 8), (8, 16)])}
    joined: Any = ConcatDataset([local, remote])
    for dataset, options in (
        (remote, {"shuffle": "full"}),
        (Subset(remote, range(9)), {"shuffle": "full"}),
        (joined, {"shuffle": "full"}),
        (_remote(shards, recipe), buckets),
    ):
        with pytest.raises(ArgumentError, match=match):
            _loader(dataset, **options)
    with pytest.raises(ArgumentError, match=match):
        _loader(remote).load_state_dict(_loader(local).state_dict())
    assert sorted(_ids(_loader(joined))) == sorted([*range(_SIZE)] * 2)
    assert _ids(_loader(remote)) == _ids(_loader(local, shuffle=Lanes()))


def test_a_full_shuffle_can_be_asked_for_by_name(local: ShardDataset, remote: ShardDataset) -> None:
    whole = _ids(_loader(local))
    for dataset in (local, remote):
        loader = DataLoader(dataset, 5, shuffle="full", seed=4)
        assert loader.state_dict()["shuffle"] is True
        assert _ids(loader) == whole
    assert sorted(DataLoader(range(9), shuffle="full", batch_size=None)) == list(range(9))
    with pytest.raises(ArgumentError, match=r"shuffle must be .* got 'fully'"):
        DataLoader(local, 5, shuffle="fully")  # type: ignore[arg-type]


def test_parts_of_a_remote_set_are_shuffled_in_lanes(local: ShardDataset, remote: ShardDataset) -> None:
    chosen = [*range(100, 150), *range(50)]
    begun = _loader(Subset(remote, chosen))
    ids = _ids(begun)
    assert sorted(ids) == sorted(chosen)
    assert ids == _ids(_loader(Subset(local, chosen), shuffle=Lanes()))
    state = begun.state_dict()
    with pytest.raises(ArgumentError, match="does not fit"):
        _loader(Subset(local, chosen)).load_state_dict(state)
    resumed = _loader(Subset(local, chosen), shuffle=Lanes())
    resumed.load_state_dict(state)
    in_order = _loader(Subset(remote, sorted(chosen))).state_dict()
    resumed = _loader(Subset(local, sorted(chosen)))
    resumed.load_state_dict(in_order)
    assert _ids(resumed) == ids


def test_damaged_lanes_of_a_state_are_refused(local: ShardDataset, remote: ShardDataset) -> None:
    state = _loader(remote).state_dict()
    for damaged in ({"lanes": 0}, {"window": "8"}, {"block": None}, {"lanes": None}):
        with pytest.raises(ArgumentError, match="shuffle is"):
            _loader(local).load_state_dict(state | {"shuffle": state["shuffle"] | damaged})


@pytest.mark.parametrize("workers", [0, 1])
def test_buckets_and_samplers_get_the_batches_of_a_local_set_from_a_store(
    bucket: Bucket, tmp_path: Path, workers: int
) -> None:
    local = make_set(tmp_path, shards=4)
    bucket.upload(local, "set")
    recipe = Compose([Resize(BUCKET, cover=True), RandomCrop(BUCKET)])
    buckets = Buckets(sizes=[(8, 8), (8, 16)])
    ways: list[tuple[Any, dict[str, Any]]] = [
        (recipe, {"sizes": buckets, "shuffle": True}),
        (Resize((8, 8)), {"sampler": [15, 3, 3, 8, 0, 12], "shuffle": None}),
    ]
    with end_fetchers(tmp_path):
        for number, (transform, options) in enumerate(ways):
            keywords = options | {"num_workers": workers}
            here = ShardDataset(local, transform, fields=("index",))
            cache = tmp_path / f"cache-{number}"
            there = ShardDataset(f"{bucket.url}/set", transform, fields=("index",), cache_dir=cache)
            loader = _loader(there, 4, **keywords)
            assert loader.path == "fast"
            check_same(copied_epoch(loader), copied_epoch(_loader(here, 4, **keywords)))
            assert loader.stats()["remote"]["bytes"] > 0
            loader.close()


@pytest.mark.parametrize(("shuffle", "workers"), [(True, 1), (Window(8), 0)], ids=str)
def test_a_mixture_has_the_batches_of_local_sets_with_one_from_a_store(
    bucket: Bucket, tmp_path: Path, shuffle: Any, workers: int
) -> None:
    local = make_set(tmp_path, shards=4)
    bucket.upload(local, "set")
    here, other = (ShardDataset(local, Resize((8, 8)), fields=("index",)) for _ in range(2))
    with end_fetchers(tmp_path):
        there = ShardDataset(f"{bucket.url}/set", here.recipe, fields=("index",), cache_dir=tmp_path / "cache")
        loaders = [
            _loader(
                Mixture({"a": each, "b": other}, {"a": 2, "b": 1}, samples=40), 4, shuffle=shuffle, num_workers=workers
            )
            for each in (here, there)
        ]
        for _ in range(2):
            check_same(*map(copied_epoch, loaders))
        assert loaders[1].stats()["remote"]["bytes"] > 0
        rest = []
        for loader in loaders:
            batches = iter(loader)
            next(batches)
            loader.dataset.set_weights({"a": 1, "b": 3}, at_sample=104)  # read ahead anew
            rest.append(copied_epoch(batches))
        check_same(*rest)
        small = ShardDataset(f"{bucket.url}/set", here.recipe, cache_dir=tmp_path / "small", cache_bytes=1_000_000)
        with pytest.raises(ArgumentError, match=r"do not fit its cache of 0.001 GB: give shuffle=feeder.Lanes\(\)"):
            _loader(Mixture({"a": small}), 4)
        loaders[1].close()


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_fetches_its_shards_of_a_mixture_in_lanes_ahead_and_no_others(
    fault_proxy: FaultProxy, bucket: Bucket, tmp_path: Path, rank: int
) -> None:
    shards = {"a": 16, "b": 8}
    local = {name: make_set(tmp_path / name, shards=count, first=count) for name, count in shards.items()}
    for name, folder in local.items():
        bucket.upload(folder, name)

    def loader_of(paths: dict[str, Any]) -> DataLoader[Any]:
        sets = {
            name: ShardDataset(path, Resize((8, 8)), ("index",), cache_dir=tmp_path / "cache")
            for name, path in paths.items()
        }
        mixture = Mixture(sets, {"a": 3, "b": 1}, samples=64)
        return _loader(mixture, 4, shuffle=Lanes(2, 8), rank=rank, world_size=2, num_workers=0)

    def needed(batches: list[Any]) -> set[str]:
        """The shards of batches, as "SET/NAME"."""
        sources = [source for batch in batches for source in batch[3].tolist()]
        samples = zip(sample_ids(batches), sources, strict=True)
        return {f"{'ab'[source]}/shard-{index // 4:06d}.tar" for index, source in samples}

    def fetched() -> set[str]:
        targets = [request.target.split("?")[0] for request in fault_proxy.requests()]
        return {"/".join(target.split("/")[-2:]) for target in targets if target.endswith(".tar")}

    with end_fetchers(tmp_path):
        here, there = loader_of(local), loader_of({name: f"{bucket.url}/{name}" for name in local})
        epochs = [copied_epoch(here), copied_epoch(here)]
        batches = iter(there)
        wait_until(lambda: needed(epochs[0][:4]) <= fetched())  # before a batch is asked for
        check_same(copied_epoch(batches), epochs[0])
        check_same(copied_epoch(there), epochs[1])
        there.close()
    assert fetched() == needed(epochs[0] + epochs[1])
    halves = {(name[0], int(name[-10:-4]) // (shards[name[0]] // 2)) for name in fetched()}
    assert halves == {("a", rank), ("b", rank)}


def test_a_run_in_a_store_goes_on_with_a_local_copy_and_comes_back(bucket: Bucket, tmp_path: Path) -> None:
    with end_fetchers(tmp_path):
        local = make_set(tmp_path)
        bucket.upload(local, "set")
        url, recipe = f"{bucket.url}/set", Resize((8, 8))
        here = ShardDataset(local, recipe, fields=("index",))
        there = ShardDataset(url, recipe, fields=("index",), cache_dir=tmp_path / "cache")
        whole = _ids(_loader(here, 4, shuffle=Lanes()))
        state: Any = None
        seen: list[int] = []
        for dataset in (there, here, there):
            loader = _loader(dataset, 4)
            if state is not None:
                loader.load_state_dict(state)
            iterator = iter(loader)
            seen += sample_ids([next(iterator) for _ in range(3)])
            state = json.loads(json.dumps(loader.state_dict()))
            loader.close()
        assert seen == whole[:36]
        assert state["shuffle"] == {"lanes": 4, "window": 8, "block": 4}
        small = ShardDataset(url, recipe, cache_dir=tmp_path / "small", cache_bytes=1_000_000)
        with pytest.raises(ArgumentError, match=r"GB of s3://.*/set do not fit its cache of 0.001 GB"):
            _loader(small, 4, shuffle="full")
