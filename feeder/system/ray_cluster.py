"""Ray: the address of a cluster, and a driver without its daemons' messages."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import socket
from collections.abc import Iterator

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


@contextlib.contextmanager
def joined_cluster(address: str, refusal: type[Exception]) -> Iterator[None]:
    """Joins a cluster, unless this process has done so, and leaves it in the end.

    Args:
        address: As ``ray.init`` takes it.
        refusal: The error to raise if the cluster can't be joined.
    """
    import ray

    if ray.is_initialized():
        yield
        return
    try:
        check_ray_address(address)
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise refusal(
            f"{cant_join(address, error)}; start one with `ray start --head`, or give --address HOST:PORT"
        ) from None
    try:
        yield
    finally:
        ray.shutdown()


_SETTING = "RAY_DEDUP_LOGS_SKIP_REGEX"  # read when Ray is imported; log_to_driver=False leaves these messages


@contextlib.contextmanager
def quiet_ray() -> Iterator[None]:
    """Silences Ray's messages of its cluster, such as a node's death, if the block is the first to import Ray.

    A program that has imported Ray before, or has the setting already, keeps its own way.
    """
    if _SETTING in os.environ:
        yield
        return
    os.environ[_SETTING] = "."
    try:
        yield
    finally:
        del os.environ[_SETTING]
