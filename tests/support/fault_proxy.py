"""A proxy before an HTTP server that spoils answers: by a seed, counted by kind, and known by request.

The proxy is a process of its own, ``python -m tests.support.fault_proxy TARGET_PORT``, which listens on 127.0.0.1,
prints its port, and takes commands as lines of JSON.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import json
import os
import random
import re
import socket
import struct
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

from tests.support import ROOT

__all__ = ["FaultProxy", "Faults", "Request"]

_CODES = {403: "ExpiredToken", 404: "NoSuchKey", 408: "RequestTimeout", 429: "TooManyRequests", 500: "InternalError"}
_PIECE = 1 << 16
_UUID = re.compile("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


@dataclass(frozen=True)
class Faults:
    """The faults of a proxy, from now on.

    Attributes:
        rates: Probability of each kind for a request, together 1 or less. Of answers with a body: "cut" aborts the
            connection in the middle, "stall" goes silent there, "flip" inverts one byte. Of any request: "reset" aborts
            the connection, "drop" never answers, and an HTTP status such as "503" or "403" is the answer.
        seed: The same requests have the same faults: a request's is a function of the seed, of its method, target
            (but for UUIDs, which differ in each run) and range, and of the number of times that it was made before.
        in_turn: True for faults at the same rate in all, of the kind that has come least so far in place of one drawn.
            Then a request's fault depends on those before it.
        only: Requests whose target or authorization contains this may have faults.
        latency_s: Time before each answer.
        bandwidth: Bytes of answers a second, of all connections together; 0: no limit.
        offline: True aborts every connection.
    """

    rates: Mapping[str, float] = field(default_factory=dict)
    seed: int = 0
    in_turn: bool = False
    only: str = ""
    latency_s: float = 0
    bandwidth: float = 0
    offline: bool = False


class Request(NamedTuple):
    """A request that a proxy got.

    Attributes:
        method: "GET", for example.
        target: Path and query, but for a signature in it, which differs from one request to the next.
        range: "bytes=0-99", for example; "" without one.
        fault: Kind of its fault; "" without one.
        size_bytes: Size of the part of the answer's body that was sent.
    """

    method: str
    target: str
    range: str
    fault: str
    size_bytes: int


class FaultProxy:
    """A proxy in a process of its own, which ends with this one.

    Args:
        port: TCP port of the server on 127.0.0.1.

    Attributes:
        endpoint: URL of the proxy.
        port: Its TCP port.
        pid: The id of its process.
    """

    def __init__(self, port: int) -> None:
        command = ["setpriv", "--pdeathsig", "KILL", sys.executable, "-m", "tests.support.fault_proxy", str(port)]
        self._process: subprocess.Popen[str] = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
        )
        self.pid = self._process.pid
        self.port = int(self._answer())
        self.endpoint = f"http://127.0.0.1:{self.port}"

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline())

    def _ask(self, command: str, values: Any = None) -> Any:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([command, values]) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def set(self, faults: Faults) -> None:
        """Changes the faults of requests that come from now on; "offline" also ends connections."""
        self._ask("set", asdict(faults))

    def counts(self) -> dict[str, int]:
        """Returns the number of faults so far, by kind."""
        counts: dict[str, int] = self._ask("counts")
        return counts

    def requests(self) -> list[Request]:
        """Returns the requests so far, in the order in which they ended."""
        return [Request(*row) for row in self._ask("requests")]

    def close(self) -> None:
        """Ends the proxy."""
        self._process.kill()
        self._process.communicate()


class _AbortError(Exception):
    """Ends a connection by a reset."""


class _Proxy:
    def __init__(self, port: int) -> None:
        self._target = port
        self._faults = Faults()
        self._made: collections.Counter[tuple[str, str, str]] = collections.Counter()
        self._counts: collections.Counter[str] = collections.Counter()
        self._requests: list[Request] = []
        self._writers: set[asyncio.StreamWriter] = set()
        self._free_at = 0.0

    def control(self, command: str, values: Any) -> Any:
        if command == "set":
            self._faults = Faults(**values)
            for writer in self._writers if self._faults.offline else ():
                _reset(writer)
            return None
        return dict(self._counts) if command == "counts" else self._requests

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serves the requests of one connection."""
        far: asyncio.StreamWriter | None = None
        self._writers.add(writer)
        try:
            if self._faults.offline:
                raise _AbortError
            far_reader, far = await asyncio.open_connection("127.0.0.1", self._target, limit=1 << 20)
            while await self._request(reader, writer, far_reader, far):
                pass
        except _AbortError:
            _reset(writer)
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            self._writers.discard(writer)
            for end in (writer, far):
                if end is not None:
                    end.close()

    async def _request(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        far_reader: asyncio.StreamReader,
        far: asyncio.StreamWriter,
    ) -> bool:
        """Serves one request, and returns True if the connection may have another."""
        head = await reader.readuntil(b"\r\n\r\n")
        first, headers = _parsed(head)
        method, target, _ = first.split(" ", 2)
        target, _, query = target.partition("?")
        asked = "&".join(each for each in query.split("&") if not each.startswith("X-Amz-"))
        name = (method, f"{target}?{asked}" if asked else target, headers.get("range", ""))
        fault, place = self._drawn(name, headers.get("authorization", "") or query)
        await asyncio.sleep(self._faults.latency_s)
        if fault in ("reset", "drop") or fault.isdigit():
            self._note(name, fault)
            if fault == "reset":
                raise _AbortError
            if fault == "drop":
                await _silence(reader)
            else:
                await _refuse(writer, int(fault), method)
            return False
        far.write(head)
        has_body = "content-length" in headers or "transfer-encoding" in headers
        async with _beside(_copy_body(reader, far, headers)) if has_body else contextlib.nullcontext():
            status = 100
            while status < 200:
                head = await far_reader.readuntil(b"\r\n\r\n")
                first, headers = _parsed(head)
                status = int(first.split(" ", 2)[1])
                writer.write(head)
        if headers.get("transfer-encoding", "").lower() == "chunked":
            await _copy_chunks(far_reader, writer)
            self._note(name)
        else:
            size = 0 if method == "HEAD" or status in (204, 304) else int(headers.get("content-length", 0))
            at = int(place * size) if fault and status < 300 else size
            if not await self._copy_answer(name, far_reader, writer, size, at, fault):
                await _silence(reader)
                return False
        await writer.drain()
        return headers.get("connection", "").lower() != "close"

    async def _copy_answer(
        self,
        name: tuple[str, str, str],
        far_reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        size: int,
        at: int,
        fault: str,
    ) -> bool:
        """Copies the body of an answer with the fault at a place in it, and returns False if it goes silent there."""
        sent, had = 0, ""
        try:
            while sent < size:
                data = await far_reader.read(min(_PIECE, size - sent))
                if not data:
                    raise _AbortError
                if sent <= at < sent + len(data):
                    had, k = fault, at - sent
                    if fault == "flip":
                        data = data[:k] + bytes([data[k] ^ 0xFF]) + data[k + 1 :]
                    else:
                        writer.write(data[:k])
                        await writer.drain()
                        sent += k
                        if fault == "cut":
                            raise _AbortError
                        return False
                await self._wait_turn(len(data))
                writer.write(data)
                await writer.drain()
                sent += len(data)
        finally:
            self._note(name, had, sent)
        return True

    def _note(self, name: tuple[str, str, str], fault: str = "", size: int = 0) -> None:
        if fault:
            self._counts[fault] += 1
        self._requests.append(Request(*name, fault, size))

    def _drawn(self, name: tuple[str, str, str], authorization: str) -> tuple[str, float]:
        """Returns a request's fault, "" for none, and the place of it in the body, 0-1."""
        faults, made = self._faults, self._made[name]
        self._made[name] += 1
        rng = random.Random(_UUID.sub("", f"{faults.seed} {made} {name}"))
        drawn, place = rng.random(), rng.random()
        rates = faults.rates if faults.only in name[1] + authorization else {}
        if faults.in_turn and drawn < sum(rates.values()):
            return min(rates, key=self._counts.__getitem__), place
        for kind, rate in rates.items():
            if drawn < rate:
                return kind, place
            drawn -= rate
        return "", place

    async def _wait_turn(self, size: int) -> None:
        """Returns when an answer may go on within the bandwidth."""
        if self._faults.bandwidth:
            now = asyncio.get_running_loop().time()
            self._free_at = max(self._free_at, now) + size / self._faults.bandwidth
            await asyncio.sleep(self._free_at - now)


