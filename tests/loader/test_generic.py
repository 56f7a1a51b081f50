"""The path for datasets that are not feeder's: torch's meaning, with slots, replaced workers and resume."""

from __future__ import annotations

import collections
import contextlib
import errno
import functools
import gc
import inspect
import os
import random
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, IterableDataset, get_worker_info

from feeder.errors import ArgumentError
from feeder.loader.dataloader import DataLoader
from feeder.loader.generic.worker import Channel
from feeder.loader.generic.worker_processes import Processes
from feeder.loader.slots.batch_message import Slot, pack
from feeder.loader.slots.slots import Slots
from feeder.loader.workers import supervisor
from tests.support.processes import all_ended, is_first
from tests.support.torch_datasets import Counting, DiesAtStart, Stream, Tensors, as_it_is, as_lists

_TORCH = tuple(int(number) for number in torch.__version__.split(".")[:2])


class _Random(Dataset[Any]):
    def __len__(self) -> int:
        return 24

    def __getitem__(self, i: int) -> Any:
        info = get_worker_info()
        worker = -1 if info is None else info.id
        return i, worker, torch.rand(()), random.random(), np.random.rand()


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("seeded", [False, True])
def test_random_numbers_are_those_of_torchs_loader(workers: int, shuffle: bool, seeded: bool) -> None:
    found = []
    for cls in (torch.utils.data.DataLoader, DataLoader):
        torch.manual_seed(3)
        random.seed(3)
        np.random.seed(3)
        generator = torch.Generator().manual_seed(4) if seeded else None
        loader: Any = cls(_Random(), batch_size=4, shuffle=shuffle, num_workers=workers, generator=generator)
        found.append([as_lists(loader) for _ in range(2)] + [[torch.rand(()).item()]])
    assert found[0] == found[1]


def test_every_tensor_of_a_large_batch_arrives(tmp_path: Any) -> None:
    loader = DataLoader(Tensors(), batch_size=8, num_workers=2)
    for _ in range(2):
        for number, (images, labels) in enumerate(loader):
            assert labels.tolist() == list(range(8 * number, 8 * number + 8))
            assert images.shape == (8, 3, 50, 60)
            assert images[:, 0, 0, 0].tolist() == labels.tolist()
            assert (images == labels[:, None, None, None]).all()


def _write_no_files(worker: int) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))


def _own_collate(samples: list[Any]) -> Any:
    images = torch.stack([image for image, _ in samples])
    return images, images[:, :, ::2], [label for _, label in samples]


@pytest.mark.parametrize("collate", [None, _own_collate])
def test_batches_arrive_where_torchs_shared_memory_is_too_small(collate: Any) -> None:
    def batches(**options: Any) -> Any:
        loader = DataLoader(Tensors(), batch_size=4, num_workers=2, collate_fn=collate, prefetch_factor=1, **options)
        for batch in loader:
            yield [torch.as_tensor(x).clone() for x in batch]

    for batch, other in zip(batches(worker_init_fn=_write_no_files), batches(), strict=True):
        assert all(torch.equal(a, b) for a, b in zip(batch, other, strict=True))


def test_held_batches_never_change() -> None:
    loader = DataLoader(Tensors(), batch_size=4, num_workers=2, persistent_workers=True)
    held = [*loader, *loader]
    for number, (images, labels) in enumerate(held):
        assert labels.tolist() == [4 * (number % 10) + k for k in range(4)]
        assert (images == labels[:, None, None, None]).all()


def test_slots_are_used_again_and_no_descriptor_is_left() -> None:
    loader = DataLoader(Tensors(400), batch_size=4, num_workers=2, persistent_workers=True)
    for _ in loader:
        pass
    gc.collect()  # what other tests have left
    before = len(os.listdir("/proc/self/fd"))
    addresses = {images.data_ptr() for images, _ in loader}
    assert len(addresses) <= 6
    assert len(os.listdir("/proc/self/fd")) == before


