"""Batches of a run, named by epoch and step: their samples, and the batches themselves, made again."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from feeder.dataset.mixture import Mixture
from feeder.dataset.subset_reader import PartReader
from feeder.dataset.taken_down import stand_in, taken_down_of
from feeder.loader.fast.fast_path import FastPath
from feeder.loader.fast.position import Place
from feeder.loader.options import EpochOptions

__all__ = ["BatchSamples", "ReplayedBatch", "replay", "samples_of"]


class BatchSamples(NamedTuple):
    """The samples of a batch, before bad ones are replaced by others.

    Attributes:
        ids: int64 [N]; of a Subset those in the whole dataset.
        keys: Their keys.
        paths: Paths of their original files, relative to the dataset; None where they are not known.
        sources: Of a mixture the source of each, and its id there; else None.
        taken_down: Those that were taken down, and the samples that stand in their places, whose keys and paths are
            given for them; a run before that saw the ones that are gone. Of a mixture those by their ids in the source.
    """

    ids: npt.NDArray[np.int64]
    keys: list[str | None]
    paths: list[str | None]
    taken_down: dict[int, int | None]
    sources: list[tuple[str, int]] | None = None


class ReplayedBatch(NamedTuple):
    """A batch that was made again.

    Attributes:
        batch: The batch, as the loader gave it.
        samples: Its samples.
        substitutions: Those that were bad, and the samples in their place; see
            :class:`feeder.loader.fast.part_report.Substitution`.
    """

    batch: Any
    samples: BatchSamples
    substitutions: list[dict[str, Any]]


def samples_of(path: FastPath, epoch: int, step: int, rank: int | None) -> BatchSamples:
    """See :meth:`feeder.DataLoader.samples_of`."""
    return _samples_at(path, *path.find(epoch, step, rank))


def replay(path: FastPath, epoch: int, step: int, rank: int | None) -> ReplayedBatch:
    """See :meth:`feeder.DataLoader.replay`."""
    options, place = path.find(epoch, step, rank)
    samples = _samples_at(path, options, place)
    device = dataclasses.replace(options.device, put=None)  # the caller has a batch in the static buffers
    options = dataclasses.replace(options, num_workers=0, prefetch_factor=None, timeout_s=0, device=device)
    again = path.at(options, place)
    try:
        batch = next(again.iterate(options, owner=again))
    finally:
        again.close()
    return ReplayedBatch(batch, samples, again.stats()["substitutions"])


def _samples_at(path: FastPath, options: EpochOptions, place: Place) -> BatchSamples:
    """Returns the samples of the batch that begins at a place."""
    ids = path.order.ids(place.epoch, path.split(options, place).positions(0))
    reader = path.dataset.reader
    keys, paths = ([reader.field(i, name) for i in ids.tolist()] for name in ("key", "path"))
    whole, ids = (reader.whole, reader.ids[ids]) if isinstance(reader, PartReader) else (reader, ids)
    gone = {i: stand_in(whole, i) for i in sorted(taken_down_of(whole, ids.tolist()))}
    if not isinstance(path.dataset, Mixture):
        return BatchSamples(ids, keys, paths, gone)
    sources, parts = path.dataset.named(ids), dict(zip(path.dataset.names, path.dataset.parts, strict=True))
    for i, (name, own) in zip(ids.tolist(), sources, strict=True):
        whole = getattr(parts[name].reader, "whole", parts[name].reader)
        if taken_down_of(whole, [own]):
            gone[i] = stand_in(whole, own)
    return BatchSamples(ids, keys, paths, gone, sources)
