from __future__ import annotations

import copy
import gc
import itertools
import json
import multiprocessing
import os
import pickle
import random
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import default_collate

from feeder.dataset.shards import ShardDataset
from feeder.errors import ArgumentError
from feeder.loader.dataloader import DataLoader
from feeder.loader.options import WorkerOptions
from feeder.order.sample_order import Window
from feeder.shard.write.sharding import shard
from feeder.transforms import (
    ColorJitter,
    Compose,
    Grayscale,
    Lambda,
    Normalize,
    RandomHorizontalFlip,
    RandomResizedCrop,
    Resize,
    ToDtype,
    Views,
)
from tests.support import images
from tests.support.batches import copied_epoch, same_batches, sample_ids
from tests.support.late_torch import draw_late
from tests.support.loader_data import CROP_AND_FLIP
from tests.support.noise import add_noise
from tests.support.processes import wait_until


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_hold_images_labels_and_fields(shards: Path, workers: int) -> None:
    dataset = ShardDataset(shards, CROP_AND_FLIP, fields=("index", "key", "json"))
    loader = DataLoader(dataset, batch_size=8, num_workers=workers)
    batches = copied_epoch(loader)
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
    dataset = ShardDataset(shards, CROP_AND_FLIP, fields=("index", "key"))
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
        runs.append([copied_epoch(loader) for _ in range(3)])
    for run in runs[1:]:
        assert all(same_batches(a, b) for a, b in zip(run, runs[0], strict=True))
    epochs = [sample_ids(epoch) for epoch in runs[0]]
    assert all(sorted(ids) == list(range(50)) for ids in epochs)
    assert len({tuple(ids) for ids in epochs}) == 3


def test_threads_in_a_worker_make_the_same(tmp_path: Path) -> None:
    tree, out = images.make_tree(tmp_path / "images"), str(tmp_path / "shards")
    shard(str(tree), out)
    dataset = ShardDataset(out, Compose([RandomResizedCrop(32), RandomHorizontalFlip()]))
    alone = copied_epoch(DataLoader(dataset, batch_size=12, shuffle=True, seed=5))
    threads = DataLoader(
        dataset, batch_size=12, shuffle=True, seed=5, num_workers=1, worker_options=WorkerOptions(threads=3)
    )
    assert same_batches(copied_epoch(threads), alone)


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


def _halves(image: torch.Tensor) -> torch.Tensor:
    return torch.stack(image.double().split(8, dim=-1))


