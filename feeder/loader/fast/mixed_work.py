"""Parts of batches of a mixture: each sample is made by the work of its source. Needs no torch."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from feeder.loader.fast.part_report import PartReport
from feeder.loader.fast.sample_maker import Work
from feeder.loader.slots.image_slots import Samples, SlotView
from feeder.order.mixture_shares import source_seed
from feeder.system.arrays import AnyArray


@dataclass(eq=False, repr=False)
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
    _memory: dict[int, AnyArray] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.starts = np.cumsum([0, *(len(work.reader) for work in self.works)])
        self.reseed(self.seed)

    @property
    def by_source(self) -> tuple[Work, ...]:
        """See :attr:`Work.by_source`."""
        return self.works

    def reseed(self, seed: int) -> None:
        """See :meth:`Work.reseed`."""
        super().reseed(seed)
        for name, work in zip(self.names, self.works, strict=True):
            work.reseed(source_seed(seed, name))

    def run(self, epoch: int, view: SlotView, heartbeat: Callable[[], None] = lambda: None) -> PartReport:
        """See :meth:`Work.run`."""
        samples, report = view.samples, self._new_report(view)
        sources = np.searchsorted(self.starts, samples.ids, side="right") - 1
        view.further[-1][:] = sources

        groups: dict[tuple[int, int], list[int]] = {}
        for row, key in enumerate(zip(sources.tolist(), samples.repeats.tolist(), strict=True)):
            groups.setdefault(key, []).append(row)

        # Each source makes its rows where they are: a copy of an image takes a good part of the time of decoding it.
        own = Samples.of(samples.positions, samples.ids - self.starts[sources])
        part = dataclasses.replace(view, samples=own, further=view.further[:-1])
        for (source, of_pass), rows in groups.items():
            known = len(report.substitutions)
            self._of_source(source)._run(of_pass, part, report, heartbeat, np.array(rows))
            start = int(self.starts[source])
            found = [each._replace(substitute=each.substitute + start) for each in report.substitutions[known:]]
            report.substitutions[known:] = found
        return report

    def _of_source(self, source: int) -> Work:
        """Returns the work on a source's samples, which counts for this one and decodes with its backend and memory."""
        work = self.works[source]
        work.meter = self.meter
        work._decoder = self.decoder
        work._apart = self._memory
        first, end = np.searchsorted(self.left_out, self.starts[source : source + 2])
        work.left_out = self.left_out[first:end] - self.starts[source]
        return work
