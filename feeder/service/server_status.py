"""The present state of a service's servers, asked of each by its own protocol."""

from __future__ import annotations

import socket
import time
from typing import Any

from feeder.errors import ServiceError
from feeder.service.frames import SERVER_LIMITS, Kind, ProtocolError, Receiver, pack_frame, peer_versions

_TIMEOUT_S = 3.0
_SPAN_S = 1.0  # over which rates are taken


def server_status(address: tuple[str, int], token: str, timeout_s: float = _TIMEOUT_S) -> dict[str, Any]:
    """Returns :meth:`feeder.service.server.Server.status` of a server.

    Args:
        address: Its host and port.
        token: Its token.
        timeout_s: Longest wait for its answer.

    Raises:
        ServiceError: with the reason if it does not answer, or refuses.
    """
    hello = {"token": token, "versions": peer_versions(), "job": "status"}
    try:
        with socket.create_connection(address, timeout_s) as connection:
            connection.sendall(pack_frame(Kind.HELLO, hello) + pack_frame(Kind.STATUS, {}))
            receiver, ends = Receiver(connection, SERVER_LIMITS), time.monotonic() + timeout_s
            while time.monotonic() < ends:
                for frame in receiver.frames():
                    if frame.kind == Kind.REFUSED:
                        raise ServiceError(f"refuses: {frame.message.get('reason')}")
                    if frame.kind == Kind.STATUS:
                        return frame.message
    except (OSError, ProtocolError) as error:
        raise ServiceError(f"does not answer: {error}") from None
    raise ServiceError("does not answer")


def service_status(known: dict[str, Any]) -> dict[str, Any]:
    """Returns the state of a service.

    Args:
        known: Its servers and their token, as :func:`feeder.service.cluster.directory` returns them.

    Returns:
        ``servers``: for each what :meth:`feeder.service.server.Server.status` returns with ``images_per_s`` and
        ``cpu_share`` (of its cores) over a second; or ``address`` and ``problem``, also for nodes that were lost or
        can't start one.
    """
    places = [(str(host), int(port)) for host, port in known["servers"]]
    before, began_s = [_asked(place, known["token"]) for place in places], time.monotonic()
    time.sleep(_SPAN_S)
    servers = []
    for place, earlier in zip(places, before, strict=True):
        span_s = time.monotonic() - began_s
        now = _asked(place, known["token"])
        if "problem" not in now:
            same = earlier if "problem" not in earlier and earlier["up_s"] <= now["up_s"] else now
            now["images_per_s"] = (_images(now) - _images(same)) / span_s
            now["address"] = f"{place[0]}:{place[1]}"  # at which it is known
            now["cpu_share"] = max(0.0, now["cpu_s"] - same["cpu_s"]) / span_s / now["cores"]
        servers.append(now)
    return {"servers": servers + known.get("problems", [])}


def _asked(place: tuple[str, int], token: str) -> dict[str, Any]:
    try:
        return server_status(place, token)
    except ServiceError as error:
        return {"address": f"{place[0]}:{place[1]}", "problem": str(error)}


def _images(status: dict[str, Any]) -> int:
    return sum(job["images"] for job in status["jobs"].values())
