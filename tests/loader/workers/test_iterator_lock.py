"""Loaders that are closed while a thread waits for a batch, or that the interpreter ends with."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import _utils as torch_utils

from feeder.dataset.shards import ShardDataset
from feeder.errors import WorkerError
from feeder.loader.dataloader import DataLoader
from feeder.loader.fast import pool as workers
from feeder.loader.generic import batch_workers
from feeder.loader.workers import iterator_lock as closing
from feeder.transforms import RandomResizedCrop
from tests.support.loader_data import write_shards
from tests.support.processes import all_ended
from tests.support.rogue_readers import RogueReader
from tests.support.torch_datasets import Tensors

_FIRST_STUCK = 8  # the first sample that never comes


def _fast(folder: Path) -> Any:
    dataset = ShardDataset(write_shards(folder, 16), RandomResizedCrop(16))
    dataset.reader = RogueReader(dataset.reader.index.path, _FIRST_STUCK, "stop")  # type: ignore[attr-defined]
    return dataset


class _Stuck(Tensors):
    def __getitem__(self, i: int) -> Any:
        if i >= _FIRST_STUCK:
            threading.Event().wait()
        return super().__getitem__(i)


def _generic(folder: Path) -> Any:
    return _Stuck(16)


def _in_use(iterator: Any) -> None:
    """Waits until another thread is in the iterator."""
    while iterator._use.lock.acquire(blocking=False):
        iterator._use.lock.release()
        os.sched_yield()


def _pids(loader: Any, iterator: Any) -> list[int]:
    return loader.worker_pids() or [process.pid for process in iterator._workers]


@pytest.fixture(params=[(_fast, True), (_fast, False), (_generic, True), (_generic, False)])
def loader(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    # Seconds until a waiting loader looks for a call of close(), and until workers that don't end are killed.
    monkeypatch.setattr(workers, "LOOK_S", 0.1)
    monkeypatch.setattr(batch_workers, "POLL_MS", 100)
    monkeypatch.setattr(torch_utils, "MP_STATUS_CHECK_INTERVAL", 0.1)
    monkeypatch.setattr(workers, "GRACE_S", 0.1)
    make, persistent = request.param
    loader: Any = DataLoader(make(tmp_path), batch_size=4, num_workers=1, persistent_workers=persistent)
    yield loader
    loader.close()


def test_closing_from_another_thread_ends_the_wait_for_a_batch_with_an_error(loader: Any) -> None:
    iterator = iter(loader)
    found: list[Any] = []

    def consume() -> None:
        try:
            found.extend(len(labels) for _, labels in iterator)
        except BaseException as error:
            found.append(error)

    thread = threading.Thread(target=consume, daemon=True)
    thread.start()
    while len(found) < 2:
        os.sched_yield()
    _in_use(iterator)
    pids = _pids(loader, iterator)
    loader.close()
    assert all_ended(pids)
    thread.join(60)
    assert found[:2] == [4, 4]
    assert isinstance(found[2], WorkerError)
    assert "closed while a batch was waited for" in str(found[2])
    assert list(iterator) == []


def test_a_signals_handler_that_closes_ends_the_wait_for_a_batch_with_an_error(loader: Any) -> None:
    iterator = iter(loader)
    assert [len(next(iterator)[1]) for _ in range(2)] == [4, 4]
    pids = _pids(loader, iterator)

    def send() -> None:
        _in_use(iterator)
        os.kill(os.getpid(), signal.SIGUSR1)

    with _handling(signal.SIGUSR1, loader.close):
        thread = threading.Thread(target=send)
        thread.start()
        with pytest.raises(WorkerError, match="closed while a batch was waited for"):
            next(iterator)
        thread.join()
    assert all_ended(pids)
    assert list(iterator) == []


def test_what_a_signals_handler_raises_after_it_closed_is_raised(loader: Any) -> None:
    class Stop(Exception):
        pass

    def stop() -> None:
        loader.close()
        raise Stop

    iterator = iter(loader)
    for _ in range(2):
        next(iterator)
    pids = _pids(loader, iterator)

    def send() -> None:
        _in_use(iterator)
        os.kill(os.getpid(), signal.SIGUSR1)

    with _handling(signal.SIGUSR1, stop):
        thread = threading.Thread(target=send)
        thread.start()
        with pytest.raises(Stop):
            next(iterator)
        thread.join()
    assert all_ended(pids)


class _handling:
    def __init__(self, number: int, function: Callable[[], None]) -> None:
        self._number, self._function = number, function

    def __enter__(self) -> None:
        self._before = signal.signal(self._number, lambda *_: self._function())

    def __exit__(self, *exc_info: object) -> None:
        signal.signal(self._number, self._before)


def test_a_loader_closed_in_the_middle_of_a_batch_keeps_its_workers_until_that_is_left(tmp_path: Path) -> None:
    dataset = ShardDataset(write_shards(tmp_path, 16), RandomResizedCrop(16))
    index: str = dataset.reader.index.path  # type: ignore[attr-defined]
    mark = tmp_path / "mark"
    dataset.reader = RogueReader(index, 0, "stop", str(mark))
    loader: Any = DataLoader(dataset, batch_size=4, num_workers=1, persistent_workers=True)
    iterator: Any = iter(loader)
    pool = iterator.epoch.engine.pool
    while not mark.exists():
        os.sched_yield()
    with iterator._use.lock:  # as under a handler
        loader.close()
        assert pool.check_open()
        with pytest.raises(WorkerError, match="closed"):
            next(iterator)
    assert not pool.check_open()
    assert loader.worker_pids() == []
    assert sum(1 for _ in loader) == 4


def test_closing_from_another_thread_ends_a_wait_for_a_worker_that_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(closing, "PATIENCE_S", 0.1)
    loader: Any = DataLoader(Tensors(16, "stop", 0), batch_size=4, num_workers=1)
    iterator: Any = iter(loader)
    (process,) = iterator._workers
    os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
    found: list[Any] = []

    def consume() -> None:
        try:
            next(iterator)  # whose first sample stopped the worker
        except BaseException as error:
            found.append(error)

    thread = threading.Thread(target=consume, daemon=True)
    thread.start()
    _in_use(iterator)
    loader.close()
    thread.join(60)
    assert [type(error) for error in found] == [WorkerError]
    assert all_ended([process.pid])


_AT_EXIT = """
import dill  # keeps __main__, so that what follows goes when the modules have gone
import multiprocessing
import sys
import torch
import feeder
from feeder.transforms import RandomResizedCrop

