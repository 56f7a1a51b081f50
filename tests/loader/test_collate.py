"""Loaders with a collate_fn of the caller's on the fast path: samples, order, resume, faults and transport."""

from __future__ import annotations

import functools
import json
import os
import pickle
import random
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest
import torch
from torch.utils.data import RandomSampler, Subset, get_worker_info

from feeder.dataset.folders import FolderDataset
from feeder.dataset.shards import ShardDataset
from feeder.decoders.staged.trainer_decoder import TrainerDecoder
from feeder.errors import ArgumentError, DecodeError, WorkerError
from feeder.loader.dataloader import DataLoader
from feeder.loader.fast import setup
from feeder.loader.options import WorkerOptions
from feeder.loader.slots.batch_message import Slot, pack, unpack
from feeder.transforms import Compose, MixUp, Normalize, RandomResizedCrop, Resize, ToDtype
from tests.support.generators import generator_states
from tests.support.loader_data import encode, write_shards
from tests.support.warm_python import run_warm

FIELDS = ("index", "key", "json", "cls")


_ON_META = """
import sys
import torch, feeder
from feeder import fields, transforms as T
torch.set_default_device("meta")
recipe = T.Compose([T.RandomResizedCrop(8), T.ToDtype("float32", scale=True)])
set_of = lambda **options: feeder.ShardDataset(sys.argv[1], **options)

def first(samples):
    return [torch.stack([sample[0] for sample in samples]), torch.tensor([1], device="cpu")]

for workers in (0, 1):
    for dataset, options in (
        (set_of(transform=recipe), {}),
        (set_of(transform=recipe), {"collate_fn": first}),
        (set_of(transform=recipe), {"device": "cpu", "mix": T.MixUp(num_classes=7)}),
        (set_of(), {"sizes": feeder.PadToBatch()}),
        (set_of(transform=T.Views([recipe, recipe])), {}),
    ):
        batch = next(iter(feeder.DataLoader(dataset, 4, num_workers=workers, **options)))
        flat = [batch] if isinstance(batch, torch.Tensor) else batch
        flat = [each for part in flat for each in (part if isinstance(part, (list, tuple)) else [part])]
        assert {each.device.type for each in flat if isinstance(each, torch.Tensor)} == {"cpu"}, (options, flat)
"""


