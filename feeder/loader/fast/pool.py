"""The pool of fast workers: gives out the parts of batches, and takes each back exactly once, whichever worker dies."""

from __future__ import annotations

import collections
import functools
import logging
import math
import os
import pickle
import select
import signal
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.context import BaseContext
from typing import Any

from feeder.errors import WorkerError
from feeder.loader.fast.fast_worker import FAILED_START, Declined, work_loop
from feeder.loader.fast.part_report import PartReport
from feeder.loader.fast.sample_maker import Work
from feeder.loader.fast.task_board import Board, Part
from feeder.loader.service_options import RELAY_ROWS, ServiceOptions
from feeder.loader.slots.image_slots import Ring
from feeder.loader.slots.region import pack
from feeder.loader.workers.fork_server import fork
from feeder.loader.workers.process import InContext, Process
from feeder.loader.workers.supervisor import Supervisor, Worker
from feeder.system.arrays import Int64s
from feeder.system.text import count

_log = logging.getLogger("feeder")

_SERVED = "feeder.loader.fast.served_worker:work_loop"
_EMPTY_REPORT = PartReport()
_SAME_PART_LIMIT = 3  # deaths of workers that make the same part
_FRUITLESS_LIMIT = 10  # deaths in a row without a finished part, and one more for each worker
GRACE_S = 1.0  # for workers to end or to finish parts that are not wanted
LOOK_S = 1.0  # between two looks for silent workers, at most
_GATHER_MS = 100  # longest time that other messages wait for that of a batch's last part


@dataclass(frozen=True)
class PoolOptions:
    """Options of the workers.

    Args:
        workers: Number of workers.
        hang_timeout_s: A worker that has a part and is silent for longer is replaced.
        context: Starts workers with this multiprocessing context instead of the fork server.
        init: Called in each worker with its number, before its first part.
        service: The input service that a relay, one process more, has parts made by; None: there is none.
        cpus: The CPUs that the processes stay on; None: any.
    """

    workers: int
    hang_timeout_s: float = 300.0
    context: BaseContext | None = None
    init: Callable[[int], None] | None = None
    service: ServiceOptions | None = None
    cpus: frozenset[int] | None = None

    @property
    def processes(self) -> int:
        """Number of processes: the workers, and the relay of a service after them."""
        return self.workers + (self.service is not None)


@dataclass(eq=False)
class _Worker(Worker):
    is_dismissed: bool = False  # killed as its part is not wanted any more


