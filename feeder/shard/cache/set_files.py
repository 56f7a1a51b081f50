"""The files of a remote set by its header: indexes are checked as a whole, shards by the checksums in their indexes."""

from __future__ import annotations

import bisect
import collections
import contextlib
import hashlib
import itertools
import os
import re
import threading
from collections.abc import Callable

from feeder.errors import FormatError, StoreError
from feeder.shard.cache.cache_files import CHECKED, CacheFiles
from feeder.shard.cache.cached_file import Contents
from feeder.shard.cache.link import LOCK, LOG, SOCKET
from feeder.shard.cache.places import MARK
from feeder.shard.cache.presence import IDENTITY_BYTES, RECORDS
from feeder.shard.format.sealed_head import damaged, short_hash
from feeder.shard.format.set_header import SetHeader
from feeder.shard.format.shard_index import IndexedShard, ShardIndex
from feeder.shard.store.mirror import Mirror, group_name
from feeder.shard.store.store import RANGE_BYTES, Store
from feeder.system.files import TEMPORARY_SUFFIX, open_regular
from feeder.system.mapping import map_file

__all__ = ["SetFiles"]

WHOLE_HEADER_BYTES = 16 << 20  # a longer one comes in ranges, as its readers need them
_MOST_BYTES = 1 << 40  # of a file that comes in ranges: a shard, or a header of billions of them
_LEAST_BYTES = 1 << 20
_OWN = {LOCK, LOG, MARK, RECORDS, SOCKET}  # in a mirror's folder, and in no set's
_ATTEMPTS = 4
MOST_NAMED = 1 << 20  # shards of sets whose names are neither numbered in a row nor sorted
_KNOWN = 4096  # files whose contents are kept at hand


