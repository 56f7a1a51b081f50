"""The supervisor of one loader's workers: starts and ends them, exchanges messages, finds those that died or hang.

Both paths use it. Each decides what becomes of a dead worker's tasks, and whether another is started in its place:
``fast/pool.py`` and ``generic/batch_workers.py``.

Note [Workers at exit]
    multiprocessing's function at exit waits for its processes for ever, also for one that is stopped. So supervisors
    end their workers before. They leave the sockets open, as a daemon thread may be using them, and a thread that waits
    for workers then, or finds one dead, stays where it is: it would replace workers, or print an error into the
    terminal.
"""

from __future__ import annotations

import array
import atexit
import collections
import contextlib
import multiprocessing.util  # noqa: F401  registered before ours, its function at exit runs after it
import os
import select
import socket
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from feeder.errors import WorkerError
from feeder.loader.workers.channel import HEAD, HEARTBEAT, handing_over
from feeder.loader.workers.process import Process, wait_for

_START_S = 60.0
END_S = 5.0
_EXIT_GRACE_S = 0.1
_RECEIVE_BYTES = 1 << 16  # larger buffers are mapped and unmapped at every call


@dataclass(eq=False)
class Worker:
    """A worker process and its connection.

    Attributes:
        process: The process.
        connection: The trainer's socket.
        received: Bytes received that are no whole message yet.
        unsent: Messages that did not fit the socket: bytes, descriptors to send along, and what keeps those open.
        heard_ns: Time from which its silence counts, on the monotonic clock.
        has_spoken: True once it has sent anything.
        has_closed: True once its end of the connection is closed.
        was_silent: True if it was killed for its silence.
    """

    process: Process
    connection: socket.socket
    received: bytearray = field(default_factory=bytearray)
    unsent: collections.deque[tuple[memoryview, Sequence[int], object]] = field(default_factory=collections.deque)
    heard_ns: int = field(default_factory=time.monotonic_ns)
    has_spoken: bool = False
    has_closed: bool = False
    was_silent: bool = False


W = TypeVar("W", bound=Worker)


