"""The contract of stores of objects."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, Protocol

from feeder.errors import NotFoundError, StoreError
from feeder.shard.store.url import Url
from feeder.system.files import default_cache

RANGE_BYTES = 8 << 20  # the most of one request: where connections are cut often, larger ones never come to an end
_AT_ONCE = 8  # ranges of one object
PIECE_BYTES = 1 << 19  # small pieces cost a wake-up and a write each; large ones keep readers waiting
TIMEOUT_S = 600.0  # the longest time without network that is survived by default

Bytes = bytes | bytearray | memoryview


class Entry(NamedTuple):
    """An object of a store.

    Attributes:
        key: Its key, relative to the store's URL.
        size_bytes: Its size.
        etag: Changes with its contents; empty if the server gives none.
        version: The store's own number of this version, if it has one; needed to replace exactly this one.
        modified_ns: Time of its last change, ns since 1970.
    """

    key: str
    size_bytes: int
    etag: str = ""
    version: str | None = None
    modified_ns: int = 0


class Store(Protocol):
    """Objects below a URL. All methods may be called by several threads, and release the GIL while they wait.

    Each retries what a network or a server may get over: answers 408, 429 and 5xx, connections that break, are refused
    or stall. Other errors are raised at once, with the store's own reason.

    Attributes:
        url: The URL of the prefix; keys are relative to it, and never lead out of it.
        retries: Number of requests that were repeated so far.
        timeout: Seconds that each call goes on trying without an answer.
        has_answered: True if it is known to answer. Of a store that never has, a missing network is told soon.
    """

    url: Url
    retries: int
    timeout: float
    has_answered: bool

    def size(self, key: str, *, is_wanted: Callable[[], bool] = lambda: True) -> Entry:
        """Returns an object's entry.

        Args:
            key: The object.
            is_wanted: See :meth:`pieces`.

        Raises:
            NotFoundError: if there is none.
            StoreError: if the store can't be read.
        """

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
        """Returns an object's bytes, all that were asked for.

        Args:
            key: The object.
            start: The first byte.
            end: The byte after the last; None for the object's end.
            etag: The entry's; empty or None takes the object as it is.
            size_bytes: The entry's; None for any.
            is_wanted: See :meth:`pieces`.

        Raises:
            NotFoundError: if there is none.
            ChangedError: if the object has another ETag or size by now.
            StoreError: if the store can't be read, or the object ends before ``end``.
        """

    def pieces(
        self,
        key: str,
        start: int,
        end: int,
        etag: str | None = None,
        *,
        is_wanted: Callable[[], bool] = lambda: True,
    ) -> Iterator[Bytes]:
        """Yields an object's bytes as they come, in pieces of 512 KiB, or of up to 2 MiB where they come fast.

        After a fault it goes on where it was.

        Args:
            key, start, end, etag: As in :meth:`get`.
            is_wanted: Is asked after a fault; if it returns False, that is an error, and no request is repeated.

        Raises:
            NotFoundError, ChangedError, StoreError: as :meth:`get` does.
        """

    def signed(self, key: str) -> str | None:
        """Returns a URL that has an object for 15 minutes; None where there is none to be used."""

    def put(
        self, key: str, data: Bytes | os.PathLike[str], *, if_absent: bool = False, if_match: Entry | None = None
    ) -> Entry:
        """Writes an object. It appears whole or not at all.

        Args:
            key: The object.
            data: Its bytes, or the file to upload.
            if_absent: True to write only if there is none yet.
            if_match: Writes only if this is still the object there.

        Returns:
            The entry of the new object.

        Raises:
            ConflictError: if the condition does not hold.
            StoreError: if the store can't be written.
        """

    def delete(self, key: str) -> None:
        """Deletes an object, if it is there."""

    def list(self, prefix: str = "") -> Iterator[Entry]:
        """Yields the objects below a folder, sorted by key.

        Args:
            prefix: The folder, without a slash at its end; empty for all.

        Raises:
            ListingError: if the store can't list.
        """


def hub_folder(url: Url) -> str:
    """Returns the folder of the cache for what is made of a commit on the Hub: its listing, and indexes of its tars,
    by their paths in the repository. Each token has one of its own, as not all may see a private dataset.

    Args:
        url: An hf URL, whose revision is a commit.
    """
    from huggingface_hub import get_token

    repository, commit, _ = url.repository()
    place = hashlib.sha256(f"{url.service}|{repository}@{commit}|{get_token()}".encode()).hexdigest()[:16]
    return os.path.join(default_cache(), "hub", f"{repository.replace('/', '--')}-{place}")


def entry_of(store: Store, key: str) -> Entry | None:
    """Returns the entry of an object; None if there is none."""
    try:
        return store.size(key)
    except NotFoundError:
        return None


def download(store: Store, entry: Entry, path: str) -> None:
    """Writes an object to a file.

    Args:
        store: Its store.
        entry: Its entry; if it was replaced since, that is an error.
        path: The file.

    Raises:
        StoreError: if it can't be read.
        OSError: if the file can't be written.
    """
    with open(path, "wb") as file:

        def copy(start: int) -> None:
            data = memoryview(store.get(entry.key, start, min(start + RANGE_BYTES, entry.size_bytes), entry.etag))
            done = 0
            while done < len(data):
                done += os.pwrite(file.fileno(), data[done:], start + done)

        with ThreadPoolExecutor(_AT_ONCE) as pool:
            for _ in pool.map(copy, range(0, entry.size_bytes, RANGE_BYTES)):
                pass


def allows_http(url: Url, asked: bool | None) -> bool:
    """Returns whether a store may be talked to without encryption; None asks ``AWS_ALLOW_HTTP`` of the environment.

    Raises:
        StoreError: if its URL is without encryption, and that is not allowed.
    """
    allowed = os.environ.get("AWS_ALLOW_HTTP", "").lower() in ("1", "true", "yes", "on") if asked is None else asked
    if not allowed and (url.scheme == "http" or url.service.lower().startswith("http://")):
        raise StoreError(
            f"{url.object('')}: is without encryption (http), so anybody on the way can read and change it: use "
            "https, or allow it with allow_http=True or AWS_ALLOW_HTTP=true"
        )
    return allowed


def quoted_etag(found: str | None) -> str:
    """Returns an ETag with its quotes, which Azure leaves out in listings; empty for a weak one, which web servers give
    that compress answers: no condition ever holds for it."""
    if not found or found.startswith("W/"):
        return ""
    return found if found.endswith('"') else f'"{found}"'


def refuse_web_server(url: Url) -> None:
    """Returns if a store can be written.

    Raises:
        StoreError: if it is a web server.
    """
    if url.scheme in ("http", "https", "hf"):
        raise StoreError(f"{url}: a web server is only read; write to s3://, gs:// or az://")
