"""The fast path's iterator: hands out batches, on the device if there is one, and counts them."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data._utils.pin_memory import pin_memory

from feeder.decoders.staged.trainer_decoder import TrainerDecoder
from feeder.errors import stop_in_a_batch
from feeder.loader.device.feed import DeviceFeed
from feeder.loader.device.nested import map_tensors
from feeder.loader.device.page_lock import slot_guard
from feeder.loader.fast.batch_queue import BatchQueue, BatchRecord, make_here
from feeder.loader.fast.decode_feed import DecodeFeed
from feeder.loader.fast.engine import Engine
from feeder.loader.fast.finishing import Finishing
from feeder.loader.fast.position import EpochProgress
from feeder.loader.fast.sample_maker import Work
from feeder.loader.observe.meter import part_sums
from feeder.loader.observe.stats import NO_SLOTS, Tally, stage_table
from feeder.loader.options import LoaderOptions
from feeder.loader.workers.iterator_lock import IteratorLock
from feeder.system.arrays import Int64s
from feeder.system.limit_errors import explained


class FastIterator:
    """Yields ``(images, labels, *fields)``, or what the collate_fn makes; its length is what is left.

    Args:
        epoch: The epoch.
        owner: The loader, which lives as long as the iterator.

    Attributes:
        epoch: The epoch.
        progress: Progress through it.
    """

    def __init__(self, epoch: Epoch, owner: object) -> None:
        if epoch.options.timeout and epoch.engine is None:
            raise AssertionError("without workers, timeout must be 0")
        self._owner = owner
        self._use = IteratorLock()
        self._closed = True
        self.begin(epoch)

    def begin(self, epoch: Epoch) -> None:
        """Starts to make the batches of an epoch; may be called again after :meth:`end`."""
        self._use.is_over = False
        self.epoch = epoch
        self.progress = epoch.progress
        self._asked_ns = time.monotonic_ns()
        self._given_ns = 0
        self._host = HostBatches(epoch, self._use)
        self._closed = False
        device = epoch.options.device
        # Pixels that workers make stand in page-locked slots; what a collate_fn makes need not.
        made_here = epoch.engine is None or epoch.decoder is not None or epoch.work.makes_batches
        self._pins = made_here and device.target is None and slot_guard(device) is not None
        self._feed: DeviceFeed[BatchRecord | BaseException] | None = None
        if device.target is not None:
            self._feed = DeviceFeed(self._host, device, epoch.ledger.meter, epoch.finishing.complete)

    def __iter__(self) -> FastIterator:
        return self

    def __len__(self) -> int:
        return len(self.progress)

    def __next__(self) -> Any:
        with self._use.begun(self.end):
            return self._next()

    def _next(self) -> Any:
        epoch, progress = self.epoch, self.progress
        if progress.exhausted:
            raise StopIteration

        was_asked, progress.asked = progress.asked, True
        if self._given_ns:
            epoch.ledger.meter.add("consumer", time.monotonic_ns() - self._given_ns)

        try:
            if epoch.agree is not None and (progress.steps or not was_asked):
                epoch.agree(progress)
            record, batch = self._next_here() if self._feed is None else next(self._feed)
        except StopIteration:
            progress.exhausted = not self._closed  # closed before its end, it has not come to it
            progress.moved.set()
            self.end()
            if progress.exhausted:
                epoch.ledger.warn_of_clipped()
                progress.warn_of_skipped()
            raise
        except BaseException:
            with contextlib.suppress(Exception):  # the first error is raised
                self.end()
            with explained():
                raise

        now = time.monotonic_ns()
        epoch.ledger.handed_out(progress, record, now - self._asked_ns)
        self._asked_ns = now

        if isinstance(record, BaseException):
            if isinstance(record, StopIteration):
                raise stop_in_a_batch(record)
            with explained():
                raise record

        self._given_ns = time.monotonic_ns()
        return tuple(batch) if isinstance(batch, list) and not epoch.work.makes_batches else batch

    def _next_here(self) -> tuple[BatchRecord | BaseException, Any]:
        record, batch = self._host.next()
        batch = self.epoch.finishing.complete(record, batch)
        if self._pins and self.epoch.work.makes_batches:
            # Also objects with a pin_memory() of their own, as torch's loader does.
            return record, pin_memory(batch)  # type: ignore[no-untyped-call]
        return record, map_tensors(batch, torch.Tensor.pin_memory) if self._pins else batch

    @property
    def is_untouched(self) -> bool:
        """True if no batch was handed out yet, and the epoch is not over."""
        return self.progress.steps == 0 and not self.progress.exhausted

    def slots(self) -> dict[str, int]:
        """Returns the number of slots in all, held by the caller, being filled, and full."""
        return self._host.slots()

    def close(self) -> bool:
        """Gives up unfinished batches and lets go of the workers, see Note [Closing]; returns True if that is done."""
        return self._use.end(self.end)

    def end(self) -> None:
        """Gives up the rest of the epoch; :meth:`begin` may start another one, if none of it was handed out."""
        self._closed = True
        self._feed = None
        self._host.close()

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if not is_finalizing() and not getattr(self, "_closed", True):  # see Note [At the interpreter's end]
            with contextlib.suppress(OSError, ValueError):  # in a cycle, its parts may have been finalized before it
                self.close()


@dataclass(frozen=True)
class Epoch:
    """An epoch, or the rest of one, to iterate over.

    Attributes:
        progress: Progress through the epoch.
        requests: The batches to make.
        options: The loader's options for this epoch.
        work: The way samples are made.
        engine: Slots and workers; None: batches are made in the calling process.
        decoder: Decodes staged images in the calling process; None: work does.
        finishing: The last steps on a batch.
        ledger: Counts what is handed out.
        agree: Called before a batch is handed out: compares the epoch with those of other ranks; None: no ranks.
    """

    progress: EpochProgress
    requests: Iterator[BatchRecord]
    options: LoaderOptions
    work: Work
    engine: Engine | None
    decoder: TrainerDecoder | None
    finishing: Finishing
    ledger: Ledger
    agree: Callable[[EpochProgress], None] | None


class HostBatches:
    """Batches made by workers or in the calling process, and decoded there where the backend does that.

    See :class:`feeder.loader.device.feed.BatchSource`.

    Args:
        epoch: The epoch.
        use: The iterator's lock; closing the iterator ends waits for workers.
    """

    def __init__(self, epoch: Epoch, use: IteratorLock) -> None:
        self._epoch = epoch
        self._engine = epoch.engine
        self._queue: BatchQueue | None = None
        self._decoding: DecodeFeed | None = None

        source: Iterator[BatchRecord | BaseException]
        if epoch.engine is None:
            source = make_here(epoch.work, epoch.requests)
        else:
            epoch.engine.busy = True
            options = epoch.options
            source = self._queue = BatchQueue(
                epoch.engine, epoch.requests, options.timeout, options.batch_size, use, epoch.ledger.waited
            )
            try:
                self._queue.fill()
            except BaseException:
                self.close()
                raise

        if epoch.decoder is not None:
            source = self._decoding = DecodeFeed(
                source=source,
                work=epoch.work,
                decoder=epoch.decoder,
                source_ready=self._queue.ready if self._queue is not None else lambda: False,
                mixing=epoch.finishing.mixing,
                channels_last=epoch.options.channels_last,
                stream=epoch.options.device.stream(),
                meter=epoch.ledger.meter,
            )
        self._source = source

    def next(self) -> tuple[BatchRecord | BaseException, Any]:
        """Returns the record of the next batch, and the batch itself before its last steps; an error and None instead.

        Raises:
            StopIteration: after the last batch.
            Exception: if workers can't go on.
        """
        record = next(self._source)
        if isinstance(record, BaseException):
            return record, None
        report = record.report
        if report.collated is not None:
            try:
                batch = report.collated.batch(record.arrays.images[0].reshape(-1))
            except Exception as error:
                return error, None
            report.collated = None  # its message may be large
        else:
            batch = self._epoch.finishing.host_batch(record)
        if self._epoch.options.device.target is not None and record.images is None:
            record.let_go(is_taken=True)  # the tensors alone say how long the slot is needed
        return record, batch

    def ready(self) -> bool:
        """Returns True if the next batch can be had without a wait for the workers."""
        if self._decoding is not None:
            return self._decoding.ready()
        return self._queue is not None and self._queue.ready()

    def slots(self) -> dict[str, int]:
        """Returns the number of slots in all, held by the caller, being filled, and full."""
        engine, queue = self._engine, self._queue
        if engine is None or queue is None or not len(queue):
            return dict(NO_SLOTS)
        ring, ready = engine.ring, queue.made()
        return {"total": ring.slots, "held": ring.held, "making": max(0, len(queue) - ready), "ready": ready}

    def close(self) -> None:
        """Gives up the batches in the making, and lets go of the workers."""
        decoding, self._decoding = self._decoding, None
        if decoding is not None:
            decoding.close()
        engine, self._engine = self._engine, None
        if engine is not None:
            if self._queue is not None:
                self._queue.abandon()
            engine.end_iterator()
        self._source = iter(())


class Ledger(Tally):
    """Sums over all epochs of one loader.

    Attributes:
        padded: Samples that were repeated to fill the last batch of an epoch on all ranks.
    """

    def __init__(self) -> None:
        super().__init__()
        self.padded: list[int] = []

    def handed_out(self, progress: EpochProgress, record: BatchRecord | BaseException, elapsed_ns: int) -> None:
        """Counts a batch, or an error in its place.

        Args:
            progress: The iterator's; goes on by one step.
            record: The batch.
            elapsed_ns: Time since the batch before it was handed out.
        """
        step, counts = progress.steps, self.counts
        progress.steps += 1
        progress.moved.set()
        if progress.replay is not None:
            progress.replay.handed_out()
        counts["elapsed_ns"] += elapsed_ns
        if isinstance(record, BaseException):
            return

        report, samples = record.report, len(record.arrays.labels)
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
            self.padded += record.arrays.samples.ids[-padding:].tolist()

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
