"""The CPUs that workers stay on."""

from __future__ import annotations

import functools
import os
from pathlib import Path
from types import SimpleNamespace as Given
from typing import Any

import pytest
import torch

from feeder.dataset.shards import ShardDataset
from feeder.errors import ArgumentError
from feeder.loader.dataloader import DataLoader
from feeder.loader.fast import setup
from feeder.loader.fast.engine import Engine, EngineOptions
from feeder.loader.fast.sample_maker import Work
from feeder.loader.options import WorkerOptions
from feeder.system import numa
from feeder.system.numa import numa_nodes
from feeder.transforms import RandomResizedCrop
from tests.support.processes import wait_until


def _is_bound(pid: int, cpus: frozenset[int]) -> bool:
    return os.sched_getaffinity(pid) == cpus


def test_workers_stay_on_the_given_cpus_and_the_trainer_on_its_own(shards: Path) -> None:
    before = os.sched_getaffinity(0)
    near = frozenset({max(before)})
    dataset = ShardDataset(shards, RandomResizedCrop(16))
    options = EngineOptions(2, cpus=near, ahead=2, ahead_is_given=True, persistent=False, memory_limit_bytes=None)
    engine = Engine(Work(dataset.reader, dataset.recipe, "cpu"), options)
    try:
        engine.prepare(4)
        for pid in engine.worker_pids():
            wait_until(functools.partial(_is_bound, pid, near))
        assert os.sched_getaffinity(0) == before
    finally:
        engine.close()


@pytest.mark.skipif(len(numa_nodes()) > 1, reason="the host has several NUMA nodes")
@pytest.mark.parametrize("numa_node", ["auto", 0, None])
def test_one_node_binds_nothing(shards: Path, numa_node: object) -> None:
    loader = DataLoader(
        ShardDataset(shards, RandomResizedCrop(16)), batch_size=16, num_workers=2, persistent_workers=True,
        worker_options=WorkerOptions(numa_node=numa_node),  # type: ignore[arg-type]
    )  # fmt: skip
    assert sum(len(images) for images, _ in loader) == 64
    assert [os.sched_getaffinity(pid) for pid in loader.worker_pids()] == [os.sched_getaffinity(0)] * 2
    loader.close()


def test_a_node_that_is_not_there_is_refused(shards: Path) -> None:
    dataset = ShardDataset(shards, RandomResizedCrop(16))
    with pytest.raises(ArgumentError, match=r"numa_node must be 'auto', None or a node of this host .*got 999"):
        iter(DataLoader(dataset, num_workers=1, worker_options=WorkerOptions(numa_node=999)))


@pytest.mark.parametrize(
    ("numa_node", "device", "expected"),
    [
        ("auto", "cuda:1", {4, 5}),
        ("auto", "cuda:0", None),
        ("auto", None, None),
        (0, "cuda:1", {2, 3}),
        (None, "cuda:1", None),
    ],
)
def test_workers_stay_near_the_gpu_of_their_rank(
    monkeypatch: pytest.MonkeyPatch, numa_node: Any, device: str | None, expected: set[int] | None
) -> None:
    """On a host of two nodes, in a process that may use half of each; nothing tells where GPU 0 is."""

    def nodes(root: str = "/") -> dict[int, frozenset[int]]:
        return {0: frozenset(range(4)), 1: frozenset(range(4, 8))}

    def gpu_of(torch: Any, number: int) -> Any:
        return (Given(near_cpus=lambda gpu: nodes()[gpu]), number) if number == 1 else None

    monkeypatch.setattr(numa, "numa_nodes", nodes)
    monkeypatch.setattr(setup, "numa_nodes", nodes)
    monkeypatch.setattr(numa, "gpu_of", gpu_of)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda number: Given())
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {2, 3, 4, 5})
    target = None if device is None else torch.device(device)
    options: Any = Given(workers=WorkerOptions(numa_node=numa_node), device=Given(target=target))
    assert setup.worker_cpus(options) == expected
