"""The address of a Ray cluster."""

from __future__ import annotations

import os
import re
import socket

__all__ = ["cant_join", "check_ray_address"]

_TIMEOUT_S = 5.0
_NONE_RUNS = "Could not find any running Ray instance"
_PLACE = re.compile(r"(?:\[(?P<six>[0-9A-Fa-f:.]+)\]|(?P<host>[^\[\]/:]+)):(?P<port>[0-9]{1,5})")


def check_ray_address(address: str) -> None:
    """Checks that somebody listens at an address, as Ray would wait for minutes.

    Args:
        address: As ``ray.init`` takes it. Only HOST:PORT is checked; "auto" may stand for one in RAY_ADDRESS.

    Raises:
        ConnectionError: if nobody does.
    """
    if address == "auto":
        address = os.environ.get("RAY_ADDRESS", "")
    place = _PLACE.fullmatch(address)
    if place is None:
        return
    try:
        socket.create_connection((place["six"] or place["host"], int(place["port"])), _TIMEOUT_S).close()
    except (OSError, OverflowError) as error:
        raise ConnectionError(f"nobody listens at {address}: {error}") from None


def cant_join(address: str, error: Exception) -> str:
    """Returns what to say of a cluster that can't be joined, and why: of Ray's reason the first sentence, as the rest
    is advice of its own.

    Args:
        address: As ``ray.init`` took it.
        error: What it raised.
    """
    reason = " ".join(str(error).split()).partition(". ")[0].rstrip(".")
    if reason == _NONE_RUNS:
        reason = "none runs here"
    return f"can't join the Ray cluster {address!r}: {reason}"
