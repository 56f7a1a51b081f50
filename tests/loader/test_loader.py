from __future__ import annotations

import copy
import gc
import json
import multiprocessing
import os
import pickle
import random
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from feeder.dataset.folders import FolderDataset
from feeder.dataset.shards import ShardDataset
from feeder.errors import ArgumentError, DecodeError
from feeder.loader.dataloader import DataLoader
from feeder.loader.fast.host_batches import HostBatches
from feeder.order.epoch import Window
from feeder.shard.write.sharding import shard
from feeder.transforms import (
    ColorJitter,
    Compose,
    Lambda,
    Normalize,
    RandomHorizontalFlip,
    RandomResizedCrop,
    Resize,
    ToDtype,
)
from tests.support import images
from tests.support.late_torch import draw_late
from tests.support.loader_data import encode, write_shards
from tests.support.noise import add_noise

RECIPE = Compose([RandomResizedCrop(16), RandomHorizontalFlip()])


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_shards(tmp_path_factory.mktemp("shards"), 50)


def _epoch(loader: Any) -> list[tuple[Any, ...]]:
    """An epoch's batches, in memory of their own."""
    return [tuple(x.clone() if isinstance(x, torch.Tensor) else x for x in batch) for batch in loader]


def _same(a: list[tuple[Any, ...]], b: list[tuple[Any, ...]]) -> bool:
    return len(a) == len(b) and all(
        torch.equal(x, y) if isinstance(x, torch.Tensor) else x == y
        for p, q in zip(a, b, strict=True)
        for x, y in zip(p, q, strict=True)
    )


def _ids(batches: list[tuple[Any, ...]]) -> list[int]:
    return [i for batch in batches for i in batch[2].tolist()]


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_hold_images_labels_and_fields(shards: Path, workers: int) -> None:
    dataset = ShardDataset(shards, RECIPE, fields=("index", "key", "json"))
    loader = DataLoader(dataset, batch_size=8, num_workers=workers)
    batches = _epoch(loader)
    assert len(loader) == len(batches) == 7
    images, labels, index, keys, parsed = batches[6]
    assert images.shape == (2, 3, 16, 16)
    assert images.dtype == torch.uint8
    assert images[:, 0].float().mean((1, 2)).tolist() == [48, 49]
    assert labels.tolist() == [48 % 7, 49 % 7]
    assert labels.dtype == index.dtype == torch.int64
    assert index.tolist() == [48, 49]
    assert keys == ["00000048", "00000049"]
    assert parsed == [{"i": 48}, {"i": 49}]


def test_floats_where_the_recipe_asks_for_them(shards: Path) -> None:
    recipe = Compose([RandomResizedCrop(16), ToDtype("float32", scale=True), Normalize([0.5] * 3, [0.25] * 3)])
    images, _ = next(iter(DataLoader(ShardDataset(shards, recipe), batch_size=4, num_workers=1)))
    assert images.dtype == torch.float32
    assert images.shape == (4, 3, 16, 16)
    half = Compose([RandomResizedCrop(16), ToDtype("bfloat16", scale=True)])
    images, _ = next(iter(DataLoader(ShardDataset(shards, half), batch_size=4, num_workers=1)))
    assert images.dtype == torch.bfloat16
    assert 0 <= images.min() <= images.max() <= 1


def test_same_pixels_and_order_whatever_the_workers(shards: Path) -> None:
    dataset = ShardDataset(shards, RECIPE, fields=("index", "key"))
    options: list[dict[str, Any]] = [
        {},
        {"num_workers": 1},
        {"num_workers": 3, "prefetch_factor": 5},
        {"num_workers": 2, "persistent_workers": True},
        {"num_workers": 2, "multiprocessing_context": "fork"},
    ]
    runs = []
    for option in options:
        loader = DataLoader(dataset, batch_size=8, shuffle=True, seed=5, **option)
        runs.append([_epoch(loader) for _ in range(3)])
    for run in runs[1:]:
        assert all(_same(a, b) for a, b in zip(run, runs[0], strict=True))
    epochs = [_ids(epoch) for epoch in runs[0]]
    assert all(sorted(ids) == list(range(50)) for ids in epochs)
    assert len({tuple(ids) for ids in epochs}) == 3


def test_threads_in_a_worker_make_the_same(tmp_path: Path) -> None:
    tree, out = images.make_tree(tmp_path / "images"), str(tmp_path / "shards")
    shard(str(tree), out)
    dataset = ShardDataset(out, Compose([RandomResizedCrop(32), RandomHorizontalFlip()]))
    alone = _epoch(DataLoader(dataset, batch_size=12, shuffle=True, seed=5))
    threads = DataLoader(dataset, batch_size=12, shuffle=True, seed=5, num_workers=1, worker_threads=3)
    assert _same(_epoch(threads), alone)


def test_what_a_function_draws_is_keyed_by_seed_epoch_and_sample(shards: Path) -> None:
    dataset = ShardDataset(shards, Compose([RandomResizedCrop(8), Lambda(add_noise)]), fields=("index",))
    alone, other = DataLoader(dataset, batch_size=8, seed=5), DataLoader(dataset, batch_size=8, seed=6)
    workers = DataLoader(dataset, batch_size=16, num_workers=2, seed=5)
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
    first, second, different = ([image for batch in loader for image in batch[0]] for loader in (alone, alone, other))
    drawn = random.random(), np.random.random(), torch.rand(1).item()
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
    assert drawn == (random.random(), np.random.random(), torch.rand(1).item())
    assert all(map(torch.equal, first, [image for batch in workers for image in batch[0]]))
    assert not any(map(torch.equal, first, second))
    assert not any(map(torch.equal, first, different))


def test_what_a_function_draws_from_torch_is_keyed_from_the_first_image_on(shards: Path) -> None:
    dataset = ShardDataset(shards, Compose([RandomResizedCrop(8), Lambda(draw_late)]))
    alone, workers = (_epoch(DataLoader(dataset, batch_size=8, num_workers=count)) for count in (0, 2))
    assert _same(alone, workers)