def test_batches_that_grow_still_arrive() -> None:
    class Growing(Dataset[Any]):
        def __len__(self) -> int:
            return 12

        def __getitem__(self, i: int) -> torch.Tensor:
            return torch.full((20_000 * (i + 1),), float(i))

    for number, batch in enumerate(DataLoader(Growing(), batch_size=1, num_workers=2)):
        assert batch.shape == (1, 20_000 * (number + 1))
        assert (batch == number).all()


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
    loader = DataLoader(dataset, batch_size=4, num_workers=2, hang_timeout_s=3)
    labels = [label for _, batch in loader for label in batch.tolist()]
    assert labels == list(range(40))
    assert any("silent for more than 3 s" in event["cause"] for event in loader.stats()["replaced_workers"])


def test_sample_that_hangs_every_worker_is_named() -> None:
    loader = DataLoader(Tensors(deed="stop", at=13), batch_size=4, num_workers=1, hang_timeout_s=2)
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
    iterator: Any = iter(DataLoader(_Stopping(), batch_size=4, num_workers=1, hang_timeout_s=0.5))
    (worker,) = iterator._processes.workers
    with monkeypatch.context() as patch:
        patch.setattr(supervisor, "END_S", 0.05)
        patch.setattr(torch.utils.data._utils, "MP_STATUS_CHECK_INTERVAL", 0.05)
        patch.setattr(worker.process, "kill", lambda: None)  # as if it was stuck in the kernel
        for _ in range(2):  # whoever asks again is told again
            with pytest.raises(RuntimeError, match="does not end although it was killed"):
                list(iterator)
    worker.process.kill()


def test_worker_that_is_stopped_while_its_tensors_are_fetched_is_replaced(tmp_path: Path) -> None:
    dataset = Tensors(16, deed="stop", at=4, mark=str(tmp_path / "mark"))
    loader: Any = DataLoader(dataset, batch_size=4, num_workers=1, hang_timeout_s=0.5)
    iterator = iter(loader)
    (process,) = iterator._workers
    os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)  # with the first batch sent, but no slots yet
    assert [labels.tolist() for _, labels in iterator] == [[*range(k, k + 4)] for k in range(0, 16, 4)]
    (event,) = loader.stats()["replaced_workers"]
    assert "silent for more than 0.5 s" in event["cause"]


def test_only_what_is_fetched_from_a_worker_takes_a_thread_to_watch_it(monkeypatch: pytest.MonkeyPatch) -> None:
    started = []

    class Timer(threading.Timer):
        def start(self) -> None:
            started.append(self)
            super().start()

    monkeypatch.setattr(threading, "Timer", Timer)
    loader = DataLoader(Tensors(80), batch_size=4, num_workers=1, prefetch_factor=2, hang_timeout_s=60)
    assert sum(1 for _ in loader) == 20
    assert 1 <= len(started) <= 4  # until there are slots


def test_worker_without_work_may_be_silent() -> None:
    loader = DataLoader(Tensors(8), batch_size=2, num_workers=2, persistent_workers=True)
    list(loader)
    processes: Any = loader._iterator._processes  # type: ignore[union-attr]
    processes.hang_timeout_s = 1e-9
    list(processes.look(0.001))
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


def test_error_in_a_worker_carries_its_traceback_and_iteration_goes_on() -> None:
    class Bad(Dataset[int]):
        def __len__(self) -> int:
            return 6

        def __getitem__(self, i: int) -> int:
            if i == 2:
                raise KeyError("no such thing")
            return i

    iterator = iter(DataLoader(Bad(), batch_size=2, num_workers=1))
    assert next(iterator).tolist() == [0, 1]
    with pytest.raises(KeyError, match="no such thing") as caught:
        next(iterator)
    assert "in DataLoader worker process 0" in str(caught.value)
    assert next(iterator).tolist() == [4, 5]


