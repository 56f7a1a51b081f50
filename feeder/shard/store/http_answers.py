"""Requests by Python's own HTTP client, which follows no redirect, and the addresses of hosts."""

from __future__ import annotations

import contextlib
import http.client
import ipaddress
import os
import socket
import ssl
import struct
import threading
import urllib.parse
from collections.abc import Iterator

from feeder.errors import StoreError
from feeder.shard.store.client import CONNECT_S, STALL_S, proxy_of, tls_context

_SAFE = "/%~!$&'()*+,;=:@?#[]"  # in a URL, what is not to be percent-encoded
Connection = http.client.HTTPConnection
_NAT64 = ipaddress.ip_network("64:ff9b::/96")
# Site-local ones, those of a network's own translation to IPv4, and former ways to write IPv4's.
_LOCAL = [ipaddress.ip_network(each) for each in ("fec0::/10", "64:ff9b:1::/48", "::/96", "::ffff:0:0:0/96")]


class BusyError(ConnectionError):
    """A server that asks for fewer requests.

    Attributes:
        seconds: The time to wait, as its Retry-After says.
    """

    def __init__(self, seconds: int) -> None:
        super().__init__(f"429: it asks to wait for {seconds} s")
        self.seconds = seconds


def answer_of(
    connection: Connection, target: str, headers: dict[str, str], request_s: float
) -> tuple[socket.socket, http.client.HTTPResponse]:
    """Sends a request; returns the socket and the head of the answer. Closes the connection if there is none."""
    stall_s = min(STALL_S, request_s)
    try:
        if connection.sock is None:
            connection.connect()
        channel: socket.socket = connection.sock
        channel.settimeout(stall_s)
        stall = struct.pack("ll", int(stall_s), int(stall_s % 1 * 1e6))
        channel.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, stall)
        connection.request("GET", target, headers=headers)
        with _time_limit(channel, request_s):  # the head may come byte by byte
            return channel, connection.getresponse()
    except BaseException:
        connection.close()
        raise


def redirect_of(
    url: str, shown: str, *, allow_http: bool, allow_private: bool, request_s: float, headers: dict[str, str]
) -> str:
    """Returns the URL that a web server redirects to; the same one if it does not. See Note [Redirects].

    Args:
        url: The URL to ask for.
        shown: The object, for messages.
        allow_http: True to be redirected to http without encryption.
        allow_private: True to be redirected from the internet to this machine and to private networks.
        request_s: Seconds that the request may take.
        headers: Headers that this host may get.

    Raises:
        StoreError: if it redirects to where that is not allowed.
        BusyError: if it asks to be left alone for a while.
        ConnectionError: if it does not answer, or there is no such host: the next attempt may succeed.
    """
    try:
        pieces, addresses, port = _resolved(url)
        connection = _connection(pieces, addresses, port)
        headers = {"Range": "bytes=0-0", "Accept-Encoding": "identity"} | headers
        with contextlib.closing(connection):
            _, response = answer_of(connection, pieces._replace(scheme="", netloc="").geturl(), headers, request_s)
            location = response.getheader("Location") if 300 <= response.status < 400 else None
            seconds = response.getheader("Retry-After", "") if response.status == 429 else ""
            response.close()
        if seconds.isdecimal():
            raise BusyError(int(seconds))
        if not location:
            return url

        found = urllib.parse.urljoin(url, urllib.parse.quote(location.encode("latin-1"), safe=_SAFE))
        if not found.startswith(("http://", "https://") if allow_http else "https://"):
            raise StoreError(
                f"{shown}: redirects to what is without encryption (http), or no URL of a web server; set "
                "allow_http=True to allow http"
            )
        private = None if proxy_of(found) else private_one(_resolved(found)[1])
    except ssl.SSLCertVerificationError:
        raise
    except ValueError:
        raise StoreError(f"{shown}: redirects to what is not a URL") from None
    except BusyError:
        raise
    except (OSError, http.client.HTTPException) as error:
        raise ConnectionError(reason_of(error)) from None
    if private is not None and not allow_private and private_one(addresses) is None:
        raise StoreError(
            f"{shown}: redirects to {private}, which is this machine or a private network; if that is meant, name "
            "that place as the URL, or allow it with allow_private=True"
        )
    return urllib.parse.urldefrag(found).url


def _resolved(url: str) -> tuple[urllib.parse.SplitResult, list[str], int]:
    """Returns a URL's pieces, and addresses and port of its host; raises ValueError if it is not one."""
    pieces = urllib.parse.urlsplit(url)
    port = pieces.port or (443 if pieces.scheme == "https" else 80)
    return pieces, addresses_of(pieces.hostname or "", port), port


def _connection(pieces: urllib.parse.SplitResult, addresses: list[str], port: int) -> Connection:
    """Connects to a host at its addresses."""
    host = pieces.hostname or ""
    channel = _connected(addresses, port, CONNECT_S)
    if pieces.scheme == "http":
        connection = Connection(host, port)
    else:
        context = tls_context()
        connection = http.client.HTTPSConnection(host, port, context=context)
        channel = context.wrap_socket(channel, server_hostname=host)
    connection.sock = channel
    return connection


def connection_to(scheme: str, netloc: str) -> Connection:
    """Returns a connection to a server, for its first request to make."""
    if scheme == "http":
        return Connection(netloc, timeout=CONNECT_S)
    return http.client.HTTPSConnection(netloc, timeout=CONNECT_S, context=tls_context())


def reason_of(error: Exception) -> str:
    """Returns the reason to show for a request without an answer."""
    if isinstance(error, TimeoutError | BlockingIOError):
        return "no answer in time"
    return str(error) if type(error) is ConnectionError else getattr(error, "strerror", None) or "the connection broke"


@contextlib.contextmanager
def _time_limit(connected: socket.socket, seconds: float) -> Iterator[None]:
    """Ends a connection that takes longer than a time.

    Args:
        connected: Its socket.
        seconds: The time.
    """
    channel = socket.socket(fileno=os.dup(connected.fileno()))  # an encrypted one has no dup()

    def end() -> None:
        with contextlib.suppress(OSError):  # it has just ended
            channel.shutdown(socket.SHUT_RDWR)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
        channel.close()


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


def _connected(addresses: list[str], port: int, timeout_s: float) -> socket.socket:
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
