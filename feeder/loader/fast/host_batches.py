"""The batches of an epoch on the host, in order, as tensors or as a collate_fn made them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from feeder.loader.fast.batch_queue import BatchQueue, make_here
from feeder.loader.fast.batches import Decoded, Finished
from feeder.loader.fast.epoch import Epoch
from feeder.loader.fast.trainer_decode import DecodeFeed
from feeder.loader.workers.iterator_lock import IteratorLock

__all__ = ["HostBatches"]


class HostBatches:
    """Batches made by workers or in the calling process, and decoded there where the backend does that.

    See :class:`feeder.loader.device.feed.BatchSource`.

    Args:
        epoch: The epoch.
        use: The iterator's; ends waits for workers.
    """

    def __init__(self, epoch: Epoch, use: IteratorLock) -> None:
        self._epoch = epoch
        self._engine = epoch.engine
        self._queue: BatchQueue | None = None
        self._decoding: DecodeFeed | None = None
        self._refusal: Exception | None = None
        source: Iterator[Finished | BaseException]
        if epoch.engine is None:
            source = make_here(epoch.work, epoch.requests, epoch.ledger.made_here)
        else:
            epoch.engine.busy = True
            options = epoch.options
            source = self._queue = BatchQueue(epoch.engine, epoch.requests, options.timeout_s, options.batch_size, use)
            self._fill(self._queue)
        if epoch.decoder is not None:
            stream = epoch.options.device.stream
            source = self._decoding = DecodeFeed(
                source,
                epoch.work,
                epoch.decoder,
                self._queue.ready if self._queue is not None else lambda: False,
                mixing=epoch.finishing.mixing,
                channels_last=epoch.channels_last,
                stream=stream.get() if stream is not None else None,
                meter=epoch.ledger.meter,
            )
        self._source = source

    def _fill(self, queue: BatchQueue) -> None:
        replay = self._epoch.progress.replay
        try:
            queue.fill()
        except BaseException as error:
            if replay is None or error is not replay.refusal:
                self.close()
                raise
            self._refusal = replay.refusal  # a resume fails with the first batch, as without workers

    def next(self) -> tuple[Finished | BaseException, Any]:
        """Returns the record of the next batch, and the batch itself before its last steps; an error and None instead.

        Raises:
            StopIteration: after the last batch.
            Exception: if workers can't go on.
        """
        if self._refusal is not None:
            raise self._refusal
        finished = next(self._source)
        if self._queue is not None:
            self._epoch.ledger.waited(self._queue.take_waited_ns())
        if isinstance(finished, BaseException):
            return finished, None
        if finished.collated is not None:
            try:
                batch = finished.collated.batch(finished.arrays.images[0].reshape(-1))
            except Exception as error:
                return error, None
            finished.collated = None  # its message may be large
        else:
            batch = self._epoch.finishing.host_batch(finished)
        if self._epoch.options.device.target is not None and not isinstance(finished, Decoded):
            finished.let_go(is_taken=True)  # the tensors alone say how long the slot is needed
        return finished, batch

    def ready(self) -> bool:
        """Returns True if the next batch can be had without a wait for the workers."""
        if self._decoding is not None:
            return self._decoding.ready()
        return self._queue is not None and self._queue.ready()

    def slots(self) -> dict[str, int]:
        """Returns the number of slots in all, held by the caller, being filled, and full."""
        engine, queue = self._engine, self._queue
        if engine is None or queue is None or not len(queue):
            return {"total": 0, "held": 0, "making": 0, "ready": 0}
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
