"""A server of the input service: makes parts of batches for the jobs that know its token.

Note [One thread]
    One thread has all sockets: those of the clients, and those of the processes that make parts. It never opens a set,
    and never waits for anyone. A client that breaks the rules, stalls or goes costs its connection; a process that dies
    or hangs costs the part in its hands, which the client has made elsewhere, and is replaced. What the server can't
    get, such as memory or another descriptor, costs a part or a connection.
    A process that has ended its part gets the next one first; only then is the part sent.
"""

from __future__ import annotations

import contextlib
import errno
import hmac
import logging
import resource
import selectors
import socket
import threading
import time
from collections.abc import Mapping
from typing import Any

from feeder.service.connection import Client
from feeder.service.frames import (
    CLIENT_LIMITS,
    HEARTBEAT_S,
    Frame,
    Kind,
    ProtocolError,
    local_name,
    peer_versions,
    whole,
)
from feeder.service.roots import Roots
from feeder.service.scheduler import Scheduler
from feeder.service.server_options import ServerOptions
from feeder.system.limit_errors import raise_file_limit
from feeder.system.process_usage import cpu_seconds_of

_log = logging.getLogger("feeder")
_MOST_CLIENTS, _MOST_NEW = 4096, 64
_FEWEST_CLIENTS, _OWN_DESCRIPTORS = 16, 64  # descriptors of the server; each process takes four more
_CPU_S = 0.1  # CPU times are read again after this: each is a file
_AWAY_S = 1.0  # without a look at the sockets: silence does not count then


