"""Errors in workers of torch's path, what can't be sent to them, and interrupts in the trainer."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import Dataset, IterableDataset

from feeder.errors import ArgumentError
from feeder.loader.dataloader import DataLoader
from feeder.loader.slots.slots import Slots
from tests.support.processes import is_first
from tests.support.torch_datasets import Tensors, as_it_is
from tests.support.warm_python import run_warm


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


def test_a_script_without_a_main_guard_under_spawn_learns_of_it(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("""
from feeder import DataLoader
list(DataLoader(range(8), num_workers=1, multiprocessing_context='spawn'))
""")
    ended = run_warm([script], capture_output=True, text=True)
    assert ended.returncode == 1
    last = ended.stderr.strip().splitlines()[-1]
    assert "exited unexpectedly with exit code 1; what it printed says why" in last
    assert "if __name__ == '__main__':" in last
    assert ended.stderr.count("bootstrapping phase") == 1


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
