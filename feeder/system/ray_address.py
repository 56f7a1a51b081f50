"""The address of a Ray cluster."""

from __future__ import annotations

import os
import re
import socket

__all__ = ["check_ray_address"]

_TIMEOUT_S = 5.0
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
