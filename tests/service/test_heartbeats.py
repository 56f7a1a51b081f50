"""A server sends its heartbeats in time, by a clock of the test's."""

from __future__ import annotations

import selectors
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from feeder.service import connection, server
from feeder.service.frames import SERVER_LIMITS, Kind, Receiver, pack_frame, peer_versions
from feeder.service.server import Server
from feeder.service.server_options import ServerOptions
from tests.support.clock import Clock

BEGIN_S, END_S, HEARTBEAT_S = 1000.0, 1008.0, 0.25  # a silent client is dropped after 10 s


class FastSelector(selectors.DefaultSelector):
    """From the time that a client is welcomed, the clock goes on at once where nothing has come; then the client asks
    for an answer, and the server ends.

    Args:
        client: The client's socket.
        clock: The clock.

    Attributes:
        server: The server.
        heartbeats: Number of those that have come to the client.
    """

    def __init__(self, client: socket.socket, clock: Clock) -> None:
        super().__init__()
        self.server: Any = None
        self.heartbeats = 0
        self._client, self._clock = client, clock
        self._receiver = Receiver(client, SERVER_LIMITS)
        self._is_welcome = self._has_asked = False

    def select(self, timeout: float | None = None) -> Any:
        for frame in self._receiver.frames():
            self._is_welcome = True
            self.heartbeats += frame.kind == Kind.HEARTBEAT
            if frame.kind == Kind.STATUS:
                self.server.stop()
        if not self._is_welcome or self._has_asked:
            return super().select(0.01)
        found = super().select(0)
        if not found:
            self._clock.now += timeout or 0.0
        if self._clock.now >= END_S:
            self._client.sendall(pack_frame(Kind.STATUS, {}))
            self._has_asked = True
        return found


def test_heartbeats_go_out_every_250_ms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    with socket.socket() as peer:
        selector = FastSelector(peer, clock)
        for module in (connection, server):
            monkeypatch.setattr(module, "time", clock)
        faked = {**vars(selectors), "DefaultSelector": lambda: selector}
        monkeypatch.setattr(server, "selectors", SimpleNamespace(**faked))
        selector.server = Server(ServerOptions((str(tmp_path),), 0, "token", tcp_only=True))
        peer.connect(selector.server.address)
        peer.sendall(pack_frame(Kind.HELLO, {"token": "token", "versions": peer_versions(), "job": "test"}))
        peer.setblocking(False)
        clock.now = BEGIN_S
        selector.server.run()
    assert selector.heartbeats >= (END_S - BEGIN_S) / HEARTBEAT_S
