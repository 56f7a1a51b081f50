"""Batches in DALI: started ahead of time, asked for in any order, within a memory limit."""

from __future__ import annotations

import weakref
from collections import deque
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch

from feeder.decoders.dali.crops import resize_crops
from feeder.decoders.dali.pipeline import DaliPipeline, PipelineError, PipelineOptions
from feeder.decoders.decoder import Buffer
from feeder.decoders.image_header import ImageInfo, image_info
from feeder.decoders.staged.staged import RowKind, Staged
from feeder.system.arrays import Int64s

# Memory of a decoded pixel on the GPU.
PIXEL_BYTES = 3
# Batches that may be started and not yet asked for: the current one and the next.
_STARTED = 2
# Nearly every JPEG has its size within these bytes.
_HEADER_BYTES = 1 << 14


@dataclass(frozen=True, eq=False)
class PipelineRows:
    """Rows of a batch that the pipeline decodes in one run.

    Args:
        rows: Their numbers, int64 [N].
        jpegs: The rows that have their JPEGs, int64 [M].
        size_bytes: Size of these JPEGs when decoded.
    """

    rows: Int64s
    jpegs: Int64s
    size_bytes: int


@dataclass(eq=False)
class _Started:
    """The run that a batch was started as, and then its result."""

    run: PipelineRows
    resized: _Resized | None = None
    failure: str | None = None

    @property
    def under_way(self) -> bool:
        return self.resized is None and self.failure is None


class _Resized(NamedTuple):
    """Images and, on a GPU, the event after the work that makes them."""

    images: list[torch.Tensor]
    event: Any


class _Held(NamedTuple):
    owner: Any
    size_bytes: int
    event: Any


class Borrowed:
    """Owners of foreign memory that kernels on a GPU still read, each held until the event after its last reader.

    They must be held: they know nothing of torch's streams, and would use the memory again.
    """

    def __init__(self) -> None:
        self._held: deque[_Held] = deque()
        weakref.finalize(self, _wait_for_all, self._held)  # if nobody closes, and at the interpreter's end

    @property
    def size_bytes(self) -> int:
        """Size of the memory held, after releasing what is no longer in use. Does not wait."""
        self._release()
        return sum(held.size_bytes for held in self._held)

    def hold(self, owner: Any, size_bytes: int, event: Any) -> None:
        """Keeps an owner alive until an event has occurred, and releases the owners whose event has. Does not wait.

        Args:
            owner: The object whose end frees the memory.
            size_bytes: Size of the memory.
            event: A CUDA event, recorded after the last reader.
        """
        self._release()
        self._held.append(_Held(owner, size_bytes, event))

    def wait(self, most_bytes: int) -> None:
        """Waits until at most ``most_bytes`` are held."""
        while self.size_bytes > max(0, most_bytes):
            self._held[0].event.synchronize()

    def wait_for_all(self) -> None:
        """Waits until nothing is held."""
        _wait_for_all(self._held)

    def _release(self) -> None:
        while self._held and self._held[0].event.query():
            self._held.popleft()


def _wait_for_all(held: deque[_Held]) -> None:
    while held:
        held[0].event.synchronize()
        held.popleft()


