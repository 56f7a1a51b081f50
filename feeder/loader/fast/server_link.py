"""A relay's connection to one server of the input service."""

from __future__ import annotations

import errno
import os
import select
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from feeder.service.frames import (
    HEARTBEAT_S,
    SERVER_LIMITS,
    Frame,
    Kind,
    ProtocolError,
    Receiver,
    Sender,
    is_here,
    local_name,
    whole,
)
from feeder.system.arrays import Size, Uint8s
from feeder.system.mapping import map_other_memory

SILENCE_S = 4 * HEARTBEAT_S
_CONNECT_S = 2.0
_MOST = 1 << 16  # cores, and parts of its credit
_MOST_TIMES = 10.0
_NEWEST = 0.1  # share of the last answer in the usual time

# Returns the buffers for a part's result by the link, the request's owner and the message; None drops it.
Place = Callable[["ServerLink", Any, dict[str, Any]], "Sequence[memoryview] | None"]


class ServerLink:
    """A connection, which is being made once this is: on the server's host to its Unix socket, see Note [Same host].

    Args:
        address: The server's host and port.
        hello: The message that introduces the job.
        work: The work, as JSON.
        place: See :data:`Place`.

    Attributes:
        credit: Number of parts that may be unanswered here; 0 until the work is accepted.
        cores: Number of its cores; 0 until it is known.
        sent: The requests that are unanswered, by number, each with its time. No request has the number of another, so
            that the answer to one that was taken back is never taken for that to a later one.
        usual_s: The time that an answer takes, lately; 0 before the first one.
        is_late: True while a part is late, and nothing was answered since. It is for the owner to set.
        memory: The server's memory on this host, uint8 [bytes], which can only be read; None on another host.
        refusal: The reason for which the server refused the job; empty for one that did not.
        lost: The reason for which the link is of no more use; empty while it is.
        heard_s: Time from which the server's silence counts.
    """

    def __init__(self, address: tuple[str, int], hello: Mapping[str, Any], work: bytes, place: Place) -> None:
        self.address = address
        self.credit = self.cores = 0
        self.sent: dict[int, tuple[Any, float]] = {}
        self.usual_s = 0.0
        self.is_late = False
        self.memory: Uint8s | None = None
        self._next = 0
        self.refusal = self.lost = ""
        self._work = work
        self._place = place
        self._receiving: int | None = None  # the request whose payload comes

        self.connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.connection.setblocking(False)
        name = local_name(str(hello.get("token")), address[1])
        # A server on another host may have the same port.
        self._is_local = self._is_connected = is_here(address[0]) and self.connection.connect_ex(name) == 0
        if not self._is_local:
            self.connection.close()
            self._connect(address)

        self._receiver = Receiver(self.connection, SERVER_LIMITS, self._buffers, takes_descriptors=self._is_local)
        self._sender = Sender(self.connection)
        self._sender.add(Kind.HELLO, hello)
        self._ends = select.poll()
        self._ends.register(self.connection, select.POLLRDHUP)
        self.heard_s = time.monotonic()

    def _connect(self, address: tuple[str, int]) -> None:
        """Begins to connect by TCP."""
        family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self.connection = socket.socket(family, socket.SOCK_STREAM)
        self.connection.setblocking(False)
        self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            code = self.connection.connect_ex(address)
        except OSError as error:  # a name that nobody knows
            code = error.errno or errno.EHOSTUNREACH
        if code not in (0, errno.EINPROGRESS):
            self.lost = f"can't be reached: {os.strerror(code)}"

    @property
    def is_ready(self) -> bool:
        """True if it takes another part."""
        return not (self.lost or self.is_late) and len(self.sent) < self.credit

    @property
    def load(self) -> tuple[float, float]:
        """The share of its credit that is in use, and the time that it takes: the smaller, the sooner it answers."""
        return len(self.sent) / max(1, self.credit), self.usual_s

    def events(self) -> int:
        """Returns what to poll the socket for."""
        return select.POLLIN | (select.POLLOUT if self._sender.unsent_bytes or not self._is_connected else 0)

    def ask(self, owner: Any, epoch: int, numbers: Sequence[memoryview], size: Size | None = None) -> int:
        """Asks for a part, with the next :meth:`flush`; returns the request's number.

        Args:
            owner: Anything, which comes back with the answer.
            epoch: The epoch that the augmentation is drawn for.
            numbers: Its positions, ids and repeats, int64 [N] each, as bytes; copied.
            size: (height, width) of its batch's images; None: that of the recipe.
        """
        request, self._next = self._next, self._next + 1
        self.sent[request] = owner, time.monotonic()
        data = memoryview(b"".join(numbers))
        message = {"number": request, "epoch": epoch} | ({} if size is None else {"size": size})
        self._sender.add(Kind.PART, message, [data])
        return request

    def cancel(self, request: int) -> None:
        """Cancels a request: nothing of its answer is written any more."""
        del self.sent[request]
        self.is_late = self.is_late and bool(self.sent)
        if self._receiving == request:
            self._receiver.drop_payload()
        self._sender.add(Kind.CANCEL, {"number": request})

    def taken(self, request: int) -> None:
        """Tells the server that a result in its memory is not needed any more."""
        self._sender.add(Kind.TAKEN, {"number": request})

    def is_open(self) -> bool:
        """Returns True unless the server has ended the connection: its memory has stayed as it was."""
        return not self.lost and not self._ends.poll(0)

    def serve(self, events: int) -> list[tuple[int, Any, Frame]]:
        """Receives and sends what there is; returns whole answers to parts: request, owner, frame. Whatever is wrong
        ends the link."""
        found: list[tuple[int, Any, Frame]] = []

        if not self._is_connected and events & (select.POLLOUT | select.POLLERR | select.POLLHUP):
            code = self.connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if code:
                self.lost = f"can't be reached: {os.strerror(code)}"
                return []
            self._is_connected = True
            self.heard_s = time.monotonic()

        try:
            if events & ~select.POLLOUT and self._is_connected:
                for frame in self._receiver.frames():
                    self.heard_s = time.monotonic()
                    if frame.kind in (Kind.RESULT, Kind.FAILED):
                        found += self._answered(frame)
                    else:
                        self._take(frame.kind, frame.message)
                if self._receiver.is_midway:
                    self.heard_s = time.monotonic()
        except (ProtocolError, KeyError, TypeError, ValueError) as error:
            self.lost = self.lost or f"answered what is none of the protocol: {error}"
        except OSError as error:
            self.lost = self.lost or f"is gone: {error}"

        self.flush()
        return found

    def tick(self) -> None:
        """Sends a heartbeat; ends the link if the server is silent. To be called every 250 ms."""
        silent_s = time.monotonic() - self.heard_s
        if not self._is_connected:
            if silent_s > _CONNECT_S:
                self.lost = "can't be reached"
            return
        if silent_s > SILENCE_S:
            self.lost = f"is silent for {silent_s:.1f} s"
        elif not self._sender.unsent_bytes:
            self._sender.add(Kind.HEARTBEAT, {})
            self.flush()

    def flush(self) -> None:
        """Sends what fits."""
        if self._is_connected and not self.lost and self._sender.unsent_bytes:
            try:
                self._sender.flush()
            except ConnectionError:
                pass  # the next read finds it, after the server's last words, such as a refusal
            except OSError as error:
                self.lost = f"is gone: {error}"

    def close(self) -> None:
        """Closes the socket, and lets go of the server's memory."""
        self._close_descriptors()
        self.connection.close()
        self.memory = None  # the link and its receiver keep each other until a garbage collection

    def _close_descriptors(self) -> None:
        while self._receiver.descriptors:
            os.close(self._receiver.descriptors.pop())

    def _answered(self, frame: Frame) -> list[tuple[int, Any, Frame]]:
        self._receiving = None
        request = frame.message["number"]
        if type(request) is not int:
            raise ProtocolError("an answer to nothing")
        if request not in self.sent:  # it was taken back
            if frame.kind == Kind.RESULT and self._is_local:
                self.taken(request)
            return []
        owner, sent_s = self.sent.pop(request)
        self.is_late = False
        spent_s = time.monotonic() - sent_s
        if self.usual_s:
            spent_s = min(spent_s, _MOST_TIMES * self.usual_s)  # one that hung says little about others
        self.usual_s += (spent_s - self.usual_s) * (_NEWEST if self.usual_s else 1.0)
        return [(request, owner, frame)]

    def _take(self, kind: Kind, message: dict[str, Any]) -> None:
        if kind == Kind.WELCOME:
            self.cores = whole(message["cores"], _MOST)
            if self._is_local:
                self._take_memory(message)
            self._sender.add(Kind.WORK, {}, [memoryview(self._work)])
        elif kind == Kind.REFUSED:
            self.refusal = str(message["reason"])[:2000]
            self.lost = f"refuses this job: {self.refusal}"
        elif "credit" in message and (self.credit or kind == Kind.ACCEPTED):
            self.credit = whole(message["credit"], _MOST)

    def _take_memory(self, message: dict[str, Any]) -> None:
        if not self._receiver.descriptors:
            raise ProtocolError("no memory")
        try:
            mapped = map_other_memory(self._receiver.descriptors[0], whole(message["memory_bytes"]))
        finally:
            self._close_descriptors()
        self.memory = np.frombuffer(mapped, np.uint8)

    def _buffers(self, kind: Kind, message: dict[str, Any], size_bytes: int) -> Sequence[memoryview] | None:
        request = message.get("number")
        if kind != Kind.RESULT or type(request) is not int or request not in self.sent:
            return None
        self._receiving = request
        return self._place(self, self.sent[request][0], message)
