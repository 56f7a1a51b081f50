"""Options of a server of the input service."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field

__all__ = ["ServerOptions", "is_any_address"]


def is_any_address(host: str) -> bool:
    """Returns True for an address that stands for all of a machine's, such as 0.0.0.0: for listening alone."""
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:  # a name
        return False


@dataclass(frozen=True)
class ServerOptions:
    """Options of a server.

    Args:
        roots: Folders and URLs below which sets may be read.
        cores: Number of processes that make parts.
        token: The secret that clients must know.
        host: The address to listen on.
        port: TCP port; 0 for a free one.
        window_bytes: Memory for finished parts that other jobs may want, too.
        job_cores: Largest number of cores that one job gets at a time; None: all that the others leave.
        cache_dir: Cache of remote sets; None: the default.
        modules: Modules whose functions recipes and fields may call.
        tcp_only: True to send parts over TCP to clients on the same host, too.
    """

    roots: tuple[str, ...]
    cores: int
    token: str = field(repr=False)
    host: str = "127.0.0.1"
    port: int = 0
    window_bytes: int = 512 << 20
    job_cores: int | None = None
    cache_dir: str | None = None
    modules: tuple[str, ...] = ()
    tcp_only: bool = False