class SetFiles:
    """The files of one set. Its methods may be called by several threads.

    Args:
        store: The set's place.
        files: The cache.
        index: Name of the set's header.
        mirror: Brings ranges of a long header into the cache.
        is_wanted: Returns False once nobody needs any more what the calling thread looks for.
    """

    def __init__(
        self,
        store: Store,
        files: CacheFiles,
        index: str,
        mirror: Mirror,
        is_wanted: Callable[[], bool] = lambda: True,
    ) -> None:
        self._store = store
        self._files = files
        self._index = index
        self._mirror = mirror
        self._is_wanted = is_wanted
        self._lock = threading.Lock()
        self._locks: collections.defaultdict[str, threading.Lock] = collections.defaultdict(threading.Lock)
        self._known: collections.OrderedDict[str, Contents] = collections.OrderedDict()
        self._header: SetHeader | None = None
        self._numbers: dict[str, int] | None = None
        self._compared: bytes | None = None  # hash of the header that the cache was compared with

    def of(self, name: str) -> Contents:
        """Returns the contents of a file; what has to be read for it is fetched first.

        Raises:
            FeederError: if there is no such file, or the set is damaged.
        """
        with self._lock:
            lock = self._locks[name]
        with lock:  # for one at a time, as it may have to be fetched
            with self._lock:
                known = self._known.get(name)
                if known is not None:
                    self._known.move_to_end(name)
                    return known
            self._refuse_unwanted(name)
            found = self._find(name)
            with self._lock:
                self._known[name] = found
                while len(self._known) > _KNOWN:
                    self._locks.pop(self._known.popitem(last=False)[0], None)
            return found

    def forget(self) -> None:
        """Asks the store for the set's header when it is needed next: it may have been replaced."""
        with self._lock:
            self._known.clear()
            self._header = self._numbers = None

    def replaced(self) -> list[str]:
        """Returns names of cached files that the set has with other contents by now, by a new header: after a takedown,
        for example."""
        try:
            header = self._opened()
        except FormatError:  # a damaged one, of which its reader says so
            return []
        if header.hash == self._compared:
            return []
        with self._files.lock:
            cached = {name: file.record.identity for name, file in self._files.files.items()}
        found = []
        for name, identity in cached.items():
            if _is_header(name, self._index):
                found += [] if name == self._index else [name]
                continue
            of, _ = group_name(name)
            number = self._number(of or name)
            if number is None:
                continue
            shard = header.shard(number)
            expected = shard.shard_hash if name == shard.name else shard.index_hash
            found += [] if (cached.get(of) if of else identity) == expected else [name]
        self._compared = header.hash
        return found

    def _find(self, name: str) -> Contents:
        first = name.partition("/")[0]
        if first in _OWN or first.startswith(CHECKED):
            raise FormatError(
                f"{self._store.url.object(name)}: has the name of a file that the cache keeps itself; give it another "
                "one, and run `feeder index`"
            )
        if _is_header(name, self._index):
            return self._plain(name)
        group = self._group(name)
        if group is not None:
            return group
        number = self._number(name)
        if number is None:
            self._refuse_unnamed(name)
            return self._plain(name)
        shard = self._opened().shard(number)
        if name == shard.name:
            self._refuse_long(name, shard.size_bytes)
            blocks = self._shard_index(self._opened().index_name(number), shard).blocks().copy()
            return Contents(shard.size_bytes, shard.shard_hash, blocks=blocks)

        def check(path: str) -> None:
            ShardIndex(path, shard=shard).check(optional=False)

        return self._whole(name, shard.index_hash, check, shard.index_bytes)

    def _group(self, name: str) -> Contents | None:
        """Returns the contents of an optional group of a shard's index, by its name in a mirror; None if it is none."""
        index_name, group = group_name(name)
        number = self._number(index_name) if group else None
        if number is None or index_name != self._opened().index_name(number):
            return None
        shard = self._opened().shard(number)
        begin, end, expected = self._shard_index(index_name, shard).place(group)
        # The optional groups are about rows of images: they have less bytes than these.
        if end > shard.index_bytes + shard.size_bytes + _LEAST_BYTES:
            raise damaged(self._store.url.object(index_name), f"its {group!r} ends at byte {end:,}")

        def check(path: str) -> None:
            with open(path, "rb") as file:
                if short_hash(map_file(file.fileno(), end - begin)).hex() != expected:
                    raise damaged(path, f"the bytes of {group!r} do not match their hash")

        return self._whole(name, bytes.fromhex(expected), check, end - begin, key=index_name, start=begin)

    def _shard_index(self, index_name: str, shard: IndexedShard) -> ShardIndex:
        """Opens the index of a shard, which is fetched first."""
        contents, path = self.of(index_name), os.path.join(self._files.folder, index_name)
        is_again = False
        while True:
            file = self._files.brought(index_name, contents)
            descriptor = -1
            with self._files.lock, contextlib.suppress(FileNotFoundError):  # it may have been evicted already
                descriptor = open_regular(path) if file.is_complete else -1
            if descriptor >= 0:
                try:
                    return ShardIndex(path, shard=shard, descriptor=descriptor)
                except FormatError:  # it was damaged since it was checked
                    if is_again:
                        raise
                    self._files.doubt(file, 0, file.record.blocks)
                    is_again = True
                finally:
                    os.close(descriptor)

    def _plain(self, name: str) -> Contents:
        """Returns the contents of a header, or of a file that the header does not name."""
        entry = self._store.size(name, is_wanted=self._is_wanted)
        identity = hashlib.sha256(f"{entry.size_bytes} {entry.etag} {entry.modified_ns}".encode()).digest()
        identity = identity[:IDENTITY_BYTES]
        if _is_header(name, self._index) and entry.size_bytes <= WHOLE_HEADER_BYTES:
            return self._whole(name, identity, _check_header, entry.size_bytes, etag=entry.etag, is_kept=True)
        self._refuse_long(name, entry.size_bytes)
        return Contents(entry.size_bytes, identity, entry.etag, is_kept=True)

    def _whole(
        self,
        name: str,
        identity: bytes,
        check: Callable[[str], object],
        size_bytes: int,
        *,
        key: str = "",
        start: int = 0,
        etag: str = "",
        is_kept: bool = False,
    ) -> Contents:
        """Returns the contents of a small file, which comes as a whole.

        Args:
            name: The file.
            identity: See :class:`Contents`.
            check: Raises FormatError if the file at a path is not right.
            size_bytes: Its size.
            key: The object that has it, if that has another name.
            start: Its first byte in the object.
            etag: The object's; empty for any.
            is_kept: See :class:`Contents`.
        """
        key, end = key or name, start + size_bytes

        def fetch() -> memoryview:
            budget_bytes = self._files.budget_bytes
            if size_bytes > budget_bytes and not is_kept:
                raise StoreError(
                    f"{self._store.url.object(key)}: {size_bytes:,} bytes of it are needed at once, and the cache may "
                    f"take {budget_bytes:,}; give it more with cache_bytes=, or a larger disk with cache_dir="
                )
            for attempt in range(1, _ATTEMPTS + 1):
                path = os.path.join(self._files.folder, f"{CHECKED}{os.urandom(4).hex()}{TEMPORARY_SUFFIX}")
                try:
                    with open(path, "x+b") as file:  # not in memory: nothing is known of it but what the header says
                        for begin in range(start, end, RANGE_BYTES):
                            self._refuse_unwanted(name)
                            stop = min(begin + RANGE_BYTES, end)
                            file.write(self._store.get(key, begin, stop, etag or None, is_wanted=self._is_wanted))
                        file.flush()
                        check(path)
                        return map_file(file.fileno(), size_bytes)
                except FormatError as error:
                    if attempt == _ATTEMPTS:
                        reason = str(error).removeprefix(f"{path}: ")
                        raise FormatError(
                            f"{self._store.url.object(key)}: {reason}{self._files.also_damaged(name)}"
                        ) from None
                finally:
                    with contextlib.suppress(OSError):
                        os.unlink(path)
            raise AssertionError

        return Contents(size_bytes, identity, fetch=fetch, check=check, is_kept=is_kept)

    def _refuse_long(self, name: str, size_bytes: int) -> None:
        if size_bytes > _MOST_BYTES:
            raise FormatError(f"{self._store.url.object(name)}: has {size_bytes:,} bytes: too many for its kind")

    def _refuse_unnamed(self, name: str) -> None:
        """Refuses a file that is named like a shard or its index, but is none that the header names."""
        header = self._opened()
        shards = {os.path.splitext(header.shard_name(0))[1]} if header.shards else set()
        if not name.endswith((*shards, header.info.index_suffix)):
            return
        order = " in order" if header.shards > MOST_NAMED else ""
        raise FormatError(
            f"{self._store.url.object(name)}: is none of the {header.shards:,} shards that the set's header now names"
            f"{order}, so it can't be checked; the set was replaced, or run `feeder index`, which sorts them by name"
        )

    def _refuse_unwanted(self, name: str) -> None:
        if not self._is_wanted():
            raise StoreError(f"{self._store.url.object(name)}: nobody needs it any more")

    def _opened(self) -> SetHeader:
        with self._lock:
            header = self._header
        if header is None:
            self._files.brought(self._index, self.of(self._index))
            header = SetHeader(os.path.join(self._files.folder, self._index), self._mirror)
            with self._lock:
                self._header = header
        return header

    def _number(self, name: str) -> int | None:
        """Returns the number of the shard that a file is, or is the index of; None if it is neither."""
        header = self._opened()
        first = re.findall(r"\d+", header.shard_name(0)) if header.shards else []
        for digits, start in zip(re.findall(r"\d+", name), itertools.chain(first, itertools.repeat("0")), strict=False):
            for number in (int(digits), int(digits) - int(start)):
                if 0 <= number < header.shards and name in (header.shard_name(number), header.index_name(number)):
                    return number
        stem = name.removesuffix(header.info.index_suffix)
        shard = stem + os.path.splitext(header.shard_name(0))[1] if header.shards and stem != name else name
        number = bisect.bisect_left(range(header.shards), shard, key=header.shard_name)
        if number < header.shards and name in (header.shard_name(number), header.index_name(number)):
            return number
        if header.shards > MOST_NAMED:
            return None
        if self._numbers is None:
            pairs = ((header.shard_name(number), header.index_name(number)) for number in range(header.shards))
            self._numbers = {name: number for number, names in enumerate(pairs) for name in names}
        return self._numbers.get(name)


def _is_header(name: str, index: str) -> bool:
    """Returns True for the set's header, and for those of its earlier versions."""
    stem, extension = os.path.splitext(index)
    return name == index or re.fullmatch(rf"{re.escape(stem)}-\d{{6,}}{re.escape(extension)}", name) is not None


def _check_header(path: str) -> None:
    header = SetHeader(path)
    header.rows()
    for number in range(0, header.shards, header.page_shards):
        header.shard_name(number)
