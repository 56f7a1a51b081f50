"""Asks for the bytes of remote sets before workers need them: the order says what comes next."""

from __future__ import annotations

import contextlib
import itertools
import logging
import math
import queue
import threading
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

import numpy as np

from feeder.dataset.joined_reader import JoinedReader
from feeder.dataset.reader import Reader
from feeder.dataset.shard_reader import ShardReader
from feeder.dataset.subset import remote_of
from feeder.dataset.subset_reader import SubsetReader, leaves
from feeder.errors import FeederError
from feeder.loader.fast.batch_queue import BatchRecord
from feeder.loader.fast.position import EpochProgress
from feeder.order.lanes import Lanes
from feeder.order.sample_order import Order, Window
from feeder.order.split import Split, ordered_batches
from feeder.shard.cache.cache_mirror import CacheMirror
from feeder.shard.cache.link import Link
from feeder.shard.format.shard_index import IndexedShard
from feeder.shard.store.store import RANGE_BYTES
from feeder.system.arrays import Int64s

_log = logging.getLogger("feeder")

_CHUNK_SAMPLES = 4096  # samples that are looked up together
_TOGETHER = 8  # an eighth of what is looked ahead is planned at a time
_PLAIN_SAMPLES = 1 << 16  # looked ahead in an order without windows
_MESSAGE_ROWS = 800  # ranges of one message
_SENT = 1 << 18  # ranges that are remembered as sent
_LOOK_S = 0.02  # between two looks for drawn batches
_PROGRESS_S = 0.1  # without progress, between two looks whether the iterator is still there
_END_S = 5.0  # the longest wait for the thread to end