@pytest.mark.parametrize("workers", [0, 1])
def test_a_dataset_can_not_end_the_epoch_with_a_next_that_finds_nothing(workers: int) -> None:
    class Bad(Dataset[int]):
        def __len__(self) -> int:
            return 6

        def __getitem__(self, i: int) -> int:
            return i if i != 2 else next(iter([]))

    iterator = iter(DataLoader(Bad(), batch_size=2, num_workers=workers))
    assert next(iterator).tolist() == [0, 1]
    with pytest.raises(RuntimeError, match="StopIteration was raised while a batch was made"):
        next(iterator)
    assert next(iterator).tolist() == [4, 5]
    assert next(iterator, None) is None


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("batch_size", [2, None])
def test_a_collate_fn_can_not_end_an_iterable_dataset(workers: int, batch_size: int | None) -> None:
    class Numbers(IterableDataset[int]):
        def __iter__(self) -> Iterator[int]:
            return iter(range(4))

    loader = DataLoader(Numbers(), batch_size=batch_size, num_workers=workers, collate_fn=lambda batch: next(iter([])))
    with pytest.raises(RuntimeError, match="StopIteration was raised while a batch was made"):
        list(loader)


def test_batch_that_cannot_be_pickled_is_an_error() -> None:
    loader = DataLoader(range(4), batch_size=2, num_workers=1, collate_fn=lambda batch: threading.Lock())
    with pytest.raises(TypeError, match="pickle"):
        next(iter(loader))


@pytest.mark.parametrize("context", ["spawn", "forkserver"])
def test_what_can_not_be_sent_to_a_worker_is_an_error_with_the_way_out(context: str) -> None:
    class Local(Tensors):
        pass

    with pytest.raises(ArgumentError, match=rf"'{context}' can't be sent .*Local.* top level of a module"):
        iter(DataLoader(Local(), num_workers=1, multiprocessing_context=context))


def test_iterable_datasets_of_different_lengths() -> None:
    class Uneven(IterableDataset[int]):
        def __iter__(self) -> Iterator[int]:
            info = get_worker_info()
            assert info is not None
            return iter(range(10 * info.id, 10 * info.id + 3 * (info.id + 1)))

    loader = DataLoader(Uneven(), batch_size=2, num_workers=3, persistent_workers=True)
    expected = [b.tolist() for b in torch.utils.data.DataLoader(Uneven(), batch_size=2, num_workers=3)]
    for _ in range(3):
        assert [b.tolist() for b in loader] == expected


def test_breaking_off_a_persistent_loader_begins_anew() -> None:
    loader = DataLoader(Tensors(), batch_size=4, num_workers=2, persistent_workers=True)
    for stop in (0, 3, 5):
        for number, (_, labels) in enumerate(loader):
            assert labels.tolist() == list(range(4 * number, 4 * number + 4))
            if number == stop:
                break


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


