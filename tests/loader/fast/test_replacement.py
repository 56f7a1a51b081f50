"""Workers that are killed, stopped or silent: replaced without a change to the batches."""

from __future__ import annotations

import contextlib
import errno
import gc
import logging
import os
import random
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from feeder.errors import WorkerError
from feeder.loader.dataloader import DataLoader
from feeder.loader.options import WorkerOptions
from tests.support.batches import check_same, copied_epoch
from tests.support.processes import returns_in_time, wait_until
from tests.support.rogue_readers import DyingAndWaitingReader, rogue_dataset


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
    patience: dict[str, Any] = {"worker_options": WorkerOptions(hang_timeout_s=2)} if deed == "stop" else {}
    loader = DataLoader(dataset, batch_size=8, shuffle=True, num_workers=2, multiprocessing_context=context, **patience)
    with caplog.at_level(logging.WARNING, "feeder"):
        batches = copied_epoch(loader)
    check_same(batches, _expected(shards, batch_size=8, shuffle=True))
    events = loader.stats()["replaced_workers"]
    if deed != "stop":  # else a machine that stands still may make other workers silent, too
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


def test_a_loop_broken_off_in_a_part_that_does_not_end_keeps_its_workers(shards: Path, tmp_path: Path) -> None:
    dataset = rogue_dataset(shards, 9, "stop", str(tmp_path / "mark"))
    loader = DataLoader(dataset, batch_size=8, num_workers=2, persistent_workers=True)
    for _ in loader:
        wait_until((tmp_path / "mark").exists)  # a worker reads the sample
        break
    assert len(loader.worker_pids()) == 2
    check_same(copied_epoch(loader), _expected(shards, 2, batch_size=8)[8:])
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
                with contextlib.suppress(ProcessLookupError):  # killed before, and not replaced yet
                    os.kill(chance.choice(pids), signal.SIGKILL)
                    killed += 1
    check_same(batches, expected)
    assert killed > 10
    assert len(loader.stats()["replaced_workers"]) > 5


def test_all_workers_stopped_before_they_took_anything_are_replaced(shards: Path) -> None:
    loader = DataLoader(
        rogue_dataset(shards),
        batch_size=8,
        num_workers=2,
        worker_options=WorkerOptions(hang_timeout_s=2),
        persistent_workers=True,
        prefetch_factor=1,
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


def test_a_worker_that_is_stopped_while_it_has_the_boards_lock_is_replaced(shards: Path) -> None:
    loader = DataLoader(rogue_dataset(shards), batch_size=4, num_workers=1)
    iterator = iter(loader)
    batches = [tuple(x.clone() for x in next(iterator))]
    board = iterator.epoch.engine.pool.board
    stopped = os.fork()
    if stopped == 0:  # as a worker would be: any process may have the lock
        board._patience_s = None
        lock = board._locked()
        lock.__enter__()
        os.kill(os.getpid(), signal.SIGSTOP)
    os.waitpid(stopped, os.WUNTRACED)
    board._patience_s = 0.1  # in the place of the time for which a worker may be silent

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
    engine = iterator.epoch.engine
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
    assert engine.ring is ring  # the slots are kept: a worker that is known to have ended writes into none
    loader.load_state_dict(loader.state_dict())
    consumed = batches + copied_epoch(loader)
    check_same(consumed, _expected(shards, batch_size=4))
