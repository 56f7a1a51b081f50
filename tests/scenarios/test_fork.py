"""Processes that are forked off one which has a loader, and the interpreter's end while an iterator is there."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.loader_data import write_shards
from tests.support.warm_python import run_warm

SHARDS = """
import os, sys, torch
torch.set_num_threads(1)  # torch's own threads do not live through a fork
from feeder import DataLoader, ShardDataset
from feeder.errors import WorkerError
from feeder.transforms import RandomResizedCrop
dataset = ShardDataset(sys.argv[1], RandomResizedCrop(16))
loader = DataLoader(dataset, 8, num_workers=2, persistent_workers=sys.argv[2] == "persistent")
begin = lambda: loader.set_epoch(1)
"""
TENSORS = """
import os, sys, torch
torch.set_num_threads(1)
torch.multiprocessing.set_start_method("fork")  # no server could import what is only here
from feeder import DataLoader
class Numbers(torch.utils.data.Dataset):
    def __len__(self): return 64
    def __getitem__(self, i): return torch.full((3, 8), float(i)), i
loader = DataLoader(Numbers(), 8, num_workers=2, persistent_workers=sys.argv[2] == "persistent")
begin = lambda: None
"""
BOTH_ITERATE = """
def epoch():
    begin()
    return [(images.clone(), labels.tolist()) for images, labels in loader]
wanted = epoch()
child = os.fork()
bad = 0
for _ in range(4):
    found = epoch()
    bad += len(found) != len(wanted)
    bad += sum(not torch.equal(a, c) or b != d for (a, b), (c, d) in zip(found, wanted))
if child == 0:
    os._exit(bad)
print("parent", bad, "child", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def run(script: str, path: Path, kind: str) -> tuple[str, str]:
    """Returns stdout and stderr of a process that runs the script."""
    # torch warns where there are fewer cores than workers.
    arguments = ["-W", "ignore:This DataLoader will create", "-c", script, path, kind]
    done = run_warm(arguments, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip(), done.stderr


@pytest.mark.parametrize("kind", ["persistent", "fresh"])
@pytest.mark.parametrize("loader", [SHARDS, TENSORS], ids=["shards", "tensors"])
def test_parent_and_forked_child_iterate_each_for_itself(tmp_path: Path, loader: str, kind: str) -> None:
    write_shards(tmp_path, 64)
    out, errors = run(loader + BOTH_ITERATE, tmp_path, kind)
    assert out == "parent 0 child 0"
    assert errors == ""


@pytest.mark.parametrize("kind", ["persistent", "fresh"])
def test_a_child_that_drops_its_copy_of_an_iterator_takes_nothing_from_the_parent(tmp_path: Path, kind: str) -> None:
    write_shards(tmp_path, 64)
    script = (
        SHARDS
        + """
iterator = iter(loader)
first = next(iterator)
child = os.fork()
if child == 0:
    try:
        next(iterator)
    except WorkerError as error:
        assert "make one of its own" in str(error)
        del iterator, first
        sys.exit(0)
    sys.exit(1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 1 + sum(1 for _ in iterator))
"""
    )
    out, errors = run(script, tmp_path, kind)
    assert out == "0 8"
    assert errors == ""


def test_a_child_that_uses_the_parents_iterator_late_writes_nothing_into_its_slots(tmp_path: Path) -> None:
    write_shards(tmp_path, 64)
    script = (
        SHARDS
        + """
iterator = iter(loader)
next(iterator)
child, parent = os.pipe()
pid = os.fork()
if pid == 0:
    os.read(child, 1)
    try:
        next(iterator)
    except WorkerError:
        os._exit(0)
    os._exit(1)
for _ in range(6):  # by then the child's free slot has another batch
    next(iterator)
views = iterator.epoch.engine.ring.views
before = [view.samples.ids.tolist() for view in views]
os.write(parent, b"-")
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), [view.samples.ids.tolist() for view in views] == before)
"""
    ).replace("8, num_workers=2", "4, num_workers=1, prefetch_factor=2")
    out, errors = run(script, tmp_path, "fresh")
    assert out == "0 True"
    assert errors == ""


def test_a_child_forked_while_a_thread_waits_for_a_batch_does_not_wait_with_it(tmp_path: Path) -> None:
    write_shards(tmp_path, 64)
    script = (
        SHARDS
        + """
import threading, warnings
warnings.simplefilter("ignore")  # newer Pythons warn of what is done here
iterator = iter(loader)
waits, goes_on = threading.Event(), threading.Event()
def wait():
    with iterator._use.lock:
        waits.set()
        goes_on.wait()
thread = threading.Thread(target=wait)
thread.start()
waits.wait()
child = os.fork()
if child == 0:
    import signal
    signal.alarm(60)
    try:
        next(iterator)
    except WorkerError:
        os._exit(0)
    os._exit(1)
code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
goes_on.set()
thread.join()
print(code, sum(1 for _ in iterator))
"""
    )
    assert run(script, tmp_path, "fresh") == ("0 8", "")


def test_a_child_is_told_that_the_workers_are_not_its_own(tmp_path: Path) -> None:
    script = (
        TENSORS
        + """
from feeder.errors import WorkerError
iterator = iter(loader)
next(iterator)
child = os.fork()
if child == 0:
    try:
        next(iterator)
    except WorkerError as error:
        assert "make one of its own" in str(error)
        os._exit(0)
    os._exit(1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 1 + sum(1 for _ in iterator))
"""
    )
    assert run(script, tmp_path, "fresh") == ("0 8", "")


@pytest.mark.parametrize("kind", ["persistent", "fresh"])
def test_an_iterator_that_is_there_at_the_end_says_nothing(tmp_path: Path, kind: str) -> None:
    write_shards(tmp_path, 64)
    assert run(SHARDS + "iterator = iter(loader); next(iterator)\n", tmp_path, kind) == ("", "")
