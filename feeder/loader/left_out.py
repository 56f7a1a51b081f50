"""The samples of a loader's ``skip``, as its dataset and its order have them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
from torch.utils.data import BatchSampler, IterableDataset, Subset

from feeder.dataset.reader import Reader
from feeder.dataset.subset import as_feeder
from feeder.dataset.subset_reader import PartReader
from feeder.errors import ArgumentError
from feeder.loader.options import SAMPLER_OF_A_FRAMEWORK
from feeder.order.bucket_order import BucketOrder
from feeder.order.gaps import Gaps
from feeder.order.mixture_order import MixtureOrder
from feeder.order.recent import Recent
from feeder.order.sample_order import Order
from feeder.order.skip import Skip

__all__ = ["EpochGaps", "Kept", "check_skip", "check_torchs_skip", "skipped_ids", "skipped_indices"]


class EpochGaps:
    """The positions that epochs go without; of the last ones they are kept."""

    def __init__(self) -> None:
        self._kept: Recent[Gaps | None] = Recent(2)

    def of(self, skip: Skip | None, order: Order, epoch: int, ids: Callable[[], npt.NDArray[np.int64]]) -> Gaps | None:
        """Returns the positions that an epoch goes without; None if it has all.

        Args:
            skip: What is left out; None: nothing.
            order: The order of the samples.
            epoch: The epoch.
            ids: Returns the samples that no epoch has, as the order knows them: int64 [N].
        """
        return self._kept.get((order, epoch, skip), lambda: skip.gaps(order, epoch, ids())) if skip else None


class Kept:
    """An index sampler of torch's, without the samples that are left out; batches are filled with those that follow.

    Args:
        sampler: A BatchSampler, or a sampler of single samples, that gives each of the dataset's samples once.
        left_out: Indices of the samples that are left out.
    """

    def __init__(self, sampler: Any, left_out: frozenset[int]) -> None:
        self.sampler = sampler
        self.left_out = left_out

    def __len__(self) -> int:
        """Batches, or samples, of an epoch."""
        sampler = self.sampler
        if not isinstance(sampler, BatchSampler):
            return len(sampler) - len(self.left_out)
        full, rest = divmod(len(sampler.sampler) - len(self.left_out), sampler.batch_size)  # type: ignore[arg-type]
        return full + (1 if rest and not sampler.drop_last else 0)

    def __iter__(self) -> Iterator[Any]:
        sampler = self.sampler
        if not isinstance(sampler, BatchSampler):
            return (index for index in sampler if index not in self.left_out)
        kept = (index for index in sampler.sampler if index not in self.left_out)
        batches = iter(lambda: [*itertools.islice(kept, sampler.batch_size)], [])
        return (batch for batch in batches if len(batch) == sampler.batch_size or not sampler.drop_last)


def skipped_ids(skip: Skip | None, reader: Reader) -> npt.NDArray[np.int64]:
    """Returns the samples that no epoch has, by their ids in this reader: int64 [N], sorted."""
    if skip is None:
        return np.zeros(0, np.int64)
    return np.flatnonzero(np.isin(reader.ids, skip.ids)) if isinstance(reader, PartReader) else skip.ids


def skipped_indices(skip: Skip | None, dataset: Any, *, stored_order: bool = False) -> npt.NDArray[np.int64]:
    """Returns the samples that no epoch has, by their indices in any map-style dataset: int64 [N], sorted.

    Args:
        skip: What is left out; of a Subset by the ids in the whole dataset. None: nothing.
        dataset: The dataset.
        stored_order: True for places in the stored order of a Subset of a feeder dataset.

    Raises:
        ArgumentError: if the dataset does not have one of them.
    """
    if skip is None:
        return np.zeros(0, np.int64)
    source = as_feeder(dataset, stored_order=stored_order)
    if source is not None:
        _check_range(skip, len(_whole(source.reader)))
        return skipped_ids(skip, source.reader)
    ids: npt.NDArray[np.int64] | None = None
    while type(dataset) is Subset:
        own = np.asarray(dataset.indices, np.int64)
        ids, dataset = own if ids is None else own[ids], dataset.dataset
    _check_range(skip, len(dataset))
    return skip.ids if ids is None else np.flatnonzero(np.isin(ids % max(1, len(dataset)), skip.ids))


def check_skip(skip: Skip | None, order: Order, reader: Reader, *, own_order: bool) -> None:
    """Refuses to leave out what there is not.

    Args:
        skip: What is left out; None: nothing.
        order: The order of the samples.
        reader: The samples' reader.
        own_order: False with an explicit sampler.

    Raises:
        ArgumentError: naming what to do instead.
    """
    if not skip:
        return
    _check_own(own_order)
    if skip.spans and isinstance(order, BucketOrder):
        raise ArgumentError(
            "a span is of positions that follow each other, and batches in buckets are not of such: skip samples by "
            "their ids, which loader.samples_of(epoch, step) gives"
        )
    if isinstance(order, MixtureOrder) and order.shares.batch:
        raise ArgumentError(
            "a Mixture with batching='per_source' can't skip samples, as others would move up into batches of another "
            "source: leave them out of the source, by Subset or `feeder takedown`"
        )
    _check_range(skip, len(_whole(reader)))


def check_torchs_skip(skip: Skip | None, dataset: Any, *, own_order: bool, has_epochs: bool) -> None:
    """Refuses to leave out what a loader on torch's path can't.

    Args:
        skip: What is left out; None: nothing.
        dataset: The dataset.
        own_order: False with an explicit sampler.
        has_epochs: True in feeder's order, which alone has positions by epoch.

    Raises:
        ArgumentError: naming what to do instead.
    """
    if not skip:
        return
    if isinstance(dataset, IterableDataset):
        raise ArgumentError("skip= is for samples with an index, and this dataset is iterable: leave them out in it")
    _check_own(own_order)
    if skip.spans and not has_epochs:
        raise ArgumentError(
            f"a span is of positions in feeder's own order, and a {type(dataset).__name__} comes in torch's: skip "
            "samples by their indices in the dataset"
        )
    skipped_indices(skip, dataset)


def _whole(reader: Reader) -> Reader:
    return reader.whole if isinstance(reader, PartReader) else reader


def _check_own(own_order: bool) -> None:
    if not own_order:
        raise ArgumentError(
            "skip= is for the loader's own order, and this one has a sampler: leave them out there. "
            + SAMPLER_OF_A_FRAMEWORK
        )


def _check_range(skip: Skip, samples: int) -> None:
    if len(skip.ids) and skip.ids[-1] >= samples:
        raise ArgumentError(f"skip has sample {skip.ids[-1]}, and the dataset has samples 0 to {samples - 1}")
