"""Workers of torch's path that die or hang: replaced for map-style datasets, named where that is no use."""

from __future__ import annotations

import errno
import functools
import os
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, get_worker_info

from feeder.loader.dataloader import DataLoader
from feeder.loader.generic.batch_workers import BatchWorkers
from feeder.loader.generic.generic_worker import BatchResult, send_result
from feeder.loader.generic.meters import GenericMeters
from feeder.loader.generic.pending_batches import BatchSlots, PendingBatches
from feeder.loader.options import WorkerOptions
from feeder.loader.slots.batch_message import Slot, pack
from feeder.loader.workers import supervisor
from feeder.loader.workers.channel import Channel
from tests.support.processes import is_first
from tests.support.torch_datasets import Counting, DiesAtStart, Stream, Tensors, as_lists


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_dead_worker_of_a_map_style_dataset_is_replaced(tmp_path: Any, context: str) -> None:
    dataset = Tensors(at=13, mark=str(tmp_path / "mark"))
    loader = DataLoader(dataset, batch_size=4, num_workers=2, multiprocessing_context=context)
    labels = [label for _, batch in loader for label in batch.tolist()]
    assert labels == list(range(40))
    (event,) = loader.stats()["replaced_workers"]
    assert "Killed" in event["cause"]


def test_replaced_worker_is_seeded_as_the_first_one_was(tmp_path: Any) -> None:
    class Seeds(Dataset[Any]):
        def __len__(self) -> int:
            return 24

        def __getitem__(self, i: int) -> Any:
            if i == 9 and is_first(str(tmp_path / "mark")):
                os.kill(os.getpid(), signal.SIGKILL)
            info = get_worker_info()
            assert info is not None
            return info.id, info.seed, torch.initial_seed(), info.num_workers

    torch.manual_seed(1)
    loader = DataLoader(Seeds(), batch_size=2, num_workers=2)
    batches = as_lists(loader)
    assert len(loader.stats()["replaced_workers"]) == 1
    torch.manual_seed(1)
    (tmp_path / "mark").touch()
    assert batches == as_lists(torch.utils.data.DataLoader(Seeds(), batch_size=2, num_workers=2))


def test_hung_worker_of_a_map_style_dataset_is_replaced(tmp_path: Any) -> None:
    dataset = Tensors(deed="stop", at=13, mark=str(tmp_path / "mark"))
    loader = DataLoader(dataset, batch_size=4, num_workers=2, worker_options=WorkerOptions(hang_timeout_s=3))
    labels = [label for _, batch in loader for label in batch.tolist()]
    assert labels == list(range(40))
    assert any("silent for more than 3 s" in event["cause"] for event in loader.stats()["replaced_workers"])


def test_sample_that_hangs_every_worker_is_named() -> None:
    loader = DataLoader(
        Tensors(deed="stop", at=13), batch_size=4, num_workers=1, worker_options=WorkerOptions(hang_timeout_s=2)
    )
    with pytest.raises(RuntimeError, match=r"silent for more than 2 s; at work on the samples \[12, 13, 14, 15\]"):
        list(loader)


class _Stopping(Dataset[int]):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, i: int) -> int:
        if i == 4:
            os.kill(os.getpid(), signal.SIGSTOP)
        return i


def test_a_hung_worker_that_can_not_be_killed_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    iterator: Any = iter(
        DataLoader(_Stopping(), batch_size=4, num_workers=1, worker_options=WorkerOptions(hang_timeout_s=0.5))
    )
    (worker,) = iterator._batches.workers
    with monkeypatch.context() as patch:
        patch.setattr(supervisor, "END_S", 0.05)
        patch.setattr(torch.utils.data._utils, "MP_STATUS_CHECK_INTERVAL", 0.05)
        patch.setattr(worker.process, "kill", lambda: None)  # as if it was stuck in the kernel
        for _ in range(2):  # whoever asks again is told again
            with pytest.raises(RuntimeError, match="does not end although it was killed"):
                list(iterator)
    worker.process.kill()


def test_worker_without_work_may_be_silent() -> None:
    loader = DataLoader(Tensors(8), batch_size=2, num_workers=2, persistent_workers=True)
    list(loader)
    processes: Any = loader._iterator._batches  # type: ignore[union-attr]
    processes.hang_timeout_s = 1e-9
    processes.look(0.001, lambda: None)
    processes.hang_timeout_s = None
    assert len(list(loader)) == 4
    assert loader.stats()["replaced_workers"] == []


def test_sample_that_kills_every_worker_is_named() -> None:
    loader = DataLoader(Tensors(at=13), batch_size=4, num_workers=2)
    with pytest.raises(RuntimeError, match=r"DataLoader worker \(pid \d+\) is killed by signal: Killed") as caught:
        for _ in loader:
            pass
    assert "13" in str(caught.value)


def test_dead_worker_of_an_iterable_dataset_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="is killed by signal"):
        list(DataLoader(Stream(kill_at=7), batch_size=2, num_workers=2))


def test_a_worker_that_died_between_two_epochs_is_replaced() -> None:
    loader = DataLoader(Counting(), batch_size=5, num_workers=2, persistent_workers=True)
    list(loader)
    first = [*loader._iterator._workers]  # type: ignore[union-attr]
    os.kill(first[0].pid, signal.SIGKILL)
    first[0].join()
    # The dataset's state goes to the one in its place: 15 samples were seen by each in the first epoch.
    assert [sorted(i % 1000 for i in batch.tolist()) for batch in loader] == [
        list(range(k, k + 5)) for k in range(0, 30, 5)
    ]
    assert [event["pid"] for event in loader.stats()["replaced_workers"]] == [first[0].pid]
    assert loader.state_dict()["_snapshot"]["_worker_snapshots"]["worker_0"]["dataset_state"] == {"seen": 30}


