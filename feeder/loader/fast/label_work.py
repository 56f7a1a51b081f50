"""Labels, fields and ids of samples without their images, for a process that has no use for these.

Needs no torch.

Note [Substitutes of another loader]
    Only the loader that decodes an image knows that it is bad. So a loader without images takes the ids of the batch
    that the other one has made, and makes anew the rows that differ. A substitute is a function of seed, epoch and
    position, so only a few ids are possible at each place: any other one says that the two loaders do not go through
    the same order.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from feeder.dataset.extras import Column
from feeder.dataset.reader import Encoded
from feeder.errors import ArgumentError, DecodeError
from feeder.loader.fast.part_output import Sink
from feeder.loader.fast.part_report import PartReport
from feeder.loader.fast.sample_maker import Work
from feeder.loader.fast.substitution import Substitution
from feeder.loader.slots.image_slots import Samples, SlotView

if TYPE_CHECKING:
    from feeder.decoders.decoder import Buffer
    from feeder.loader.fast.batches import Finished
    from feeder.transforms import Draws

__all__ = ["LabelWork", "OthersSubstitutes"]


class LabelWork(Work):
    """The work of making all of a sample but its images. Slots have the samples' ids in the place of the images: those
    of the field "index"."""

    def __post_init__(self) -> None:
        super().__post_init__()  # the keys of draws count further images, too
        self.extras, self.images, self.views_of = self.values, (), self.views_of[:1]
        self._draws = any(extra.follows_draws for extra in self.extras)
        self._labels: npt.NDArray[Any] | None = None
        if self._draws:
            self.reader.measure()

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"_labels": None}

    def prepare(self) -> None:
        """There is no decoder to make."""

    @property
    def image_columns(self) -> tuple[Column, ...]:
        return (Column((1,), "int64"),)

    def _runner(self, recipes: Any) -> None:
        return None

    def _sinks(self, recipes: Any, images: Any) -> list[Sink]:
        return [_NoImages()]

    def _make(self, part: Any, rows: npt.NDArray[np.int64], samples: Samples) -> list[DecodeError | None]:
        part.view.images[0][rows, 0] = [self.reader.field(i, "index") for i in samples.ids.tolist()]
        return super()._make(part, rows, samples)

    def _read(
        self, ids: npt.NDArray[np.int64], report: PartReport, drawing: Any = None, started: int | None = None
    ) -> Encoded:
        started = time.perf_counter_ns() if started is None else started
        if self._labels is None:
            self._labels = self.reader.labels()
        count, known = len(ids), self.reader.stored(ids) if self._draws else None
        orientations, sizes = known or (np.ones(count, np.uint8), np.ones((count, 2), np.int32))
        spent_ns = time.perf_counter_ns() - started
        report.read_ns += spent_ns
        self.meter.add("read", spent_ns)
        if known is None:
            drawing.draws = ()
        return Encoded([memoryview(b"")] * count, self._labels[ids], orientations, sizes, [None] * count)


class _NoImages:
    """Takes no images; see :class:`feeder.loader.fast.part_output.Sink`."""

    takes_rows = True
    clipped = slow = 0

    def add(self, rows: npt.NDArray[np.int64], encoded: Encoded, draws: tuple[Draws, ...]) -> list[DecodeError | None]:
        return [None] * len(rows)

    def close(self) -> dict[int, Buffer]:
        return {}


class OthersSubstitutes:
    """Puts the substitutes of the loader that makes the images in the batches of a loader without.

    See Note [Substitutes of another loader].

    Args:
        work: The way the batches are made.
        made: Takes the ids of a batch, int64 [N], and returns those of the other loader's batch.
    """

    def __init__(self, work: LabelWork, made: Callable[[npt.NDArray[np.int64]], npt.NDArray[np.int64]]) -> None:
        self._work, self._made = work, made
        self._strict = copy.copy(work)
        self._strict.skip = False

    def put(self, finished: Finished) -> None:
        """Makes the rows of a batch anew whose samples the other loader has replaced.

        Raises:
            ArgumentError: if the other loader gave samples that are neither this order's nor substitutes.
            DecodeError: if a field of one of its samples is bad.
        """
        arrays, work, epoch = finished.arrays, self._strict, finished.epoch
        own = arrays.images[0][:, 0]
        made = self._made(own.copy())
        if made.shape != own.shape:
            raise ArgumentError(
                f"substitutes= must return the ids of the batch, int64 [{len(own)}], and returned {list(made.shape)}"
            )
        rows = np.flatnonzero(made != own)
        if not rows.size:
            return
        places = arrays.samples.part(rows)
        ids = [self._id(epoch, places, k, int(made[row]), arrays.image_size) for k, row in enumerate(rows.tolist())]
        view = SlotView.new(work.layout(len(rows)), Samples.of(places.positions, np.array(ids)), arrays.sizes)
        report = work.run(epoch, view)
        arrays.labels[rows], arrays.images[0][rows] = view.labels, view.images[0]
        for values, found in zip(arrays.further, view.further, strict=True):
            values[rows] = found
        for several, these in zip(finished.extras, report.extras, strict=True):
            for row, value in zip(rows.tolist(), these, strict=True):
                several[row] = value
        self._note(finished, places, ids)

    def _id(self, epoch: int, places: Samples, k: int, made: int, within: tuple[int, int] | None) -> int:
        """Returns the sample at a place of the other loader's batch, of which the field "index" is ``made``."""
        work, position = self._work, int(places.positions[k])
        first = int(places.ids[k])
        if work.reader.field(first, "index") == made:  # this loader has replaced it for want of a field
            return first
        for i in work.substitutes(epoch, position, None if work.pad is None else within):
            if work.reader.field(i, "index") == made:
                return i
        raise ArgumentError(
            f"the loader with images gave sample {made} at position {position} of epoch {epoch}, where this one has "
            f"sample {work.reader.field(first, 'index')}, and {made} is no substitute of it: give both loaders the "
            "same dataset, seed, shuffle, batch_size, ranks and state"
        )

    def _note(self, finished: Finished, places: Samples, ids: list[int]) -> None:
        """Notes the substitutions, as :meth:`feeder.DataLoader.stats` has them."""
        known = {each.position: each for each in finished.substitutions}
        for position, i, first in zip(places.positions.tolist(), ids, places.ids.tolist(), strict=True):
            if i == first:
                del known[position]
            elif position in known:
                known[position] = known[position]._replace(substitute=i)
            else:
                error = self._work.reader.at(DecodeError("bad, as the loader with images found"), first)
                known[position] = Substitution.of(position, error, i)
        finished.substitutions = [*known.values()]
