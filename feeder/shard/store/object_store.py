"""Objects in S3, Google Cloud Storage, Azure and behind web servers, by obstore."""

from __future__ import annotations

import contextlib
import os
import random
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import obstore
from obstore.exceptions import BaseError

from feeder.errors import ArgumentError, ChangedError, ConflictError, ListingError, NotFoundError, StoreError
from feeder.shard.store.client import REQUEST_S, base_url, make_client
from feeder.shard.store.fault import Fault, FaultKind, fault_of
from feeder.shard.store.http_answers import BusyError, redirect_of
from feeder.shard.store.signed_ranges import SignedRanges
from feeder.shard.store.store import (
    PIECE_BYTES,
    RANGE_BYTES,
    TIMEOUT_S,
    Bytes,
    Entry,
    allows_http,
    entry_of,
    quoted_etag,
    refuse_web_server,
)
from feeder.shard.store.url import Url, check_key

if TYPE_CHECKING:
    from obstore.store import ObjectStore as Client

_PART_BYTES = 8 << 20
_FIRST_PAUSE_S, _LAST_PAUSE_S = 0.05, 1.0
# A store that has never answered gets less time: the host may be wrong, or the network missing.
_FIRST_ANSWER_S = 20.0
_REDIRECTS = 5  # in a row
_FIRST_PAGES = 2  # in place of a first range, after which it is asked for again
_MOST_CLIENTS = 64
_MOST_MOVED = 4096
_FOLLOWING = 64  # redirects that are followed at once

_START_BYTES = 16  # the start of a page that errors show
_PAGE_ADVICE = "a proxy or a login has answered for the store, or the server has no ranges: serve it by another one"

_Result = TypeVar("_Result")


