"""Servers of the input service as processes of their own, without Ray, and peers that break the protocol."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from feeder.errors import ServiceError
from feeder.service.frames import SERVER_LIMITS, Frame, Kind, Receiver, local_name, pack_frame, peer_versions
from feeder.service.server_status import server_status
from tests.support import ROOT
from tests.support.processes import wait_until
from tests.support.warm_python import WarmPython

__all__ = ["LocalPeer", "Peer", "ServiceServer", "refusal"]


_PATIENT = """
import sys
from feeder.service import connection
from feeder.tools.cli import main
connection._SILENCE_S = connection._HELLO_S = {silence_s}
sys.exit(main())
"""


class ServiceServer:
    """A server.

    Args:
        folder: A folder for its file.
        root: Folder or URL below which it reads sets.
        options: Further options of ``feeder serve``.
        cores: Number of its processes.
        environment: Further variables of its processes.
        silence_s: Seconds for which a client may be silent, from its first word on, or keep a part, in place of its
            own number: for peers without heartbeats on a busy machine.
        is_warm: False for an interpreter of its own, which imports what it needs and has the variables from its start.

    Attributes:
        service: The loader's argument.
        place: Its host and port.
        token: Its token.
    """

    def __init__(
        self,
        folder: Path,
        root: Path | str,
        *options: str,
        cores: int = 1,
        environment: Mapping[str, str] | None = None,
        silence_s: float | None = None,
        is_warm: bool = True,
    ) -> None:
        self.path = folder / f"service-{len(list(folder.glob('service-*')))}.json"
        self.service = f"file:{self.path}"
        command = ["serve", "--root", str(root), "--cpus", str(cores), "--file", str(self.path), *options]
        variables = {**os.environ, **(environment or {})}
        start = ["-m", "feeder"] if silence_s is None else ["-c", _PATIENT.format(silence_s=silence_s)]
        if is_warm:
            self.process: subprocess.Popen[Any] = WarmPython([*start, *command], cwd=ROOT, env=variables)
        else:
            self.process = subprocess.Popen([sys.executable, *start, *command], cwd=ROOT, env=variables)
        wait_until(lambda: self.path.exists() or self.process.poll() is not None)
        found = json.loads(self.path.read_text())
        ((host, port),) = found["servers"]
        self.place, self.token = (str(host), int(port)), str(found["token"])

    def status(self) -> dict[str, Any]:
        return server_status(self.place, self.token, timeout_s=600)  # however busy the machine is

    def parts(self) -> int:
        """Number of parts that it has given out."""
        return sum(job["parts"] for job in self.status()["jobs"].values())

    def signal(self, number: int) -> None:
        os.kill(self.process.pid, number)

    def kill(self) -> None:
        """Kills it; the file stays, as of a server that has died."""
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        """Ends it."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.terminate()
            self.process.wait()


def refusal(loader: Any) -> str:
    """Returns the error of a loader whose servers all refuse it, of the first epoch by which they had answered."""
    while True:
        try:
            list(loader)
        except ServiceError as error:
            if "has not" not in str(error) and "is silent" not in str(error):  # it may yet answer
                return str(error)
        else:
            raise AssertionError("no server has refused it")


class Peer:
    """A connection to a server that sends what it likes.

    Args:
        server: The server.
    """

    def __init__(self, server: ServiceServer) -> None:
        self.connection = socket.create_connection(server.place, 30)
        self._server = server
        self._receiver = Receiver(self.connection, SERVER_LIMITS)

    def hello(self, **changes: Any) -> None:
        """Introduces itself as a relay does, but for some changes."""
        self.send(Kind.HELLO, {"token": self._server.token, "versions": peer_versions(), "job": "test"} | changes)

    def work(self, value: Any) -> None:
        """Says which work it asks for."""
        self.send(Kind.WORK, {}, json.dumps(value).encode())

    def send(self, kind: Kind, message: Mapping[str, Any], payload: bytes = b"") -> None:
        self.connection.sendall(pack_frame(kind, message, len(payload)) + payload)

    def next(self, *, answers: bool = True) -> Frame | None:
        """Returns the next frame but for heartbeats, which it answers; None if the server has ended the connection."""
        try:
            while True:
                for frame in self._receiver.frames(1):
                    if frame.kind != Kind.HEARTBEAT:
                        return frame
                    if answers:  # or the server drops it after ten seconds
                        with contextlib.suppress(ConnectionError):  # what it sent before it ended may still come
                            self.send(Kind.HEARTBEAT, {})
        except ConnectionError:
            return None

    def close(self) -> None:
        self.connection.close()

    def ask(self, work: Any, **changes: Any) -> None:
        """Introduces itself, and says which work it asks for, until that is accepted."""
        self.hello(**changes)
        welcome = self.next()
        assert welcome is not None
        self.work(work)
        answer = self.next()
        assert answer is not None
        assert answer.kind == Kind.ACCEPTED, answer

    def __del__(self) -> None:
        self.close()


class LocalPeer(Peer):
    """A peer on the server's Unix socket, which gets its memory.

    Args:
        server: The server.

    Attributes:
        descriptors: Descriptors that have come.
    """

    def __init__(self, server: ServiceServer) -> None:
        super().__init__(server)
        self.connection.close()
        self.connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.connection.settimeout(600)
        self.connection.connect(local_name(server.token, server.place[1]))
        self._receiver = Receiver(self.connection, SERVER_LIMITS, takes_descriptors=True)

    @property
    def descriptors(self) -> list[int]:
        return self._receiver.descriptors

    def close(self) -> None:
        while self.descriptors:
            os.close(self.descriptors.pop())
        super().close()
