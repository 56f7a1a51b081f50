"""The order of a run, and each rank's share of its epochs."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import numpy as np

from feeder.dataset.base import FeederDataset
from feeder.dataset.mixture import Mixture
from feeder.dataset.subset_reader import SubsetReader
from feeder.errors import ArgumentError
from feeder.loader.fast.position import Place
from feeder.loader.left_out import skipped_ids
from feeder.loader.options import LoaderOptions
from feeder.loader.order_identity import resumed_order
from feeder.loader.path_choice import refuse_full_shuffle
from feeder.loader.ranks import current_ranks
from feeder.loader.run_seed import RunSeed
from feeder.order.bucket_order import BucketOrder, BucketSplit, BucketTable
from feeder.order.gaps import Gaps
from feeder.order.mixture_order import MixtureOrder
from feeder.order.mixture_shares import Shares
from feeder.order.recent import Recent
from feeder.order.sample_order import Order, Shuffle, goes_by_shard, in_blocks
from feeder.order.split import Split


class RunOrder:
    """The order of a loader's run.

    Args:
        dataset: The dataset.
        options: The loader's options.
        seed: The loader's seed.
        table: The samples of each bucket; None: without buckets.

    Attributes:
        unseeded: The order, by a seed that may not be the run's yet. For uses that do not depend on the seed.
    """

    def __init__(
        self, dataset: FeederDataset, options: LoaderOptions, seed: RunSeed, table: BucketTable | None
    ) -> None:
        self._dataset = dataset
        self._seed = seed
        self._gaps: Recent[Gaps | None] = Recent(2)  # the positions that the last two epochs leave out
        self.unseeded = self._by(in_blocks(options.shuffle, options.batch_size), options)
        if table is not None:
            self.unseeded = BucketOrder(table, seed.known or 0, bool(options.shuffle))

    def seeded(self) -> Order:
        """Returns the order, by the run's seed. The first call may wait for rank 0, which tells the seed."""
        self.unseeded = self.unseeded.with_seed(self._seed.value())
        return self.unseeded

    def of_state(self, state: Mapping[str, Any], options: LoaderOptions) -> Order:
        """Returns the order of the run that a state is of; :func:`check_identity` says if the loader can have it."""
        self._follow_batch(options)
        make = functools.partial(self._reordered, options) if options.follows_state else None
        order = resumed_order(self.unseeded, options.shuffle, state, make)
        return order.with_seed(self._seed.of_state(state))

    def split(self, options: LoaderOptions, place: Place) -> Split:
        """Returns a rank's share of an epoch, from a place on."""
        assert options.batch_size is not None
        shares = options.batch_size, *current_ranks(options.ranks), options.drop_last
        self._follow_batch(options)
        order = self.seeded() if options.skip or isinstance(self.unseeded, BucketOrder) else self.unseeded
        gaps, skip = None, options.skip
        if skip:
            at = order, place.epoch, skip
            gaps = self._gaps.get(at, lambda: skip.gaps(order, place.epoch, skipped_ids(skip, self._dataset.reader)))
        if isinstance(order, BucketOrder):
            return BucketSplit(order, place.epoch, *shares, place.by_bucket, gaps)
        return Split(order.samples_in(place.epoch), *shares, place.start, gaps)

    def check_reweighted(self, changed: Shares, at_sample: int, ends: list[tuple[int, int]]) -> None:
        """Checks that the weights of a mixture can change at a sample of the run.

        Args:
            changed: The shares, with the new weights.
            at_sample: The first sample by them.
            ends: Epochs, each with the number of its samples that were handed out or ordered.

        Raises:
            ArgumentError: if that sample was handed out or ordered already, naming the first that was not; or if the
                mixture's lanes can't follow the weights.
        """
        assert isinstance(self.unseeded, MixtureOrder)
        shares = self.unseeded.shares
        self.unseeded.with_shares(dataclasses.replace(changed, batch=shares.batch))
        first = max(shares.place(epoch, end) for epoch, end in ends)
        if at_sample < first:
            raise ArgumentError(
                f"the weights of sample {at_sample:,} of the run can't change: the samples before {first:,} were "
                f"handed out or are being made; give at_sample={first} or more, the same on all ranks"
            )

    def reweight(self, shares: Shares) -> None:
        """Orders the samples ahead by a mixture's new weights."""
        assert isinstance(self.unseeded, MixtureOrder)
        batch = self.unseeded.shares.batch
        self.unseeded = self.unseeded.with_shares(shares if batch is None else shares.in_batches(batch))

    def _by(self, shuffle: Shuffle, options: LoaderOptions) -> Order:
        """Returns the order of the dataset by a way to shuffle."""
        seed, reader = self._seed.known or 0, self._dataset.reader
        if isinstance(self._dataset, Mixture):
            return self._dataset.order(seed, shuffle, _global_batch(options))
        sizes = reader.shard_sizes() if goes_by_shard(shuffle) else np.zeros(0, np.int64)
        return Order(len(self._dataset), seed, shuffle, sizes)

    def _reordered(self, options: LoaderOptions, shuffle: Shuffle) -> Order | None:
        """Returns the order by another way to shuffle, which a loaded state names; None if this dataset can't have it.

        A run in lanes, say, goes on in lanes when its remote set is a local one now.
        """
        reader = self._dataset.reader
        is_stored = not isinstance(reader, SubsetReader) or not (np.diff(reader.ids) < 0).any()
        if isinstance(self.unseeded, (BucketOrder, MixtureOrder)) or not is_stored:
            return None
        if shuffle is True:
            refuse_full_shuffle(self._dataset)
        return self._by(shuffle, options)

    def _follow_batch(self, options: LoaderOptions) -> None:
        """Fits batches of one source to those of all ranks together: ranks may have begun since."""
        if isinstance(self.unseeded, MixtureOrder) and self.unseeded.shares.batch:
            self.unseeded = self.unseeded.with_shares(self.unseeded.shares.in_batches(_global_batch(options)))


def _global_batch(options: LoaderOptions) -> int:
    """Returns the samples of a batch of all ranks together."""
    return (options.batch_size or 1) * current_ranks(options.ranks)[1]
