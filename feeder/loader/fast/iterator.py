"""The fast path's iterator over finished batches, and its place in the epoch."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data._utils.pin_memory import pin_memory

from feeder.errors import ArgumentError, stop_in_a_batch
from feeder.loader.device.feed import feed_device
from feeder.loader.device.nested import map_tensors
from feeder.loader.device.page_lock import slot_guard
from feeder.loader.fast.batches import Assembly, Finished, assemble_here
from feeder.loader.fast.engine import Engine
from feeder.loader.fast.part_report import Substitution
from feeder.loader.fast.replay import Replay
from feeder.loader.fast.trainer_decode import Decoded, DecodeFeed
from feeder.loader.path_reason import explain_sizes
from feeder.loader.workers.iterator_lock import Use
from feeder.order.split import Split
from feeder.shard.format.index import NUMBER_FIELDS
from feeder.system.callers import warn
from feeder.system.limits import explained
from feeder.text import count, printable

if TYPE_CHECKING:
    from feeder.loader.dataloader import DataLoader
    from feeder.loader.fast.path import FastPath
    from feeder.loader.observe.live_view import LiveView

__all__ = ["FastIterator", "Place", "Progress"]


@dataclass(frozen=True)
class Place:
    """Where an iteration starts.

    Args:
        epoch: The epoch.
        start: What was consumed of it before: positions of the whole job, or, with an explicit sampler, batches.
        sampler: Of an explicit sampler, see :meth:`feeder.loader.fast.replay.Replay.state`; None: nothing is known.
    """

    epoch: int = 0
    start: int = 0
    sampler: Mapping[str, Any] | None = None


@dataclass
class Progress:
    """How far an iterator is; outlives it, so that a loop that was broken off is known.

    Attributes:
        place: Where it started.
        split: This rank's part of the epoch from there; None with an explicit sampler.
        replay: The explicit sampler's epoch from there; None with feeder's own order.
        steps: How many batches it has handed out.
        exhausted: Whether the epoch is over.
        asked: Whether a batch was asked for.
        samples: How many samples it has handed out.
        skipped: How many of them took the place of bad ones.
        first_skipped: The first that one took the place of.
    """

    place: Place
    split: Split | None
    replay: Replay | None = None
    steps: int = 0
    exhausted: bool = False
    asked: bool = False
    samples: int = 0
    skipped: int = 0
    first_skipped: Substitution | None = None

    def now(self) -> Place:
        """Where an iteration would go on after what was handed out."""
        split = self.split
        start = self.place.start + self.steps if split is None else split.consumed(self.steps)
        return Place(self.place.epoch, start)

    def warn_of_skipped(self) -> None:
        """Says at the end of an epoch how many samples others took the place of."""
        first = self.first_skipped
        if first is None:
            return
        share = self.skipped / self.samples
        warn(
            f"{self.skipped:,} of {count(self.samples, 'sample')} of epoch {self.place.epoch} ({share:.2%}) were bad, "
            f"and others took their place (on_error='skip'); the first: {printable(first.key or 'no key')}: "
            f"{printable(first.reason)}; stats()['substitutions'] lists them, and `feeder inspect --verify` those of a "
            "shard set"
        )

    @property
    def is_midway(self) -> bool:
        """Whether a batch was asked for, and some were not handed out, as far as is known."""
        return not self.exhausted and self.asked and (self.split is None or self.steps < len(self.split))


class FastIterator:
    """Yields ``(images, labels, *fields)``, or what the collate_fn makes; its length is what is left.

    Args:
        path: What it shares with other iterators of the loader.
        loader: The loader.
        place: Where to start.
        split: This rank's part of the epoch from there; None with an explicit sampler.
    """

    def __init__(self, path: FastPath, loader: DataLoader[Any], place: Place, split: Split | None) -> None:
        if loader.timeout and not loader.num_workers:
            raise AssertionError("without workers, timeout must be 0")
        self._path, self._loader = path, loader
        self.view: LiveView | None = None
        self._use = Use()
        self._engine: Engine | None = None
        self._assembly: Assembly | None = None
        self._decoding: DecodeFeed | None = None
        self.begin(place, split)

    def begin(self, place: Place, split: Split | None) -> None:
        """Starts to make batches; a second time, before any was handed out, elsewhere."""
        self._end()
        self._use.is_over = False
        path, loader = self._path, self._loader
        replay = path.replay(place)
        self._progress = path.progress = Progress(place, split, replay)
        self._refusal: Exception | None = None
        self._asked_ns = time.monotonic_ns()
        self._given_ns = 0
        requests = path.requests(place, split, replay)
        self._closed = False
        self._batches: Iterator[Finished | BaseException]
        if loader.num_workers:
            self._engine = path.engine()
            self._engine.busy = True
            self._assembly = Assembly(self._engine, requests, loader.timeout, loader.batch_size, self._use)
            self._batches = self._assembly
            try:
                self._assembly.fill()
            except ArgumentError as error:
                if replay is None or error is not replay.refusal:
                    raise
                self._refusal = error  # a resume fails with the first batch, as without workers
        else:
            self._batches = assemble_here(path.work, requests, path.meters_here)
        # Pixels that workers make stand in page-locked slots; what a collate_fn makes need not.
        made_here = not loader.num_workers or path.decoder is not None or path.collates
        self._pins = made_here and not path.is_on_device and slot_guard(loader.device_options) is not None
        if path.decoder is not None:
            self._batches = self._decoding = DecodeFeed(
                self._batches,
                path.work,
                path.decoder,
                self._assembly.ready if self._assembly is not None else lambda: False,
                mixing=path.completion.mixing,
                channels_last=loader.channels_last,
                stream=loader.feeding_stream,
                meter=path.meter,
            )
        self._feed = feed_device(loader.device_options, self._next_finished, self._ready, path.meter, path.complete)

    def __iter__(self) -> FastIterator:
        return self

    def __len__(self) -> int:
        progress = self._progress
        whole = len(progress.split) if progress.split is not None else len(self._loader) - progress.place.start
        return max(0, whole - progress.steps)

    def __next__(self) -> Any:
        with self._use.begun(self._end):
            return self._next()

    def _next(self) -> Any:
        if self._progress.exhausted:
            raise StopIteration
        was_asked, self._progress.asked = self._progress.asked, True
        if self._given_ns:
            self._path.meter.add("consumer", time.monotonic_ns() - self._given_ns)
        try:
            if self._refusal is not None:
                raise self._refusal
            if self._progress.steps or not was_asked:
                self._path.agree(self._progress)
            finished, batch = self._next_here() if self._feed is None else next(self._feed)
        except StopIteration:
            self._progress.exhausted = not self._closed  # closed before its end, it has not come to it
            self._end()
            if self._progress.exhausted:
                self._path.warn_of_clipped()
                self._progress.warn_of_skipped()
            raise
        except BaseException:
            with contextlib.suppress(Exception):  # it is no news beside what is under way
                self._end()
            with explained():
                raise
        self._account(finished)
        if isinstance(finished, BaseException):
            if isinstance(finished, StopIteration):
                raise stop_in_a_batch(finished)
            if isinstance(finished, RuntimeError):
                explain_sizes(self._loader.dataset, finished)
            with explained():
                raise finished
        if self.view is not None:
            self.view.step()
        self._given_ns = time.monotonic_ns()
        return batch if self._path.collates else tuple(batch)

    def _next_finished(self) -> tuple[Finished | BaseException, Any]:
        finished = next(self._batches)
        if self._assembly is not None:
            waited_ns = self._assembly.take_waited_ns()
            self._path.counts["waited_ns"] += waited_ns
            self._path.meter.add("wait_batch", waited_ns)
        if isinstance(finished, BaseException):
            return finished, None
        if finished.collated is not None:
            try:
                batch = finished.collated.batch(finished.arrays.images.reshape(-1))
            except Exception as error:
                return error, None
            finished.collated = None  # its message may be large
        else:
            batch = self._batch(finished)
        if self._path.is_on_device and not isinstance(finished, Decoded):
            finished.let_go()  # the tensors alone say how long the slot is needed
        return finished, batch

    def _next_here(self) -> tuple[Finished | BaseException, Any]:
        finished, batch = self._next_finished()
        batch = self._path.complete(finished, batch)
        if self._pins and self._path.collates:  # also objects with a pin_memory() of their own, as torch's loader does
            return finished, pin_memory(batch)  # type: ignore[no-untyped-call]
        return finished, map_tensors(batch, torch.Tensor.pin_memory) if self._pins else batch

    @property
    def is_untouched(self) -> bool:
        """Whether no batch was asked for yet."""
        return self._progress.steps == 0 and not self._progress.exhausted

    def _ready(self) -> bool:
        """Whether the next batch can be had without a wait for the workers."""
        if self._decoding is not None:
            return self._decoding.ready()
        return self._assembly is not None and self._assembly.ready()

    def slots(self) -> dict[str, int]:
        """How many slots there are, are held by the caller, are being filled, and are full."""
        engine, assembly = self._engine, self._assembly
        if engine is None or assembly is None or not len(assembly):
            return {"total": 0, "held": 0, "making": 0, "ready": 0}
        ring, ready = engine.ring, assembly.made()
        return {"total": ring.slots, "held": ring.held, "making": max(0, len(assembly) - ready), "ready": ready}

    def place(self) -> Place:
        """Where an iteration would go on after what was handed out."""
        return self._progress.now()

    def close(self) -> bool:
        """Gives up what is in the making and lets go of the workers, see Note [Closing]; whether that is done."""
        return self._use.end(self._end)

    def _end(self) -> None:
        self._closed = True
        view, self.view = self.view, None
        if view is not None:
            view.end()
        self._feed = None
        decoding, self._decoding = self._decoding, None
        if decoding is not None:
            decoding.close()
        engine, self._engine = self._engine, None
        if engine is not None and self._assembly is not None:
            self._assembly.abandon()
            engine.end_iterator()
        self._batches = iter(())

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if not is_finalizing() and not getattr(self, "_closed", True):  # see Note [At the interpreter's end]
            self.close()

    def _account(self, finished: Finished | BaseException) -> None:
        path, split, step = self._path, self._progress.split, self._progress.steps
        self._progress.steps += 1
        if self._progress.replay is not None:
            self._progress.replay.handed_out()
        now = time.monotonic_ns()
        path.counts["elapsed_ns"] += now - self._asked_ns
        self._asked_ns = now
        if isinstance(finished, BaseException):
            return
        progress, skipped = self._progress, finished.substitutions
        progress.samples += len(finished.arrays.labels)
        progress.skipped += len(skipped)
        if skipped and progress.first_skipped is None:
            progress.first_skipped = skipped[0]
        path.counts["batches"] += 1
        path.counts["samples"] += len(finished.arrays.labels)
        path.counts["skipped"] += len(finished.substitutions)
        path.counts["clipped"] += finished.clipped
        path.counts["slow"] += finished.slow
        path.substitutions.extend(finished.substitutions)
        padding = split.padding(step) if split is not None else 0
        if padding:
            path.padded += finished.arrays.ids[-padding:].tolist()

    def _batch(self, finished: Finished) -> tuple[Any, ...]:
        fields = [
            torch.tensor(values, dtype=torch.int64) if name in NUMBER_FIELDS else values
            for name, values in zip(self._path.dataset.fields, finished.fields, strict=True)
        ]
        images = finished.images if isinstance(finished, Decoded) else self._path.completion.stored(finished)
        labels = finished.arrays.labels
        return (images, torch.from_numpy(labels.copy() if self._path.is_on_device else labels), *fields)