class Supervisor(Generic[W]):
    """Workers by number, from 0.

    Args:
        make: Makes the record of a worker from its process and connection: :class:`Worker` or a subclass.
        hang_timeout_s: Longest silence of a worker that has work; None: any.
    """

    def __init__(self, make: Callable[[Process, socket.socket], W], hang_timeout_s: float | None) -> None:
        self.workers: list[W] = []
        self.hang_timeout_s = hang_timeout_s
        self._make = make
        self._poll = select.poll()
        self._numbers: dict[int, int] = {}
        self._pid = os.getpid()
        self._is_closed = self._is_exiting = False
        _live.add(self)

    @property
    def is_ours(self) -> bool:
        """True in the process that started the workers, False in one forked off it."""
        return self._pid == os.getpid()

    def check_open(self) -> bool:
        """Returns True until the workers were ended.

        Raises:
            WorkerError: in a process forked off the one that started them.
        """
        check_owner(self._pid)
        return not self._is_closed

    def pids(self) -> list[int]:
        """Returns the process ids of the workers."""
        return [pid for worker in self.workers if (pid := worker.process.pid()) is not None]

    def start(self, number: int, launch: Callable[[socket.socket], Process]) -> W:
        """Starts a worker: the next one, or one in the place of a worker that has ended.

        Args:
            number: The worker's number.
            launch: Starts the process, which gets this socket.
        """
        before = self.workers[number] if number < len(self.workers) else None
        if before is not None and before.connection.fileno() >= 0:
            self._poll.unregister(before.connection)
            before.connection.close()
        with handing_over() as (mine, theirs):
            process = launch(theirs)
        worker = self._make(process, mine)
        # Before the collector takes the socket of a supervisor that nobody has closed, with a warning.
        weakref.finalize(worker, mine.close).atexit = False
        self._poll.register(mine, select.POLLIN)
        self._numbers[mine.fileno()] = number
        self.workers[number : number + 1] = [worker]  # takes the place of the one before, or is appended
        return worker

    def send(self, number: int, about: int, data: bytes, descriptors: Sequence[int] = (), keep: object = None) -> None:
        """Sends a message without waiting: the worker may be waiting to send, too, or be stopped.

        Args:
            number: To this worker.
            about, data: The message, see Note [Messages of workers].
            descriptors: File descriptors that go along.
            keep: Kept until they are sent.
        """
        worker = self.workers[number]
        worker.unsent.append((memoryview(HEAD.pack(len(data), about) + data), descriptors, keep))
        self._flush(worker)

    def wait(self, timeout_ms: int, only: int | None = None) -> list[int]:
        """Waits until a worker sends something or closes its connection, and sends on what did not fit before.

        Args:
            timeout_ms: Longest wait.
            only: Listens to this worker alone.

        Returns:
            The numbers of the workers to receive from.
        """
        poll = self._poll
        if only is not None:
            poll, worker = select.poll(), self.workers[only]
            poll.register(worker.connection, select.POLLIN | (select.POLLOUT if worker.unsent else 0))
        numbers = []
        ready = poll.poll(timeout_ms)
        self._check_exit()
        for descriptor, events in ready:
            number = self._numbers[descriptor]
            if events & select.POLLOUT:
                self._flush(self.workers[number])
            if events & ~select.POLLOUT:
                numbers.append(number)
        return numbers

    def receive(self, number: int) -> W:
        """Receives what a worker has sent, without waiting; returns the worker."""
        worker = self.workers[number]
        while not worker.has_closed:
            try:
                data = worker.connection.recv(_RECEIVE_BYTES, socket.MSG_DONTWAIT)
            except BlockingIOError:
                break
            except ConnectionResetError:
                data = b""
            worker.has_spoken = worker.has_spoken or bool(data)
            worker.has_closed = not data
            worker.received += data
            worker.heard_ns = time.monotonic_ns()
            if len(data) < _RECEIVE_BYTES:
                break
        return worker

    def messages(self, number: int) -> Iterator[tuple[int, bytes]]:
        """Takes the whole messages out of what was received from a worker: (what it is about, its data)."""
        received = self.workers[number].received
        while len(received) >= HEAD.size:
            length, about = HEAD.unpack_from(received)
            if len(received) < HEAD.size + length:
                return
            data = bytes(memoryview(received)[HEAD.size : HEAD.size + length])
            del received[: HEAD.size + length]
            if about != HEARTBEAT:
                yield about, data

    def kill_if_silent(self, number: int, heard_ns: int, has_started: bool) -> bool:
        """Kills a worker that has work and has been silent for too long.

        Args:
            number: The worker.
            heard_ns: When it was last heard of, on the monotonic clock.
            has_started: False for one that starts, which may take longer than a batch.

        Returns:
            True if it was killed, now or before.
        """
        worker, timeout_s = self.workers[number], self.hang_timeout_s
        if timeout_s is None or worker.was_silent:
            return worker.was_silent
        if not has_started:
            timeout_s = max(_START_S, timeout_s)
        if time.monotonic_ns() - heard_ns < timeout_s * 1e9:
            return False
        worker.was_silent = True
        worker.process.kill()
        return True

    def wait_for_end(self, number: int) -> bool:
        """Waits up to five seconds for a worker to end; returns True if it has."""
        return not wait_for([self.workers[number].process], END_S)

    def end(self, number: int) -> int:
        """Makes sure that a worker has ended; what it had sent is received then.

        Returns:
            Its exit code, negative for a signal.

        Raises:
            WorkerError: if it can't be ended.
        """
        self._check_exit()
        worker = self.workers[number]
        if not self.wait_for_end(number):  # it has closed its connection, and runs on
            worker.process.kill()
        if not self.wait_for_end(number):
            raise WorkerError(
                f"worker {number} (pid {worker.process.pid()}) does not end although it was killed; it is stuck in the "
                "kernel, most likely on a dead file system"
            )
        while not worker.has_closed:
            before = len(worker.received)
            if len(self.receive(number).received) == before:
                break
        code = worker.process.ended()
        assert code is not None
        return code

    def kill(self) -> None:
        """Kills the workers, and leaves it to others to find them dead; for any thread."""
        if self.is_ours:
            for worker in list(self.workers):
                worker.process.kill()

    def end_all(self, grace_s: float) -> bool:
        """Ends all workers, in bounded time. Does nothing in a process forked off the owner.

        Args:
            grace_s: Seconds that they get to end by themselves before they are killed.

        Returns:
            False if one is stuck in the kernel, and may still write into shared memory.
        """
        if self._is_closed or not self.is_ours:
            return True
        for worker in self.workers:
            worker.connection.close()  # idle workers end at once, busy ones when their watchdog sees it
        left = self._end_processes(grace_s)
        self._is_closed = True  # only now: if this is interrupted, it is done again
        return not left

    def _end_processes(self, grace_s: float) -> list[Process]:
        """Ends all workers, many stuck ones as fast as one; returns those that can't be ended."""
        left = wait_for([worker.process for worker in self.workers], grace_s)
        for process in left:
            process.kill()
        return wait_for(left, END_S)

    def end_at_exit(self) -> None:
        """Ends all workers at the interpreter's end, see Note [Workers at exit]."""
        if self._is_closed or not self.is_ours:
            return
        self._is_exiting = True
        for worker in self.workers:
            with contextlib.suppress(OSError):  # closed already
                worker.connection.shutdown(socket.SHUT_RDWR)
        self._end_processes(_EXIT_GRACE_S)

    def _check_exit(self) -> None:
        while self._is_exiting:
            if threading.current_thread() is threading.main_thread():
                raise WorkerError("the interpreter ends, and the workers have ended before it")
            time.sleep(1)

    def _flush(self, worker: Worker) -> None:
        while worker.unsent:
            data, descriptors, _ = worker.unsent[0]
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
            try:
                sent = worker.connection.sendmsg([data], rights, socket.MSG_DONTWAIT)
            except BlockingIOError:
                break
            except (BrokenPipeError, ConnectionResetError):
                worker.unsent.clear()  # it is dead, which the next look at it will find
                break
            if sent == len(data):
                worker.unsent.popleft()
            else:
                worker.unsent[0] = data[sent:], (), None
        self._poll.modify(worker.connection, select.POLLIN | (select.POLLOUT if worker.unsent else 0))


_live: weakref.WeakSet[Supervisor[Any]] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for supervisor in list(_live):
        supervisor.end_at_exit()


def check_owner(pid: int) -> None:
    """Refuses workers that another process started.

    Args:
        pid: The process that started them.

    Raises:
        WorkerError: if this is another one.
    """
    if pid != os.getpid():
        raise WorkerError(
            f"these workers are those of process {pid}, which this one was forked from, and so is the "
            "iterator; make one of its own here with iter(loader)"
        )
