"""Feeder's order on the generic path: the epochs of a feeder dataset, split by rank.

Note [Order on the generic path]
    The loader's samplers show the order of the whole job, and torch's iterators take a :class:`SplitOrder` in their
    place. Each index that it gives is a :class:`SeededBatch`, which carries epoch and position to the worker, so that
    augmentation there follows from the seed as well.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from feeder.dataset.base import FeederDataset, drawn_samples
from feeder.dataset.subset import as_feeder, dataset_fingerprint
from feeder.errors import ArgumentError
from feeder.loader.left_out import EpochGaps, skipped_indices
from feeder.loader.order_identity import check_identity, order_identity, resumed_order
from feeder.loader.path_choice import refuse_full_shuffle
from feeder.loader.rank_agreement import Agreement, epoch_values
from feeder.loader.ranks import current_ranks, is_in_group
from feeder.loader.run_seed import RunSeed
from feeder.loader.samplers import warn_of_split
from feeder.loader.workers.seeding import seeded
from feeder.order.random import check_range
from feeder.order.sample_order import Order, Shuffle, goes_by_shard
from feeder.order.shard_sizes import ShardSizes
from feeder.order.skip import Skip
from feeder.order.split import Split, ordered_batches

__all__ = ["SeededBatch", "Seeding", "SplitEpoch", "SplitOrder", "order_of"]


class SeededBatch(list[int]):
    """The sample ids of a batch, or of a single sample.

    Attributes:
        epoch: Its epoch.
        position: Position of its first sample in the epoch.
    """

    epoch: int
    position: int


@dataclass(frozen=True)
class Seeding:
    """Makes samples whose augmentation is a function of (seed, epoch, sample or position).

    Args:
        seed: 0 to 2**64-1.
        stored_order: Ids are places in the stored order of a Subset's samples, not in the Subset.
    """

    seed: int
    stored_order: bool

    def samples(self, dataset: Any) -> _SeededSamples:
        """Returns what fetchers take in the dataset's place."""
        source = as_feeder(dataset, stored_order=self.stored_order)
        return _SeededSamples(dataset, source, self.seed)


@dataclass
class _SeededSamples:
    """Samples by :class:`SeededBatch`. Those of a feeder dataset are drawn as on the fast path. Before the user's own
    code makes them, the generators of Python, numpy and torch are seeded for the batch."""

    dataset: Any
    source: Any
    seed: int

    def __getitem__(self, batch: SeededBatch) -> Any:
        if self.source is not None:
            return self.__getitems__(batch)[0]
        with seeded(self.seed, batch.epoch, batch.position):
            return self.dataset[batch[0]]

    def __getitems__(self, batch: SeededBatch) -> list[Any]:
        if self.source is not None:
            return drawn_samples(self.source, self.seed, batch.epoch, batch)
        with seeded(self.seed, batch.epoch, batch.position):
            several = getattr(self.dataset, "__getitems__", None)
            return several([*batch]) if several else [self.dataset[i] for i in batch]


def order_of(dataset: Any, seed: int, shuffle: Shuffle) -> Order:
    """Returns the order of a feeder dataset, see :func:`feeder.dataset.subset.is_feeders`.

    Args:
        dataset: The dataset.
        seed: 0 to 2**64-1.
        shuffle: The way to shuffle; :class:`Lanes` with a block.

    Raises:
        ArgumentError: for a :class:`Window` or :class:`Lanes` where it is not known which samples lie in one shard.
    """
    sizes: Sequence[int] | ShardSizes = ()
    if goes_by_shard(shuffle):
        source = as_feeder(dataset, stored_order=True) or dataset
        if not isinstance(source, FeederDataset) or len(source) != len(source.reader):
            raise ArgumentError(
                f"shuffle={type(shuffle).__name__}(...) needs to know the samples of each shard, and not for all "
                f"samples of this {type(dataset).__name__} they are known; take shuffle='full'"
            )
        sizes = source.reader.shard_sizes()
    return Order(len(dataset), seed, shuffle, sizes)


