"""Batches that a collate_fn of the caller's makes: each whole, in one worker, from its finished samples.

Note [Batches of a collate_fn]
    The result may be anything, so it travels as a message. Tensors and numpy arrays stand in the batch's slot where
    they fit; the rest is in the message itself, and nothing is left to be fetched from a worker that may be gone by
    then. Slots have room for the samples as they are; where results want more, larger ones are made, once the batches
    that are in flight are handed out.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from torch._utils import ExceptionWrapper
from torch.utils.data import get_worker_info

from feeder.dataset.extras import Column, arranged, sample_entries
from feeder.dataset.further_images import by_image, further_recipes, in_order
from feeder.decoders.tensors import as_samples, as_tensor
from feeder.loader.fast.part_report import PartReport
from feeder.loader.fast.part_sizes import part_rows
from feeder.loader.fast.sample_maker import Work
from feeder.loader.slots.batch_message import Collated, Slot, pack
from feeder.loader.slots.image_slots import Layout, SlotView
from feeder.loader.workers.seeding import seeded
from feeder.system.arrays import aligned
from feeder.transforms import Views

_ALIGN = 64


@dataclass(eq=False, repr=False)
class CollatedWork(Work):
    """The work of making batches with a collate_fn; one part is a whole batch.

    Args:
        collate_fn: Takes the finished samples of a batch, as ``dataset[i]`` gives them, and returns the batch.
        share_bytes: Bytes of the slot for each sample; 0 to make batches in the caller's process.
    """

    makes_batches: ClassVar[bool] = True
    further_columns = ()

    collate_fn: Callable[[list[Any]], Any] = field(default=list)

    @property
    def image_columns(self) -> tuple[Column, ...]:
        return (Column((self.share_bytes,), "uint8"),)

    def run(self, epoch: int, view: SlotView, heartbeat: Callable[[], None] = lambda: None) -> PartReport:
        """Makes a batch; the view's images are the slot's memory: uint8 [N, share_bytes]. See :meth:`Work.run`."""
        finished: list[Any] = []
        parts: list[tuple[int, PartReport]] = []
        for first, count in part_rows(len(view.labels), 1):  # a large batch at once is long without a sign of life
            made = self._samples(epoch, view, slice(first, first + count))
            parts.append((first, super().run(epoch, made, heartbeat)))
            finished += self._finished(made, parts[-1][1])
            del made  # the finished samples are the collate_fn's
        report = PartReport.join(parts)
        report.extras = []
        del parts
        heartbeat()
        started = time.perf_counter_ns()
        with seeded(self.seed, epoch, int(view.samples.positions[0])):
            if not self.share_bytes:
                report.collated = Collated(self.collate_fn(finished))
            else:
                result = self._caught(finished)
        collated = time.perf_counter_ns()
        self.meter.add("collate", collated - started)
        if self.share_bytes:
            slot = Slot(view.images[0].reshape(-1))
            report.collated = Collated(message=pack(result, slot))
            self.meter.add("write", time.perf_counter_ns() - collated, slot.used)
        return report

    def _finished(self, made: SlotView, report: PartReport) -> list[tuple[Any, ...]]:
        """Returns finished samples as ``dataset[i]`` has them."""
        own, images = made.images[: len(self.recipe.views)], made.images[len(self.recipe.views) :]
        dtypes = (recipe.output_dtype for recipe in further_recipes(self.images))
        both = zip(images, dtypes, strict=True)
        made_of: list[Any] = [[as_tensor(each, dtype) for each in found] for found, dtype in both]
        further: list[list[Any]] = []
        for image, found in zip(self.images, by_image(self.images, made_of), strict=True):
            is_list = isinstance(image.recipe, Views)
            further.append([list(views) for views in zip(*found, strict=True)] if is_list else found)
        values = sample_entries(self.values, made.further, report.extras)
        first = zip(*own, strict=True) if isinstance(self.recipe, Views) else own[0]
        samples = as_samples(first, made.labels, in_order(self.extras, further, values), self.recipe.output_dtype)
        return [arranged(self.extras, sample) for sample in samples]

    def _samples(self, epoch: int, view: SlotView, rows: slice) -> SlotView:
        """Returns arrays for some of the samples in ordinary memory; images of different sizes are objects."""
        count, samples = rows.stop - rows.start, view.samples.part(rows)
        recipes = self.recipes_at(None, epoch)
        sizes = [recipe.output_size for recipe in recipes]
        columns = tuple(
            Column((*recipe.leading_shape, *size), recipe.storage_dtype.name)
            for recipe, size in zip(recipes, sizes, strict=True)
            if size is not None
        )
        further = tuple(column.at(sizes) for extra in self.values for column in extra.columns)
        made = SlotView.new(Layout(count, columns, self.reader.label_dtype, further), samples)
        arrays = iter(made.images)
        images = tuple(np.empty(count, object) if size is None else next(arrays) for size in sizes)
        return dataclasses.replace(made, images=images)

    def _caught(self, samples: list[Any]) -> Any:
        """Returns the batch, or the collate_fn's error with its traceback."""
        try:
            return self.collate_fn(samples)
        except Exception:
            worker = get_worker_info()
            where = "in a worker" if worker is None else f"in DataLoader worker process {worker.id}"
            return ExceptionWrapper(where=where)  # type: ignore[no-untyped-call]


def slot_bytes_per_sample(work: Work) -> int:
    """Returns the bytes of a slot for each sample, if a batch is its stacked samples and their labels.

    If images differ in size, that is unknown: slots begin small, and grow with the first batches.
    """
    sizes_bytes = [work.reader.label_dtype.itemsize]
    for recipe in work.recipes:
        if recipe.output_size is None:
            return _ALIGN
        shape = *recipe.leading_shape, *recipe.output_size
        sizes_bytes.append(math.prod(shape) * recipe.storage_dtype.itemsize)
    return sum(aligned(size, _ALIGN) for size in sizes_bytes)
