"""A loader and a clock of its own: each stage of a sample takes the time that a test gives it."""

from __future__ import annotations

import collections
import heapq
from collections.abc import Iterator, Mapping
from typing import Any

import torch

__all__ = ["Clock", "SimulatedLoader"]


class Clock:
    """Stands in for ``time.perf_counter``: time passes only by :meth:`sleep`."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


class SimulatedLoader:
    """Looks like a :class:`feeder.DataLoader` whose workers never disturb each other.

    Args:
        clock: The clock that waiting for a batch turns.
        costs_s: Worker seconds a sample, by stage of ``stats()``.
        workers: Number of workers; 0: the caller makes the batches.
        batch_size: Samples in a batch.
    """

    dataset = range(1 << 20)
    prefetch_factor = 2
    metrics = None

    def __init__(self, clock: Clock, costs_s: Mapping[str, float], workers: int, batch_size: int = 4) -> None:
        self.clock, self.costs_s, self.num_workers, self.batch_size = clock, dict(costs_s), workers, batch_size
        self.batches = 0
        self.waited_s = 0.0
        self.finished_s: list[float] = []  # when workers finished each batch

    def __len__(self) -> int:
        return len(self.dataset) // self.batch_size

    def __iter__(self) -> Iterator[torch.Tensor]:
        batch_s = self.batch_size * sum(self.costs_s.values())
        free = [self.clock.now_s] * self.num_workers  # from when on each worker is idle
        ready: collections.deque[float] = collections.deque()
        for _ in range(len(self)):
            while len(ready) < self.prefetch_factor * self.num_workers:
                done = max(heapq.heappop(free), self.clock.now_s) + batch_s
                heapq.heappush(free, done)
                ready.append(done)
                self.finished_s.append(done)
            if self.num_workers == 0:
                self.clock.sleep(batch_s)
                self.finished_s.append(self.clock.now_s)
            else:
                waited_s = max(0.0, ready.popleft() - self.clock.now_s)
                self.clock.sleep(waited_s)
                self.waited_s += waited_s
            self.batches += 1
            yield torch.zeros(self.batch_size)

    def stats(self) -> dict[str, Any]:
        made = self.batch_size * sum(done <= self.clock.now_s for done in self.finished_s)
        return {
            "batches": self.batches,
            "samples": self.batches * self.batch_size,
            "waited_ns": self.waited_s * 1e9,
            "busy_ns": made * sum(self.costs_s.values()) * 1e9,
            "stages": {name: {"count": made, "total_ns": made * cost * 1e9} for name, cost in self.costs_s.items()},
            "path_reason": None,
        }

    def close(self) -> None:
        self.finished_s = [done for done in self.finished_s if done <= self.clock.now_s]

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        assert state == {}
