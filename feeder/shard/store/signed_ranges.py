"""Ranges of objects in S3 by Python's own HTTP client, straight from the socket into the memory of their pieces.

Note [Two clients]
obstore brings each byte through buffers and threads of its own, and copies it twice more for Python: of all that an
epoch from a store takes, that is the largest part. So ranges come by http.client from a URL that obstore signs. Here is
only what goes well. Whatever else a store answers, obstore asks for once more, so that faults are told apart in one
place, see fault.py; and so it does after each fault, and behind a proxy. Where obstore gets again and again what is not
had here, nothing is asked for here for a minute.
"""

from __future__ import annotations

import datetime
import http.client
import math
import os
import select
import socket
import ssl
import threading
import time
import urllib.parse
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import numpy as np
import obstore
from obstore.exceptions import BaseError

from feeder.shard.store.client import IDLE_S, REQUEST_S, proxy_of
from feeder.shard.store.http_answers import Connection, answer_of, connection_to, reason_of
from feeder.shard.store.store import PIECE_BYTES, quoted_etag

if TYPE_CHECKING:
    from obstore.store import S3Store

_VALID = datetime.timedelta(minutes=15)  # the difference between clocks that S3 allows
_MOST_FAULTS = 8  # in a row
_PAUSE_S = 60.0
_REASON_LENGTH = 100
_PIECE_S = 0.02  # a piece grows past 512 KiB only while it comes within this: readers wait for its end
_MOST_PIECES = 4  # at once
_PASSING = {408, 429, *range(500, 600)} - {501}


