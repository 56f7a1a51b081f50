"""Datasets that are not feeder's, and what their workers do wrong."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import Dataset, IterableDataset, get_worker_info

from tests.support.processes import is_first

__all__ = ["Counting", "DiesAtStart", "Stream", "Tensors", "as_it_is", "as_lists"]


class Tensors(Dataset[Any]):
    """Pairs of a tensor [3, 50, 60] full of the sample's number, large enough for slots, and the number.

    Args:
        count: Number of samples.
        deed: "stop": the worker stops at a sample; else it is killed.
        at: The sample.
        mark: Path of a file that is made then, after which nothing happens any more; "" for every time.
    """

    def __init__(self, count: int = 40, deed: str = "", at: int = -1, mark: str = "") -> None:
        self.count, self.deed, self.at, self.mark = count, deed, at, mark

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, i: int) -> Any:
        if i == self.at and is_first(self.mark):
            os.kill(os.getpid(), signal.SIGSTOP if self.deed == "stop" else signal.SIGKILL)
        return torch.full((3, 50, 60), float(i)), i


class Stream(IterableDataset[Any]):
    """The numbers from 0 to 19, split among the workers; one that comes to ``kill_at`` is killed."""

    def __init__(self, kill_at: int = -1) -> None:
        self.kill_at = kill_at

    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        start, step = (0, 1) if info is None else (info.id, info.num_workers)
        for i in range(start, 20, step):
            if i == self.kill_at:
                os.kill(os.getpid(), signal.SIGKILL)
            yield i


class Counting(Dataset[int]):
    """Has a state: the number of samples that were seen, which is in the samples too."""

    def __init__(self) -> None:
        self.seen = 0

    def __len__(self) -> int:
        return 30

    def __getitem__(self, i: int) -> int:
        self.seen += 1
        return 1000 * self.seen + i

    def state_dict(self) -> dict[str, Any]:
        return {"seen": self.seen}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.seen = state["seen"]


class DiesAtStart:
    """A ``worker_init_fn`` that kills its process: the first ``spared`` starts live, the ``times`` after them die.

    Args:
        folder: Folder in which starts are counted.
        times: Number of starts that die.
        spared: Number of starts before them.
    """

    def __init__(self, folder: str, times: int, spared: int = 1) -> None:
        self.folder, self.times, self.spared = folder, times, spared

    def __call__(self, worker: int) -> None:
        starts = 0
        while not is_first(os.path.join(self.folder, str(starts))):
            starts += 1
        if self.spared <= starts < self.spared + self.times:
            os.kill(os.getpid(), signal.SIGKILL)


def as_it_is(samples: list[Any]) -> list[Any]:
    """A ``collate_fn`` that does nothing."""
    return samples


def as_lists(batches: Any) -> list[Any]:
    """Batches with lists in the place of tensors, which compare by ``==``."""
    return [[x.tolist() if isinstance(x, torch.Tensor) else x for x in batch] for batch in batches]
