"""The samples of a loader's ``skip``, as its dataset and its order have them."""

from __future__ import annotations

import numpy as np

from feeder.dataset.reader import Reader
from feeder.dataset.subset_reader import SubsetReader
from feeder.errors import ArgumentError
from feeder.loader.options import SAMPLER_OF_A_FRAMEWORK
from feeder.order.bucket_order import BucketOrder
from feeder.order.mixture_order import MixtureOrder
from feeder.order.sample_order import Order
from feeder.order.skip import Skip
from feeder.system.arrays import Int64s


def skipped_ids(skip: Skip | None, reader: Reader) -> Int64s:
    """Returns the samples that no epoch has, by their ids in this reader: int64 [N], sorted."""
    if skip is None:
        return np.zeros(0, np.int64)
    return np.flatnonzero(np.isin(reader.ids, skip.ids)) if isinstance(reader, SubsetReader) else skip.ids


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
    if not own_order:
        raise ArgumentError(
            "skip= is for the loader's own order, and this one has a sampler: leave them out there. "
            + SAMPLER_OF_A_FRAMEWORK
        )

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

    samples = len(reader.whole if isinstance(reader, SubsetReader) else reader)
    if len(skip.ids) and skip.ids[-1] >= samples:
        raise ArgumentError(f"skip has sample {skip.ids[-1]}, and the dataset has samples 0 to {samples - 1}")
