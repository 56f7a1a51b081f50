"""A client of the input service that keeps the protocol's rules, with requests of every kind in random order."""

from __future__ import annotations

import contextlib
import os
import random
import socket
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from feeder.service.frames import Frame, Kind, pack_frame
from feeder.system.mapping import map_other_memory
from tests.support.service import LocalPeer, Peer

__all__ = ["Session", "read_to_end", "request"]

_MOST_OWED = 22  # parts that a server of one core owes a client at most
_SAMPLES = 64

Key = tuple[str, str]


def request(kind: int, message: Any, payload: bytes = b"") -> bytes:
    """A frame with its payload; any JSON will do."""
    return pack_frame(Kind(kind), message, len(payload)) + payload


class Session:
    """A connection that has given the token, and whose work was accepted.

    Args:
        peer: The connection.
        name: Name of its work.
        sizes: Sizes of images that its parts may have; None alone if they have the recipe's.
        draw: Decides about all that it sends.
        arrays: What is known of the arrays of parts; it is added to, and a part that differs from it fails the test.

    Attributes:
        sent: Number of frames that were sent, by kind.
        last: The last frame that was drawn.
        held: Numbers of parts that lie in the server's memory.
    """

    def __init__(
        self,
        peer: Peer,
        name: str,
        sizes: Sequence[Sequence[int] | None],
        draw: random.Random,
        arrays: dict[Key, bytes],
    ) -> None:
        self.peer, self.is_local = peer, isinstance(peer, LocalPeer)
        self.sent: Counter[Kind] = Counter()
        self.last = b""
        self._name, self._sizes, self._draw, self._arrays = name, sizes, draw, arrays
        self._waits: dict[int, str] = {}  # by number: parts that are not answered yet
        self._cancelled: set[int] = set()
        self._asked = 0  # STATUS that are not answered yet
        self.held: list[int] = []
        self._memory = np.zeros(0, np.uint8)
        if isinstance(peer, LocalPeer):
            (descriptor,) = peer.descriptors
            self._memory = np.frombuffer(map_other_memory(descriptor, os.fstat(descriptor).st_size), np.uint8)

    def talk(self, count: int) -> None:
        """Sends so many frames and a STATUS, in pieces, and reads what is answered until the STATUS is.

        Raises:
            AssertionError: if the server ends the connection, or gives a part twice, unasked or with other content.
        """
        data = b"".join(self._next() for _ in range(count)) + self._free(Kind.STATUS)
        cuts = sorted(self._draw.randrange(len(data)) for _ in range(self._draw.randrange(3)))
        for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True):
            self.peer.connection.sendall(data[start:end])
        while self._asked:
            answer = self.peer.next()
            assert answer is not None, "the server has ended a connection that kept the rules"
            if answer.kind == Kind.STATUS:
                self._asked -= 1
            else:
                self._take(answer)
        for number in self._cancelled:  # what was answered before it was cancelled has come by now
            self._waits.pop(number, None)
        self._cancelled.clear()

    def part(self) -> bytes:
        """A request for a part that it may ask for."""
        draw = self._draw
        while True:
            numbers = self._numbers()
            message: dict[str, Any] = {"epoch": draw.choice((0, 0, 0, 1, draw.randrange(1 << 32)))}
            if (size := draw.choice(self._sizes)) is not None:
                message["size"] = size
            key = f"{message}{numbers.hex()}"
            if key not in self._waits.values():
                break
        number = draw.choice((len(self._waits), draw.randrange(1 << 62)))
        while number in self._waits or number in self.held:
            number += 1
        self._waits[number] = key
        return request(Kind.PART, message | {"number": number}, numbers)

    def _next(self) -> bytes:
        kinds = [Kind.HEARTBEAT, Kind.CANCEL, Kind.STATUS, Kind.PART, Kind.PART, Kind.PART]
        kind = self._draw.choice([*kinds, Kind.TAKEN] if self.held else kinds)
        if kind == Kind.PART and len(self._waits) + len(self.held) >= _MOST_OWED:
            kind = Kind.TAKEN if self.held else Kind.CANCEL
        if kind == Kind.PART:
            self.last = self.part()
        elif kind == Kind.TAKEN:
            self.last = request(kind, {"number": self.held.pop(self._draw.randrange(len(self.held)))})
        elif kind == Kind.CANCEL:
            waits = [*self._waits] if self._draw.random() < 0.5 else []
            number = self._draw.choice(waits or [self._draw.randrange(1 << 62)])
            self._cancelled.add(number)
            self.last = request(kind, {"number": number})
        else:
            return self._free(kind)
        self.sent[kind] += 1
        return self.last

    def _free(self, kind: Kind) -> bytes:
        """HEARTBEAT or STATUS, with any object."""
        self._asked += kind == Kind.STATUS
        self.sent[kind] += 1
        values: tuple[Any, ...] = (None, -1, 1e300, "\ud800", [[]], {"number": {}}, "x" * self._draw.randrange(3000))
        self.last = request(kind, {self._draw.choice(("", "n", "number")): self._draw.choice(values)})
        return self.last

    def _numbers(self) -> bytes:
        draw = self._draw
        count = draw.choice((1, 4, 4, 8))
        if draw.random() < 0.05:
            return draw.randbytes(24 * count)  # samples that there are not
        first = draw.randrange(_SAMPLES - count)
        ids = np.arange(first, first + count)
        return np.stack([ids, ids, np.zeros(count, int)]).astype(np.int64).tobytes()

    def _take(self, answer: Frame) -> None:
        assert answer.kind in (Kind.RESULT, Kind.FAILED), answer
        number, payload = answer.message["number"], b"".join(answer.payload)
        key = self._waits.pop(number)
        if answer.kind == Kind.FAILED:
            return
        arrays = payload[answer.message["report"] :]
        if self.is_local:
            self.held.append(number)
            arrays = b"".join(self._memory[at : at + size].tobytes() for at, size in answer.message["places"])
        assert self._arrays.setdefault((self._name, key), arrays) == arrays


def read_to_end(connection: socket.socket) -> bytes:
    """Reads until the other side has ended a connection."""
    found = bytearray()
    with contextlib.suppress(ConnectionError):
        while data := connection.recv(1 << 16):
            found += data
    return bytes(found)