class ObjectStore:
    """Objects below a URL; see :class:`feeder.shard.store.store.Store`.

    Args:
        url: The URL.
        allow_http: True to talk to it without encryption; None asks the environment.
        timeout: Seconds that each call goes on trying without an answer; 20 at most before the first answer.
        allow_private: True to let a web server of the internet redirect to this machine and to private networks.

    Attributes:
        url: The URL.
        retries: Number of requests that were repeated so far.
        has_answered: True once it has answered a request.
    """

    def __init__(
        self, url: Url, *, allow_http: bool | None = None, timeout: float = TIMEOUT_S, allow_private: bool = False
    ) -> None:
        self.url = url
        self.retries = 0
        self.timeout = timeout
        self._allow_http = allows_http(url, allow_http)
        self._lock = threading.Lock()
        self._allow_private = allow_private
        self._is_web = url.scheme in ("http", "https", "hf")
        self._redirects_all = url.scheme == "hf"
        self._headers: dict[str, str] = {}  # for the web server itself, and no other host
        # Keys: the base URL, True if the client writes, and the time limit of a request.
        self._clients: dict[tuple[str, bool, float], Client] = {}
        # Objects that a web server redirects, by key: the base URL of the client to ask, and the key for it.
        self._moved: dict[str, tuple[str, str]] = {}
        self._following = [threading.Lock() for _ in range(_FOLLOWING)]  # objects share them
        self._signed = SignedRanges(allow_http=self._allow_http) if url.scheme == "s3" else None
        self._has_ranges = False  # it is known to answer requests for ranges
        self.has_answered = False

    def size(self, key: str, *, is_wanted: Callable[[], bool] = lambda: True) -> Entry:
        self._check(key)
        self._moved.pop(key, None)  # there may be another object by now, at another place
        return self._call(key, lambda: self._head(key), is_wanted)

    def get(
        self,
        key: str,
        start: int = 0,
        end: int | None = None,
        etag: str | None = None,
        *,
        size_bytes: int | None = None,
        is_wanted: Callable[[], bool] = lambda: True,
    ) -> Bytes:
        self._check(key)
        if not etag and size_bytes is None:
            self._moved.pop(key, None)
        if end is None:
            # One request, as the object may be another one by a second.
            whole = self._call(key, lambda: self._open(key, 0, None, etag, size_bytes).bytes(), is_wanted)
            return memoryview(whole)[start:]
        ranges = [
            self._range(key, first, min(first + RANGE_BYTES, end), etag, size_bytes, is_wanted)
            for first in range(start, end, RANGE_BYTES)
        ]
        return ranges[0] if len(ranges) == 1 else b"".join(ranges)

    def signed(self, key: str) -> str | None:
        if self._signed is None:
            return None
        self._check(key)
        client: Any = self._client(False)
        return self._signed.sign(client, key)

    def pieces(
        self,
        key: str,
        start: int,
        end: int,
        etag: str | None = None,
        *,
        is_wanted: Callable[[], bool] = lambda: True,
    ) -> Iterator[Bytes]:
        self._check(key)
        stream: Iterator[Bytes] | None = None
        signed = self._signed
        has_failed = False

        def next_piece() -> Bytes:
            nonlocal stream, has_failed
            try:
                if stream is None and signed is not None and not has_failed:
                    client: Any = self._client(False)
                    stream = signed.open(client, key, start, end, etag, self._request_s)
                if stream is None:
                    stream = iter(self._open(key, start, end, etag, None).stream(PIECE_BYTES))
                    if signed is not None:  # see Note [Two clients]
                        signed.failed()
                piece = next(stream, b"")
                if not 0 < len(piece) <= end - start:
                    raise ConnectionError(f"{len(piece)} bytes came, {end - start} were left")
                self._has_ranges = True
            except BaseException:
                stream, has_failed = None, True
                raise
            return piece

        while start < end:
            piece = self._call(key, next_piece, is_wanted)
            start += len(piece)
            yield piece

    def put(
        self, key: str, data: Bytes | os.PathLike[str], *, if_absent: bool = False, if_match: Entry | None = None
    ) -> Entry:
        self._check(key)
        refuse_web_server(self.url)
        if not if_absent and if_match is None:
            source: Any = Path(data) if isinstance(data, os.PathLike) else data
            self._call(key, lambda: obstore.put(self._client(True), key, source, chunk_size=_PART_BYTES))
            return self.size(key)  # stores tell no ETag of what comes in parts
        content = Path(data).read_bytes() if isinstance(data, os.PathLike) else bytes(data)
        before = self.retries
        try:
            return self._put_if(key, content, if_match, if_match.etag if if_match else "")
        except ChangedError:
            now = entry_of(self, key)
        if now is not None and if_match is not None and now.etag == if_match.etag:
            # It is still the same: Ceph's gateway compares with the ETag without its quotes.
            with contextlib.suppress(ChangedError):
                return self._put_if(key, content, if_match, if_match.etag.strip('"'))
        # This may be a repeated request, whose first one went well, and whose answer was lost.
        if self.retries > before and now is not None and self._holds(now, content):
            return now
        raise ConflictError(
            f"{self.url.object(key)}: somebody else has " + ("written it" if if_absent else "changed it")
        )

    def _put_if(self, key: str, content: bytes, if_match: Entry | None, etag: str) -> Entry:
        """Creates an object or replaces one; raises ChangedError if that must not be."""
        mode: Any = "create"
        if if_match is not None:
            mode = {name: value for name, value in (("e_tag", etag), ("version", if_match.version)) if value}
        # The client for reading repeats nothing: repeats here show that an answer may have been lost.
        answer = self._call(key, lambda: obstore.put(self._client(False), key, content, mode=mode))
        return Entry(key, len(content), quoted_etag(answer["e_tag"]), answer["version"])

    def _holds(self, entry: Entry, content: bytes) -> bool:
        if entry.size_bytes != len(content):
            return False
        return self.get(entry.key, 0, len(content), entry.etag) == content

    def delete(self, key: str) -> None:
        self._check(key)
        refuse_web_server(self.url)
        with contextlib.suppress(NotFoundError):
            self._call(key, lambda: obstore.delete(self._client(False), key))

    def list(self, prefix: str = "") -> Iterator[Entry]:
        if self._is_web:
            raise ListingError(
                f"{self.url.object(prefix)}: a web server can't list its files; name them one by one, in a manifest "
                "or by a pattern such as https://host/train-{000..009}.tar"
            )
        if prefix:
            self._check(prefix)
        pages: Iterator[Sequence[Any]] | None = None
        last = ""

        def next_page() -> Sequence[Any] | None:
            nonlocal pages
            try:
                if pages is None:  # after a fault it goes on where it was
                    client = self._client(False)
                    pages = iter(obstore.list(client, prefix or None, offset=last or None, chunk_size=1000))
                return next(pages, None)
            except BaseException:
                pages = None
                raise

        while (page := self._call(prefix, next_page)) is not None:
            for each in [each for each in page if each["path"] > last]:  # not every store knows where to go on
                last = each["path"]
                yield _entry(last, each)

    def _head(self, key: str) -> Entry:
        found = None
        client, name = self._place(key)
        try:
            found = obstore.head(client, name)
        except (BaseError, OSError) as error:
            if fault_of(error, self.url.scheme).kind in (FaultKind.TRANSIENT, FaultKind.REDIRECT):
                raise
        # The answer to HEAD has no body, and so no reason; without an ETag it may be that of a page. GET tells more.
        if found is None or (found["size"] and not found["e_tag"]):
            found = self._open(key, 0, 1, None, None).meta
        return _entry(key, found)

    def _range(
        self,
        key: str,
        start: int,
        end: int,
        etag: str | None,
        size_bytes: int | None,
        is_wanted: Callable[[], bool],
    ) -> Bytes:
        def request() -> Bytes:
            data = memoryview(self._open(key, start, end, etag, size_bytes).bytes())
            if len(data) != end - start:
                raise ConnectionError(f"{len(data)} bytes came, {end - start} were asked for")
            self._has_ranges = True
            return data

        return self._call(key, request, is_wanted)

    def _open(
        self, key: str, start: int, end: int | None, etag: str | None, size_bytes: int | None
    ) -> obstore.GetResult:
        """Asks for a range, or for all if it has no end; its bytes have not come yet."""
        options: Any = ({} if end is None else {"range": (start, end)}) | ({"if_match": etag} if etag else {})
        client, name = self._place(key)
        try:
            result = obstore.get(client, name, options=options)
        except BaseError as error:
            if fault_of(error, self.url.scheme).kind is not FaultKind.PAGE:
                raise
            whole = None
            with contextlib.suppress(BaseError):
                whole = obstore.get(client, name)
            raise _page(whole) from None
        found, tag = result.meta, quoted_etag(result.meta["e_tag"])
        is_changed = bool(etag and tag and tag != etag)  # a server that does not know If-Match
        is_changed |= size_bytes is not None and found["size"] != size_bytes
        is_short = end is not None and found["size"] < end
        if _is_html(result) and (is_changed or is_short or (etag and not tag)):
            raise _page(result)
        if is_changed:
            raise self._changed(key)
        if is_short:
            raise StoreError(
                f"{self.url.object(key)}: has {found['size']:,} bytes, expected at least {end:,}: it was replaced, "
                "or is damaged"
            )
        return result

    def _changed(self, key: str) -> ChangedError:
        return ChangedError(
            f"{self.url.object(key)}: was replaced while it was being read; a shard set must not change: write the new "
            "one to another place, and start again"
        )

    def _check(self, key: str) -> None:
        try:
            check_key(key, str(self.url))
        except ArgumentError as error:
            raise NotFoundError(str(error)) from None

    def _client(self, writing: bool, base: str = "") -> Client:
        kind = base, writing, REQUEST_S if writing else self._request_s
        with self._lock:
            if kind not in self._clients:
                if len(self._clients) >= _MOST_CLIENTS:  # each redirect may have brought one
                    del self._clients[next(iter(self._clients))]
                how: Any = {"allow_http": self._allow_http, "writing": writing, "request_s": kind[2]}
                self._clients[kind] = make_client(self.url, base, headers=self._headers_for(base), **how)
            return self._clients[kind]

    def _headers_for(self, url: str) -> dict[str, str]:
        """Returns the headers that a web server may get: those of the store, or none if it is another one."""
        asked, own = urllib.parse.urlsplit(url), urllib.parse.urlsplit(base_url(self.url))
        return self._headers if not url or asked[:2] == own[:2] else {}

    def _place(self, key: str) -> tuple[Client, str]:
        """Returns the client to ask for an object, and the key for it."""
        base, name = self._moved.get(key, ("", key))
        return self._client(False, base), name

    def _follow(self, key: str, place: tuple[str, str] | None) -> None:
        """Asks a web server where it redirects an object to, which is then asked for there; see Note [Redirects].

        Args:
            key: The object.
            place: Where it was asked for; of all that find the same redirect at once, one follows it.
        """
        with self._following[hash(key) % len(self._following)]:
            if self._moved.get(key) != place:
                return
            base, name = place or (base_url(self.url), key)
            url = f"{base.rstrip('/')}/{urllib.parse.quote(name)}" if name else base
            found = redirect_of(
                url,
                self.url.object(key),
                allow_http=self._allow_http,
                allow_private=self._allow_private,
                request_s=self._request_s,
                headers=self._headers_for(url),
            )
            if len(self._moved) >= _MOST_MOVED:
                self._moved.clear()
            if found.endswith(f"/{key}") and "?" not in found:  # its client may be the one of others
                self._moved[key] = found.removesuffix(f"/{key}"), key
            elif found != url:
                self._moved[key] = found, ""

    @property
    def _request_s(self) -> float:
        """Seconds that a request for reading may take: a server that drips is not waited for any longer than others."""
        return min(REQUEST_S, self.timeout)

    def _call(self, key: str, request: Callable[[], _Result], is_wanted: Callable[[], bool] = lambda: True) -> _Result:
        """Returns a request's answer; repeats it after faults that may pass, while it is wanted.

        Raises:
            StoreError: naming the object, for any other fault.
        """
        began = time.monotonic()
        attempt = redirects = 0
        is_refreshed = is_redirected = False
        place: tuple[str, str] | None = None

        while True:
            clients = self._clients
            wait_s = 0.0
            try:
                if is_redirected or (self._redirects_all and key not in self._moved):
                    self._follow(key, place)
                place = self._moved.get(key)
                result = request()
                self.has_answered = True
                return result
            except (BaseError, OSError, ValueError) as error:
                fault = self._fault(error, attempt)
                if isinstance(error, BusyError):
                    self.has_answered = True
                    wait_s = error.seconds

            # A redirect is followed at once, up to a number of them in a row.
            attempt += 1
            is_redirected = self._is_web and fault.kind is FaultKind.REDIRECT
            if is_redirected and redirects < _REDIRECTS:
                redirects += 1
                continue

            # The next attempt asks the store again where the object is: signatures of places expire.
            was_moved = place is not None
            if was_moved and self._moved.get(key) == place:
                self._moved.pop(key, None)
            place = None
            if is_redirected:
                fault = Fault(FaultKind.FINAL, "the store redirects without end")

            if (
                fault.kind is FaultKind.EXPIRED or (was_moved and fault.kind is not FaultKind.TRANSIENT)
            ) and not is_refreshed:
                # New clients read environment, files and roles again.
                is_refreshed = True
                with self._lock:
                    if self._clients is clients:
                        self._clients = {}
            elif fault.kind is not FaultKind.TRANSIENT:
                self.has_answered = True
                raise self._error(key, fault)
            elif not is_wanted():
                raise StoreError(f"{self.url.object(key)}: {fault.reason}; nobody needs it any more")
            else:
                redirects = 0
                self._pause(key, fault, attempt, time.monotonic() - began, wait_s)
            with self._lock:
                self.retries += 1

    def _fault(self, error: Exception, attempt: int) -> Fault:
        """Returns what an error says, after so many attempts before it."""
        if isinstance(error, _PageError):  # a proxy's, which may pass, unless no range has ever come
            may_pass = self._has_ranges or attempt < _FIRST_PAGES
            return Fault(FaultKind.TRANSIENT if may_pass else FaultKind.FINAL, str(error), _PAGE_ADVICE)
        if isinstance(error, ConnectionError):
            return Fault(FaultKind.TRANSIENT, str(error))
        return fault_of(error, self.url.scheme)

    def _pause(self, key: str, fault: Fault, attempt: int, waited_s: float, wait_s: float) -> None:
        """Waits before the next attempt, for as long as the server asks for, or else longer after each attempt.

        Raises:
            StoreError: if the patience with the store would be at its end by then.
        """
        patience_s = self.timeout if self.has_answered else min(self.timeout, _FIRST_ANSWER_S)
        if waited_s + wait_s >= patience_s:
            raise StoreError(
                f"{self.url.object(key)}: no answer for {waited_s:.0f} s, in {attempt} attempts; the last: "
                f"{fault.reason}. Check the network and the store, then run again"
            )
        pause_s = min(_LAST_PAUSE_S, _FIRST_PAUSE_S * 2 ** min(attempt - 1, 10))
        time.sleep(wait_s or pause_s * random.uniform(0.5, 1))

    def _error(self, key: str, fault: Fault) -> StoreError:
        if fault.kind is FaultKind.CONDITION:
            return self._changed(key)
        text = f"{self.url.object(key)}: {fault.reason}" + (f"; {fault.advice}" if fault.advice else "")
        return NotFoundError(text) if fault.kind is FaultKind.MISSING else StoreError(text)


class _PageError(OSError):
    """A page came in place of what was asked for."""


def _entry(key: str, found: Any) -> Entry:
    """Returns the entry of an object by what obstore has of it."""
    modified_ns = int(found["last_modified"].timestamp() * 1e9)
    return Entry(key, found["size"], quoted_etag(found["e_tag"]), found["version"], modified_ns)


def _is_html(result: obstore.GetResult) -> bool:
    return str(result.attributes.get("Content-Type", "")).startswith("text/html")


def _page(result: obstore.GetResult | None) -> _PageError:
    """Returns the error that says what an answer looks like; None for one of which no more is known."""
    shown = ""
    if result is not None:
        start = bytes(next(iter(result.stream(1)), b""))[:_START_BYTES]
        shown = f" ({result.attributes.get('Content-Type', 'of no type')}), which starts with {start!r},"
    return _PageError(f"a whole page came{shown} in place of what was asked for")
