"""The end of loaders on torch's path: no worker outlives its iterator, loader or trainer."""

from __future__ import annotations

import collections
import contextlib
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from feeder.loader.dataloader import DataLoader
from tests.support.processes import all_ended
from tests.support.torch_datasets import Stream, Tensors
from tests.support.warm_python import run_warm


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
    done = run_warm(["-c", code], capture_output=True, text=True)
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
