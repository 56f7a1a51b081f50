"""Frames between a relay and a server of the input service: a head, JSON, and raw arrays. Nothing is ever unpickled.

Note [Frames]
    A frame is a head of 16 bytes (``fd``, the kind, the lengths of what follows), JSON, and a payload. Lengths are
    checked against the kind's limits before anything is allocated, and a client whose token is not known yet may send
    HELLO alone; JSON must be an object. Everything else that is wrong is found by who reads the message. A frame that
    is wrong ends its connection.

    A client says HELLO (token, versions) and is answered WELCOME, or REFUSED with the reason; then WORK, answered
    ACCEPTED or REFUSED; then PART as often as it likes within its credit, with the size of its images where batches
    differ in size, each answered by RESULT or FAILED with the part's number. CANCEL takes a part back, which may still
    be answered. STATUS is answered STATUS. Both sides send HEARTBEAT every 250 ms; the server's has the client's
    credit: the number of parts that it may have unanswered.

Note [Same host]
    A server listens on a Unix socket, too, whose name only those can tell who know the token. A client tries that one
    first: there WELCOME comes with a descriptor of the server's memory, which can only be read, and RESULT has places
    in it where it has bytes otherwise. The memory stays as it is until the client says TAKEN, or its connection ends; a
    client that was slow looks at its connection after it has copied. Where the socket is out of reach, as on another
    host or from another network namespace, it takes TCP.
    Over TCP sendmsg sends from the mapped memory. sendfile of its memfd saves the copy at the sender, but was measured
    to cost more CPU time at both ends together.
    The way by memory is there for the trials of a search: each further one on the server's host takes a hundredth of
    the first one's CPU time so, and a tenth over TCP (bench/results/service.json). It can't go by a path in /proc in
    place of the socket: the end of a TCP connection may be seen after the memory has been used again.
"""

from __future__ import annotations

import array
import contextlib
import enum
import functools
import hashlib
import itertools
import json
import socket
import struct
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

HEARTBEAT_S = 0.25
_PROTOCOL = 4
_MAGIC = b"fd"
HEAD = struct.Struct("<2sBxIQ")  # magic, kind, bytes of JSON, bytes of the payload
_SCRATCH_BYTES = 1 << 16
_SMALL, _TEXT = 1 << 12, 1 << 16
MOST_WORK_BYTES = 32 << 20
_MOST_RESULT_BYTES = 1 << 32
_MOST_ROWS_BYTES = 24 << 16
_GATHERED = 16  # buffers that are sent at a time
_ONE_DESCRIPTOR = socket.CMSG_LEN(array.array("i").itemsize)


class ProtocolError(Exception):
    """A frame that is none; its connection has to end."""


class Kind(enum.IntEnum):
    """The kind of a frame; see Note [Frames]."""

    HELLO = 1
    WELCOME = 2
    REFUSED = 3
    WORK = 4
    ACCEPTED = 5
    PART = 6
    RESULT = 7
    FAILED = 8
    CANCEL = 9
    HEARTBEAT = 10
    STATUS = 11
    TAKEN = 12


# Most bytes of JSON and of the payload, by kind; other kinds are refused.
Limits = Mapping[int, tuple[int, int]]

CLIENT_LIMITS: Limits = {  # what a client may send
    Kind.HELLO: (_SMALL, 0),
    Kind.WORK: (_SMALL, MOST_WORK_BYTES),
    Kind.PART: (_SMALL, _MOST_ROWS_BYTES),
    Kind.CANCEL: (_SMALL, 0),
    Kind.TAKEN: (_SMALL, 0),
    Kind.HEARTBEAT: (_SMALL, 0),
    Kind.STATUS: (_SMALL, 0),
}
UNAUTHENTICATED_LIMITS: Limits = {Kind.HELLO: CLIENT_LIMITS[Kind.HELLO]}  # what a client may send before the token
SERVER_LIMITS: Limits = {  # what a server may send
    Kind.WELCOME: (_SMALL, 0),
    Kind.REFUSED: (_TEXT, 0),
    Kind.ACCEPTED: (_SMALL, 0),
    Kind.RESULT: (_TEXT, _MOST_RESULT_BYTES),
    Kind.FAILED: (_TEXT, 0),
    Kind.HEARTBEAT: (_SMALL, 0),
    Kind.STATUS: (1 << 20, 0),
}