def _parsed(head: bytes) -> tuple[str, dict[str, str]]:
    first, *lines = head.decode("latin-1").split("\r\n")[:-2]
    pairs = (line.partition(":") for line in lines)
    return first, {name.lower(): value.strip() for name, _, value in pairs}


async def _copy_body(reader: asyncio.StreamReader, far: asyncio.StreamWriter, headers: dict[str, str]) -> None:
    if headers.get("transfer-encoding", "").lower() == "chunked":
        await _copy_chunks(reader, far)
        return
    left = int(headers["content-length"])
    while left:
        data = await reader.read(min(_PIECE, left))
        if not data:
            raise asyncio.IncompleteReadError(b"", left)
        left -= len(data)
        far.write(data)
        await far.drain()


async def _copy_chunks(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    size = 1
    while size:
        line = await reader.readuntil(b"\r\n")
        size = int(line.partition(b";")[0], 16)
        writer.write(line + await reader.readexactly(size + 2))
        await writer.drain()


@contextlib.asynccontextmanager
async def _beside(work: Any) -> Any:
    """Does a piece of work beside the block, and gives it up if the block ends before it."""
    task = asyncio.ensure_future(work)
    try:
        yield
    finally:
        if not task.done():
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def _refuse(writer: asyncio.StreamWriter, status: int, method: str) -> None:
    body = f"<Error><Code>{_CODES.get(status, 'SlowDown')}</Code><Message>made up</Message></Error>".encode()
    head = f"HTTP/1.1 {status} Fault\r\nContent-Type: application/xml\r\nContent-Length: {len(body)}\r\n"
    writer.write(head.encode() + b"Connection: close\r\n\r\n" + (b"" if method == "HEAD" else body))
    await writer.drain()


async def _silence(reader: asyncio.StreamReader) -> None:
    """Returns when the client has given up."""
    while await reader.read(_PIECE):
        pass


def _reset(writer: asyncio.StreamWriter) -> None:
    connection = writer.get_extra_info("socket")
    if connection is not None:
        with contextlib.suppress(OSError):
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


async def _main(port: int) -> None:
    proxy = _Proxy(port)
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0, limit=1 << 20)
    commands = asyncio.StreamReader(limit=1 << 20)
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(commands), sys.stdin)
    print(server.sockets[0].getsockname()[1], flush=True)
    while line := await commands.readline():
        print(json.dumps(proxy.control(*json.loads(line))), flush=True)
    os._exit(0)  # whatever the connections are at


if __name__ == "__main__":
    asyncio.run(_main(int(sys.argv[1])))
