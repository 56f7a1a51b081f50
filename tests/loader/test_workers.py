"""The pool under attack: workers that are killed, stopped, or fail; trainers that end in every way."""

from __future__ import annotations

import contextlib
import errno
import gc
import logging
import os
import random
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from feeder.dataset.shards import ShardDataset
from feeder.errors import ArgumentError, WorkerError
from feeder.loader.dataloader import DataLoader
from feeder.loader.workers.fork_server import ForkServer
from feeder.loader.workers.sockets import pair
from feeder.transforms import Compose, Lambda, RandomResizedCrop
from tests.support import ROOT
from tests.support.batches import check_same, copied_epoch
from tests.support.loader_data import write_shards
from tests.support.processes import all_ended, returns_in_time
from tests.support.rogue_readers import DyingAndWaitingReader, WideReader, rogue_dataset

RECIPE = RandomResizedCrop(16)
TARGET = "feeder.loader.fast.served_worker:work_loop"


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_shards(tmp_path_factory.mktemp("shards"), 64)


def _expected(shards: Path, epochs: int = 1, **options: Any) -> list[tuple[torch.Tensor, ...]]:
    loader = DataLoader(rogue_dataset(shards), **options)
    return [batch for _ in range(epochs) for batch in loader]


@pytest.mark.parametrize(
    ("deed", "cause", "context"),
    [
        ("kill", "SIGKILL", None),
        ("kill", "SIGKILL", "fork"),
        ("abort", "SIGABRT", None),
        ("exit", "exit code 3", None),
        ("exit", "exit code 3", "fork"),
        ("stop", "silent for 2 s", None),
        ("stop", "silent for 2 s", "fork"),
    ],
)
def test_worker_that_ends_or_hangs_is_replaced_and_every_sample_comes_once(
    shards: Path, tmp_path: Path, deed: str, cause: str, context: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    dataset = rogue_dataset(shards, 21, deed, str(tmp_path / "mark"))
    patience: dict[str, Any] = {"hang_timeout_s": 2} if deed == "stop" else {}
    loader = DataLoader(dataset, batch_size=8, shuffle=True, num_workers=2, multiprocessing_context=context, **patience)
    with caplog.at_level(logging.WARNING, "feeder"):
        batches = copied_epoch(loader)
    check_same(batches, _expected(shards, batch_size=8, shuffle=True))
    events = loader.stats()["replaced_workers"]
    if deed != "stop":  # what stands still for so long, as the whole machine may, is silent too
        assert len(events) == 1
    assert any(cause in event["cause"] and "00000021" in event["keys"] for event in events)
    assert cause in caplog.text


def test_a_workers_end_is_seen_while_the_batchs_last_part_is_waited_for(shards: Path, tmp_path: Path) -> None:
    dataset = rogue_dataset(shards)
    dataset.reader = reader = DyingAndWaitingReader(str(shards / "index.bin"), str(tmp_path))
    loader = DataLoader(dataset, batch_size=8, num_workers=2)
    batches = []
    for batch in loader:
        batches.append(tuple(x.clone() for x in batch))
        if len(batches) == 1:
            reader.wait("dying")
            reader.wait("waiting")
            reader.mark("die")
    check_same(batches, _expected(shards, batch_size=8))
    assert len(loader.stats()["replaced_workers"]) == 1


def test_words_larger_than_what_a_channel_holds_come_whole(shards: Path) -> None:
    def wide(workers: int) -> list[bytes]:
        dataset = ShardDataset(shards, RECIPE, fields=("json",))
        dataset.reader = WideReader(str(shards / "index.bin"))
        return [field for _, _, fields in DataLoader(dataset, batch_size=16, num_workers=workers) for field in fields]

    assert wide(2) == wide(0)


def test_forked_workers_use_torch_though_the_trainer_has_used_its_threads(shards: Path) -> None:
    def product(image: npt.NDArray[Any]) -> npt.NDArray[Any]:  # a local function: workers are forked
        side = torch.ones(512, 512)
        return image + np.uint8((side @ side).sum() > 0)

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        product(np.zeros(1, np.uint8))
        dataset = ShardDataset(shards, Compose([RECIPE, Lambda(product)]))
        loader = DataLoader(dataset, batch_size=16, num_workers=2, hang_timeout_s=100)
        assert sum(len(images) for images, _ in loader) == 64
        assert loader.stats()["replaced_workers"] == []
    finally:
        torch.set_num_threads(before)


def test_a_loop_broken_off_in_a_part_that_does_not_end_keeps_its_workers(shards: Path, tmp_path: Path) -> None:
    dataset = rogue_dataset(shards, 9, "stop", str(tmp_path / "mark"))
    loader = DataLoader(dataset, batch_size=8, num_workers=2, persistent_workers=True)
    for _ in loader:
        while not (tmp_path / "mark").exists():  # a worker is at it
            os.sched_yield()
        break
    assert len(loader.worker_pids()) == 2
    check_same(copied_epoch(loader), _expected(shards, 2, batch_size=8)[8:])
    assert loader.stats()["replaced_workers"] == []


@pytest.fixture
def _impatient_sockets() -> Iterator[None]:
    socket.setdefaulttimeout(0.05)
    yield
    socket.setdefaulttimeout(None)


@pytest.mark.usefixtures("_impatient_sockets")
@pytest.mark.parametrize("context", [None, "fork"])
def test_a_default_timeout_of_sockets_is_none_of_the_workers(shards: Path, context: str | None) -> None:
    dataset = ShardDataset(shards, RECIPE, fields=("json",))
    dataset.reader = WideReader(str(shards / "index.bin"))
    loader = DataLoader(dataset, batch_size=16, num_workers=2, multiprocessing_context=context)
    assert sum(len(labels) for _, labels, _ in loader) == 64
    assert loader.stats()["replaced_workers"] == []


def test_killing_any_worker_at_any_step_changes_nothing(shards: Path) -> None:
    chance = random.Random(1)
    expected = _expected(shards, 4, batch_size=4, shuffle=True)
    loader = DataLoader(rogue_dataset(shards), batch_size=4, shuffle=True, num_workers=2, persistent_workers=True)
    batches = []
    killed = 0
    for _ in range(4):
        for batch in loader:
            batches.append(tuple(x.clone() for x in batch))
            pids = loader.worker_pids()
            if pids and chance.random() < 0.4:
                with contextlib.suppress(ProcessLookupError):  # killed before, and not missed yet
                    os.kill(chance.choice(pids), signal.SIGKILL)
                    killed += 1
    check_same(batches, expected)
    assert killed > 10
    assert len(loader.stats()["replaced_workers"]) > 5


def test_a_slow_sample_delays_only_its_part_of_the_batch(shards: Path, tmp_path: Path) -> None:
    """It waits for the other half of its batch, which another worker makes."""
    dataset = rogue_dataset(shards, 0, "wait", str(tmp_path / "mark"))
    loader = DataLoader(dataset, batch_size=8, num_workers=2, timeout=60)
    assert next(iter(loader))[2].tolist() == list(range(8))


def test_all_workers_stopped_before_they_took_anything_are_replaced(shards: Path) -> None:
    loader = DataLoader(
        rogue_dataset(shards), batch_size=8, num_workers=2, hang_timeout_s=2, persistent_workers=True, prefetch_factor=1
    )
    for _ in loader:
        pass
    for pid in loader.worker_pids():
        os.kill(pid, signal.SIGSTOP)
    batches = copied_epoch(loader)
    check_same(batches, _expected(shards, 2, batch_size=8)[8:])


@pytest.mark.parametrize("sampler", [None, [3, 3, 21]])
def test_sample_that_kills_every_worker_ends_with_an_error_that_names_it(shards: Path, sampler: Any) -> None:
    loader = DataLoader(rogue_dataset(shards, 21, "kill"), batch_size=4, sampler=sampler, num_workers=2)
    with pytest.raises(WorkerError, match="00000021") as caught:
        for _ in loader:
            pass
    assert "SIGKILL" in str(caught.value)
    assert caught.value.args


def test_a_bug_in_a_worker_is_raised_with_its_traceback(shards: Path) -> None:
    iterator = iter(DataLoader(rogue_dataset(shards, 5, "raise"), batch_size=4, num_workers=1))
    assert next(iterator)[2].tolist() == [0, 1, 2, 3]
    with pytest.raises(WorkerError, match="a bug in the reader") as caught:
        next(iterator)
    assert "in read" in str(caught.value)
    assert next(iterator)[2].tolist() == [8, 9, 10, 11]


def test_worker_that_cannot_start_says_why(shards: Path) -> None:
    loader = DataLoader(rogue_dataset(shards), num_workers=1, worker_init_fn=lambda i: 1 // 0)  # type: ignore[arg-type]
    with pytest.raises(WorkerError, match="ZeroDivisionError"):
        next(iter(loader))


@pytest.mark.parametrize(
    ("deed", "message"), [("kill", "workers in a row"), ("exit", "exit code 3"), ("raise", "a bug at the start")]
)
def test_persistent_workers_that_could_not_be_had_for_one_epoch_are_there_in_the_next(
    shards: Path, tmp_path: Path, deed: str, message: str
) -> None:
    mark = tmp_path / "mark"

    def init(worker: int) -> None:
        if mark.exists():
            if deed == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            elif deed == "exit":
                os._exit(3)
            raise RuntimeError("a bug at the start")

    options: dict[str, Any] = {"num_workers": 2, "persistent_workers": True, "worker_init_fn": init}
    loader = DataLoader(rogue_dataset(shards), batch_size=8, **options)
    for _ in loader:
        pass
    mark.touch()
    for pid in loader.worker_pids():
        os.kill(pid, signal.SIGKILL)
    with pytest.raises(WorkerError, match=message):
        list(loader)
    mark.unlink()
    batches = copied_epoch(loader)
    check_same(batches, _expected(shards, 3, batch_size=8)[16:])


def test_a_script_without_a_main_guard_under_spawn_learns_of_it(shards: Path, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(f"""
from feeder import DataLoader, ShardDataset, transforms
dataset = ShardDataset({str(shards)!r}, transforms.RandomResizedCrop(8))
list(DataLoader(dataset, num_workers=1, multiprocessing_context="spawn"))
""")
    ended = subprocess.run([sys.executable, str(script)], capture_output=True, text=True)
    assert ended.returncode == 1
    last = ended.stderr.strip().splitlines()[-1]
    assert "WorkerError: worker 0 could not start: exit code 1" in last
    assert "if __name__ == '__main__':" in last
    assert ended.stderr.count("bootstrapping phase") == 1


def test_timeout_means_what_torchs_means(shards: Path) -> None:
    loader = DataLoader(rogue_dataset(shards, 5, "stop"), batch_size=4, num_workers=1, timeout=3)
    iterator = iter(loader)
    while not loader.stats()["slots"]["ready"]:  # however long the worker takes to start
        os.sched_yield()
    next(iterator)
    with pytest.raises(RuntimeError, match=r"timed out after 3 seconds"):
        next(iterator)


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


def test_epochs_with_killed_workers_leak_neither_memory_nor_descriptors(shards: Path) -> None:
    loader = DataLoader(rogue_dataset(shards), batch_size=8, num_workers=2)

    def epoch(number: int) -> None:
        for step, _ in enumerate(loader):
            if step == number % 5:
                os.kill(loader.worker_pids()[0], signal.SIGKILL)

    for number in range(3):
        epoch(number)

    def held() -> tuple[int, int]:
        """Descriptors, and pieces of shared memory that are mapped."""
        gc.collect()  # what other tests have left
        return len(os.listdir("/proc/self/fd")), Path("/proc/self/maps").read_text().count("memfd:feeder")

    before = held()
    for number in range(6):
        epoch(number)
    assert held() == before


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
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as trainer:
        out, err = trainer.communicate(timeout=250)
    pids = [int(pid) for pid in out.split()]
    assert len(pids) >= 2, err
    return pids, err


def test_a_function_that_can_not_be_sent_to_a_worker_is_an_error_with_the_way_out(shards: Path) -> None:
    loader = DataLoader(
        rogue_dataset(shards), num_workers=1, multiprocessing_context="forkserver", worker_init_fn=lambda i: None
    )
    with pytest.raises(ArgumentError, match=r"'forkserver' can't be sent .* top level of a module"):
        iter(loader)


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


def test_interrupt_while_waiting_ends_promptly_and_leaves_nothing(shards: Path) -> None:
    then = "threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGINT)).start()\nfor _ in iterator: pass"
    pids, err = _run_trainer(shards, "stop", "", then)
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
    class Interrupting(dict[int, int]):
        def __setitem__(self, number: int, code: int) -> None:
            if not told:
                told.append(number)
                raise KeyboardInterrupt
            super().__setitem__(number, code)

    told: list[int] = []
    mine, theirs = pair()
    server = ForkServer(TARGET)
    server._ended = Interrupting(server._ended)
    with theirs:
        number = server.start(theirs)
    mine.close()
    while server.ended(number) is None if told else not _interrupted(server, number):
        os.sched_yield()
    assert told == [number]
    server.close()


def test_a_workers_process_id_is_known_though_its_server_is_slow_to_say_it() -> None:
    server = ForkServer(TARGET)
    mine, theirs = pair()
    with mine, theirs:
        pid = server.pid(server.start(theirs))  # while the server imports what workers need
    assert pid is not None
    server.close()
    assert all_ended([pid])


def _interrupted(server: ForkServer, number: int) -> bool:
    try:
        server.ended(number)
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


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # has threads, and forks all the same
def test_a_child_forked_while_a_server_is_started_can_start_its_own() -> None:
    with ForkServer._shared_lock:
        child = os.fork()
        if child == 0:
            os._exit(0 if ForkServer._shared_lock.acquire(timeout=60) else 1)
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # has threads, and forks all the same
def test_a_worker_that_is_stopped_while_it_has_the_boards_lock_is_replaced(shards: Path) -> None:
    loader = DataLoader(rogue_dataset(shards), batch_size=4, num_workers=1)
    iterator = iter(loader)
    batches = [tuple(x.clone() for x in next(iterator))]
    board = iterator._epoch.engine.pool._board
    stopped = os.fork()
    if stopped == 0:  # as a worker would be: any process may have the lock
        board._patience_s = None
        board._locked().__enter__()
        os.kill(os.getpid(), signal.SIGSTOP)
    os.waitpid(stopped, os.WUNTRACED)
    board._patience_s = 0.1  # as long as a worker may be silent, which is longer

    def go_on() -> None:
        batches.extend(tuple(x.clone() for x in batch) for batch in iterator)

    ended = returns_in_time(go_on)
    with contextlib.suppress(ProcessLookupError):
        os.kill(stopped, signal.SIGKILL)
    assert os.waitstatus_to_exitcode(os.waitpid(stopped, 0)[1]) == -signal.SIGKILL
    assert ended
    check_same(batches, _expected(shards, batch_size=4))


def test_no_worker_to_be_had_in_a_dead_ones_place_is_an_error_and_the_loop_can_be_resumed(
    shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = rogue_dataset(shards, 21, "kill", str(tmp_path / "mark"))
    loader = DataLoader(dataset, batch_size=4, num_workers=1, persistent_workers=True)
    iterator = iter(loader)
    engine = iterator._epoch.engine
    ring = engine.ring

    def refuse(number: int) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(engine.pool, "_start", refuse)
    batches: list[Any] = []

    def consume(batches: list[Any], iterator: Any) -> None:
        batches.extend(tuple(x.clone() for x in batch) for batch in iterator)

    def refused() -> None:
        with pytest.raises(OSError, match="Too many open files"):
            consume(batches, iterator)

    assert returns_in_time(refused)
    assert engine.ring is ring  # nobody was waited for in vain: who is known to have ended writes into no slot
    loader.load_state_dict(loader.state_dict())
    consumed = batches + copied_epoch(loader)
    check_same(consumed, _expected(shards, batch_size=4))


def test_meters_do_not_go_back_while_workers_are_ended(shards: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loader = DataLoader(rogue_dataset(shards), batch_size=16, num_workers=1)
    iterator = iter(loader)
    for _ in range(4):
        next(iterator)
    found: list[dict[str, Any]] = []
    process = iterator._epoch.engine.pool._supervisor.workers[0].process
    ended = process.ended

    def look() -> int | None:
        found.append(loader.stats())  # as another thread may at any time
        return ended()

    monkeypatch.setattr(process, "ended", look)
    loader.close()
    found.append(loader.stats())
    assert [stats["parts"] for stats in found] == [4] * len(found)
    assert {stats["workers"][0]["stages"]["read"]["count"] for stats in found} == {4}
    assert len(found) > 1


def test_an_interrupt_while_workers_are_given_up_leaves_the_loader_usable(
    shards: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loader = DataLoader(rogue_dataset(shards), batch_size=4, num_workers=2, persistent_workers=True)
    iterator = iter(loader)
    next(iterator)
    pids, engine = loader.worker_pids(), iterator._epoch.engine

    def interrupt() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(engine.pool, "abandon", interrupt)
    with pytest.raises(KeyboardInterrupt):
        iterator.close()
    assert all_ended(pids)
    epochs = [copied_epoch(loader) for _ in range(2)]
    check_same(epochs[0] + epochs[1], _expected(shards, 3, batch_size=4)[16:])
    assert len(loader.worker_pids()) == 2
    loader.close()
    assert loader.worker_pids() == []


def test_closing_ends_every_iterator(shards: Path) -> None:
    loader = DataLoader(rogue_dataset(shards, 5, "stop"), batch_size=4, num_workers=1)
    first = iter(loader)
    next(first)
    next(iter(loader))  # another one is the last now
    loader.close()
    assert list(first) == []


def test_an_interrupt_while_a_batch_is_given_out_is_not_waited_for(
    shards: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loader = DataLoader(rogue_dataset(shards), batch_size=4, num_workers=1, persistent_workers=True)
    iterator = iter(loader)
    next(iterator)
    board = iterator._epoch.engine.pool._board

    def interrupt(parts: list[Any]) -> None:
        raise KeyboardInterrupt

    def interrupted() -> None:
        with pytest.raises(KeyboardInterrupt):
            next(iterator)

    monkeypatch.setattr(board, "publish", interrupt)
    assert returns_in_time(interrupted)
    monkeypatch.undo()
    epoch = copied_epoch(loader)
    check_same(epoch, _expected(shards, 2, batch_size=4)[16:])


def _interrupted_anew(seen: set[tuple[str, int]], function: Callable[[], object]) -> bool:
    """True if an interrupt came in a function, at a first line of those that hand batches and slots on."""

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        place = frame.f_code.co_filename, frame.f_lineno
        if not place[0].endswith(
            ("/fast/batch_queue.py", "/fast/batches.py", "/slots/slots.py", "/slots/image_slots.py")
        ) or _in_finalizer(frame):
            return None
        if event == "line" and place not in seen:
            seen.add(place)
            sys.settrace(None)
            raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        function()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False


def _in_finalizer(frame: FrameType | None) -> bool:
    """True if the frame is in a finalizer, where Python drops all errors."""
    return frame is not None and (frame.f_code.co_name == "__del__" or _in_finalizer(frame.f_back))


def test_no_interrupt_takes_a_slot_away(shards: Path) -> None:
    loader = DataLoader(rogue_dataset(shards), batch_size=4, num_workers=1, persistent_workers=True)
    expected = _expected(shards, batch_size=4)
    seen: set[tuple[str, int]] = set()
    while True:
        loader.set_epoch(0)
        iterator = iter(loader)
        next(iterator)
        if not _interrupted_anew(seen, lambda: next(iterator)):  # noqa: B023
            break
    loader.set_epoch(0)
    check_same(copied_epoch(loader), expected)
    assert len(seen) > 20
