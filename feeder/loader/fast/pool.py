"""The pool of worker processes: starts them, takes what they made, replaces those that die or hang."""

from __future__ import annotations

import atexit
import collections
import contextlib
import logging
import math
import os
import pickle
import select
import signal
import socket
import sys
import time
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from feeder.errors import WorkerError
from feeder.loader.fast.part_report import Report
from feeder.loader.fast.sample_maker import Work
from feeder.loader.fast.task_board import Board, Part
from feeder.loader.fast.worker import FAILED_START, HEAD, work_loop
from feeder.loader.slots.ring import Ring
from feeder.loader.slots.shared_pickle import pack
from feeder.loader.workers.process import Forked, InContext, Process, failed_start
from feeder.loader.workers.sockets import check_owner, handing_over
from feeder.text import count

if TYPE_CHECKING:
    from multiprocessing.context import BaseContext

__all__ = ["Pool", "PoolOptions", "Replacement"]

_log = logging.getLogger("feeder")

_NOTHING_TO_ADD = Report()
_SAME_PART_LIMIT = 3
_FRUITLESS_LIMIT = 10
_GRACE_S = 1.0
_CLOSE_S = 5.0
_START_S = 60.0
_LOOK_S = 1.0
_GATHER_MS = 100  # the longest that other words wait for that of a batch's last part
_RECEIVE_BYTES = 1 << 16  # larger buffers are mapped and unmapped at every call


@dataclass(frozen=True)
class PoolOptions:
    """How to run workers.

    Args:
        workers: How many.
        hang_timeout_s: A worker with a part in hand that is silent for longer is replaced.
        context: Start workers with this multiprocessing context instead of the fork server.
        init: Called in each worker with its number, before its first part.
    """

    workers: int
    hang_timeout_s: float = 300.0
    context: BaseContext | None = None
    init: Callable[[int], None] | None = None


@dataclass(frozen=True)
class Replacement:
    """A worker that was replaced.

    Attributes:
        worker: Its number in the pool.
        pid: Its process id, if known.
        cause: What ended it.
        keys: Keys of the samples that it had in hand; empty if it had none.
    """

    worker: int
    pid: int | None
    cause: str
    keys: tuple[str, ...]


@dataclass
class _Worker:
    process: Process
    channel: socket.socket
    buffer: bytearray = field(default_factory=bytearray)
    waited_from_ns: int = 0
    gone: bool = False
    hung: bool = False
    dismissed: bool = False


