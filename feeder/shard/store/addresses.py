"""Addresses of hosts: those of the internet, and those of this machine and of private networks."""

from __future__ import annotations

import ipaddress
import socket

__all__ = ["addresses_of", "connected", "private_one"]

_NAT64 = ipaddress.ip_network("64:ff9b::/96")
# Site-local ones, those of a network's own translation to IPv4, and former ways to write IPv4's.
_LOCAL = [ipaddress.ip_network(each) for each in ("fec0::/10", "64:ff9b:1::/48", "::/96", "::ffff:0:0:0/96")]


def addresses_of(host: str, port: int) -> list[str]:
    """Returns the addresses of a host, in the order in which to try them.

    Raises:
        OSError: if there is no such host.
    """
    try:
        return [str(place[0]) for *_, place in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]
    except UnicodeError:
        raise OSError("its host is not known") from None


def private_one(addresses: list[str]) -> str | None:
    """Returns the first address that leads to this machine or to a private network; None if none does."""
    return next((each for each in addresses if not _is_public(ipaddress.ip_address(each.partition("%")[0]))), None)


def connected(addresses: list[str], port: int, timeout_s: float) -> socket.socket:
    """Connects to the first address that answers, without asking for a name again.

    Args:
        addresses: The addresses, one or more.
        port: The port.
        timeout_s: Seconds that each of them may take.

    Raises:
        OSError: if none does.
    """
    for address in addresses[:-1]:
        try:
            return socket.create_connection((address, port), timeout_s)
        except OSError:
            continue
    return socket.create_connection((addresses[-1], port), timeout_s)


def _is_public(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    """Returns whether an address is one of the internet's, also where it stands for another one."""
    if isinstance(address, ipaddress.IPv6Address):
        inner = [address.ipv4_mapped, address.sixtofour, *(address.teredo or ())]
        if address in _NAT64:
            inner.append(ipaddress.IPv4Address(int(address) & 0xFFFFFFFF))
        if any(each is not None and not _is_public(each) for each in inner) or any(address in each for each in _LOCAL):
            return False
        if address.ipv4_mapped is not None:
            return True
    return address.is_global and not address.is_multicast
