"""The ledger of the fast path: counts of what was handed out, and the list of bad samples."""

from __future__ import annotations

import collections
import dataclasses
from typing import Any

from feeder.decoders.image_header import clipped_warning
from feeder.decoders.staged.trainer_decoder import TrainerDecoder
from feeder.loader.fast.batch_queue import BatchRecord
from feeder.loader.fast.part_report import Substitution
from feeder.loader.fast.pool import Replacement
from feeder.loader.fast.position import EpochProgress
from feeder.loader.observe.meter import Meter, part_sums
from feeder.loader.observe.stats import stage_table, verdict, worker_tables
from feeder.system.arrays import Int64s
from feeder.system.warning import warn

__all__ = ["Ledger"]

_ENTRIES = 10_000


class Ledger:
    """Sums over all epochs of one loader.

    Attributes:
        counts: Totals by name; times in nanoseconds, see :meth:`feeder.DataLoader.stats`.
        meter: Stages of the calling process.
        substitutions: The last 10,000 bad samples and their substitutes.
        padded: Samples that were repeated to fill the last batch of an epoch on all ranks.
    """

    def __init__(self) -> None:
        names = ("batches", "samples", "skipped", "waited_ns", "elapsed_ns", "clipped", "slow")
        self.counts = dict.fromkeys(names, 0)
        self.meter = Meter()
        self.substitutions: collections.deque[Substitution] = collections.deque(maxlen=_ENTRIES)
        self.padded: list[int] = []
        self._has_warned = False

    def handed_out(self, progress: EpochProgress, finished: BatchRecord | BaseException, elapsed_ns: int) -> None:
        """Counts a batch, or an error in its place.

        Args:
            progress: The iterator's; goes on by one step.
            finished: The batch.
            elapsed_ns: Time since the batch before it was handed out.
        """
        step, counts = progress.steps, self.counts
        progress.steps += 1
        progress.moved.set()
        if progress.replay is not None:
            progress.replay.handed_out()
        counts["elapsed_ns"] += elapsed_ns
        if isinstance(finished, BaseException):
            return

        report, samples = finished.report, len(finished.arrays.labels)
        skipped = report.substitutions
        progress.samples += samples
        progress.skipped += len(skipped)
        if skipped and progress.first_skipped is None:
            progress.first_skipped = skipped[0]
        counts["batches"] += 1
        counts["samples"] += samples
        counts["skipped"] += len(skipped)
        counts["clipped"] += report.clipped
        counts["slow"] += report.slow
        self.substitutions.extend(skipped)
        if progress.split is not None and step == progress.last_step and (padding := progress.split.padding(step)):
            self.padded += finished.arrays.samples.ids[-padding:].tolist()

    def waited(self, waited_ns: int) -> None:
        """Counts the time that the caller waited for a batch of the workers."""
        self.counts["waited_ns"] += waited_ns
        self.meter.add("wait_batch", waited_ns)

    def stats(
        self,
        words: Int64s,
        replaced: list[Replacement],
        processes: int,
        ids: Int64s | None,
        decoder: TrainerDecoder | None,
    ) -> dict[str, Any]:
        """Returns the sums, and what the meters say of stages and workers; see :meth:`feeder.DataLoader.stats`.

        Args:
            words: int64 [2 + workers, METER_WORDS], the meters; the calling process's two first.
            replaced: The replaced workers.
            processes: Number of processes that make batches, or have them made, beside the calling one.
            ids: The samples' ids by which the caller knows them, int64 [N]; None: they are the reader's.
            decoder: Decodes in the calling process; None: workers decode.
        """
        sums, stages = part_sums(words), stage_table(words)
        decoding = {"trainer_decode_ns": stages["decode"]["total_ns"]} if decoder and "decode" in stages else {}

        def known(i: int) -> int:
            return i if ids is None else int(ids[i])

        return {
            **self.counts,
            **sums,
            **(decoder.meters() if decoder is not None else {}),
            **verdict(self.counts, sums | decoding, processes),
            "stages": stages,
            "workers": worker_tables(words[2:], [each.worker for each in replaced]),
            "respawns": len(replaced),
            "replaced_workers": [dataclasses.asdict(each) for each in replaced],
            "substitutions": [s._replace(substitute=known(s.substitute))._asdict() for s in list(self.substitutions)],
            "padded": [known(i) for i in list(self.padded)],
        }

    def warn_at_epoch_end(self, progress: EpochProgress) -> None:
        """Says once that images lost range, and for each epoch how many samples were replaced by others."""
        if self.counts["clipped"] and not self._has_warned:
            self._has_warned = True
            warn(clipped_warning(self.counts["clipped"]))
        progress.warn_of_skipped()
