"""The task board: shared memory from which workers claim parts of batches, and where each says what it is making.

Note [Task board]
    One memfd of int64 numbers, mapped by the trainer and every worker, under one POSIX record lock, which the kernel
    releases when its holder dies. Parts stand in a table at ``part % capacity``. Two queues hold part numbers: "again"
    (parts of workers that died; these go first) and "fresh". To claim a part a worker writes the number into its own
    row and only then moves the queue's head. If it is killed between the two, the part is still in the queue; if it is
    killed later, its row names the part. A number is read and written at once, so no reader sees half of one.
    The trainer waits for the lock no longer than for a silent worker: a process that is stopped while it holds the lock
    is killed, as a hung worker is.
    An eventfd counts the parts to be claimed; a count too many wakes a worker for nothing, and does no other harm.
    Another eventfd wakes the trainer when the last part of a batch is sent; if it misses that, it finds the part at its
    next look.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import struct
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from feeder.loader.observe.meter import METER_WORDS, Meter
from feeder.loader.slots.region import Region
from feeder.system.pauses import pauses

_NONE = -1
_FLOCK = struct.Struct("@hhqqi0q")  # struct flock on 64-bit Linux: type, whence, start, length, pid
_SHORTEST_PAUSE_S, _LONGEST_PAUSE_S = 2e-5, 0.01
_HEADER = 8
_FRESH_HEAD, _FRESH_TAIL, _AGAIN_HEAD, _AGAIN_TAIL, _SERVICE_CORES = range(5)
_PART_WORDS = 7
_WORKER_WORDS = 2
# Columns of a worker's row.
_PART, _HEARTBEAT_NS = range(2)


class Part(NamedTuple):
    """Rows of a batch, the unit of work.

    Attributes:
        number: Running number, from 0.
        slot: The slot that its batch is made in.
        first: Its first row there.
        rows: Number of rows.
        epoch: The epoch that the augmentation is drawn for.
        is_last: 1 for the last of its batch.
        height, width: Size of its batch's images, or of the first view, pixels; 0: that of the slots.
    """

    number: int
    slot: int
    first: int
    rows: int
    epoch: int
    is_last: int = 0
    height: int = 0
    width: int = 0


class Board:
    """See Note [Task board].

    Args:
        capacity: Largest number of parts on the board.
        workers: Number of workers.
        descriptors: (region, eventfds) of a board made by another process; None makes a new one.
        patience_s: A process that holds the lock for longer while this one wants it is killed; None: none is.
        meters: Number of the first workers that have a meter; None: all.

    Attributes:
        evicted: Ids of the processes that were killed for holding the lock.
        stages: int64 [meters, METER_WORDS], the workers' meters.
    """

    def __init__(
        self,
        capacity: int,
        workers: int,
        descriptors: tuple[int, int, int] | None = None,
        *,
        patience_s: float | None = None,
        meters: int | None = None,
    ) -> None:
        self.capacity = capacity
        self.workers = workers
        self.meters = workers if meters is None else meters
        self.evicted: set[int] = set()
        self._patience_s = patience_s

        words = _HEADER + capacity * (_PART_WORDS + 2) + workers * _WORKER_WORDS + self.meters * METER_WORDS
        if descriptors is None:
            self.region = Region(8 * words)
            self.event = os.eventfd(0, os.EFD_SEMAPHORE | os.EFD_NONBLOCK | os.EFD_CLOEXEC)
            self.sent = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        else:
            self.region = Region(8 * words, descriptors[0])
            self.event = descriptors[1]
            self.sent = descriptors[2]

        self._pid = os.getpid()
        sizes = _HEADER, capacity * _PART_WORDS, capacity, capacity, workers * _WORKER_WORDS
        pieces: list[Any] = np.split(self.region.array(np.int64, (words,)), np.cumsum(sizes))
        self._workers = pieces[4].reshape(workers, _WORKER_WORDS)
        self.stages = pieces[5].reshape(self.meters, METER_WORDS)
        # An access takes a third of numpy's time.
        self._header = memoryview(pieces[0])
        self._parts = memoryview(pieces[1])
        self._fresh = memoryview(pieces[2])
        self._again = memoryview(pieces[3])
        self._rows = memoryview(pieces[4])

        if descriptors is None:
            self._workers[:, _PART] = _NONE

    def publish(self, parts: list[Part]) -> None:
        """Puts fresh parts on the board."""
        self._put(parts, self._fresh, _FRESH_TAIL)

    def again(self, parts: list[Part]) -> None:
        """Puts back parts that a worker claimed and did not finish; they go first. Wakes one worker more, for the count
        that the dead one may have taken."""
        self._put(parts, self._again, _AGAIN_TAIL)
        os.eventfd_write(self.event, 1)

    def cancel(self) -> None:
        """Removes all unclaimed parts from the board."""
        with self._locked():
            for _, head, tail in self._queues():
                self._header[head] = self._header[tail]

    def claim(self, worker: int, *, fresh_only: bool = False) -> Part | None:
        """Claims the next part for a worker; returns None if there is none.

        Args:
            worker: The worker's row.
            fresh_only: True leaves those that another worker had before.
        """
        with self._locked():
            for queue, head, tail in self._queues()[fresh_only:]:
                place = self._header[head]
                if place == self._header[tail]:
                    continue
                number = queue[place % self.capacity]
                row = worker * _WORKER_WORDS
                self._rows[row + _HEARTBEAT_NS] = time.monotonic_ns()
                self._rows[row + _PART] = number
                self._header[head] = place + 1
                at = number % self.capacity * _PART_WORDS
                return Part(number, *self._parts[at : at + _PART_WORDS].tolist())
        return None

    def claimed(self, worker: int) -> int | None:
        """Returns the number of the part that a worker has claimed and not sent off, or None."""
        number: int = self._rows[worker * _WORKER_WORDS + _PART]
        if number == _NONE:
            return None
        with self._locked():
            for queue, head, tail in self._queues():
                place, end = self._header[head], self._header[tail]
                if place < end and queue[place % self.capacity] == number:
                    return None  # killed between writing its row and moving the head
        return number

    @property
    def service_cores(self) -> int:
        """Number of the cores of the input service's servers, as far as the relay knows them."""
        return int(self._header[_SERVICE_CORES])

    @service_cores.setter
    def service_cores(self, cores: int) -> None:
        self._header[_SERVICE_CORES] = cores

    def fresh(self) -> tuple[int, int]:
        """Returns the place of the first unclaimed fresh part in the order of giving out, and how many there are."""
        head, tail = self._header[_FRESH_HEAD], self._header[_FRESH_TAIL]
        return head, tail - head

    def idle(self, workers: int) -> int:
        """Returns the number of the first so many workers that have started and have no part."""
        rows = self._workers[:workers]
        return int(((rows[:, _PART] == _NONE) & (rows[:, _HEARTBEAT_NS] > 0)).sum())

    def is_free(self, worker: int) -> bool:
        """Returns True if a worker's row names no part."""
        return bool(self._rows[worker * _WORKER_WORDS + _PART] == _NONE)

    def heartbeat(self, worker: int) -> None:
        """Notes that a worker is alive and at work."""
        self._rows[worker * _WORKER_WORDS + _HEARTBEAT_NS] = time.monotonic_ns()

    def heartbeat_ns(self, worker: int) -> int:
        """Returns the time of a worker's last :meth:`heartbeat`, on the monotonic clock; 0 while it starts."""
        return int(self._rows[worker * _WORKER_WORDS + _HEARTBEAT_NS])

    def finish(self, worker: int) -> None:
        """Notes that a worker has sent off its part."""
        self._rows[worker * _WORKER_WORDS + _PART] = _NONE

    def forget(self, worker: int) -> None:
        """Clears a worker's row for its successor; the meters go on."""
        row = worker * _WORKER_WORDS
        self._rows[row + _PART], self._rows[row + _HEARTBEAT_NS] = _NONE, 0

    def meter(self, worker: int) -> Meter:
        """Returns the meter that a worker writes."""
        return Meter(self.stages[worker])

    def unfinished(self) -> int:
        """Returns the number of parts that are unclaimed, or claimed and not sent off."""
        return self.unclaimed() + int((self._workers[:, _PART] != _NONE).sum())

    def unclaimed(self) -> int:
        """Returns the number of parts that are unclaimed."""
        return sum(int(self._header[tail] - self._header[head]) for _, head, tail in self._queues())

    def close(self) -> None:
        """Closes the descriptors."""
        self.region.close()
        events, self.event, self.sent = (self.event, self.sent), -1, -1
        if self._pid == os.getpid():
            for event in events:
                if event >= 0:
                    os.close(event)

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if not is_finalizing() and hasattr(self, "_pid"):  # see Note [At the interpreter's end]
            self.close()

    def _put(self, parts: list[Part], queue: Any, tail: int) -> None:
        with self._locked():
            end = self._header[tail]
            for k, part in enumerate(parts):
                at = part.number % self.capacity * _PART_WORDS
                for word in range(_PART_WORDS):
                    self._parts[at + word] = part[1 + word]
                queue[(end + k) % self.capacity] = part.number
            self._header[tail] = end + len(parts)
        if parts:
            os.eventfd_write(self.event, len(parts))

    def _queues(self) -> tuple[tuple[Any, int, int], ...]:
        return (self._again, _AGAIN_HEAD, _AGAIN_TAIL), (self._fresh, _FRESH_HEAD, _FRESH_TAIL)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        descriptor = self.region.descriptor
        if self._patience_s is None:
            fcntl.lockf(descriptor, fcntl.LOCK_EX)
        else:
            self._lock_patiently(descriptor, self._patience_s)
        try:
            yield
        finally:
            fcntl.lockf(descriptor, fcntl.LOCK_UN)

    def _lock_patiently(self, descriptor: int, patience_s: float) -> None:
        since = time.monotonic()
        for pause_s in pauses(_SHORTEST_PAUSE_S, _LONGEST_PAUSE_S):
            # The kernel may give either error for a lock that is held.
            with contextlib.suppress(BlockingIOError, PermissionError):
                fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            if time.monotonic() - since > patience_s:
                self._evict(descriptor)
                since = time.monotonic()
            time.sleep(pause_s)

    def _evict(self, descriptor: int) -> None:
        asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        kind, _, _, _, holder = _FLOCK.unpack(fcntl.fcntl(descriptor, fcntl.F_GETLK, asked))
        if kind != fcntl.F_UNLCK and holder > 0:
            self.evicted.add(holder)
            with contextlib.suppress(ProcessLookupError):
                os.kill(holder, signal.SIGKILL)
