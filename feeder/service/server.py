"""A server of the input service: makes parts of batches for the jobs that know its token.

Note [One thread]
    One thread has all sockets: those of the clients, and those of the processes that make parts. It never opens a set,
    and never waits for anyone. A client that breaks the rules, stalls or goes costs its connection; a process that dies
    or hangs costs the part in its hands, which the client has made elsewhere, and is replaced.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import logging
import selectors
import socket
import threading
import time
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from feeder.errors import ArgumentError
from feeder.loader.fast.work_json import size_from_json
from feeder.service.client import Client
from feeder.service.frames import BEAT_S, Frame, Kind, ProtocolError
from feeder.service.makers import NUMBER_BYTES, KnownWork, Makers
from feeder.service.part_queue import Key, Memory, PartQueue, Result, Task, Window
from feeder.service.roots import Roots
from feeder.service.work_size import WorkSize
from feeder.shard.write.attempt import writer_versions
from feeder.system.process_usage import cpu_seconds

__all__ = ["EARLIER_JOBS", "Server", "ServerOptions"]

_log = logging.getLogger("feeder")
_MOST_CLIENTS, _MOST_NEW = 4096, 64
_KNOWN_WORKS = 256  # whose JSON the server keeps
_MOST_PART_BYTES = 1 << 30
_COUNTS, _MOST_JOBS = ("parts", "images", "failed"), 256
EARLIER_JOBS = "(earlier jobs)"  # whose counts are added up


@dataclass(frozen=True)
class ServerOptions:
    """Options of a server.

    Args:
        roots: Folders and URLs below which sets may be read.
        cores: Number of processes that make parts.
        token: The secret that clients must know.
        host: The address to listen on.
        port: TCP port; 0 for a free one.
        window_bytes: Memory for finished parts that other jobs may want, too.
        job_cores: Largest number of cores that one job gets at a time; None: all that the others leave.
        cache_dir: Cache of remote sets; None: the default.
        modules: Modules whose functions recipes and fields may call.
    """

    roots: tuple[str, ...]
    cores: int
    token: str = field(repr=False)
    host: str = "127.0.0.1"
    port: int = 0
    window_bytes: int = 512 << 20
    job_cores: int | None = None
    cache_dir: str | None = None
    modules: tuple[str, ...] = ()


class Server:
    """See Note [One thread]. It listens once it is made, and answers while :meth:`run` runs.

    Args:
        options: The options.

    Raises:
        ArgumentError: for a root that is none.
        OSError: if the address can't be had.
    """

    def __init__(self, options: ServerOptions) -> None:
        Roots(options.roots, options.cache_dir)
        self.options = options
        self._listener = socket.create_server((options.host, options.port), backlog=256)
        self._listener.setblocking(False)
        self.address: tuple[str, int] = self._listener.getsockname()[:2]
        self._wake_read, self._wake_write = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._wake_read, selectors.EVENT_READ)
        self._clients: set[Client] = set()
        self._works: OrderedDict[str, KnownWork] = OrderedDict()
        self._queue = PartQueue(options.job_cores)
        self._tasks: dict[Key, Task] = {}
        self._memory = Memory(2 * options.cores + 2)
        self._window = Window(options.window_bytes, self._memory)
        here = options.roots, options.cache_dir, options.modules
        self._makers = Makers(options.cores, *here, self._memory, self._selector, self._end)
        self._counts: dict[str, dict[str, int]] = {}
        self._dropped = 0
        self._is_stopped = threading.Event()
        self._began_s = time.monotonic()

    def stop(self) -> None:
        """Has :meth:`run` return soon; for any thread."""
        self._is_stopped.set()
        with contextlib.suppress(OSError):
            self._wake_write.send(b".")

    def status(self) -> dict[str, Any]:
        """Returns counts as JSON takes them; for any thread.

        Returns:
            ``address``; ``cores``; ``busy`` (processes that make something); ``queue`` (parts that wait);
            ``connections``; ``lost`` (processes that died); ``dropped`` (connections that broke the rules or stalled);
            ``shared`` (parts that were there already); ``cpu_s`` of this process and those that make parts; ``up_s``;
            ``jobs``: by name ``parts``, ``images``, ``failed``, ``queue`` and ``busy``.
        """
        jobs = {
            name: counts | {"queue": self._queue.waiting(name), "busy": self._queue.running.get(name, 0)}
            for name, counts in list(self._counts.items())
        }
        return {
            "address": f"{self.address[0]}:{self.address[1]}",
            "cores": self.options.cores,
            "busy": sum(list(self._queue.running.values())),
            "queue": len(self._queue),
            "connections": len(self._clients),
            "lost": self._makers.lost,
            "dropped": self._dropped,
            "shared": self._window.hits,
            "cpu_s": round(cpu_seconds(), 2),
            "up_s": round(time.monotonic() - self._began_s, 1),
            "jobs": jobs,
        }

    def run(self) -> None:
        """Serves until :meth:`stop`."""
        try:
            self._makers.start()
            next_s = time.monotonic()
            while not self._is_stopped.is_set():
                now = time.monotonic()
                if now >= next_s:
                    next_s = now + BEAT_S
                    self._tick()
                unsent = self._makers.has_unsent()
                for key, events in self._selector.select(0.01 if unsent else max(0.0, next_s - now)):
                    self._serve(key.fileobj, key.data, events)
                if unsent:
                    self._makers.send()
                self._makers.give_out(self._queue, self._works)
        finally:
            self._close()

    def _close(self) -> None:
        for client in list(self._clients):
            self._drop(client, is_fault=False)
        self._makers.close()
        for each in (self._listener, self._wake_read, self._wake_write):
            each.close()
        self._selector.close()

    def _serve(self, what: Any, data: Any, events: int) -> None:
        if isinstance(data, Client):
            if not data.is_closed:
                self._talk(data, events)
        elif isinstance(data, int):
            self._makers.hear(data)
        elif what is self._listener:
            self._accept()
        else:
            self._wake_read.recv(4096)

    # Clients.

    def _accept(self) -> None:
        for _ in range(16):
            try:
                connection, address = self._listener.accept()
            except OSError:  # none waits, or no descriptor is left
                return
            new = sum(not client.job for client in self._clients)
            if new >= _MOST_NEW or len(self._clients) >= _MOST_CLIENTS:
                connection.close()
                self._dropped += 1
                continue
            client = Client(connection, f"{address[0]}:{address[1]}")
            self._clients.add(client)
            self._selector.register(connection, selectors.EVENT_READ, client)

    def _talk(self, client: Client, events: int) -> None:
        """Takes what a client has sent, and sends what it has to get. Whatever is wrong costs its connection."""
        try:
            if events & selectors.EVENT_READ and client.may_speak():
                for frame in client.receiver.frames():
                    client.heard_s = time.monotonic()
                    self._obey(client, frame)
                    if not client.may_speak():
                        break
            client.flush()
        except (ProtocolError, KeyError, TypeError, ValueError) as error:
            _log.info("a client at %s broke the rules: %s", client.address, error)
            self._drop(client, is_fault=True)
        except OSError:
            self._drop(client, is_fault=False)
        else:
            wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if client.sender.unsent_bytes else 0)
            self._selector.modify(client.connection, wanted, client)

    def _drop(self, client: Client, *, is_fault: bool) -> None:
        self._dropped += is_fault
        self._clients.discard(client)
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(client.connection)
        for number in list(client.parts):
            self._forget(client, number)
        client.close()
        while client.unsent:
            self._memory.release(client.unsent.pop())

    def _obey(self, client: Client, frame: Frame) -> None:
        kind, message = frame.kind, frame.message
        if not client.job:
            self._welcome(client, kind, message)
        elif kind == Kind.WORK:
            self._take_work(client, message)
        elif kind == Kind.PART:
            self._take_part(client, message, b"".join(frame.payload))
        elif kind == Kind.CANCEL:
            self._forget(client, _whole(message["number"]))
        elif kind == Kind.STATUS:
            client.sender.add(Kind.STATUS, self.status())
        elif kind != Kind.BEAT:
            raise ProtocolError(f"{kind.name} after HELLO")

    def _welcome(self, client: Client, kind: Kind, message: Mapping[str, Any]) -> None:
        token, versions, job = message.get("token"), message.get("versions"), message.get("job")
        if kind != Kind.HELLO or not isinstance(token, str) or not isinstance(job, str) or not job:
            raise ProtocolError("no HELLO")
        if not hmac.compare_digest(token.encode(), self.options.token.encode()):
            self._refuse(client, "the token is not that of this service")
            return
        ours = writer_versions()
        if versions != ours:
            theirs = versions if isinstance(versions, dict) else {}
            found = [
                f"{name} {ours[name]} (the job has {theirs.get(name)})"
                for name in ours
                if theirs.get(name) != ours[name]
            ]
            self._refuse(client, f"it has {', '.join(found)}; install the same versions on all nodes")
            return
        client.job = job[:200]
        client.sender.add(Kind.WELCOME, {"cores": self.options.cores})

    def _refuse(self, client: Client, reason: str) -> None:
        client.sender.add(Kind.REFUSED, {"reason": reason[:2000]})
        client.is_refused = True

    def _take_work(self, client: Client, message: Mapping[str, Any]) -> None:
        if client.wanted:
            raise ProtocolError("WORK a second time")
        value = message["work"]
        digest = hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
        client.wanted = digest
        work = self._works.setdefault(digest, KnownWork(value))
        self._works.move_to_end(digest)
        if work.size is not None:
            self._accepted(client, digest)
            return
        task = Task(Kind.WORK, client.job, digest)
        task = self._tasks.setdefault(task.key, task)
        if not task.waiters:
            self._queue.add(task)
        task.waiters.append((client, -1))

    def _accepted(self, client: Client, digest: str) -> None:
        client.digest = digest
        self._counts.setdefault(client.job, dict.fromkeys(_COUNTS, 0))
        self._fold_counts()
        client.sender.add(Kind.ACCEPTED, self._credit(client))

    def _fold_counts(self) -> None:
        """Adds up the counts of the oldest jobs that are gone: a service that runs for months has many."""
        present = {client.job for client in self._clients} | self._queue.jobs() | {EARLIER_JOBS}
        gone = [name for name in self._counts if name not in present]
        for name in gone[: max(0, len(self._counts) - _MOST_JOBS)]:
            counts, sums = self._counts.pop(name), self._counts.setdefault(EARLIER_JOBS, dict.fromkeys(_COUNTS, 0))
            for each in _COUNTS:
                sums[each] += counts[each]

    def _take_part(self, client: Client, message: Mapping[str, Any], numbers: bytes) -> None:
        number, epoch = _whole(message["number"]), _whole(message["epoch"])
        work = self._works.get(client.digest)
        if work is None or work.size is None or not numbers or len(numbers) % NUMBER_BYTES or epoch >= 1 << 32:
            raise ProtocolError("a part that can't be made")
        if number in client.parts or len(client.parts) > 2 * self._most_credit() + 16:
            raise ProtocolError("more parts than it has credit for")
        size = _size(message.get("size"))
        if (size is None) != (work.size.pixel_bytes == 0):
            raise ProtocolError("a part with a size that is none of its work")
        if work.size.part_bytes(len(numbers) // NUMBER_BYTES, size) > _MOST_PART_BYTES:
            raise ProtocolError("a part that is too large")
        task = Task(Kind.PART, client.job, client.digest, epoch, numbers, size)
        found = self._window.get(task.key)
        if found is not None:
            self._answer(client, number, found)
            return
        task = self._tasks.setdefault(task.key, task)
        if not task.waiters and not task.started_s:
            self._queue.add(task)
        task.waiters.append((client, number))
        client.parts[number] = task

    def _forget(self, client: Client, number: int) -> None:
        """Takes a client off a part that it does not want any more."""
        task = client.parts.pop(number, None)
        if task is None:
            return
        task.waiters.remove((client, number))
        if not task.waiters and not task.started_s:
            self._queue.remove(task)
            del self._tasks[task.key]

    def _answer(self, client: Client, number: int, result: Result) -> None:
        """Sends a finished part, whose memory is in use until it is sent."""
        client.parts.pop(number, None)
        counts = self._counts[client.job]
        counts["parts"] += 1
        counts["images"] += int(result.message["rows"])
        result.memory.users += 1
        client.unsent.append(result.memory)
        message = result.message | {"number": number}

        def sent() -> None:
            client.unsent.remove(result.memory)
            self._memory.release(result.memory)

        client.sender.add(Kind.RESULT, message, result.arrays, sent)

    def _most_credit(self) -> int:
        return 2 * self.options.cores + 2

    def _credit(self, client: Client) -> dict[str, int]:
        """Returns what a client may have unanswered: its job's share of the cores, and some for the way."""
        jobs = len(self._queue.jobs() | {client.job})
        cores = min(self.options.cores, self.options.job_cores or self.options.cores)
        share = -(-cores // jobs)
        return {"credit": share + max(1, share // 4)}

    # Parts.

    def _end(self, task: Task, kind: Kind, message: dict[str, Any]) -> None:
        """Takes the end of a task, and tells those who wait for it."""
        self._queue.ended(task)
        del self._tasks[task.key]
        waiters = [(client, number) for client, number in task.waiters if not client.is_closed]
        if task.kind == Kind.WORK:
            if kind == Kind.ACCEPTED:
                self._works[task.digest].size = WorkSize(*message["size"])
            else:
                self._works.pop(task.digest, None)
            for client, _ in waiters:
                if kind == Kind.ACCEPTED:
                    self._accepted(client, task.digest)
                else:
                    self._refuse(client, str(message["error"]))
        elif kind == Kind.RESULT:
            assert task.region is not None
            places = message.pop("arrays")
            message["sizes"] = [size for _, size in places]
            message["rows"] = len(task.numbers) // NUMBER_BYTES
            result = Result(message, task.region, places)
            self._window.add(task.key, result)
            for client, number in waiters:
                self._answer(client, number, result)
            self._memory.release(task.region)
        else:
            self._fail(task, waiters, message)
        for client, _ in waiters:
            self._talk(client, 0)

    def _fail(self, task: Task, waiters: list[tuple[Client, int]], message: dict[str, Any]) -> None:
        """Tells clients that a part can't be made here."""
        if task.region is not None:
            self._memory.release(task.region)
        for client, number in waiters:
            client.parts.pop(number, None)
            self._counts[client.job]["failed"] += 1
            client.sender.add(Kind.FAILED, {k: v for k, v in message.items() if k != "of"} | {"number": number})

    def _tick(self) -> None:
        """Sends beats; ends connections whose time is over, and makers that hang."""
        for client in list(self._clients):
            if client.is_late():
                self._drop(client, is_fault=True)
                continue
            if client.job and not client.sender.unsent_bytes:
                client.sender.add(Kind.BEAT, self._credit(client))
            self._talk(client, 0)
        self._makers.kill_hung()
        used = {client.digest or client.wanted for client in self._clients} | {
            task.digest for task in self._tasks.values()
        }
        for digest in list(self._works):
            if len(self._works) > _KNOWN_WORKS and digest not in used:
                del self._works[digest]


def _size(value: Any) -> tuple[int, int] | None:
    try:
        return None if value is None else size_from_json(value)
    except ArgumentError as error:
        raise ProtocolError(str(error)) from None


def _whole(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 1 << 62:
        raise ProtocolError(f"expected a number, got {value!r}")
    return value
