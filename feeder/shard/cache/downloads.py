"""The downloads of one fetcher: threads that get ranges from the store, check them, and write them into the cache.

What somebody waits for goes first, in exactly the blocks that are missing; what is only planned comes in longer ranges
while there is room for it. Blocks are there as soon as they have come, so nobody waits for the end of a range. A range
of which nothing comes for much longer than is usual is asked for a second time.

Note [What is asked for again]
    By ``ObjectStore``: a request that fails on its way, with pauses.
    By ``_download``: a range whose bytes are wrong, up to four times.
    By ``_hedge_slow``: a range that is slow, up to twice; the first answer counts.
    By ``SetContents``: a file that comes as a whole.
"""

from __future__ import annotations

import collections
import math
import threading
import time
import traceback
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from feeder.errors import FeederError, StoreError
from feeder.shard.cache.cache_folder import CacheFolder
from feeder.shard.cache.cached_file import ATTEMPTS, Block, CachedFile
from feeder.shard.cache.plans import next_range
from feeder.shard.cache.presence import BLOCK_BYTES
from feeder.shard.store.store import RANGE_BYTES, Bytes, Store

_RANGE_BLOCKS = RANGE_BYTES // BLOCK_BYTES
_THREADS = 32
# Ranges got ahead at a time. They share the network, so the first ones come sooner if there are few at first; each that
# has come makes room for one more.
_FIRST_AHEAD, _MOST_AHEAD = 4, 16
_HEDGE_DIVISOR = 100  # one byte in so many may come twice; at first, one range
GRACE_S = 2.0  # the time that a store gets to say what is wrong
_LOOK_S = 0.1
_SHORTEST_SLOW_S = 0.5
_SLOW = 3.0  # a request is slow after so many times the 90th percentile of the last _TIMES
_TIMES = 64
MOST_HEDGES = 2


