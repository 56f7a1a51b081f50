"""Requests for batches in, finished batches out, in order: in the calling process, or by the worker pool."""

from __future__ import annotations

import collections
import itertools
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from feeder.loader.fast.part_report import Report, Substitution
from feeder.loader.fast.sample_maker import Work
from feeder.loader.slots.ring import SlotView
from feeder.system.callers import warn

if TYPE_CHECKING:
    from feeder.decode.decoder import Buffer
    from feeder.loader.fast.collated import Collated
    from feeder.loader.fast.engine import Engine
    from feeder.loader.workers.iterator_lock import Use

__all__ = ["HELD_BATCHES", "Assembly", "Finished", "Request", "assemble_here", "part_rows"]

# Batches that a training loop holds at a time: the one in use, and the one before it until the name is bound anew.
HELD_BATCHES = 2
_LARGEST_PART = 64
_SMALLEST_PART = 4


class Request(NamedTuple):
    """A batch to make.

    Attributes:
        epoch: The epoch that the augmentation is drawn for.
        positions: int64 [N], positions in the epoch.
        ids: int64 [N], sample ids; of one that came before in the epoch, as often with the number of samples added,
            which tells its augmentation apart.
    """

    epoch: int
    positions: npt.NDArray[np.int64]
    ids: npt.NDArray[np.int64]


@dataclass
class Finished:
    """A batch that is made.

    Attributes:
        arrays: Its rows.
        fields: The further fields, each a list of one value a sample.
        substitutions: Bad samples and what stands in their place.
        epoch: The epoch that its augmentation was drawn for.
        parts: (first row, number of rows) of the parts that it was made in.
        left_over: Staged images that found no room in the slot, by row.
        collated: The batch that a collate_fn made, in place of images, labels and fields; else None.
        clipped, slow: How many images were decoded with a loss of range, or slowly; see
            :class:`feeder.loader.fast.part_report.Report`.
    """

    arrays: SlotView
    fields: list[list[Any]]
    substitutions: list[Substitution]
    epoch: int
    parts: list[tuple[int, int]]
    left_over: dict[int, Buffer] = field(default_factory=dict)
    collated: Collated | None = None
    clipped: int = 0
    slow: int = 0

    def let_go(self) -> None:
        """Keeps what is small in ordinary memory, and the slot no longer: its images are gone from here."""
        arrays = self.arrays
        nothing = np.empty((len(arrays.ids), 0), np.uint8)
        self.arrays = SlotView(arrays.positions.copy(), arrays.ids.copy(), arrays.labels.copy(), nothing)

    def made_ids(self) -> npt.NDArray[np.int64]:
        """int64 [N], ids of the samples that are really in it: those of the request, or their substitutes."""
        if not self.substitutions:
            return self.arrays.ids
        ids: npt.NDArray[np.int64] = self.arrays.ids.copy()
        for substitution in self.substitutions:
            ids[self.arrays.positions == substitution.position] = substitution.substitute
        return ids


@dataclass
class _Making:
    request: Request
    slot: int
    edges: list[tuple[int, int]]
    parts: list[int]
    reports: dict[int, Report | BaseException] = field(default_factory=dict)


def assemble_here(
    work: Work, requests: Iterator[Request], meters: dict[str, int]
) -> Iterator[Finished | BaseException]:
    """Makes each batch in the calling process, when it is asked for, in ordinary memory.

    Args:
        work: How to make samples.
        requests: The batches.
        meters: Sums that grow with every batch; see :meth:`feeder.loader.fast.task_board.Board.meters`.
    """
    for request in requests:
        rows = len(request.ids)
        labels = np.empty(rows, work.reader.label_dtype)
        images = np.empty((rows, *work.sample_shape), work.sample_dtype)
        started = time.perf_counter_ns()
        try:
            report = work.run(request.epoch, request.positions, request.ids, images, labels)
        except Exception as error:
            yield error
            continue
        for name in ("read_ns", "decode_ns", "encoded_bytes"):
            meters[name] = meters.get(name, 0) + getattr(report, name)
        meters["busy_ns"] = meters.get("busy_ns", 0) + time.perf_counter_ns() - started
        meters["parts"] = meters.get("parts", 0) + 1
        arrays = SlotView(request.positions, request.ids, labels, images)
        fields, substitutions = report.fields, report.substitutions
        whole = [(0, rows)]
        found = fields, substitutions, request.epoch, whole, report.left_over, report.collated
        yield Finished(arrays, *found, report.clipped, report.slow)


