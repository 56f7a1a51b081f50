"""Options of a server of the input service."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field

from feeder.errors import ArgumentError


def is_any_address(host: str) -> bool:
    """Returns True for an address that stands for all of a machine's, such as 0.0.0.0: for listening alone."""
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:  # a name
        return False


def node_address(address: str) -> str:
    """Returns the address that a node's server listens on unless another one is named: the node's in the cluster.

    Args:
        address: The node's address there: private, link-local, the machine's own, or one of a carrier's NAT.

    Raises:
        ArgumentError: for a public one.
    """
    try:
        found = ipaddress.ip_address(address)
    except ValueError:  # a name
        return address
    mapped = getattr(found, "ipv4_mapped", None)
    if (mapped or found).is_global:
        raise ArgumentError(
            f"its address in the cluster, {address}, is public, and pixels travel unencrypted: give it a private one "
            "(ray start --node-ip-address), or say where to listen (--host, host=; 0.0.0.0: at all of its addresses)"
        )
    return address


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