class Frame(NamedTuple):
    """A whole frame.

    Attributes:
        kind: Its kind.
        message: Its JSON.
        payload: The buffers that hold its payload; empty if that was dropped.
    """

    kind: Kind
    message: dict[str, Any]
    payload: list[memoryview]


@functools.cache
def peer_versions() -> Mapping[str, Any]:
    """Returns the versions that both sides must have: of this protocol, and of all that decides about pixels."""
    from feeder.shard.write.attempt import writer_versions  # processes that make parts do not need it

    return {**writer_versions(), "protocol": _PROTOCOL}


def local_name(token: str, port: int) -> str:
    """Returns the name of the Unix socket of a server with that TCP port, see Note [Same host]."""
    return f"\0feeder-{hashlib.blake2b(f'{port} {token}'.encode(), digest_size=16).hexdigest()}"


def is_here(host: str) -> bool:
    """Returns True if an address is one of this host's."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.bind((host, 0))
        return True
    return False


def whole(value: Any, most: int = (1 << 62) - 1) -> int:
    """Returns a number of a message.

    Raises:
        ProtocolError: if it is none, or more than ``most``.
    """
    if type(value) is not int or not 0 <= value <= most:
        raise ProtocolError(f"expected a number, got {value!r}")
    return value


def pack_frame(kind: Kind, message: Mapping[str, Any], payload_bytes: int = 0) -> bytes:
    """Returns head and JSON of a frame, which its payload of so many bytes is to follow."""
    data = json.dumps(message, separators=(",", ":")).encode()
    return HEAD.pack(_MAGIC, kind, len(data), payload_bytes) + data


class Receiver:
    """Takes frames off a socket that does not block.

    Args:
        connection: The socket.
        limits: The kinds that may come, and how large they may be.
        place: Returns the buffers that a frame's payload goes to, by kind, message and bytes; they take exactly so
            many. None drops the payload. By default new memory.
        takes_descriptors: True to take descriptors that come with frames, on a Unix socket.

    Attributes:
        limits: As given; others count from the next frame on.
        is_midway: True while a frame has begun and is not whole.
        descriptors: Descriptors that have come, for the caller to take out and close.
    """

    def __init__(
        self,
        connection: socket.socket,
        limits: Limits,
        place: Callable[[Kind, dict[str, Any], int], Sequence[memoryview] | None] | None = None,
        *,
        takes_descriptors: bool = False,
    ) -> None:
        self._connection = connection
        self.limits = limits
        self._takes_descriptors = takes_descriptors
        self.descriptors: list[int] = []
        self.is_midway = False
        self._place = place or (lambda kind, message, size_bytes: [memoryview(bytearray(size_bytes))])
        self._todo: deque[memoryview] = deque()  # the buffers that are being filled
        self._payload: list[memoryview] = []
        self._dropped = 0  # bytes that are to be received and dropped
        self._steps = self._parse()

    def drop_payload(self) -> None:
        """Drops the rest of the payload that is being received: its buffers are not touched again."""
        if self._payload:
            self._dropped += sum(len(each) for each in self._todo)
            self._todo.clear()
            self._payload = []

    def frames(self, most: int = 64) -> Iterator[Frame]:
        """Yields the frames that are whole, as far as bytes are there.

        Args:
            most: Number of frames after which others get their turn.

        Raises:
            ConnectionError: if the peer has closed the connection.
            ProtocolError: for a frame that is none.
        """
        while most > 0:
            while self._todo or self._dropped:
                if not self._receive():
                    return
            frame = next(self._steps)
            if frame is not None:
                most -= 1
                yield frame

    def _receive(self) -> bool:
        """Receives some bytes; returns False if there are none now."""
        buffer = self._todo[0] if self._todo else memoryview(bytearray(min(self._dropped, _SCRATCH_BYTES)))
        try:
            count = self._received(buffer) if self._takes_descriptors else self._connection.recv_into(buffer)
        except (BlockingIOError, InterruptedError):
            return False
        if not count:
            raise ConnectionError("the connection was closed")
        self.is_midway = True
        if not self._todo:
            self._dropped -= count
        elif count == len(buffer):
            self._todo.popleft()
        else:
            self._todo[0] = buffer[count:]
        return True

    def _received(self, buffer: memoryview) -> int:
        count, further, _, _ = self._connection.recvmsg_into([buffer], _ONE_DESCRIPTOR)
        for level, kind, data in further:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                self.descriptors += array.array("i", data)
        return count

    def _parse(self) -> Iterator[Frame | None]:
        """Yields None whenever bytes are to be received, which it goes on with, and each frame that is whole."""
        while True:
            head = self._awaited(HEAD.size)
            yield None

            magic, number, json_bytes, payload_bytes = HEAD.unpack(head)
            most = self.limits.get(number)
            if magic != _MAGIC or most is None or json_bytes > most[0] or payload_bytes > most[1]:
                raise ProtocolError(f"a frame of kind {number} and {json_bytes} + {payload_bytes} bytes")
            kind, text = Kind(number), self._awaited(json_bytes)
            yield None

            try:
                message = json.loads(text)
            except (ValueError, RecursionError):
                raise ProtocolError("a frame without JSON") from None
            if not isinstance(message, dict):
                raise ProtocolError("a frame without an object")

            if payload_bytes:
                self._await_payload(self._place(kind, message, payload_bytes), payload_bytes)
                yield None

            self.is_midway = False
            yield Frame(kind, message, self._payload)
            self._payload = []

    def _awaited(self, size_bytes: int) -> bytearray:
        """Returns memory that so many bytes will be received into."""
        data = bytearray(size_bytes)
        if size_bytes:
            self._todo.append(memoryview(data))
        return data

    def _await_payload(self, buffers: Sequence[memoryview] | None, size_bytes: int) -> None:
        if buffers is None:
            self._dropped = size_bytes
            return
        if sum(len(each) for each in buffers) != size_bytes:
            raise ProtocolError(f"a payload of {size_bytes} bytes")
        self._payload = list(buffers)
        self._todo.extend(each for each in buffers if len(each))


class Sender:
    """Sends frames on a socket that does not block, and keeps what does not fit.

    Args:
        connection: The socket.

    Attributes:
        unsent_bytes: Bytes that are kept.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._unsent: deque[tuple[memoryview, Callable[[], object] | None]] = deque()
        self.unsent_bytes = 0

    def add(
        self,
        kind: Kind,
        message: Mapping[str, Any],
        payload: Sequence[memoryview] = (),
        then: Callable[[], object] | None = None,
    ) -> None:
        """Adds a frame to what is to be sent.

        Args:
            kind, message, payload: The frame; the buffers must stay as they are until they are sent.
            then: Called once all of it was sent.
        """
        size_bytes = sum(len(each) for each in payload)
        data = [memoryview(pack_frame(kind, message, size_bytes)), *(each for each in payload if len(each))]
        self._unsent.extend((each, then if k == len(data) - 1 else None) for k, each in enumerate(data))
        self.unsent_bytes += len(data[0]) + size_bytes

    def send_now(self, kind: Kind, message: Mapping[str, Any], descriptor: int) -> None:
        """Sends a small frame with a descriptor, on a Unix socket.

        Raises:
            OSError: if it can't be sent at once.
        """
        data = pack_frame(kind, message)
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [descriptor]))]
        self.flush()
        if self._unsent or self._connection.sendmsg([data], rights, socket.MSG_NOSIGNAL) < len(data):
            raise ConnectionError("the connection takes nothing")

    def flush(self) -> int:
        """Sends what fits; returns the number of bytes.

        Raises:
            ConnectionError: if the peer has closed the connection.
        """
        done = 0
        while self._unsent:
            data = [each for each, _ in itertools.islice(self._unsent, _GATHERED)]
            try:
                count = self._connection.sendmsg(data, (), socket.MSG_NOSIGNAL)
            except (BlockingIOError, InterruptedError):
                break
            done += count
            while count >= len(self._unsent[0][0]):
                each, then = self._unsent.popleft()
                count -= len(each)
                if then is not None:
                    then()
                if not self._unsent:
                    break
            if count:
                each, then = self._unsent[0]
                self._unsent[0] = each[count:], then
        self.unsent_bytes -= done
        return done
