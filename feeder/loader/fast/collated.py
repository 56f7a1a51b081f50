"""Batches that a collate_fn of the caller's makes: each whole, in one worker, from its finished samples.

Note [Batches of a collate_fn]
    The result may be anything, so it travels as a message. Tensors and numpy arrays stand in the batch's slot where
    they fit; the rest is in the message itself, and nothing is left to be fetched from a worker that may be gone by
    then. Slots have room for the samples as they are; where results want more, larger ones are made, once the batches
    that are under way are handed out.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from torch._utils import ExceptionWrapper
from torch.utils.data import get_worker_info

from feeder._gpu.tensors import as_samples
from feeder.loader.fast.part_output import SampleSink, Sink
from feeder.loader.fast.part_report import PartReport
from feeder.loader.fast.sample_maker import Work
from feeder.loader.fast.task_board import part_rows
from feeder.loader.slots.batch_message import Slot, WholeMessage, pack_whole, unpack_whole
from feeder.loader.slots.image_slots import Samples
from feeder.loader.workers.seeding import seeded

__all__ = ["Collated", "CollatedWork", "slot_bytes_per_sample"]

_ALIGN = 64


@dataclass
class Collated:
    """The result of a collate_fn, on its way to the caller.

    Attributes:
        result: The result, if it was made in the caller's process; else None.
        message: The result as a message, from another process; else None.
    """

    result: Any = None
    message: WholeMessage | None = None

    def batch(self, memory: npt.NDArray[np.uint8]) -> Any:
        """Returns the result; its tensors and arrays are views of the slot's memory, uint8, and keep it.

        Raises:
            Exception: what the collate_fn raised, of the same type.
        """
        if self.message is None:
            return self.result
        result = unpack_whole(self.message, memory)
        if isinstance(result, ExceptionWrapper):
            result.reraise()  # type: ignore[no-untyped-call]
        return result


@dataclass
class CollatedWork(Work):
    """The work of making batches with a collate_fn; one part is a whole batch.

    Args:
        collate_fn: Takes the finished samples of a batch, as ``dataset[i]`` gives them, and returns the batch.
        share_bytes: Bytes of the slot for each sample; 0 to make batches in the caller's process.
    """

    collate_fn: Callable[[list[Any]], Any] = field(default=list)

    @property
    def makes_batches(self) -> bool:
        return True

    @property
    def sample_shape(self) -> tuple[int, ...]:
        return (self.share_bytes,)

    @property
    def sample_dtype(self) -> np.dtype[Any]:
        return np.dtype(np.uint8)

    def run(
        self,
        epoch: int,
        samples: Samples,
        images: npt.NDArray[Any],
        labels: npt.NDArray[Any],
        beat: Callable[[], None] = lambda: None,
    ) -> PartReport:
        """Makes a batch; ``images`` is the slot's memory: uint8 [N, share_bytes]. See :meth:`Work.run`."""
        pixels: list[npt.NDArray[Any]] = []
        parts: list[tuple[int, PartReport]] = []
        for first, count in part_rows(
            len(samples.ids), 1
        ):  # a large batch at once would be long without a sign of life
            rows = slice(first, first + count)
            made: Any = [None] * count
            if self.recipe.output_size is not None:
                made = np.empty((count, *super().sample_shape), super().sample_dtype)
            parts.append((first, super().run(epoch, samples.part(rows), made, labels[rows], beat)))
            pixels += list(made)
            del made
        report = PartReport.join(parts)
        finished = as_samples(pixels, labels, report.fields, self.recipe.output_dtype)
        report.fields = []
        del pixels, parts  # the finished samples are the collate_fn's
        beat()
        started = time.perf_counter_ns()
        with seeded(self.seed, epoch, int(samples.positions[0])):
            if not self.share_bytes:
                report.collated = Collated(self.collate_fn(finished))
            else:
                result = self._caught(finished)
        collated = time.perf_counter_ns()
        self.meter.add("collate", collated - started)
        if self.share_bytes:
            slot = Slot(images.reshape(-1))
            report.collated = Collated(message=pack_whole(result, slot))
            self.meter.add("write", time.perf_counter_ns() - collated, slot.used)
        return report

    def _sink(self, images: Any) -> Sink:
        if self.recipe.output_size is not None:
            return super()._sink(images)
        return SampleSink(self.decoder, self.recipe, images, self.meter)

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
    if work.recipe.output_size is None:
        return _ALIGN
    size_bytes = 3 * int(np.prod(work.recipe.output_size)) * work.recipe.storage_dtype.itemsize
    label_bytes = work.reader.label_dtype.itemsize
    return sum(-(-size // _ALIGN) * _ALIGN for size in (size_bytes, label_bytes))
