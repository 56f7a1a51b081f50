"""Connections to workers while other threads fork."""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import multiprocessing.connection
import os
import signal
import socket
import threading
import warnings
from collections.abc import Callable, Iterator
from multiprocessing import popen_fork
from pathlib import Path
from typing import Any

import pytest

from feeder.dataset.shards import ShardDataset
from feeder.loader.dataloader import DataLoader
from feeder.loader.fast import pool as fast_pool
from feeder.loader.generic import batch_workers
from feeder.loader.workers.channel import end_with_trainer, handing_over
from feeder.loader.workers.fork_server import ForkServer
from feeder.loader.workers.process import InContext, wait_for
from feeder.loader.workers.supervisor import Supervisor, Worker
from feeder.transforms import RandomResizedCrop
from tests.support.loader_data import write_shards
from tests.support.torch_datasets import Tensors


@contextlib.contextmanager
def _bystanders() -> Iterator[Callable[[], None]]:
    """Forks a process in another thread, which does nothing until the end."""
    forked: list[int] = []

    def fork() -> None:
        pid = os.fork()
        if pid == 0:
            signal.pause()
        forked.append(pid)

    def start() -> None:
        thread = threading.Thread(target=fork)
        thread.start()
        thread.join()

    try:
        yield start
    finally:
        for pid in forked:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def test_a_process_forked_while_an_end_is_handed_over_does_not_hold_it_open() -> None:
    with _bystanders() as fork:
        with handing_over() as (mine, theirs):
            fork()
            theirs.send(b"x")
        with mine:
            mine.settimeout(30)
            assert mine.recv(2) == b"x"
            assert mine.recv(1) == b""


def test_a_worker_has_the_end_that_is_handed_over_to_it_and_its_children_have_not() -> None:
    with handing_over() as (mine, theirs):
        child = os.fork()
        if child == 0:
            theirs.send(b"x")
            if os.fork() == 0:
                os._exit(int(theirs.fileno() >= 0))
            os._exit(os.waitstatus_to_exitcode(os.wait()[1]))
    assert mine.recv(1) == b"x"
    assert os.waitpid(child, 0)[1] == 0
    mine.close()


def test_a_workers_end_is_seen_though_a_process_that_it_forked_lives_on() -> None:
    mine, theirs = socket.socketpair()
    child = os.fork()
    if child == 0:  # a worker whose socket was sent to it
        mine.close()
        end_with_trainer(theirs)
        left = os.fork()
        if left == 0:
            signal.pause()
        theirs.send(left.to_bytes(4, "little"))
        os._exit(0)
    theirs.close()
    with mine:
        mine.settimeout(30)
        left = int.from_bytes(mine.recv(4), "little")
        try:
            assert mine.recv(1) == b""
        finally:
            os.kill(left, signal.SIGKILL)
            os.waitpid(child, 0)


@pytest.mark.parametrize("kind", ["generic", "fast", "fast in context"])
def test_a_workers_end_is_seen_though_another_thread_forked_while_it_was_started(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset: Any = Tensors()
    if kind != "generic":
        dataset = ShardDataset(write_shards(tmp_path, 40), RandomResizedCrop(16))
    module = {"generic": batch_workers, "fast": ForkServer, "fast in context": fast_pool}[kind]
    name = "start" if kind == "fast" else "InContext"
    start = getattr(module, name)

    def start_and_fork(*arguments: Any) -> Any:
        fork()
        return start(*arguments)

    with _bystanders() as fork:
        monkeypatch.setattr(module, name, start_and_fork)
        context = "fork" if kind == "fast in context" else None
        loader: Any = DataLoader(dataset, batch_size=4, num_workers=1, multiprocessing_context=context)
        iterator = iter(loader)
        monkeypatch.undo()
        next(iterator)
        for pid in loader.worker_pids() or [process.pid for process in iterator._workers]:
            os.kill(pid, signal.SIGKILL)
        assert sum(1 for _ in iterator) == 9
        assert len(loader.stats()["replaced_workers"]) == 1
        loader.close()


def test_a_process_is_not_waited_for_by_what_another_threads_fork_may_hold_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    launch = popen_fork.Popen._launch  # type: ignore[attr-defined]
    pipe = os.pipe

    def forking_pipe() -> tuple[int, int]:
        made = pipe()
        fork()
        return made

    def launch_and_fork(popen: Any, process: Any) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(os, "pipe", forking_pipe)
            launch(popen, process)

    with _bystanders() as fork:
        monkeypatch.setattr(popen_fork.Popen, "_launch", launch_and_fork)
        worker = InContext(multiprocessing.get_context("fork"), os.getpid, ())
        process = worker.process
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        process.join(0)
        assert not multiprocessing.connection.wait([process.sentinel], 0)  # as if it had not ended
        assert wait_for([worker], 60) == []
        assert worker.ended() == 0
        assert process not in multiprocessing.active_children()


def test_the_collector_takes_no_open_socket_of_workers_that_nobody_has_ended() -> None:
    supervisor: Any = Supervisor(Worker, None)
    ends: list[socket.socket] = []
    supervisor.start(0, lambda theirs: ends.append(theirs.dup()))
    supervisor.itself = supervisor
    gc.collect()  # what other tests have left
    del supervisor
    with ends[0], warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        gc.collect()
        assert ends[0].recv(1) == b""
    assert [each for each in found if each.category is ResourceWarning] == []