class SignedRanges:
    """Gets ranges; several threads may use one.

    Args:
        allow_http: True to talk to a store without encryption.
    """

    def __init__(self, *, allow_http: bool) -> None:
        self._allow_http = allow_http
        self._lock = threading.Lock()
        self._idle: defaultdict[tuple[str, str], deque[tuple[float, Connection]]] = defaultdict(deque)
        self._piece_bytes = PIECE_BYTES
        # obstore would sign, with what credentials there are, also where the environment says not to.
        is_public = os.environ.get("AWS_SKIP_SIGNATURE", "").lower() not in ("", "0", "false", "no", "off", "n")
        self._resumes = math.inf if is_public else -math.inf  # then ranges are asked for here again
        self._faults = 0
        self._refused: dict[str, bool] = {}

    def failed(self) -> None:
        """Notes that obstore has got what was not had here."""
        now = time.monotonic()
        if now >= self._resumes:  # else nothing was asked for
            self._faults += 1
            if self._faults >= _MOST_FAULTS:
                self._resumes = now + _PAUSE_S

    def sign(self, client: S3Store, key: str) -> str | None:
        """Returns a URL that has an object for 15 minutes; None if obstore is to ask for it."""
        if time.monotonic() < self._resumes:
            return None
        try:
            signed = obstore.sign(client, "GET", key, _VALID)
        except BaseError:
            return None
        place = signed[: signed.index("/", len("https://"))]
        if place not in self._refused:  # looking for a proxy takes longer than to sign
            self._refused[place] = (signed.startswith("http:") and not self._allow_http) or bool(proxy_of(signed))
        return None if self._refused[place] else signed

    def open(
        self, client: S3Store, key: str, start: int, end: int, etag: str | None, request_s: float = REQUEST_S
    ) -> Iterator[memoryview] | None:
        """Asks for a range.

        Args:
            client: Signs the request.
            key, start, end, etag: As in :meth:`feeder.shard.store.store.Store.pieces`.
            request_s: Seconds that the request may take with its answer.

        Returns:
            Its bytes as they come, in pieces of 512 KiB, or of up to 2 MiB where they come fast, the last one of less;
            None if obstore is to ask for them.

        Raises:
            ConnectionError: if the store does not answer, breaks off or is busy: the next attempt may succeed. The
                pieces raise it, too.
        """
        signed = self.sign(client, key)
        if signed is None:
            return None
        url = urllib.parse.urlsplit(signed)
        until = time.monotonic() + min(REQUEST_S, request_s)
        headers = {"Range": f"bytes={start}-{end - 1}", "Accept-Encoding": "identity"}
        if etag:
            headers["If-Match"] = etag

        try:
            place = url.scheme, url.netloc
            connection = self._idle_connection(place) or connection_to(*place)
            channel, response = answer_of(connection, f"{url.path}?{url.query}", headers, request_s)
        except (ssl.SSLCertVerificationError, ValueError):
            return None
        except (OSError, http.client.HTTPException) as error:
            raise ConnectionError(reason_of(error)) from None

        if _is_range(response, start, end, etag):
            self._faults = 0
            return self._pieces(place, connection, channel, response, end - start, until)
        connection.close()
        response.close()
        if response.status in _PASSING:
            raise ConnectionError(f"{response.status} {response.reason[:_REASON_LENGTH]}")
        return None

    def __del__(self) -> None:
        for connections in self._idle.values():
            for _, connection in connections:
                connection.close()

    def _idle_connection(self, place: tuple[str, str]) -> Connection | None:
        """Returns a connection that nobody uses, if there is one."""
        with self._lock:
            idle = self._idle[place]
            while idle and time.monotonic() - idle[0][0] > IDLE_S:
                idle.popleft()[1].close()
            while idle:
                connection = idle.pop()[1]
                poll = select.poll()
                poll.register(connection.sock, select.POLLIN)
                if not poll.poll(0):
                    return connection
                connection.close()  # nothing was asked for, so the server has closed it
        return None

    def _pieces(
        self,
        place: tuple[str, str],
        connection: Connection,
        channel: socket.socket,
        response: http.client.HTTPResponse,
        left: int,
        until: float,
    ) -> Iterator[memoryview]:
        """Yields the bytes of an answer in pieces, up to a time; keeps the connection for another request."""
        receive: Callable[[memoryview], int] = response.fp.readinto1  # its buffer has what came with the head
        further = _receiver(channel)

        try:
            while left:
                piece, came = np.empty(min(left, self._piece_bytes), np.uint8).data, 0
                began = time.monotonic()
                while came < len(piece):
                    got = receive(piece[came:])
                    now = time.monotonic()
                    if not got or now > until:
                        raise ConnectionError(f"{left - came:,} bytes did not come in time")
                    receive, came = further, came + got
                left -= came

                if came >= PIECE_BYTES:
                    fit = int(_PIECE_S * came / max(now - began, _PIECE_S / 100)) // PIECE_BYTES
                    self._piece_bytes = PIECE_BYTES * min(max(fit, 1), _MOST_PIECES)

                if not left and not response.will_close:  # before the last piece: its reader may not ask for more
                    response.close()
                    with self._lock:
                        self._idle[place].append((time.monotonic(), connection))
                yield piece
        except (OSError, http.client.HTTPException) as error:
            raise ConnectionError(reason_of(error)) from None
        finally:
            if left or response.will_close:
                connection.close()
                response.close()


def _receiver(channel: socket.socket) -> Callable[[memoryview], int]:
    """Returns a function that reads into memory and returns the number of bytes."""
    if isinstance(channel, ssl.SSLSocket):
        return channel.recv_into
    # One system call waits for all of them, or for what came in the time that is the socket's option.
    channel.settimeout(None)
    return lambda memory: channel.recv_into(memory, 0, socket.MSG_WAITALL)


def _is_range(response: http.client.HTTPResponse, start: int, end: int, etag: str | None) -> bool:
    """Returns True if an answer brings just what was asked for."""
    if response.status != 206 or response.length != end - start:
        return False
    if etag and quoted_etag(response.headers.get("ETag")) not in ("", etag):  # a server that does not know If-Match
        return False
    return response.headers.get("Content-Range", "").startswith(f"bytes {start}-{end - 1}/")