class Pool:
    """Worker processes that fill parts of slots.

    Every part is made exactly once as far as the caller sees: a part belongs to the worker that claimed it until that
    process is known to have ended; only then is it done again. Its result is taken or dropped, never both.

    Args:
        work: What workers do.
        ring: The slots that they fill.
        parts: At most how many parts are on the board.
        options: How to run them.
    """

    def __init__(self, work: Work, ring: Ring, parts: int, options: PoolOptions) -> None:
        self.options = options
        self.replacements: list[Replacement] = []
        self._ring = ring
        self._work = work
        self._pid = os.getpid()
        self._board = Board(2 * parts, options.workers, patience_s=options.hang_timeout_s)
        # With a context the work travels as that context's arguments do: it may hold what only a fork can pass on.
        self._payload = pack(work) if options.context is None else None
        self._outstanding: dict[int, Part] = {}
        self._failures: collections.Counter[int] = collections.Counter()
        self._fruitless = 0
        self._next = 0
        self._given_out_ns = 0
        self._next_look_ns = 0
        self._poll, self._sent = select.poll(), select.poll()
        self._sent.register(self._board.sent, select.POLLIN)
        self._numbers: dict[int, int] = {}
        self._workers: list[_Worker] = []
        self._closed = False
        self._is_broken = False
        self._totals: tuple[dict[str, int], npt.NDArray[np.int64]] | None = None
        _live.add(self)
        try:
            for number in range(options.workers):
                self._workers.append(self._start(number))
        except BaseException:
            self.close()
            raise

    @property
    def unfinished(self) -> int:
        """Parts that were given out and that no worker has sent off yet."""
        return self._board.unfinished()

    def submit(self, slot: int, rows: Iterable[tuple[int, int]], epoch: int) -> list[int]:
        """Gives out a slot's parts, whose positions and ids stand in the slot.

        Args:
            slot: The slot.
            rows: (first row, number of rows) of each part.
            epoch: The epoch that the augmentation is drawn for.

        Returns:
            The parts' numbers.
        """
        check_owner(self._pid)
        edges = list(rows)
        parts = [
            Part(self._next + k, slot, first, count, epoch, is_last=int(k == len(edges) - 1))
            for k, (first, count) in enumerate(edges)
        ]
        self._next += len(parts)
        self._outstanding.update({part.number: part for part in parts})
        self._given_out_ns = time.monotonic_ns()
        self._board.publish(parts)
        return [part.number for part in parts]

    def take(
        self, timeout_s: float | None, last_missing: bool = False, check: Callable[[], object] = lambda: None
    ) -> list[tuple[int, Report | BaseException]]:
        """What came back since the last call; waits for something, but not longer than the timeout (0: not at all).

        Args:
            timeout_s: How long; None: until there is something.
            last_missing: The last part of the batch that the caller waits for is not back. Then it is not woken for
                each of the others: every time costs it more than what there is to do.
            check: Called at every look, once a second at least; what it raises ends the wait.

        Raises:
            WorkerError: if workers can't be started, or die again and again without finishing anything.
        """
        check_owner(self._pid)
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        now = time.monotonic_ns()
        for worker in self._workers:
            worker.waited_from_ns = now
        results: list[tuple[int, Report | BaseException]] = []
        while not results:
            check()
            wait = min(_LOOK_S, self.options.hang_timeout_s / 4)
            left = wait if deadline is None else min(wait, deadline - time.monotonic())
            try:
                results += self._look(max(0, math.ceil(left * 1000)), last_missing)
            except WorkerError:
                self._is_broken = True
                raise
            if deadline is not None and time.monotonic() >= deadline:
                break
        return results

    def _look(self, most_ms: int, last_missing: bool) -> list[tuple[int, Report | BaseException]]:
        """Waits once; returns what came back, and replaces workers that have ended or hang."""
        results: list[tuple[int, Report | BaseException]] = []
        for descriptor, _ in self._sleep(most_ms, last_missing):
            number = self._numbers[descriptor]
            results += self._read(number)
            if self._workers[number].gone:
                results += self._replace(number)
        # Looking for silent workers takes locks: not after every part.
        if time.monotonic_ns() >= self._next_look_ns:
            self._next_look_ns = time.monotonic_ns() + int(min(_LOOK_S, self.options.hang_timeout_s / 4) * 1e9)
            for number in range(len(self._workers)):
                if self._hangs(number):
                    results += self._replace(number)
        return results

    def _sleep(self, most_ms: int, last_missing: bool) -> list[tuple[int, int]]:
        """Waits for any worker's word; if a batch's last part is missing, for that, but not for long. Returns whose
        word is there."""
        if not (most_ms and last_missing) or any(worker.buffer for worker in self._workers):
            return self._poll.poll(most_ms)
        if self._sent.poll(min(most_ms, _GATHER_MS)):
            os.eventfd_read(self._board.sent)
        return self._poll.poll(0)

    def abandon(self) -> None:
        """Gives up all parts that are out. Those that a worker has in hand are waited for and dropped.

        Raises:
            WorkerError: if a worker is missing, or :meth:`take` has failed: the pool is of no more use.
        """
        if self._closed:
            return
        if self._is_broken:
            raise WorkerError("a worker could not be started or replaced; start these workers anew")
        deadline = time.monotonic() + _GRACE_S
        while self._drop_unclaimed():
            self.take(deadline - time.monotonic())
            if time.monotonic() > deadline:
                for number, worker in enumerate(self._workers):
                    if self._board.claimed(number) in self._outstanding:
                        worker.process.kill()
                        worker.dismissed = True
                deadline += _GRACE_S

    def _drop_unclaimed(self) -> bool:
        """Forgets all parts but those that a worker has in hand, wherever giving out or taking in was interrupted;
        whether there are any."""
        self._board.cancel()
        in_hand = {self._board.claimed(number) for number in range(len(self._workers))}
        self._outstanding = {number: part for number, part in self._outstanding.items() if number in in_hand}
        return bool(self._outstanding)

    def meters(self) -> dict[str, int]:
        """Sums over all workers; see :meth:`feeder.loader.fast.task_board.Board.meters`."""
        return self._board.meters() if self._totals is None else self._totals[0]

    def stages(self) -> npt.NDArray[np.int64]:
        """What the workers' stages took: int64 [workers, METER_WORDS]."""
        return self._board.stages() if self._totals is None else self._totals[1]

    def pids(self) -> list[int]:
        """Process ids of the workers that run."""
        return [pid for worker in self._workers if (pid := worker.process.pid()) is not None]

    def close(self) -> bool:
        """Ends all workers, in bounded time. Does nothing in a process forked off the owner.

        Returns:
            Whether all have ended: False if one is stuck in the kernel, and may still write into its slot.
        """
        if self._closed or self._pid != os.getpid():
            return True
        for worker in self._workers:
            worker.channel.close()  # idle workers end at once, busy ones at their watchdog's next breath
        end = time.monotonic() + _CLOSE_S
        kill = time.monotonic() + _GRACE_S
        waiting = [worker.process for worker in self._workers]
        pause = 0.0005
        while waiting and time.monotonic() < end:
            waiting = [process for process in waiting if process.ended() is None]
            if waiting and time.monotonic() > kill:
                for process in waiting:
                    process.kill()
                kill = end
            if waiting:
                time.sleep(pause)
                pause = min(0.02, 2 * pause)
        self._closed = True  # only now: where this is interrupted it is done again
        for worker in self._workers:
            worker.process.forget()
        if self._payload is not None:
            self._payload.close()
        self._totals = self._board.meters(), self._board.stages()
        self._board.close()
        return not waiting

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if not is_finalizing() and hasattr(self, "_workers"):  # see Note [At the interpreter's end]
            self.close()

    def _start(self, number: int) -> _Worker:
        with handing_over() as (mine, theirs):
            context = self.options.context
            job = self._work, self.options.init
            process: Process = Forked(theirs) if context is None else InContext(context, work_loop, theirs, job)
        board, payload = self._board, self._payload
        sizes = (self._ring.slots, board.capacity, board.workers, 0 if payload is None else payload.size_bytes)
        hello = pickle.dumps((self._ring.layout, sys.path, number, *sizes))
        descriptors = [self._ring.region.descriptor, board.region.descriptor, board.event, board.sent]
        if payload is not None:
            descriptors.append(payload.descriptor)
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # died already: found at the next look at it
            socket.send_fds(mine, [hello], descriptors)
        mine.setblocking(False)
        self._poll.register(mine, select.POLLIN)
        self._numbers[mine.fileno()] = number
        return _Worker(process, mine, waited_from_ns=time.monotonic_ns())

    def _read(self, number: int) -> list[tuple[int, Report | BaseException]]:
        worker = self._workers[number]
        results: list[tuple[int, Report | BaseException]] = []
        while not worker.gone:
            try:
                data = worker.channel.recv(_RECEIVE_BYTES)
            except BlockingIOError:
                break
            except (ConnectionResetError, InterruptedError):
                data = b""
            worker.gone = not data
            worker.buffer += data
            worker.waited_from_ns = time.monotonic_ns()
            if len(data) < _RECEIVE_BYTES:
                break
        while len(worker.buffer) >= HEAD.size:
            part, length = HEAD.unpack_from(worker.buffer)
            if len(worker.buffer) < HEAD.size + length:
                break
            message = pickle.loads(worker.buffer[HEAD.size : HEAD.size + length]) if length else None
            del worker.buffer[: HEAD.size + length]
            if part == FAILED_START:
                raise WorkerError(f"worker {number} could not start:\n{message}")
            self._fruitless = 0
            self._failures.pop(part, None)
            if self._outstanding.pop(part, None) is not None:
                results.append((part, _NOTHING_TO_ADD if message is None else message))
        return results

    def _hangs(self, number: int) -> bool:
        worker = self._workers[number]
        idle = self._board.claimed(number) is None
        if idle and not self._board.pending():
            return False
        beat = self._board.beat_ns(number)
        timeout_s = self.options.hang_timeout_s if beat else max(_START_S, self.options.hang_timeout_s)
        heard = max(worker.waited_from_ns, beat, self._given_out_ns if idle else 0)
        if time.monotonic_ns() - heard < timeout_s * 1e9:
            return False
        worker.process.kill()
        worker.hung = True
        return True

    def _replace(self, number: int) -> list[tuple[int, Report | BaseException]]:
        worker = self._workers[number]
        end = time.monotonic() + _CLOSE_S
        while (code := worker.process.ended()) is None and time.monotonic() < end:
            if time.monotonic() > end - _CLOSE_S + _GRACE_S:
                worker.process.kill()
            time.sleep(0.001)
        if code is None:
            raise WorkerError(
                f"worker {number} (pid {worker.process.pid()}) does not end although it was killed; it is stuck in the "
                "kernel, most likely on a dead file system"
            )
        while not worker.gone:  # what it sent before its end still counts
            before = len(worker.buffer)
            results = self._read(number)
            if results:
                return results
            if len(worker.buffer) == before and not worker.gone:
                break
        part = self._outstanding.get(claimed) if (claimed := self._board.claimed(number)) is not None else None
        if worker.dismissed:
            if part is not None:
                del self._outstanding[part.number]
            self._begin_anew(number, [])
            return []
        was_silent = worker.hung or worker.process.pid() in self._board.evicted
        cause = f"silent for {self.options.hang_timeout_s:g} s" if was_silent else _cause(code)
        if self.options.context is not None and not self._board.beat_ns(number):
            advice = failed_start(self.options.context, code)
            if advice is not None:
                raise WorkerError(f"worker {number} could not start: {cause}; {advice}")
        keys = self._keys(part) if part is not None else ()
        event = Replacement(number, worker.process.pid(), cause, keys)
        self.replacements.append(event)
        _log.warning(
            "worker %d (pid %s) ended: %s; replaced, %s",
            number,
            event.pid,
            cause,
            f"{count(len(keys), 'sample is', 'samples are')} done again" if keys else "it was making no samples",
        )
        self._fruitless += 1
        if part is not None:
            self._failures[part.number] += 1
        if self._fruitless > _FRUITLESS_LIMIT + self.options.workers or (
            part is not None and self._failures[part.number] >= _SAME_PART_LIMIT
        ):
            raise WorkerError(self._hopeless(cause, keys))
        self._begin_anew(number, [part] if part is not None else [])
        return []

    def _begin_anew(self, number: int, parts: list[Part]) -> None:
        """Puts a new worker in the place of one that has ended, and the parts back on the board."""
        worker = self._workers[number]
        self._is_broken = True
        self._poll.unregister(worker.channel)
        worker.channel.close()
        self._board.forget(number)
        self._workers[number] = self._start(number)
        self._is_broken = False
        worker.process.forget()  # not before: if no worker can be started, close() asks whether this one has ended
        self._given_out_ns = time.monotonic_ns()
        self._board.again(parts)

    def _hopeless(self, cause: str, keys: tuple[str, ...]) -> str:
        names = ", ".join(keys) if keys else "none"
        advice = ["at these samples with `feeder inspect --verify`"] if keys else []
        advice.append("at what they printed, and at the system's log for the out-of-memory killer")
        return (
            f"{count(self._fruitless, 'worker')} in a row ended without finishing anything; the last one: {cause}. "
            f"Samples in hand: {names}. Look {', '.join(advice)}"
        )

    def _keys(self, part: Part) -> tuple[str, ...]:
        ids = self._ring.views[part.slot].ids[part.first : part.first + part.rows]
        return tuple(str(self._work.reader.field(i, "key")) for i in self._work.samples_of(ids).tolist())


_live: weakref.WeakSet[Pool] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for pool in list(_live):
        pool.close()


def _cause(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return name + (" (the kernel's out-of-memory killer sends this)" if code == -signal.SIGKILL else "")