multiprocessing.set_start_method("fork")  # to which a class of a script can go on any Python


class Tensors(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, i):
        return torch.zeros(1 << 12)

held = []
for dataset in (feeder.ShardDataset(sys.argv[1], RandomResizedCrop(16)), Tensors()):
    for options in ({}, {"num_workers": 1}, {"num_workers": 1, "persistent_workers": True}):
        loader = feeder.DataLoader(dataset, batch_size=8, metrics=0, **options)
        iterator = iter(loader)
        held += [loader, iterator, next(iterator), next(iterator)]
        held += [loader, iter(loader)]  # whose workers may still be starting
"""


def test_a_script_that_leaves_iterators_behind_ends_in_silence(tmp_path: Path) -> None:
    arguments = [sys.executable, "-c", _AT_EXIT, str(write_shards(tmp_path, 64))]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


_STOPPED_AT_EXIT = """
import os, signal, sys, threading, time
import torch
import feeder
from feeder.transforms import Compose, Lambda, RandomResizedCrop

made = 0

def stop_after_eight(sample):  # two batches
    global made
    made += 1
    if made > 8:
        os.kill(os.getpid(), signal.SIGSTOP)
    return sample

class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, i):
        return stop_after_eight(i)

def consume(loader):
    for batch in loader:
        pass

def waits_for_workers(thread):  # and is not inside of torch, where no thread survives the interpreter's end
    frame = sys._current_frames().get(thread.ident)
    return frame is not None and frame.f_code.co_filename.endswith(("workers/supervisor.py", "fast/pool.py"))

options = {"batch_size": 4, "num_workers": 1, "multiprocessing_context": "fork"}
left = iter(feeder.DataLoader(Numbers(), **options))
next(left)
recipe = Compose([RandomResizedCrop(16), Lambda(stop_after_eight)])
for dataset in (feeder.ShardDataset(sys.argv[1], recipe), Numbers()):
    loader = feeder.DataLoader(dataset, **options)
    thread = threading.Thread(target=consume, args=(loader,), daemon=True)
    thread.start()
    while loader.stats()["batches"] < 2 or not waits_for_workers(thread):
        time.sleep(0.001)
"""


def test_a_script_ends_in_silence_with_stopped_workers_and_threads_that_wait_for_batches(tmp_path: Path) -> None:
    arguments = [sys.executable, "-W", "ignore", "-c", _STOPPED_AT_EXIT, str(write_shards(tmp_path, 64))]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
