"""A small process that forks workers on demand: safe after CUDA is initialized, and quick, as it imports no torch.

Note [Lives of the processes]
    The server is a child of the trainer and the parent of the workers. It ends, and its workers with it, when the
    trainer's control socket closes or the server's parent changes, whichever way the trainer ended; workers ask the
    kernel to kill them when the server dies. The server never imports the caller's ``__main__``, so a training script
    needs no ``if __name__ == "__main__"`` guard.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from feeder.errors import WorkerError
from feeder.loader.workers.channel import handing_over
from feeder.system.child_python import child_python

_FAILED = "the process that starts workers has ended before it started one; what it printed says why"

_PR_SET_PDEATHSIG = 1
_PARENT_CHECK_MS = 1000
_MESSAGE_BYTES = 4096
_END_S = 5.0
# One thread per worker: the math libraries would start one per core when they are imported.
_ONE_THREAD = dict.fromkeys(("MKL_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
_PID_S = 10.0  # longest wait for the process id of a worker that is being started


@dataclass(eq=False)
class Forked:
    """A worker of a fork server; see :class:`feeder.loader.workers.process.Process`.

    Args:
        server: The server.
        number: The worker's number there.
        started: Its process id, once the server has reported it.
        code: Its exit code, once the server has reported that.
    """

    server: ForkServer
    number: int
    started: int | None = None
    code: int | None = None

    def pid(self) -> int | None:
        """Returns the process id; None if the server does not get to start it.

        A worker may be at work before the server reports its process id: that report is waited for.
        """
        end = time.monotonic() + _PID_S
        while self.server.read() and self.started is None and time.monotonic() < end:
            self.server.await_report()
        return self.started

    def ended(self) -> int | None:
        if self.server.read() or self.code is not None:
            return self.code
        return self.server.process.returncode  # the kernel killed it together with the server

    def kill(self) -> None:
        self.server.kill(self.number)

    def failed_start(self, code: int) -> str | None:
        return _FAILED if self.server.failed else None


class ForkServer:
    """The trainer's side: starts workers and learns when they end.

    One server for a target serves the whole process; :meth:`shared` starts it on first use.

    Args:
        target: The workers' main function, called with the worker's socket: ``"module:function"``. The module is
            imported once, in the server; what it imports every worker has from its start.
    """

    _shared: dict[str, ForkServer] = {}  # noqa: RUF012
    _shared_lock = threading.Lock()

    def __init__(self, target: str) -> None:
        module, _, function = target.partition(":")
        code = (
            "import gc\n"
            "gc.disable()\n"  # looking for garbage takes 5 % of the imports' time, and there is none
            f"from {module} import {function} as main\n"
            "from feeder.loader.workers.fork_server import serve\n"
            "sys.path[:] = path\n"
            "serve(int(sys.argv[1]), main)"
        )
        with handing_over(socket.SOCK_SEQPACKET) as (mine, theirs):
            self.process = subprocess.Popen(
                child_python(code, str(theirs.fileno())),
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env={**os.environ, **_ONE_THREAD},
            )
        self._socket = mine
        self._pid = os.getpid()
        # Reentrant: a garbage collection may come anywhere, and end a pool.
        self._lock = threading.RLock()
        self._next = 0
        self._workers: weakref.WeakValueDictionary[int, Forked] = weakref.WeakValueDictionary()
        self._has_started = False

    @classmethod
    def shared(cls, target: str) -> ForkServer:
        """Returns this process's server for a target; a new one if there is none yet, or it died."""
        with cls._shared_lock:
            server = cls._shared.get(target)
            if server is None or server._pid != os.getpid() or not server.alive():
                if server is not None and server._pid == os.getpid():
                    server.close()
                cls._shared[target] = server = cls(target)
            return server

    @classmethod
    def _close_shared(cls) -> None:
        while cls._shared:
            cls._shared.popitem()[1].close()

    def alive(self) -> bool:
        """Returns True while the server runs."""
        return self.process.poll() is None

    def start(self, connection: socket.socket) -> Forked:
        """Starts a worker on its socket, with the present environment."""
        with _environment() as environ, self._lock:
            number = self._next
            self._next += 1
            worker = self._workers[number] = Forked(self, number)
            try:
                socket.send_fds(self._socket, [f"start {number}".encode()], [connection.fileno(), environ])
            except OSError as error:
                with contextlib.suppress(subprocess.TimeoutExpired):  # it closes its files before it has ended
                    self.process.wait(_END_S)
                if self.failed:
                    raise WorkerError(
                        f"no worker could start: exit code {self.process.returncode}; {_FAILED}"
                    ) from None
                raise WorkerError(f"the worker server is gone ({error}); iterate again to start a new one") from None
            return worker

    def kill(self, number: int) -> None:
        """Kills a worker that may be alive. Its end is reported as any other."""
        with self._lock, contextlib.suppress(OSError):
            self._socket.send(f"kill {number}".encode())

    @property
    def failed(self) -> bool:
        """True if the server has ended by itself before it started a worker."""
        code = self.process.poll()
        return code is not None and code >= 0 and not self._has_started

    def close(self) -> None:
        """Ends the server and all of its workers."""
        if self._pid != os.getpid():
            return
        self._socket.close()
        try:
            self.process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def read(self) -> bool:
        """Takes in the server's reports; returns True while it runs and may report more.

        Each is noted before it is taken off the socket: wherever this is interrupted or entered again, none is lost,
        and noting one twice does no harm.
        """
        if self._pid != os.getpid():  # the lock may be held by a thread that is not in this process
            return False
        is_alive = self.alive()  # first: it may report as its last
        with self._lock, contextlib.suppress(OSError):  # nothing there, or closed
            while message := self._socket.recv(_MESSAGE_BYTES, socket.MSG_DONTWAIT | socket.MSG_PEEK):
                self._note(message)
                taken = self._socket.recv(_MESSAGE_BYTES, socket.MSG_DONTWAIT)
                if taken and taken != message:
                    self._note(taken)
        return is_alive

    def await_report(self) -> None:
        """Waits until there is something to read, for a second at most."""
        select.select([self._socket], [], [], _PARENT_CHECK_MS / 1000)

    def _note(self, message: bytes) -> None:
        event, number, value = message.decode().split()
        worker = self._workers.get(int(number))  # None once nobody asks about it any more
        if event == "started":
            self._has_started = True
        if worker is not None and event == "started":
            worker.started = int(value)
        elif worker is not None:
            worker.code = int(value)

    @classmethod
    def _forget_threads(cls) -> None:
        """Gives a forked child its own lock: the thread that held the parent's is not there."""
        cls._shared_lock = threading.Lock()


