"""The end of workers: none outlives its iterator, loader or trainer."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from feeder.loader.dataloader import DataLoader
from tests.support import ROOT
from tests.support.processes import all_ended
from tests.support.rogue_readers import rogue_dataset
from tests.support.warm_python import run_warm


@pytest.mark.pairwise
@pytest.mark.parametrize("how", ["close", "break", "del", "raise", "end"])
@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("context", [None, "fork"])
def test_no_worker_is_left(shards: Path, how: str, persistent: bool, context: str | None) -> None:
    loader = DataLoader(
        rogue_dataset(shards),
        batch_size=4,
        num_workers=2,
        persistent_workers=persistent,
        multiprocessing_context=context,
    )
    pids: list[int] = []
    iterator = iter(loader)
    try:
        for step, _ in enumerate(iterator):
            pids = pids or loader.worker_pids()
            if how == "break" and step == 2:
                break
            if how == "raise" and step == 2:
                raise ValueError
    except ValueError:
        pass
    assert len(pids) == 2
    if how == "close" or (persistent and how != "del"):
        loader.close()
    del iterator
    if how == "del":
        del loader
    assert all_ended(pids)


def test_stopped_worker_does_not_hold_up_closing(shards: Path) -> None:
    loader = DataLoader(rogue_dataset(shards, 21, "stop"), batch_size=4, num_workers=2)
    iterator = iter(loader)
    next(iterator)
    pids = loader.worker_pids()
    loader.close()
    assert all_ended(pids)


_TRAINER = """
import os, signal, sys, threading, time
sys.path.insert(0, {root!r})
from tests.support.rogue_readers import rogue_dataset
from pathlib import Path
from types import FrameType
from feeder.loader.dataloader import DataLoader
loader = DataLoader(rogue_dataset(Path({shards!r}), {sample}, {deed!r}), batch_size=4, num_workers=2, {options})
iterator = iter(loader)
next(iterator)
from feeder.loader.workers.fork_server import ForkServer
pids = loader.worker_pids()
print(*pids, *(server.process.pid for server in ForkServer._shared.values()), flush=True)
{then}
"""


def _run_trainer(shards: Path, deed: str, options: str, then: str) -> tuple[list[int], str]:
    """Runs a trainer to its end, and waits until all who inherited its output have ended; the workers' ids, and what
    it wrote to stderr."""
    code = _TRAINER.format(root=str(ROOT), shards=str(shards), sample=21, deed=deed, options=options, then=then)
    ended = run_warm(["-c", code], capture_output=True, text=True)
    pids = [int(pid) for pid in ended.stdout.split()]
    assert len(pids) >= 2, ended.stderr
    return pids, ended.stderr


@pytest.mark.parametrize(
    ("deed", "options"), [("", ""), ("", "multiprocessing_context='fork'"), ("stop", "persistent_workers=True")]
)
@pytest.mark.parametrize(
    "then",
    [
        "pass",
        "os._exit(0)",
        "os.kill(os.getpid(), signal.SIGKILL)",
        "os.kill(os.getpid(), signal.SIGINT)",
        "raise ValueError",
    ],
)
def test_workers_end_with_the_trainer_however_it_ends(shards: Path, options: str, deed: str, then: str) -> None:
    pids, _ = _run_trainer(shards, deed, options, then)
    assert all_ended(pids)


# Sample 21 stops its worker: the trainer has five batches, and waits for the sixth.
_INTERRUPTED_WAIT = """
from tests.support.processes import wait_until

def waits():
    frame = sys._current_frames()[threading.main_thread().ident]
    return loader.stats()["batches"] == 5 and frame.f_code.co_filename.endswith(("supervisor.py", "fast/pool.py"))

def interrupt():
    wait_until(waits)
    os.kill(os.getpid(), signal.SIGINT)

threading.Thread(target=interrupt, daemon=True).start()
for _ in iterator:
    pass
"""


def test_interrupt_while_waiting_ends_promptly_and_leaves_nothing(shards: Path) -> None:
    pids, err = _run_trainer(shards, "stop", "", _INTERRUPTED_WAIT)
    assert "KeyboardInterrupt" in err
    assert all_ended(pids)


def test_a_process_forked_off_the_trainer_leaves_the_workers_alone(shards: Path) -> None:
    loader = DataLoader(rogue_dataset(shards), batch_size=4, num_workers=2)
    iterator = iter(loader)
    next(iterator)
    child = os.fork()
    if child == 0:
        del iterator
        loader.close()
        os._exit(0)
    os.waitpid(child, 0)
    assert sum(1 for _ in iterator) == 15
    assert loader.stats()["replaced_workers"] == []


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("is_fast", [True, False])
def test_a_generator_that_is_open_when_python_ends_says_nothing(shards: Path, workers: int, is_fast: bool) -> None:
    code = f"""
import contextlib, feeder, torch
from feeder import transforms as T

def batches():
    data = feeder.ShardDataset({str(shards)!r}, T.RandomResizedCrop(8))
    if not {is_fast}:
        data = torch.utils.data.TensorDataset(torch.arange(8))
    with contextlib.closing(feeder.DataLoader(data, batch_size=2, num_workers={workers})) as loader:
        while True:
            yield from loader

if __name__ == "__main__":
    found = batches()
    next(found)
"""
    ended = run_warm(["-c", code], capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_closing_ends_every_iterator(shards: Path) -> None:
    loader = DataLoader(rogue_dataset(shards, 5, "stop"), batch_size=4, num_workers=1)
    first = iter(loader)
    next(first)
    next(iter(loader))  # another one is the last now
    loader.close()
    assert list(first) == []
