"""The client's side of the cache: a folder that mirrors a remote set, of which parts come when they are needed."""

from __future__ import annotations

import contextlib
import os
import resource
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from feeder.errors import ChangedError, NotFoundError, StoreError
from feeder.shard.cache.link import Link
from feeder.shard.cache.listed_contents import LISTING
from feeder.shard.cache.places import identity, mirror_folder
from feeder.shard.cache.presence import Presence, boot_id, record_path
from feeder.shard.cache.waits import waits
from feeder.shard.format.index_file import INDEX_NAME
from feeder.shard.store.signed_objects import Signed, SignedObjects
from feeder.shard.store.store import TIMEOUT_S, allows_http
from feeder.shard.store.url import Url, is_remote
from feeder.system.checks import check_int, check_positive

Want = tuple[str, int, int]

FETCHER = "feeder.shard.cache.fetcher:main"
_WANTS_AT_ONCE = 1000  # a message has at most about 120 bytes for each
_SIGNED_AT_ONCE = 64
_DEATHS = 5  # fetchers that may end while one need is waited for
_ROUNDS = 50  # rounds of one need; after these the cache counts as too small for it
_OPEN_FILES, _FEWEST_FILES, _LIMIT_SHARE = 256, 8, 8
_GRACE_S = 60.0  # the fetcher gets so much longer than its own limit
_HITS_TOLD, _TELL_S = 256, 1.0


@dataclass(frozen=True)
class FetchOptions:
    """Options of a mirror's fetcher.

    Args:
        url: The set's folder.
        index: Name of the set's header in it.
        cache_bytes: Bytes that the cache may take; None: what leaves 10 GiB of its disk free, or a tenth of a
            smaller one.
        allow_http: True to allow plain http; None: as the environment says.
        allow_private: True to let a web server of the internet redirect to this machine and to private networks.
        timeout_s: Longest time without an answer of the store.
        reads_crops: True to fetch only the blocks that crops need, when they are needed.
        identity: See :func:`feeder.shard.cache.places.identity`; a run's workers have that of its trainer.
    """

    url: str
    index: str = INDEX_NAME
    cache_bytes: int | None = None
    allow_http: bool | None = None
    allow_private: bool = False
    timeout_s: float = TIMEOUT_S
    identity: str = ""
    reads_crops: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "cache_bytes", check_int("cache_bytes", self.cache_bytes, 1, or_none=True))
        check_positive("timeout", self.timeout_s)


class _File:
    """A file of the mirror as one thread has it open.

    Raises:
        FileNotFoundError: if it is not there.
        ValueError: if the fetcher has to look at it first.

    Attributes:
        presence: Its record.
        descriptor: The open file, which is the record's.
    """

    def __init__(self, folder: str, name: str) -> None:
        while True:
            self.presence = Presence(record_path(folder, name))
            if self.presence.boot != boot_id():
                raise ValueError("the fetcher checks it first")
            self.descriptor = os.open(os.path.join(folder, name), os.O_RDONLY | os.O_CLOEXEC)
            if os.fstat(self.descriptor).st_size != self.presence.size_bytes:
                raise ValueError("it was cut, or is being made")
            if not self.presence.is_retired:
                return
            os.close(self.descriptor)
            del self.descriptor

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        if hasattr(self, "descriptor"):
            close(self.descriptor)


