"""The ledger of the fast path: counts of what was handed out, and the list of bad samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from feeder.decoders.staged.trainer_decoder import TrainerDecoder
from feeder.loader.fast.batch_queue import BatchRecord
from feeder.loader.fast.position import EpochProgress
from feeder.loader.observe.meter import part_sums
from feeder.loader.observe.stats import Tally, stage_table
from feeder.system.arrays import Int64s


class Ledger(Tally):
    """Sums over all epochs of one loader.

    Attributes:
        padded: Samples that were repeated to fill the last batch of an epoch on all ranks.
    """

    def __init__(self) -> None:
        super().__init__()
        self.padded: list[int] = []

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
        self.add_images(report)
        split = progress.split
        if split is not None and step == len(split) - 1 and (padding := split.padding(step)):
            self.padded += finished.arrays.samples.ids[-padding:].tolist()

    def stats(
        self,
        words: Int64s,
        replaced: Sequence[Mapping[str, Any]],
        processes: int,
        ids: Int64s | None,
        decoder: TrainerDecoder | None,
    ) -> dict[str, Any]:
        """Returns the sums, and what the meters say of stages and workers; see :meth:`feeder.DataLoader.stats`.

        Args:
            words: int64 [2 + workers, METER_WORDS], the meters; the calling process's two first.
            replaced, processes: See :meth:`Tally.summary`.
            ids: The samples' ids by which the caller knows them, int64 [N]; None: they are the reader's.
            decoder: Decodes in the calling process; None: workers decode.
        """
        sums, stages = part_sums(words[1:]), stage_table(words)
        decoding = {"trainer_decode_ns": stages["decode"]["total_ns"]} if decoder and "decode" in stages else {}

        def known(i: int) -> int:
            return i if ids is None else int(ids[i])

        return {
            **self.summary(stages, words[2:], sums | decoding, replaced, processes),
            **sums,
            **(decoder.meters() if decoder is not None else {}),
            "substitutions": [s._replace(substitute=known(s.substitute))._asdict() for s in list(self.substitutions)],
            "padded": [known(i) for i in list(self.padded)],
        }
