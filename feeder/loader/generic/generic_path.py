"""The iterators of a loader on the generic path, and their place between epochs."""

from __future__ import annotations

import collections
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

from torch.utils.data import BatchSampler, DataLoader

from feeder.errors import ArgumentError
from feeder.loader.device.feed import DeviceFeed
from feeder.loader.generic.meters import GenericMeters
from feeder.loader.generic.multi_process import WorkersIterator
from feeder.loader.generic.resumable_samplers import IndexIterator, SeedChain, check_sampler
from feeder.loader.generic.single_process import HereIterator
from feeder.loader.generic.torchdata_state import GenericProgress, epoch_is_over, worker_key
from feeder.loader.options import LoaderOptions
from feeder.loader.random_state import draw_seed


class GenericPath:
    """The state that a loader keeps between iterators.

    An iterator with workers is not kept: the workers end when the caller lets it go.

    Args:
        num_workers: Number of workers.

    Attributes:
        meters: Times of the stages.
    """

    def __init__(self, num_workers: int) -> None:
        self.meters = GenericMeters(num_workers)
        self._loaded: dict[str, Any] | None = None
        self._source: HereIterator | GenericProgress | None = None  # what states are taken from
        self._iterator: weakref.ref[HereIterator | WorkersIterator] | None = None
        self._prepared: HereIterator | WorkersIterator | None = None
        self._seeds = SeedChain()
        self._on_device: _OnDevice | None = None
        self._replacements: list[dict[str, Any]] = []

    def iterate(self, loader: DataLoader[Any], options: LoaderOptions) -> Iterator[Any]:
        """Returns the iterator over the next epoch, or over the rest of the one that was loaded."""
        self.meters.begin()
        iterator: Any = self._host_iterator(loader, options)
        iterator.delivers = options.device.target is None
        self._on_device = None
        if iterator.delivers:
            return cast("Iterator[Any]", iterator)
        self._on_device = _OnDevice(iterator, options, self.meters)
        return self._on_device

    def _host_iterator(self, loader: DataLoader[Any], options: LoaderOptions) -> Any:
        iterator: Any = self._prepared
        self._prepared = base_seed = None
        if self._loaded is not None and (sampler := epoch_is_over(self._loaded)) is not None:
            if loader.persistent_workers:  # with them, only the first epoch draws a seed
                base_seed = sampler.get("_base_seed")
            else:
                draw_seed(loader.generator)  # as the finished epoch did
            indices = IndexIterator(loader._index_sampler)
            indices.load(sampler)
            collections.deque(indices, maxlen=0)  # the sampler's next epoch follows
            self._loaded = None
        if loader._iterator is not None and not cast("WorkersIterator", loader._iterator).is_usable:
            loader._iterator = None
        if self._loaded is not None:
            iterator = self._new(loader, options)
        if iterator is None or iterator.finished:  # the state was taken at the end of an epoch
            iterator = loader._iterator
            if iterator is None:
                iterator = self._new(loader, options, base_seed)
            else:
                self._seeds.begin(_sampler_of(loader), 0)
                iterator._reset(loader)
        return iterator

    def state_dict(self, loader: DataLoader[Any], options: LoaderOptions) -> dict[str, Any]:
        """See :meth:`feeder.DataLoader.state_dict`."""
        if self._on_device is not None and self._on_device.state is not None:
            state = self._on_device.state
        else:
            if self._source is None:
                self._prepared = self._new(loader, options)
            assert self._source is not None
            state = self._source.state_dict()
        return self._seeds.follow(_sampler_of(loader), state, draws_base=not loader.persistent_workers)

    def load_state_dict(self, loader: DataLoader[Any], state: dict[str, Any]) -> None:
        """See :meth:`feeder.DataLoader.load_state_dict`."""
        if not isinstance(state, Mapping):
            raise ArgumentError(f"expected a state that state_dict() gave, a dict, got {state!r}")
        if state:
            if "_iterator_finished" not in state or not {"_snapshot", "_num_yielded"} & {*state}:
                raise ArgumentError(
                    f"expected a state of torchdata's StatefulDataLoader, as loaders of any dataset have it, got one "
                    f"with {', '.join(map(str, state))}; resume with the dataset and arguments that it was saved with"
                )
            if "_snapshot" not in state:  # torchdata's without workers
                workers, step = {worker_key(0): state}, state["_num_yielded"]
                state = GenericProgress(state, workers, step, finished=state["_iterator_finished"]).state_dict()
            check_sampler(_sampler_of(loader), state)
        self.close(loader)
        self._source = self._iterator = self._prepared = self._on_device = None
        self._loaded = state or None
        self._seeds = SeedChain()
        if state:
            self._seeds.follow(_sampler_of(loader), state, draws_base=not loader.persistent_workers)

    def stats(self) -> dict[str, Any]:
        """See :meth:`feeder.DataLoader.stats`."""
        iterator = self._iterator() if self._iterator is not None else None
        slots = None if iterator is None or iterator.finished else iterator.slots()
        return self.meters.stats(self._replacements, slots)

    def close(self, loader: DataLoader[Any]) -> None:
        """Ends the workers."""
        iterator = self._iterator() if self._iterator is not None else None
        if iterator is not None:
            iterator.close()
        loader._iterator = None

    def _new(
        self, loader: DataLoader[Any], options: LoaderOptions, base_seed: int | None = None
    ) -> HereIterator | WorkersIterator:
        state, self._loaded = self._loaded, None
        if state is None:
            base_seed = self._seeds.begin(_sampler_of(loader), base_seed)
        self.meters.expect(loader.num_workers)

        iterator: HereIterator | WorkersIterator
        if loader.num_workers == 0:
            iterator = self._source = HereIterator(loader, self.meters, state, base_seed, options.images)
        else:
            loader.check_worker_number_rationality()
            iterator = WorkersIterator(loader, options, self.meters, state, base_seed, self._replacements)
            self._source = iterator.progress
            if loader.persistent_workers:
                loader._iterator = iterator
        self._iterator = weakref.ref(iterator)
        return iterator


def _sampler_of(loader: DataLoader[Any]) -> Any:
    """Returns the sampler of single samples that a loader's order comes from; None with batches of another kind."""
    batches = loader.batch_sampler
    return batches.sampler if type(batches) is BatchSampler else loader.sampler if batches is None else None


class _OnDevice:
    """An iterator's batches on the device. They are copied ahead, so the state is that of the last one handed out.

    Attributes:
        state: The state after the last batch; None before the first and after the end.
    """

    def __init__(self, iterator: Any, options: LoaderOptions, meters: GenericMeters) -> None:
        self.state: dict[str, Any] | None = iterator.state_dict()
        self._iterator = iterator
        self._meters = meters
        self._feed: DeviceFeed[dict[str, Any]] = DeviceFeed(_WithStates(iterator), options.device, meters.meter)

    def __iter__(self) -> _OnDevice:
        return self

    def __len__(self) -> int:
        return len(self._iterator)

    def __next__(self) -> Any:
        self._meters.asked()
        try:
            self.state, batch = next(self._feed)
        except StopIteration:
            self.state = None
            raise
        self._meters.given(batch)
        return batch


@dataclass(eq=False)
class _WithStates:
    """An iterator's batches, each with the state after it; see :class:`feeder.loader.device.feed.BatchSource`."""

    iterator: Any

    def next(self) -> tuple[dict[str, Any], Any]:
        batch = next(self.iterator)
        return self.iterator.state_dict(), batch

    def ready(self) -> bool:
        return True
