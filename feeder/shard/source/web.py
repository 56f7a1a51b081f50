"""Images behind URLs that stand in a manifest: whoever wrote it must not reach what only this machine can.

Note [Addresses]
Names are resolved once, all addresses are checked, and the connection goes to an address that was checked. So a name
that resolves to another address a moment later leads nowhere else, nor does a redirect, which is checked like the URL
itself. Proxies of the environment are not used, as they would resolve names on their own.
"""

from __future__ import annotations

import http.client
import os
import re
import socket
import ssl
import time
import urllib.parse

from feeder.errors import NotFoundError, StoreError
from feeder.shard.source.image_file import MAX_FILE_BYTES
from feeder.shard.source.web_servers import PassingError, Servers, asked_pause_s
from feeder.shard.store.addresses import addresses_of, connected, private_one
from feeder.shard.store.store import TIMEOUT_S
from feeder.shard.store.time_limit import TimeLimit
from feeder.shard.store.url import may_be_userinfo

__all__ = ["WebReader", "shown_url"]

_CONNECT_S, _READ_S = 10.0, 30.0
ANSWER_S = 300.0  # for a whole answer, however steadily it drips
_PATIENCE_S = 20.0
# In a row, after which a URL is rejected: an outage may end just between one and the server's next answer.
_OWN_FAULTS = 2
_REDIRECTS = 5
_HEADERS = {"User-Agent": "feeder", "Accept": "image/*,*/*", "Accept-Encoding": "identity", "Connection": "close"}
_PLACE = re.compile(r"(\[[^\[\]@]*\]|[^\[\]:@]*)(:[0-9]*)?")  # a host, with a port if there is one


def shown_url(url: str) -> str:
    """Returns a URL to show and to store: without userinfo, query and fragment, which may hold secrets."""
    scheme, separator, rest = url.partition("://")
    if not separator:
        scheme = url.partition(":")[0]
        return url if scheme.lower() == "file" else f"{scheme}:..."
    rest = rest.partition("?")[0].partition("#")[0]
    place, slash, path = rest.partition("/")
    host = place.rpartition("@")[2]
    # A name and a password may have a slash, which ends the place.
    if not _PLACE.fullmatch(host) or may_be_userinfo(host, path):
        before, at, place = rest.rpartition("@")
        return f"{scheme}://...{at}{place if before else ''}"
    return f"{scheme}://{host}{slash}{path}"