def test_workers_under_spawn_make_the_same(shards: Path) -> None:
    dataset = ShardDataset(shards, RECIPE)
    context = multiprocessing.get_context("spawn")
    spawned = DataLoader(dataset, batch_size=16, num_workers=1, multiprocessing_context=context)
    assert _same(_epoch(spawned), _epoch(DataLoader(dataset, batch_size=16)))


def test_augmentation_changes_with_epoch_and_seed(shards: Path) -> None:
    dataset = ShardDataset(shards, RECIPE)
    first, second = (torch.cat([x for x, _ in DataLoader(dataset, batch_size=50, seed=s)]) for s in (1, 2))
    assert not torch.equal(first, second)
    loader = DataLoader(dataset, batch_size=50, seed=1)
    epochs = [next(iter(loader))[0] for _ in range(2)]
    assert torch.equal(epochs[0], first)
    assert not torch.equal(epochs[0], epochs[1])


def test_set_epoch_chooses_the_next_and_those_after_go_on(shards: Path) -> None:
    dataset = ShardDataset(shards, RECIPE, fields=("index",))
    plain = DataLoader(dataset, batch_size=8, shuffle=True)
    epochs = [_epoch(plain) for _ in range(4)]
    loader = DataLoader(dataset, batch_size=8, shuffle=True)
    loader.set_epoch(2)
    assert _same(_epoch(loader), epochs[2])
    assert _same(_epoch(loader), epochs[3])
    loader.set_epoch(0)
    assert _same(_epoch(loader), epochs[0])
    loader.set_epoch(torch.tensor(3))  # type: ignore[arg-type]
    assert json.loads(json.dumps(loader.state_dict()))["epoch"] == 3
    with pytest.raises(ArgumentError, match="epoch"):
        loader.set_epoch(-1)
    with pytest.raises(TypeError, match="integer"):
        loader.set_epoch(1.5)  # type: ignore[arg-type]


def test_seed_is_drawn_from_the_generator_where_there_is_no_other(shards: Path) -> None:
    dataset = ShardDataset(shards, RECIPE, fields=("index",))

    def loader(**options: Any) -> Any:
        return DataLoader(dataset, batch_size=8, shuffle=True, **options)

    generator = torch.Generator().manual_seed(7)
    first = loader(generator=generator)
    drawn = first.state_dict()["seed"]
    assert drawn == first.seed == torch.empty((), dtype=torch.int64).random_(generator=generator.manual_seed(7)).item()
    epochs = [_ids(_epoch(first)) for _ in range(2)]
    assert epochs[0] != epochs[1]
    again = loader(generator=torch.Generator().manual_seed(7))
    assert [_ids(_epoch(again)) for _ in range(2)] == epochs
    assert _ids(_epoch(loader(seed=drawn))) == epochs[0]
    assert _ids(_epoch(loader(generator=torch.Generator().manual_seed(8)))) != epochs[0]
    assert loader(seed=3, generator=generator).seed == 3
    assert loader().seed == 0
    resumed = loader(seed=drawn)
    resumed.load_state_dict(first.state_dict())
    assert _same(_epoch(resumed), _epoch(first))


def test_order_is_kept_also_where_it_need_not_be(shards: Path) -> None:
    dataset = ShardDataset(shards, RECIPE, fields=("index",))
    loader = DataLoader(dataset, batch_size=4, num_workers=2, in_order=False)
    assert _ids(_epoch(loader)) == list(range(50))
    assert loader.in_order is False


def test_sampler_that_the_loader_shows_has_its_order(shards: Path) -> None:
    dataset = ShardDataset(shards, RECIPE, fields=("index",))
    for shuffle, kind in ((True, torch.utils.data.RandomSampler), (False, torch.utils.data.SequentialSampler)):
        loader: Any = DataLoader(dataset, batch_size=8, shuffle=shuffle, seed=4)
        assert isinstance(loader.sampler, kind)
        assert loader.batch_sampler.sampler is loader.sampler
        epochs = [_ids(_epoch(loader)) for _ in range(2)]
        assert [list(loader.sampler) for _ in range(2)] == epochs
        copied = pickle.loads(pickle.dumps(loader))
        copied.sampler.set_epoch(1)
        assert list(copied.sampler) == epochs[1]
    explicit = [3, 1, 2]
    assert DataLoader(dataset, sampler=explicit).sampler is explicit


@pytest.mark.parametrize("workers", [0, 1])
def test_epoch_told_to_the_sampler_is_that_of_an_iterator_made_before(shards: Path, workers: int) -> None:
    dataset = ShardDataset(shards, RECIPE, fields=("index",))
    plain = DataLoader(dataset, batch_size=8, shuffle=True)
    epochs = [_epoch(plain) for _ in range(4)]
    loader: Any = DataLoader(dataset, batch_size=8, shuffle=True, num_workers=workers)
    iterator = iter(loader)
    loader.sampler.set_epoch(2)
    first = next(iterator)
    loader.sampler.set_epoch(1)  # too late for this one
    assert _same([first, *_epoch(iterator)], epochs[2])
    assert _same(_epoch(loader), epochs[1])
    state = loader.state_dict()
    assert state["epoch"] == 2
    half = iter(loader)
    next(half)
    loader.load_state_dict(loader.state_dict())
    rest = iter(loader)
    loader.sampler.set_epoch(2)  # where it is already
    assert _same(_epoch(rest), epochs[2][1:])


def test_window_shuffle_sees_every_sample_once(shards: Path) -> None:
    dataset = ShardDataset(shards, RECIPE, fields=("index",))
    ids = _ids(_epoch(DataLoader(dataset, batch_size=8, shuffle=Window(16))))
    assert sorted(ids) == list(range(50))
    assert ids != list(range(50))


