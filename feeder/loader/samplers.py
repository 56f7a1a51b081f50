"""The samplers that a loader with feeder's own order shows to frameworks, which set their epoch or take them along."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, RandomSampler, SequentialSampler

from feeder.errors import ArgumentError
from feeder.loader.options import SAMPLER_OF_A_FRAMEWORK, change_refusal
from feeder.loader.run_seed import RunSeed
from feeder.loader.stateful import method_of
from feeder.order.lanes import LaneBlocks
from feeder.order.sample_order import Order
from feeder.order.split import Split
from feeder.system.warning import warn

_AT_ONCE = 4096


class _Epochs:
    """Base of both samplers. Each iteration goes on to the next epoch, unless :meth:`set_epoch` fixed it.

    Attributes:
        order: The loader's order, but for its seed.
        seed: The loader's seed.
        epoch: The epoch of the next iteration.
        loaders: The loaders that show it: several, if one was copied by ``copy.copy``.
    """

    order: Order
    seed: RunSeed
    epoch: int = 0
    loaders: weakref.WeakSet[Any]

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "loaders"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ |= state
        self.loaders = weakref.WeakSet()

    def __iter__(self) -> Iterator[int]:
        epoch, self.epoch = self.epoch, self.epoch + 1
        order = self.order.with_seed(self.seed.value())
        samples = order.samples_in(epoch)
        for first in range(0, samples, _AT_ONCE):
            positions = np.arange(first, min(first + _AT_ONCE, samples), dtype=np.int64)
            yield from order.ids(epoch, positions).tolist()

    def set_epoch(self, epoch: int) -> None:
        """Sets the epoch of this sampler and of its loaders, as frameworks do before every epoch."""
        self.epoch = epoch
        for loader in list(self.loaders):
            loader._move_to_epoch(epoch)


class _Shuffled(_Epochs, RandomSampler):
    """Stands in for torch's RandomSampler, by which frameworks recognize a shuffled loader."""


class _Stored(_Epochs, SequentialSampler):
    """Stands in for torch's SequentialSampler."""


class ToldEpochs:
    """The epochs that a framework tells a loader, by the sampler, and those that the loader had for them.

    Epochs that are told one after another go on where the loader is, and so does the first one after a state was
    loaded: the framework counts its own epochs, in which this loader may have had several, or has them counted from 0
    again in a resumed run.
    """

    def __init__(self) -> None:
        self._latest: tuple[int, int] | None = None
        self.forget()

    def forget(self) -> None:
        """Makes :meth:`take` return the next epoch that is told as it is."""
        self._latest = 1 << 33, 1 << 33  # no epoch follows this one

    def resume(self) -> None:
        """Makes :meth:`take` return, for the next epoch that is told, that of the loaded state."""
        self._latest = None

    def take(self, told: int, due: int) -> int:
        """Returns the loader's epoch for one that a framework tells.

        Args:
            told: The framework's epoch.
            due: The epoch that the loader would have next.
        """
        before, epoch = self._latest or (told - 1, told - 1)
        goes_on = told == before + 1 or (told == before and due == epoch)
        epoch = max(due, epoch + told - before) if goes_on else told
        self._latest = told, epoch
        return epoch


def goes_on_without_end(loader: DataLoader[Any]) -> bool:
    """Returns True if a derived class has put a batch sampler without an end around the loader's own, as ultralytics'
    InfiniteDataLoader does.

    Args:
        loader: A loader in feeder's own order.

    Raises:
        ArgumentError: for any other batch sampler, which has no effect.
    """
    batches: Any = loader.batch_sampler
    if batches is None or type(batches) is BatchSampler:
        return False
    own = getattr(batches, "sampler", None)
    if type(own) is not BatchSampler or own.sampler is not loader.sampler or hasattr(batches, "__len__"):
        raise change_refusal("batch_sampler")
    return True


