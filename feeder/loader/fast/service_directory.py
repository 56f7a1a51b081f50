"""The servers of an input service, as a relay learns of them: by a helper process that asks Ray, or by a file.

Note [Ray stays outside]
    Neither the trainer nor a relay talks to Ray, which would fill them with threads, and end with its head. A helper
    process does, and prints what it finds, one JSON object a line. When it dies, the servers that are known stay in
    use, and another helper is started.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from typing import Any

from feeder.loader.fast.service_options import ServiceOptions

__all__ = ["Directory"]

_HELPER = "feeder.service.finder"
_RESTART_S, _MOST_RESTART_S = 2.0, 30.0  # the pause doubles while helpers find nothing
_LOOK_S = 0.25
_MOST_BYTES, _MOST_SERVERS = 1 << 20, 4096


class Directory:
    """The servers and the token of a service, as far as they are known.

    Args:
        options: The service.

    Attributes:
        servers: Host and port of each.
        token: Their token.
        problem: The reason for which nothing is known; empty if something is.
    """

    def __init__(self, options: ServiceOptions) -> None:
        self._options = options
        self.servers: list[tuple[str, int]] = []
        self.token = ""
        self.problem = "nothing is known of it yet"
        self._helper: subprocess.Popen[bytes] | None = None
        self._received = b""
        self._look_s = self._start_s = 0.0
        self._pause_s = _RESTART_S
        self._seen: tuple[int, int] | None = None

    @property
    def descriptor(self) -> int | None:
        """A descriptor to be polled for news; None: there is none."""
        return None if self._helper is None or self._helper.stdout is None else self._helper.stdout.fileno()

    @property
    def helper_pid(self) -> int | None:
        """Process id of the helper, if there is one."""
        return None if self._helper is None else self._helper.pid

    def look(self) -> None:
        """Takes in what is new."""
        if self._options.file is not None:
            self._read_file(self._options.file)
        elif self._helper is None:
            self._start_helper()
        else:
            self._read_helper(self._helper)

    def close(self) -> None:
        """Ends the helper process, if there is one."""
        helper, self._helper, self._received = self._helper, None, b""
        if helper is not None:
            for pipe in (helper.stdin, helper.stdout):
                assert pipe is not None
                pipe.close()
            helper.kill()
            helper.wait()

    def _read_file(self, path: str) -> None:
        now = time.monotonic()
        if now - self._look_s < _LOOK_S:
            return
        self._look_s = now
        try:
            status = os.stat(path)
            if (status.st_ino, status.st_mtime_ns) == self._seen:
                return
            with open(path, "rb") as file:
                self._take(file.read(_MOST_BYTES))
            self._seen = status.st_ino, status.st_mtime_ns
        except OSError as error:
            self.problem = f"{path}: {error.strerror}"

    def _start_helper(self) -> None:
        now = time.monotonic()
        if now < self._start_s:
            return
        self._start_s = now + self._pause_s
        self._pause_s = min(_MOST_RESTART_S, 2 * self._pause_s)
        name, address = self._options.name_and_address
        self._helper = subprocess.Popen(
            [sys.executable, "-m", _HELPER, name, address],
            stdin=subprocess.PIPE,  # its end tells the helper that this process is gone
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        assert self._helper.stdout is not None
        os.set_blocking(self._helper.stdout.fileno(), False)

    def _read_helper(self, helper: subprocess.Popen[bytes]) -> None:
        assert helper.stdout is not None
        try:
            data = os.read(helper.stdout.fileno(), 1 << 16)
        except BlockingIOError:
            return
        if not data:
            self.close()
            return
        *lines, self._received = (self._received + data).split(b"\n")
        if len(self._received) > _MOST_BYTES:
            self._received = b""
        for line in lines:
            self._take(line)

    def _take(self, data: bytes) -> None:
        """Takes in an object ``{"token": ..., "servers": [[host, port], ...]}``, or ``{"problem": ...}``."""
        try:
            found: Any = json.loads(data)
            if "problem" in found:
                self.problem = str(found["problem"])
                return
            servers = [(str(host), int(port)) for host, port in found["servers"][:_MOST_SERVERS]]
            self._pause_s = _RESTART_S
            self.token, self.servers = str(found["token"]), servers
            self.problem = "" if servers else "it has no server now"
        except (ValueError, TypeError, KeyError):
            self.problem = "what names its servers is damaged"