def test_ranks_take_equal_batches_and_share_the_epoch(shards: Path) -> None:
    dataset = ShardDataset(shards, RECIPE, fields=("index",))
    whole = _ids(_epoch(DataLoader(dataset, batch_size=24, shuffle=True)))
    loaders = [DataLoader(dataset, batch_size=8, shuffle=True, rank=r, world_size=3) for r in range(3)]
    epochs = [_epoch(loader) for loader in loaders]
    assert [len(e) for e in epochs] == [len(loader) for loader in loaders] == [3, 3, 3]
    joined = [i for step in zip(*epochs, strict=True) for batch in step for i in batch[2].tolist()]
    assert joined[:50] == whole
    padded = [i for loader in loaders for i in loader.stats()["padded"]]
    assert joined[50:] == padded == whole[:1]
    dropped = [DataLoader(dataset, batch_size=8, drop_last=True, rank=r, world_size=3) for r in range(3)]
    assert [len(loader) for loader in dropped] == [2, 2, 2]


def test_torchruns_variables_give_the_rank(shards: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    dataset = ShardDataset(shards, RECIPE, fields=("index",))
    with pytest.warns(UserWarning, match="rank 1 of 2"):
        assert _ids(_epoch(DataLoader(dataset, batch_size=5, drop_last=True))) == [
            i for t in range(5) for i in range(10 * t + 5, 10 * t + 10)
        ]


def test_a_split_of_the_stored_order_that_nobody_asked_for_is_told_once(
    shards: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "3")
    dataset = ShardDataset(shards, RECIPE, fields=("index",))
    loader = DataLoader(dataset, batch_size=5)
    with pytest.warns(UserWarning, match="rank 1 of 3 gets its part.*, 17 of 50 samples.*rank=0, world_size=1") as told:
        assert len(_ids(_epoch(loader))) == 17
    assert told[0].filename == __file__  # where it is iterated
    _epoch(loader)  # not a second time: a warning is an error here
    chosen: tuple[dict[str, Any], ...] = ({"shuffle": True}, {"rank": 0, "world_size": 1}, {"sampler": range(1, 50, 3)})
    for options in chosen:
        counted = _ids(_epoch(DataLoader(dataset, batch_size=5, **options)))
    assert counted == [*range(1, 50, 3)]


@pytest.mark.parametrize("workers", [0, 2])
def test_an_explicit_sampler_replaces_order_and_rank_split(
    shards: Path, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    dataset = ShardDataset(shards, RECIPE, fields=("index",))
    loader = DataLoader(dataset, batch_size=3, sampler=[5, 4, 49, 4, -50], num_workers=workers)
    assert len(loader) == 2
    assert [b[2].tolist() for b in loader] == [[5, 4, 49], [4, 0]]
    batches = [[1], [2, 3, 4, 5, 6], [7, 8], list(range(20))]
    loader = DataLoader(dataset, batch_sampler=batches, num_workers=workers)
    assert [b[2].tolist() for b in loader] == batches
    with pytest.raises(IndexError, match="50"):
        list(DataLoader(dataset, sampler=[50], num_workers=workers))
    with pytest.raises(ArgumentError, match="batch 1 is empty"):
        list(DataLoader(dataset, batch_sampler=[[0, 1], [], [2]], num_workers=workers))


@pytest.mark.parametrize("workers", [0, 1])
def test_samplers_may_have_no_end_and_no_length(shards: Path, workers: int) -> None:
    class Endless:
        def __iter__(self) -> Iterator[int]:
            while True:
                yield from range(7)

    dataset = ShardDataset(shards, RECIPE, fields=("index",))
    loader = DataLoader(dataset, batch_size=5, sampler=Endless(), num_workers=workers)
    iterator: Any = iter(loader)
    assert [next(iterator)[2].tolist() for _ in range(2)] == [[0, 1, 2, 3, 4], [5, 6, 0, 1, 2]]
    resumed = DataLoader(dataset, batch_size=5, sampler=Endless())
    resumed.load_state_dict(loader.state_dict())
    assert next(iter(resumed))[2].tolist() == [3, 4, 5, 6, 0]
    with pytest.raises(TypeError):
        len(iterator)


@pytest.mark.parametrize("workers", [0, 2])
def test_bad_sample_raises_by_name_and_the_next_batch_follows(tmp_path: Path, workers: int) -> None:
    dataset = ShardDataset(write_shards(tmp_path, 24, bad=(9,)), RECIPE, fields=("index",))
    iterator = iter(DataLoader(dataset, batch_size=8, num_workers=workers))
    assert next(iterator)[2].tolist() == list(range(8))
    with pytest.raises(DecodeError, match="00000009") as caught:
        next(iterator)
    assert caught.value.shard == "shard-000000.tar"
    assert caught.value.offset_bytes is not None
    assert next(iterator)[2].tolist() == list(range(16, 24))
    assert next(iterator, None) is None


def test_skipped_samples_have_the_same_substitutes_whatever_the_workers(tmp_path: Path) -> None:
    dataset = ShardDataset(write_shards(tmp_path, 40, bad=(3, 9, 10, 11)), RECIPE, fields=("index", "key"))
    runs = []
    for options in ({}, {"num_workers": 2}, {"num_workers": 3, "prefetch_factor": 1}):
        loader = DataLoader(dataset, batch_size=8, on_error="skip", seed=3, **options)  # type: ignore[arg-type]
        runs.append((_epoch(loader), loader.stats()))
    for batches, stats in runs:
        assert _same(batches, runs[0][0])
        assert stats["substitutions"] == runs[0][1]["substitutions"]
    ids = _ids(runs[0][0])
    assert [i for i in range(40) if ids[i] != i] == [3, 9, 10, 11]
    assert not {3, 9, 10, 11} & set(ids)
    ledger = runs[0][1]["substitutions"]
    assert [entry["position"] for entry in ledger] == [3, 9, 10, 11]
    assert [entry["key"] for entry in ledger] == [f"{i:08d}" for i in (3, 9, 10, 11)]
    assert all(entry["shard"] == "shard-000000.tar" and entry["offset_bytes"] and entry["reason"] for entry in ledger)
    assert [entry["substitute"] for entry in ledger] == [ids[i] for i in (3, 9, 10, 11)]


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"seed": 1}, "^seed is for feeder's datasets, .* Here the dataset is a list. Leave it out; .*manual_seed"),
        ({"backend": "cpu", "on_error": "skip"}, "^backend, on_error are for .*Leave them out$"),
        ({"rank": 0, "world_size": 2}, "^rank, world_size are for .*DistributedSampler splits the samples"),
        ({"shuffle": Window(4)}, r"^shuffle=Window\(...\) is for "),
    ],
)
def test_an_argument_that_other_datasets_do_not_take_is_named_alone(options: Any, named: str) -> None:
    with pytest.raises(ArgumentError, match=named):
        DataLoader([1, 2], **options)


