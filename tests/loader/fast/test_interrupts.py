"""Interrupts in the trainer: nothing is lost, and the loader stays usable."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch

from feeder.loader.dataloader import DataLoader
from tests.support.batches import check_same, copied_epoch
from tests.support.processes import all_ended, returns_in_time
from tests.support.rogue_readers import rogue_dataset


def _expected(shards: Path, epochs: int = 1, **options: Any) -> list[tuple[torch.Tensor, ...]]:
    loader = DataLoader(rogue_dataset(shards), **options)
    return [batch for _ in range(epochs) for batch in loader]


def test_an_interrupt_while_workers_are_given_up_leaves_the_loader_usable(
    shards: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loader = DataLoader(rogue_dataset(shards), batch_size=4, num_workers=2, persistent_workers=True)
    iterator = iter(loader)
    next(iterator)
    pids, engine = loader.worker_pids(), iterator.epoch.engine

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


def test_an_interrupt_while_a_batch_is_given_out_is_not_waited_for(
    shards: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loader = DataLoader(rogue_dataset(shards), batch_size=4, num_workers=1, persistent_workers=True)
    iterator = iter(loader)
    next(iterator)
    board = iterator.epoch.engine.pool.board

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
    """Interrupts a function at the first line not yet in ``seen`` of the modules that pass batches and slots on.

    Returns:
        False if it ran to its end, as all of its lines were seen.
    """

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