os.register_at_fork(after_in_child=ForkServer._forget_threads)
atexit.register(ForkServer._close_shared)


def fork(target: str, connection: socket.socket) -> Forked:
    """Starts a worker of this process's server for a target.

    Args:
        target: See :class:`ForkServer`.
        connection: The worker's socket.
    """
    try:
        return ForkServer.shared(target).start(connection)
    except WorkerError:  # the server died just now
        return ForkServer.shared(target).start(connection)


@contextlib.contextmanager
def _environment() -> Iterator[int]:
    """The environment of workers, JSON in memory without a name: it may have credentials that were set after the server
    was started. Yields its descriptor."""
    descriptor = os.memfd_create("feeder", os.MFD_CLOEXEC)
    try:
        os.write(descriptor, json.dumps({**os.environ, **_ONE_THREAD}).encode())
        os.lseek(descriptor, 0, os.SEEK_SET)
        yield descriptor
    finally:
        os.close(descriptor)


def serve(descriptor: int, worker_main: Callable[[socket.socket], object]) -> None:
    """The server's main function: forks workers until the trainer is gone.

    Args:
        descriptor: The control socket's.
        worker_main: The workers' main function.
    """
    parent = os.getppid()

    # Ctrl-C goes to every process of the terminal's group: the trainer decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    control = socket.socket(fileno=descriptor)
    os.set_inheritable(descriptor, False)

    gc.freeze()  # or a worker's first collection would copy the pages of all that was imported
    gc.enable()

    wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)

    children: dict[int, int] = {}
    poll = select.poll()
    poll.register(control, select.POLLIN)
    poll.register(wake_read, select.POLLIN)

    with contextlib.suppress(ConnectionError, EOFError):  # the trainer is gone
        while True:
            ready = dict(poll.poll(_PARENT_CHECK_MS))
            if os.getppid() != parent:
                break
            if wake_read in ready:
                with contextlib.suppress(BlockingIOError):
                    os.read(wake_read, 4096)
            _report_ended(control, children)
            if control.fileno() in ready:
                _obey(control, children, [wake_read, wake_write], worker_main)

    for pid in children:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    os._exit(0)


def _obey(
    control: socket.socket,
    children: dict[int, int],
    descriptors: Sequence[int],
    worker_main: Callable[[socket.socket], object],
) -> None:
    """Receives a message and carries it out; raises ConnectionError or EOFError when the trainer is gone."""
    message, received, _, _ = socket.recv_fds(control, _MESSAGE_BYTES, 2)
    if not message:
        raise EOFError

    command, number = message.decode().split()
    if command == "kill":
        for pid, child in children.items():
            if child == int(number):
                os.kill(pid, signal.SIGKILL)
        return

    pid = os.fork()
    if pid == 0:
        _become_worker(control, received[0], received[1], descriptors, worker_main)
    for descriptor in received:
        os.close(descriptor)
    children[pid] = int(number)
    control.send(f"started {number} {pid}".encode())


def _report_ended(control: socket.socket, children: dict[int, int]) -> None:
    while children:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            break
        number = children.pop(pid)
        control.send(f"ended {number} {os.waitstatus_to_exitcode(status)}".encode())


def _become_worker(
    control: socket.socket,
    connection: int,
    environ: int,
    descriptors: Sequence[int],
    worker_main: Callable[[socket.socket], object],
) -> None:
    """Never returns."""
    code = 1
    try:
        server = os.getppid()
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != server:
            os._exit(0)

        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        control.close()
        for descriptor in descriptors:
            os.close(descriptor)

        with open(environ, "rb") as file:
            found = json.load(file)
        for name in os.environ.keys() - found.keys():
            del os.environ[name]
        os.environ.update(found)

        worker_main(socket.socket(fileno=connection))
        code = 0
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(code)
