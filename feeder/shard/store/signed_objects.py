"""Starts of objects, or whole small ones, by signed URLs: many requests in flight in one thread, straight from the
sockets into memory.

Of a small object the request takes far more CPU time than the bytes, by obstore as by http.client. As in Note [Two
clients], here is only what goes well: for whatever else a store answers, the caller has another way, which tells the
faults apart. Nothing here needs obstore, so processes may be forked off one that has used it.
"""

from __future__ import annotations

import contextlib
import select
import ssl
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np

from feeder.shard.store.client import IDLE_S, REQUEST_S, STALL_S
from feeder.shard.store.http_answers import Connection, connection_to
from feeder.shard.store.store import quoted_etag

_AT_ONCE = 32  # requests, each by a connection
_HEAD_BYTES = 1 << 14  # the most of an answer's head
LOOK_S = 1.0


class Signed(NamedTuple):
    """The start of an object.

    Attributes:
        target: Path and query of its signed URL.
        length: Number of bytes that are wanted, from 1 to all.
        size_bytes: The object's size.
        etag: The ETag that it must have; empty: any.
    """

    target: str
    length: int
    size_bytes: int
    etag: str


class SignedObjects:
    """Gets objects; for one thread of one process.

    Args:
        heartbeat: Called every second of a wait.
    """

    def __init__(self, heartbeat: Callable[[], object] = lambda: None) -> None:
        self._heartbeat = heartbeat
        self._idle: deque[tuple[float, tuple[str, str], Connection]] = deque()

    def get(self, scheme: str, netloc: str, wants: Sequence[Signed], timeout_s: float) -> list[bytes | None]:
        """Asks for objects.

        Args:
            scheme, netloc: Of their URLs.
            wants: The objects.
            timeout_s: Seconds that a request may take, 60 at most.

        Returns:
            The bytes of each; None if they did not come as asked for.
        """
        found: list[bytes | None] = [None] * len(wants)
        rows = iter(range(len(wants)))
        busy: dict[int, _Answer] = {}
        timeout_s = min(REQUEST_S, timeout_s)
        with contextlib.closing(select.epoll()) as poll:

            def go_on(descriptor: int) -> None:
                """Receives what has come by a connection; after the end of an answer, sends its next request."""
                answer = busy[descriptor]
                try:
                    if answer.wanted is not None:
                        if not answer.receive():
                            return
                        found[answer.row] = answer.body
                    if not answer.is_last and (row := next(rows, None)) is not None:
                        answer.ask(row, wants[row], time.monotonic() + timeout_s)
                        return
                except (OSError, ValueError):
                    answer.is_last = True
                end(descriptor)

            def end(descriptor: int) -> None:
                """Leaves a connection to the next call, if it is good for one."""
                answer = busy.pop(descriptor)
                poll.unregister(descriptor)
                if answer.is_last:
                    answer.connection.close()
                else:
                    self._idle.append((time.monotonic(), (scheme, netloc), answer.connection))

            try:
                for connection in self._connections(scheme, netloc, min(len(wants), _AT_ONCE)):
                    descriptor = connection.sock.fileno()
                    poll.register(descriptor, select.EPOLLIN)
                    busy[descriptor] = _Answer(connection, netloc)
                    go_on(descriptor)
                self._wait(poll, busy, go_on, end)
            finally:
                for answer in busy.values():
                    answer.connection.close()
        return found

    def _wait(
        self,
        poll: select.epoll,
        busy: Mapping[int, _Answer],
        go_on: Callable[[int], object],
        end: Callable[[int], object],
    ) -> None:
        """Handles connections as bytes come, until none is busy; ends those whose bytes do not come in time."""
        moved = looked = time.monotonic()
        while busy:
            events = poll.poll(LOOK_S)
            for descriptor, _ in events:
                go_on(descriptor)

            now = time.monotonic()
            moved = now if events else moved
            if now - looked >= LOOK_S:
                looked = now
                self._heartbeat()
                for descriptor in [each for each, answer in busy.items() if now > min(answer.until, moved + STALL_S)]:
                    busy[descriptor].is_last = True
                    end(descriptor)

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connections."""
        while self._idle:
            self._idle.pop()[2].close()

    def _connections(self, scheme: str, netloc: str, count: int) -> Iterator[Connection]:
        """Yields connections that wait for a request, those that are there first; fewer if the store takes no more."""
        oldest = time.monotonic() - IDLE_S
        while self._idle and count:
            used, place, connection = self._idle.pop()
            poll = select.poll()
            poll.register(connection.sock, select.POLLIN)
            # Nothing was asked for, so the server has closed one by which something came.
            if used < oldest or place != (scheme, netloc) or poll.poll(0):
                connection.close()
            else:
                count -= 1
                yield connection

        def connect(_: int) -> Connection | None:
            connection = connection_to(scheme, netloc)
            try:
                connection.connect()
                connection.sock.setblocking(False)
            except OSError:
                connection.close()
                return None
            return connection

        if count:
            with ThreadPoolExecutor(count) as pool:
                yield from filter(None, pool.map(connect, range(count)))


class _Answer:
    """The answers that come by a connection, one after the other.

    Args:
        connection: The connection.
        host: Its host.

    Attributes:
        connection: As given.
        is_last: True if the connection is of no use any more.
        wanted, row, until: The object that was asked for, its number, and the time at which it must have come; None at
            first.
    """

    is_last = False
    wanted: Signed | None = None
    row, until = -1, 0.0

    def __init__(self, connection: Connection, host: str) -> None:
        self.connection = connection
        self._host = host
        self._memory = memoryview(b"")

    @property
    def body(self) -> bytes:
        """The object's bytes, once they have come."""
        return bytes(self._memory[self._start : self._end])

    def ask(self, row: int, wanted: Signed, until: float) -> None:
        """Sends a request; OSError if the connection does not take it."""
        self.wanted = wanted
        self.row = row
        self.until = until
        if len(self._memory) < _HEAD_BYTES + wanted.length:
            self._memory = np.empty(_HEAD_BYTES + wanted.length, np.uint8).data
        self._came = self._start = self._end = 0  # the last two of the body, once its head has come

        data = (
            f"GET {wanted.target} HTTP/1.1\r\nHost: {self._host}\r\nRange: bytes=0-{wanted.length - 1}\r\n"
            f"Accept-Encoding: identity\r\n" + (f"If-Match: {wanted.etag}\r\n" if wanted.etag else "") + "\r\n"
        ).encode("latin-1")
        if self.connection.sock.send(data) != len(data):
            raise ConnectionError

    def receive(self) -> bool:
        """Receives what has come; returns True once the answer is whole.

        Raises:
            OSError, ValueError: if the connection breaks, or the answer is another one than was asked for.
        """
        while not self._end or self._came < self._end:
            try:
                got = self.connection.sock.recv_into(self._memory[self._came :])
            except (BlockingIOError, ssl.SSLWantReadError):
                return False
            if not got:
                raise ConnectionError
            self._came += got
            if not self._end and (size := bytes(self._memory[: min(self._came, _HEAD_BYTES)]).find(b"\r\n\r\n")) >= 0:
                self._start = size + 4
                self._end = self._start + self._checked(bytes(self._memory[:size]))
        if self._came > self._end:
            raise ValueError
        return True

    def _checked(self, head: bytes) -> int:
        """Returns the length of an answer's body; ValueError if that is not what was asked for."""
        assert self.wanted is not None
        status, *lines = head.decode("latin-1").split("\r\n")
        fields = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        _, length, size_bytes, etag = self.wanted
        is_right = status[:13] in ("HTTP/1.1 206 ", "HTTP/1.0 206 ") and "transfer-encoding" not in fields
        is_right &= fields.get("content-length") == str(length)
        is_right &= fields.get("content-range") == f"bytes 0-{length - 1}/{size_bytes}"
        # A server that does not know If-Match gives another ETag.
        if not is_right or (etag and quoted_etag(fields.get("etag")) not in ("", etag)):
            raise ValueError
        self.is_last = status.startswith("HTTP/1.0") or fields.get("connection", "").lower() == "close"
        return length
