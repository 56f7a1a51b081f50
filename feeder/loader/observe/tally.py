"""Counts of one loader over all its epochs, whichever path it takes."""

from __future__ import annotations

import collections
from collections.abc import Mapping, Sequence
from typing import Any

from feeder.decoders.image_header import clipped_warning
from feeder.loader.observe.meter import Meter
from feeder.loader.observe.stats import verdict, worker_tables
from feeder.system.arrays import Int64s
from feeder.system.warning import warn

_ENTRIES = 10_000


class Tally:
    """Base of the counts of either path.

    Attributes:
        counts: Totals by name; times in nanoseconds, see :meth:`feeder.DataLoader.stats`.
        meter: Stages of the calling process.
        substitutions: The last 10,000 bad samples and their substitutes.
    """

    def __init__(self) -> None:
        names = ("batches", "samples", "skipped", "waited_ns", "elapsed_ns", "clipped", "slow")
        self.counts = dict.fromkeys(names, 0)
        self.meter = Meter()
        self.substitutions: collections.deque[Any] = collections.deque(maxlen=_ENTRIES)
        self._has_warned = False

    def waited(self, waited_ns: int) -> None:
        """Counts the time that the caller waited for a batch of the workers."""
        self.counts["waited_ns"] += waited_ns
        self.meter.add("wait_batch", waited_ns)

    def add_images(self, found: Any) -> None:
        """Counts the images of a batch, by the ``clipped``, ``slow`` and ``substitutions`` of a report on it."""
        self.counts["clipped"] += found.clipped
        self.counts["slow"] += found.slow
        self.counts["skipped"] += len(found.substitutions)
        self.substitutions.extend(found.substitutions)

    def warn_of_clipped(self) -> None:
        """Says once that images lost range."""
        if self.counts["clipped"] and not self._has_warned:
            self._has_warned = True
            warn(clipped_warning(self.counts["clipped"]))

    def summary(
        self,
        stages: Mapping[str, Any],
        words: Int64s,
        sums: Mapping[str, int],
        replaced: Sequence[Mapping[str, Any]],
        processes: int,
    ) -> dict[str, Any]:
        """Returns the statistics that every loader has.

        Args:
            stages: See :func:`feeder.loader.observe.stats.stage_table`.
            words: int64 [workers, METER_WORDS], the workers' meters.
            sums: What workers took, see :func:`feeder.loader.observe.stats.verdict`.
            replaced: The replaced workers, each with its number as ``worker``.
            processes: Number of processes that make batches, or have them made, beside the calling one.
        """
        return {
            **self.counts,
            **verdict(self.counts, sums, processes),
            "stages": stages,
            "workers": worker_tables(words, [each["worker"] for each in replaced]),
            "respawns": len(replaced),
            "replaced_workers": list(replaced),
        }
