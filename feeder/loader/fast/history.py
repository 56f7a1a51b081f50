"""Batches of a run, named by epoch and step: their samples, and the batches themselves, made again."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

from feeder.dataset.mixture import Mixture
from feeder.dataset.subset_reader import SubsetReader
from feeder.dataset.taken_down import stand_in, taken_down_of
from feeder.errors import ArgumentError
from feeder.loader.fast.fast_path import FastPath
from feeder.loader.fast.position import Place
from feeder.loader.fast.spans import Span
from feeder.loader.left_out import check_skip
from feeder.loader.options import LoaderOptions
from feeder.loader.ranks import current_ranks
from feeder.order.bucket_order import BucketOrder
from feeder.order.skip import Skip
from feeder.order.split import Split
from feeder.system.arrays import Int64s


class BatchSamples(NamedTuple):
    """The samples of a batch, before bad ones are replaced by others.

    Attributes:
        ids: int64 [N]; those of a Subset's samples are those in the whole dataset.
        keys: Their keys.
        paths: Paths of their original files, relative to the dataset; None where they are not known.
        sources: The source of each sample of a mixture, and its id there; None for any other dataset.
        taken_down: By id, the samples that stand in the places of those that were taken down. ``keys`` and ``paths``
            are theirs; a run before the takedown saw the samples that are gone. A mixture's stand-ins have their ids in
            the source.
    """

    ids: Int64s
    keys: list[str | None]
    paths: list[str | None]
    taken_down: dict[int, int | None]
    sources: list[tuple[str, int]] | None = None


class ReplayedBatch(NamedTuple):
    """A batch that was made again.

    Attributes:
        batch: The batch, as the loader gave it.
        samples: Its samples.
        substitutions: The bad samples, and those in their places; see
            :class:`feeder.loader.fast.part_report.Substitution`.
    """

    batch: Any
    samples: BatchSamples
    substitutions: list[dict[str, Any]]


class History:
    """The batches of a run, by epoch and step.

    Args:
        path: The fast path that the run takes.

    Raises:
        ArgumentError: with an explicit sampler.
    """

    def __init__(self, path: FastPath) -> None:
        if not path.own_order:
            raise ArgumentError(
                "batches are known by their step in feeder's own order only, and this loader has an explicit sampler"
            )
        self._path = path

    def samples_of(self, epoch: int, step: int, rank: int | None) -> BatchSamples:
        """See :meth:`feeder.DataLoader.samples_of`."""
        return _samples_at(self._path, *self._find(epoch, step, rank))

    def replay(self, epoch: int, step: int, rank: int | None) -> ReplayedBatch:
        """See :meth:`feeder.DataLoader.replay`."""
        options, place = self._find(epoch, step, rank)
        samples = _samples_at(self._path, options, place)

        # Another path makes it here, without workers: this loader's iterators go on undisturbed.
        device = dataclasses.replace(options.device, put=None)  # static buffers hold the caller's batch
        options = dataclasses.replace(options, num_workers=0, prefetch_factor=None, timeout=0, device=device)

        again = self._path.at(options, place)
        try:
            batch = next(again.iterate(options, owner=again))
        finally:
            again.close()
        return ReplayedBatch(batch, samples, again.stats()["substitutions"])

    def steps_of(self, epoch: int) -> int:
        """See :meth:`feeder.DataLoader.steps_of`."""
        return self._path.spans.steps(epoch, self._split_of)

    def span_of(self, epoch: int, first_step: int, end_step: int) -> tuple[int, int, int]:
        """See :meth:`feeder.DataLoader.span_of`."""
        path = self._path
        if isinstance(path.order, BucketOrder):
            check_skip(Skip(spans=[(epoch, 0, 1)]), path.order, path.dataset.reader, own_order=True)
        if end_step <= first_step:
            raise ArgumentError(f"end_step must be more than first_step, got steps {first_step} to {end_step}")

        _, first = self._find(epoch, first_step, 0)
        options, last = self._find(epoch, end_step - 1, 0)
        return epoch, first.start, path.run.split(options, last).consumed(1)

    def _find(self, epoch: int, step: int, rank: int | None) -> tuple[LoaderOptions, Place]:
        """Returns the options by which a rank made a batch of this run, and the place at which the batch begins."""
        own = current_ranks(self._path.options.ranks)[0] if rank is None else rank
        span, place = self._path.spans.find(epoch, step, self._split_of)
        if not 0 <= own < span.world_size:
            raise ArgumentError(f"rank must be 0 to {span.world_size - 1} at that step, got {own}")
        return self._options_of(span, own), place

    def _split_of(self, span: Span, place: Place) -> Split:
        return self._path.run.split(self._options_of(span, 0), place)

    def _options_of(self, span: Span, rank: int) -> LoaderOptions:
        """Returns the options by which a rank made the batches of a span."""
        return dataclasses.replace(
            self._path.options,
            batch_size=span.batch_size,
            world_size=span.world_size,
            drop_last=span.drop_last,
            rank=rank,
            skip=span.skip,
        )


def _samples_at(path: FastPath, options: LoaderOptions, place: Place) -> BatchSamples:
    """Returns the samples of the batch that begins at a place."""
    ids = path.order.ids(place.epoch, path.run.split(options, place).positions(0))
    reader = path.dataset.reader
    keys, paths = ([reader.field(i, name) for i in ids.tolist()] for name in ("key", "path"))

    # From here on, ids are those of the whole dataset, by which the caller knows the samples of a subset.
    whole, ids = (reader.whole, reader.ids[ids]) if isinstance(reader, SubsetReader) else (reader, ids)
    gone = {i: stand_in(whole, i) for i in sorted(taken_down_of(whole, ids.tolist()))}
    if not isinstance(path.dataset, Mixture):
        return BatchSamples(ids, keys, paths, gone)

    # A mixture's sources know what was taken down of them, by their own ids.
    named, sources = path.dataset.named(ids), dict(zip(path.dataset.names, path.dataset.sources, strict=True))
    for i, (name, own) in zip(ids.tolist(), named, strict=True):
        whole = getattr(sources[name].reader, "whole", sources[name].reader)
        if taken_down_of(whole, [own]):
            gone[i] = stand_in(whole, own)

    return BatchSamples(ids, keys, paths, gone, named)