class WebReader:
    """Reads http(s) URLs. Several threads may use one.

    Args:
        allow_private: True to connect to this machine and to private networks, too.
        max_bytes: More than this is not read.
        timeout_s, patience_s: See :class:`feeder.shard.source.web_servers.Servers`.
    """

    def __init__(
        self,
        *,
        allow_private: bool = False,
        max_bytes: int = MAX_FILE_BYTES,
        timeout_s: float = TIMEOUT_S,
        patience_s: float = _PATIENCE_S,
    ) -> None:
        self._allow_private = allow_private
        self._max_bytes = max_bytes
        self._servers = Servers(timeout_s, patience_s)
        self._context = ssl.create_default_context(cafile=os.environ.get("AWS_CA_BUNDLE"))

    def get(self, url: str) -> bytes:
        """Returns the bytes behind a URL; follows redirects, and asks again after faults that may pass.

        Raises:
            StoreError: if it can't be read, or must not be. Its message does not show the query.
            SourceError: if the fault is not this URL's; see Note [Whose fault].
        """
        shown, began, attempts, faults = shown_url(url), time.monotonic(), 0, 0
        place = _parsed(url, shown)[:2]
        while True:
            self._servers.wait(place)
            attempts += 1
            try:
                return self._follow(url)
            except PassingError as fault:
                is_own = not self._servers.failed(shown, began, fault, self._follow)
                faults = faults + 1 if is_own else 0
                if faults == _OWN_FAULTS:
                    raise StoreError(f"{shown}: {fault}, in {attempts} attempts, while others are answered") from None

    def close(self) -> None:
        """Ends what other threads wait for, by an error."""
        self._servers.end()

    def _follow(self, url: str) -> bytes:
        shown = shown_url(url)
        for _ in range(_REDIRECTS + 1):
            answer = self._ask(url, shown)
            if isinstance(answer, bytes):
                return answer
            url = urllib.parse.urljoin(url, answer)
        raise StoreError(f"{shown}: redirects more than {_REDIRECTS} times")

    def _ask(self, url: str, shown: str) -> bytes | str:
        """Returns the bytes behind a URL, or the URL that it redirects to."""
        host, port, target, is_encrypted = _parsed(url, shown)
        connection = http.client.HTTPConnection(host, port, timeout=_READ_S)
        limit: TimeLimit | None = None
        try:
            connection.sock = self._connected(host, port, shown)
            limit = TimeLimit(connection.sock, ANSWER_S)
            if is_encrypted:
                connection.sock = self._context.wrap_socket(connection.sock, server_hostname=host)
            default = port == (443 if is_encrypted else 80)
            name = f"[{host}]" if ":" in host else host
            connection.request("GET", target, headers={**_HEADERS, "Host": name if default else f"{name}:{port}"})
            with connection.getresponse() as response:
                try:
                    answer = self._body(response, shown)
                except StoreError:  # an answer, too
                    self._servers.answered((host, port), url)
                    raise
            if limit.is_over:  # what ended in the middle can look whole
                raise TimeoutError
            self._servers.answered((host, port), url)
            return answer
        except ssl.SSLCertVerificationError as error:
            raise StoreError(f"{shown}: the server's certificate is refused: {error.verify_message}") from None
        except (OSError, http.client.HTTPException, ValueError, PassingError) as error:
            if limit is not None and limit.is_over:
                raise StoreError(f"{shown}: its answer takes more than {ANSWER_S:g} s") from None
            if isinstance(error, PassingError):
                error.place = host, port
                raise
            text = error.strerror if isinstance(error, OSError) and error.strerror else type(error).__name__
            place, is_reached = (host, port), limit is not None
            raise PassingError(f"can't be read: {text}", is_reached=is_reached, place=place) from None
        finally:
            connection.close()
            if limit is not None:
                limit.close()

    def _body(self, response: http.client.HTTPResponse, shown: str) -> bytes | str:
        """Returns the bytes of an answer, or the URL that it redirects to."""
        location = response.getheader("Location")
        if response.status in (301, 302, 303, 307, 308) and location:
            return location
        if response.status != 200:
            raise _refusal(response, shown)
        length = int(response.getheader("Content-Length") or 0)
        data = response.read(self._max_bytes + 1) if length <= self._max_bytes else b""
        if max(length, len(data)) > self._max_bytes:
            raise StoreError(f"{shown}: has more than {self._max_bytes:,} bytes")
        if len(data) < length:
            raise PassingError("the connection broke")
        return data

    def _connected(self, host: str, port: int, shown: str) -> socket.socket:
        """Connects to one of a host's addresses, which are checked first; see Note [Addresses]."""
        try:
            addresses = addresses_of(host, port)
        except OSError:
            raise PassingError("its host is not known", is_reached=False) from None
        private = private_one(addresses)
        if private is not None and not self._allow_private:
            raise StoreError(
                f"{shown}: leads to {private}, which is this machine or a private network; if that is meant, and the "
                "manifest is yours, use --allow-private"
            )
        made = connected(addresses, port, _CONNECT_S)
        made.settimeout(_READ_S)
        return made


def _parsed(url: str, shown: str) -> tuple[str, int, str, bool]:
    """Returns host, port, the request's target, and whether the connection is encrypted."""
    try:
        parts = urllib.parse.urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        raise StoreError(f"{shown}: is not a URL") from None
    if parts.scheme not in ("http", "https"):
        raise StoreError(
            f"{shown}: a manifest may hold paths and http(s) URLs; for a bucket give paths, and the bucket as "
            "--image-root s3://bucket/folder"
        )
    if parts.username is not None or parts.password is not None:
        raise StoreError(f"{shown}: a URL in a manifest must not hold a name or a password")
    if not host:
        raise StoreError(f"{shown}: has no host")
    target = urllib.parse.quote(parts.path or "/", safe="/%~!$&'()*+,;=:@")
    if parts.query:
        target += "?" + urllib.parse.quote(parts.query, safe="/%~!$&'()*+,;=:@?-._")
    is_encrypted = parts.scheme == "https"
    return host, port or (443 if is_encrypted else 80), target, is_encrypted


def _refusal(response: http.client.HTTPResponse, shown: str) -> Exception:
    """Returns the error for an answer that is none."""
    reason = f"{response.status} {response.reason}"
    if response.status in (404, 410):
        return NotFoundError(f"{shown}: not found ({reason})")
    if response.status in (408, 429) or response.status >= 500:
        pause_s = asked_pause_s(response.getheader("Retry-After") or "")
        return PassingError(reason, is_busy=response.status in (429, 503), pause_s=pause_s)
    return StoreError(f"{shown}: {reason}")
