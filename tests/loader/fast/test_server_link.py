"""A link to a server takes what the server has said last."""

from __future__ import annotations

import select
import socket
import struct

import pytest

from feeder.loader.fast.server_link import ServerLink
from feeder.service.frames import Kind, pack_frame
from tests.support.processes import wait_until


@pytest.mark.parametrize("reason", ["the token is not that of this service", ""])
def test_a_refusal_is_read_also_if_a_heartbeat_could_not_be_sent_any_more(reason: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        link: ServerLink = ServerLink(listener.getsockname(), {"job": "test"}, b"{}", lambda *_: [])
        connection, _ = listener.accept()
    ready = select.poll()
    ready.register(link.connection, select.POLLIN | select.POLLOUT)
    wait_until(lambda: ready.poll(0))
    link.serve(select.POLLOUT)
    if reason:
        connection.sendall(pack_frame(Kind.REFUSED, {"reason": reason}))
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()
    wait_until(lambda: ready.poll(0)[0][1] & select.POLLHUP)
    link.tick()
    if not link.lost:  # else its owner drops it
        link.serve(ready.poll(0)[0][1])
    assert link.refusal == reason
    assert link.lost
    link.close()