def test_batches_are_made_on_the_cpu_whatever_the_default_device(shards: Path) -> None:
    """That device is "meta" here, in place of a GPU."""
    done = run_warm(["-c", _ON_META, str(shards)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def as_dict(samples: list[Any]) -> dict[str, Any]:
    """Most that a collate_fn may do: stack, convert, keep lists, draw."""
    images = torch.stack([sample[0] for sample in samples])
    return {
        "image": images,
        "label": torch.tensor([sample[1] for sample in samples]),
        "index": [sample[2] for sample in samples],
        "drawn": (random.random(), np.random.rand(), torch.rand(1).item()),
    }


def told(batches: Any) -> list[Any]:
    return list(map(_told, batches))


def _told(batch: dict[str, Any]) -> tuple[Any, ...]:
    return batch["image"].tolist(), batch["label"].tolist(), batch["index"], batch["drawn"]


def as_they_are(samples: list[Any]) -> list[Any]:
    return samples


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    "recipe", [RandomResizedCrop(8), Compose([Resize((8, 8)), ToDtype(torch.bfloat16, scale=True)])]
)
def test_a_collate_fn_gets_each_batchs_samples_as_the_dataset_gives_them(
    shards: Path, workers: int, recipe: Any
) -> None:
    dataset = ShardDataset(shards, recipe, fields=FIELDS)
    options: dict[str, Any] = {"batch_size": 8, "shuffle": True, "seed": 3, "num_workers": workers}
    loader = DataLoader(dataset, collate_fn=as_they_are, **options)
    assert loader.path == "fast"
    batches = 0
    for samples, (images, labels, *fields) in zip(loader, DataLoader(dataset, **options), strict=True):
        batches += 1
        assert isinstance(samples, list)
        assert torch.equal(torch.stack([image for image, *_ in samples]), images)
        assert [label for _, label, *_ in samples] == labels.tolist()
        assert [list(column) for column in zip(*(rest for _, _, *rest in samples), strict=True)] == [
            fields[0].tolist(),
            *fields[1:],
        ]
        own = dataset[samples[0][2]]
        assert [type(value) for value in samples[0]] == [type(value) for value in own]
        assert (samples[0][0].dtype, samples[0][0].shape) == (own[0].dtype, own[0].shape)
        assert samples[0][1:] == own[1:]
    assert batches == len(loader) == 7
    assert loader.stats()["samples"] == 50
    assert loader.stats()["stages"]["collate"]["count"] == 7


@pytest.mark.parametrize("workers", [0, 1])
def test_a_large_batch_is_made_whole(tmp_path: Path, workers: int) -> None:
    dataset = ShardDataset(write_shards(tmp_path, 50, bad=(5,)), RandomResizedCrop(8), fields=("index", "key"))
    options: dict[str, Any] = {"batch_size": 150, "seed": 3, "num_workers": workers, "on_error": "skip"}
    order = [k * 7 % 50 for k in range(150)]
    collated = DataLoader(dataset, collate_fn=as_they_are, sampler=order, **options)
    plain = DataLoader(dataset, sampler=order, **options)
    (samples,), ((images, labels, index, keys),) = collated, plain
    assert torch.equal(torch.stack([sample[0] for sample in samples]), images)
    assert [tuple(rest) for _, *rest in samples] == list(zip(labels.tolist(), index.tolist(), keys, strict=True))
    assert collated.stats()["substitutions"] == plain.stats()["substitutions"] != []
    for name in ("skipped", "samples", "encoded_bytes"):
        assert collated.stats()[name] == plain.stats()[name] > 0


@pytest.mark.parametrize("workers", [0, 2])
def test_images_of_different_sizes_are_for_a_collate_fn_to_put_together(tmp_path: Path, workers: int) -> None:
    (tmp_path / "x").mkdir()
    for i in range(30):
        (tmp_path / f"x/{i:02}.png").write_bytes(encode(i, (10 + i, 40 - i)))
    (tmp_path / "x/05.png").write_bytes(b"no image")
    dataset = FolderDataset(tmp_path, Resize(20), fields=("index",))
    options: dict[str, Any] = {"batch_size": 8, "num_workers": workers, "on_error": "skip", "seed": 1}
    loader = DataLoader(dataset, collate_fn=as_they_are, rank=0, world_size=1, **options)
    assert loader.path == "fast"
    samples = [sample for _ in range(2) for batch in loader for sample in batch]
    (substitution,) = loader.stats()["substitutions"][:1]
    expected = [i if i != 5 else substitution["substitute"] for i in range(30)]
    assert [sample[2] for sample in samples[:30]] == expected
    for image, label, index in samples:
        assert (label, image.shape) == (0, dataset[index][0].shape)
        assert torch.equal(image, dataset[index][0])
    assert len({image.shape for image, _, _ in samples}) > 10
    stacking = DataLoader(dataset, collate_fn=default_like, **options)
    with pytest.raises(RuntimeError, match="stack expects each tensor to be equal size"):
        next(iter(stacking))


def default_like(samples: list[Any]) -> Any:
    return torch.stack([sample[0] for sample in samples])


def test_random_draws_of_a_collate_fn_follow_from_seed_epoch_and_place(shards: Path) -> None:
    dataset = ShardDataset(shards, RandomResizedCrop(8), fields=("index",))

    def loader(workers: int, **options: Any) -> DataLoader[Any]:
        options = {"batch_size": 8, "seed": 3, **options}
        return DataLoader(dataset, shuffle=True, num_workers=workers, collate_fn=as_dict, **options)

    torch.manual_seed(1)
    before = generator_states()
    whole = loader(0)
    first, second = told(whole), told(whole)
    assert generator_states() == before
    assert len({batch[-1] for batch in first + second}) == 14
    assert told(loader(2)) == first
    assert told(loader(1, seed=4))[0][-1] != first[0][-1]
    halves = told(loader(1, rank=0, world_size=2, batch_size=4)), told(loader(1, rank=1, world_size=2, batch_size=4))
    assert len({batch[-1] for half in halves for batch in half}) == 14


@pytest.mark.parametrize("sampler", [False, True])
@pytest.mark.parametrize("workers", [0, 2])
def test_an_epoch_with_a_collate_fn_resumes_exactly(shards: Path, workers: int, sampler: bool) -> None:
    dataset = ShardDataset(shards, RandomResizedCrop(8), fields=("index",))

    def loader() -> DataLoader[Any]:
        order: dict[str, Any] = {"shuffle": True}
        if sampler:
            order = {"sampler": RandomSampler(dataset, generator=torch.Generator().manual_seed(5))}
        return DataLoader(dataset, batch_size=8, seed=3, num_workers=workers, collate_fn=as_dict, **order)

    whole = told(loader())
    broken = loader()
    batches = iter(broken)
    begun = [_told(next(batches)) for _ in range(3)]
    state = json.loads(json.dumps(broken.state_dict()))
    del batches
    resumed = loader()
    resumed.load_state_dict(state)
    assert begun + told(resumed) == whole


def test_the_rank_split_holds_with_a_collate_fn(shards: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = ShardDataset(shards, RandomResizedCrop(8), fields=("index",))
    monkeypatch.setenv("WORLD_SIZE", "2")
    seen: list[int] = []
    for rank in range(2):
        monkeypatch.setenv("RANK", str(rank))
        loader = DataLoader(dataset, 5, shuffle=True, collate_fn=as_dict, num_workers=rank, seed=0)
        assert len(loader) == 5
        seen += [index for batch in loader for index in batch["index"]]
    assert sorted(seen) == list(range(50))


def test_a_part_of_a_dataset_and_persistent_workers(shards: Path) -> None:
    subset = Subset(ShardDataset(shards, RandomResizedCrop(8), fields=("index",)), [7, 3, 9, 1])
    loader = DataLoader(subset, 2, shuffle=True, collate_fn=as_dict, num_workers=1, persistent_workers=True)
    epochs = [[index for batch in loader for index in batch["index"]] for _ in range(2)]
    pids = loader.worker_pids()
    assert sorted(epochs[0]) == sorted(epochs[1]) == [1, 3, 7, 9]
    assert [sorted(batch["index"]) for batch in loader] != []
    assert loader.worker_pids() == pids
    loader.close()


@pytest.mark.parametrize("workers", [0, 1])
def test_bad_samples_are_replaced_before_a_collate_fn_sees_them(tmp_path: Path, workers: int) -> None:
    dataset = ShardDataset(write_shards(tmp_path, 20, bad=(5, 13)), Resize((8, 8)), fields=("index",))
    options: dict[str, Any] = {"batch_size": 5, "seed": 3, "num_workers": workers}
    skipping = DataLoader(dataset, on_error="skip", collate_fn=as_dict, **options)
    plain = DataLoader(dataset, on_error="skip", **options)
    assert [batch["index"] for batch in skipping] == [index.tolist() for _, _, index in plain]
    assert skipping.stats()["substitutions"] == plain.stats()["substitutions"]
    assert skipping.stats()["skipped"] == 2
    raising = iter(DataLoader(dataset, collate_fn=as_dict, **options))
    assert next(raising)["index"] == [0, 1, 2, 3, 4]
    with pytest.raises(DecodeError, match="00000005"):
        next(raising)
    with pytest.raises(DecodeError, match="00000013"):
        next(raising)
    assert next(raising)["index"] == [15, 16, 17, 18, 19]


class _OwnError(Exception):
    pass


def _fails(samples: list[Any]) -> Any:
    if samples[0][2] == 8:
        raise _OwnError("not this one")
    return [sample[2] for sample in samples]


@pytest.mark.parametrize("workers", [0, 1])
def test_an_error_of_a_collate_fn_comes_in_place_of_its_batch(shards: Path, workers: int) -> None:
    dataset = ShardDataset(shards, Resize((8, 8)), fields=("index",))
    batches = iter(DataLoader(dataset, 4, collate_fn=_fails, num_workers=workers))
    assert next(batches) + next(batches) == list(range(8))
    with pytest.raises(_OwnError, match="not this one") as caught:
        next(batches)
    assert ("in DataLoader worker process 0" in str(caught.value)) == (workers == 1)
    assert next(batches) == [12, 13, 14, 15]


def _finds_nothing(samples: list[Any]) -> Any:
    numbers = [sample[2] for sample in samples]
    return numbers if 8 not in numbers else next(iter([]))


@pytest.mark.parametrize("workers", [0, 1])
def test_a_collate_fn_can_not_end_the_epoch_with_a_next_that_finds_nothing(shards: Path, workers: int) -> None:
    dataset = ShardDataset(shards, Resize((8, 8)), fields=("index",))
    batches = iter(DataLoader(dataset, 4, collate_fn=_finds_nothing, num_workers=workers))
    assert next(batches) + next(batches) == list(range(8))
    with pytest.raises(RuntimeError, match="StopIteration was raised while a batch was made"):
        next(batches)
    assert next(batches) == [12, 13, 14, 15]


def _makes_a_lock(samples: list[Any]) -> Any:
    return (sample for sample in samples)


def test_a_result_that_can_not_be_sent_is_an_error_that_says_so(shards: Path) -> None:
    dataset = ShardDataset(shards, Resize((8, 8)))
    with pytest.raises(WorkerError, match="generator"):
        next(iter(DataLoader(dataset, 4, collate_fn=_makes_a_lock, num_workers=1)))
    assert len(list(next(iter(DataLoader(dataset, 4, collate_fn=_makes_a_lock))))) == 4


def _dies_once(mark: str, samples: list[Any]) -> Any:
    if samples[0][2] == 8:
        try:
            os.close(os.open(mark, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            pass
        else:
            os.kill(os.getpid(), signal.SIGKILL)
    return as_dict(samples)


def test_a_worker_that_dies_in_a_collate_fn_is_replaced_and_its_batch_made_again(shards: Path, tmp_path: Path) -> None:
    dataset = ShardDataset(shards, RandomResizedCrop(8), fields=("index",))
    options: dict[str, Any] = {"batch_size": 8, "seed": 3}
    whole = told(DataLoader(dataset, collate_fn=as_dict, **options))
    dying = functools.partial(_dies_once, str(tmp_path / "mark"))
    loader = DataLoader(dataset, collate_fn=dying, num_workers=2, **options)
    assert told(loader) == whole
    (replaced,) = loader.stats()["replaced_workers"]
    assert "SIGKILL" in replaced["cause"]
    assert replaced["keys"] == tuple(f"{i:08d}" for i in range(8, 16))


def test_functions_that_can_not_be_pickled_come_by_a_fork(shards: Path) -> None:
    dataset = ShardDataset(shards, Resize((8, 8)))
    spawned = DataLoader(dataset, 25, collate_fn=len, num_workers=1, multiprocessing_context="spawn")
    assert list(spawned) == [25, 25]
    assert list(DataLoader(dataset, 25, collate_fn=lambda samples: len(samples), num_workers=1)) == [25, 25]
    spawning = DataLoader(dataset, 25, collate_fn=lambda samples: 1, num_workers=1, multiprocessing_context="spawn")
    with pytest.raises(ArgumentError, match=r"top level of a module, or start workers with .*'fork'"):
        iter(spawning)


def test_a_collate_fn_in_a_worker_knows_its_worker(shards: Path) -> None:
    told_init: list[int] = []

    def worker(samples: list[Any]) -> Any:
        info: Any = get_worker_info()
        return (
            None if info is None else (info.id, info.num_workers, len(info.dataset), torch.get_num_threads(), told_init)
        )

    dataset = ShardDataset(shards, Resize((8, 8)))
    found = list(DataLoader(dataset, 25, collate_fn=worker, num_workers=1, worker_init_fn=told_init.append))
    assert found == [(0, 1, 50, 1, [0])] * 2
    assert list(DataLoader(dataset, 25, collate_fn=worker)) == [None, None]


def test_what_a_collate_fn_can_not_be_combined_with_is_refused_by_name(
    shards: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = ShardDataset(shards, RandomResizedCrop(8))
    for options, message in (
        ({"mix": MixUp()}, "mix= mixes .* there is a collate_fn"),
        ({"memory_format": torch.channels_last}, "memory_format= .* there is a collate_fn"),
    ):
        with pytest.raises(ArgumentError, match=message):
            DataLoader(dataset, collate_fn=as_dict, **options)

    elsewhere = MagicMock(spec=TrainerDecoder)
    elsewhere.name = "elsewhere"
    monkeypatch.setattr(setup, "get_decoder", lambda *arguments, **options: elsewhere)
    with pytest.raises(ArgumentError, match="backend 'elsewhere' decodes in this process, and a collate_fn"):
        DataLoader(dataset, collate_fn=as_dict)


@pytest.mark.parametrize("workers", [0, 1])
def test_with_a_device_the_last_ops_are_done_before_the_collate_fn(shards: Path, workers: int) -> None:
    recipe = Compose([RandomResizedCrop(8), ToDtype(torch.float32, scale=True), Normalize([0.5] * 3, [0.5] * 3)])
    dataset = ShardDataset(shards, recipe, fields=("index",))
    options: dict[str, Any] = {"batch_size": 8, "seed": 3, "num_workers": workers}
    here = told(DataLoader(dataset, collate_fn=as_dict, **options))
    assert told(DataLoader(dataset, collate_fn=as_dict, device="cpu", **options)) == here


def _all_kinds(samples: list[Any]) -> Any:
    images = torch.stack([sample[0] for sample in samples])
    first = float(samples[0][2])
    return {
        "float": images.float(),
        "views": list(images.double()),
        "channels_last": images.float().to(memory_format=torch.channels_last),
        "array": np.full((1000, 3), first),
        "turned": np.full((1000, 3), first).T,
        "sparse": torch.eye(3).to_sparse(),
        "gradient": torch.full((300,), first, requires_grad=True),
        "empty": torch.empty(0, 3),
        "number": torch.tensor(first),
        "text": ["a", b"b"],
    }


def _tensors(batch: dict[str, Any]) -> Iterator[torch.Tensor]:
    for value in batch.values():
        for item in value if isinstance(value, list) else [value]:
            if isinstance(item, (torch.Tensor, np.ndarray)):
                yield torch.as_tensor(item).to_dense()


def test_results_of_any_kind_and_size_arrive_whole_and_slots_grow_to_hold_them(shards: Path) -> None:
    dataset = ShardDataset(shards, RandomResizedCrop(24), fields=("index",))
    options: dict[str, Any] = {"batch_size": 5, "seed": 3, "collate_fn": _all_kinds}
    here = DataLoader(dataset, **options)
    loader = DataLoader(dataset, num_workers=1, persistent_workers=True, **options)
    for _ in range(2):
        for batch, other in zip(loader, here, strict=True):
            assert batch.keys() == other.keys()
            for ours, theirs in zip(_tensors(batch), _tensors(other), strict=True):
                assert torch.equal(ours, theirs)
                assert (ours.dtype, ours.stride()) == (theirs.dtype, theirs.stride())
            assert batch["gradient"].requires_grad
            assert batch["text"] == ["a", b"b"]
            del batch, ours
    messages = [finished.report.collated.message for finished in _taken(loader)]
    assert len(messages) == 10
    assert max(len(message.message) for message in messages) < 6000
    loader.close()


def _taken(loader: DataLoader[Any]) -> Iterator[Any]:
    """Returns an epoch's batches before they are unpacked."""
    batches = iter(loader)
    inner = batches._host._source
    while (finished := next(inner, None)) is not None:
        yield finished


def test_batches_of_a_collate_fn_may_be_kept(shards: Path) -> None:
    dataset = ShardDataset(shards, RandomResizedCrop(16), fields=("index",))
    options: dict[str, Any] = {"batch_size": 5, "seed": 3, "collate_fn": as_dict}
    loader = DataLoader(dataset, num_workers=1, prefetch_factor=20, **options)
    assert told(list(loader)) == told(DataLoader(dataset, **options))


def test_without_memory_for_larger_slots_results_travel_in_messages(shards: Path) -> None:
    dataset = ShardDataset(shards, RandomResizedCrop(24), fields=("index",))
    options: dict[str, Any] = {"batch_size": 5, "seed": 3, "collate_fn": _all_kinds}
    loader = DataLoader(dataset, num_workers=1, worker_options=WorkerOptions(memory_limit_bytes=60_000), **options)
    for batch, other in zip(loader, DataLoader(dataset, **options), strict=True):
        assert all(map(torch.equal, _tensors(batch), _tensors(other)))
        del batch


def test_a_message_can_be_read_when_its_process_is_gone() -> None:
    slot = Slot(np.zeros(4096, np.uint8))
    value = {"in": torch.arange(200.0), "out": torch.arange(2000.0), "array": np.arange(200), "same": None}
    value["same"] = value["in"]
    message = pickle.loads(pickle.dumps(pack(value, slot)))
    found = unpack(message.message, slot.memory)
    assert found["same"] is found["in"]
    assert all(torch.equal(torch.as_tensor(found[name]), torch.as_tensor(value[name])) for name in value)
    slot.memory[:] = 0
    assert not found["in"].any()
    assert not found["array"].any()
    assert torch.equal(found["out"], value["out"])  # type: ignore[arg-type]
    assert message.wanted > slot.memory.size


_marks = {name: threading.Event() for name in ("a begun", "b begun", "a done")}


def _gate(sets: str, waits_for: str) -> None:
    _marks[sets].set()
    assert _marks[waits_for].wait(60)


class _Gate:
    def __init__(self, *marks: str) -> None:
        self.marks = marks

    def __reduce__(self) -> Any:
        return _gate, self.marks


def test_threads_that_unpack_at_the_same_time_get_their_own_memory() -> None:
    for mark in _marks.values():
        mark.clear()
    slots = [Slot(np.zeros(1 << 12, np.uint8)) for _ in range(2)]
    a = pack([_Gate("a begun", "b begun"), torch.full((1000,), 1, dtype=torch.uint8)], slots[0]).message
    b = pack([_Gate("b begun", "a done"), torch.full((1000,), 2, dtype=torch.uint8)], slots[1]).message
    with ThreadPoolExecutor(1) as thread:
        other = thread.submit(lambda: (_marks["a begun"].wait(60), unpack(b, slots[1].memory))[1])
        try:
            found = unpack(a, slots[0].memory)
        finally:
            _marks["a done"].set()
        assert found[1].unique().tolist() == [1]
        assert other.result()[1].unique().tolist() == [2]


class _Pinnable:
    def pin_memory(self) -> str:
        return "pinned"


@pytest.mark.parametrize("workers", [0, 1])
def test_a_result_with_a_pin_memory_of_its_own_is_pinned(
    shards: Path, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = ShardDataset(shards, Resize((8, 8)))
    loader = DataLoader(
        dataset, 25, collate_fn=lambda samples: {"all": _Pinnable()}, num_workers=workers, pin_memory=True
    )
    monkeypatch.setattr("feeder.loader.fast.iterator.slot_guard", lambda loader: "for a GPU")
    assert list(loader) == [{"all": "pinned"}] * 2