def test_loaders_show_what_they_are(tmp_path: Path) -> None:
    dataset = ShardDataset(write_shards(tmp_path, 8), RECIPE)
    fast = DataLoader(dataset, batch_size=4, shuffle=True, num_workers=2, device="cpu")
    held = f"DataLoader({dataset!r}, batch_size=4, "
    assert repr(fast) == f"{held}shuffle=True, num_workers=2, seed=0, device='cpu', path='fast')"
    assert repr(DataLoader(dataset, 4, sampler=[1])) == f"{held}sampler=list, num_workers=0, seed=0, path='fast')"
    plain = DataLoader(range(9), shuffle=True)
    assert repr(plain) == "DataLoader(range, batch_size=1, shuffle=True, num_workers=0, path='generic')"
    batches = DataLoader(range(9), batch_sampler=[[1, 2]])
    assert repr(batches) == "DataLoader(range, batch_sampler=list, num_workers=0, path='generic')"
    assert repr(DataLoader.__new__(DataLoader)).startswith("<feeder.loader.dataloader.DataLoader object")


@pytest.mark.parametrize("workers", [0, 2])
def test_the_end_of_an_epoch_tells_of_skipped_samples(tmp_path: Path, workers: int) -> None:
    folder = write_shards(tmp_path, 40, bad=(3, 9, 10, 11, 17, 29, 31, 39))
    loader = DataLoader(ShardDataset(folder, RECIPE), batch_size=8, on_error="skip", num_workers=workers)
    told = r"^8 of 40 samples of epoch 0 \(20.00%\) were bad, .*; the first: 00000003: .*stats\(\)\['substitutions'\]"
    with pytest.warns(UserWarning, match=told) as caught:
        _epoch(loader)
    assert [warning.filename for warning in caught] == [__file__]
    with pytest.warns(UserWarning, match="^8 of 40 samples of epoch 1 ") as caught:
        _epoch(loader)
    assert len(caught) == 1


def test_an_epoch_without_bad_samples_tells_of_none(tmp_path: Path) -> None:
    loader = DataLoader(ShardDataset(write_shards(tmp_path, 8), RECIPE), batch_size=8, on_error="skip")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _epoch(loader)


def test_nothing_but_bad_samples_is_an_error_even_when_skipping(tmp_path: Path) -> None:
    dataset = ShardDataset(write_shards(tmp_path, 4, bad=(0, 1, 2, 3)), RECIPE)
    with pytest.raises(DecodeError, match="substitutes"):
        next(iter(DataLoader(dataset, batch_size=2, on_error="skip")))


