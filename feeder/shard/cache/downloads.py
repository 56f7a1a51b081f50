"""The downloads of one fetcher: threads that get ranges from the store, check them, and write them into the cache.

What somebody waits for goes first, in exactly the blocks that are missing; what is only planned comes in longer ranges
while there is room for it. A range that takes much longer than others did is asked for a second time.
"""

from __future__ import annotations

import collections
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from feeder.errors import FeederError, StoreError
from feeder.shard.cache.files import CachedFile, CacheFiles
from feeder.shard.cache.presence import BLOCK_BYTES
from feeder.shard.store.store import Store

__all__ = ["RANGE_BYTES", "Counts", "Downloads"]

RANGE_BYTES = 8 << 20
_RANGE_BLOCKS = RANGE_BYTES // BLOCK_BYTES
_THREADS, _AHEAD_THREADS = 32, 16
_ATTEMPTS = 4  # of a range whose bytes are wrong
_HEDGE_DIVISOR = 100  # of all bytes: the share that may be asked for twice
_LOOK_S = 0.1
_SHORTEST_SLOW_S = 0.5
_SLOW = 3.0  # times the 90th percentile
_TIMES = 64


@dataclass
class Counts:
    """Counts since the fetcher was started.

    Attributes:
        bytes: Bytes that came from the store.
        requests: Ranges that were asked for.
        wrong: Blocks that came with the wrong checksum.
        hedges: Ranges that were asked for a second time as they were slow.
        hedged_bytes: Their bytes.
    """

    bytes: int = 0
    requests: int = 0
    wrong: int = 0
    hedges: int = 0
    hedged_bytes: int = 0


@dataclass(eq=False)
class Download:
    """A run of blocks that is on its way.

    Attributes:
        file: The file.
        first, end: Its blocks.
        done: Set when the blocks are there, or ``error`` has the reason why not.
        started: Time at which it was asked for; 0: not yet.
        is_hedged: True once it was asked for a second time.
    """

    file: CachedFile
    first: int
    end: int
    done: threading.Event = field(default_factory=threading.Event)
    error: BaseException | None = None
    started: float = 0.0
    is_hedged: bool = False

    @property
    def size_bytes(self) -> int:
        begin, end = self.file.block_range(self.first, self.end)
        return end - begin


