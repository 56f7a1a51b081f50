"""The servers of an input service, as a relay learns of them: by a helper process that asks Ray, or by a file.

Note [Ray stays outside]
    Neither the trainer nor a relay talks to Ray, which would fill them with threads, and end with its head. A helper
    process does, one for all relays of a user on a host: 80 MB and 27 threads. Relays connect to its abstract Unix
    socket, whose name says which service it is for, and start one where there is none; if several do, the first one
    has the name, and the others end. It sends what it finds, one JSON object a message. When it dies, or the registry
    does not answer it, the servers that are known stay in use. Both sides look whose the other one is, as anybody may
    take the name.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import socket
import struct
import subprocess
import time
from typing import Any

from feeder.loader.service_options import Service
from feeder.system.child_python import child_python
from feeder.system.pauses import pauses

_HELPER = "from feeder.service.finder import main\nsys.path[:] = path\nmain(*sys.argv[1:])"
_RESTART_S = 2.0, 30.0  # the pause grows while helpers find nothing
_MOST_BYTES, _MOST_SERVERS = 1 << 20, 4096


class Directory:
    """The servers and the token of a service, as far as they are known.

    Args:
        service: The service.

    Attributes:
        servers: Host and port of each.
        token: Their token.
        problem: The reason for which nothing is known; empty if something is.
    """

    def __init__(self, service: Service) -> None:
        self._service = service
        self.servers: list[tuple[str, int]] = []
        self.token = ""
        self.problem = "nothing is known of it yet"
        self._helpers: list[subprocess.Popen[bytes]] = []  # helpers that were started here, and have not ended
        self._connection: socket.socket | None = None
        self._name = socket_name(service)
        self._start_s = 0.0
        self._pauses = pauses(*_RESTART_S)

    @property
    def descriptor(self) -> int | None:
        """A descriptor to be polled for news; None: there is none."""
        return None if self._connection is None else self._connection.fileno()

    def look(self) -> None:
        """Reads news of servers. Call it every 250 ms: a helper that has ended is a zombie until then."""
        self._helpers = [each for each in self._helpers if each.poll() is None]
        if self._service.file is not None:
            self._read_file(self._service.file)
        elif self._connection is not None or self._connect():
            self._read_helper()
        else:
            self._start_helper()

    def close(self) -> None:
        """Closes the connection to the helper process, if there is one."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _connect(self) -> bool:
        """Connects to the helper; returns False if there is none."""
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        connection.setblocking(False)
        try:
            connection.connect(f"\0{self._name}")
            if peer_uid(connection) == os.getuid():
                self._connection = connection
                return True
            self._name = secrets.token_hex(16)  # the name of a helper that no other relay uses
        except OSError:
            pass
        connection.close()
        return False

    def _read_file(self, path: str) -> None:
        try:
            with open(path, "rb") as file:
                self._parse(file.read(_MOST_BYTES))
        except OSError as error:
            self.problem = f"{path}: {error.strerror}"

    def _start_helper(self) -> None:
        now = time.monotonic()
        if now < self._start_s:
            return
        self._start_s = now + next(self._pauses)
        name, address = self._service.name_and_address
        helper = subprocess.Popen(
            child_python(_HELPER, name, address, self._name),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self._helpers.append(helper)

    def _read_helper(self) -> None:
        assert self._connection is not None
        try:
            data = self._connection.recv(_MOST_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            self._parse(data)
        else:
            self.close()

    def _parse(self, data: bytes) -> None:
        """Reads an object ``{"token": ..., "servers": [[host, port], ...]}``, ``{"problem": ...}`` or both."""
        try:
            found: Any = json.loads(data)
            if "servers" not in found:
                self.problem = str(found["problem"])
                return
            servers = [(str(host), int(port)) for host, port in found["servers"][:_MOST_SERVERS]]
            self._pauses = pauses(*_RESTART_S)
            self.token = str(found["token"])
            self.servers = servers
            self.problem = str(found.get("problem", "" if servers else "it has no server now"))
        except (ValueError, TypeError, KeyError):
            self.problem = "what names its servers is damaged"


def peer_uid(connection: socket.socket) -> int:
    """Returns the user id of the process at the other side of a Unix socket."""
    uid: int = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[1]
    return uid


def socket_name(service: Service) -> str:
    """Returns the name of the helper's socket: one for all that would start the same helper."""
    same = (os.getuid(), os.readlink("/proc/self/ns/mnt"), service.name_and_address, os.environ.get("RAY_ADDRESS"))
    return f"feeder-finder-{hashlib.blake2b(repr(same).encode(), digest_size=16).hexdigest()}"
