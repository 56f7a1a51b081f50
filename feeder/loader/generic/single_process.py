"""The generic path without workers: batches made in the calling process."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import DataLoader, IterDataPipe, MapDataPipe, default_collate, graph_settings
from torch.utils.data.dataloader import _BaseDataLoaderIter, _DatasetKind, _SingleProcessDataLoaderIter

from feeder.dataset.decoding import counted
from feeder.errors import stop_in_a_batch
from feeder.loader.collate_errors import given_collate
from feeder.loader.generic.encoded_samples import EncodedSamples
from feeder.loader.generic.generic_worker import never_ending, worker_state
from feeder.loader.generic.meters import GenericMeters
from feeder.loader.generic.resumable_samplers import IndexIterator
from feeder.loader.generic.torchdata_state import (
    GenericProgress,
    fitting_states,
    resumes_by_skipping,
    sampler_place,
    worker_key,
)
from feeder.loader.options import ImageOptions
from feeder.loader.stateful import load_if_stateful
from feeder.system.limit_errors import explained


class CountedIterator(_BaseDataLoaderIter):
    """The part of an iterator that is around torch's: it counts batches, and explains errors.

    Attributes:
        delivers: False for one whose batches are copied to a device before the caller has them.
    """

    meters: GenericMeters
    delivers = True
    progress: GenericProgress
    _indices: IndexIterator

    def _counted(self, advance: Callable[[], Any]) -> Any:
        """Returns the next batch, by torch's function for it."""
        if self.delivers:
            self.meters.asked()
        try:
            with explained():
                batch = advance()
        except StopIteration:
            self.progress.finished = True
            self.meters.end_epoch()
            raise
        if self.delivers:
            self.meters.given(batch)
        return batch

    @property
    def finished(self) -> bool:
        """True once the epoch is over."""
        return self.progress.finished

    @property
    def _is_iterable(self) -> bool:
        return self._dataset_kind == _DatasetKind.Iterable

    def _main_state(self) -> dict[str, Any]:
        """Returns the part of a state that is not the workers'."""
        return {
            "_num_workers": self._num_workers,
            **self._indices.state(),
            "_IterableDataset_len_called": self._IterableDataset_len_called,
            "_shared_seed": self._shared_seed,
            "_base_seed": self._base_seed,
        }

    def _catch_up(self, state: dict[str, Any]) -> None:
        """Makes the batches between a state's snapshot and its place again, and drops them."""
        for _ in range(state["_steps_since_snapshot"]):
            next(self)
        self.progress.finished = state["_iterator_finished"]

    def _load_main(self, state: dict[str, Any]) -> dict[str, Any]:
        """Goes to the sampler's place in a state; returns that."""
        main = sampler_place(state)
        self._indices.load(main)
        self._num_yielded = state["_snapshot"]["_snapshot_step"]
        self._IterableDataset_len_called = main["_IterableDataset_len_called"]
        return main

    def slots(self) -> dict[str, int] | None:
        """Returns the number of slots in total and held by the caller, of batches being made and ready; None: none."""
        return None

    def close(self) -> None:
        """Ends the workers, if there are any."""


class HereIterator(CountedIterator, _SingleProcessDataLoaderIter):
    """Makes batches in the calling process.

    Args:
        loader: The loader.
        meters: Times of the stages.
        state: The state to go on from; None: the epoch's beginning.
        base_seed: The workers' base seed if it is drawn already; None: it is drawn as torch draws it.
        images: Options of :class:`feeder.Encoded`; None: samples hold none.
    """

    def __init__(
        self,
        loader: DataLoader[Any],
        meters: GenericMeters,
        state: dict[str, Any] | None,
        base_seed: int | None,
        images: ImageOptions | None,
    ) -> None:
        self.meters = meters

        # This does what torch's own constructor does, and loads the dataset's state in between.
        begin_torchs(self, loader, base_seed)

        if self._timeout != 0 or self._num_workers != 0:
            raise AssertionError("without workers, timeout must be 0")

        if isinstance(self._dataset, (IterDataPipe, MapDataPipe)):
            graph_settings.apply_sharding(self._dataset, self._world_size, self._rank)

        own = None if state is None else fitting_states(state, 0, self._is_iterable).get(worker_key(0))
        if own is not None:
            load_if_stateful(self._dataset, own["dataset_state"])

        samples: Any = self._dataset
        if images is not None:
            is_stacked = self._auto_collation and self._collate_fn is default_collate
            samples = EncodedSamples(samples, images, is_stacked=is_stacked)
        self._dataset_fetcher: Any = _DatasetKind.create_fetcher(  # type: ignore[no-untyped-call]
            self._dataset_kind,
            samples,
            self._auto_collation,
            never_ending(self.meters.timed(self._collate_fn) if self._auto_collation else self._collate_fn),
            self._drop_last,
        )

        self.progress = GenericProgress()
        self._indices = IndexIterator(self._index_sampler)
        self._sampler_iter: Any = self._indices

        if state is not None:
            self._load(state, own)
            self._catch_up(state)

    def __next__(self) -> Any:
        return self._counted(super().__next__)

    def _next_data(self) -> Any:
        started = time.perf_counter_ns()
        asked = self._indices.yielded
        try:
            with counted() as counts:
                batch = super()._next_data()  # type: ignore[no-untyped-call]
        except StopIteration as error:
            if self._is_iterable or self._indices.yielded == asked:
                raise
            raise stop_in_a_batch(error) from error
        self.meters.made_here(time.perf_counter_ns() - started)
        self.meters.add_images(counts)
        return batch

    def state_dict(self) -> dict[str, Any]:
        """Returns its place, under torchdata's keys, those of its states without workers among them."""
        main = self._main_state()  # first: it may draw a seed, and the dataset's random state is taken after that
        own = worker_state(0, self._dataset_kind, self._dataset_fetcher, self._dataset)
        self.progress = GenericProgress(main, {worker_key(0): own}, self._num_yielded, finished=self.finished)
        return {**main, **own, "_num_yielded": self._num_yielded, **self.progress.state_dict()}

    def _load(self, state: dict[str, Any], own: dict[str, Any] | None) -> None:
        self._shared_seed = self._load_main(state)["_shared_seed"]
        fetcher = self._dataset_fetcher
        if self._is_iterable and resumes_by_skipping(state):
            blank = [None] * (self._index_sampler.batch_size if self._auto_collation else 1)
            for _ in range(self._num_yielded):  # nothing has a state: pass over the batches that were handed out
                fetcher.fetch(blank)
        elif self._is_iterable and own is not None:
            load_if_stateful(fetcher.dataset_iter, own["fetcher_state"]["dataset_iter_state"])
            fetcher.ended = own["fetcher_state"]["fetcher_ended"]


def begin_torchs(iterator: Any, loader: DataLoader[Any], base_seed: int | None) -> None:
    """Calls the constructor of torch's base class, which draws no base seed if one is given."""
    source = torch.default_generator if loader.generator is None else loader.generator
    random_state = source.get_state()
    _BaseDataLoaderIter.__init__(iterator, loader)
    iterator._collate_fn = given_collate(iterator._collate_fn)
    if base_seed is not None:
        source.set_state(random_state)
        iterator._base_seed = base_seed
