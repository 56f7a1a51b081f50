"""The worker processes of one iterator over any dataset, and the trainer's ends of their connections."""

from __future__ import annotations

import array
import collections
import contextlib
import os
import select
import signal
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from torch.utils.data import _utils as torch_utils

from feeder.loader.generic.meters import Spent
from feeder.loader.generic.worker import HEAD_BYTES, Job, Result, Task, decode_head, encode_task, worker_main
from feeder.loader.slots.slots import Slots
from feeder.loader.workers.process import failed_start, start_in, wait_for
from feeder.loader.workers.sockets import check_owner, handing_over

__all__ = ["Message", "Process", "Processes"]

_POLL_MS = 1000
_JOIN_S = 5.0
_START_S = 60.0


@dataclass
class Process:
    """A worker.

    Attributes:
        is_active: Whether it may still have batches to give in this epoch.
        beginning: Its word that it has begun, not looked at yet.
        has_begun: Whether it has begun its epoch.
        state: Its dataset's state after the last batch that was handed out; None before its first epoch.
        unsent: What is to be sent to it and has not gone yet, each with the slots whose descriptor goes along.
        slots: Those that it has mapped.
        owed: Messages that it has been asked for and has not sent.
        heard_s: When it last sent something, or was asked for something while it owed nothing; monotonic clock.
        has_spoken: Whether it has sent anything: before that it starts, which may take longer than a batch.
        was_hung: Whether it was killed because it was silent for too long.
    """

    process: Any
    connection: socket.socket
    buffer: bytearray = field(default_factory=bytearray)
    is_active: bool = True
    beginning: Result | None = None
    has_begun: bool = False
    state: dict[str, Any] | None = None
    slots: Slots | None = None
    owed: int = 1
    heard_s: float = field(default_factory=time.monotonic)
    has_spoken: bool = False
    was_hung: bool = False
    unsent: collections.deque[tuple[memoryview, Slots | None]] = field(default_factory=collections.deque)


@dataclass
class Message:
    """What a worker sent; without data: that it has ended.

    Attributes:
        batch: Number of the batch; -1 for none.
        used: Bytes of its slot that it takes.
        wanted: Bytes that it would take of a slot that is large enough.
        spent: What the worker took for it.
    """

    worker: int
    data: bytes | None = None
    batch: int = -1
    used: int = 0
    wanted: int = 0
    spent: Spent = field(default_factory=Spent)


