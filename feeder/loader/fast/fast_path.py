"""The fast path of a loader: begins epochs, and has what its iterators share."""

from __future__ import annotations

import dataclasses
import functools
import weakref
from typing import Any

import numpy as np

from feeder.dataset.base import FeederDataset
from feeder.dataset.further_images import further_recipes, images_in, key_rows
from feeder.dataset.mixture import Mixture
from feeder.dataset.subset import followed, given_ids, remote_of
from feeder.dataset.subset_reader import leaves
from feeder.decoders.staged.trainer_decoder import TrainerDecoder
from feeder.errors import ArgumentError
from feeder.loader.fast.batch_queue import requests
from feeder.loader.fast.batch_sizes import SIZE_IDENTITY, BatchSizes
from feeder.loader.fast.engine import Engine
from feeder.loader.fast.finishing import Finishing
from feeder.loader.fast.iterator import Epoch, FastIterator, Ledger
from feeder.loader.fast.position import EpochProgress, Place
from feeder.loader.fast.read_ahead import DrawnAhead, ReadAhead
from feeder.loader.fast.run_order import RunOrder
from feeder.loader.fast.run_state import STATE_VERSION, check_state, hub_sets, made_by, sources_of, weights_of
from feeder.loader.fast.sample_maker import Work
from feeder.loader.fast.sampler_replay import Replay
from feeder.loader.fast.setup import make_engine, make_service, make_work
from feeder.loader.fast.spans import Span, Spans
from feeder.loader.left_out import check_skip, skipped_ids
from feeder.loader.observe.stats import NO_SLOTS
from feeder.loader.options import LoaderOptions
from feeder.loader.order_identity import check_identity, order_identity
from feeder.loader.path_choice import sizeless
from feeder.loader.rank_agreement import Agreement, epoch_values
from feeder.loader.ranks import current_ranks, is_in_group
from feeder.loader.run_seed import RunSeed
from feeder.loader.samplers import warn_of_split
from feeder.loader.slots.image_slots import Samples, Sizes
from feeder.loader.workers.seeding import WorkerInit, epoch_base_seed
from feeder.order.bucket_order import BucketSplit
from feeder.order.mixture_order import MixtureOrder
from feeder.order.mixture_shares import Shares
from feeder.order.sample_order import Order, goes_by_shard
from feeder.order.skip import Skip
from feeder.order.split import Split
from feeder.system.checks import check_int
from feeder.system.warning import warn
from feeder.transforms.mixing import check_mix


