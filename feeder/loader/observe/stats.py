"""Statistics of one loader: its counts, the time that each stage took, the stage that is the bottleneck, and what
remote sets cost."""

from __future__ import annotations

import collections
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from feeder.dataset.subset import readers_of
from feeder.decoders.image_header import clipped_warning
from feeder.loader.observe.meter import METER_WORDS, STAGES, Meter, bucket_ns, stage_rows
from feeder.system.arrays import Int64s
from feeder.system.warning import warn

NO_SLOTS = {"total": 0, "held": 0, "making": 0, "ready": 0}
# Waits below this share of the time are hardly noticed.
_NOTICEABLE = 0.05
_PERCENTILES = (50, 90, 99)
_MAKING = ("decode", "read", "fetch", "collate", "write")
_ENTRIES = 10_000  # the most substitutions that are listed


def stage_table(words: Int64s) -> dict[str, dict[str, int]]:
    """Reads meters.

    Args:
        words: int64 [..., METER_WORDS]; all of them are added up.

    Returns:
        For each stage that has run: count, bytes, total_ns, mean_ns, p50_ns, p90_ns, p99_ns (within an eighth), max_ns.
    """
    rows = stage_rows(words)
    sums, longest = rows.sum(axis=0), rows[:, :, 3].max(axis=0, initial=0)
    middles = bucket_ns()
    table = {}
    for name, (count, size, total, _, *buckets), most in zip(STAGES, sums.tolist(), longest.tolist(), strict=True):
        if not count:
            continue
        ranks = np.cumsum(buckets)
        found = {"count": count, "bytes": size, "total_ns": total, "mean_ns": total // count}
        for percent in _PERCENTILES:
            bucket = int(np.searchsorted(ranks, ranks[-1] * percent / 100))
            found[f"p{percent}_ns"] = min(most, int(middles[bucket]))
        table[name] = found | {"max_ns": most}
    return table


def worker_tables(words: Int64s, replaced: list[int]) -> list[dict[str, Any]]:
    """Reads each worker's meter.

    Args:
        words: int64 [workers, METER_WORDS].
        replaced: Numbers of the workers that were replaced, one entry for each replacement.

    Returns:
        For each worker: worker (its number), respawns, stages (see :func:`stage_table`).
    """
    return [
        {"worker": number, "respawns": replaced.count(number), "stages": stage_table(row)}
        for number, row in enumerate(words.reshape(-1, METER_WORDS))
    ]


def verdict(counts: Mapping[str, int], meters: Mapping[str, int], workers: int) -> dict[str, Any]:
    """Finds the bottleneck of the training loop.

    Args:
        counts: elapsed_ns (from asking for the first batch to getting the last one) and waited_ns (the part of it that
            the caller waited).
        meters: busy_ns, and of that read_ns and decode_ns, or fetch_ns, collate_ns and write_ns, summed over all
            workers; trainer_decode_ns, the time that the caller's process decoded.
        workers: Number of worker processes; 0: the caller's process does their work.

    Returns:
        waited_share and busy_share (of the workers' time), 0-1; bottleneck: "trainer"; the stage that workers spend the
        most time in, of "read", "decode" (with drawing and transforming), "fetch", "collate" and "write"; "workers"
        (they are idle and the caller waits: too few batches are made ahead); or None before the first batch.
    """
    elapsed = counts.get("elapsed_ns", 0)
    if not elapsed:
        return {"waited_share": 0.0, "busy_share": 0.0, "bottleneck": None}

    busy_ns = meters.get("busy_ns", 0)
    waited_ns = counts.get("waited_ns", 0) if workers else busy_ns
    waited, busy = min(1.0, waited_ns / elapsed), min(1.0, busy_ns / (elapsed * max(1, workers)))

    if meters.get("trainer_decode_ns", 0) / elapsed >= max(_NOTICEABLE, waited):
        bottleneck = "decode"
    elif waited < _NOTICEABLE:
        bottleneck = "trainer"
    elif workers and busy < 0.5:
        bottleneck = "workers"
    else:
        bottleneck = max(_MAKING, key=lambda name: meters.get(f"{name}_ns", 0))

    return {"waited_share": waited, "busy_share": busy, "bottleneck": bottleneck}


class Tally:
    """Base of the counts of one loader over all its epochs, whichever path it takes.

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
        """Warns once that images lost range."""
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
            stages: See :func:`stage_table`.
            words: int64 [workers, METER_WORDS], the workers' meters.
            sums: What workers took, see :func:`verdict`.
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


# Counts that only grow, and their descriptions.
REMOTE_COUNTS = {
    "bytes": "Bytes that came from the store",
    "requests": "Ranges that were asked of the store",
    "hits": "Ranges of bytes that were in the cache when they were needed",
    "waits": "Reads that waited for the store",
    "waited_ns": "Time of these waits, ns",
    "retries": "Requests that were repeated",
    "hedges": "Further requests for ranges that were slow",
    "hedged_bytes": "Bytes that came a second time by them",
    "wrong": "Blocks that came with wrong bytes, and were fetched again",
}


def remote_counts(dataset: Any) -> dict[str, int] | None:
    """Returns the counts of a dataset's remote sets since their fetchers were started, for all ranks and jobs on this
    machine together: :data:`REMOTE_COUNTS`, and the present ``cached_bytes`` and ``budget_bytes``. None for a dataset
    without a remote set."""
    found = [getattr(reader, "mirror", None) for reader in readers_of(dataset)]
    mirrors = {id(mirror): mirror for mirror in found if mirror is not None}
    if not mirrors:
        return None
    total = collections.Counter(dict.fromkeys((*REMOTE_COUNTS, "cached_bytes", "budget_bytes"), 0))
    for mirror in mirrors.values():
        total.update(mirror.counts())
    return dict(total)