class DaliQueue:
    """Decodes staged JPEGs with a pipeline, and resizes them.

    DALI returns batches in the order of submission. If one is asked for before its turn, those before it are collected
    and resized, which takes little memory, and kept until asked for.

    Args:
        options: The pipeline's options; a larger batch builds another pipeline.
        limit_bytes: Limit for all decoded images at a time, from their submission until kernels have resized them; None
            for no limit. An image larger than that is decoded alone.
    """

    def __init__(self, options: PipelineOptions, limit_bytes: int | None = None) -> None:
        self.options = options
        self._limit_bytes = limit_bytes
        device_id = options.device_id
        self._device = torch.device("cpu") if device_id is None else torch.device("cuda", device_id)
        self._pipeline: DaliPipeline | None = None
        self._started: dict[Staged, _Started] = {}  # in the order of submission
        self._borrowed = Borrowed()

    def prepare(self, batch_size: int) -> None:
        """Prepares for the batches to come, so that the pipeline need not be rebuilt for them.

        Args:
            batch_size: The largest batch.
        """
        self.options = replace(self.options, batch_size=max(self.options.batch_size, batch_size))

    def runs(self, staged: Staged) -> list[PipelineRows]:
        """Divides a batch's JPEGs into runs within the limit."""
        rows = np.flatnonzero(staged.rows["kind"] == RowKind.JPEG)
        if len(rows) == 0:
            return []
        sources = staged.owners[rows]
        jpegs = np.unique(sources)
        sizes = PIXEL_BYTES * self._decoded_pixels(staged, jpegs)
        if self._limit_bytes is None:
            return [PipelineRows(rows, jpegs, int(sizes.sum()))]
        runs, start, taken = [], 0, 0
        for end, size in enumerate([*sizes.tolist(), self._limit_bytes]):
            if end > start and (taken + size > self._limit_bytes or end == len(jpegs)):
                here = jpegs[start:end]
                runs.append(PipelineRows(rows[np.isin(sources, here)], here, taken))
                start, taken = end, 0
            taken += size
        return runs

    def start(self, staged: Staged) -> bool:
        """Starts a batch if the limits allow it, without waiting.

        Args:
            staged: Its payloads must not change until it is asked for or dropped.

        Returns:
            True if the batch is in flight, or has nothing to start.
        """
        if staged in self._started:
            return True
        if len(self._started) >= _STARTED:
            return False
        runs = self.runs(staged)
        if len(runs) != 1:
            return not runs
        (run,) = runs
        if self._limit_bytes is not None:
            running = sum(each.run.size_bytes for each in self._started.values() if each.under_way)
            if running + self._borrowed.size_bytes + run.size_bytes > self._limit_bytes:
                return False
        try:
            self._submit(staged, run)
        except PipelineError:
            return False  # reported when the batch is asked for
        self._started[staged] = _Started(run)
        return True

    def drop(self, staged: Staged) -> None:
        """Forgets a batch that was started and will not be asked for."""
        if staged in self._started:
            self._collect_until(staged)
            self._started.pop(staged, None)  # lost when another failed

    def images(self, staged: Staged, run: PipelineRows) -> list[torch.Tensor]:
        """Decodes a run of a batch, started or not, and resizes it on the current stream.

        Returns:
            For each view uint8 [N, H * W * 3] of the largest image, as stored (not turned), in its own memory; see
            :func:`resize_crops`.

        Raises:
            PipelineError: if DALI fails.
        """
        self._collect_until(staged)
        started = self._started.pop(staged, None)
        if started is None:  # or lost when another failed
            if self._limit_bytes is not None:
                self._borrowed.wait(self._limit_bytes - run.size_bytes)
            self._submit(staged, run)
            return self._collect(staged, run).images
        if started.failure is not None:
            raise PipelineError(started.failure)
        assert started.resized is not None
        images, event = started.resized
        if event is not None:  # they may have been resized on another stream, for another batch's sake
            stream: Any = torch.cuda.current_stream(self._device)
            stream.wait_event(event)
            for view in images:
                view.record_stream(stream)
        return images

    def close(self) -> None:
        """Ends the pipeline, once its images are no longer in use; the next batch builds another."""
        self._borrowed.wait_for_all()
        if self._pipeline is not None:
            self._pipeline.rebuild()
        self._started.clear()

    def _drop_under_way(self) -> None:
        self._started = {staged: each for staged, each in self._started.items() if not each.under_way}

    def _submit(self, staged: Staged, run: PipelineRows) -> None:
        """Submits a run to the pipeline; a failure loses the batches in flight."""
        count = len(run.jpegs)
        self.prepare(count)
        if self._pipeline is not None and (
            self._pipeline.options.batch_size < self.options.batch_size or self._pipeline.is_outgrown_by(count)
        ):
            self._collect_until(None)
            self._pipeline.rebuild()
            self._pipeline = None
        if self._pipeline is None:
            self._pipeline = DaliPipeline(self.options)
        try:
            self._pipeline.submit(staged.rows[run.jpegs], [staged.payloads[row] for row in run.jpegs.tolist()], run)
        except PipelineError:
            self._drop_under_way()
            raise

    def _collect_until(self, last: Staged | None) -> None:
        """Collects the batches in flight up to one of them, or all."""
        for staged, each in list(self._started.items()):
            if each.under_way:
                try:
                    each.resized = self._collect(staged, each.run)
                except PipelineError as error:
                    each.failure = str(error)
                    self._drop_under_way()
                    return
            if staged is last:
                return

    def _collect(self, staged: Staged, run: PipelineRows) -> _Resized:
        """Collects and resizes the oldest run's images."""
        assert self._pipeline is not None
        stream: Any = torch.cuda.current_stream(self._device) if self._device.type == "cuda" else None
        decoded = self._pipeline.collect(run, stream)
        images, event = [], None
        numbers = np.searchsorted(run.jpegs, staged.owners[run.rows])
        views = run.rows % staged.views
        try:
            for view in range(staged.views):
                here = views == view
                rows = staged.rows[run.rows[here]]
                images.append(resize_crops(decoded, numbers[here], rows, self.options.crops, self._device))
        except PipelineError:
            self._pipeline.rebuild()  # any failure loses the batches in flight
            raise
        finally:
            if stream is not None:
                event = stream.record_event()
                self._borrowed.hold(decoded, run.size_bytes, event)
        return _Resized(images, event)

    def _decoded_pixels(self, staged: Staged, rows: Int64s) -> Int64s:
        """Returns the number of pixels that DALI decodes for each row, int64 [N]."""
        if self._limit_bytes is None:
            return np.zeros(len(rows), np.int64)
        if self.options.crops:
            window = staged.rows["decoded"][rows].astype(np.int64)
            return (window[:, 2] - window[:, 0]) * (window[:, 3] - window[:, 1])
        found = [_info(staged.payloads[row]) for row in rows.tolist()]
        return np.array([each.width_px * each.height_px for each in found], np.int64)


def _info(payload: Buffer) -> ImageInfo:
    """Reads a JPEG's header from its first bytes if possible."""
    try:
        return image_info(bytes(memoryview(payload)[:_HEADER_BYTES]))
    except ValueError:
        return image_info(bytes(payload))