class _StatefulStream(Stream):
    """Goes on after the numbers that it has given."""

    def __init__(self) -> None:
        super().__init__()
        self.given = 0

    def __iter__(self) -> Iterator[int]:
        for i in [*super().__iter__()][self.given :]:
            self.given += 1
            yield i
        self.given = 0

    def state_dict(self) -> dict[str, Any]:
        return {"given": self.given}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.given = state["given"]


@pytest.mark.parametrize("dataset", [Counting(), Stream(), _StatefulStream()])
@pytest.mark.parametrize("is_resumed", [False, True])
def test_a_worker_that_dies_before_its_first_epoch_began_is_replaced(
    tmp_path: Path, dataset: Any, is_resumed: bool
) -> None:
    whole = DataLoader(dataset, batch_size=2, num_workers=2)
    loader = DataLoader(dataset, batch_size=2, num_workers=2, worker_init_fn=DiesAtStart(str(tmp_path), 2, spared=0))
    expected = iter(whole)
    if is_resumed:
        for _ in range(3):
            next(expected)
        loader.load_state_dict(whole.state_dict())
    assert [batch.tolist() for batch in loader] == [batch.tolist() for batch in expected]
    assert len(loader.stats()["replaced_workers"]) == 2


def test_workers_that_always_die_before_their_first_epoch_began_are_an_error(tmp_path: Path) -> None:
    loader = DataLoader(Tensors(), batch_size=2, num_workers=2, worker_init_fn=DiesAtStart(str(tmp_path), 99, spared=0))
    with pytest.raises(RuntimeError, match=r"is killed by signal: Killed\.$"):
        list(loader)


def test_a_first_sample_that_kills_every_worker_is_named() -> None:
    with pytest.raises(RuntimeError, match=r"Killed\.; at work on the samples \[0, 1\]$"):
        list(DataLoader(Tensors(at=0), batch_size=2, num_workers=1))


def test_a_worker_that_dies_as_it_begins_in_a_dead_ones_place_is_replaced_but_not_for_ever(tmp_path: Path) -> None:
    for times in (2, 9):
        folder = tmp_path / str(times)
        folder.mkdir()
        mark = str(tmp_path / f"mark{times}")
        dataset = Tensors(deed="kill", at=17, mark=mark)
        loader = DataLoader(dataset, batch_size=4, num_workers=1, worker_init_fn=DiesAtStart(str(folder), times))
        if times == 2:
            assert [batch[1].tolist()[0] for batch in loader] == list(range(0, 40, 4))
            assert len(loader.stats()["replaced_workers"]) == 3
        else:
            with pytest.raises(RuntimeError, match="killed by signal"):
                list(loader)


def test_a_worker_that_was_not_listened_to_is_not_taken_for_silent() -> None:
    class Workers(BatchWorkers):
        def _replace(self, number: int, check: Any) -> None:
            replaced.append(number)

    replaced, killed = list[int](), list[int]()
    job: Any = SimpleNamespace(kind=0, workers=2)
    parts = PendingBatches(True), BatchSlots(1, None, None), GenericMeters(2)
    processes = Workers(None, 1.0, job, {}, *parts, [])
    theirs: list[socket.socket] = []

    def launch(number: int, connection: socket.socket) -> Any:
        theirs.append(connection.dup())
        return SimpleNamespace(kill=lambda: killed.append(number), ended=lambda: -9 if number in killed else None)

    for number in range(2):
        worker = processes.start(number, functools.partial(launch, number))
        worker.owed, worker.heard_ns, worker.has_spoken = number, time.monotonic_ns() - 10**11, True
    send_result(Channel(theirs[1]), pack(BatchResult(None, None, {}), Slot(np.empty(0, np.uint8))))
    processes.look(0, list, only=0)
    assert (killed, worker.has_begun) == ([], False)
    processes.look(0, list)
    assert (killed, worker.has_begun) == ([], True)
    worker.owed, worker.heard_ns = 1, time.monotonic_ns() - 10**11
    processes.look(0, list)
    assert killed == replaced == [1]
    for end in [*theirs, *(worker.connection for worker in processes.workers)]:
        end.close()


def test_a_persistent_loader_whose_workers_were_given_up_begins_anew(tmp_path: Path) -> None:
    class DyingStream(Stream):
        def __iter__(self) -> Iterator[int]:
            for i in super().__iter__():
                if i == 8 and is_first(str(tmp_path / "mark")):
                    os.kill(os.getpid(), signal.SIGKILL)
                yield i

    loader = DataLoader(DyingStream(), batch_size=4, num_workers=1, persistent_workers=True)
    with pytest.raises(RuntimeError, match="killed by signal"):
        list(loader)
    assert as_lists([loader]) == [[[*range(k, k + 4)] for k in range(0, 20, 4)]]


def test_no_worker_to_be_had_in_a_dead_ones_place_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(number: int) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    dataset = Tensors(deed="kill", at=17, mark=str(tmp_path / "mark"))
    iterator: Any = iter(DataLoader(dataset, batch_size=4, num_workers=2))
    monkeypatch.setattr(iterator._batches, "launch", refuse)
    with pytest.raises(OSError, match="Too many open files"):
        list(iterator)
    with pytest.raises(RuntimeError, match="none could be started in its place"):
        next(iterator)
