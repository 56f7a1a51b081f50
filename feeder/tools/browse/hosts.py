"""The names by which requests may call the server, see Note [Whom the page is for]."""

from __future__ import annotations

import ipaddress
import re
import socket

__all__ = ["Hosts"]

_EVERYWHERE = ("0.0.0.0", "::")
_HOST = re.compile(r"(?:\[([0-9a-f:.]+)\]|([^:\[\]/@?#]+))(?::\d{1,5})?")


class Hosts:
    """The names of a server that listens on an address: those of the loopback address, and that address.

    A server that listens on all addresses is called by any of them, or by this machine's names. Another site's name may
    lead here as well, and is refused: its pages would get answers as if they were its own (DNS rebinding).

    Args:
        address: The address or name.

    Attributes:
        is_open: True if the server listens on all addresses.
        shown: A name for URLs that other machines understand, if the server listens there.
    """

    def __init__(self, address: str = "127.0.0.1") -> None:
        self.is_open = address in _EVERYWHERE
        name = socket.gethostname() if self.is_open else address
        self.shown = f"[{name}]" if ":" in name else name
        self._names = {"127.0.0.1", "localhost", "::1", name.lower()}
        if self.is_open:
            self._names.add(socket.getfqdn().lower())

    def has(self, header: str) -> bool:
        """Returns True if the value of a Host header names the server."""
        match = _HOST.fullmatch(header.lower())
        if match is None:
            return False
        name = match[1] or match[2]
        return name in self._names or (self.is_open and _is_address(name))


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
