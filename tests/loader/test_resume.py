"""States of the loader for feeder's datasets: resumed runs equal unbroken ones, and foreign states are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from feeder.dataset.shards import ShardDataset
from feeder.errors import ArgumentError
from feeder.loader.dataloader import DataLoader
from feeder.loader.fast.iterator import HostBatches
from feeder.order.sample_order import Window
from feeder.shard.write.sharding import shard
from feeder.transforms import (
    RandomResizedCrop,
)
from tests.support import images
from tests.support.batches import copied_epoch, same_batches
from tests.support.loader_data import CROP_AND_FLIP, write_shards


@pytest.mark.parametrize("workers", [0, 2])
def test_resume_after_every_step_gives_what_an_unbroken_run_gives(shards: Path, workers: int) -> None:
    dataset = ShardDataset(shards, CROP_AND_FLIP, fields=("index",))
    options: dict[str, Any] = {"batch_size": 8, "shuffle": True, "seed": 9}
    unbroken = DataLoader(dataset, **options)
    flat = [batch for _ in range(3) for batch in copied_epoch(unbroken)]
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
        rest = copied_epoch(iterator) + copied_epoch(resumed)
        assert same_batches(rest, flat[step : step + len(rest)])


@pytest.mark.parametrize("workers", [0, 1])
def test_state_after_a_loop_that_was_broken_off_is_where_it_was(shards: Path, workers: int) -> None:
    dataset = ShardDataset(shards, CROP_AND_FLIP, fields=("index",))
    options: dict[str, Any] = {"batch_size": 8, "shuffle": True, "num_workers": workers}
    epochs = [copied_epoch(loader := DataLoader(dataset, **options)), copied_epoch(loader)]
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
        assert same_batches(copied_epoch(resumed), epochs[0][3:])
        assert same_batches(copied_epoch(loader), epochs[1])  # as ever, the next iterator goes on to the next epoch
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

    dataset = ShardDataset(shards, CROP_AND_FLIP, fields=("index",))
    loader = DataLoader(dataset, batch_size=8, shuffle=True, num_workers=workers)
    epochs = [copied_epoch(loader) for _ in range(2)]
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
    assert same_batches(copied_epoch(resumed), epochs[1])


def test_an_iterator_that_could_not_be_made_takes_no_epoch_and_no_place_away(
    shards: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    dataset = ShardDataset(shards, CROP_AND_FLIP, fields=("index",))
    loader = DataLoader(dataset, batch_size=8, shuffle=True)
    epoch = copied_epoch(loader)
    resumed = DataLoader(dataset, batch_size=8, shuffle=True)
    resumed.load_state_dict({**resumed.state_dict(), "consumed": 16})
    state = resumed.state_dict()
    with monkeypatch.context() as patched:
        patched.setattr(HostBatches, "__init__", interrupt)
        with pytest.raises(KeyboardInterrupt):
            iter(resumed)
    assert resumed.state_dict() == state
    assert same_batches(copied_epoch(resumed), epoch[2:])


def test_state_between_epochs_starts_the_next_one(shards: Path) -> None:
    dataset = ShardDataset(shards, CROP_AND_FLIP, fields=("index",))
    loader = DataLoader(dataset, batch_size=8, shuffle=True)
    epochs = [copied_epoch(loader) for _ in range(2)]
    fresh = DataLoader(dataset, batch_size=8, shuffle=True)
    assert fresh.state_dict()["epoch"] == 0
    copied_epoch(fresh)
    state = fresh.state_dict()
    assert (state["epoch"], state["consumed"]) == (1, 0)
    resumed = DataLoader(dataset, batch_size=8, shuffle=True)
    resumed.load_state_dict(state)
    assert same_batches(copied_epoch(resumed), epochs[1])


def test_set_epoch_of_the_loaded_epoch_keeps_the_place(shards: Path) -> None:
    dataset = ShardDataset(shards, CROP_AND_FLIP, fields=("index",))
    loader = DataLoader(dataset, batch_size=8, shuffle=True)
    loader.set_epoch(3)
    iterator = iter(loader)
    next(iterator)
    state = loader.state_dict()
    rest = copied_epoch(iterator)
    resumed = DataLoader(dataset, batch_size=8, shuffle=True)
    resumed.load_state_dict(state)
    resumed.set_epoch(3)
    assert same_batches(copied_epoch(resumed), rest)
    resumed.load_state_dict(state)
    resumed.set_epoch(4)
    assert len(copied_epoch(resumed)) == len(loader)


@pytest.mark.parametrize("state", [None, [], {}, "state"])
def test_what_is_no_state_is_refused(shards: Path, state: Any) -> None:
    with pytest.raises(ArgumentError, match=r"expected a state|of version None"):
        DataLoader(ShardDataset(shards, CROP_AND_FLIP)).load_state_dict(state)


@pytest.mark.parametrize("at", [0, 1, 3])
def test_resume_with_other_world_sizes_sees_every_sample_once(shards: Path, at: int) -> None:
    """1 -> 2 -> 3 -> 1 ranks, with other batch sizes and worker counts."""
    dataset = ShardDataset(shards, CROP_AND_FLIP, fields=("index",))
    seen: list[int] = []
    padded: list[int] = []
    state: dict[str, Any] | None = None
    for world_size, batch_size in ((1, 4), (2, 5), (3, 2), (1, 7)):
        loaders = [
            DataLoader(
                dataset, batch_size=batch_size, shuffle=True, rank=r, world_size=world_size, seed=0, num_workers=r % 2
            )
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
    dataset = ShardDataset(shards, CROP_AND_FLIP, fields=("index",))
    sampler: Any = torch.utils.data.distributed.DistributedSampler(dataset, 2, 1, shuffle=True)
    loader = DataLoader(dataset, batch_size=4, sampler=sampler)
    iterator = iter(loader)
    next(iterator)
    state = loader.state_dict()
    rest = copied_epoch(iterator)
    resumed = DataLoader(dataset, batch_size=4, sampler=sampler, num_workers=1)
    resumed.load_state_dict(state)
    assert same_batches(copied_epoch(resumed), rest)


def test_states_that_do_not_fit_are_refused_with_the_reason(shards: Path, tmp_path: Path) -> None:
    dataset = ShardDataset(shards, CROP_AND_FLIP)
    state = DataLoader(dataset, shuffle=True, seed=1).state_dict()
    other = ShardDataset(write_shards(tmp_path, 49), CROP_AND_FLIP)
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
    with pytest.raises(ArgumentError, match="is of torchdata's StatefulDataLoader, or of a loader on torch's path"):
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