class _Local(threading.local):
    """Files that a thread has open, by name, the one used last at the end, and its connection."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.files: OrderedDict[str, _File] = OrderedDict()
        self.link: Link | None = None
        self.hits = 0
        self.told = time.monotonic()
        self.tells = True
        self.objects: SignedObjects | None = None

    def close_retired(self) -> None:
        """Closes files that were evicted: they take room on its disk for as long as somebody has them open."""
        for name in [name for name, file in self.files.items() if file.presence.is_retired]:
            del self.files[name]

    def close(self) -> None:
        self.files.clear()
        if self.link is not None:
            self.link.close()
            self.link = None
        if self.objects is not None:
            self.objects.close()


class CacheMirror:
    """A remote set's folder in the cache; see :class:`feeder.shard.store.mirror.Mirror`. Pickles by value.

    Args:
        folder: The folder, which exists.
        options: The options of its fetcher.
        target: The fetcher's main function, ``"module:function"``.

    Attributes:
        place: URL of the set, for people.
        reads_crops: True to fetch only the blocks that crops need.
    """

    def __init__(self, folder: str, options: FetchOptions, target: str = FETCHER) -> None:
        self.folder = folder
        self.options = options
        self._target = target
        self.reads_crops = options.reads_crops
        self.place = str(Url.parse(options.url)) if is_remote(options.url) else options.url
        self._local = _Local()
        self._counts: dict[str, int] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return CacheMirror, (self.folder, self.options, self._target)

    @property
    def budget_bytes(self) -> int:
        """Most bytes of the set that the cache may hold."""
        given = self.options.cache_bytes
        return int(self.ask({"stats": True})["budget_bytes"]) if given is None else given

    def need(self, wants: Sequence[Want], *, again: bool = False) -> None:
        """Returns when ranges of files are in the folder, checked where the set has checksums of blocks.

        Args:
            wants: File name, first byte and end of each; a range may end past the end of its file.
            again: True for ranges that were there, but whose bytes are wrong by a checksum that the fetcher does not
                know: they are fetched anew.

        Raises:
            StoreError: if they can't be had.
        """
        local = self._own()
        local.close_retired()

        missing = list(wants) if again else self._missing(local, wants)
        local.hits += len(wants) - len(missing)
        if not missing and local.tells and (local.hits >= _HITS_TOLD or time.monotonic() - local.told > _TELL_S):
            self._tell(local, {"hits": local.hits})
            local.hits = 0

        rounds = 0
        while missing:
            for start in range(0, len(missing), _WANTS_AT_ONCE):
                ask = {"need": missing[start : start + _WANTS_AT_ONCE], "again": again, "hits": local.hits}
                self.ask(ask | {"goes_on": bool(rounds or start)})
                local.hits, again = 0, False
            for name in {name for name, _, _ in missing}:
                local.files.pop(name, None)  # somebody may have deleted its record

            missing = self._missing(local, wants)
            rounds += 1
            if rounds == _ROUNDS:
                name, start, end = missing[0]
                raise StoreError(
                    f"{self.place}: bytes {start:,} to {end:,} of {name} were evicted again and again before "
                    "they were read; give it more room with cache_bytes="
                )

        self._close_old(local, len(wants))

    def open(self, name: str, expected: bytes = b"") -> int:
        """Returns a descriptor of a file of which this thread's last :meth:`need` had a range; see :meth:`Mirror.open`.

        The record was the file's when it was opened, see :class:`_File`, and names its hash.
        """
        file = self._own().files[name]
        if expected and file.presence.identity != expected:
            raise ChangedError(
                f"{self.place}/{name}: it was replaced while it was in use; create the dataset again to use the "
                "present set, or restore the earlier one in the store and start again"
            )
        return os.dup(file.descriptor)

    def starts(self, wants: Mapping[str, tuple[int, bytes]]) -> dict[str, bytes]:
        """Returns the starts of files straight from the store, without a copy in the folder.

        Only what goes well is here: :meth:`need` has the others, or raises what is wrong with them.

        Args:
            wants: Number of bytes, 1 or more, and identity of each file of a listing.

        Raises:
            StoreError: if a file is not in the listing, or the fetcher can't be reached.
        """
        local, began = self._own(), time.monotonic()
        found: dict[str, bytes] = {}
        left = list(wants)
        while left:
            answer = self.ask({"sign": left[:_SIGNED_AT_ONCE]})
            signed = dict(zip(left, answer.get("signed", ()), strict=False))
            if not signed:
                break
            left = left[len(signed) :]

            asked = {
                name: Signed(target, wants[name][0], size_bytes, etag)
                for name, (target, size_bytes, etag, identity) in signed.items()
                if identity == wants[name][1].hex()
            }
            local.objects = local.objects or SignedObjects(waits.heartbeat)
            scheme, netloc = answer["place"]
            came = local.objects.get(scheme, netloc, list(asked.values()), self.options.timeout_s)
            found |= {name: data for name, data in zip(asked, came, strict=True) if data is not None}

        if found:
            size_bytes, waited_ns = sum(map(len, found.values())), int(1e9 * (time.monotonic() - began))
            self._tell(local, {"came": [len(found), size_bytes, waited_ns]})
        return found

    def _tell(self, local: _Local, message: dict[str, Any]) -> None:
        """Tells the fetcher, for its counts, what this thread found in the cache or got without it."""
        try:
            if local.link is None:
                local.link = self.connect()
            local.link.send(message)
        except (ConnectionError, StoreError):  # nobody waits for it, so it is not tried again and again
            local.tells = False
        local.told = time.monotonic()

    def counts(self) -> dict[str, int]:
        """Returns the fetcher's counts, those of :meth:`feeder.shard.cache.fetcher.Fetcher.stats`; where it can't be
        reached, those that it gave last."""
        with contextlib.suppress(StoreError):
            self._counts = self.ask({"stats": True})
        return self._counts

    def close(self) -> None:
        """Closes this thread's connection and files."""
        self._own().close()

    def connect(self) -> Link:
        """Returns a connection to the fetcher that is the caller's own."""
        options = asdict(self.options)
        return Link(self.folder, options, self.options.timeout_s + _GRACE_S, self._target, waits.heartbeat)

    def ask(self, message: dict[str, Any]) -> dict[str, Any]:
        """Sends the fetcher a message and returns its answer; asks another fetcher if this one ends.

        Raises:
            FeederError: as the fetcher raised it.
        """
        local = self._own()
        for _ in range(_DEATHS + 1):
            try:
                if local.link is None:
                    local.link = self.connect()
                return local.link.ask(message, local.close_retired)
            except BaseException as error:  # its answer may still come, and is not the next question's
                if local.link is not None:
                    local.link.close()
                local.link = None
                if not isinstance(error, ConnectionError):
                    raise
        raise StoreError(
            f"{self.place}: the process that fetches it ended {_DEATHS} times in a row while this one waited; "
            f"fetcher.log in {self.folder} may say why"
        )

    def _own(self) -> _Local:
        local = self._local
        if local.pid != os.getpid():  # forked: the connection is the parent's
            local.close()
            local.pid = os.getpid()
        return local

    def _missing(self, local: _Local, wants: Sequence[Want]) -> list[Want]:
        """Returns the ranges that are not in the folder."""
        records = {name: self._record(local, name) for name in dict.fromkeys(name for name, _, _ in wants)}
        there = {name: record for name, record in records.items() if record is not None}
        return [want for want in wants if want[0] not in there or not there[want[0]].has(*want[1:])]

    def _record(self, local: _Local, name: str) -> Presence | None:
        """Returns the record of a file that this thread has open from here on; None if it is not there."""
        file = local.files.get(name)
        if file is not None:
            local.files.move_to_end(name)
            if not file.presence.is_retired:
                return file.presence
            del local.files[name], file
        try:
            file = local.files[name] = _File(self.folder, name)
        except (FileNotFoundError, ValueError):
            return None
        return file.presence

    def _close_old(self, local: _Local, used: int) -> None:
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        most = _OPEN_FILES if limit == resource.RLIM_INFINITY else min(_OPEN_FILES, limit // _LIMIT_SHARE)
        while len(local.files) > max(_FEWEST_FILES, most, used):
            local.files.popitem(last=False)


def open_mirror(options: FetchOptions, cache_dir: str | os.PathLike[str] | None) -> CacheMirror:
    """Opens the mirror of a remote set, with the set's newest header.

    Args:
        options: Options, with the URL of the set's folder or of its header, and no identity.
        cache_dir: The cache's folder; None: the user's.

    Raises:
        ArgumentError: if the URL or the folder can't be used.
        StoreError: if the store can't be read.
    """
    place, index = Url.parse(options.url), options.index

    path, _, query = options.url.partition("?")
    if place.prefix.endswith(".bin") and index != LISTING:
        place, index = place.parent(), place.name
        path = path.rstrip("/").rpartition("/")[0]
    url = f"{path}?{query}" if query else path
    allows = allows_http(place, options.allow_http)

    folder = mirror_folder(place, index, cache_dir)
    who = identity(folder, allow_http=allows, allow_private=options.allow_private)
    mirror = CacheMirror(folder, replace(options, url=url, index=index, allow_http=allows, identity=who))
    try:
        mirror.ask({"refresh": index})
        return mirror
    except NotFoundError:
        mirror.close()
        raise NotFoundError(
            f"{place.object(index)}: there is no such object; expected the URL of a shard set, as `feeder shard` "
            "or `feeder index` makes one"
        ) from None
    except StoreError:
        mirror.close()
        raise