def test_a_script_without_a_main_guard_under_spawn_learns_of_it(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("""
from feeder import DataLoader
list(DataLoader(range(8), num_workers=1, multiprocessing_context='spawn'))
""")
    ended = subprocess.run([sys.executable, str(script)], capture_output=True, text=True)
    assert ended.returncode == 1
    last = ended.stderr.strip().splitlines()[-1]
    assert "exited unexpectedly with exit code 1; what it printed says why" in last
    assert "if __name__ == '__main__':" in last
    assert ended.stderr.count("bootstrapping phase") == 1


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
    processes, killed = Processes(None, hang_timeout_s=1.0), list[int]()
    theirs: list[socket.socket] = []

    def launch(number: int, connection: socket.socket) -> Any:
        theirs.append(connection.dup())
        return SimpleNamespace(kill=lambda: killed.append(number), ended=lambda: -9 if number in killed else None)

    for number in range(2):
        worker = processes.start(number, functools.partial(launch, number))
        worker.owed, worker.heard_ns, worker.has_spoken = number, time.monotonic_ns() - 10**11, True
    Channel(theirs[1]).send(pack(None, Slot(np.empty(0, np.uint8))))
    assert [*processes.look(0, only=0)] == []
    assert killed == []
    assert [message.worker for message in processes.look(0)] == [1]
    assert killed == []
    worker.owed, worker.heard_ns = 1, time.monotonic_ns() - 10**11
    assert [(message.worker, message.data) for message in processes.look(0)] == [(1, None)]
    assert killed == [1]
    for end in [*theirs, *(worker.connection for worker in processes.workers)]:
        end.close()


class _Wide:
    """Batches of so many bytes are asked for by names of so many bytes."""

    def __init__(self, name_bytes: int, batch_bytes: int) -> None:
        self.name_bytes, self.batch_bytes = name_bytes, batch_bytes

    def __iter__(self) -> Iterator[list[str]]:
        return ([str(k) * self.name_bytes] for k in range(10))

    def __len__(self) -> int:
        return 10

    def __getitem__(self, name: str) -> bytes:
        return name[:1].encode() * self.batch_bytes


def test_trainer_and_worker_do_not_wait_for_each_other_to_read() -> None:
    wide = _Wide(500_000, 60_000)
    loader = DataLoader(wide, batch_sampler=wide, num_workers=1, prefetch_factor=10, collate_fn=as_it_is)
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.extend(loader), daemon=True)
    thread.start()
    thread.join(60)
    assert found == [[wide[str(k)]] for k in range(10)]


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
    def refuse(number: int, job: Any) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    dataset = Tensors(deed="kill", at=17, mark=str(tmp_path / "mark"))
    iterator: Any = iter(DataLoader(dataset, batch_size=4, num_workers=2))
    monkeypatch.setattr(iterator._processes, "launch", refuse)
    with pytest.raises(OSError, match="Too many open files"):
        list(iterator)
    with pytest.raises(RuntimeError, match="none could be started in its place"):
        next(iterator)


def _interrupt_once(mark: str) -> str:
    if is_first(mark):
        raise KeyboardInterrupt
    return "whole"


class _Interrupting(str):
    """Interrupts the trainer when it takes this in."""

    def __reduce__(self) -> Any:
        return _interrupt_once, (str(self),)


class _InterruptingStream(IterableDataset[Any]):
    def __init__(self, mark: str) -> None:
        self.mark = mark

    def __iter__(self) -> Iterator[Any]:
        return ((i, _Interrupting(self.mark) if i == 5 else "whole") for i in range(10))


class _InterruptingMap(Dataset[Any]):
    def __init__(self, mark: str) -> None:
        self.mark = mark

    def __len__(self) -> int:
        return 10

    def __getitem__(self, i: int) -> Any:
        return [*_InterruptingStream(self.mark)][i]


def test_an_interrupt_while_a_batch_is_taken_in_loses_it_for_streams_only(tmp_path: Path) -> None:
    for kind in (_InterruptingMap, _InterruptingStream):
        dataset: Any = kind(str(tmp_path / kind.__name__))
        iterator = iter(DataLoader(dataset, batch_size=2, num_workers=1, collate_fn=as_it_is))
        found: list[Any] = []
        thread = threading.Thread(target=_go_on, args=(iterator, found), daemon=True)
        thread.start()
        thread.join(60)
        lost = [4] if kind is _InterruptingStream else []
        # The worker is ahead: which batch is waited for when the interrupt comes is a matter of time.
        assert found.count("KeyboardInterrupt") == 1
        assert found.count("_DeadWorkerError") == len(lost)
        batches = [[(i, "whole"), (i + 1, "whole")] for i in range(0, 10, 2) if i not in lost]
        assert [batch for batch in found if isinstance(batch, list)] == batches


def _go_on(iterator: Iterator[Any], found: list[Any]) -> None:
    while True:
        try:
            found.append(next(iterator))
        except StopIteration:
            return
        except BaseException as error:
            found.append(type(error).__name__)


