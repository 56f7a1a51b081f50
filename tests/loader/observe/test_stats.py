from __future__ import annotations

import functools
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from feeder.dataset.base import FeederDataset
from feeder.dataset.shards import ShardDataset
from feeder.decoders.pillow.pillow_decoder import PillowDecoder
from feeder.loader.dataloader import DataLoader
from feeder.loader.generic.meters import batch_rows
from feeder.loader.observe.stats import verdict
from feeder.loader.options import ToDevice
from feeder.transforms import Compose, Lambda, RandomHorizontalFlip, RandomResizedCrop
from tests.support.loader_data import write_shards
from tests.support.processes import wait_until
from tests.support.slow import SlowItems, Slowly, SlowReader, collate_slowly

_SLOW_S = 0.02
_SLOW_NS = int(_SLOW_S * 1e9)
_WORK = ("read", "draw", "cut", "decode", "transform", "write")


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_shards(tmp_path_factory.mktemp("shards"), 20)


class Stream(torch.utils.data.IterableDataset[int]):
    """Numbers, one after another."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.count))


def _check_counted_once(stats: dict[str, Any], names: tuple[str, ...]) -> None:
    """Fails if these stages took longer than the workers were busy: a stage's time was counted as another's, too."""
    assert sum(stats["stages"].get(name, {"total_ns": 0})["total_ns"] for name in names) <= stats["busy_ns"]


@pytest.mark.parametrize(
    ("waited", "busy", "read", "decode", "workers", "expected"),
    [
        (10, 900, 100, 800, 2, "trainer"),
        (500, 1900, 100, 1700, 2, "decode"),
        (500, 1900, 1700, 100, 2, "read"),
        (500, 300, 100, 200, 2, "workers"),
        (0, 900, 100, 800, 0, "decode"),
        (0, 10, 5, 5, 0, "trainer"),
    ],
)
def test_the_verdict_names_what_holds_the_loop_up(
    waited: int, busy: int, read: int, decode: int, workers: int, expected: str
) -> None:
    meters = {"busy_ns": busy, "read_ns": read, "decode_ns": decode}
    assert verdict({"elapsed_ns": 1000, "waited_ns": waited}, meters, workers)["bottleneck"] == expected


def test_decoding_in_the_callers_process_can_hold_the_loop_up() -> None:
    meters = {"busy_ns": 300, "read_ns": 200, "trainer_decode_ns": 700}
    assert verdict({"elapsed_ns": 1000, "waited_ns": 200}, meters, 2)["bottleneck"] == "decode"
    assert verdict({"elapsed_ns": 1000, "waited_ns": 200}, {**meters, "trainer_decode_ns": 10}, 2)["bottleneck"] == (
        "workers"
    )


def test_no_verdict_before_the_first_batch() -> None:
    assert verdict({}, {}, 2) == {"waited_share": 0.0, "busy_share": 0.0, "bottleneck": None}


@pytest.mark.parametrize("workers", [0, 1])
def test_a_loaders_stats_add_up(tmp_path: Path, workers: int) -> None:
    loader = DataLoader(
        ShardDataset(write_shards(tmp_path, 20), RandomResizedCrop(8)), batch_size=4, num_workers=workers
    )
    assert loader.stats()["bottleneck"] is None
    started = time.monotonic_ns()
    for _ in loader:
        pass
    elapsed = time.monotonic_ns() - started
    stats = loader.stats()
    assert (stats["batches"], stats["samples"]) == (5, 20)
    assert 0 < stats["elapsed_ns"] <= elapsed
    assert stats["read_ns"] + stats["decode_ns"] <= stats["busy_ns"]
    assert stats["encoded_bytes"] > 0
    assert stats["bottleneck"] in ("decode", "read", "workers", "trainer")


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("backend", ["cpu", "pillow"])
@pytest.mark.parametrize("slow", ["read", "transform"])
def test_a_slow_stage_shows(shards: Path, workers: int, backend: str, slow: str) -> None:
    dataset: FeederDataset = ShardDataset(shards, RandomResizedCrop(8))
    if slow == "read":
        dataset = FeederDataset(SlowReader(str(shards / "index.bin"), _SLOW_S / 4), RandomResizedCrop(8), ())
    else:
        dataset = ShardDataset(shards, Compose([RandomResizedCrop(8), Lambda(Slowly(_SLOW_S)), RandomHorizontalFlip()]))
    loader = DataLoader(dataset, batch_size=4, num_workers=workers, backend=backend)
    assert loader.stats()["stages"] == {}
    for _ in loader:
        pass
    stats = loader.stats()
    stages = stats["stages"]
    _check_counted_once(stats, _WORK)
    assert stages["transform"]["count"] == stages["decode"]["count"] == 20
    assert stages["read"]["count"] == 5
    assert stages["read"]["bytes"] == stats["encoded_bytes"]
    for percentile in ("p50_ns", "p90_ns", "p99_ns", "mean_ns"):
        assert stages[slow][percentile] >= 0.875 * _SLOW_NS
    assert stages["write" if "write" in stages else "transform"]["bytes"] == 20 * 3 * 8 * 8


@pytest.mark.parametrize("workers", [0, 2])
def test_a_function_behind_the_kernels_counts_as_their_images_transform(tmp_path: Path, workers: int) -> None:
    recipe = Compose([RandomResizedCrop(8), Lambda(Slowly(_SLOW_S))])
    dataset = ShardDataset(write_shards(tmp_path, 20, jpegs=True), recipe)
    loader = DataLoader(dataset, batch_size=4, num_workers=workers, backend="cpu")
    for _ in loader:
        pass
    stages = loader.stats()["stages"]
    assert stages["transform"]["count"] == stages["decode"]["count"] == 20
    assert stages["transform"]["mean_ns"] >= 0.875 * _SLOW_NS


@pytest.mark.parametrize(("method", "stage"), [("_upright", "decode"), ("_store", "write")])
def test_a_slow_decoder_shows(shards: Path, monkeypatch: pytest.MonkeyPatch, method: str, stage: str) -> None:
    original = getattr(PillowDecoder, method)

    def slow(*arguments: Any) -> Any:
        time.sleep(_SLOW_S)
        return original(*arguments)

    monkeypatch.setattr(PillowDecoder, method, slow)
    loader = DataLoader(ShardDataset(shards, RandomResizedCrop(8)), batch_size=4, backend="pillow")
    for _ in loader:
        pass
    stats = loader.stats()
    stages = stats["stages"]
    _check_counted_once(stats, _WORK)
    assert stages[stage]["p50_ns"] >= 0.875 * _SLOW_NS


def test_slow_copies_a_slow_caller_and_idle_workers_show(shards: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from feeder.loader.device import feed as device
    from feeder.loader.device.nested import move

    def slow(*arguments: Any) -> Any:
        time.sleep(_SLOW_S)
        return move(*arguments)

    monkeypatch.setattr(device, "move", slow)
    loader = DataLoader(
        ShardDataset(shards, RandomResizedCrop(8)), batch_size=2, num_workers=1, device=ToDevice("cpu", prefetch=0)
    )
    for _ in loader:
        time.sleep(2 * _SLOW_S)
    stages = loader.stats()["stages"]
    assert (stages["copy"]["count"], stages["copy"]["bytes"]) == (10, 0)  # they are on that device already
    assert stages["copy"]["total_ns"] >= 10 * _SLOW_NS
    assert (stages["consumer"]["count"], stages["wait_batch"]["count"]) == (10, 10)
    assert stages["consumer"]["p50_ns"] >= 2 * 0.875 * _SLOW_NS
    assert stages["wait_slot"]["total_ns"] >= 5 * _SLOW_NS


def test_workers_stages_sum_up_to_the_loaders(shards: Path) -> None:
    loader = DataLoader(ShardDataset(shards, RandomResizedCrop(8)), batch_size=4, num_workers=2)
    for _ in range(2):  # each epoch has workers of its own
        for _ in loader:
            pass
    stats = loader.stats()
    assert [worker["worker"] for worker in stats["workers"]] == [0, 1]
    assert stats["stages"]["decode"]["count"] == 40
    for name in ("read", "decode", "transform"):
        for key in ("count", "bytes", "total_ns"):
            parts = [worker["stages"].get(name, {key: 0})[key] for worker in stats["workers"]]
            assert sum(parts) == stats["stages"][name][key]


def test_a_replaced_worker_is_counted_and_its_successor_goes_on(shards: Path) -> None:
    loader = DataLoader(
        ShardDataset(shards, RandomResizedCrop(8)), batch_size=4, num_workers=1, persistent_workers=True
    )
    for _ in loader:
        pass
    (pid,) = loader.worker_pids()
    os.kill(pid, signal.SIGKILL)
    for _ in loader:
        pass
    stats = loader.stats()
    assert (stats["respawns"], stats["workers"][0]["respawns"]) == (1, 1)
    assert stats["stages"]["decode"]["count"] == 40


def test_slots_say_what_they_are_used_for(shards: Path) -> None:
    loader = DataLoader(ShardDataset(shards, RandomResizedCrop(8)), batch_size=2, num_workers=2, prefetch_factor=2)
    idle = {"total": 0, "held": 0, "making": 0, "ready": 0}
    assert loader.stats()["slots"] == idle
    iterator = iter(loader)
    batch = next(iterator)
    wait_until(lambda: not loader.stats()["slots"]["making"])
    slots = loader.stats()["slots"]
    assert slots["held"] == len(batch) - 1
    assert slots["ready"] in (3, 4)
    assert slots["total"] >= slots["held"] + slots["ready"]
    del batch, iterator
    assert loader.stats()["slots"] == idle


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(("slow", "other"), [("fetch", "collate"), ("collate", "fetch")])
def test_a_slow_stage_of_another_dataset_shows(workers: int, slow: str, other: str) -> None:
    dataset = SlowItems(20, _SLOW_S / 4 if slow == "fetch" else 0)
    collate = functools.partial(collate_slowly, _SLOW_S) if slow == "collate" else None
    loader = DataLoader(dataset, batch_size=4, num_workers=workers, collate_fn=collate)
    assert loader.stats()["stages"] == {}
    for _ in loader:
        pass
    stats = loader.stats()
    stages = stats["stages"]
    assert (stats["batches"], stats["samples"]) == (5, 20)
    assert stages[slow]["count"] == stages[other]["count"] == 5
    assert stages[slow]["p50_ns"] >= 0.875 * _SLOW_NS
    assert stages["consumer"]["count"] == 5
    if workers:
        assert (stages["wait_batch"]["count"], stages["wait_slot"]["count"]) == (5, 5)
        assert stages["write"]["bytes"] > 0
        assert [worker["stages"]["fetch"]["count"] for worker in stats["workers"]] == [3, 2]
    _check_counted_once(stats, ("fetch", "collate"))
    # The other takes longer where the machine is taken away from it.
    most = max((slow, other), key=lambda name: stages[name]["total_ns"])
    assert stats["bottleneck"] in (most, "trainer", "workers")


def test_a_batch_that_failed_and_the_end_of_an_iterable_dataset_are_no_runs_of_a_stage() -> None:
    failing = DataLoader(SlowItems(8, 0, bad=5), batch_size=4, num_workers=1)
    with pytest.raises(ValueError, match="sample 5"):
        for _ in failing:
            pass
    assert failing.stats()["stages"]["fetch"]["count"] == 1
    stream = DataLoader(Stream(8), batch_size=4, num_workers=1)
    for _ in stream:
        pass
    assert stream.stats()["stages"]["fetch"]["count"] == 2


@pytest.mark.parametrize("workers", [0, 1])
def test_what_another_datasets_batches_take_is_the_callers_also_on_a_device(workers: int) -> None:
    loader = DataLoader(SlowItems(8, 0), batch_size=2, num_workers=workers, device="cpu")
    for _ in loader:
        time.sleep(_SLOW_S)
    stages = loader.stats()["stages"]
    assert stages["copy"]["count"] == stages["consumer"]["count"] == 4
    assert stages["consumer"]["p50_ns"] >= 0.875 * _SLOW_NS
    assert loader.stats()["batches"] == 4


@pytest.mark.parametrize(
    ("batch", "rows"),
    [
        (torch.zeros(3, 2), 3),
        ([torch.zeros(4, 1), torch.zeros(4)], 4),
        ({"image": torch.zeros(5, 3), "id": torch.zeros(5)}, 5),
        (("text", {"x": [torch.zeros(2)]}), 2),
        ({"a": "x", "b": (torch.zeros(4, 2),)}, 4),
        ([torch.zeros(4, 2), 1], 4),
        (([], {"none": "x"}, torch.zeros(6)), 6),
        (torch.tensor(1.0), 1),
        ("text", 1),
    ],
)
def test_a_batch_has_as_many_samples_as_its_first_tensor_is_long(batch: Any, rows: int) -> None:
    assert batch_rows(batch) == rows


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype stage")
def test_a_nested_tensor_has_rows_too() -> None:
    assert batch_rows([torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])]) == 2