@dataclass(eq=False)
class _Set:
    """A remote set and the plan for it.

    Attributes:
        reader: Its reader.
        working_bytes: Size of the shards that the order reads from at a time, and of their indexes.
        link: The connection of the plan.
        sent: (shard, range) that the fetcher knows of.
        lasts: By shard that it keeps, the last step known to need it.
        next_end: The first of these steps.
    """

    reader: ShardReader
    working_bytes: int
    link: Link | None = None
    sent: set[tuple[int, int]] = field(default_factory=set)
    lasts: dict[int, int] = field(default_factory=dict)
    next_end: float = math.inf

    def begin(self) -> Link:
        """Begins a plan.

        Raises:
            StoreError: if the cache is too small for it.
            ConnectionError: if the fetcher has ended meanwhile.
        """
        self.sent.clear()
        self.lasts.clear()
        self.link = cast(CacheMirror, self.reader.mirror).connect()
        self.link.ask({"begin": self.working_bytes})
        return self.link

    def extend(self, step: int, steps: Int64s, ids: Int64s, *, is_first: bool) -> None:
        """Plans samples.

        Args:
            step: The step that was reached.
            steps: int64 [N], steps that need the samples, in order.
            ids: int64 [N].
            is_first: True for samples that come before all others, and no more than they.

        Raises:
            ConnectionError: if the fetcher has ended meanwhile.
        """
        rows = self.reader.index.rows(ids)
        shards = np.asarray(rows.shard, np.int64)
        starts = np.asarray(rows.offset, np.int64)
        ends = starts + np.maximum(1, np.asarray(rows.length, np.int64))

        found, back = np.unique(shards[::-1], return_index=True)
        entries = {shard: self.reader.index.header.shard(shard) for shard in found.tolist()}
        last_steps = []

        lasts = dict(zip(entries, steps[::-1][back].tolist(), strict=True))
        for shard, last in lasts.items():
            last_steps.append((entries[shard].name, last))
            last_steps.append((self.reader.index.header.index_name(shard), last))

        if is_first:
            places = zip(shards.tolist(), starts.tolist(), ends.tolist(), strict=True)
            ranges = [(entries[shard].name, start, min(end, entries[shard].size_bytes)) for shard, start, end in places]
        else:
            ranges = self._new_ranges(entries, shards, starts // RANGE_BYTES, (ends - 1) // RANGE_BYTES)

        self._send(step, last_steps, ranges, is_first=is_first)
        self._set_reached(step, lasts)

    def _new_ranges(
        self, entries: Mapping[int, IndexedShard], shards: Int64s, first: Int64s, last: Int64s
    ) -> list[tuple[str, int, int]]:
        """Returns the ranges to fetch for some samples, without those that the fetcher knows of.

        Only the ranges with a sample's first and last byte are planned. What lies between them, in a sample of more
        than two ranges, is fetched when a worker reads it.

        Args:
            entries: The samples' shards, by number.
            shards: int64 [N], each sample's shard.
            first: int64 [N], number of the range with its first byte.
            last: int64 [N], number of the range with its last byte.

        Returns:
            (file name, first byte, byte after the last one) of each range, in the samples' order.
        """
        pairs = np.stack([np.repeat(shards, 2), np.stack([first, last], 1).reshape(-1)], 1)
        _, at = np.unique(pairs, axis=0, return_index=True)
        ranges = []
        for shard, number in pairs[np.sort(at)].tolist():
            if (shard, number) not in self.sent:
                self.sent.add((shard, number))
                name, end = entries[shard].name, (number + 1) * RANGE_BYTES
                ranges.append((name, number * RANGE_BYTES, min(end, entries[shard].size_bytes)))
        if len(self.sent) > _SENT:  # the fetcher knows what it has
            self.sent.clear()
        return ranges

    def reached(self, step: int) -> None:
        """Tells the fetcher that the trainer has reached a step, if it is done with a shard then.

        Raises:
            ConnectionError: if the fetcher has ended.
        """
        if self.link is not None and self.link.is_gone():
            raise ConnectionError("the fetcher has ended")
        if step > self.next_end:
            self._send(step, [], [], is_first=False)
            self._set_reached(step, {})

    def _set_reached(self, step: int, lasts: Mapping[int, int]) -> None:
        """Notes a step that the fetcher knows of, and what it keeps from there on."""
        for shard, last in lasts.items():
            self.lasts[shard] = max(last, self.lasts.get(shard, last))
        self.lasts = {shard: last for shard, last in self.lasts.items() if last >= step}
        self.next_end = min(self.lasts.values(), default=math.inf)

    def _send(
        self, step: int, last_steps: list[tuple[str, int]], ranges: list[tuple[str, int, int]], *, is_first: bool
    ) -> None:
        link = self.link or self.begin()
        for start in range(0, max(1, len(last_steps), len(ranges)), _MESSAGE_ROWS):
            rows = slice(start, start + _MESSAGE_ROWS)
            plan = {"step": step, "last_steps": last_steps[rows], "ranges": ranges[rows], "is_first": is_first}
            link.ask({"plan": plan})

    def close(self) -> None:
        """Ends the plan."""
        if self.link is not None:
            with contextlib.suppress(ConnectionError, FeederError):
                self.link.ask({"end": True})
            self.link.close()
        self.link = None


class _Ahead:
    """A thread that asks for an iterator's bytes ahead of the workers, until the iterator is done.

    Args:
        reader: The samples' reader.
        progress: The iterator's progress; the thread ends with it.
        made: Number of batches that may be made before the caller asks for them.
    """

    def __init__(self, reader: Reader, progress: EpochProgress, made: int) -> None:
        self._reader = reader
        self._made = made
        self._progress = weakref.ref(progress)
        self._moved = progress.moved
        self._is_over = threading.Event()
        self._sets: dict[int, _Set] = {}
        self._thread = threading.Thread(target=self._run, name="feeder-read-ahead", daemon=True)

    def close(self) -> None:
        """Ends the plans, so that others find their room; waits for that, but not for a network that is down."""
        self._is_over.set()
        self._moved.set()
        if self._thread is not threading.current_thread():
            self._thread.join(_END_S)

    def _reached(self) -> int | None:
        """Returns the number of batches that were handed out; None when the iterator is done."""
        progress = self._progress()
        return None if progress is None or progress.exhausted or self._is_over.is_set() else progress.steps

    def _run(self) -> None:
        """Works until the iterator is done; an error ends the reading ahead alone."""
        try:
            while self._reached() is not None:
                self._work()
        except FeederError as error:  # a worker that needs the bytes says so, too
            _log.warning("reading ahead has ended: %s", error)
        finally:
            self._is_over.set()
            self._close_all()

    def _work(self) -> None:
        """Asks for some bytes."""
        raise NotImplementedError

    def _close_all(self) -> None:
        for each in self._sets.values():
            each.close()


class ReadAhead(_Ahead):
    """The plans of one iterator over remote sets, kept up to date by a thread until the iterator is done.

    Args:
        reader: The samples' reader.
        order: Their order.
        split: This rank's share of the epoch.
        progress: The iterator's progress; the thread ends with it.
        made: Number of batches that may be made before the caller asks for them.

    Raises:
        StoreError: if a cache is too small for what the order reads from at a time, or a store can't be read.
    """

    def __init__(self, reader: Reader, order: Order, split: Split, progress: EpochProgress, made: int) -> None:
        super().__init__(reader, progress, made)
        self._order = order
        self._split = split
        self._epoch = progress.place.epoch

        self._chunk = max(1, _CHUNK_SAMPLES // split.batch_size)  # batches
        samples = split.batch_size * split.world_size
        needed = -(-_looked_ahead(order) // samples) + made + 1  # steps
        self._together = max(1, min(self._chunk, needed // _TOGETHER))
        self._ahead = needed + self._together - 1

        found = {id(leaf): leaf for leaf in remote_of(leaves(reader)) if _is_fetched(leaf)}
        fit = all(leaf.store_bytes <= leaf.cache_bytes for leaf in found.values())
        working = {} if fit else self._working_bytes()
        for number, leaf in found.items():
            self._sets[number] = _Set(leaf, working.get(number, 0))
        try:
            for each in self._sets.values():
                each.begin()
        except ConnectionError:
            pass  # extend() begins the plan again
        except BaseException:
            self._close_all()
            raise
        self._thread.start()

    def _working_bytes(self) -> dict[int, int]:
        """Returns the bytes of cache that the order needs, by the reader's id.

        A shard needs room from ``made`` steps before its first step to its last one; its index needs it from the step
        on in which the shard is planned. The result is the largest sum of a step, and room for two more shards.
        """
        leaves: dict[int, ShardReader] = {}
        spans: dict[int, dict[int, list[int]]] = {}  # first and last step of each shard
        batches, planned = self._batches(), 0

        while found := list(itertools.islice(batches, min(self._chunk, 2 * self._ahead - planned))):
            ids, steps = _joined(found, planned)
            planned += len(found)
            for leaf, own, rows in _leaf_rows(self._reader, ids):
                leaves[id(leaf)] = leaf
                shards, at = leaf.index.header.locate(own)[0], steps[rows]
                numbers, first = np.unique(shards, return_index=True)
                last = len(shards) - 1 - np.unique(shards[::-1], return_index=True)[1]
                known = spans.setdefault(id(leaf), {})
                for shard, begin, end in zip(numbers.tolist(), at[first].tolist(), at[last].tolist(), strict=True):
                    known.setdefault(shard, [begin, end])[1] = end

        needed = {}
        for number, known in spans.items():
            sizes, indexes = leaves[number].index.header.file_sizes(np.array([*known], np.int64))
            begins, ends = np.array([*known.values()], np.int64).T
            starts = [np.maximum(0, begins - before) for before in (self._made, self._ahead)]

            at, back = np.unique(np.concatenate([*starts, ends + 1, ends + 1]), return_inverse=True)
            changes = np.zeros(len(at), np.int64)
            np.add.at(changes, back, np.concatenate([sizes, indexes, -sizes, -indexes]))
            needed[number] = int(np.cumsum(changes).max() + 2 * (sizes + indexes).max())
        return needed

    def _batches(self) -> Iterator[tuple[Int64s, ...]]:
        return ordered_batches(self._order, self._epoch, self._split)

    def _work(self) -> None:
        with contextlib.suppress(ConnectionError):
            self._plan()
        self._close_all()  # the fetcher has ended: another one gets the plan from here on

    def _plan(self) -> None:
        batches, planned, is_first = self._batches(), 0, True
        while True:
            self._moved.clear()
            reached = self._reached()
            if reached is None:
                return

            end = min(len(self._split), reached + self._ahead)
            if planned < end and (is_first or end - planned >= self._together or end == len(self._split)):
                found = list(itertools.islice(batches, 1 if is_first else min(self._chunk, end - planned)))
                ids, steps = _joined(found, planned)
                planned += len(found)
                if planned > reached:  # else it was read before the fetcher ended
                    for leaf, own, rows in _leaf_rows(self._reader, ids):
                        self._sets[id(leaf)].extend(reached, steps[rows], own, is_first=is_first)
                    is_first = False
                continue

            for each in self._sets.values():
                each.reached(reached)
            self._moved.wait(_PROGRESS_S)


class DrawnAhead(_Ahead):
    """Asks for a sampler's samples as soon as their batches are drawn: workers ask for them later, one batch
    after the other. See :class:`_Ahead`."""

    def __init__(self, reader: Reader, progress: EpochProgress, made: int) -> None:
        super().__init__(reader, progress, made)
        self._drawn: queue.SimpleQueue[tuple[int, Int64s]] = queue.SimpleQueue()
        self._thread.start()

    def watched(self, requests: Iterator[BatchRecord]) -> Iterator[BatchRecord]:
        """Yields the batches to make, and asks for the bytes of each."""
        for step, request in enumerate(requests):
            if not self._is_over.is_set():
                self._drawn.put((step, request.samples.ids))
            yield request

    def _work(self) -> None:
        try:
            step, ids = self._drawn.get(timeout=_LOOK_S)
        except queue.Empty:
            return
        for leaf, own, _ in _leaf_rows(self._reader, ids):
            if id(leaf) not in self._sets:
                self._sets[id(leaf)] = _Set(leaf, 0)
            steps = np.full(len(own), step)
            try:
                self._sets[id(leaf)].extend(step - self._made, steps, own, is_first=True)
            except ConnectionError:  # the fetcher has ended: another one gets what is drawn from here on
                self._sets[id(leaf)].close()


def _joined(batches: Sequence[tuple[Int64s, ...]], first_step: int) -> tuple[Int64s, Int64s]:
    """Returns the sample ids of batches one after another, and the step of each, both int64 [N]."""
    steps = np.arange(first_step, first_step + len(batches))
    return np.concatenate([ids for _, ids, _ in batches]), np.repeat(steps, [len(ids) for _, ids, _ in batches])


def _looked_ahead(order: Order) -> int:
    """Returns the number of positions to look ahead: with fewer, a shard may be evicted that is needed again soon."""
    if order.lanes is not None and isinstance(order.shuffle, Lanes):
        return 2 * order.lanes.count * max(order.shuffle.window, order.lanes.block)
    if isinstance(order.shuffle, Window):
        return 2 * order.shuffle.samples + _PLAIN_SAMPLES
    return _PLAIN_SAMPLES


def _is_fetched(reader: ShardReader) -> bool:
    """Returns True for a remote set that is fetched ahead, and not crop by crop."""
    return reader.mirror is not None and not reader.mirror.reads_crops


def _leaf_rows(reader: Reader, ids: Int64s) -> Iterator[tuple[ShardReader, Int64s, Int64s]]:
    """Yields the remote readers below a reader whose sets are fetched ahead, with the ids there of those samples that
    they have, and their rows."""
    if isinstance(reader, SubsetReader):
        yield from _leaf_rows(reader.whole, reader.ids[ids])
    elif isinstance(reader, JoinedReader):
        for number, rows, own in reader.groups(ids):
            for leaf, found, within in _leaf_rows(reader.readers[number], own):
                yield leaf, found, rows[within]
    elif isinstance(reader, ShardReader) and _is_fetched(reader):
        yield reader, ids, np.arange(len(ids))
