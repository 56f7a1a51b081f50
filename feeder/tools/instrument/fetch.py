"""Meters in torch's workers: the time of each batch in the data set, on and off the processor, and in collate_fn.

Note [Meters in workers]
    torch calls ``worker_init_fn`` in each worker before it makes the object that fetches batches. :class:`MeteredInit`
    replaces that function. Workers of any start method get it with their arguments. It puts a meter on the fetching
    object's class and calls the script's own function. Each batch is one write of 40 bytes to the worker's own file.
"""

from __future__ import annotations

import contextlib
import glob
import os
import struct
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from feeder.tools.instrument.record import Fetch

_ROW = struct.Struct("<5q")
_metered = False


@dataclass(eq=False)
class MeteredInit:
    """A ``worker_init_fn`` that installs meters; see Note [Meters in workers].

    Args:
        prefix: Path of the worker's file without the process id at its end.
        inner: The script's own worker_init_fn.
    """

    prefix: str
    inner: Callable[[int], None] | None

    def __call__(self, worker: int) -> None:
        with contextlib.suppress(OSError):
            file = os.open(f"{self.prefix}{os.getpid()}", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            meter_fetching(lambda fetch: _write(file, fetch))
        if self.inner is not None:
            self.inner(worker)


def _write(file: int, fetch: Fetch) -> None:
    with contextlib.suppress(OSError):  # a full disk must not end the training
        os.write(file, _ROW.pack(*fetch))


def meter_fetching(note: Callable[[Fetch], None]) -> None:
    """Puts meters on torch's fetchers in this process.

    Args:
        note: Called with each batch's times.
    """
    global _metered
    from torch.utils.data._utils import fetch

    kinds: tuple[Any, ...] = fetch._MapDatasetFetcher, fetch._IterableDatasetFetcher
    if _metered:  # inherited by a forked worker from its parent
        for kind in kinds:
            kind.fetch = kind.fetch.__wrapped__
    _metered = True
    for kind in kinds:
        _meter(kind, note)


def _meter(kind: Any, note: Callable[[Fetch], None]) -> None:
    original = kind.fetch

    def metered(self: Any, index: Any) -> Any:
        collate = self.collate_fn
        collated: list[tuple[int, int, int]] = []  # the clocks when the data set had made the samples

        def timed(data: Any) -> Any:
            collated[:] = [_clocks()]
            return collate(data)

        start = _clocks()
        self.collate_fn = timed
        try:
            found = original(self, index)
        finally:
            self.collate_fn = collate
        end = time.monotonic_ns()
        for middle in collated:
            dataset, cpu, queued = (after - before for after, before in zip(middle, start, strict=True))
            note(Fetch(start[0], dataset, cpu, queued, end - middle[0]))
        return found

    metered.__wrapped__ = original  # type: ignore[attr-defined]
    kind.fetch = metered


def _clocks() -> tuple[int, int, int]:
    """Returns the time, the CPU time of this thread, and its time without a processor, nanoseconds."""
    return time.monotonic_ns(), time.thread_time_ns(), _queued_ns()


def _queued_ns() -> int:
    """Returns the time that this thread was ready to run without a processor; 0 if the kernel does not count it."""
    try:
        with open("/proc/thread-self/schedstat", "rb", buffering=0) as file:
            return int(file.read(64).split()[1])
    except (OSError, IndexError, ValueError):
        return 0


def read_fetches(prefix: str) -> Iterator[Fetch]:
    """Yields the batches that the workers recorded under a prefix."""
    for path in sorted(glob.glob(f"{glob.escape(prefix)}*")):
        with open(path, "rb") as file:
            data = file.read()
        for row in _ROW.iter_unpack(data[: len(data) // _ROW.size * _ROW.size]):
            yield Fetch(*row)