def show_order(loader: DataLoader[Any], order: Order, seed: RunSeed) -> None:
    """Replaces the sampler that torch's constructor made by one of feeder's order."""
    dataset: Any = loader.dataset
    if isinstance(loader.sampler, _Epochs):  # a copied loader's
        return
    shown = (_Shuffled if isinstance(loader.sampler, RandomSampler) else _Stored)(dataset)
    shown.order = order
    shown.seed = seed
    shown.loaders = weakref.WeakSet([loader])
    object.__setattr__(loader, "sampler", shown)  # torch's __setattr__ refuses it
    if loader.batch_sampler is not None:
        loader.batch_sampler.sampler = shown  # type: ignore[attr-defined]


def change_order(loader: DataLoader[Any], order: Order) -> None:
    """Shows, by a loader's sampler, the order of the run that it goes on with."""
    if isinstance(loader.sampler, _Epochs):
        loader.sampler.order = order


def follow_sampler(loader: DataLoader[Any]) -> None:
    """Registers a copied loader for the epochs that its sampler is told."""
    if isinstance(loader.sampler, _Epochs):
        loader.sampler.loaders.add(loader)


def tell_epoch(loader: DataLoader[Any], epoch: int) -> None:
    """Sets the epoch of a loader's samplers and dataset, of each that has a ``set_epoch`` once."""
    told: list[Any] = []
    batches: Any = loader.batch_sampler
    takers: list[Any] = [loader.sampler, batches, getattr(batches, "sampler", None), loader.dataset]
    for each in takers:
        set_epoch = method_of(each, "set_epoch", 1)
        if set_epoch is not None and not any(each is other for other in told):
            told.append(each)
            set_epoch(epoch)


def check_ranks(sampler: Any, ranks: tuple[int, int] | None) -> None:
    """Raises ArgumentError if a DistributedSampler splits epochs for another rank than the one given to the loader."""
    if ranks is None or not isinstance(sampler, DistributedSampler) or ranks == (sampler.rank, sampler.num_replicas):
        return
    raise ArgumentError(
        f"the loader has rank={ranks[0]}, world_size={ranks[1]}, and its sampler splits epochs for rank {sampler.rank} "
        f"of {sampler.num_replicas}: leave one of them out. {SAMPLER_OF_A_FRAMEWORK}"
    )


def warn_of_split(order: Order, split: Split, *, is_meant: bool) -> bool:
    """Warns of a split by rank that the caller may not expect.

    Args:
        order: The order of all ranks.
        split: This rank's share of an epoch.
        is_meant: True if the caller gave rank and world size.

    Returns:
        True after a warning.
    """
    if split.world_size > 1 and order.shuffle is False and not is_meant:
        # Torch's loader would not split an evaluation.
        warn(
            f"rank {split.rank} of {split.world_size} gets its part of the epoch, {split.samples_here()} of "
            f"{split.samples} samples, also with shuffle=False. A loader that one rank alone iterates, to evaluate for "
            f"example, needs rank=0, world_size=1; where the split is meant, rank={split.rank} and "
            f'world_size={split.world_size} say so. To count each sample once, see "Evaluation" in docs/loading.md',
        )
        return True
    return order.lanes is not None and _warn_of_reach(order.lanes, split)


def _warn_of_reach(lanes: LaneBlocks, split: Split) -> bool:
    """Warns that ranks read from more shards than they need to."""
    rank, world_size, size = split.rank, split.world_size, split.batch_size
    share, least = lanes.share(size, rank, world_size), max(1 / world_size, 1 / lanes.count)
    if share < 1.01 * least:
        return False
    why = []
    if lanes.count % world_size and world_size % lanes.count:
        why.append(f"{world_size} ranks can't have equal parts of the order's {lanes.count} lanes")
    if size != lanes.block:
        why.append(f"the order is in blocks of {lanes.block}, the batch size that the run began with, not of {size}")
    warn(
        f"rank {rank} of {world_size} reads from about {100 * share:.3g} % of the shards in each epoch, where "
        f"{100 * least:.3g} % would do: {', and '.join(why)}. Each sample still comes once in an epoch. For fewer "
        f"shards take a world size that divides {lanes.count} and batch_size={lanes.block}, or begin a new run"
    )
    return True