class Server:
    """See Note [One thread]. It listens once it is made, and answers while :meth:`run` runs.

    Args:
        options: The options.

    Raises:
        ArgumentError: for a root that is none, or a window that the machine has no memory for.
        OSError: if the address can't be had.
    """

    def __init__(self, options: ServerOptions) -> None:
        Roots(options.roots, options.cache_dir)
        self.options = options
        self._most_clients = max(_FEWEST_CLIENTS, min(_MOST_CLIENTS, _descriptors() - 4 * options.cores))
        self._selector = selectors.DefaultSelector()
        self._scheduler = Scheduler(options, self._selector)
        family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
        listener = socket.create_server((options.host, options.port), family=family, backlog=256)
        self.address: tuple[str, int] = listener.getsockname()[:2]
        self._listeners = [listener]
        if not options.tcp_only:
            self._listen_locally()
        for each in self._listeners:
            each.setblocking(False)
        self._is_listening = False
        wake_read, wake_write = socket.socketpair()
        self._wake_read = wake_read
        self._wake_write = wake_write
        self._selector.register(self._wake_read, selectors.EVENT_READ)
        self._clients: set[Client] = set()
        self._unauthenticated: dict[Client, None] = {}  # clients that have not sent the token, the oldest first
        self._dropped = self._messages = 0
        self._cpu = (0.0, 0.0)  # when it was looked at, and how much it was
        self._is_stopped = threading.Event()
        self._began_s = time.monotonic()

    def stop(self) -> None:
        """Makes :meth:`run` return soon; any thread may call it."""
        self._is_stopped.set()
        with contextlib.suppress(OSError):
            self._wake_write.send(b".")

    def status(self) -> dict[str, Any]:
        """Returns counts as JSON takes them; for any thread.

        Returns:
            ``address``; ``cores``; ``busy`` (processes that make something); ``queue`` (parts that wait);
            ``connections``; ``lost`` (processes that died); ``dropped`` (connections that broke the rules or stalled);
            ``messages`` (frames taken from clients that gave the token); ``shared`` (parts that were there already);
            ``cpu_s`` of this process and those that make parts; ``up_s``; ``jobs``: by name ``parts``, ``images``,
            ``failed``, ``queue`` and ``busy``.
        """
        return {
            "address": f"{self.address[0]}:{self.address[1]}",
            "cores": self.options.cores,
            "connections": len(self._clients),
            "dropped": self._dropped,
            "messages": self._messages,
            "cpu_s": self._cpu_s(),
            "up_s": round(time.monotonic() - self._began_s, 1),
            **self._scheduler.status(),
        }

    def run(self) -> None:
        """Serves until :meth:`stop`."""
        scheduler = self._scheduler
        try:
            self._listen()
            scheduler.makers.start_all()
            next_s = time.monotonic()
            while not self._is_stopped.is_set():
                now = time.monotonic()
                if now >= next_s:
                    self._tick(is_overdue=now - next_s > _AWAY_S)
                    next_s = now + HEARTBEAT_S
                unsent = scheduler.makers.has_unsent()
                for key, events in self._selector.select(0.01 if unsent else max(0.0, next_s - now)):
                    self._serve(key.fileobj, key.data, events)
                if unsent:
                    scheduler.makers.wait(0)  # sends what fits now
                scheduler.give_out()
                while scheduler.changed:
                    self._talk(scheduler.changed.pop(), 0)
        finally:
            self._close()

    def _close(self) -> None:
        for client in list(self._clients):
            self._drop(client, is_fault=False)
        self._scheduler.close()
        for each in (*self._listeners, self._wake_read, self._wake_write):
            each.close()
        self._selector.close()

    def _listen_locally(self) -> None:
        """Listens on a Unix socket, too, see Note [Same host]."""
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            listener.bind(local_name(self.options.token, self.address[1]))
        except OSError:  # TCP remains
            listener.close()
            return
        listener.listen(256)
        self._listeners.append(listener)

    def _listen(self) -> None:
        if not self._is_listening:
            self._is_listening = True
            for each in self._listeners:
                self._selector.register(each, selectors.EVENT_READ)

    def _serve(self, what: Any, data: Any, events: int) -> None:
        if isinstance(data, Client):
            self._talk(data, events)
        elif isinstance(data, int):
            self._scheduler.makers.hear(data)
        elif what in self._listeners:
            self._accept(what)
        else:
            self._wake_read.recv(4096)

    # Clients.

    def _accept(self, listener: socket.socket) -> None:
        for _ in range(16):
            try:
                connection, address = listener.accept()
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                    self._want_descriptors()
                return
            if len(self._clients) >= self._most_clients and not self._drop_oldest_unauthenticated():
                connection.close()
                self._dropped += 1
                continue
            is_local = connection.family == socket.AF_UNIX
            shown = "this host" if is_local else f"{address[0]}:{address[1]}"
            client = Client(connection, shown, self._scheduler.memory, is_local=is_local)
            self._clients.add(client)
            self._unauthenticated[client] = None
            self._selector.register(connection, selectors.EVENT_READ, client)
            if len(self._unauthenticated) > _MOST_NEW:
                self._drop_oldest_unauthenticated()

    def _drop_oldest_unauthenticated(self) -> bool:
        oldest = next(iter(self._unauthenticated), None)
        if oldest is not None:
            self._drop(oldest, is_fault=True)
        return oldest is not None

    def _want_descriptors(self) -> None:
        """Makes room where there is no descriptor for another connection, or takes none until the next look."""
        if not self._drop_oldest_unauthenticated():
            self._is_listening = False
            for each in self._listeners:
                self._selector.unregister(each)

    def _talk(self, client: Client, events: int) -> None:
        """Receives from a client and sends to it; closes the connection for whatever is wrong."""
        if client.is_closed:
            return
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
            wanted = selectors.EVENT_READ if client.may_speak() else 0
            self._selector.modify(
                client.connection, wanted | (selectors.EVENT_WRITE if client.sender.unsent_bytes else 0), client
            )

    def _drop(self, client: Client, *, is_fault: bool) -> None:
        if client.is_closed:
            return
        self._dropped += is_fault
        self._clients.discard(client)
        self._unauthenticated.pop(client, None)
        self._selector.unregister(client.connection)
        client.close()
        self._scheduler.drop(client)

    def _obey(self, client: Client, frame: Frame) -> None:
        kind, message = frame.kind, frame.message
        if not client.job:
            self._welcome(client, kind, message)
            return
        self._messages += 1
        if kind == Kind.WORK:
            self._scheduler.take_work(client, b"".join(frame.payload))
        elif kind == Kind.PART:
            self._scheduler.take_part(client, message, b"".join(frame.payload))
        elif kind == Kind.TAKEN and client.is_local:
            client.taken(whole(message["number"]))
        elif kind == Kind.CANCEL:
            self._scheduler.forget(client, whole(message["number"]))
        elif kind == Kind.STATUS:
            client.sender.add(Kind.STATUS, self.status())
        elif kind != Kind.HEARTBEAT:
            raise ProtocolError(f"{kind.name} after HELLO")

    def _cpu_s(self) -> float:
        now = time.monotonic()
        if now - self._cpu[0] > _CPU_S:
            self._cpu = now, round(cpu_seconds_of(self._scheduler.makers.pids()), 2)
        return self._cpu[1]

    def _welcome(self, client: Client, kind: Kind, message: Mapping[str, Any]) -> None:
        token, versions, job = message.get("token"), message.get("versions"), message.get("job")
        if kind != Kind.HELLO or not isinstance(token, str) or not isinstance(job, str) or not job:
            raise ProtocolError("no HELLO")
        job.encode()  # or a ValueError: counts by job go out as UTF-8
        if not hmac.compare_digest(token.encode(), self.options.token.encode()):
            self._scheduler.refuse(client, "the token is not that of this service")
            return
        ours = peer_versions()
        if versions != ours:
            theirs = versions if isinstance(versions, dict) else {}
            found = [
                f"{name} {ours[name]} (the job has {theirs.get(name)})"
                for name in ours
                if theirs.get(name) != ours[name]
            ]
            self._scheduler.refuse(client, f"it has {', '.join(found)}; install the same versions on all nodes")
            return
        client.job = job[:200]
        client.receiver.limits = CLIENT_LIMITS
        self._unauthenticated.pop(client, None)
        self._scheduler.add(client)
        welcome = {"cores": self.options.cores}
        if client.is_local:
            memory = self._scheduler.memory
            client.sender.send_now(Kind.WELCOME, welcome | {"memory_bytes": memory.size_bytes}, memory.for_reading)
        else:
            client.sender.add(Kind.WELCOME, welcome)

    def _tick(self, *, is_overdue: bool) -> None:
        """Sends heartbeats; ends connections whose time is over, and makers that hang."""
        self._listen()
        for client in list(self._clients):
            if is_overdue:
                client.forgive()
            elif client.is_late():
                self._drop(client, is_fault=True)
                continue
            if client.job and not client.is_refused and not client.sender.unsent_bytes:
                client.sender.add(Kind.HEARTBEAT, self._scheduler.credit(client))
            self._talk(client, 0)
        self._scheduler.tick()


def _descriptors() -> int:
    """Returns the number of descriptors that there are for clients and processes, as many as this process may have."""
    raise_file_limit()
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return (_MOST_CLIENTS if most == resource.RLIM_INFINITY else most) - _OWN_DESCRIPTORS
