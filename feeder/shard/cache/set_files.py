"""The files of a remote set by its header: indexes are checked as a whole, shards by the checksums in their indexes."""

from __future__ import annotations

import collections
import contextlib
import hashlib
import os
import re
import threading
from collections.abc import Callable

from feeder.errors import FormatError, StoreError
from feeder.shard.cache.contents import Contents
from feeder.shard.cache.files import CacheFiles
from feeder.shard.cache.presence import IDENTITY_BYTES
from feeder.shard.format.set_header import HEADER_MAGIC, SetHeader
from feeder.shard.format.shard_index import ShardIndex
from feeder.shard.store.mirror import Mirror
from feeder.shard.store.store import Store
from feeder.system.files import TEMPORARY_SUFFIX

__all__ = ["SetFiles"]

WHOLE_HEADER_BYTES = 16 << 20  # a longer one comes in ranges, as its readers need them
_MOST_INDEX_BYTES = 1 << 32
_MOST_BYTES = 1 << 40  # of a file that comes in ranges and has no checksums of its own: a header of billions of shards
_LEAST_BYTES = 1 << 20
_ATTEMPTS = 4
_MOST_NAMED = 1 << 20  # shards of sets with names without numbers
_KNOWN = 4096  # files whose contents are kept at hand


class SetFiles:
    """The files of one set; see :class:`feeder.shard.cache.contents.SetContents`.

    Args:
        store: The set's place.
        files: The cache.
        index: Name of the set's header.
        mirror: Brings ranges of a long header into the cache.
    """

    def __init__(self, store: Store, files: CacheFiles, index: str, mirror: Mirror) -> None:
        self._store, self._files, self._index, self._mirror = store, files, index, mirror
        self._lock = threading.Lock()
        self._locks: collections.defaultdict[str, threading.Lock] = collections.defaultdict(threading.Lock)
        self._known: collections.OrderedDict[str, Contents] = collections.OrderedDict()
        self._header: SetHeader | None = None
        self._numbers: dict[str, int] | None = None

    def of(self, name: str) -> Contents:
        """See :meth:`SetContents.of`."""
        with self._lock:
            lock = self._locks[name]
        with lock:  # for one at a time, as it may have to be fetched
            with self._lock:
                known = self._known.get(name)
                if known is not None:
                    self._known.move_to_end(name)
                    return known
            found = self._find(name)
            with self._lock:
                self._known[name] = found
                while len(self._known) > _KNOWN:
                    self._locks.pop(self._known.popitem(last=False)[0], None)
            return found

    def forget(self) -> None:
        """See :meth:`SetContents.forget`."""
        with self._lock:
            self._known.clear()
            self._header = self._numbers = None

    def _find(self, name: str) -> Contents:
        number = None if _is_header(name, self._index) else self._number(name)
        if number is None:
            return self._plain(name)
        shard = self._opened().shard(number)
        if name != shard.name:
            # Its optional groups, which the header does not count, are about rows of images: less than these have.
            most = min(shard.index_bytes + shard.size_bytes + _LEAST_BYTES, _MOST_INDEX_BYTES)
            return self._whole(name, shard.index_hash, lambda path: ShardIndex(path, shard=shard).check(), most)
        index_name = self._opened().index_name(number)
        self._files.file(index_name, self.of(index_name))
        blocks = ShardIndex(os.path.join(self._files.folder, index_name), shard=shard).blocks().copy()
        return Contents(shard.size_bytes, shard.shard_hash, blocks=blocks)

    def _plain(self, name: str) -> Contents:
        """Returns the contents of a header, or of a file that the header does not name."""
        entry = self._store.size(name)
        identity = hashlib.sha256(f"{entry.size_bytes} {entry.etag} {entry.modified_ns}".encode()).digest()
        identity = identity[:IDENTITY_BYTES]
        if _is_header(name, self._index) and entry.size_bytes <= WHOLE_HEADER_BYTES:
            return self._whole(name, identity, _check_header, WHOLE_HEADER_BYTES, entry.etag)
        if entry.size_bytes > _MOST_BYTES:
            raise FormatError(f"{self._store.url.object(name)}: has {entry.size_bytes:,} bytes: too many for its kind")
        return Contents(entry.size_bytes, identity, entry.etag, is_kept=True)

    def _whole(
        self, name: str, identity: bytes, check: Callable[[str], object], most_bytes: int, etag: str = ""
    ) -> Contents:
        """Returns the contents of a small file: as it is in the cache, or fetched and checked."""
        with self._files.lock:
            cached = self._files.files.get(name)
            if cached is not None and cached.presence.identity == identity and cached.is_complete:
                return Contents(cached.presence.size_bytes, identity, is_kept=True)
        for attempt in range(1, _ATTEMPTS + 1):
            entry = self._store.size(name)
            if entry.size_bytes > most_bytes:
                raise FormatError(
                    f"{self._store.url.object(name)}: has {entry.size_bytes:,} bytes, expected {most_bytes:,} at most: "
                    "it is another object than the set's header means"
                )
            data = bytes(self._store.get(name, 0, entry.size_bytes, etag or entry.etag or None))
            path = os.path.join(self._files.folder, f".checked.{os.urandom(4).hex()}{TEMPORARY_SUFFIX}")
            try:
                with open(path, "xb") as file:
                    file.write(data)
                check(path)
                break
            except FormatError as error:
                if attempt == _ATTEMPTS:
                    reason = str(error).removeprefix(f"{path}: ")
                    raise FormatError(f"{self._store.url.object(name)}: {reason}") from None
            except OSError as error:
                raise StoreError(
                    f"{self._files.folder}: can't be written: {error.strerror}; make room there, or name another place "
                    "with cache_dir="
                ) from error
            finally:
                with contextlib.suppress(OSError):
                    os.unlink(path)
        return Contents(len(data), identity, data=data, is_kept=True)

    def _opened(self) -> SetHeader:
        with self._lock:
            header = self._header
        if header is None:
            self._files.file(self._index, self.of(self._index))
            header = SetHeader(os.path.join(self._files.folder, self._index), self._mirror)
            with self._lock:
                self._header = header
        return header

    def _number(self, name: str) -> int | None:
        """Returns the number of the shard that a file is, or is the index of; None if it is neither."""
        header = self._opened()
        for digits in re.findall(r"\d+", name):
            number = int(digits)
            if number < header.shards and name in (header.shard_name(number), header.index_name(number)):
                return number
        if header.shards > _MOST_NAMED:
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
    with open(path, "rb") as file:
        if file.read(len(HEADER_MAGIC)) != HEADER_MAGIC:
            return  # an earlier format, or no header: its reader says so
    header = SetHeader(path)
    header.rows()
    for number in range(0, header.shards, header.page_shards):
        header.shard_name(number)