class Assembly:
    """Keeps an engine's workers busy with the next batches and hands out finished ones in order.

    Args:
        engine: Slots and workers; made ready for the first batch, and anew for one larger than all before.
        requests: The batches.
        timeout_s: Longest wait for a batch; 0: no limit.
        batch_size: The largest batch, if it is known.
        use: Whether it is over by now.
    """

    def __init__(
        self, engine: Engine, requests: Iterator[Request], timeout_s: float, batch_size: int | None, use: Use
    ) -> None:
        self._engine, self._timeout_s, self._batch_size, self._use = engine, timeout_s, batch_size, use
        self._requests = requests
        self._waiting: Request | None = None
        self._queue: collections.deque[_Making] = collections.deque()
        self._by_part: dict[int, _Making] = {}
        self._waited_ns = 0

    def __iter__(self) -> Iterator[Finished | BaseException]:
        return self

    def fill(self) -> None:
        """Gives out as many batches as may be made ahead."""
        self._engine.check_owner()  # before anything is written into a slot, which the owner may use by now
        while True:
            if self._waiting is None:
                self._waiting = next(self._requests, None)
            if self._waiting is None:
                return
            rows = max(len(self._waiting.ids), self._batch_size or 1)
            if not self._engine.fits(rows):
                if self._queue:
                    return
                self._engine.prepare(rows)
            slot = self._engine.ring.acquire() if len(self._queue) < self._engine.ahead else None
            if slot is None:
                return
            self._give_out(self._waiting, slot)
            self._waiting = None

    def __next__(self) -> Finished | BaseException:
        self.fill()
        if not self._queue:
            raise StopIteration
        making = self._queue[0]
        started = time.monotonic()
        while len(making.reports) < len(making.parts):
            left = None if not self._timeout_s else started + self._timeout_s - time.monotonic()
            if left is not None and left <= 0:
                raise RuntimeError(f"DataLoader timed out after {self._timeout_s} seconds")
            last_missing = making.parts[-1] not in making.reports
            for part, report in self._engine.pool.take(left, last_missing, self._use.check):
                self._by_part.pop(part).reports[part] = report
        self._waited_ns += int((time.monotonic() - started) * 1e9)
        self._queue.popleft()
        return self._finished(making)

    def ready(self) -> bool:
        """Whether the next batch is there. Takes what has come back, and never waits."""
        self.fill()
        if not self._queue:
            return False
        for part, report in self._engine.pool.take(0):
            self._by_part.pop(part).reports[part] = report
        making = self._queue[0]
        return len(making.reports) == len(making.parts)

    def __len__(self) -> int:
        """Batches that are given out."""
        return len(self._queue)

    def made(self) -> int:
        """How many of them are made, about: workers take parts in order, but do not finish them in order."""
        queue = list(self._queue)  # another thread may ask
        left = self._engine.unfinished if queue else 0
        unmade = 0
        for making in reversed(queue):
            if left <= 0:
                break
            left -= len(making.parts) - len(making.reports)
            unmade += 1
        return len(queue) - unmade

    def take_waited_ns(self) -> int:
        """How long the caller was kept waiting since the last call."""
        waited, self._waited_ns = self._waited_ns, 0
        return waited

    def abandon(self) -> None:
        """Forgets the batches that are being made."""
        self._queue.clear()
        self._by_part.clear()
        self._requests = iter(())
        self._waiting = None

    def _give_out(self, request: Request, slot: int) -> None:
        rows = len(request.ids)
        view = self._engine.ring.views[slot]
        view.positions[:rows] = request.positions
        view.ids[:rows] = request.ids
        pool = self._engine.pool
        edges = self._engine.parts(rows)
        parts = pool.submit(slot, edges, request.epoch)
        making = _Making(request, slot, edges, parts)
        self._by_part.update(dict.fromkeys(parts, making))
        self._queue.append(making)

    def _finished(self, making: _Making) -> Finished | BaseException:
        reports: list[Report] = []
        for part in making.parts:
            report = making.reports[part]
            if isinstance(report, BaseException):
                self._engine.ring.put_back(making.slot)
                return report
            reports.append(report)
        rows, ring = len(making.request.ids), self._engine.ring
        # Half of the batches ahead stay possible, whatever the caller keeps.
        most = ring.slots - 1 - max(1, self._engine.ahead // 2)
        if ring.settle(most):
            arrays = ring.lease_view(making.slot, rows)
        else:
            held = ring.held
            if held >= HELD_BATCHES and held > most and not self._engine.warned:
                self._engine.warned = True
                warn(
                    f"{held} batches are held at a time, so further ones are copied to ordinary memory; "
                    "if they are kept by mistake, let go of them, or copy what is needed",
                    RuntimeWarning,
                )
            arrays = SlotView.of(ring.layout, ring.whole[making.slot], rows).copy()
            ring.put_back(making.slot)
        collated = reports[0].collated
        if collated is not None and collated.message is not None:
            self._engine.make_room(collated.message.wanted, rows)
        columns = zip(*(report.fields for report in reports), strict=True)
        fields = [list(itertools.chain.from_iterable(column)) for column in columns]
        made = zip(making.edges, reports, strict=True)
        return Finished(
            arrays,
            fields,
            [s for report in reports for s in report.substitutions],
            making.request.epoch,
            making.edges,
            {first + row: data for (first, _), report in made for row, data in report.left_over.items()},
            collated,
            sum(report.clipped for report in reports),
            sum(report.slow for report in reports),
        )


def part_rows(rows: int, workers: int) -> list[tuple[int, int]]:
    """Splits a batch into parts as (first row, number of rows): one for each worker or more, none of them large.

    A part costs a worker about 0.2 ms besides decoding, and the trainer about 0.1 ms.
    """
    largest = min(_LARGEST_PART, max(_SMALLEST_PART, -(-rows // workers)))
    count = -(-rows // largest)
    edges = [rows * k // count for k in range(count + 1)]
    return [(a, b - a) for a, b in itertools.pairwise(edges)]
