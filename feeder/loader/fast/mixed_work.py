"""Parts of batches of a mixture: each sample is made by the work of its source. Needs no torch."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from feeder.loader.fast.part_output import StagedSink
from feeder.loader.fast.part_report import PartReport
from feeder.loader.fast.sample_maker import Work
from feeder.loader.slots.image_slots import Samples, SlotView
from feeder.order.mixture_shares import source_seed
from feeder.system.arrays import AnyArray, Int64s
from feeder.transforms.op import Params


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
        report, (sources, own, groups) = self._new_report(view), self._grouped(view.samples)
        view.further[-1][:] = sources
        shared = None if self.stager is None else self._sinks(self.recipes, view.images)

        # Each source makes its rows where they are: a copy of an image takes a good part of the time of decoding it.
        part = dataclasses.replace(view, samples=own, further=view.further[:-1])
        for (source, of_pass), rows in groups.items():
            known, work = len(report.substitutions), self._of_source(source)
            for sink, of in zip(shared or (), work.views_of, strict=False):
                assert isinstance(sink, StagedSink)
                sink.recipes = work.recipes[of]
            work._run(of_pass, part, report, heartbeat, np.array(rows), shared)
            start = int(self.starts[source])
            found = [each._replace(substitute=each.substitute + start) for each in report.substitutions[known:]]
            report.substitutions[known:] = found
        if shared is not None:
            self._close(shared, report)
        return report

    def _grouped(self, samples: Samples) -> tuple[Int64s, Samples, dict[tuple[int, int], list[int]]]:
        """Returns the source of each sample, the samples as the sources know them, and the rows of each source and
        pass."""
        sources = np.searchsorted(self.starts, samples.ids, side="right") - 1
        groups: dict[tuple[int, int], list[int]] = {}
        for row, key in enumerate(zip(sources.tolist(), samples.repeats.tolist(), strict=True)):
            groups.setdefault(key, []).append(row)
        return sources, Samples.of(samples.positions, samples.ids - self.starts[sources]), groups

    def substitute_samples(self, bad: Samples, epoch: int, within: tuple[int, int] | None = None) -> Iterator[Samples]:
        """See :meth:`Work.substitute_samples`."""
        (source,), _, ((_, of_pass),) = self._grouped(bad)
        for other in self._of_source(source).substitute_samples(bad, of_pass):
            yield bad._replace(ids=other.ids + self.starts[source])

    def as_drawn(self, made: Samples, asked: Samples) -> Samples:
        """See :meth:`Work.as_drawn`: a substitute is drawn in the pass of its source."""
        return made._replace(repeats=asked.repeats)

    def draw_rest(
        self, view_slice: slice, epoch: int, samples: Samples, size: tuple[int, int] | None
    ) -> list[Sequence[Params]]:
        """See :meth:`Work.draw_rest`."""
        drawn: list[list[Params]] = [[{} for _ in recipe.rest] for recipe in self.recipes[view_slice]]
        _, own, groups = self._grouped(samples)
        for (source, of_pass), rows in groups.items():
            part = own.part(np.array(rows))
            both = zip(drawn, self.works[source].draw_rest(view_slice, of_pass, part, size), strict=True)
            for whole, params in (pair for views in both for pair in zip(*views, strict=True)):
                for name, values in params.items():
                    if name not in whole:
                        whole[name] = np.empty((len(own.ids), *values.shape[1:]), values.dtype)
                    whole[name][rows] = values
        return [*drawn]

    def _of_source(self, source: int) -> Work:
        """Returns the work on a source's samples, which counts for this one and decodes with its backend and memory."""
        work = self.works[source]
        work.meter = self.meter
        work.stager = self.stager
        work._decoder = self.decoder if self.stager is None else None
        work._apart = self._memory
        first, end = np.searchsorted(self.left_out, self.starts[source : source + 2])
        work.left_out = self.left_out[first:end] - self.starts[source]
        return work