class SplitOrder:
    """An index sampler: of each epoch in feeder's order the batches of this rank.

    Args:
        dataset: A feeder dataset, see :func:`feeder.dataset.subset.is_feeders`.
        order: Its order, but for its seed. The number of samples is asked of the dataset again for each epoch.
        shuffle: The way to shuffle as the caller gave it.
        follows_state: See :class:`feeder.loader.options.LoaderOptions`.
        batch_size: Samples in a batch; None: single samples.
        drop_last: Leave out a last step that can't fill every rank's batch.
        ranks: (rank, world size) where they are given; None: those of the job.
        skip: What epochs leave out; None: nothing.
        seed: The loader's seed.

    Attributes:
        skip: The same, from the next epoch on.
        padded: Ids of the samples that were repeated to give all ranks the same number of batches.
        fixed_epoch: The next iterator's epoch, if :meth:`set_epoch` or a state fixed it; else None.
    """

    def __init__(
        self,
        dataset: Any,
        order: Order,
        shuffle: Shuffle,
        follows_state: bool,
        batch_size: int | None,
        drop_last: bool,
        ranks: tuple[int, int] | None,
        skip: Skip | None,
        seed: RunSeed,
    ) -> None:
        self._dataset = dataset
        self._order = order
        self._shuffle = shuffle
        self._given = ranks
        self._follows_state = follows_state
        self._batch_size = batch_size or 1
        self._drop_last = drop_last
        self._seed = seed
        self._stored_order = goes_by_shard(order.shuffle)
        self.skip = skip

        self._gaps = EpochGaps()
        self.padded: list[int] = []
        self.fixed_epoch: int | None = None
        self._next = 0
        self._latest: SplitEpoch | None = None
        self._agreement = Agreement()
        self._fingerprint: str | None = None
        self._has_warned = False

    def __iter__(self) -> SplitEpoch:
        return SplitEpoch(self)

    def __len__(self) -> int:
        """Batches in a whole epoch, on this rank; of the epoch that an iterator is in, or the next."""
        latest = self._latest
        if latest is not None and latest.is_going:
            return len(self.split(latest.epoch, 0))
        return len(self.split(self.next_epoch, 0))

    @property
    def next_epoch(self) -> int:
        """The epoch of the next iterator."""
        return self._next if self.fixed_epoch is None else self.fixed_epoch

    @property
    def seeding(self) -> Seeding:
        """The way that samples are made. The first use may wait for rank 0's seed."""
        return Seeding(self._seed.value(), self._stored_order)

    def split(self, epoch: int, start: int) -> Split:
        """Returns this rank's part of an epoch, from a position on."""
        rank, world_size = current_ranks(self._given)
        gaps = None
        if self.skip:
            ids = functools.partial(skipped_indices, self.skip, self._dataset, stored_order=self._stored_order)
            gaps = self._gaps.of(self.skip, self.order(), epoch, ids)
        return Split(len(self._dataset), self._batch_size, rank, world_size, self._drop_last, start, gaps)

    def order(self) -> Order:
        """Returns the order of the dataset as it is now. The first use may wait for rank 0's seed."""
        size = len(self._dataset)
        if size != self._order.samples:
            if len(self._order.shard_sizes):
                raise ArgumentError("the samples of the dataset were changed after the loader was made; make another")
            self._order = Order(size, self._order.seed, self._order.shuffle)
        return self._seeded()

    def _seeded(self) -> Order:
        self._order = self._order.with_seed(self._seed.value())
        return self._order

    def set_epoch(self, epoch: int) -> None:
        """Sets the epoch of the next iterator, 0 to 2**32-1; those after it go on from there."""
        self.fixed_epoch = operator.index(epoch)  # of a tensor or numpy's, too: states are plain numbers
        check_range("epoch", self.fixed_epoch, 1 << 32)
        self._agreement.epoch_was_set()

    def take_epoch(self) -> int:
        """Returns the epoch of an iterator that begins."""
        epoch, self.fixed_epoch = self.next_epoch, None
        return epoch

    def begin(self, begun: SplitEpoch, split: Split) -> int | None:
        """Notes an epoch that begins; returns the batches after which the one before it was left, if it was."""
        self._next = begun.epoch + 1
        left_after = None if self._latest is None else self._latest.left_after
        self._latest = begun
        if not self._has_warned:
            self._has_warned = warn_of_split(self._order, split, is_meant=self._given is not None)
        return left_after

    def agree(self, epoch: int, split: Split, steps: int, left_after: int | None) -> None:
        """Compares an epoch with the other ranks', see :mod:`feeder.loader.rank_agreement`."""
        if not is_in_group(self._given):
            return
        if steps:
            self._agreement.check(steps)
            return
        values = epoch_values(self.state_dict(), split, getattr(self._dataset, "recipe", None), epoch)
        if self.skip:
            values["skip"] = self.skip.summary()
        self._agreement.begin(split.rank, values, left_after)

    def close(self) -> None:
        """Raises what another rank has found, if ranks load different orders."""
        if is_in_group(self._given):
            self._agreement.close()

    def state_dict(self) -> dict[str, Any]:
        """Returns what states have to agree in."""
        return self._identity(self._seeded())

    def _identity(self, order: Order) -> dict[str, Any]:
        if self._fingerprint is None:
            self._fingerprint = dataset_fingerprint(self._dataset)
        return order_identity(order, self._fingerprint)

    def _reordered(self, shuffle: Shuffle) -> Order:
        """Returns the order by which a run goes on that was begun where the dataset lay elsewhere."""
        if shuffle is True:
            refuse_full_shuffle(self._dataset)
        return order_of(self._dataset, self._order.seed, shuffle)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on with the order of a state, and refuses one of another dataset, seed or order."""
        seed = self._seed.of_state(state)
        order = resumed_order(self._order, self._shuffle, state, self._reordered if self._follows_state else None)
        order = order.with_seed(seed)
        check_identity(state, self._identity(order))
        self._order = order
        self._seed.known = seed


class SplitEpoch:
    """An iterator over this rank's batches of one epoch; it begins when the first one is asked for.

    Attributes:
        epoch: Number of the epoch, once it has begun.
        is_untouched: No batch was asked for by the caller.
    """

    epoch: int

    def __init__(self, order: SplitOrder) -> None:
        self._order = order
        self._split: Split | None = None
        self._steps = self._handed = 0
        self.is_untouched = True

    def __iter__(self) -> SplitEpoch:
        return self

    def __next__(self) -> SeededBatch:
        self.begun()
        positions, ids, _ = next(self._batches)
        batch = SeededBatch(ids.tolist())
        batch.epoch = self.epoch
        batch.position = int(positions[0])
        self._steps += 1
        return batch

    def begun(self) -> Split:
        """Returns this rank's part of the epoch; begins it if need be."""
        if self._split is None:
            return self._begin(self._order.take_epoch(), 0)
        return self._split

    def _begin(self, epoch: int, start: int) -> Split:
        self.epoch, order = epoch, self._order.order()
        self._split = split = self._order.split(epoch, start)
        self._whole = order
        self._batches: Iterator[Any] = ordered_batches(order, epoch, split)
        self._steps = self._handed = 0
        self._left_after = self._order.begin(self, split)
        return split

    @property
    def is_going(self) -> bool:
        """True from its begin until its last batch is handed out."""
        return self._split is not None and self._handed < len(self._split)

    @property
    def left_after(self) -> int | None:
        """Number of batches handed out, if there were any and the epoch has more."""
        return self._handed if self._handed and self.is_going else None

    def ask(self) -> None:
        """Notes that the caller asks for a batch: compares the first, second and last one with the other ranks'."""
        split, was_untouched, self.is_untouched = self.begun(), self.is_untouched, False
        if self._handed in (1, len(split) - 1) if self._handed else was_untouched:
            self._order.agree(self.epoch, split, self._handed, self._left_after)

    def hand_out(self) -> None:
        """Notes that the caller gets a batch, or its error."""
        split = self.begun()
        if self._handed < len(split) and (padding := split.padding(self._handed)):
            positions = split.positions(self._handed)[-padding:]
            self._order.padded += self._whole.ids(self.epoch, positions).tolist()
        self._handed += 1

    def state_dict(self) -> dict[str, Any]:
        """Returns the place after the indices given so far, the same on every rank."""
        split = self.begun()
        size = split.batch_size * split.world_size
        return {"epoch": self.epoch, "consumed": split.consumed(self._steps), "global_batch": size}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes to a place; the world size and batch size may be others than those that it was saved with."""
        epoch, consumed = (state.get(name) for name in ("epoch", "consumed"))
        if type(epoch) is not int or type(consumed) is not int:
            raise ArgumentError(
                "this state does not fit: it has no place in feeder's order, so it was saved with an explicit sampler "
                "or with another dataset"
            )
        self._begin(epoch, consumed)

    def check_steps(self, state: dict[str, Any]) -> None:
        """Refuses a state that counts batches from a snapshot of the dataset, if batches were of another size then.

        Args:
            state: From :meth:`state_dict`.

        Raises:
            ArgumentError: naming both sizes.
        """
        here = self.state_dict()["global_batch"]
        if state["global_batch"] != here:
            raise ArgumentError(
                f"this state does not fit: the dataset's state in it is some batches old, of {state['global_batch']} "
                f"samples on all ranks, and here they have {here}; resume with the same world size and batch size, or "
                "save with snapshot_every_n_steps=1"
            )