class Processes:
    """See the module.

    Args:
        context: Of multiprocessing.
        hang_timeout_s: A worker that owes something and is silent for longer is killed; None: never.
    """

    def __init__(self, context: Any, hang_timeout_s: float | None) -> None:
        self.workers: list[Process] = []
        self._context, self._hang_timeout_s = context, hang_timeout_s
        self._pid = os.getpid()
        self._is_closed = False

    @property
    def are_ours(self) -> bool:
        """Whether this process started them, and not one that it was forked from."""
        return self._pid == os.getpid()

    def check_open(self) -> bool:
        """Whether they have not been ended.

        Raises:
            WorkerError: in a process that was forked off the one that started them.
        """
        check_owner(self._pid)
        return not self._is_closed

    def start(self, number: int, job: Job) -> None:
        """Starts worker ``number``: the next one, or one in the place of a worker that has ended."""
        with handing_over() as (mine, theirs):
            process = start_in(self._context, worker_main, (theirs, job))
        self.workers[number : number + 1] = [Process(process, mine)]

    def tell(self, number: int, task: Task, slots: Slots | None = None) -> None:
        """Sends a task, and the slots that it needs if the worker doesn't have them yet."""
        worker = self.workers[number]
        if not worker.owed:
            worker.heard_s = time.monotonic()
        worker.owed += 1
        new = slots if worker.slots is not slots else None
        if new is not None:
            task.slots = new.slot_bytes, new.slots
            worker.slots = new
        worker.unsent.append((memoryview(encode_task(task)), new))
        _send(worker)

    def look(self, timeout_s: float | None, only: int | None = None) -> Iterator[Message]:
        """Waits for messages, for a second at most, and gives those that are complete."""
        poll = select.poll()
        numbers = {}
        for number, worker in enumerate(self.workers):
            if only is None or number == only:
                poll.register(worker.connection, select.POLLIN | (select.POLLOUT if worker.unsent else 0))
                numbers[worker.connection.fileno()] = number
        for number in numbers.values():
            for message in self._complete(number):  # left there, as what came before it raised something
                yield message
                timeout_s = 0
        wait_ms = _POLL_MS if timeout_s is None else min(_POLL_MS, max(1, int(timeout_s * 1000)))
        for descriptor, events in poll.poll(wait_ms):
            if events & select.POLLOUT:
                _send(self.workers[numbers[descriptor]])
            if events & ~select.POLLOUT:
                yield from self._read(numbers[descriptor])
        self._kill_hung(set(numbers.values()))

    def _read(self, number: int) -> Iterator[Message]:
        worker = self.workers[number]
        try:
            data = worker.connection.recv(1 << 16, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        except ConnectionResetError:
            data = b""
        worker.heard_s, worker.has_spoken = time.monotonic(), worker.has_spoken or bool(data)
        worker.buffer += data
        yield from self._complete(number)
        if not data:
            yield Message(number)

    def _complete(self, number: int) -> Iterator[Message]:
        worker = self.workers[number]
        while (head := decode_head(worker.buffer)) is not None:
            if len(worker.buffer) < HEAD_BYTES + head.length:
                break
            message = bytes(memoryview(worker.buffer)[HEAD_BYTES : HEAD_BYTES + head.length])
            del worker.buffer[: HEAD_BYTES + head.length]
            worker.owed -= 1
            yield Message(number, message, head.batch, head.used, head.wanted, head.spent)

    def _kill_hung(self, numbers: set[int]) -> None:
        """Of those that were listened to: what others sent is not read yet."""
        if self._hang_timeout_s is None:
            return
        now = time.monotonic()
        for worker in (self.workers[number] for number in numbers):
            least_s = 0 if worker.has_spoken else _START_S
            silent_s = now - worker.heard_s
            if worker.owed and not worker.was_hung and silent_s > max(least_s, self._hang_timeout_s):
                _kill_as_hung(worker)

    @contextlib.contextmanager
    def fetching_from(self, number: int) -> Iterator[None]:
        """While tensors outside of slots are fetched from a worker, which may hang just then."""
        if self._hang_timeout_s is None:
            yield
            return
        timer = threading.Timer(self._hang_timeout_s, _kill_as_hung, [self.workers[number]])
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def is_dying(self, number: int) -> bool:
        """Whether a worker that seems dead is, or soon will be."""
        return not wait_for([self.workers[number].process], _JOIN_S)

    def end(self, number: int) -> str:
        """Makes sure that a worker whose connection is closed has ended; returns the cause."""
        worker = self.workers[number]
        process = worker.process
        if wait_for([process], _JOIN_S):  # it has closed its connection and does not end
            process.kill()
            wait_for([process], _JOIN_S)
        worker.connection.close()
        if worker.was_hung:
            return f"DataLoader worker (pid {process.pid}) was silent for more than {self._hang_timeout_s:g} s"
        return _cause(process.pid, process.exitcode)

    def failed_start(self, number: int) -> str | None:
        """The likely cause, if a worker has ended and another one in its place would do so, too; else None."""
        worker = self.workers[number]
        return None if worker.has_spoken else failed_start(self._context, worker.process.exitcode)

    def kill(self) -> None:
        """Kills the workers, and leaves it to others to find them dead; for any thread."""
        if self.are_ours:
            for worker in list(self.workers):
                worker.process.kill()

    def close(self) -> None:
        """Ends the workers, in bounded time."""
        if self._is_closed or torch_utils is None or torch_utils.python_exit_status in (True, None):
            return
        self._is_closed = True
        if not self.are_ours:
            return
        for worker in self.workers:
            worker.connection.close()
        processes = [worker.process for worker in self.workers]
        for end in (None, "terminate", "kill"):
            for process in processes:
                if end is not None:
                    getattr(process, end)()
            # All together: many stuck workers take no longer than one. After the last too, or it would be a zombie.
            processes = wait_for(processes, torch_utils.MP_STATUS_CHECK_INTERVAL)
            if not processes:
                return


def _send(worker: Process) -> None:
    """Sends what goes without a wait: the worker may be waiting to send, too, or be stopped."""
    while worker.unsent:
        data, slots = worker.unsent[0]
        descriptors = [] if slots is None else [slots.region.descriptor]
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
        try:
            sent = worker.connection.sendmsg([data], rights, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        except (BrokenPipeError, ConnectionResetError):
            worker.unsent.clear()  # it is dead, which the next look at it will find
            return
        if sent == len(data):
            worker.unsent.popleft()
        else:
            worker.unsent[0] = data[sent:], None


def _kill_as_hung(worker: Process) -> None:
    worker.was_hung = True
    worker.process.kill()


def _cause(pid: int, code: int | None) -> str:
    """torch's words for a worker's end."""
    if code is not None and code < 0:
        name = signal.strsignal(-code) or f"signal {-code}"
        return f"DataLoader worker (pid {pid}) is killed by signal: {name}."
    return f"DataLoader worker (pid(s) {pid}) exited unexpectedly with exit code {code}"
