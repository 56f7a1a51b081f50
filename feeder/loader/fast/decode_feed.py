"""Staged batches to images: decoded in the trainer, one batch ahead of the one that is asked for."""

from __future__ import annotations

import collections
import contextlib
import copy
import functools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from feeder.decoders.decoder import Buffer
from feeder.decoders.staged.staged import Staged
from feeder.decoders.staged.trainer_decoder import LeftToCpu, Padding, StagedView, TrainerDecoder
from feeder.errors import DecodeError
from feeder.loader.fast.batch_queue import BatchRecord
from feeder.loader.fast.part_report import Substitution, no_substitute
from feeder.loader.fast.sample_maker import Work
from feeder.loader.observe.meter import Meter
from feeder.loader.slots.image_slots import Samples, SlotView
from feeder.system.arrays import Size, Uint8s
from feeder.transforms import Recipe
from feeder.transforms.mixing import Mixing
from feeder.transforms.pad_to_batch import PadToBatch

_AHEAD = 1


@dataclass
class _Waiting:
    record: BatchRecord | BaseException
    staged: list[Staged] = field(default_factory=list)  # one for each image of a sample, with its views
    started: int = 0  # number of those whose decoding has started
    start_ns: int = 0


@dataclass(eq=False, kw_only=True)
class DecodeFeed:
    """Iterates over batches whose staged images are decoded here. A slot comes free once its images are decoded.

    Args:
        source: Batches of staged images; an error takes its batch's place.
        work: The work that made them.
        decoder: Decodes them.
        source_ready: Returns True if the source has the next batch; only then it is started ahead.
        mixing: Returns the mixing of each view of a batch, of these (height, width); None: none.
        channels_last: Memory format of the images.
        stream: The stream to decode on; None: the current one.
        meter: Gets the stage "decode": the calling process's time for a batch.
    """

    source: Iterator[BatchRecord | BaseException]
    work: Work
    decoder: TrainerDecoder
    source_ready: Callable[[], bool]
    mixing: Callable[[BatchRecord, Sequence[Size]], list[Mixing] | None]
    channels_last: bool
    stream: Any
    meter: Meter

    def __post_init__(self) -> None:
        self._queue: collections.deque[_Waiting] = collections.deque()
        self._failure: Exception | None = None

    def __iter__(self) -> DecodeFeed:
        return self

    def __next__(self) -> BatchRecord | BaseException:
        if not self._queue:
            if self._failure is not None:
                raise self._failure
            self._take_next()
        while len(self._queue) <= _AHEAD and self._failure is None:
            try:
                if not self.source_ready():
                    break
                self._take_next()
            except Exception as failure:  # its turn comes after the batches that are there
                self._failure = failure
        waiting = self._queue[0]
        try:
            if isinstance(waiting.record, BaseException):
                return waiting.record
            started = time.perf_counter_ns()
            with self._on_stream():
                batch = self._decode(waiting.record, waiting)
            size_bytes = sum(images.nbytes for images in batch.images or ()) if isinstance(batch, BatchRecord) else 0
            self.meter.add("decode", waiting.start_ns + time.perf_counter_ns() - started, size_bytes)
            return batch
        except BaseException:
            self._drop(waiting)
            raise
        finally:
            self._queue.popleft()

    def ready(self) -> bool:
        """Returns True if the next batch can be had without a wait: its decode has started, or its bytes are there."""
        return bool(self._queue) or self.source_ready()

    def close(self) -> None:
        """Drops the batches that were started."""
        for waiting in self._queue:
            self._drop(waiting)
        self._queue.clear()

    def _drop(self, waiting: _Waiting) -> None:
        for staged in waiting.staged:
            with self._on_stream():  # what is dropped is collected first
                self.decoder.drop(staged)

    def _take_next(self) -> None:
        record = next(self.source)
        if isinstance(record, BaseException):
            self._queue.append(_Waiting(record))
            return
        staged = []
        for number, (images, views) in enumerate(zip(record.arrays.images, self.work.views_of, strict=True)):
            parts = []
            for first, count in record.parts:
                memory, rows = images[first : first + count].reshape(-1), range(first, first + count)
                parts.append(_unpacked(memory, record.report.left_over, number, rows, views.stop - views.start))
            staged.append(Staged.join(parts))
        self._queue.append(_Waiting(record, staged))
        self._start()

    def _start(self) -> None:
        """Starts waiting batches in order, image by image of a sample, as far as the decoder has capacity."""
        for waiting in self._queue:
            for staged in waiting.staged[waiting.started :]:
                began = time.perf_counter_ns()
                with self._on_stream():
                    has_started = self.decoder.start(staged)
                waiting.start_ns += time.perf_counter_ns() - began
                if not has_started:
                    return
                waiting.started += 1

    def _on_stream(self) -> contextlib.AbstractContextManager[Any]:
        return contextlib.nullcontext() if self.stream is None else torch.cuda.stream(self.stream)

    def _decode(self, batch: BatchRecord, waiting: _Waiting) -> BatchRecord | BaseException:
        work = self.work
        recipes = _recipes(work, batch)[: len(work.recipe.views)]

        made = work.as_drawn(batch.made(), batch.arrays.samples)
        mixings = self.mixing(batch, [size for recipe in recipes if (size := recipe.output_size) is not None])
        images, errors = self._finish(waiting, batch, made)
        batch.let_go()
        batch.images = images

        for row, error in enumerate(errors):
            if isinstance(error, LeftToCpu):
                error, substitutions = self._remake(self._on_cpu, batch, row, made.part(slice(row, row + 1)))
                batch.report.substitutions += substitutions
            if error is not None:
                named = work.reader.at(error, int(made.ids[row]))
                failed = self._replace(batch, row, named) if work.skip else named
                if failed is not None:
                    return failed

        if mixings is not None:  # after substitutes have taken the places of bad samples
            batch.images = [mixing.apply(view) for mixing, view in zip(mixings, images, strict=True)]
        return batch

    def _finish(
        self, waiting: _Waiting, batch: BatchRecord, made: Samples
    ) -> tuple[list[torch.Tensor], list[DecodeError | None]]:
        """Decodes every view and further image; returns the images of each, and one error or None for each sample."""
        work, images = self.work, []
        errors: list[DecodeError | None] = [None] * len(made.ids)
        recipes = _recipes(work, batch)
        for number, (view_slice, staged) in enumerate(zip(work.views_of, waiting.staged, strict=True)):
            if work.pad is None or number:
                rests = work.draw_rest(view_slice, batch.epoch, made, batch.arrays.image_size)
                views = [StagedView(*each) for each in zip(recipes[view_slice], rests, strict=True)]
            else:
                views = [self._padded(work.pad, batch, recipes[0], made)]
            done, found = self.decoder.finish(staged, views, channels_last=self.channels_last)
            images += done
            if number:
                named = work.images[number - 1].named
                found = [error if error is None or isinstance(error, LeftToCpu) else named(error) for error in found]
            errors = [earlier or error for earlier, error in zip(errors, found, strict=True)]
            waiting.started = max(waiting.started, number + 1)
            if waiting.started < len(waiting.staged):
                self._start()
        return images, errors

    def _padded(self, pad: PadToBatch, batch: BatchRecord, recipe: Recipe, made: Samples) -> StagedView:
        """Returns the output of a batch that is padded."""
        work, size = self.work, batch.arrays.image_size
        known = work.reader.stored(made.ids)
        assert known is not None  # or padding was refused
        assert size is not None
        draws = recipe.draw(work.seed, batch.epoch, work.image_keys(made)[0], known[1])
        padding = Padding(draws.output_size, size, pad.value)
        return StagedView(recipe, draws.ops[recipe.base_length :], padding=padding)

    @functools.cached_property
    def _on_cpu(self) -> Work:
        """The same work with all images decoded where it is done."""
        other = copy.copy(self.work)
        assert other.stager is not None
        other.stager = other.stager.on_cpu()
        return other

    def _replace(self, batch: BatchRecord, row: int, error: DecodeError) -> DecodeError | None:
        """Replaces a sample that only the decoder found to be bad; returns an error if that fails."""
        work, arrays = self.work, batch.arrays
        here = arrays.samples.part(slice(row, row + 1))
        position = int(here.positions[0])
        for other in work.substitute_samples(here, batch.epoch, None if work.pad is None else arrays.image_size):
            found, further = self._remake(work, batch, row, other)
            if found is None:
                last = further[-1].substitute if further else int(other.ids[0])
                batch.report.substitutions.append(Substitution.of(position, error, last))
                return None
        return no_substitute(error)

    def _remake(
        self, work: Work, batch: BatchRecord, row: int, sample: Samples
    ) -> tuple[DecodeError | None, list[Substitution]]:
        """Makes one sample of a batch here; returns None or the error, and the substitutions of its making."""
        view = SlotView.new(work.layout(1), sample, batch.arrays.sizes)
        try:
            report = work.run(batch.epoch, view)
        except DecodeError as error:
            return error, []

        i = sample.ids.copy()
        for found in report.substitutions:
            i[0] = found.substitute
        staged = [
            _unpacked(memory.reshape(-1), report.left_over, number, range(1), view_slice.stop - view_slice.start)
            for number, (memory, view_slice) in enumerate(zip(view.images, work.views_of, strict=True))
        ]
        made = work.as_drawn(Samples.of(sample.positions, i), sample) if report.substitutions else sample

        images, errors = self._finish(_Waiting(batch, staged), batch, made)
        if isinstance(errors[0], LeftToCpu):
            verdict, further = self._remake(self._on_cpu, batch, row, made)
            return verdict, report.substitutions + further

        if errors[0] is None:
            for whole, image in zip(batch.images or (), images, strict=True):
                whole[row] = image[0]
            batch.arrays.labels[row] = view.labels[0]
            for column, (array,) in zip(batch.arrays.further, view.further, strict=True):
                column[row] = array
            for values, (value,) in zip(batch.report.extras, report.extras, strict=True):
                values[row] = value
        return errors[0], report.substitutions


def _recipes(work: Work, batch: BatchRecord) -> tuple[Recipe, ...]:
    """Returns the recipes of a batch, see :attr:`Work.recipes`."""
    return work.recipes_at(batch.arrays.image_size, batch.epoch)


def _unpacked(
    memory: Uint8s, left_over: Mapping[tuple[int, int, int], Buffer], image: int, rows: range, views: int
) -> Staged:
    """Returns the staged samples of a part of a batch.

    Args:
        memory: uint8, the part of the slot.
        left_over: What did not fit there, by image of the sample, row of the batch and view.
        image: Number of the image, of which each sample has one.
        rows: The part's rows in the batch.
        views: Number of views of the image.
    """
    here = {
        (row - rows.start) * views + view: data
        for (number, row, view), data in left_over.items()
        if number == image and row in rows
    }
    return Staged.unpack(memory, len(rows), here, views)
