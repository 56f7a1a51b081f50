"""Parts of batches of a mixture: each sample is made by the work of its source. Needs no torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from feeder.loader.fast.part_report import SUMS, PartReport
from feeder.loader.fast.sample_maker import Work
from feeder.loader.slots.image_slots import Samples, SlotView
from feeder.order.mixture_order import source_seed
from feeder.system.arrays import AnyArray

__all__ = ["MixedWork"]


@dataclass
class MixedWork(Work):
    """The work of making samples of a mixture.

    A source's samples are made as a loader of the source alone makes them, by the source's seed, in the epoch whose
    number is the pass. So they do not depend on the other sources.

    Args:
        names: Names of the sources.
        works: The work on each one's samples.
    """

    names: tuple[str, ...] = ()
    works: tuple[Work, ...] = ()
    _rows: dict[int, AnyArray] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.starts = np.cumsum([0, *(len(work.reader) for work in self.works)])
        self.reseed(self.seed)

    def reseed(self, seed: int) -> None:
        """See :meth:`Work.reseed`."""
        super().reseed(seed)
        for name, work in zip(self.names, self.works, strict=True):
            work.reseed(source_seed(seed, name))

    @property
    def parts(self) -> tuple[Work, ...]:
        return self.works

    def run(self, epoch: int, view: SlotView, heartbeat: Callable[[], None] = lambda: None) -> PartReport:
        """See :meth:`Work.run`."""
        samples, report = view.samples, PartReport()
        report.extras = [[None] * len(samples.ids) for extra in self.values if not extra.columns]
        sources = np.searchsorted(self.starts, samples.ids, side="right") - 1
        view.further[-1][:] = sources

        groups: dict[tuple[int, int], list[int]] = {}
        for row, key in enumerate(zip(sources.tolist(), samples.repeats.tolist(), strict=True)):
            groups.setdefault(key, []).append(row)

        arrays, further = [view.labels, *view.images, *view.further[:-1]], 1 + len(view.images)
        for (source, of_pass), rows in groups.items():
            is_all = len(rows) == len(samples.ids)
            filled = arrays if is_all else [self._rows_like(k, array, len(rows)) for k, array in enumerate(arrays)]
            own = Samples.of(samples.positions[rows], samples.ids[rows] - self.starts[source])
            part = SlotView(own, filled[0], tuple(filled[1:further]), tuple(filled[further:]), view.sizes)

            made = self._of_source(source).run(of_pass, part, heartbeat)
            if not is_all:
                for array, values in zip(arrays, filled, strict=True):
                    array[rows] = values
            self._add_report(report, made, rows, int(self.starts[source]))
        return report

    def _of_source(self, source: int) -> Work:
        """Returns the work on a source's samples, which counts for this one and decodes with its backend."""
        work = self.works[source]
        work.meter = self.meter
        work._decoder = self.decoder
        first, end = np.searchsorted(self.left_out, self.starts[source : source + 2])
        work.left_out = self.left_out[first:end] - self.starts[source]
        return work

    def _rows_like(self, number: int, array: AnyArray, rows: int) -> AnyArray:
        """Returns memory for some rows of an array; the same in every part, as fresh pages take a tenth of the time
        that a batch takes."""
        kept = self._rows.get(number)
        if kept is None or len(kept) < rows or kept.shape[1:] != array.shape[1:]:
            kept = self._rows[number] = np.empty((max(rows, len(array)), *array.shape[1:]), array.dtype)
        return kept[:rows]

    def _add_report(self, report: PartReport, made: PartReport, rows: list[int], start: int) -> None:
        """Adds the report on some rows, whose samples count from a start, to that on all."""
        for values, found in zip(report.extras, made.extras, strict=True):
            for row, value in zip(rows, found, strict=True):
                values[row] = value
        report.substitutions += [each._replace(substitute=each.substitute + start) for each in made.substitutions]
        for name in SUMS:
            setattr(report, name, getattr(report, name) + getattr(made, name))