class Pool(Supervisor[_Worker]):
    """Worker processes that fill parts of slots.

    Every part is made exactly once as far as the caller sees: a part belongs to the worker that claimed it until that
    process is known to have ended; only then is it made again. Its result is taken or dropped, never both.

    Args:
        work: The workers' work.
        ring: The slots that they fill.
        parts: Largest number of parts on the board.
        options: How to run the workers.
        stages: int64 [processes, METER_WORDS], which the meters begin with.
        replacements: Workers that are replaced are added to it: ``worker``, its number; ``pid``, if known; the
            ``cause`` of its end; ``keys`` of the samples that it was making.

    Attributes:
        board: The task board.
    """

    def __init__(
        self,
        work: Work,
        ring: Ring,
        parts: int,
        options: PoolOptions,
        stages: Int64s,
        replacements: list[dict[str, Any]],
    ) -> None:
        super().__init__(_Worker, options.hang_timeout_s)
        self.options = options
        self._replacements = replacements
        self._ring = ring
        self._work = work

        # The rows of each process on the board: see Note [Relays].
        self._rows = [range(number, number + 1) for number in range(options.workers)]
        if options.service is not None:
            self._rows.append(range(options.workers, options.workers + RELAY_ROWS))
        rows = self._rows[-1].stop

        self.board = Board(2 * parts, rows, patience_s=options.hang_timeout_s, meters=options.processes)
        self.board.stages[:] = stages
        # With a context the work travels as that context's arguments do: it may hold what only a fork can pass on.
        self._payload = pack(work) if options.context is None else None

        self._outstanding: dict[int, Part] = {}
        self._failures: collections.Counter[int] = collections.Counter()
        self._fruitless = 0
        self._next = 0
        self._given_out_ns = 0
        self._next_look_ns = 0

        self._sent = select.poll()
        self._sent.register(self.board.sent, select.POLLIN)
        self._results: list[tuple[int, PartReport | BaseException]] = []  # results that the caller has not taken
        self._is_broken = False

        try:
            for number in range(options.processes):
                self._start(number)
        except BaseException:
            self.close()
            raise

    def submit(
        self, slot: int, rows: list[tuple[int, int]], epoch: int, size: tuple[int, int] | None = None
    ) -> list[int]:
        """Gives out the parts of a slot, which holds their positions and ids.

        Args:
            slot: The slot.
            rows: (first row, number of rows) of each part.
            epoch: The epoch that the augmentation is drawn for.
            size: (height, width) of the batch's images, or of the first view; None: that of the slots.

        Returns:
            The parts' numbers.
        """
        self.check_open()
        height, width = size or (0, 0)
        parts = [
            Part(self._next + k, slot, first, count, epoch, int(k == len(rows) - 1), height, width)
            for k, (first, count) in enumerate(rows)
        ]
        self._next += len(parts)
        self._outstanding.update({part.number: part for part in parts})
        self._given_out_ns = time.monotonic_ns()
        self.board.publish(parts)
        return [part.number for part in parts]

    def take(
        self, timeout_s: float | None, last_missing: bool = False, check: Callable[[], object] = lambda: None
    ) -> list[tuple[int, PartReport | BaseException]]:
        """Returns what came back since the last call; waits for something, at most as long as the timeout.

        Args:
            timeout_s: Longest wait; 0: none; None: until there is something.
            last_missing: True while the last part of the batch that the caller waits for is not back. The caller is
                not woken for each of the others then: every wake-up costs it more than what there is to do.
            check: Called at every look, once a second at least; what it raises ends the wait.

        Raises:
            WorkerError: if workers can't be started, or die again and again without finishing anything.
        """
        self.check_open()
        deadline = None if timeout_s is None else time.monotonic() + timeout_s

        now = time.monotonic_ns()
        for worker in self.workers:
            worker.heard_ns = now

        while not self._results:
            check()
            wait = min(LOOK_S, self.options.hang_timeout_s / 4)
            left = wait if deadline is None else min(wait, deadline - time.monotonic())
            try:
                self._wait_once(max(0, math.ceil(left * 1000)), last_missing)
            except WorkerError:
                self._is_broken = True
                raise

            if deadline is not None and time.monotonic() >= deadline:
                break
        results, self._results = self._results, []
        return results

    def _wait_once(self, most_ms: int, last_missing: bool) -> None:
        """Waits once; handles the messages that came, and replaces workers that have ended or hang."""
        for number in self._wait_for_messages(most_ms, last_missing):
            worker = self.receive(number)
            self._handle_messages(number)
            if worker.has_closed:
                self._replace(number)

        # Looking for silent workers takes locks: not after every part.
        if time.monotonic_ns() >= self._next_look_ns:
            self._next_look_ns = time.monotonic_ns() + int(min(LOOK_S, self.options.hang_timeout_s / 4) * 1e9)
            for number in range(len(self.workers)):
                if self._hangs(number):
                    self._replace(number)

    def _wait_for_messages(self, most_ms: int, last_missing: bool) -> list[int]:
        """Waits for any worker's message; if a batch's last part is missing, for that one, but not for long.

        Returns:
            The numbers of the workers to receive from.
        """
        if not (most_ms and last_missing) or any(worker.received for worker in self.workers):
            return self.wait(most_ms)
        if self._sent.poll(min(most_ms, _GATHER_MS)):
            os.eventfd_read(self.board.sent)
        return self.wait(0)

    def abandon(self) -> None:
        """Gives up all parts that are out. Waits for those that a worker is making, and drops them.

        Raises:
            WorkerError: if a worker is missing, or :meth:`take` has failed: the pool is of no more use.
        """
        if not self.check_open():
            return
        if self._is_broken:
            raise WorkerError("a worker could not be started or replaced; start these workers anew")
        deadline = time.monotonic() + GRACE_S
        while self._drop_unclaimed():
            self.take(deadline - time.monotonic())
            if time.monotonic() > deadline:
                for number, worker in enumerate(self.workers):
                    if any(part in self._outstanding for part in self._claimed(number)):
                        worker.process.kill()
                        worker.is_dismissed = True
                deadline += GRACE_S

    def _drop_unclaimed(self) -> bool:
        """Forgets all parts but those that a worker is making, wherever an interrupt left the pool.

        Returns:
            True if there are any left.
        """
        self.board.cancel()
        claimed = {part for number in range(len(self.workers)) for part in self._claimed(number)}
        self._outstanding = {number: part for number, part in self._outstanding.items() if number in claimed}
        self._results.clear()
        return bool(self._outstanding)

    def _claimed(self, number: int) -> list[int]:
        """Returns the numbers of the parts that a process has claimed and not sent off."""
        return [part for row in self._rows[number] if (part := self.board.claimed(row)) is not None]

    def close(self) -> bool:
        """Ends all workers, in bounded time. Does nothing in a process forked off the owner.

        Returns:
            False if one is stuck in the kernel, and may still write into its slot.
        """
        if not self.is_ours:
            return True
        have_ended = self.end_all(GRACE_S)
        if self._payload is not None:
            self._payload.close()
        self.board.close()
        return have_ended

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if not is_finalizing() and hasattr(self, "_is_broken"):  # see Note [At the interpreter's end]
            self.close()

    def _start(self, number: int) -> None:
        """Starts a process, and sends it its options and the shared memory."""
        self.start(number, self._launch)
        board, payload = self.board, self._payload
        payload_bytes = 0 if payload is None else payload.size_bytes
        sizes = (self._ring.slots, board.capacity, board.workers, board.meters, payload_bytes)
        relay = None
        if self.options.service is not None and number == self.options.workers:
            from feeder.loader.fast.relay import Relay  # few loaders need it

            relay = functools.partial(Relay, options=self.options.service)
        hello = pickle.dumps((self._ring.layout, sys.path, self._rows[number], *sizes, relay, self.options.cpus))
        descriptors = [self._ring.region.descriptor, board.region.descriptor, board.event, board.sent]
        if payload is not None:
            descriptors.append(payload.descriptor)
        self.send(number, 0, hello, descriptors)

    def _launch(self, connection: socket.socket) -> Process:
        context = self.options.context
        if context is None:
            return fork(_SERVED, connection)
        return InContext(context, work_loop, (connection, self._work, self.options.init))

    def _handle_messages(self, number: int) -> None:
        """Handles the messages that were received from a worker: results, parts that it declined, a failed start."""
        for part, data in self.messages(number):
            message = pickle.loads(data) if data else None
            if part == FAILED_START:
                raise WorkerError(f"worker {number} could not start:\n{message}")
            self._fruitless = 0
            if isinstance(message, Declined):
                self._reissue(part, message.row)
                continue
            self._failures.pop(part, None)
            if self._outstanding.pop(part, None) is not None:
                self._results.append((part, _EMPTY_REPORT if message is None else message))

    def _reissue(self, number: int, row: int) -> None:
        """Gives a part to another worker than the one that had it."""
        part = self._outstanding.get(number)
        if part is not None:
            self._given_out_ns = time.monotonic_ns()
            self.board.again([part])
        self.board.finish(row)  # not before: it tells the relay that the part is on the board, or not wanted

    def _hangs(self, number: int) -> bool:
        """Kills a worker that has or could take a part and is silent for too long; returns True then."""
        is_idle = not self._claimed(number)
        if is_idle and not self.board.unclaimed():
            return False
        heartbeat = self.board.heartbeat_ns(self._rows[number][0])
        heard = max(self.workers[number].heard_ns, heartbeat, self._given_out_ns if is_idle else 0)
        return self.kill_if_silent(number, heard, has_started=bool(heartbeat))

    def _replace(self, number: int) -> None:
        """Replaces a worker that has ended or was killed, unless it had sent results: these are handed out first."""
        worker = self.workers[number]
        code = self.end(number)
        before = len(self._results)
        self._handle_messages(number)
        if len(self._results) > before:
            return

        parts = [part for each in self._claimed(number) if (part := self._outstanding.get(each)) is not None]
        if worker.is_dismissed:
            for part in parts:
                del self._outstanding[part.number]
            self._start_anew(number, [])
            return

        was_silent = worker.was_silent or worker.process.pid() in self.board.evicted
        cause = f"silent for {self.options.hang_timeout_s:g} s" if was_silent else _cause(code)
        advice = None if self.board.heartbeat_ns(self._rows[number][0]) else worker.process.failed_start(code)
        if advice is not None:
            raise WorkerError(f"worker {number} could not start: {cause}; {advice}")

        keys = tuple(key for part in parts for key in self._keys(part))
        pid = worker.process.pid()
        self._replacements.append({"worker": number, "pid": pid, "cause": cause, "keys": keys})

        _log.warning(
            "worker %d (pid %s) ended: %s; replaced, %s",
            number,
            pid,
            cause,
            f"{count(len(keys), 'sample is', 'samples are')} done again" if keys else "it was making no samples",
        )

        self._fruitless += 1
        self._failures.update(part.number for part in parts)
        is_same = any(self._failures[part.number] >= _SAME_PART_LIMIT for part in parts)
        if self._fruitless > _FRUITLESS_LIMIT + self.options.workers or is_same:
            raise WorkerError(self._why_hopeless(cause, keys))
        self._start_anew(number, parts)

    def _start_anew(self, number: int, parts: list[Part]) -> None:
        """Puts a new worker in the place of one that has ended, and the parts back on the board."""
        self._is_broken = True
        for row in self._rows[number]:
            self.board.forget(row)
        self._start(number)
        self._is_broken = False
        self._given_out_ns = time.monotonic_ns()
        self.board.again(parts)

    def _why_hopeless(self, cause: str, keys: tuple[str, ...]) -> str:
        """Returns the message for workers that die again and again, with what to look at."""
        names = ", ".join(keys) if keys else "none"
        advice = ["at these samples with `feeder inspect --verify`"] if keys else []
        advice.append("at what they printed")
        if cause.startswith("SIGKILL"):
            advice.append("at the system's log for the out-of-memory killer")
        return (
            f"{count(self._fruitless, 'worker')} in a row ended without finishing anything; the last one: {cause}. "
            f"Samples being made: {names}. Look {' and '.join(advice)}"
        )

    def _keys(self, part: Part) -> tuple[str, ...]:
        """Returns the keys of a part's samples."""
        ids = self._ring.views[part.slot].samples.ids[part.first : part.first + part.rows]
        return tuple(str(self._work.reader.field(i, "key")) for i in ids.tolist())


def _cause(code: int) -> str:
    """Returns the words for an exit code; negative for a signal."""
    if code >= 0:
        return f"exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return name + (" (the kernel's out-of-memory killer sends this)" if code == -signal.SIGKILL else "")