def test_unreadable_files_of_a_folder_are_skipped_too(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    for i in range(6):
        (tmp_path / f"a/{i}.png").write_bytes(encode(i))
    dataset = FolderDataset(tmp_path, RECIPE, fields=("key",))
    os.unlink(tmp_path / "a/2.png")
    (tmp_path / "a/4.png").write_bytes(b"")
    loader = DataLoader(dataset, batch_size=6, on_error="skip", num_workers=1)
    (batch,) = _epoch(loader)
    assert [k for k, name in enumerate(batch[2]) if name != f"a/{k}.png"] == [2, 4]
    assert [s["key"] for s in loader.stats()["substitutions"]] == ["a/2.png", "a/4.png"]


@pytest.mark.parametrize("persistent", [False, True])
def test_held_batches_never_change(shards: Path, persistent: bool) -> None:
    dataset = ShardDataset(shards, RECIPE)
    loader = DataLoader(dataset, batch_size=2, num_workers=2, persistent_workers=persistent)
    expected = _epoch(DataLoader(dataset, batch_size=2))
    with pytest.warns(RuntimeWarning, match="held at a time") as caught:
        held = list(loader)
    assert [warning.filename for warning in caught if warning.category is RuntimeWarning] == [__file__]
    for _ in loader:
        pass
    assert _same(held, expected)


def test_break_and_iterating_again(shards: Path) -> None:
    dataset = ShardDataset(shards, RECIPE, fields=("index",))
    for persistent in (False, True):
        loader = DataLoader(dataset, batch_size=4, num_workers=2, persistent_workers=persistent)
        for _ in range(3):
            for batch in loader:
                assert batch[2].tolist() == [0, 1, 2, 3]
                break
        assert _ids(_epoch(loader)) == list(range(50))


def test_two_iterators_at_once(shards: Path) -> None:
    dataset = ShardDataset(shards, RECIPE, fields=("index",))
    loader = DataLoader(dataset, batch_size=4, num_workers=2)
    pairs = zip(iter(loader), iter(loader), strict=True)
    assert [a[2].tolist() == b[2].tolist() for a, b in pairs] == [True] * 13


def test_iterator_of_a_loader_that_is_gone(shards: Path) -> None:
    dataset = ShardDataset(shards, RECIPE, fields=("index",))
    iterator = iter(DataLoader(dataset, batch_size=4, num_workers=1))
    gc.collect()
    assert _ids(_epoch(iterator)) == list(range(50))


def test_length_of_loader_and_iterator(shards: Path) -> None:
    loader = DataLoader(ShardDataset(shards, RECIPE), batch_size=8)
    iterator: Any = iter(loader)
    assert (len(loader), len(iterator)) == (7, 7)
    next(iterator)
    assert (len(loader), len(iterator)) == (7, 6)


def test_memory_limit_makes_fewer_slots_and_refuses_what_cannot_fit(shards: Path) -> None:
    dataset = ShardDataset(shards, RECIPE, fields=("index",))
    slot = 4096 + 8192  # three numbers a row; 8 images of 3 x 16 x 16
    loader = DataLoader(dataset, batch_size=8, num_workers=2, memory_limit_bytes=2 * slot)
    assert _ids(_epoch(loader)) == list(range(50))
    tight = DataLoader(dataset, batch_size=8, num_workers=2, memory_limit_bytes=2 * slot - 1)
    with pytest.raises(ArgumentError, match="memory_limit_bytes"):
        iter(tight)


def _meet(folder: Path) -> None:
    """Lets no worker begin before two have left a file: one alone may have made all batches before another begins."""
    while len(os.listdir(folder)) < 2:
        time.sleep(0.001)


def test_worker_init_fn_runs_in_every_worker(shards: Path, tmp_path: Path) -> None:
    def init(number: int) -> None:
        (tmp_path / f"worker{number}").touch()
        _meet(tmp_path)

    _epoch(DataLoader(ShardDataset(shards, RECIPE), num_workers=2, worker_init_fn=init))
    assert sorted(os.listdir(tmp_path)) == ["worker0", "worker1"]


def test_worker_init_fn_finds_torchs_worker_info(shards: Path, tmp_path: Path) -> None:
    def init(number: int) -> None:
        info = torch.utils.data.get_worker_info()
        assert info is not None
        dataset: Any = info.dataset
        seen = info.id, info.num_workers, len(dataset), info.seed == torch.initial_seed()
        (tmp_path / f"worker{number}").write_text(repr(seen))
        _meet(tmp_path)

    _epoch(DataLoader(ShardDataset(shards, RECIPE), num_workers=2, seed=2**64 - 1, worker_init_fn=init))
    assert [(tmp_path / f"worker{k}").read_text() for k in (0, 1)] == [repr((k, 2, 50, True)) for k in (0, 1)]


@pytest.mark.parametrize("persistent", [False, True])
def test_worker_init_fn_finds_another_seed_in_each_epoch_that_workers_start_in(
    shards: Path, tmp_path: Path, persistent: bool
) -> None:
    def init(number: int) -> None:
        (tmp_path / str(torch.initial_seed() - number)).touch()

    for rank in (0, 1):
        loader = DataLoader(
            ShardDataset(shards, RECIPE),
            batch_size=8,
            num_workers=2,
            rank=rank,
            world_size=2,
            worker_init_fn=init,
            persistent_workers=persistent,
        )
        for _ in range(2):
            _epoch(loader)
    assert len(os.listdir(tmp_path)) == (2 if persistent else 4)


def test_a_timeout_without_workers_is_refused_as_torch_does(shards: Path) -> None:
    with pytest.raises(AssertionError, match="timeout must be 0"):
        iter(DataLoader(ShardDataset(shards, RECIPE), timeout=5))


def test_it_is_torchs_loader_with_its_attributes(shards: Path) -> None:
    dataset = ShardDataset(shards, RECIPE)
    loader = DataLoader(dataset, batch_size=8, shuffle=True, num_workers=2, seed=4)
    assert isinstance(loader, torch.utils.data.DataLoader)
    assert (loader.batch_size, loader.num_workers, loader.prefetch_factor, loader.seed) == (8, 2, 2, 4)
    assert loader.dataset is dataset
    with pytest.raises(ValueError, match="batch_size"):
        loader.batch_size = 4
    with pytest.raises(ValueError, match="num_workers"):
        DataLoader(dataset, num_workers=-1)


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_copied_loader_works(shards: Path, duplicate: Any) -> None:
    loader = DataLoader(ShardDataset(shards, RECIPE), batch_size=8, shuffle=True, num_workers=1)
    expected = _epoch(loader)
    assert _same(_epoch(duplicate(loader)), expected)


@pytest.mark.parametrize(
    "arguments",
    [
        {"seed": -1},
        {"seed": 1.0},
        {"seed": "0"},
        {"rank": 0},
        {"rank": 2, "world_size": 2},
        {"on_error": "ignore"},
        {"worker_threads": 0},
        {"hang_timeout_s": 0},
        {"backend": "magic"},
    ],
)
def test_bad_arguments_are_refused(shards: Path, arguments: dict[str, Any]) -> None:
    with pytest.raises(ArgumentError):
        DataLoader(ShardDataset(shards, RECIPE), **arguments)


def test_other_datasets_take_torchs_path() -> None:
    loader = DataLoader(torch.arange(10), batch_size=4)
    assert [b.tolist() for b in loader] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    for options in ({"rank": 0, "world_size": 2}, {"seed": 0}, {"shuffle": Window(4)}, {"fidelity": "exact"}):
        with pytest.raises(ArgumentError, match="feeder's datasets"):
            DataLoader(torch.arange(10), **options)


def test_what_would_have_no_effect_any_more_is_not_assigned(shards: Path) -> None:
    loader = DataLoader(ShardDataset(shards, RECIPE), batch_size=8)
    vars(loader)["_DataLoader__initialized"] = False  # as timm's MultiEpochsDataLoader passes torch's own check
    for name in ("seed", "collate_fn", "mix", "batch_sampler"):
        before = getattr(loader, name)
        with pytest.raises(ArgumentError, match=name):
            setattr(loader, name, len)
        assert getattr(loader, name) is before
    loader.whatever = 1
    generic = DataLoader(torch.arange(4), batch_size=2)
    generic.collate_fn = len
    assert list(generic) == [2, 2]


def test_options_of_the_fast_path_are_refused_with_what_it_lacks(shards: Path) -> None:
    dataset = ShardDataset(shards, RECIPE)
    concatenated: Any = torch.utils.data.ConcatDataset([dataset, ShardDataset(shards, Resize(8))])
    cases: list[tuple[Any, dict[str, Any], str]] = [
        (concatenated, {}, "the dataset is a ConcatDataset"),
        (torch.arange(10), {}, "the dataset is a Tensor"),
        (ShardDataset(shards, Resize(8)), {}, r"Resize\(\(height, width\)\)"),
        (dataset, {"batch_size": None}, "batch_size is None"),
    ]
    for given, arguments, message in cases:
        with pytest.raises(ArgumentError, match=message):
            DataLoader(given, fidelity="exact", **arguments)


@pytest.mark.parametrize("workers", [0, 1])
def test_threads_share_an_iterator(shards: Path, workers: int) -> None:
    dataset = ShardDataset(shards, RECIPE, fields=("index",))
    ahead = 8 if workers else None  # with slots enough for what two threads hold
    iterator = iter(DataLoader(dataset, num_workers=workers, prefetch_factor=ahead))
    with ThreadPoolExecutor(2) as threads:
        taken = list(threads.map(_ids, [iterator, iterator]))
    assert sorted(taken[0] + taken[1]) == list(range(50))


def test_images_without_a_fixed_size_take_torchs_path(shards: Path) -> None:
    dataset = ShardDataset(shards, Resize(8))
    with pytest.warns(UserWarning, match="runs torch's path"):
        loader = DataLoader(dataset, batch_size=4)
    images, labels = next(iter(loader))
    assert images.shape == (4, 3, 8, 10)
    assert labels.tolist() == [0, 1, 2, 3]


class _AsDict(torch.utils.data.Dataset[Any]):
    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __len__(self) -> int:
        return len(self.inner)

    def __getitem__(self, i: int) -> Any:
        return {"label": self.inner[i][1]}


def test_a_feeder_dataset_on_torchs_path_is_warned_of_once_with_the_reason_and_the_way_out(
    shards: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = ShardDataset(shards, RECIPE)
    subset = torch.utils.data.Subset(dataset, [1, 2])
    cases: list[tuple[Any, dict[str, Any], str]] = [
        (_AsDict(dataset), {}, "the dataset is a _AsDict around a ShardDataset: give the ShardDataset itself"),
        (_AsDict(_AsDict(subset)), {"num_workers": 1}, "a _AsDict around a ShardDataset"),
        (_AsDict([dataset]), {}, "a _AsDict around a ShardDataset"),
        (ShardDataset(shards, Resize(8)), {}, r"images have sizes of their own: .*\(\(height, width\)\), or give a"),
        (dataset, {"batch_size": None}, "batch_size is None: give batch_size"),
    ]
    for given, arguments, message in cases:
        with pytest.warns(UserWarning, match=message) as caught:
            loader = DataLoader(given, **arguments)
        assert [warning.filename for warning in caught] == [__file__]
        assert loader.path == loader.stats()["path"] == "generic"
        assert loader.stats()["path_reason"] in str(caught[0].message)
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.warns(UserWarning, match="Each of the 2 ranks gets all samples, unless a sampler splits them"):
        DataLoader(_AsDict(dataset))
    for quiet in (DataLoader(dataset), DataLoader(subset), DataLoader(torch.arange(3))):
        assert quiet.stats()["path"] == quiet.path
        assert quiet.stats()["path_reason"] is None
    assert DataLoader(subset).path == "fast"
    assert DataLoader(torch.arange(3)).path == "generic"


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # has threads, and forks all the same
def test_auto_workers_do_not_warn_of_torchs_path_once_more(shards: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("feeder.loader.auto_workers.RUN_S", 0.01)
    with pytest.warns(UserWarning, match="runs torch's path") as caught:
        DataLoader(_AsDict(ShardDataset(shards, RECIPE)), batch_size=8, num_workers="auto")
    assert len(caught) == 1


def test_a_script_without_a_main_guard_runs(shards: Path) -> None:
    script = f"""
from feeder.dataset.shards import ShardDataset
from feeder.loader.dataloader import DataLoader
from feeder.transforms import RandomResizedCrop
loader = DataLoader(ShardDataset({str(shards)!r}, RandomResizedCrop(8)), batch_size=10, num_workers=2)
print(sum(len(labels) for _, labels in loader))
"""
    command = [sys.executable, "-W", "ignore:This DataLoader will create", "-c", script]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert (result.stdout, result.stderr) == ("50\n", "")


# --- resume


@pytest.mark.parametrize("workers", [0, 2])
def test_resume_after_every_step_gives_what_an_unbroken_run_gives(shards: Path, workers: int) -> None:
    dataset = ShardDataset(shards, RECIPE, fields=("index",))
    options: dict[str, Any] = {"batch_size": 8, "shuffle": True, "seed": 9}
    unbroken = DataLoader(dataset, **options)
    flat = [batch for _ in range(3) for batch in _epoch(unbroken)]
    per_epoch = len(unbroken)
    running = DataLoader(dataset, num_workers=workers, **options)
    states = []
    for _ in range(2):
        for _ in running:
            states.append(json.loads(json.dumps(running.state_dict())))
    for step, state in enumerate(states, 1):
        resumed = DataLoader(dataset, num_workers=workers if step % 5 == 0 else 0, **options)
        resumed.load_state_dict(state)
        assert resumed.state_dict() == state
        iterator: Any = iter(resumed)
        assert len(iterator) == per_epoch - (step - 1) % per_epoch - 1
        rest = _epoch(iterator) + _epoch(resumed)
        assert _same(rest, flat[step : step + len(rest)])


@pytest.mark.parametrize("workers", [0, 1])
def test_state_after_a_loop_that_was_broken_off_is_where_it_was(shards: Path, workers: int) -> None:
    dataset = ShardDataset(shards, RECIPE, fields=("index",))
    options: dict[str, Any] = {"batch_size": 8, "shuffle": True, "num_workers": workers}
    epochs = [_epoch(loader := DataLoader(dataset, **options)), _epoch(loader)]
    for how in ("break", "close"):
        loader = DataLoader(dataset, **options)
        for number, _ in enumerate(loader, 1):
            if number == 3 and how == "break":
                break
            if number == 3:
                loader.close()
        state = loader.state_dict()
        resumed = DataLoader(dataset, **options)
        resumed.load_state_dict(state)
        assert _same(_epoch(resumed), epochs[0][3:])
        assert _same(_epoch(loader), epochs[1])  # as ever, the next iterator goes on to the next epoch
    loader = DataLoader(dataset, **options)
    for _ in loader:
        break
    loader.set_epoch(1)
    assert (loader.state_dict()["epoch"], loader.state_dict()["consumed"]) == (1, 0)


@pytest.mark.parametrize("workers", [0, 1])
def test_state_after_an_interrupt_before_the_first_batch_is_the_epochs_beginning(
    shards: Path, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    dataset = ShardDataset(shards, RECIPE, fields=("index",))
    loader = DataLoader(dataset, batch_size=8, shuffle=True, num_workers=workers)
    epochs = [_epoch(loader) for _ in range(2)]
    loader.set_epoch(1)
    with monkeypatch.context() as patched:
        patched.setattr(HostBatches, "next", interrupt)
        with pytest.raises(KeyboardInterrupt):
            for _ in loader:
                pass
    state = loader.state_dict()
    assert (state["epoch"], state["consumed"]) == (1, 0)
    resumed = DataLoader(dataset, batch_size=8, shuffle=True)
    resumed.load_state_dict(state)
    assert _same(_epoch(resumed), epochs[1])


def test_an_iterator_that_could_not_be_made_takes_no_epoch_and_no_place_away(
    shards: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    dataset = ShardDataset(shards, RECIPE, fields=("index",))
    loader = DataLoader(dataset, batch_size=8, shuffle=True)
    epoch = _epoch(loader)
    resumed = DataLoader(dataset, batch_size=8, shuffle=True)
    resumed.load_state_dict({**resumed.state_dict(), "consumed": 16})
    state = resumed.state_dict()
    with monkeypatch.context() as patched:
        patched.setattr(HostBatches, "__init__", interrupt)
        with pytest.raises(KeyboardInterrupt):
            iter(resumed)
    assert resumed.state_dict() == state
    assert _same(_epoch(resumed), epoch[2:])


def test_state_between_epochs_starts_the_next_one(shards: Path) -> None:
    dataset = ShardDataset(shards, RECIPE, fields=("index",))
    loader = DataLoader(dataset, batch_size=8, shuffle=True)
    epochs = [_epoch(loader) for _ in range(2)]
    fresh = DataLoader(dataset, batch_size=8, shuffle=True)
    assert fresh.state_dict()["epoch"] == 0
    _epoch(fresh)
    state = fresh.state_dict()
    assert (state["epoch"], state["consumed"]) == (1, 0)
    resumed = DataLoader(dataset, batch_size=8, shuffle=True)
    resumed.load_state_dict(state)
    assert _same(_epoch(resumed), epochs[1])


def test_set_epoch_of_the_loaded_epoch_keeps_the_place(shards: Path) -> None:
    dataset = ShardDataset(shards, RECIPE, fields=("index",))
    loader = DataLoader(dataset, batch_size=8, shuffle=True)
    loader.set_epoch(3)
    iterator = iter(loader)
    next(iterator)
    state = loader.state_dict()
    rest = _epoch(iterator)
    resumed = DataLoader(dataset, batch_size=8, shuffle=True)
    resumed.load_state_dict(state)
    resumed.set_epoch(3)
    assert _same(_epoch(resumed), rest)
    resumed.load_state_dict(state)
    resumed.set_epoch(4)
    assert len(_epoch(resumed)) == len(loader)


@pytest.mark.parametrize("state", [None, [], {}, "state"])
def test_what_is_no_state_is_refused(shards: Path, state: Any) -> None:
    with pytest.raises(ArgumentError, match="expected a state"):
        DataLoader(ShardDataset(shards, RECIPE)).load_state_dict(state)


@pytest.mark.parametrize("at", [0, 1, 3])
def test_resume_with_other_world_sizes_sees_every_sample_once(shards: Path, at: int) -> None:
    """1 -> 2 -> 3 -> 1 ranks, with other batch sizes and worker counts."""
    dataset = ShardDataset(shards, RECIPE, fields=("index",))
    seen: list[int] = []
    padded: list[int] = []
    state: dict[str, Any] | None = None
    for world_size, batch_size in ((1, 4), (2, 5), (3, 2), (1, 7)):
        loaders = [
            DataLoader(dataset, batch_size=batch_size, shuffle=True, rank=r, world_size=world_size, num_workers=r % 2)
            for r in range(world_size)
        ]
        for loader in loaders:
            if state is not None:
                loader.load_state_dict(state)
        iterators = [iter(loader) for loader in loaders]
        left = len(iterators[0])
        for _ in range(left if batch_size == 7 else min(at, left)):
            for iterator in iterators:
                seen += next(iterator)[2].tolist()
        states = [loader.state_dict() for loader in loaders]
        assert all(s == states[0] for s in states)
        state = states[0]
        padded += [i for loader in loaders for i in loader.stats()["padded"]]
    for i in padded:
        seen.remove(i)
    assert sorted(seen) == list(range(50))


def test_resume_with_an_explicit_sampler_skips_its_batches(shards: Path) -> None:
    dataset = ShardDataset(shards, RECIPE, fields=("index",))
    sampler: Any = torch.utils.data.distributed.DistributedSampler(dataset, 2, 1, shuffle=True)
    loader = DataLoader(dataset, batch_size=4, sampler=sampler)
    iterator = iter(loader)
    next(iterator)
    state = loader.state_dict()
    rest = _epoch(iterator)
    resumed = DataLoader(dataset, batch_size=4, sampler=sampler, num_workers=1)
    resumed.load_state_dict(state)
    assert _same(_epoch(resumed), rest)


@pytest.mark.parametrize("workers", [0, 2])
def test_what_a_sampler_repeats_is_augmented_anew_each_time(shards: Path, workers: int) -> None:
    dataset = ShardDataset(shards, RECIPE, fields=("index",))
    loader = DataLoader(dataset, batch_size=3, sampler=[5, 5, 9, -45, 49, 5, 5], num_workers=workers)
    iterator = iter(loader)
    first = _epoch([next(iterator)])
    state = loader.state_dict()
    rest = _epoch(iterator)
    assert _ids(first + rest) == [5, 5, 9, 5, 49, 5, 5]
    images = torch.cat([batch[0] for batch in first + rest])
    fives = images[[0, 1, 3, 5, 6]]
    assert len(torch.unique(fives, dim=0)) == 5
    assert {label for batch in first + rest for label in batch[1].tolist()} == {5, 2, 0}
    once = next(iter(DataLoader(dataset, batch_size=3, sampler=[5, 9, 49])))[0]
    assert torch.equal(images[[0, 2, 4]], once)
    resumed = DataLoader(dataset, batch_size=3, sampler=[5, 5, 9, -45, 49, 5, 5])
    resumed.load_state_dict(state)
    assert _same(_epoch(resumed), rest)


@pytest.mark.parametrize("device", [None, "cpu"])
def test_what_comes_after_the_crop_is_drawn_anew_for_each_repeat_too(shards: Path, device: str | None) -> None:
    dataset = ShardDataset(shards, Compose([Resize((16, 16)), ColorJitter(0.9), Normalize([0.5] * 3, [0.5] * 3)]))
    images, _ = next(iter(DataLoader(dataset, batch_size=4, sampler=[5, 5, 5, 5], device=device)))
    assert len(torch.unique(images, dim=0)) == 4


@pytest.mark.parametrize("workers", [0, 1])
def test_a_bad_sample_that_a_sampler_repeats_is_named_each_time(tmp_path: Path, workers: int) -> None:
    dataset = ShardDataset(write_shards(tmp_path, 20, bad=(3,)), RECIPE, fields=("index",))
    iterator = iter(DataLoader(dataset, sampler=[3, 3], num_workers=workers))
    for _ in range(2):
        with pytest.raises(DecodeError, match="sample '00000003'"):
            next(iterator)
    loader = DataLoader(dataset, sampler=[3, 3], num_workers=workers, on_error="skip")
    made = _ids(_epoch(loader))
    assert made == [s["substitute"] for s in loader.stats()["substitutions"]]
    assert 3 not in made


def test_states_that_do_not_fit_are_refused_with_the_reason(shards: Path, tmp_path: Path) -> None:
    dataset = ShardDataset(shards, RECIPE)
    state = DataLoader(dataset, shuffle=True, seed=1).state_dict()
    other = ShardDataset(write_shards(tmp_path, 49), RECIPE)
    for loader, reason in [
        (DataLoader(dataset, shuffle=True, seed=2), "seed"),
        (DataLoader(dataset, shuffle=False, seed=1), "shuffle"),
        (DataLoader(dataset, shuffle=Window(8), seed=1), "shuffle"),
        (DataLoader(other, shuffle=True, seed=1), "samples"),
    ]:
        with pytest.raises(ArgumentError, match=reason):
            loader.load_state_dict(state)
    fitting = DataLoader(dataset, shuffle=True, seed=1)
    generic = DataLoader(torch.arange(4))
    no_states: tuple[Any, ...] = (1, None, [], "state", True)
    for no_state in no_states:
        for loader in (fitting, generic):
            with pytest.raises(ArgumentError, match="a state that state_dict\\(\\) gave"):
                loader.load_state_dict(no_state)
    with pytest.raises(ArgumentError, match=r"StatefulDataLoader.*fingerprint"):
        generic.load_state_dict(state)
    with pytest.raises(ArgumentError, match="version 1"):
        fitting.load_state_dict(generic.state_dict())
    for bad, reason in [
        (state | {"epoch": True}, "epoch"),
        (state | {"consumed": False}, "False"),
        ({}, "version"),
        (state | {"version": 99}, "99"),
        (state | {"backend": "dali"}, "backend"),
        (state | {"fingerprint": "0"}, "fingerprint"),
        (state | {"consumed": 51}, "51"),
        (state | {"consumed": None}, "sampler"),
        (state | {"epoch": None}, "epoch"),
    ]:
        with pytest.raises(ArgumentError, match=reason):
            fitting.load_state_dict(bad)


def test_exact_fidelity_is_within_a_level_of_pillow_and_part_of_the_state(tmp_path: Path) -> None:
    photos = tmp_path / "images" / "c"
    photos.mkdir(parents=True)
    for i in range(8):
        (photos / f"{i}.jpg").write_bytes(images.encode(images.pixels(i, 160, 120), quality=90))
    shard(str(tmp_path / "images"), str(tmp_path / "shards"))
    dataset = ShardDataset(str(tmp_path / "shards"), RandomResizedCrop(48))

    def pixels(**options: Any) -> torch.Tensor:
        (batch,) = DataLoader(dataset, batch_size=8, **options)
        return batch[0].to(torch.int32)

    reference = pixels(backend="pillow")
    exact, fast = pixels(backend="cpu", fidelity="exact"), pixels(backend="cpu")
    assert (exact - reference).abs().max() <= 1
    assert not torch.equal(fast, exact)
    state = DataLoader(dataset, fidelity="exact").state_dict()
    with pytest.raises(ArgumentError, match="its fidelity is 'exact', this loader's is 'fast'"):
        DataLoader(dataset).load_state_dict(state)
    with pytest.raises(ArgumentError, match="fidelity"):
        DataLoader(dataset, fidelity="best")  # type: ignore[arg-type]


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.filterwarnings("ignore:this loader runs torch's path")
def test_images_of_different_sizes_name_the_op_that_is_missing(tmp_path: Path, workers: int) -> None:
    folder = tmp_path / "c"
    folder.mkdir()
    for i in range(4):
        (folder / f"{i}.jpg").write_bytes(images.encode(images.pixels(i, 40 + 8 * i, 30)))
    for recipe, missing in (
        (Resize(16), r"Resize\(size=\(16,\).*\) keeps each image's shape\. Put CenterCrop, RandomCrop"),
        (RandomHorizontalFlip(), "the recipe leaves images at their sizes. Put CenterCrop"),
    ):
        loader = DataLoader(FolderDataset(tmp_path, transform=recipe), batch_size=4, num_workers=workers)
        with pytest.raises(ArgumentError, match=f"different sizes: {missing}"):
            next(iter(loader))
    same = FolderDataset(tmp_path, transform=Resize((16, 16)))
    assert next(iter(DataLoader(same, batch_size=4)))[0].shape == (4, 3, 16, 16)