def test_slots_that_interrupts_took_away_are_found_again(monkeypatch: pytest.MonkeyPatch) -> None:
    interrupts = 0

    def lease(slots: Slots, slot: int) -> Any:
        nonlocal interrupts
        if interrupts < 8:
            interrupts += 1
            raise KeyboardInterrupt
        return hand_out(slots, slot)

    hand_out = Slots.lease
    monkeypatch.setattr(Slots, "lease", lease)
    iterator: Any = iter(DataLoader(Tensors(80), batch_size=4, num_workers=1))
    found: list[Any] = []
    _go_on(iterator, found)
    assert found.count("KeyboardInterrupt") == 8
    batches = [batch for batch in found if batch != "KeyboardInterrupt"]
    assert [images[:, 0, 0, 0].tolist() for images, _ in batches] == [[*range(k, k + 4)] for k in range(0, 80, 4)]
    assert iterator.slots()["held"] > 0


def test_an_iterator_whose_workers_were_ended_is_over() -> None:
    loader = DataLoader(Tensors(), batch_size=4, num_workers=1)
    iterator = iter(loader)
    next(iterator)
    loader.close()
    assert list(iterator) == []
    iterator = iter(DataLoader(Stream(kill_at=8), batch_size=4, num_workers=1))
    for _ in range(2):
        next(iterator)
    for _ in range(2):  # whoever asks again is told again
        with pytest.raises(RuntimeError, match="killed by signal"):
            next(iterator)


@pytest.fixture
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers are killed only long after they should have ended by themselves."""
    monkeypatch.setattr(torch.utils.data._utils, "MP_STATUS_CHECK_INTERVAL", 60.0)


@pytest.mark.usefixtures("_patient")
def test_two_loaders_with_forked_workers_close_promptly() -> None:
    loaders = [DataLoader(Tensors(), batch_size=4, num_workers=1, persistent_workers=True) for _ in range(2)]
    for loader in loaders:
        next(iter(loader))
    processes = [process for loader in loaders for process in loader._iterator._workers]  # type: ignore[union-attr]
    for loader in loaders:
        loader.close()
    assert [process.exitcode for process in processes] == [0, 0]


_TRAINER = """
import multiprocessing, os, signal, sys
from feeder.loader.dataloader import DataLoader

multiprocessing.set_start_method("fork")  # no server could import what is only here

class Slow:
    def __len__(self):
        return 100

    def __getitem__(self, i):
        if i >= 4:
            signal.pause()
        return i