@pytest.mark.parametrize(
    ("ops", "shape", "dtype"),
    [
        ([Lambda(_halves, on="tensor", keeps_shape=False)], (2, 3, 16, 8), torch.float64),
        ([Grayscale(), ToDtype("float32", scale=True)], (1, 16, 16), torch.float32),
    ],
)
def test_images_of_other_shapes_come_by_all_ways(
    shards: Path, ops: list[Any], shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    dataset = ShardDataset(shards, Compose([RandomResizedCrop(16), *ops]))
    alone = copied_epoch(DataLoader(dataset, batch_size=8, seed=5))
    assert alone[0][0].dtype == dtype
    assert alone[0][0].shape == (8, *shape)
    for options in ({"num_workers": 2}, {"num_workers": 2, "collate_fn": default_collate}):
        assert same_batches(copied_epoch(DataLoader(dataset, batch_size=8, seed=5, **options)), alone), options
    for (found, _), (expected, _) in zip(DataLoader(dataset, 8, seed=5, backend="pillow"), alone, strict=True):
        assert (found - expected).abs().max() < 1.5 / 255  # pillow-simd rounds gray in another way
    views = ShardDataset(shards, Views([dataset.recipe, RandomResizedCrop(8)]))
    images, _ = next(iter(DataLoader(views, batch_size=8, num_workers=1)))
    assert [tuple(each.shape) for each in images] == [(8, *shape), (8, 3, 8, 8)]
    assert dataset[3][0].shape == shape
    (images, _), *_ = torch.utils.data.DataLoader(dataset, batch_size=8)
    assert images.shape == (8, *shape)


def test_what_a_function_draws_from_torch_is_keyed_from_the_first_image_on(shards: Path) -> None:
    dataset = ShardDataset(shards, Compose([RandomResizedCrop(8), Lambda(draw_late)]))
    alone, workers = (copied_epoch(DataLoader(dataset, batch_size=8, num_workers=count)) for count in (0, 2))
    assert same_batches(alone, workers)


def test_workers_under_spawn_make_the_same(shards: Path) -> None:
    dataset = ShardDataset(shards, CROP_AND_FLIP)
    context = multiprocessing.get_context("spawn")
    spawned = DataLoader(dataset, batch_size=16, num_workers=1, multiprocessing_context=context)
    assert same_batches(copied_epoch(spawned), copied_epoch(DataLoader(dataset, batch_size=16)))


def test_augmentation_changes_with_epoch_and_seed(shards: Path) -> None:
    dataset = ShardDataset(shards, CROP_AND_FLIP)
    first, second = (torch.cat([x for x, _ in DataLoader(dataset, batch_size=50, seed=s)]) for s in (1, 2))
    assert not torch.equal(first, second)
    loader = DataLoader(dataset, batch_size=50, seed=1)
    epochs = [next(iter(loader))[0] for _ in range(2)]
    assert torch.equal(epochs[0], first)
    assert not torch.equal(epochs[0], epochs[1])


def test_set_epoch_chooses_the_next_and_those_after_go_on(shards: Path) -> None:
    dataset = ShardDataset(shards, CROP_AND_FLIP, fields=("index",))
    plain = DataLoader(dataset, batch_size=8, shuffle=True)
    epochs = [copied_epoch(plain) for _ in range(4)]
    loader = DataLoader(dataset, batch_size=8, shuffle=True)
    loader.set_epoch(2)
    assert same_batches(copied_epoch(loader), epochs[2])
    assert same_batches(copied_epoch(loader), epochs[3])
    loader.set_epoch(0)
    assert same_batches(copied_epoch(loader), epochs[0])
    loader.set_epoch(torch.tensor(3))  # type: ignore[arg-type]
    assert json.loads(json.dumps(loader.state_dict()))["epoch"] == 3
    with pytest.raises(ArgumentError, match="epoch"):
        loader.set_epoch(-1)
    with pytest.raises(ArgumentError, match="integer"):
        loader.set_epoch(1.5)  # type: ignore[arg-type]


def test_seed_is_drawn_from_the_generator_where_there_is_no_other(shards: Path) -> None:
    dataset = ShardDataset(shards, CROP_AND_FLIP, fields=("index",))

    def loader(**options: Any) -> Any:
        return DataLoader(dataset, batch_size=8, shuffle=True, **options)

    generator = torch.Generator().manual_seed(7)
    first = loader(generator=generator)
    drawn = first.state_dict()["seed"]
    assert drawn == first.seed == torch.empty((), dtype=torch.int64).random_(generator=generator.manual_seed(7)).item()
    epochs = [sample_ids(copied_epoch(first)) for _ in range(2)]
    assert epochs[0] != epochs[1]
    again = loader(generator=torch.Generator().manual_seed(7))
    assert [sample_ids(copied_epoch(again)) for _ in range(2)] == epochs
    assert sample_ids(copied_epoch(loader(seed=drawn))) == epochs[0]
    assert sample_ids(copied_epoch(loader(generator=torch.Generator().manual_seed(8)))) != epochs[0]
    assert loader(seed=3, generator=generator).seed == 3
    assert loader().seed == 0
    resumed = loader(seed=drawn)
    resumed.load_state_dict(first.state_dict())
    assert same_batches(copied_epoch(resumed), copied_epoch(first))


def test_order_is_kept_also_where_it_need_not_be(shards: Path) -> None:
    dataset = ShardDataset(shards, CROP_AND_FLIP, fields=("index",))
    loader = DataLoader(dataset, batch_size=4, num_workers=2, in_order=False)
    assert sample_ids(copied_epoch(loader)) == list(range(50))
    assert loader.in_order is False


def test_sampler_that_the_loader_shows_has_its_order(shards: Path) -> None:
    dataset = ShardDataset(shards, CROP_AND_FLIP, fields=("index",))
    for shuffle, kind in ((True, torch.utils.data.RandomSampler), (False, torch.utils.data.SequentialSampler)):
        loader: Any = DataLoader(dataset, batch_size=8, shuffle=shuffle, seed=4)
        assert isinstance(loader.sampler, kind)
        assert loader.batch_sampler.sampler is loader.sampler
        epochs = [sample_ids(copied_epoch(loader)) for _ in range(2)]
        assert [list(loader.sampler) for _ in range(2)] == epochs
        copied = pickle.loads(pickle.dumps(loader))
        copied.sampler.set_epoch(1)
        assert list(copied.sampler) == epochs[1]
    explicit = [3, 1, 2]
    assert DataLoader(dataset, sampler=explicit).sampler is explicit


@pytest.mark.parametrize("workers", [0, 1])
def test_epoch_told_to_the_sampler_is_that_of_an_iterator_made_before(shards: Path, workers: int) -> None:
    dataset = ShardDataset(shards, CROP_AND_FLIP, fields=("index",))
    plain = DataLoader(dataset, batch_size=8, shuffle=True)
    epochs = [copied_epoch(plain) for _ in range(4)]
    loader: Any = DataLoader(dataset, batch_size=8, shuffle=True, num_workers=workers)
    iterator = iter(loader)
    loader.sampler.set_epoch(2)
    first = next(iterator)
    loader.sampler.set_epoch(1)  # too late for this one
    assert same_batches([first, *copied_epoch(iterator)], epochs[2])
    assert same_batches(copied_epoch(loader), epochs[1])
    state = loader.state_dict()
    assert state["epoch"] == 2
    half = iter(loader)
    next(half)
    loader.load_state_dict(loader.state_dict())
    rest = iter(loader)
    loader.sampler.set_epoch(2)  # where it is already
    assert same_batches(copied_epoch(rest), epochs[2][1:])


def test_window_shuffle_sees_every_sample_once(shards: Path) -> None:
    dataset = ShardDataset(shards, CROP_AND_FLIP, fields=("index",))
    ids = sample_ids(copied_epoch(DataLoader(dataset, batch_size=8, shuffle=Window(16))))
    assert sorted(ids) == list(range(50))
    assert ids != list(range(50))


def test_ranks_take_equal_batches_and_share_the_epoch(shards: Path) -> None:
    dataset = ShardDataset(shards, CROP_AND_FLIP, fields=("index",))
    whole = sample_ids(copied_epoch(DataLoader(dataset, batch_size=24, shuffle=True)))
    loaders = [DataLoader(dataset, batch_size=8, shuffle=True, rank=r, world_size=3, seed=0) for r in range(3)]
    epochs = [copied_epoch(loader) for loader in loaders]
    assert [len(e) for e in epochs] == [len(loader) for loader in loaders] == [3, 3, 3]
    joined = [i for step in zip(*epochs, strict=True) for batch in step for i in batch[2].tolist()]
    assert joined[:50] == whole
    padded = [i for loader in loaders for i in loader.stats()["padded"]]
    assert joined[50:] == padded == whole[:1]
    dropped = [DataLoader(dataset, batch_size=8, drop_last=True, rank=r, world_size=3, seed=0) for r in range(3)]
    assert [len(loader) for loader in dropped] == [2, 2, 2]


def test_torchruns_variables_give_the_rank(shards: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    dataset = ShardDataset(shards, CROP_AND_FLIP, fields=("index",))
    with pytest.warns(UserWarning, match="rank 1 of 2"):
        assert sample_ids(copied_epoch(DataLoader(dataset, batch_size=5, drop_last=True, seed=0))) == [
            i for t in range(5) for i in range(10 * t + 5, 10 * t + 10)
        ]


def test_a_split_of_the_stored_order_that_nobody_asked_for_is_told_once(
    shards: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "3")
    dataset = ShardDataset(shards, CROP_AND_FLIP, fields=("index",))
    loader = DataLoader(dataset, batch_size=5, seed=0)
    with pytest.warns(UserWarning, match="rank 1 of 3 gets its part.*, 17 of 50 samples.*rank=0, world_size=1") as told:
        assert sum(len(labels) for _, labels, _ in loader) == 17
    assert told[0].filename == __file__  # where it is iterated
    copied_epoch(loader)  # not a second time: a warning is an error here
    chosen: tuple[dict[str, Any], ...] = ({"shuffle": True}, {"rank": 0, "world_size": 1}, {"sampler": range(1, 50, 3)})
    for options in chosen:
        counted = sample_ids(copied_epoch(DataLoader(dataset, batch_size=5, seed=0, **options)))
    assert counted == [*range(1, 50, 3)]


@pytest.mark.parametrize("workers", [0, 2])
def test_an_explicit_sampler_replaces_order_and_rank_split(
    shards: Path, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    dataset = ShardDataset(shards, CROP_AND_FLIP, fields=("index",))
    loader = DataLoader(dataset, batch_size=3, sampler=[5, 4, 49, 4, -50], num_workers=workers, seed=0)
    assert len(loader) == 2
    assert [b[2].tolist() for b in loader] == [[5, 4, 49], [4, 0]]
    batches = [[1], [2, 3, 4, 5, 6], [7, 8], list(range(20))]
    loader = DataLoader(dataset, batch_sampler=batches, num_workers=workers, seed=0)
    assert [b[2].tolist() for b in loader] == batches
    with pytest.raises(IndexError, match="50"):
        list(DataLoader(dataset, sampler=[50], num_workers=workers, seed=0))
    with pytest.raises(ArgumentError, match="batch 1 is empty"):
        list(DataLoader(dataset, batch_sampler=[[0, 1], [], [2]], num_workers=workers, seed=0))


@pytest.mark.parametrize("workers", [0, 1])
def test_samplers_may_have_no_end_and_no_length(shards: Path, workers: int) -> None:
    class Endless:
        def __iter__(self) -> Iterator[int]:
            while True:
                yield from range(7)

    dataset = ShardDataset(shards, CROP_AND_FLIP, fields=("index",))
    loader = DataLoader(dataset, batch_size=5, sampler=Endless(), num_workers=workers)
    iterator: Any = iter(loader)
    assert [next(iterator)[2].tolist() for _ in range(2)] == [[0, 1, 2, 3, 4], [5, 6, 0, 1, 2]]
    resumed = DataLoader(dataset, batch_size=5, sampler=Endless())
    resumed.load_state_dict(loader.state_dict())
    assert next(iter(resumed))[2].tolist() == [3, 4, 5, 6, 0]
    with pytest.raises(TypeError):
        len(iterator)


@pytest.mark.parametrize("persistent", [False, True])
def test_held_batches_never_change(shards: Path, persistent: bool) -> None:
    dataset = ShardDataset(shards, CROP_AND_FLIP)
    loader = DataLoader(dataset, batch_size=2, num_workers=2, persistent_workers=persistent)
    expected = copied_epoch(DataLoader(dataset, batch_size=2))
    with pytest.warns(RuntimeWarning, match="held at a time") as caught:
        held = list(loader)
    assert [warning.filename for warning in caught if warning.category is RuntimeWarning] == [__file__]
    for _ in loader:
        pass
    assert same_batches(held, expected)


def test_break_and_iterating_again(shards: Path) -> None:
    dataset = ShardDataset(shards, CROP_AND_FLIP, fields=("index",))
    for persistent in (False, True):
        loader = DataLoader(dataset, batch_size=4, num_workers=2, persistent_workers=persistent)
        for _ in range(3):
            for batch in loader:
                assert batch[2].tolist() == [0, 1, 2, 3]
                break
        assert sample_ids(copied_epoch(loader)) == list(range(50))


def test_two_iterators_at_once(shards: Path) -> None:
    dataset = ShardDataset(shards, CROP_AND_FLIP, fields=("index",))
    loader = DataLoader(dataset, batch_size=4, num_workers=2)
    pairs = zip(iter(loader), iter(loader), strict=True)
    assert [a[2].tolist() == b[2].tolist() for a, b in pairs] == [True] * 13


def test_iterator_of_a_loader_that_is_gone(shards: Path) -> None:
    dataset = ShardDataset(shards, CROP_AND_FLIP, fields=("index",))
    iterator = iter(DataLoader(dataset, batch_size=4, num_workers=1))
    gc.collect()
    assert sample_ids(copied_epoch(iterator)) == list(range(50))


def test_length_of_loader_and_iterator(shards: Path) -> None:
    loader = DataLoader(ShardDataset(shards, CROP_AND_FLIP), batch_size=8)
    iterator: Any = iter(loader)
    assert (len(loader), len(iterator)) == (7, 7)
    next(iterator)
    assert (len(loader), len(iterator)) == (7, 6)


def test_memory_limit_makes_fewer_slots_and_refuses_what_cannot_fit(shards: Path) -> None:
    dataset = ShardDataset(shards, CROP_AND_FLIP, fields=("index",))
    slot = 4096 + 8192  # three numbers a row; 8 images of 3 x 16 x 16
    loader = DataLoader(dataset, batch_size=8, num_workers=2, worker_options=WorkerOptions(memory_limit_bytes=2 * slot))
    assert sample_ids(copied_epoch(loader)) == list(range(50))
    tight = DataLoader(
        dataset, batch_size=8, num_workers=2, worker_options=WorkerOptions(memory_limit_bytes=2 * slot - 1)
    )
    with pytest.raises(ArgumentError, match="memory_limit_bytes"):
        iter(tight)


def _meet(folder: Path) -> None:
    """Lets no worker begin before two have left a file: one alone may have made all batches before another begins."""
    wait_until(lambda: len(os.listdir(folder)) >= 2)


def test_worker_init_fn_runs_in_every_worker(shards: Path, tmp_path: Path) -> None:
    def init(number: int) -> None:
        (tmp_path / f"worker{number}").touch()
        _meet(tmp_path)

    copied_epoch(DataLoader(ShardDataset(shards, CROP_AND_FLIP), num_workers=2, worker_init_fn=init))
    assert sorted(os.listdir(tmp_path)) == ["worker0", "worker1"]


def test_worker_init_fn_finds_torchs_worker_info(shards: Path, tmp_path: Path) -> None:
    def init(number: int) -> None:
        info = torch.utils.data.get_worker_info()
        assert info is not None
        dataset: Any = info.dataset
        seen = info.id, info.num_workers, len(dataset), info.seed == torch.initial_seed()
        (tmp_path / f"worker{number}").write_text(repr(seen))
        _meet(tmp_path)

    copied_epoch(DataLoader(ShardDataset(shards, CROP_AND_FLIP), num_workers=2, seed=2**64 - 1, worker_init_fn=init))
    assert [(tmp_path / f"worker{k}").read_text() for k in (0, 1)] == [repr((k, 2, 50, True)) for k in (0, 1)]


@pytest.mark.parametrize("persistent", [False, True])
def test_worker_init_fn_finds_another_seed_in_each_epoch_that_workers_start_in(
    shards: Path, tmp_path: Path, persistent: bool
) -> None:
    def init(number: int) -> None:
        (tmp_path / str(torch.initial_seed() - number)).touch()

    for rank in (0, 1):
        loader = DataLoader(
            ShardDataset(shards, CROP_AND_FLIP),
            batch_size=8,
            num_workers=2,
            rank=rank,
            world_size=2,
            seed=0,
            worker_init_fn=init,
            persistent_workers=persistent,
        )
        for _ in range(2):
            copied_epoch(loader)
    assert len(os.listdir(tmp_path)) == (2 if persistent else 4)


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_copied_loader_works(shards: Path, duplicate: Any) -> None:
    loader = DataLoader(ShardDataset(shards, CROP_AND_FLIP), batch_size=8, shuffle=True, num_workers=1)
    expected = copied_epoch(loader)
    assert same_batches(copied_epoch(duplicate(loader)), expected)


@pytest.mark.parametrize("workers", [0, 1])
def test_threads_share_an_iterator(shards: Path, workers: int) -> None:
    dataset = ShardDataset(shards, CROP_AND_FLIP, fields=("index",))
    ahead = 8 if workers else None  # with slots enough for what two threads hold
    iterator = iter(DataLoader(dataset, num_workers=workers, prefetch_factor=ahead))
    with ThreadPoolExecutor(2) as threads:
        taken = list(threads.map(sample_ids, [iterator, iterator]))
    assert sorted(taken[0] + taken[1]) == list(range(50))


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("is_fast", [True, False])
def test_torchs_way_to_make_an_iterator_makes_the_loaders_own(shards: Path, is_fast: bool, workers: int) -> None:
    dataset: Any = ShardDataset(shards, CROP_AND_FLIP) if is_fast else torch.utils.data.TensorDataset(torch.arange(50))

    loader, expected = (DataLoader(dataset, 8, shuffle=True, num_workers=workers) for _ in range(2))
    iterator = loader._get_iterator()
    found = copied_epoch(itertools.islice(iterator, 3))
    assert loader.stats()["batches"] == 3
    expected.load_state_dict(loader.state_dict())
    rest = copied_epoch(expected)
    assert same_batches(copied_epoch(iterator), rest)
    assert len(found + rest) == len(loader)


def test_torchs_own_iterators_are_refused(shards: Path) -> None:
    loader: Any = DataLoader(ShardDataset(shards, CROP_AND_FLIP), 8)
    with pytest.raises(ArgumentError, match=r"iterate over the loader itself, with iter\(loader\)"):
        torch.utils.data.dataloader._SingleProcessDataLoaderIter(loader)
    sampled: Any = DataLoader(ShardDataset(shards, CROP_AND_FLIP), 8, sampler=range(20))
    assert len(sampled) == len(list(sampled)) == 3


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


@pytest.mark.parametrize("workers", [0, 2])
def test_what_a_sampler_repeats_is_augmented_anew_each_time(shards: Path, workers: int) -> None:
    dataset = ShardDataset(shards, CROP_AND_FLIP, fields=("index",))
    loader = DataLoader(dataset, batch_size=3, sampler=[5, 5, 9, -45, 49, 5, 5], num_workers=workers)
    iterator = iter(loader)
    first = copied_epoch([next(iterator)])
    state = loader.state_dict()
    rest = copied_epoch(iterator)
    assert sample_ids(first + rest) == [5, 5, 9, 5, 49, 5, 5]
    images = torch.cat([batch[0] for batch in first + rest])
    fives = images[[0, 1, 3, 5, 6]]
    assert len(torch.unique(fives, dim=0)) == 5
    assert {label for batch in first + rest for label in batch[1].tolist()} == {5, 2, 0}
    once = next(iter(DataLoader(dataset, batch_size=3, sampler=[5, 9, 49])))[0]
    assert torch.equal(images[[0, 2, 4]], once)
    resumed = DataLoader(dataset, batch_size=3, sampler=[5, 5, 9, -45, 49, 5, 5])
    resumed.load_state_dict(state)
    assert same_batches(copied_epoch(resumed), rest)


@pytest.mark.parametrize("device", [None, "cpu"])
def test_what_comes_after_the_crop_is_drawn_anew_for_each_repeat_too(shards: Path, device: str | None) -> None:
    dataset = ShardDataset(shards, Compose([Resize((16, 16)), ColorJitter(0.9), Normalize([0.5] * 3, [0.5] * 3)]))
    images, _ = next(iter(DataLoader(dataset, batch_size=4, sampler=[5, 5, 5, 5], device=device)))
    assert len(torch.unique(images, dim=0)) == 4
