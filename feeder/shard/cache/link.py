"""A client's connection to the fetcher of a mirror, which is started if none runs.

Note [Lives of fetchers]
    A mirror has one fetcher, whichever process started it. It holds a lock on the mirror's folder until it ends,
    however it ends, and listens on a socket in that folder. A client that finds nobody listening takes the lock and
    hands it to a new fetcher; one that finds the lock taken waits until that fetcher listens. So a fetcher that was
    killed is replaced by the next client that needs bytes, and a socket that it left behind does no harm.
    A fetcher ends when it has had no client for a while.
    A client says hello with a digest of its credentials. With others than the fetcher's it is refused while the fetcher
    has clients, so that no job's bytes come by the credentials of another one; a fetcher without clients ends for it.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import socket
import subprocess
import time
import weakref
from collections.abc import Callable
from typing import Any

from feeder import errors
from feeder.errors import FeederError, StoreError
from feeder.system.child_python import child_python
from feeder.system.warning import warn

LOCK, SOCKET, LOG = "fetcher.lock", "fetcher.socket", "fetcher.log"
MESSAGE_BYTES = 1 << 17  # within what a socket takes by default
_PAUSE_S = 0.02
_START_S = 60.0
_STARTS = 3  # fetchers in a row that may end before they listen
_HEARTBEAT_S = 1.0
_TAIL_BYTES = 2000
# The fetcher's. By default, glibc returns the memory of each piece to the kernel, which clears it for the next one.
# That takes a tenth of the fetcher's time.
ENVIRONMENT = {
    **dict.fromkeys(("MKL_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1"),
    "MALLOC_ARENA_MAX": "2",
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(64 << 20),
}


def socket_address(folder: int) -> str:
    """Returns the socket's address for a folder's descriptor: folders may have longer paths than sockets."""
    return f"/proc/self/fd/{folder}/{SOCKET}"


def lock_mirror(folder: str) -> int | None:
    """Takes the fetcher's lock of a mirror; returns its descriptor, or None if another process has it."""
    descriptor = os.open(os.path.join(folder, LOCK), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def has_hung_up(channel: socket.socket) -> bool:
    """Returns True once the other side of a connection has closed it; False if it is closed on this side."""
    poll = select.poll()
    with contextlib.suppress(ValueError):
        poll.register(channel, select.POLLHUP)
    return bool(poll.poll(0))


class Link:
    """A connection, for one thread of one process.

    Args:
        folder: The mirror's folder.
        options: The fetcher's options, for the case that it has to be started.
        timeout_s: Longest wait for an answer.
        target: The fetcher's main function, ``"module:function"``.
        heartbeat: Called every second of a wait.

    Raises:
        StoreError: if no fetcher can be reached.
    """

    def __init__(
        self, folder: str, options: dict[str, Any], timeout_s: float, target: str, heartbeat: Callable[[], object]
    ) -> None:
        self._folder = folder
        self._timeout_s = timeout_s
        self._heartbeat = heartbeat
        hello = {name: options[name] for name in ("cache_bytes", "identity", "timeout_s")}
        while True:
            self._socket = self._connect(target, options)
            # Not by __del__: of objects that are in a cycle the collector may take the socket first, with a warning.
            closing = weakref.finalize(self, self._socket.close)
            closing.atexit = False
            if not self.ask({"hello": hello}).get("ended"):
                return
            closing()  # it was that of a job with other credentials, which is over

    def send(self, message: dict[str, Any]) -> None:
        """Sends a message; raises ConnectionError if the fetcher has ended."""
        try:
            self._socket.send(json.dumps(message).encode())
        except ConnectionError:
            raise
        except OSError as error:
            raise ConnectionError(str(error)) from error

    def ask(self, message: dict[str, Any], heartbeat: Callable[[], object] = lambda: None) -> dict[str, Any]:
        """Sends a message and returns the answer.

        Args:
            message: The message.
            heartbeat: Called every second of the wait, after the connection's.

        Raises:
            ConnectionError: if the fetcher has ended.
            FeederError: as the fetcher raised it.
            StoreError: if it does not answer in time.
        """
        self.send(message)
        end = time.monotonic() + self._timeout_s

        while True:
            self._socket.settimeout(_HEARTBEAT_S)
            try:
                data = self._socket.recv(MESSAGE_BYTES)
                break
            except TimeoutError:
                self._heartbeat()
                heartbeat()
            except OSError as error:
                raise ConnectionError(str(error)) from error
            if time.monotonic() > end:
                raise StoreError(
                    f"{self._folder}: the fetcher of this folder did not answer for {self._timeout_s:g} s: another job "
                    f"may have it wait longer for the store; else its {LOG} may say why: end that process, and another "
                    "one is started"
                )

        if not data:
            raise ConnectionError("the fetcher has ended")
        answer: dict[str, Any] = json.loads(data)

        if "note" in answer:
            warn(answer.pop("note"))
        if "error" in answer:
            kind = getattr(errors, answer["error"], StoreError)
            raise kind(answer["text"]) if issubclass(kind, FeederError) else StoreError(answer["text"])

        return answer

    def is_gone(self) -> bool:
        """Returns True once the fetcher has ended."""
        return has_hung_up(self._socket)

    def close(self) -> None:
        """Closes the connection."""
        self._socket.close()

    def _connect(self, target: str, options: dict[str, Any]) -> socket.socket:
        folder = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        end, starts = time.monotonic() + _START_S, 0

        try:
            while True:
                channel = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                try:
                    channel.connect(socket_address(folder))
                    return channel
                except (FileNotFoundError, ConnectionError, BlockingIOError):
                    channel.close()
                except BaseException:
                    channel.close()
                    raise

                lock = lock_mirror(self._folder)
                if lock is not None:
                    starts += 1
                    try:
                        if starts > _STARTS:
                            raise StoreError(f"{self._folder}: no fetcher could be started; {self._log_tail()}")
                        self._start(lock, target, options)
                    finally:
                        os.close(lock)  # the fetcher has it too
                elif time.monotonic() > end:
                    raise StoreError(
                        f"{self._folder}: another process holds {LOCK}, but does not listen; if another machine shares "
                        "this folder, give each machine a cache_dir of its own"
                    )

                self._heartbeat()
                time.sleep(_PAUSE_S)
        except OSError as error:
            raise StoreError(
                f"{self._folder}: the cache can't be used: {error.strerror or error}; name another cache_dir"
            ) from error
        finally:
            os.close(folder)

    def _start(self, lock: int, target: str, options: dict[str, Any]) -> None:
        module, _, function = target.partition(":")
        code = (
            "import json\n"
            f"from {module} import {function} as main\n"
            "sys.path[:] = path\n"
            "main(sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3]))"
        )
        with open(os.path.join(self._folder, LOG), "wb") as log:
            process = subprocess.Popen(
                child_python(code, self._folder, str(lock), json.dumps(options)),
                pass_fds=[lock],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
                start_new_session=True,
                env={**os.environ, **ENVIRONMENT},
            )
        # It forks once, so that nobody has to wait for the fetcher's end.
        while process.poll() is None:
            self._heartbeat()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_HEARTBEAT_S)

    def _log_tail(self) -> str:
        try:
            with open(os.path.join(self._folder, LOG), "rb") as file:
                file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL_BYTES))
                text = file.read().decode(errors="replace").strip()
        except OSError:
            text = ""
        return f"its last words were: {text}" if text else "it left no message"