class FastPath:
    """The part of a loader that its iterators share.

    Args:
        options: The loader's options.
        source: The dataset.
        dataset: The user's dataset: that one, or a Subset or ConcatDataset of it.
        seed: The loader's seed.

    Attributes:
        options: The options as they are now.
        dataset: The dataset, by the latest recipe.
        own_order: False with an explicit sampler.
        spans: The ways in which the run was split into batches.
        run: The order of the run, and its split by rank.
    """

    def __init__(self, options: LoaderOptions, source: FeederDataset, dataset: Any, seed: RunSeed) -> None:
        self.options = options
        self._seed = seed
        self.dataset = source
        self._given_dataset = dataset
        self.own_order = options.batch_sampler is None
        self._worker_init = self._worker_init_by(options)

        if isinstance(source, Mixture):
            source.loaders.add(self)
        self._use_dataset(source)
        self.run = RunOrder(source, options, seed, self.work.table)
        self._ledger = Ledger()

        self._progress: EpochProgress | None = None
        self._next = Place()
        self._is_refused = False  # by a sampler that does not fit the state
        self.spans = Spans()
        self._iterator: weakref.ref[FastIterator] | None = None
        self._iterators: weakref.WeakSet[FastIterator] = weakref.WeakSet()
        self._engine: Engine | None = None
        self._read_ahead: ReadAhead | DrawnAhead | None = None
        self._has_warned = self._has_told = False

        self._agreement = Agreement()
        # Batches after which the epoch before was broken off, for the ranks that went on with it; None: it was not.
        self._left_after: int | None = None
        self.set_skip(options.skip)

    def _worker_init_by(self, options: LoaderOptions) -> WorkerInit | None:
        """Returns what runs in a new worker; None if nothing does."""
        if options.worker_init_fn is None and options.collate_fn is None:
            return None
        return WorkerInit(options.worker_init_fn, options.num_workers, self._given_dataset)

    def _use_dataset(self, source: FeederDataset) -> None:
        """Takes a dataset, with its recipe, for the next epochs."""
        options = self.options
        self.dataset = source
        further = tuple(further_recipes(images_in(source.extras)))
        rows = key_rows(source.recipe, source.extras)
        seed = self._seed.known or 0
        self._sizes = BatchSizes(source.reader, source.recipe, seed, options.buckets, options.pad, further, rows)

        self.work, decoder = make_work(options, source, self._sizes)
        self._service = make_service(options, self.work)
        self.backend = decoder.name

        self.decoder = decoder if isinstance(decoder, TrainerDecoder) else None
        mix = check_mix(options.mix)
        self._finishing = Finishing(self.work, options.device.target, options.channels_last, mix)

    @property
    def order(self) -> Order:
        """The order, by the run's seed.

        The first use may wait for rank 0, which tells the seed. If the path was made with another one, the use reseeds
        sizes and work, and retires the workers.
        """
        order = self.run.seeded()
        if order.seed != self.work.seed:
            self._sizes = dataclasses.replace(self._sizes, seed=order.seed)
            self.work.reseed(order.seed)
            self.retire()  # workers, and jobs of a service, have the work with the earlier seed
        return order

    def retire(self) -> None:
        """Retires the workers: the next epoch starts others."""
        if self._engine is not None:
            self._engine.retire()
            self._engine = None

    def check_reweighted(self, changed: Shares, at_sample: int) -> None:
        """See :meth:`RunOrder.check_reweighted`."""
        place = self.place()
        ends = [(place.epoch, place.start)]
        ends += [(each.place.epoch, each.ordered_until()) for each in self._running()]
        self.run.check_reweighted(changed, at_sample, ends)

    def reweight(self) -> None:
        """Orders the samples ahead by the mixture's new weights."""
        assert isinstance(self.dataset, Mixture)
        self.run.reweight(self.dataset.shares)
        live = self._running()
        for iterator in self._iterators:
            if iterator.progress in live:
                split = self.run.split(iterator.epoch.options, iterator.progress.place)
                iterator.progress.follow(self.order, split)
        if self._progress in live and isinstance(self._read_ahead, ReadAhead):
            self._begin_read_ahead(self._progress)

    def _running(self) -> list[EpochProgress]:
        """Returns the progress of the iterators that have batches left."""
        found = [iterator.progress for iterator in self._iterators]
        return [each for each in found if each.split is not None and not each.exhausted]

    def set_skip(self, skip: Skip | None) -> None:
        """Sets the samples and spans that epochs leave out, from the next one on."""
        check_skip(skip, self.run.unseeded, self.dataset.reader, own_order=self.own_order)
        self.options = dataclasses.replace(self.options, skip=skip)

    def _bar_substitutes(self, skip: Skip | None) -> None:
        """Bars skipped samples from being substitutes. Replaces the workers if the skipped samples have changed."""
        left_out = skipped_ids(skip, self.dataset.reader)
        if not np.array_equal(left_out, self.work.left_out):
            self.work.left_out = left_out
            if self.work.skip:  # and workers have the work as it was
                self.retire()

    def iterate(self, options: LoaderOptions, owner: object) -> FastIterator:
        """Returns the iterator over the next epoch, or over the rest of the one that was loaded.

        Args:
            options: The loader's options for it.
            owner: The loader, which the iterator keeps alive.
        """
        if options.worker_init_fn is not self.options.worker_init_fn:  # Lightning sets it between epochs
            self._worker_init = self._worker_init_by(options)
            self.retire()
        self.options = options
        self._follow_dataset()
        self._bar_substitutes(options.skip)

        place, progress = self._next, self._progress
        split = self.run.split(options, place) if self.own_order else None
        if split is not None and not self._has_told:  # the caller may not expect this split
            self._has_told = warn_of_split(self.order, split, is_meant=options.ranks is not None)
        self._left_after = progress.steps if progress is not None and progress.is_midway and progress.steps else None

        self._next = Place(place.epoch + 1)
        self._is_refused = False
        try:
            iterator = FastIterator(self._epoch(place, split), owner)
        except BaseException as error:  # no batch was handed out: the next iterator starts at the same place
            self._next = place
            self._is_refused = isinstance(error, ArgumentError)
            self._progress = progress
            raise

        self._begin_span(place, split)
        self._iterator = weakref.ref(iterator)
        self._iterators.add(iterator)
        return iterator

    def _epoch(self, place: Place, split: Split | None) -> Epoch:
        """Returns the epoch, or the rest of one, that begins at a place."""
        options, replay = self.options, self._replay(place)
        if self._service is not None and self._service.only:
            options = dataclasses.replace(options, timeout=0.0)  # the relay's error says more

        progress = self._progress = EpochProgress(place, split, replay, self.order)
        self._begin_read_ahead(progress)
        sizes = functools.partial(_sizes_of, self._sizes, self.work) if self._sizes.varies else None
        asked = requests(progress, sizes)
        if isinstance(self._read_ahead, DrawnAhead):
            asked = self._read_ahead.watched(asked)

        return Epoch(
            progress=progress,
            requests=asked,
            options=options,
            work=self.work,
            engine=self._idle_engine(place.epoch) if options.num_workers or self._service is not None else None,
            decoder=self.decoder,
            finishing=self._finishing,
            ledger=self._ledger,
            agree=self._agree if split is not None and is_in_group(options.ranks) else None,
        )

    def _begin_read_ahead(self, progress: EpochProgress) -> None:
        """Starts to fetch the bytes of a remote set ahead of an iterator."""
        options, split, reader = self.options, progress.split, self.dataset.reader
        if self._read_ahead is not None:
            self._read_ahead.close()
        self._read_ahead = None
        if not remote_of(leaves(reader)) or (self._service is not None and self._service.only):
            return
        made = 1 + options.ahead + (options.device.ahead if options.device.target is not None else 0)
        if split is not None and progress.order is not None:
            self._read_ahead = ReadAhead(reader, progress.order, split, progress, made)
        elif options.num_workers:
            self._read_ahead = DrawnAhead(reader, progress, made)

    def _agree(self, progress: EpochProgress) -> None:
        """Compares an epoch that all ranks split: tells the others at its first batch, looks for differences at its
        second and last. See :mod:`feeder.loader.rank_agreement`."""
        split, steps = progress.split, progress.steps
        if split is None or steps not in (0, 1, len(split) - 1):
            return
        if steps:
            self._agreement.check(steps)
            return
        sources = sources_of(self.dataset).items()
        recipes = {f"recipe of {name!r}" if name else "recipe": source.recipe for name, source in sources}
        values = epoch_values(self._identity(self.order), split, recipes, progress.place.epoch)
        if isinstance(split, BucketSplit):
            values["consumed_by_bucket"] = split.consumed_by_bucket(0)
        if skip := self.options.skip:
            values["skip"] = skip.summary()
        values |= weights_of(self.order)
        self._agreement.begin(split.rank, values, self._left_after)

    def _follow_dataset(self) -> None:
        """Takes up a recipe that was changed since the loader was made; an iterator that runs keeps the old one.

        Raises:
            ArgumentError: if the loader's options do not go together with it, or more than the recipe was changed.
        """
        stored_order = goes_by_shard(self.run.unseeded.shuffle)
        now = followed(self._given_dataset, self.dataset, stored_order=stored_order)
        if now is self.dataset:
            return
        sizes = self.options.sizes is not None
        if self.options.collate_fn is None and (reason := sizeless(now, sizes)) is not None:
            raise ArgumentError(f"the dataset's transform was changed, and {reason}; or make another loader")
        self._use_dataset(now)
        self.retire()

    def set_epoch(self, epoch: int) -> None:
        """See :meth:`feeder.DataLoader.set_epoch`."""
        self._agreement.epoch_was_set()
        self._set_epoch(epoch)

    def _set_epoch(self, epoch: int) -> None:
        epoch = check_int("epoch", epoch, 0, (1 << 32) - 1)
        if epoch != self._next.epoch or self._is_refused:  # for the epoch that was loaded, its place stays
            self._next = Place(epoch)
            self._is_refused = False
        if self._latest is None:
            self._progress = None  # the loop was broken off, and its place is not wanted any more

    @property
    def due_epoch(self) -> int:
        """The epoch of the iterator that has given nothing yet, else of the next one."""
        iterator = self._latest
        return self._next.epoch if iterator is None or not iterator.is_untouched else iterator.progress.place.epoch

    def move_to_epoch(self, epoch: int) -> None:
        """Sets the epoch of the iterator that has given nothing yet, else of the next one.

        A framework may make the iterator before it sets the epoch.
        """
        self._agreement.epoch_was_set()
        iterator = self._latest
        if iterator is None or not iterator.is_untouched:
            self._set_epoch(epoch)
        elif iterator.progress.place.epoch != epoch:
            self._set_epoch(epoch)
            place, self._next = self._next, Place(epoch + 1)
            iterator.end()
            split = self.run.split(self.options, place)
            iterator.begin(self._epoch(place, split))
            self._begin_span(place, split)

    def _begin_span(self, place: Place, split: Split | None) -> None:
        """Notes how the epoch is split from a place on."""
        if split is not None:
            skip = self.options.skip or None
            self.spans.begin(Span(place, split.batch_size, split.world_size, split.drop_last, skip))

    def state_dict(self) -> dict[str, Any]:
        """See :meth:`feeder.DataLoader.state_dict`."""
        order, place = self.order, self.place()
        state = {"version": STATE_VERSION, "epoch": place.epoch, **self._identity(order), **hub_sets(self.dataset)}
        if not self.own_order:
            return state | {"batches": place.start, "sampler": self._sampler_state(place)}

        if skip := self.options.skip:
            state["skip"] = skip.state()
        decoded_on = "cpu" if self.decoder is None else self.decoder.device.type
        made = made_by(self.dataset, self.options.mix, decoded_on)
        return state | place.consumed(order) | weights_of(order) | made | {"spans": self.spans.state()}

    def _sampler_state(self, place: Place) -> dict[str, Any]:
        """Returns the state of the explicit sampler at the run's place."""
        replay = None if self._progress is None else self._progress.replay
        if replay is not None and replay.drawn and not self._has_warned:
            self._has_warned = True
            warn(
                f"{replay.name} draws the order of each epoch from {' and '.join(replay.drawn)}'s global random state, "
                "which is not saved: a resumed run finishes the epoch as it would have been, but its next ones are in "
                "another order. Give the sampler a generator: generator=torch.Generator().manual_seed(0)",
            )
        if replay is None or place is self._next:
            replay = self._replay(place)
        assert replay is not None
        return replay.state()

    def place(self) -> Place:
        """Returns the place after the batches that were handed out; where no iterator goes on, the next one's."""
        progress = self._progress
        goes_on = progress is not None and (progress.is_midway if self._latest is None else not progress.exhausted)
        return progress.now() if progress is not None and goes_on else self._next

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See :meth:`feeder.DataLoader.load_state_dict`."""
        check_state(state)
        order = self.run.of_state(state, self.options)
        check_identity(state, dict.fromkeys(SIZE_IDENTITY) | self._identity(order) | hub_sets(self.dataset))
        if isinstance(order, MixtureOrder):
            order = order.with_shares(order.shares.of_state(state.get("weights")))

        place = Place.of_state(state, order, own_order=self.own_order)
        self.spans, skip = Spans.of_state(state), Skip.of_state(state.get("skip"))
        if self.options.skip is None and skip is not None:
            self.set_skip(skip)

        self.run.unseeded = order
        self._seed.known = order.seed
        self._next = place
        self._is_refused = False
        self._iterator = self._progress = None
        if isinstance(order, MixtureOrder) and isinstance(self.dataset, Mixture):
            self.dataset.take(order.shares, by=self)

    def at(self, options: LoaderOptions, place: Place) -> FastPath:
        """Returns another path, with other options and without a service, that begins at a place of this run."""
        if options.service is not None:  # without it, "auto" could choose another backend
            options = dataclasses.replace(options, service=None, backend=self.backend)
        path = FastPath(options, self.dataset, self._given_dataset, self._seed)
        path.run.unseeded = self.run.unseeded
        path._next = place
        path._has_told = True
        return path

    def stats(self) -> dict[str, Any]:
        """See :meth:`feeder.DataLoader.stats`."""
        engine, iterator = self._engine, self._latest
        replaced = engine.replacements if engine is not None else []
        processes = self.options.num_workers + (self._service is not None)
        ids = given_ids(self.dataset.reader)
        workers = engine.stages() if engine is not None else ()
        words = np.stack([self._ledger.meter.words, self.work.meter.words, *workers])
        stats = self._ledger.stats(words, replaced, processes, ids, self.decoder)
        slots = dict(NO_SLOTS) if iterator is None else iterator.slots()
        return {**stats, "backend": self.backend, "slots": slots, **self._source_counts()}

    def _source_counts(self) -> dict[str, Any]:
        """Returns what all ranks have had of each source of a mixture; empty for any other dataset."""
        order = self.run.unseeded if self._seed.known is None else self.order  # self.order would wait for rank 0
        if not isinstance(order, MixtureOrder):
            return {}
        place = self.place()
        had = zip(order.shares.names, order.consumed(place.epoch, place.start), strict=True)
        return {"sources": {name: {"samples": samples, "passes": passes} for name, (samples, passes) in had}}

    @property
    def _latest(self) -> FastIterator | None:
        """The iterator over the latest epoch, as long as it lives."""
        return self._iterator() if self._iterator is not None else None

    def _idle_engine(self, epoch: int) -> Engine:
        """Returns the loader's engine, or another one if an earlier iterator still uses it."""
        options = self.options
        if self._worker_init is not None:
            rank, _ = current_ranks(options.ranks)
            self._worker_init.base_seed = epoch_base_seed(self.order.seed, rank, epoch)
        if self._engine is not None and not self._engine.is_ours:
            self._engine = None
        if self._engine is not None and not self._engine.busy:
            return self._engine
        engine = make_engine(self.work, options, self._worker_init, self._service)
        if self._engine is None:
            self._engine = engine
        return engine

    def worker_pids(self) -> list[int]:
        """Returns the process ids of the workers that run now."""
        return [] if self._engine is None else self._engine.worker_pids()

    def _replay(self, place: Place) -> Replay | None:
        """Returns the explicit sampler's epoch from a place on; None with feeder's own order."""
        if self.own_order:
            return None
        rank, _ = current_ranks(self.options.ranks)
        return Replay(self.options.batch_sampler, len(self.dataset), rank, place.start, place.sampler)

    def close(self) -> None:
        """Ends all iterators and the workers, see Note [Closing]."""
        have_ended = [iterator.close() for iterator in list(self._iterators)]
        if self.decoder is not None and all(have_ended):
            self.decoder.close()
        if self._engine is not None:
            self._engine.retire()
        if self._read_ahead is not None:
            self._read_ahead.close()
        if is_in_group(self.options.ranks):
            self._agreement.close()

    @functools.cached_property
    def _fingerprint(self) -> str:
        return self.dataset.reader.fingerprint()

    def _identity(self, order: Order) -> dict[str, Any]:
        identity = order_identity(order, self._fingerprint)
        return {**identity, "backend": self.backend, "fidelity": self.work.fidelity, **self._sizes.identity()}


def _sizes_of(sizes: BatchSizes, work: Work, epoch: int, split: Split | None, step: int, samples: Samples) -> Sizes:
    """Returns the sizes of a batch's images; see :meth:`BatchSizes.of`."""
    return work.image_sizes(epoch, sizes.of(epoch, split, step, samples))