loader = DataLoader(Slow(), batch_size=2, num_workers=2, persistent_workers={persistent})
iterator = iter(loader)
next(iterator)
print(*(worker.pid for worker in iterator._workers), flush=True)
{then}
"""


@pytest.mark.parametrize(
    ("persistent", "then"),
    [
        (False, "pass"),
        (True, "raise ValueError"),
        (True, "os._exit(0)"),
        (False, "os.kill(os.getpid(), signal.SIGKILL)"),
        (False, "os.kill(os.getpid(), signal.SIGINT)"),
    ],
)
def test_workers_end_with_the_trainer_in_the_middle_of_a_batch(persistent: bool, then: str) -> None:
    code = _TRAINER.format(persistent=persistent, then=then)
    # The pipe's other end is open in the workers too: it closes when the last of them has ended.
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=250, check=False)
    pids = [int(pid) for pid in done.stdout.split()]
    assert len(pids) == 2, done.stderr
    assert all_ended(pids)


@pytest.mark.usefixtures("_patient")
@pytest.mark.parametrize("how", ["exhaust", "break", "error", "del", "close"])
def test_no_worker_is_left(how: str) -> None:
    loader = DataLoader(Tensors(), batch_size=4, num_workers=2, persistent_workers=how == "close")
    iterator: Any = iter(loader)
    processes = list(iterator._workers)
    if how == "exhaust":
        collections.deque(iterator, maxlen=0)
    elif how == "break":
        for _ in iterator:
            break
    elif how == "error":
        with contextlib.suppress(ZeroDivisionError):
            for _ in iterator:
                raise ZeroDivisionError
    if how == "close":
        loader.close()
    else:
        del iterator
    assert [process.exitcode for process in processes] == [0, 0]
    children = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()
    assert not {str(process.pid) for process in processes} & set(children)


def test_stopped_workers_are_ended_together_and_none_is_left_a_zombie(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.utils.data._utils, "MP_STATUS_CHECK_INTERVAL", 2.0)
    loader = DataLoader(Tensors(), batch_size=2, num_workers=3)
    iterator: Any = iter(loader)
    next(iterator)
    pids = [process.pid for process in iterator._workers]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    loader.close()
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


def test_arguments_are_torchs_in_its_order_with_its_defaults() -> None:
    theirs = inspect.signature(torch.utils.data.DataLoader.__init__).parameters
    ours = inspect.signature(DataLoader.__init__).parameters
    assert list(ours)[: len(theirs)] == list(theirs)
    for name, parameter in theirs.items():
        assert (ours[name].kind, ours[name].default) == (parameter.kind, parameter.default), name
    assert all(parameter.kind is parameter.KEYWORD_ONLY for name, parameter in ours.items() if name not in theirs)
    plain: Any = torch.utils.data.DataLoader(range(8), 2)  # type: ignore[arg-type]
    loader: Any = DataLoader(range(8), 2)
    for name in set(vars(plain)) - {"sampler", "batch_sampler", "dataset"}:
        assert getattr(loader, name) == getattr(plain, name), name


def test_batches_may_come_as_they_are_ready(tmp_path: Path) -> None:
    class FirstLast(Dataset[int]):
        """Worker 0 waits until the caller has another batch."""

        def __len__(self) -> int:
            return 6

        def __getitem__(self, i: int) -> int:
            while i == 0 and not mark.exists():
                time.sleep(0.01)
            return i

    mark = tmp_path / "mark"
    options: dict[str, Any] = {"batch_size": 1, "num_workers": 2, "prefetch_factor": 2, "timeout": 60}
    iterator = iter(DataLoader(FirstLast(), in_order=False, **options))
    found = [next(iterator).item()]
    assert found == [1]
    mark.touch()
    assert sorted(found + [batch.item() for batch in iterator]) == list(range(6))
    assert [batch.item() for batch in DataLoader(FirstLast(), **options)] == list(range(6))


@pytest.mark.parametrize("workers", [0, 1])
def test_datasets_may_give_several_samples_at_once(workers: int) -> None:
    class AtOnce(Dataset[int]):
        def __len__(self) -> int:
            return 10

        def __getitems__(self, indices: list[int]) -> list[int]:
            return [100 * len(indices) + i for i in indices]

    batches = [batch.tolist() for batch in DataLoader(AtOnce(), batch_size=4, num_workers=workers)]
    assert batches == [[400, 401, 402, 403], [404, 405, 406, 407], [208, 209]]


class _Pinnable:
    def __init__(self, samples: list[int]) -> None:
        self.samples, self.is_pinned = samples, False

    def pin_memory(self) -> _Pinnable:
        self.is_pinned = True
        return self


@pytest.mark.skipif(_TORCH < (2, 8), reason="older ones ask torch.cuda, which can't be said to be there")
@pytest.mark.parametrize("workers", [0, 1])
def test_batches_with_a_pin_memory_of_their_own_are_asked_to(workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda *_: None)
    options: dict[str, Any] = {"batch_size": 2, "num_workers": workers, "collate_fn": _Pinnable}
    for pin in (False, True):
        batches = list(DataLoader(range(4), pin_memory=pin, **options))
        assert [(batch.samples, batch.is_pinned) for batch in batches] == [([0, 1], pin), ([2, 3], pin)]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("interval", [1, 3])
def test_resume_after_every_step(workers: int, interval: int) -> None:
    options: dict[str, Any] = {"batch_size": 4, "shuffle": True, "num_workers": workers}
    loader = DataLoader(range(30), snapshot_every_n_steps=interval, **options)
    seen: list[list[int]] = []
    states = []
    for batch in loader:
        seen.append(batch.tolist())
        states.append(loader.state_dict())
    assert sorted(i for batch in seen for i in batch) == list(range(30))
    for step, state in enumerate(states, 1):
        resumed = DataLoader(range(30), snapshot_every_n_steps=interval, **options)
        resumed.load_state_dict(state)
        assert [batch.tolist() for batch in resumed] == seen[step:]


@pytest.mark.parametrize(("before", "after"), [(0, 2), (2, 0), (2, 3), (3, 1)])
def test_map_style_dataset_without_state_resumes_with_another_number_of_workers(before: int, after: int) -> None:
    loader = DataLoader(range(30), batch_size=4, shuffle=True, num_workers=before)
    iterator = iter(loader)
    for _ in range(3):
        next(iterator)
    state = loader.state_dict()
    rest = [batch.tolist() for batch in iterator]
    resumed = DataLoader(range(30), batch_size=4, shuffle=True, num_workers=after)
    resumed.load_state_dict(state)
    assert [batch.tolist() for batch in resumed] == rest


@pytest.mark.parametrize("persistent", [False, True])
def test_the_number_of_workers_may_change_between_epochs(persistent: bool) -> None:
    loader = DataLoader(Tensors(8), batch_size=2, num_workers=1, persistent_workers=persistent)
    assert len(list(loader)) == 4
    loader.close()
    loader.num_workers = 3
    assert len(list(loader)) == 4
    stats = loader.stats()
    assert [worker["stages"]["fetch"]["count"] for worker in stats["workers"]] == [6, 1, 1]
    loader.close()


def test_states_of_workers_do_not_fit_another_number_of_them() -> None:
    loader = DataLoader(Counting(), batch_size=4, num_workers=2)
    iterator = iter(loader)
    next(iterator)
    state = loader.state_dict()
    rest = [batch.tolist() for batch in iterator]
    resumed = DataLoader(Counting(), batch_size=4, num_workers=2)
    resumed.load_state_dict(state)
    assert [batch.tolist() for batch in resumed] == rest
    for workers in (0, 3):
        other = DataLoader(Counting(), batch_size=4, num_workers=workers)
        other.load_state_dict(state)
        with pytest.raises(ArgumentError, match="num_workers=2"):
            iter(other)


def test_iterable_dataset_without_state_is_counted_off() -> None:
    for workers in (0, 2):
        loader = DataLoader(Stream(), batch_size=3, num_workers=workers)
        iterator = iter(loader)
        for _ in range(2):
            next(iterator)
        state = loader.state_dict()
        rest = [batch.tolist() for batch in iterator]
        resumed = DataLoader(Stream(), batch_size=3, num_workers=workers)
        resumed.load_state_dict(state)
        assert [batch.tolist() for batch in resumed] == rest


def test_state_after_an_epoch_fixes_the_next_ones_order() -> None:
    loader = DataLoader(range(30), batch_size=4, shuffle=True)
    list(loader)
    state = loader.state_dict()
    expected = [batch.tolist() for batch in loader]
    torch.manual_seed(12345)
    resumed = DataLoader(range(30), batch_size=4, shuffle=True, num_workers=1)
    resumed.load_state_dict(state)
    assert [batch.tolist() for batch in resumed] == expected


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("options", [{}, {"shuffle": True}, {"batch_size": None}, {"batch_sampler": [[0], [1]]}])
def test_a_place_beyond_the_end_of_the_epoch_is_refused(options: dict[str, Any], workers: int) -> None:
    """An epoch without any batch would be the alternative."""
    longer = options | {"batch_sampler": [[0]] * 9} if "batch_sampler" in options else options
    loader = DataLoader(range(9), num_workers=workers, **longer)
    iterator = iter(loader)
    for _ in range(7):
        next(iterator)
    other = DataLoader(range(5), num_workers=workers, **options)
    other.load_state_dict(loader.state_dict())
    with pytest.raises(ArgumentError, match=r"7 of its sampler's numbers were handed out, and this sampler gives [25]"):
        next(iter(other))
