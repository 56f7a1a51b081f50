"""A relay's connection to one server of the input service."""

from __future__ import annotations

import errno
import select
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from feeder.service.frames import BEAT_S, SERVER_LIMITS, Frame, Kind, ProtocolError, Receiver, Sender

__all__ = ["ServerLink"]

SILENCE_S = 4 * BEAT_S
_CONNECT_S = 2.0
_OPEN_S = 60.0  # for the sets on the other side to be opened


class ServerLink:
    """A connection, which is being made once this is.

    Args:
        address: The server's host and port.
        hello: The message that introduces the job.
        work: The work, as JSON.
        place: Returns the buffers for a part's result by the part's number, its message and its bytes, see
            :class:`feeder.service.frames.Receiver`.

    Attributes:
        credit: Number of parts that may be unanswered here; 0 until the work is accepted.
        sent: Number and time of sending of the parts that are, by request. No request has the number of another, so
            that the answer to one that was taken back is never taken for that to a later one.
        refusal: The reason for which the server refused the job; empty for one that did not.
        lost: The reason for which the link is of no more use; empty while it is.
    """

    def __init__(
        self,
        address: tuple[str, int],
        hello: Mapping[str, Any],
        work: Mapping[str, Any],
        place: Callable[[int, dict[str, Any], int], Sequence[memoryview] | None],
    ) -> None:
        self.address = address
        self.credit = 0
        self.sent: dict[int, tuple[int, float]] = {}
        self._next = 0
        self.refusal = self.lost = ""
        self._work = work
        self._is_connected = False
        self._receiving: int | None = None  # the request whose payload comes
        family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self.connection = socket.socket(family, socket.SOCK_STREAM)
        self.connection.setblocking(False)
        self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._place = place
        self._receiver = Receiver(self.connection, SERVER_LIMITS, self._buffers)
        self._sender = Sender(self.connection)
        self._sender.add(Kind.HELLO, hello)
        self._began_s = self.heard_s = time.monotonic()
        try:
            code = self.connection.connect_ex(address)
        except OSError as error:  # a name that nobody knows
            code = error.errno or errno.EHOSTUNREACH
        if code not in (0, errno.EINPROGRESS):
            self.lost = f"can't be reached: error {code}"

    @property
    def is_ready(self) -> bool:
        """True if it takes another part."""
        return not self.lost and len(self.sent) < self.credit

    def events(self) -> int:
        """Returns what to poll the socket for."""
        return select.POLLIN | (select.POLLOUT if self._sender.unsent_bytes or not self._is_connected else 0)

    def ask(self, number: int, epoch: int, numbers: Sequence[memoryview], size: tuple[int, int] | None = None) -> int:
        """Asks for a part; returns the request.

        Args:
            number: Its number.
            epoch: The epoch that the augmentation is drawn for.
            numbers: Its positions, ids and repeats, int64 [N] each, as bytes; copied.
            size: (height, width) of its batch's images; None: that of the recipe.
        """
        request, self._next = self._next, self._next + 1
        self.sent[request] = number, time.monotonic()
        data = memoryview(b"".join(numbers))
        message = {"number": request, "epoch": epoch} | ({} if size is None else {"size": size})
        self._sender.add(Kind.PART, message, [data])
        self._flush()
        return request

    def cancel(self, request: int) -> None:
        """Takes back a request: nothing of its answer is written any more."""
        del self.sent[request]
        if self._receiving == request:
            self._receiver.drop_payload()
        self._sender.add(Kind.CANCEL, {"number": request})
        self._flush()

    def serve(self, events: int) -> list[Frame]:
        """Receives and sends what there is; returns whole answers to parts. Whatever is wrong ends the link."""
        found = []
        if not self._is_connected and events & (select.POLLOUT | select.POLLERR | select.POLLHUP):
            code = self.connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if code:
                self.lost = f"can't be reached: error {code}"
                return []
            self._is_connected = True
            self.heard_s = time.monotonic()
        try:
            if events & ~select.POLLOUT and self._is_connected:
                for frame in self._receiver.frames():
                    self.heard_s = time.monotonic()
                    if frame.kind in (Kind.RESULT, Kind.FAILED):
                        self._receiving = None
                        found.append(frame)
                    else:
                        self._take(frame.kind, frame.message)
                if self._receiver.is_midway:
                    self.heard_s = time.monotonic()
        except (ProtocolError, KeyError, TypeError, ValueError) as error:
            self.lost = f"answered what is none of the protocol: {error}"
        except OSError as error:
            self.lost = f"is gone: {error}"
        self._flush()
        return found

    def tick(self) -> None:
        """Sends a beat; ends the link if the server is silent. To be called every 250 ms."""
        silent_s = time.monotonic() - self.heard_s
        if not self._is_connected:
            if silent_s > _CONNECT_S:
                self.lost = "can't be reached"
            return
        if silent_s > SILENCE_S:
            self.lost = f"is silent for {silent_s:.1f} s"
        elif not self.credit and time.monotonic() - self._began_s > _OPEN_S:
            self.lost = f"has not opened the set in {_OPEN_S:g} s"
        elif not self._sender.unsent_bytes:
            self._sender.add(Kind.BEAT, {})
            self._flush()

    def forgive(self) -> None:
        """Begins the server's silence anew: this process was busy, and did not listen."""
        self.heard_s = time.monotonic()

    def close(self) -> None:
        """Closes the socket."""
        self.connection.close()

    def _flush(self) -> None:
        if self._is_connected and not self.lost:
            try:
                self._sender.flush()
            except OSError as error:
                self.lost = f"is gone: {error}"

    def _take(self, kind: Kind, message: dict[str, Any]) -> None:
        if kind == Kind.WELCOME:
            self._sender.add(Kind.WORK, {"work": self._work})
        elif kind == Kind.REFUSED:
            self.refusal = str(message["reason"])[:2000]
            self.lost = f"refuses this job: {self.refusal}"
        else:
            credit = message.get("credit")
            if type(credit) is int and 0 <= credit <= 1 << 16 and (self.credit or kind == Kind.ACCEPTED):
                self.credit = credit

    def _buffers(self, kind: Kind, message: dict[str, Any], size_bytes: int) -> Sequence[memoryview] | None:
        request = message.get("number")
        if kind != Kind.RESULT or type(request) is not int or request not in self.sent:
            return None
        self._receiving = request
        return self._place(self.sent[request][0], message, size_bytes)