@dataclass
class Counts:
    """Counts since the fetcher was started.

    Attributes:
        bytes: Bytes that came from the store.
        requests: Ranges that were asked for.
        wrong: Blocks that came with the wrong checksum.
        hedges: Ranges that were asked for a second time as they were slow.
        hedged_bytes: Bytes that came a second time. A request that is silent brings none.
    """

    bytes: int = 0
    requests: int = 0
    wrong: int = 0
    hedges: int = 0
    hedged_bytes: int = 0

    @property
    def most_hedged_bytes(self) -> int:
        """Bytes that may come a second time."""
        return max(RANGE_BYTES, self.bytes // _HEDGE_DIVISOR)


@dataclass(eq=False)
class Download:
    """A run of blocks that is on its way.

    Attributes:
        file: The file.
        first, end: Its blocks.
        left_bytes: Size of those that have not come yet.
        moved_at: Time at which some of it came, or it was asked for; 0: not yet.
        hedges: Number of hedged requests for it, as it was slow.
        hedged_at: Time at which the last of them was made.
        is_given_up: True once those who needed it are gone; blocks that are needed later get a download of their own.
    """

    file: CachedFile
    first: int
    end: int
    left_bytes: int = 0
    moved_at: float = 0.0
    hedges: int = 0
    hedged_at: float = 0.0
    is_given_up: bool = False


@dataclass(eq=False)
class Wait:
    """A wait for blocks.

    Attributes:
        left: Number of blocks that have not come yet.
        done: Set when there are none, or ``error`` has the reason why one can't be had.
    """

    left: int = 0
    error: BaseException | None = None
    done: threading.Event = field(default_factory=threading.Event)


class Downloads:
    """Downloads into one cache.

    Args:
        store: The set's place.
        cache: The cache, with the plans whose ranges to get before anybody waits for them.
    """

    def __init__(self, store: Store, cache: CacheFolder) -> None:
        self.counts = Counts()
        self._store = store
        self._cache = cache
        self._lock = cache.lock
        self._wake = threading.Condition(self._lock)
        self._urgent: collections.deque[Download] = collections.deque()
        self._coming: dict[tuple[CachedFile, int], Download] = {}
        self._waits: dict[tuple[CachedFile, int], list[Wait]] = {}
        self._running: set[Download] = set()
        self._ahead_running = 0
        self._ahead_most = _FIRST_AHEAD
        self._is_closed = False
        self._times: collections.deque[float] = collections.deque(maxlen=_TIMES)
        for _ in range(_THREADS):
            threading.Thread(target=self._work_loop, daemon=True).start()
        threading.Thread(target=self._hedge_slow, daemon=True).start()

    def get(
        self, ranges: Sequence[tuple[CachedFile, int, int]], wait: Wait | None = None, timeout_s: float = math.inf
    ) -> None:
        """Returns when blocks are in the cache, given as (file, first block, end).

        Args:
            ranges: The blocks.
            wait: A new wait, for :meth:`give_up`.
            timeout_s: Longest wait for all of them, however steadily they drip.

        Raises:
            FeederError: if they can't be had.
        """
        wait = wait or Wait()

        with self._lock:
            if wait.error is not None:  # it was given up before it began
                raise wait.error
            for key in self.begin(ranges):
                self._waits.setdefault(key, []).append(wait)
                wait.left += 1
            if not wait.left:
                return

        if not wait.done.wait(min(timeout_s + GRACE_S, threading.TIMEOUT_MAX)):
            self.give_up([wait])
            raise StoreError(
                f"{self._shown(ranges[0][0])}: what is needed of it did not come in whole for {timeout_s:g} s: check "
                "the network and the store, or give a longer timeout="
            )

        if wait.error is not None:
            raise wait.error

    def begin(self, ranges: Iterable[tuple[CachedFile, int, int]]) -> list[tuple[CachedFile, int]]:
        """Begins to get blocks at once, as :meth:`get`; returns those that are missing."""
        with self._lock:
            missing = dict.fromkeys(
                (file, block)
                for file, first, end in map(self._unevicted, ranges)
                for block in file.record.missing(first, end)
            )
            new = collections.defaultdict[CachedFile, list[int]](list)
            for file, block in missing:
                if not self._is_coming(file, block):
                    new[file].append(block)
            for file, blocks in new.items():
                self._cache.make_room(file, file.absent_bytes(blocks), is_urgent=True)
                self._urgent.extend(self._make_downloads(file, sorted(blocks)))
            self._wake.notify(len(self._urgent))
            return list(missing)

    def give_up(self, waits: Iterable[Wait]) -> None:
        """Ends waits, and all downloads that nobody needs any more.

        Args:
            waits: Those of somebody who is gone.
        """
        with self._lock:
            for wait in waits:
                for key in [key for key, others in self._waits.items() if wait in others]:
                    self._waits[key].remove(wait)
                    if not self._waits[key]:
                        del self._waits[key]
                wait.error = StoreError("whoever waited for it is gone")
                wait.done.set()
            for download in {*self._running, *self._urgent}:
                is_waited_for = any((download.file, k) in self._waits for k in range(download.first, download.end))
                if not is_waited_for and not self._cache.is_needed(download.file.name):
                    download.is_given_up = True

    def wake(self) -> None:
        """Wakes the threads to look for ranges to get ahead: there are new ones, or there is new room."""
        with self._lock:
            self._wake.notify()  # it wakes the next one

    def close(self) -> None:
        """Ends the threads, once each is done with what it gets."""
        with self._lock:
            self._is_closed = True
            self._wake.notify_all()

    def _unevicted(self, blocks: tuple[CachedFile, int, int]) -> tuple[CachedFile, int, int]:
        """Returns blocks whose file may have been evicted, with the lock held."""
        file = self._cache.current(blocks[0])
        if file is None:
            raise self._replaced_error(blocks[0])
        return file, *blocks[1:]

    def _replaced_error(self, file: CachedFile) -> StoreError:
        return StoreError(f"{self._shown(file)}: the set was replaced while it was read")

    def _is_coming(self, file: CachedFile, block: int) -> bool:
        download = self._coming.get((file, block))
        return download is not None and not download.is_given_up

    def _make_downloads(self, file: CachedFile, blocks: list[int]) -> list[Download]:
        """Makes downloads of blocks that are missing, with the lock held."""
        downloads = [Download(file, first, end) for first, end in _runs(blocks, _RANGE_BLOCKS)]
        for download in downloads:
            for block in range(download.first, download.end):
                self._coming[file, block] = download
            download.left_bytes = file.absent_bytes(range(download.first, download.end))
            file.busy += 1
            self._cache.coming_bytes += download.left_bytes
        return downloads

    def _work_loop(self) -> None:
        while (taken := self._next_download()) is not None:
            download, is_ahead = taken
            try:
                self._download(download)
                error = None
            except Exception as failure:
                error = failure
            self._finish(download, error, is_ahead=is_ahead)

    def _next_download(self) -> tuple[Download, bool] | None:
        """Waits for something to do: returns a download that was begun, and True if nobody waits for it; None when
        there is nothing to do any more."""
        with self._lock:
            while not self._is_closed:
                is_ahead = not self._urgent
                try:
                    download = self._download_ahead() if is_ahead else self._urgent.popleft()
                except Exception:  # the thread has to go on: it serves everybody
                    traceback.print_exc()
                    download = None

                if download is not None:
                    if not download.moved_at:
                        download.moved_at = time.monotonic()
                        self._running.add(download)
                    return download, is_ahead
                self._wake.wait()
            return None

    def _download_ahead(self) -> Download | None:
        while self._ahead_running < self._ahead_most:
            found = next_range(self._cache)
            if found is None:
                return None
            file, first, end = found
            blocks = [block for block in file.record.missing(first, end) if not self._is_coming(file, block)]
            downloads = self._make_downloads(file, blocks)
            if downloads:
                self._urgent.extendleft(reversed(downloads[1:]))  # several, if blocks inside the range are present
                self._ahead_running += 1
                if self._ahead_running < self._ahead_most:
                    self._wake.notify()
                return downloads[0]
        return None

    def _download(self, download: Download) -> None:
        file, wrong = download.file, list[int]()
        if download.is_given_up:
            raise StoreError(f"{self._shown(file)}: nobody needs it any more")
        if file.record.doubtful(download.first, download.end):
            self._compare(download)
        for _ in range(ATTEMPTS):
            wrong = []
            missing = file.record.missing(download.first, download.end)
            for first, end in _runs(missing):  # a hedged request may have brought some
                wrong += self._fetch(download, first, end)
            if not wrong:
                return
        begin, stop = file.block_range(wrong[0], wrong[0] + 1)
        raise StoreError(
            f"{self._shown(file)}: bytes {begin:,} to {stop:,} don't match their checksum in the set's index, "
            f"{ATTEMPTS} times in a row{self._cache.also_damaged(file.name)}: the object was replaced or is damaged. "
            "Restore it, or make the index anew with `feeder index`"
        )

    def _compare(self, download: Download) -> None:
        """Compares doubtful blocks with their checksums; those that are wrong are left to be downloaded."""
        file = download.file
        right = self._cache.compare(file, download.first, download.end)
        with self._lock:
            left_bytes = file.absent_bytes(range(download.first, download.end))
            self._cache.coming_bytes += left_bytes - download.left_bytes
            download.left_bytes = left_bytes
            self._end_waits(file, right)

    def _fetch(self, download: Download, first: int, end: int) -> list[int]:
        """Gets blocks and writes those that are right; returns the others."""
        file, contents, found = download.file, download.file.contents, list[int]()
        assert contents is not None

        begin, stop = file.block_range(first, end)
        with self._lock:
            self.counts.requests += 1
        pieces = self._store.pieces(
            file.name, begin, stop, contents.etag or None, is_wanted=lambda: not download.is_given_up
        )

        for blocks in _in_blocks(pieces, stop - begin):
            wrong = file.wrong_blocks(first, blocks)
            right = [number for number in range(first, first + len(blocks)) if number not in wrong]
            written = right_bytes = 0
            for start, after in _runs(right):
                data = [view for block in blocks[start - first : after - first] for view in block]
                written += self._write(file, start, data)
                right_bytes += sum(map(len, data))

            now = time.monotonic()
            with self._lock:
                self.counts.hedged_bytes += right_bytes - written
                written = min(written, download.left_bytes)
                download.left_bytes -= written
                self._cache.coming_bytes -= written
                self.counts.bytes += sum(len(view) for block in blocks for view in block)
                self.counts.wrong += len(wrong)
                if not download.hedges:  # else the time is that of the slow request
                    self._times.append(now - download.moved_at)
                download.moved_at = now
                self._end_waits(file, right)

            found += wrong
            first += len(blocks)
            if not file.record.missing(first, end):  # these were the last, or a hedged request brought the rest
                return found
            if download.is_given_up:
                raise StoreError(f"{self._shown(file)}: nobody needs it any more")

        begin = file.block_range(first, end)[0]
        raise StoreError(f"{self._shown(file)}: expected bytes {begin:,} to {stop:,}, got none")

    def _write(self, file: CachedFile, first: int, data: Sequence[memoryview]) -> int:
        contents = file.contents
        assert contents is not None
        while True:
            try:
                return self._cache.write(file, first, data)
            except FileNotFoundError:
                with self._lock:
                    if self._cache.files.get(file.name) is not file:
                        raise self._replaced_error(file) from None
                    self._cache.file(file.name, contents)
            except OSError as error:
                self._cache.disk_is_full(error, sum(map(len, data)), file.name)

    def _end_waits(self, file: CachedFile, blocks: Iterable[int], error: BaseException | None = None) -> None:
        """Tells those who wait for blocks that these have come, or why they can't be had, with the lock held."""
        for block in blocks:
            for wait in self._waits.pop((file, block), ()):
                wait.left -= 1
                wait.error = wait.error or error
                if error is not None or not wait.left:
                    wait.done.set()

    def _finish(self, download: Download, error: Exception | None, *, is_ahead: bool) -> None:
        with self._lock:
            self._ahead_running -= int(is_ahead)
            self._ahead_most = min(self._ahead_most + int(is_ahead), _MOST_AHEAD)
            if download not in self._running:  # another request for the same download has finished it
                return
            if error is not None and download.hedges:
                download.hedges -= 1  # another request for it goes on, and decides
                return
            self._running.discard(download)
            for block in range(download.first, download.end):
                if self._coming.get((download.file, block)) is download:
                    del self._coming[download.file, block]
            download.file.busy -= 1
            self._cache.coming_bytes -= download.left_bytes
            if error is not None and not isinstance(error, FeederError):
                error = StoreError(f"{self._shown(download.file)}: {type(error).__name__}: {error}")
            if not download.is_given_up:  # those who wait now have downloads of their own
                self._end_waits(download.file, range(download.first, download.end), error)

    def _hedge_slow(self) -> None:
        """Asks again for ranges that are slow, and once more if the second request is, too."""
        while not self._is_closed:
            time.sleep(_LOOK_S)
            with self._lock:
                if not self._running or not self._times:
                    continue
                times = sorted(self._times)
                limit = max(_SHORTEST_SLOW_S, _SLOW * times[len(times) * 9 // 10])
                now = time.monotonic()
                coming = sum(each.left_bytes * each.hedges for each in self._running)
                for download in self._running:
                    is_slow = now - max(download.moved_at, download.hedged_at) >= limit
                    if not is_slow or download.hedges == MOST_HEDGES:
                        continue
                    if self.counts.hedged_bytes + coming + download.left_bytes <= self.counts.most_hedged_bytes:
                        download.hedges += 1
                        download.hedged_at = now
                        self.counts.hedges += 1
                        coming += download.left_bytes
                        self._urgent.appendleft(download)
                        self._wake.notify()

    def _shown(self, file: CachedFile) -> str:
        return self._store.url.object(file.name)


def _in_blocks(pieces: Iterable[Bytes], size_bytes: int) -> Iterator[list[Block]]:
    """Cuts bytes into blocks as they come; yields those that each piece completes.

    Args:
        pieces: The bytes, from the start of a block.
        size_bytes: Their number.
    """
    block, had_bytes, left = list[memoryview](), 0, size_bytes
    for piece in pieces:
        view, blocks = memoryview(piece), list[Block]()
        left -= len(view)
        while len(view):
            chunk = view[: BLOCK_BYTES - had_bytes]
            block.append(chunk)
            view, had_bytes = view[len(chunk) :], had_bytes + len(chunk)
            if had_bytes == BLOCK_BYTES or not (left or len(view)):
                blocks.append(block)
                block, had_bytes = [], 0
        if blocks:
            yield blocks


def _runs(blocks: Sequence[int], most: float = math.inf) -> list[tuple[int, int]]:
    """Joins blocks that follow one another, ``most`` at a time: [(first, end), ...]."""
    runs: list[tuple[int, int]] = []
    for block in blocks:
        if runs and runs[-1][1] == block and block - runs[-1][0] < most:
            runs[-1] = runs[-1][0], block + 1
        else:
            runs.append((block, block + 1))
    return runs
