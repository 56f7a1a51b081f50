"""The process that workers are forked from."""

from __future__ import annotations

import gc
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from feeder.dataset.folders import FolderDataset
from feeder.dataset.shards import ShardDataset
from feeder.loader.dataloader import DataLoader
from feeder.loader.workers.channel import pair
from feeder.loader.workers.fork_server import Forked, ForkServer
from feeder.transforms import ColorJitter, Compose, Op, Pad, RandomResizedCrop
from tests.support.batches import check_same
from tests.support.loader_data import write_tree
from tests.support.processes import all_ended, returns_in_time, wait_until
from tests.support.rogue_readers import rogue_dataset

TARGET = "feeder.loader.fast.served_worker:work_loop"


def _expected(shards: Path, epochs: int = 1, **options: Any) -> list[tuple[torch.Tensor, ...]]:
    loader = DataLoader(rogue_dataset(shards), **options)
    return [batch for _ in range(epochs) for batch in loader]


@pytest.mark.parametrize("recipe", [[RandomResizedCrop(16)], [RandomResizedCrop(16), ColorJitter(0.2), Pad(2)]])
def test_only_workers_that_need_pillow_load_it(tmp_path: Path, recipe: list[Op]) -> None:
    dataset = FolderDataset(write_tree(tmp_path, 4, extension="jpg"), Compose(recipe))
    loader = DataLoader(dataset, batch_size=4, num_workers=1, backend="cpu")
    iterator = iter(loader)
    next(iterator)
    (pid,) = loader.worker_pids()
    assert ("PIL/_imaging" in Path(f"/proc/{pid}/maps").read_text()) == (len(recipe) > 1)


def test_a_garbage_collection_that_ends_workers_may_come_while_their_server_is_asked(shards: Path) -> None:
    loader = DataLoader(rogue_dataset(shards), batch_size=4, num_workers=2)
    iterator = iter(loader)
    next(iterator)
    pids = loader.worker_pids()
    garbage: list[Any] = [loader, iterator]
    garbage.append(garbage)
    server = ForkServer.shared(TARGET)
    del loader, iterator, garbage

    def collect() -> None:
        with server._lock:
            gc.collect()

    assert returns_in_time(collect)
    assert all_ended(pids)


def test_word_of_a_workers_end_is_not_lost_to_an_interrupt() -> None:
    class Interrupted(Forked):
        def __setattr__(self, name: str, value: Any) -> None:
            if name == "code" and value is not None and not told:
                told.append(value)
                raise KeyboardInterrupt
            super().__setattr__(name, value)

    told: list[int] = []
    mine, theirs = pair()
    server = ForkServer(TARGET)
    with theirs:
        worker = server.start(theirs)
    worker.__class__ = Interrupted
    mine.close()
    wait_until(lambda: _interrupted(worker))
    wait_until(lambda: worker.ended() is not None)
    assert told == [worker.ended()]
    server.close()


def test_a_workers_process_id_is_known_though_its_server_is_slow_to_say_it() -> None:
    server = ForkServer(TARGET)
    mine, theirs = pair()
    with mine, theirs:
        pid = server.start(theirs).pid()  # while the server imports what workers need
    assert pid is not None
    server.close()
    assert all_ended([pid])


def _interrupted(worker: Forked) -> bool:
    try:
        worker.ended()
    except KeyboardInterrupt:
        return True
    return False


def test_a_server_that_dies_just_when_it_is_needed_is_replaced(shards: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = ForkServer.shared(TARGET)
    os.kill(server.process.pid, signal.SIGKILL)
    os.waitid(os.P_PID, server.process.pid, os.WEXITED | os.WNOWAIT)
    looks = iter([True])  # it was alive when it was looked at
    monkeypatch.setattr(server, "alive", lambda: next(looks, False))
    check_same([*DataLoader(rogue_dataset(shards), batch_size=32, num_workers=1)], _expected(shards, batch_size=32))
    assert ForkServer.shared(TARGET) is not server


def test_a_child_forked_while_a_server_is_started_can_start_its_own() -> None:
    with ForkServer._shared_lock:
        child = os.fork()
        if child == 0:
            os._exit(0 if ForkServer._shared_lock.acquire(timeout=60) else 1)
    assert os.waitpid(child, 0)[1] == 0


def _own_variable(data: bytes) -> str | None:
    return os.environ.get("FEEDER_TEST_VARIABLE")


def test_workers_have_the_environment_of_the_time_when_they_start(
    shards: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = ShardDataset(shards, RandomResizedCrop(16), fields={"cls": _own_variable})
    ForkServer.shared(TARGET)
    for value in ("\udcff late", None):
        monkeypatch.setenv("FEEDER_TEST_VARIABLE", value or "")
        if value is None:
            monkeypatch.delenv("FEEDER_TEST_VARIABLE")
        loader = DataLoader(dataset, batch_size=4, num_workers=1)
        assert {each for _, _, values in loader for each in values} == {value}
