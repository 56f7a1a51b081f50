"""The meters of the generic path: times from the workers' messages, and those of the caller's process."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from feeder.loader.device.nested import tensors_in
from feeder.loader.observe.meter import Meter
from feeder.loader.observe.stats import NO_SLOTS, Tally, stage_table
from feeder.system.text import count, printable
from feeder.system.warning import warn


class Spent(NamedTuple):
    """The times of a worker for a batch, nanoseconds; all 0: not known.

    Attributes:
        idle_ns: Time waiting for the task.
        fetch_ns: Time fetching the samples.
        collate_ns: Time collating them.
        write_ns: Time writing the rest into the slot or the message.
        collated_bytes: Bytes that collating has put into the slot.
        written_bytes: Bytes that were put there, or into the message, afterwards.
    """

    idle_ns: int = 0
    fetch_ns: int = 0
    collate_ns: int = 0
    write_ns: int = 0
    collated_bytes: int = 0
    written_bytes: int = 0


class GenericMeters(Tally):
    """The times of one loader's stages, over all its iterators.

    Args:
        workers: Number of workers.
    """

    def __init__(self, workers: int) -> None:
        super().__init__()
        self._workers = workers
        self._meters = [Meter() for _ in range(workers)]
        self._busy_ns = 0
        self._collate_ns = 0
        self._asked_ns = self._given_ns = 0
        self._told = 0

    def expect(self, workers: int) -> None:
        """Makes room for an iterator with more workers than those before: their number may change between epochs."""
        self._workers = workers
        self._meters += [Meter() for _ in range(workers - len(self._meters))]

    def made(self, worker: int, spent: Spent) -> None:
        """Counts a batch that a worker has made."""
        if not spent.fetch_ns:
            return
        meter = self._meters[worker]
        meter.add("wait_slot", spent.idle_ns)
        meter.add("fetch", spent.fetch_ns)
        if spent.collate_ns:
            meter.add("collate", spent.collate_ns, spent.collated_bytes)
        meter.add("write", spent.write_ns, spent.written_bytes)
        self._busy_ns += spent.fetch_ns + spent.collate_ns + spent.write_ns

    def made_here(self, time_ns: int) -> None:
        """Counts a batch that was made in this process."""
        collate_ns, self._collate_ns = self._collate_ns, 0
        self.meter.add("fetch", time_ns - collate_ns)
        if collate_ns:
            self.meter.add("collate", collate_ns)
        self._busy_ns += time_ns

    def end_epoch(self) -> None:
        """Warns, at the end of an epoch, of samples that were replaced in it, and once that images lost range."""
        skipped = self.counts["skipped"] - self._told
        self._told += skipped
        if skipped:
            first = self.substitutions[-min(skipped, len(self.substitutions))]
            warn(
                f"{count(skipped, 'sample')} of this epoch had a bad image, and others took their place; the first is "
                f"dataset[{first.sample}], {first.key!r}: {printable(first.reason)}. stats()['substitutions'] has all"
            )
        self.warn_of_clipped()

    def timed(self, collate: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Returns the collate function with a timer around it."""

        def timed_collate(samples: Any) -> Any:
            started = time.perf_counter_ns()
            batch = collate(samples)
            self._collate_ns += time.perf_counter_ns() - started
            return batch

        return timed_collate

    def begin(self) -> None:
        """Notes that the caller asks for an epoch."""
        self._asked_ns = time.monotonic_ns()
        self._given_ns = 0

    def asked(self) -> None:
        """Notes that the caller asks for a batch."""
        if self._given_ns:
            self.meter.add("consumer", time.monotonic_ns() - self._given_ns)

    def given(self, batch: Any) -> None:
        """Counts a batch that the caller gets."""
        now = time.monotonic_ns()
        self.counts["batches"] += 1
        self.counts["samples"] += batch_rows(batch)
        self.counts["elapsed_ns"] += now - self._asked_ns
        self._asked_ns = self._given_ns = now

    def stats(self, replacements: list[dict[str, Any]], slots: Mapping[str, int] | None) -> dict[str, Any]:
        """Returns statistics, see :meth:`feeder.DataLoader.stats`.

        Args:
            replacements: The replaced workers.
            slots: Numbers of the current iterator's slots, by use; None without an iterator.
        """
        words = np.stack([self.meter.words, *(meter.words for meter in self._meters)])
        stages = stage_table(words)
        sums = {f"{name}_ns": stages[name]["total_ns"] for name in ("fetch", "collate", "write") if name in stages}
        sums["busy_ns"] = self._busy_ns
        return {
            **self.summary(stages, words[1:], sums, replacements, self._workers),
            "busy_ns": self._busy_ns,
            "slots": dict(NO_SLOTS if slots is None else slots),
            "substitutions": list(self.substitutions),
        }


def batch_rows(batch: Any) -> int:
    """Returns the number of samples in a batch of any kind: the length of its first tensor; 1 without one."""
    first = next(tensors_in(batch), None)
    return 1 if first is None or not first.dim() else first.size(0)  # a nested tensor has no len()
