"""The contents of a remote set's files, by its header: how each file is fetched and checked.

Indexes are checked as a whole, shards by the checksums of blocks in their indexes.
"""

from __future__ import annotations

import collections
import contextlib
import os
import re
import threading
from collections.abc import Callable

from feeder.errors import FormatError, StoreError
from feeder.shard.cache.cache_folder import CHECKED, CacheFolder
from feeder.shard.cache.cached_file import ATTEMPTS, Contents, entry_identity
from feeder.shard.cache.link import LOCK, LOG, SOCKET
from feeder.shard.cache.places import MARK
from feeder.shard.cache.presence import RECORDS
from feeder.shard.format.set_header import SetHeader
from feeder.shard.format.shard_index import IndexedShard, ShardIndex
from feeder.shard.store.store import RANGE_BYTES, Store
from feeder.system.files import TEMPORARY_SUFFIX, open_regular
from feeder.system.mapping import map_file

_MOST_BYTES = 1 << 40  # the most of a file that comes in ranges
_MOST_HEADER_BYTES = 1 << 32
_OWN = {LOCK, LOG, MARK, RECORDS, SOCKET}  # in a mirror's folder, and in no set's
_KNOWN = 4096  # files whose contents are kept at hand


class SetContents:
    """The contents of one set's files. Several threads may call its methods.

    Args:
        store: The set's place.
        cache: The cache.
        index: Name of the set's header.
        is_wanted: Returns False once nobody needs any more what the calling thread looks for.
    """

    def __init__(
        self,
        store: Store,
        cache: CacheFolder,
        index: str,
        is_wanted: Callable[[], bool] = lambda: True,
    ) -> None:
        self._store = store
        self._cache = cache
        self._index = index
        self._is_wanted = is_wanted
        self._lock = threading.Lock()
        self._known: collections.OrderedDict[str, Contents] = collections.OrderedDict()
        self._header: SetHeader | None = None
        self._compared: bytes | None = None  # hash of the header that the cache was compared with

    def of(self, name: str) -> Contents:
        """Returns the contents of a file; what has to be read for it is fetched first.

        Raises:
            FeederError: if there is no such file, or the set is damaged.
        """
        with self._lock:
            known = self._known.get(name)
            if known is not None:
                self._known.move_to_end(name)
                return known
        self._refuse_unwanted(name)
        found = self._find(name)
        with self._lock:  # another thread may have been faster
            found = self._known.setdefault(name, found)
            while len(self._known) > _KNOWN:
                self._known.popitem(last=False)
        return found

    def forget(self) -> None:
        """Asks the store for the set's header when it is needed next: it may have been replaced."""
        with self._lock:
            self._known.clear()
            self._header = None

    def replaced(self) -> list[str]:
        """Returns names of cached files that have other contents by a new header, as after a takedown."""
        try:
            header = self._opened()
        except FormatError:  # whoever reads the damaged header raises it
            return []
        if header.hash == self._compared:
            return []
        with self._cache.lock:
            cached = {name: file.record.identity for name, file in self._cache.files.items()}
        found = []
        for name, identity in cached.items():
            if _is_header(name, self._index):
                found += [] if name == self._index else [name]
                continue
            number = self._opened().number_of(name)
            if number is None:
                continue
            shard = header.shard(number)
            expected = shard.shard_hash if name == shard.name else shard.index_hash
            found += [] if identity == expected else [name]
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
        number = self._opened().number_of(name)
        if number is None:
            self._refuse_unnamed(name)
            return self._plain(name)
        shard = self._opened().shard(number)
        if name == shard.name:
            self._refuse_long(name, shard.size_bytes)
            blocks = self._shard_index(self._opened().index_name(number), shard).blocks().copy()
            return Contents(shard.size_bytes, shard.shard_hash, blocks=blocks)

        def check(path: str) -> None:
            ShardIndex(path, shard=shard).check()

        return self._whole(name, shard.index_hash, check, shard.index_bytes)

    def _shard_index(self, index_name: str, shard: IndexedShard) -> ShardIndex:
        """Opens the index of a shard, which is fetched first."""
        contents, path = self.of(index_name), os.path.join(self._cache.folder, index_name)
        is_again = False
        while True:
            file = self._cache.brought(index_name, contents)
            descriptor = -1
            with self._cache.lock, contextlib.suppress(FileNotFoundError):  # it may have been evicted already
                descriptor = open_regular(path) if file.is_complete else -1
            if descriptor >= 0:
                try:
                    return ShardIndex(path, shard=shard, descriptor=descriptor)
                except FormatError:  # it was damaged since it was checked
                    if is_again:
                        raise
                    self._cache.doubt(file, 0, file.record.blocks)
                    is_again = True
                finally:
                    os.close(descriptor)

    def _plain(self, name: str) -> Contents:
        """Returns the contents of a header, or of a file that the header does not name."""
        entry = self._store.size(name, is_wanted=self._is_wanted)
        identity = entry_identity(entry)
        if _is_header(name, self._index):
            self._refuse_long(name, entry.size_bytes, _MOST_HEADER_BYTES)
            return self._whole(
                name, identity, lambda path: SetHeader(path).rows, entry.size_bytes, etag=entry.etag, is_kept=True
            )
        self._refuse_long(name, entry.size_bytes)
        return Contents(entry.size_bytes, identity, entry.etag, is_kept=True)

    def _whole(
        self,
        name: str,
        identity: bytes,
        check: Callable[[str], object],
        size_bytes: int,
        *,
        etag: str = "",
        is_kept: bool = False,
    ) -> Contents:
        """Returns the contents of a small file, which comes as a whole.

        Args:
            name: The file.
            identity: See :class:`Contents`.
            check: Raises FormatError if the file at a path is not right.
            size_bytes: Its size.
            etag: The object's; empty for any.
            is_kept: See :class:`Contents`.
        """

        def fetch() -> memoryview:
            budget_bytes = self._cache.budget_bytes
            if size_bytes > budget_bytes and not is_kept:
                raise StoreError(
                    f"{self._store.url.object(name)}: {size_bytes:,} bytes of it are needed at once, and the cache may "
                    f"take {budget_bytes:,}; give it more with cache_bytes=, or a larger disk with cache_dir="
                )
            for attempt in range(1, ATTEMPTS + 1):
                path = os.path.join(self._cache.folder, f"{CHECKED}{os.urandom(4).hex()}{TEMPORARY_SUFFIX}")
                try:
                    with open(path, "x+b") as file:  # not in memory: nothing is known of it but what the header says
                        for begin in range(0, size_bytes, RANGE_BYTES):
                            self._refuse_unwanted(name)
                            stop = min(begin + RANGE_BYTES, size_bytes)
                            file.write(self._store.get(name, begin, stop, etag or None, is_wanted=self._is_wanted))
                        file.flush()
                        check(path)
                        return map_file(file.fileno(), size_bytes)
                except FormatError as error:
                    if attempt == ATTEMPTS:
                        reason = str(error).removeprefix(f"{path}: ")
                        raise FormatError(
                            f"{self._store.url.object(name)}: {reason}{self._cache.also_damaged(name)}"
                        ) from None
                finally:
                    with contextlib.suppress(OSError):
                        os.unlink(path)
            raise AssertionError

        return Contents(size_bytes, identity, fetch=fetch, check=check, is_kept=is_kept)

    def _refuse_long(self, name: str, size_bytes: int, most_bytes: int = _MOST_BYTES) -> None:
        if size_bytes > most_bytes:
            raise FormatError(f"{self._store.url.object(name)}: has {size_bytes:,} bytes: too many for its kind")

    def _refuse_unnamed(self, name: str) -> None:
        """Refuses a file that is named like a shard or its index, but is none that the header names."""
        header = self._opened()
        shards = {os.path.splitext(header.shard_name(0))[1]} if header.shards else set()
        if not name.endswith((*shards, header.info.index_suffix)):
            return
        raise FormatError(
            f"{self._store.url.object(name)}: is none of the {header.shards:,} shards that the set's header now names, "
            "so it can't be checked; the set was replaced, or run `feeder index`"
        )

    def _refuse_unwanted(self, name: str) -> None:
        if not self._is_wanted():
            raise StoreError(f"{self._store.url.object(name)}: nobody needs it any more")

    def _opened(self) -> SetHeader:
        with self._lock:
            header = self._header
        if header is None:
            self._cache.brought(self._index, self.of(self._index))
            header = SetHeader(os.path.join(self._cache.folder, self._index))
            with self._lock:
                self._header = header
        return header


def _is_header(name: str, index: str) -> bool:
    """Returns True for the set's header, and for those of its earlier versions."""
    stem, extension = os.path.splitext(index)
    return name == index or re.fullmatch(rf"{re.escape(stem)}-\d{{6,}}{re.escape(extension)}", name) is not None