class Downloads:
    """Downloads into one cache.

    Args:
        store: The set's place.
        files: The cache.
        ahead: Returns the next range to get before anybody waits for it, (file, first block, end), or None.
    """

    def __init__(
        self, store: Store, files: CacheFiles, ahead: Callable[[], tuple[CachedFile, int, int] | None] = lambda: None
    ) -> None:
        self.counts = Counts()
        self._store, self._files, self._next_ahead = store, files, ahead
        self._lock = files.lock
        self._wake = threading.Condition(self._lock)
        self._urgent: collections.deque[Download] = collections.deque()
        self._coming: dict[tuple[CachedFile, int], Download] = {}
        self._running: set[Download] = set()
        self._ahead_running = 0
        self._is_closed = False
        self._times: collections.deque[float] = collections.deque(maxlen=_TIMES)
        for _ in range(_THREADS):
            threading.Thread(target=self._work, daemon=True).start()
        threading.Thread(target=self._watch, daemon=True).start()

    def get(self, ranges: Sequence[tuple[CachedFile, int, int]]) -> None:
        """Returns when blocks are in the cache, given as (file, first block, end).

        Raises:
            FeederError: if they can't be had.
        """
        waited: dict[Download, None] = {}
        with self._lock:
            for file, first, end in ranges:
                new = []
                for block in file.presence.missing(first, end):
                    coming = self._coming.get((file, block))
                    if coming is None:
                        new.append(block)
                    else:
                        waited[coming] = None
                if new:
                    self._files.make_room(file, len(new) * BLOCK_BYTES, is_urgent=True)
                for download in self._begin(file, new):
                    waited[download] = None
                    self._urgent.append(download)
            self._wake.notify(len(self._urgent))
        for download in waited:
            download.done.wait()
        for download in waited:
            if download.error is not None:
                raise download.error

    def wake(self) -> None:
        """Has the threads look for ranges to get ahead: there are new ones, or there is new room."""
        with self._lock:
            self._wake.notify(_AHEAD_THREADS)

    def close(self) -> None:
        """Ends the threads, once each is done with what it gets."""
        with self._lock:
            self._is_closed = True
            self._wake.notify_all()

    def _begin(self, file: CachedFile, blocks: list[int]) -> list[Download]:
        """Makes downloads of blocks that are missing, with the lock held."""
        downloads: list[Download] = []
        for block in blocks:
            last = downloads[-1] if downloads else None
            if last is not None and last.end == block and block - last.first < _RANGE_BLOCKS:
                last.end = block + 1
            else:
                downloads.append(Download(file, block, block + 1))
        for download in downloads:
            for block in range(download.first, download.end):
                self._coming[file, block] = download
            file.busy += 1
            self._files.coming_bytes += download.size_bytes
        return downloads

    def _work(self) -> None:
        while (taken := self._take()) is not None:
            download, is_ahead = taken
            try:
                self._run(download)
                error = None
            except Exception as failure:
                error = failure
            self._finish(download, error, is_ahead=is_ahead)

    def _take(self) -> tuple[Download, bool] | None:
        """Waits for something to do: returns a download that was begun, and True if nobody waits for it; None when
        there is nothing to do any more."""
        with self._lock:
            while True:
                if self._is_closed:
                    return None
                if self._urgent:
                    download, is_ahead = self._urgent.popleft(), False
                    break
                planned = self._take_ahead()
                if planned is not None:
                    download, is_ahead = planned, True
                    self._ahead_running += 1
                    break
                self._wake.wait()
            if not download.started:
                download.started = time.monotonic()
                self._running.add(download)
            return download, is_ahead

    def _take_ahead(self) -> Download | None:
        while self._ahead_running < _AHEAD_THREADS:
            found = self._next_ahead()
            if found is None:
                return None
            file, first, end = found
            blocks = [block for block in file.presence.missing(first, end) if (file, block) not in self._coming]
            downloads = self._begin(file, blocks)
            if downloads:
                self._urgent.extendleft(reversed(downloads[1:]))  # where parts of the range are there already
                return downloads[0]
        return None

    def _run(self, download: Download) -> None:
        file, contents = download.file, download.file.contents
        assert contents is not None
        runs = [(download.first, download.end)]
        for _ in range(_ATTEMPTS):
            wrong: list[int] = []
            for first, end in runs:
                if not file.presence.missing(first, end):
                    continue  # its twin was faster
                begin, stop = file.block_range(first, end)
                data = memoryview(self._store.get(file.name, begin, stop, contents.etag or None))
                bad = file.wrong_blocks(first, data)
                with self._lock:
                    self.counts.bytes += len(data)
                    self.counts.requests += 1
                    self.counts.wrong += len(bad)
                if len(data) != stop - begin:
                    raise StoreError(f"{self._shown(file)}: expected bytes {begin:,} to {stop:,}, got {len(data):,}")
                self._write(file, first, data, bad)
                wrong += bad
            if not wrong:
                return
            runs = _runs(wrong)
        begin, stop = file.block_range(wrong[0], wrong[0] + 1)
        raise StoreError(
            f"{self._shown(file)}: bytes {begin:,} to {stop:,} don't match their checksum in the set's index, "
            f"{_ATTEMPTS} times in a row: the object was replaced or is damaged. Restore it, or make the index anew "
            "with `feeder index`"
        )

    def _write(self, file: CachedFile, first: int, data: memoryview, wrong: list[int]) -> None:
        while True:
            try:
                self._files.write(file, first, data, wrong)
                return
            except OSError as error:
                self._files.disk_is_full(error, len(data), file)

    def _finish(self, download: Download, error: Exception | None, *, is_ahead: bool) -> None:
        with self._lock:
            self._ahead_running -= int(is_ahead)
            if download in self._running:  # else its twin has finished it
                if error is not None and download.is_hedged:
                    download.is_hedged = False  # the twin decides
                    return
                self._running.discard(download)
                for block in range(download.first, download.end):
                    if self._coming.get((download.file, block)) is download:
                        del self._coming[download.file, block]
                download.file.busy -= 1
                self._files.coming_bytes -= download.size_bytes
                if error is None:
                    self._times.append((time.monotonic() - download.started) / _weight(download.size_bytes))
                if error is not None and not isinstance(error, FeederError):
                    error = StoreError(f"{self._shown(download.file)}: {type(error).__name__}: {error}")
                download.error = error
                download.done.set()
            self._wake.notify()

    def _watch(self) -> None:
        """Asks a second time for ranges that are slow."""
        while not self._is_closed:
            time.sleep(_LOOK_S)
            with self._lock:
                if not self._running or not self._times:
                    continue
                times = sorted(self._times)
                slow = _SLOW * times[len(times) * 9 // 10]
                now = time.monotonic()
                for download in self._running:
                    size = download.size_bytes
                    limit = max(_SHORTEST_SLOW_S, slow * _weight(size))
                    allowed = RANGE_BYTES + self.counts.bytes // _HEDGE_DIVISOR
                    if download.is_hedged or now - download.started < limit:
                        continue
                    if self.counts.hedged_bytes + size <= allowed:
                        download.is_hedged = True
                        self.counts.hedges += 1
                        self.counts.hedged_bytes += size
                        self._urgent.appendleft(download)
                        self._wake.notify()

    def _shown(self, file: CachedFile) -> str:
        return self._store.url.object(file.name)


def _weight(size_bytes: int) -> float:
    """Returns the time that a range of this size takes, relative to one of full length."""
    return 0.25 + 0.75 * size_bytes / RANGE_BYTES


def _runs(blocks: Sequence[int]) -> list[tuple[int, int]]:
    """Joins blocks that follow one another: [(first, end), ...]."""
    runs: list[tuple[int, int]] = []
    for block in blocks:
        if runs and runs[-1][1] == block:
            runs[-1] = runs[-1][0], block + 1
        else:
            runs.append((block, block + 1))
    return runs
