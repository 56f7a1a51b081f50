"""DataLoader: torch's surface; feeder's engine for feeder's datasets."""

from __future__ import annotations

import copy
import dataclasses
import functools
import inspect
import itertools
import sys
from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
import torch.utils.data
from typing_extensions import TypeVar

from feeder.decoders.registry import Dali
from feeder.errors import ArgumentError
from feeder.loader.auto_workers import settle_workers
from feeder.loader.collate_errors import ShownCollate, given_collate, without
from feeder.loader.device.feed import StaticBuffers
from feeder.loader.fast.fast_path import FastPath
from feeder.loader.fast.history import BatchSamples, History, ReplayedBatch
from feeder.loader.fast.position import Place
from feeder.loader.generic.encoded_samples import DrawnSampler, ImageDraws
from feeder.loader.generic.generic_path import GenericPath
from feeder.loader.generic.resumable_samplers import make_resumable
from feeder.loader.observe.prometheus import MetricsPage
from feeder.loader.observe.stats import remote_counts
from feeder.loader.options import (
    DEFAULT_COLLATES,
    DEFAULT_PREFETCH,
    DeviceOptions,
    Fixed,
    ImageOptions,
    LoaderOptions,
    Metrics,
    ToDevice,
    WorkerOptions,
    change_refusal,
    copy_stream,
)
from feeder.loader.path_choice import choose_path, tell_of_conversion
from feeder.loader.run_seed import RunSeed, checked_seed
from feeder.loader.samplers import (
    ToldEpochs,
    change_order,
    check_ranks,
    follow_sampler,
    goes_on_without_end,
    show_order,
    tell_epoch,
)
from feeder.loader.service_options import Service
from feeder.order.buckets import Buckets
from feeder.order.sample_order import FullShuffle, Shuffle, goes_by_shard
from feeder.order.skip import Skip
from feeder.system.arrays import AnyArray
from feeder.system.limit_errors import explained
from feeder.system.warning import warn
from feeder.transforms import BatchOp
from feeder.transforms.pad_to_batch import PadToBatch

_T_co = TypeVar("_T_co", covariant=True, default=Any)
_HANG_TIMEOUT_S = 300.0


class DataLoader(torch.utils.data.DataLoader[_T_co]):
    """A drop-in replacement for torch's DataLoader.

    Feeder datasets, and a ``Subset`` or ``ConcatDataset`` of them, take the fast path if their recipe has a fixed
    output size or there are a ``collate_fn`` or ``sizes``, and samples come in batches. It yields ``(images, labels,
    *targets, *fields)``, or what ``collate_fn`` returns:

    - images: uint8 [N, 3, H, W], 0-255, or of the dtype that the recipe's ToDtype or Normalize asks for; with
      :class:`feeder.transforms.Views` a list of these, one for each view;
    - labels: int64 [N], or float32 [N] or [N, K] for numeric targets; with padding the images' sizes follow;
    - targets: masks [N, H, W], lists of N dicts of boxes or keypoints, further images; with views a list for each;
    - fields: lists of N values; int64 [N] for "index" and other numbers; for kinds of :mod:`feeder.fields` as they say.

    Order and augmentation are functions of (seed, epoch, position or sample), whatever the number of workers or ranks.
    Other datasets take torch's path, and their batches are made as torch's loader makes them. :attr:`path` says which
    path it is, and docs/loading.md what each does.

    Each of feeder's own arguments is an attribute of its name. ``skip`` alone of them can be changed later.

    Args:
        dataset: As torch's, like all arguments up to ``in_order`` but for what follows.
        num_workers: Also "auto": as many as have all cores of this rank busy, with their threads. The number changes no
            batch of a feeder dataset; other datasets' random augmentation is seeded by worker.
        collate_fn: On the fast path called once for each batch, in a worker, with the list of its samples as
            ``dataset[i]`` gives them. The generators of Python, numpy and torch are seeded for the call. Not together
            with ``mix`` or ``memory_format``, or with a backend that decodes in this process.
        multiprocessing_context: The way to start workers. Without one, workers of the fast path come from a small
            server without torch and CUDA; what can't be pickled is started as torch does it.
        worker_init_fn: As torch's. Only local workers call it, and no part of an input service.
        shuffle: For feeder datasets also a :class:`feeder.Window` or :class:`feeder.Lanes`. True is a full shuffle of
            local samples, and ``Lanes()`` of remote ones, with a warning; "full" is a full shuffle of either, and
            refused if a remote set does not fit its cache. A run keeps the order that it was begun with.
        in_order: Ignored on the fast path: batches always come in order, as resume rests on it.
        generator: For feeder datasets the source of ``seed``.
        seed: Seed of order and augmentation, 0 to 2**64-1. None: that of a loaded state, else drawn when the loader is
            made, and the same on all ranks of a torch.distributed group.
        rank: This process's rank; None: torch.distributed's, else torchrun's, else 0.
        world_size: Number of ranks; None: likewise, else 1. Each rank gets its part of every global batch, and all
            ranks get the same number of batches: ``stats()["padded"]`` lists the samples that are repeated for that. A
            loader that one rank of a job iterates alone needs ``rank=0, world_size=1``. An explicit ``sampler`` or
            ``batch_sampler`` replaces order and rank split.
        skip: Ids of samples of a feeder dataset that no epoch has, or a :class:`feeder.Skip` of ids and of spans of
            single epochs. States have it, and ``loader.skip = ...`` changes it, in the middle of an epoch too: what was
            not consumed by then comes once. None: what a loaded state says; ``[]``: nothing. Not together with a
            sampler.
        mix: A :class:`feeder.transforms.MixUp` or ``CutMix``, or a list of these, of which each batch gets one with
            equal probability. Labels are then float32 [N, num_classes] or, without ``num_classes``, ``(labels, labels
            of the partners, weight of the first)``.
        sizes: In place of a recipe of fixed output size: :class:`feeder.Buckets`, one of whose sizes all images of a
            batch have, or :class:`feeder.PadToBatch`, which pads them to one, and their sizes, int64 [N, 2], follow the
            labels.
        memory_format: That of images: ``torch.contiguous_format`` or ``torch.channels_last``.
        device: Device that batches go to: "cuda", "cuda:N" or "cpu", or a :class:`feeder.ToDevice` with options; None
            leaves them where they are made. The caller may use a batch at once.
        backend: Decode backend, or "auto" for the best one that is installed and can run the recipe. "dali" decodes in
            this process, on ``device`` if that is a GPU; :class:`feeder.Dali` is "dali" with options. "cuda" decodes
            seekable and packed JPEGs on the GPU ``device``; "auto" never takes it.
        fidelity: "fast", or "exact" for pixels within one level of Pillow's, which is slower. "draft" is "fast" with
            less work where a crop is at least 2 or 4 times as large as its output.
        prefetch_factor: Batches that each worker makes ahead, at most. Without one the fast path makes as many ahead as
            keep the workers, or the servers of a service, busy, within a GiB.
        worker_options: A :class:`feeder.WorkerOptions`: threads, NUMA node, patience and memory of the workers.
        on_error: "raise" raises a :class:`feeder.DecodeError` that names the sample, in place of its batch; "skip"
            puts another sample, chosen by seed, epoch and position, in its place and lists it in :meth:`stats`.
        snapshot_every_n_steps: Number of batches between two snapshots of the state of datasets that have one
            (``state_dict()``) or are not feeder's. A resume makes the batches since the last snapshot again and drops
            them. 0: no snapshots.
        service: Name of an input service, whose servers on other nodes make parts of batches, too, or a
            :class:`feeder.Service`. Batches, order, states and counts stay the same.
        metrics: A TCP port that serves :meth:`stats` to Prometheus, or a :class:`feeder.Metrics`, which also has the
            address. None: no server.

    Raises:
        ArgumentError: for a bad argument of feeder's own; torch's arguments raise what torch raises.
        BackendError: if the backend is missing or can't run the recipe.
    """

    dataset: Any  # torch declares a Dataset, which has neither a length nor classes
    rank = Fixed()
    world_size = Fixed()
    mix = Fixed()
    sizes = Fixed()
    memory_format = Fixed()
    device = Fixed()
    backend = Fixed()
    fidelity = Fixed()
    worker_options = Fixed()
    on_error = Fixed()
    snapshot_every_n_steps = Fixed()
    service = Fixed()
    metrics = Fixed()

    def __init__(
        self,
        dataset: Any,
        batch_size: int | None = 1,
        shuffle: Shuffle | FullShuffle | None = None,
        sampler: Any = None,
        batch_sampler: Any = None,
        num_workers: int | Literal["auto"] = 0,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: Any = None,
        generator: torch.Generator | None = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
        in_order: bool = True,
        seed: int | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        skip: Skip | Sequence[int] | AnyArray | None = None,
        mix: BatchOp | Sequence[BatchOp] | None = None,
        sizes: Buckets | PadToBatch | None = None,
        memory_format: torch.memory_format = torch.contiguous_format,
        device: str | torch.device | ToDevice | None = None,
        backend: str | Dali = "auto",
        fidelity: Literal["fast", "exact", "draft"] = "fast",
        worker_options: WorkerOptions | None = None,
        on_error: Literal["raise", "skip"] = "raise",
        snapshot_every_n_steps: int | None = 1,
        service: str | Service | None = None,
        metrics: int | Metrics | None = None,
    ) -> None:
        given = dict(locals(), collate_fn=given_collate(collate_fn))
        self._given = tuple(name for name in _DEFAULTS if _is_given(name, given[name]))
        vars(self).update({name: given[name] for name in _DEFAULTS.keys() - _TORCHS})
        vars(self).update(skip=Skip.of(skip), seed=checked_seed(seed))
        ranks = None if rank is None or world_size is None else (rank, world_size)
        path = self._path_choice = choose_path(given, ranks)
        self._target_device = None if self._to_device is None else self._to_device.target()
        settled = settle_workers(given, path, self._target_device)
        given["num_workers"], threads, self._workers_choice = settled
        if threads is not None:
            vars(self)["worker_options"] = dataclasses.replace(self._workers, threads=threads)

        torchs = {name: value for name, value in given.items() if name in _TORCHS and name != "self"}
        is_served = service is not None and not given["num_workers"]
        if is_served:  # torch refuses it without workers
            torchs["prefetch_factor"] = None
        super().__init__(**torchs | {"shuffle": None if shuffle is None else bool(path.shuffle)})
        if is_served:
            self.prefetch_factor = prefetch_factor
        self._make_path()

    def _make_path(self) -> None:
        """Checks the options, and makes the path that batches come by."""
        path, options, seed = self._path_choice, self._options(), vars(self)["seed"]
        check_ranks(getattr(self.batch_sampler, "sampler", self.sampler), options.ranks)
        self._draws = ImageDraws(seed, self.generator)
        self._seed = RunSeed(seed, self.generator, options.ranks) if path.is_fast else None
        if self._seed is not None:
            # Frameworks that make the loader anew, on one rank or on all, give it what it was given.
            vars(self)["seed"] = self._seed.known
            if options.service is not None and self._seed.known is None:
                warn(
                    "this loader draws its seed, and trials with different seeds share no parts of an input service: "
                    "give all trials the same seed="
                )

        self._shown_collate = ShownCollate(vars(self)["collate_fn"])
        self._keeps_order = False
        self._told = ToldEpochs()
        self._metrics_page: MetricsPage | None = None
        self._generic_path = GenericPath(self.num_workers)
        self._fast_path: FastPath | None = None
        if path.is_fast:
            self._fast_path = self._make_fast_path()
        else:
            make_resumable(self.sampler, self.batch_sampler)
            path.check(self._given, options.ranks)
            tell_of_conversion(self.dataset)
            self._check_skip(self.skip)
        self._serve_metrics()

    @property
    def _to_device(self) -> ToDevice | None:
        return self.device if isinstance(self.device, (ToDevice, type(None))) else ToDevice(self.device)

    @property
    def _workers(self) -> WorkerOptions:
        return WorkerOptions() if self.worker_options is None else self.worker_options

    def _options(self) -> LoaderOptions:
        """Returns the options as they are now."""
        path, workers, to_device, static = self._path_choice, self._workers, self._to_device, self._static
        if workers.hang_timeout_s is None and path.is_fast:
            workers = dataclasses.replace(workers, hang_timeout_s=_HANG_TIMEOUT_S)
        collate_fn = vars(self)["collate_fn"]

        images = None
        if path.takes_encoded:
            given, skip = path.of_images(self._given), self.on_error == "skip"
            threads, device = workers.threads_now, self._target_device
            images = ImageOptions(self.backend, self.fidelity, threads, skip, given, device)

        same = {name: getattr(self, name) for name in _PASSED_ON}
        return LoaderOptions(
            **same,
            batch_sampler=None if path.own_order else self.batch_sampler,
            collate_fn=None if collate_fn in DEFAULT_COLLATES else collate_fn,
            prefetch_is_given="prefetch_factor" in self._given or self.prefetch_factor not in (None, DEFAULT_PREFETCH),
            service=Service(self.service) if isinstance(self.service, str) else self.service,
            workers=workers,
            device=DeviceOptions(
                target=self._target_device,
                ahead=0 if to_device is None else to_device.prefetch,
                stream=self._stream,
                put=None if static is None else static.put,
                pin_memory=self.pin_memory,
            ),
            shuffle=path.shuffle,
            follows_state=path.follows_state,
            images=images,
        )

    def _serve_metrics(self) -> None:
        wanted = self.metrics if isinstance(self.metrics, Metrics) else Metrics(self.metrics)
        if wanted.port is not None and self._metrics_page is None:
            self._metrics_page = MetricsPage(self, wanted.port, wanted.address)

    def __repr__(self) -> str:
        if "_fast_path" not in vars(self):
            return super().__repr__()
        dataset, path = self.dataset, self._path_choice
        if self.batch_size is None and not path.own_order:
            order = f"batch_sampler={type(self.batch_sampler).__name__}"
        else:
            order = f"batch_size={self.batch_size}, "
            order += f"shuffle={path.shuffle}" if path.own_order else f"sampler={type(self.sampler).__name__}"
        parts = [
            repr(dataset) if path.source is dataset else type(dataset).__name__,
            order,
            f"num_workers={self.num_workers}",
            *([] if self._seed is None or self._seed.known is None else [f"seed={self._seed.known}"]),
            *([] if self._to_device is None else [f"device={str(self._to_device.device)!r}"]),
            f"path={self.path!r}",
        ]
        return f"{type(self).__name__}({', '.join(parts)})"

    @property
    def path(self) -> Literal["fast", "generic"]:
        """The path: "fast" for feeder's own, "generic" for torch's; ``stats()["path_reason"]`` says why."""
        return "fast" if self._path_choice.is_fast else "generic"

    @property
    def seed(self) -> int | None:
        """Seed of order and augmentation, 0 to 2**64-1; None where it has no effect. One that is drawn is the same on
        all ranks: before the first batch, ranks other than 0 wait for it."""
        given: int | None = vars(self).get("seed")
        return given if self._seed is None else self._seed.value()

    @seed.setter
    def seed(self, seed: int | None) -> None:
        raise change_refusal("seed")

    @property
    def skip(self) -> Skip | None:
        """The samples and spans that epochs leave out; assigned ones hold for the next epoch, or the rest of this."""
        found: Skip | None = vars(self).get("skip")
        return found

    @skip.setter
    def skip(self, skip: Any) -> None:
        skip = Skip.of(skip)
        if self._fast_path is not None:
            self._fast_path.set_skip(skip)
        elif not self._path_choice.is_fast:
            self._check_skip(skip)
        vars(self)["skip"] = skip

    @property
    def collate_fn(self) -> Any:
        """The collate function. Frameworks that make a loader of torch's from this one get it as a
        :class:`feeder.loader.collate_errors.ShownCollate`."""
        function: Any = vars(self).get("collate_fn")
        if "_shown_collate" not in vars(self):
            return function
        shown, lost = self._shown_collate, self._lost_in_torchs()
        shown.given = function
        shown.lost = lost
        return shown if lost or (self._path_choice.is_fast and not self._keeps_order) else function

    @collate_fn.setter
    def collate_fn(self, function: Any) -> None:
        if "_fast_path" in vars(self) and self._path_choice.is_fast:
            raise change_refusal("collate_fn")
        vars(self)["collate_fn"] = given_collate(function)

    def options(self) -> dict[str, Any]:
        """Returns the arguments by which ``feeder.DataLoader(**loader.options())`` makes another loader like this one.

        They are those that were given, as they are now: numbers in place of "auto", what a state says to skip, and the
        seed that was drawn. ``feeder.DataLoader(**(loader.options() | {"batch_size": 32}))`` changes one of them.
        """
        names = [name for name in self._given if name != "shuffle"]
        further = ("seed", "skip", *(("worker_options",) if self._workers_choice is not None else ()))
        names += [name for name in further if name not in names and getattr(self, name) is not None]
        found = {"dataset": self.dataset} | {name: given_collate(getattr(self, name)) for name in names}
        return found | ({"shuffle": self._path_choice.given_shuffle} if "shuffle" in self._given else {})

    def _lost_in_torchs(self) -> list[str]:
        """Returns the names of the given options that a loader of torch's would lack, made from this one."""
        names = [name for name in self._given if name not in _TORCHS and name not in ("seed", "skip")]
        if self.skip:
            names.append("skip")
        if not self._keeps_order:
            names += ["seed"] if "seed" in self._given else []
            names += ["shuffle"] if goes_by_shard(self._path_choice.given_shuffle) else []
        return names

    @property
    def _is_accelerate_prepared(self) -> bool:
        """Accelerate's ``prepare()`` alone reads it, before it makes one of torch's loaders from this one."""
        self._keeps_order = True  # by the samplers, of which Accelerate gives each rank its part
        way_out = "eave the loader out of prepare()"
        if "device" not in self._given:
            way_out += ", and give it device=accelerator.device"
        if lost := self._lost_in_torchs():
            raise ArgumentError(
                f"Accelerate's prepare() makes one of torch's loaders from this one, {without(lost)}: l{way_out}"
            )
        if self._path_choice.is_fast:
            warn(
                "Accelerate's prepare() makes one of torch's loaders from this one: the order stays, but not the "
                f"speed, the augmentation by seed and the exact resume. L{way_out}: it splits epochs by rank itself"
            )
        return False

    @property
    def metrics_url(self) -> str | None:
        """URL of the metrics; None if they are not served."""
        return None if self._metrics_page is None else self._metrics_page.url

    @property
    def _fast(self) -> FastPath | None:
        """The fast path; a copied or unpickled loader makes one of its own."""
        if self._fast_path is None and self._path_choice.is_fast:
            self._fast_path = self._make_fast_path()
        return self._fast_path

    def _make_fast_path(self) -> FastPath:
        assert self._path_choice.source is not None
        assert self._seed is not None
        path = FastPath(self._options(), self._path_choice.source, self.dataset, self._seed)
        if path.own_order:
            show_order(self, path.run.unseeded, self._seed)
        return path

    def _move_to_epoch(self, told: int) -> None:
        """Takes up an epoch that a framework tells the sampler."""
        assert self._fast is not None  # only the fast path's samplers tell epochs
        self._fast.move_to_epoch(self._told.take(told, self._fast.due_epoch))

    @property
    def _index_sampler(self) -> Any:
        """The sampler that torch's iterators take indices from; none of these makes the fast path's batches.

        Raises:
            ArgumentError: on the fast path.
        """
        if self._path_choice.is_fast:
            raise ArgumentError(
                "torch's iterators would make other batches than this loader's, and its stats() and states would not "
                "count them: iterate over the loader itself, with iter(loader)"
            )
        sampler = super()._index_sampler
        return DrawnSampler(sampler, self._draws) if self._path_choice.takes_encoded else sampler

    @functools.cached_property
    def _stream(self) -> Callable[[], Any]:
        """The stream of the copies; the same for all iterators."""
        return copy_stream(self._target_device)

    @functools.cached_property
    def _static(self) -> StaticBuffers | None:
        """The addresses of ``ToDevice(static_buffers=True)``; the same for all iterators."""
        is_static = self._to_device is not None and self._to_device.static_buffers
        return StaticBuffers(self.batch_size) if is_static else None

    def _check_skip(self, skip: Skip | None) -> None:
        """Raises ArgumentError if the loader, on torch's path, is to leave something out."""
        if skip:
            reason = self._path_choice.generic_reason
            raise ArgumentError(f"skip= is for feeder's path. Here {reason}. Leave the samples out by a Subset")

    def __getstate__(self) -> dict[str, Any]:
        own = dict.fromkeys(("_fast_path", "_iterator", "_metrics_page"))
        own |= {name: copy.copy(getattr(self, name)) for name in ("_seed", "_draws", "_told")}
        return {k: v for k, v in self.__dict__.items() if k not in ("_generic_path", "_stream", "_static")} | own

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._generic_path = GenericPath(self.num_workers)
        follow_sampler(self)

    def __iter__(self) -> Any:
        return self._get_iterator()

    def _get_iterator(self) -> Any:
        """Returns the iterator of the next epoch; classes that derive from torch's loader call or replace this method,
        and :meth:`__iter__` calls it."""
        path = self._path_choice
        if not (path.own_order and path.is_fast and goes_on_without_end(self)):
            return self._begin_epoch()
        epochs = itertools.chain([self._begin_epoch()], iter(self._begin_epoch, None))
        return itertools.chain.from_iterable(epochs)

    def _begin_epoch(self) -> Any:
        self._serve_metrics()
        options = self._options()
        if self._fast is not None and self._fast.own_order:
            change_order(self, self._fast.run.unseeded)  # a mixture's weights may have changed
        with explained():
            if self._fast is None:
                return self._generic_path.iterate(self, options)
            return self._fast.iterate(options, owner=self)

    def __len__(self) -> int:
        """Batches in a whole epoch, on this rank; what is left after a resume is the iterator's length. With spans that
        are skipped it is the epoch that an iterator is in, or the next."""
        if self._fast is None:
            return super().__len__()
        if not self._fast.own_order:
            return len(self.batch_sampler)  # type: ignore[arg-type]
        return len(self._fast.run.split(self._options(), Place(self._fast.place().epoch)))

    def set_epoch(self, epoch: int) -> None:
        """Sets the epoch of the next iterator; those after it go on from there.

        Without feeder's own order the epoch is passed on to whichever of ``sampler``, ``batch_sampler``,
        ``batch_sampler.sampler`` and ``dataset`` has a ``set_epoch`` of its own.

        Args:
            epoch: 0 to 2**32-1. After :meth:`load_state_dict` the epoch that was loaded keeps the place in it.
        """
        self._told.forget()
        if self._fast is not None:
            self._fast.set_epoch(epoch)
            if not self._fast.own_order:
                tell_epoch(self, epoch)
        else:
            self._draws.next_epoch = epoch
            tell_epoch(self, epoch)

    def state_dict(self) -> dict[str, Any]:
        """Returns the place of the iteration, not counting batches that were made ahead and not handed out. After a
        ``break`` that is the place of the break, although the next iterator goes on to the next epoch.

        On the fast path the state is a few numbers, fit for JSON and the same on every rank; with an explicit sampler
        also the state of its generator, or its own, and a digest of the samples handed out, both of this rank. On
        torch's path it is the state of torchdata's StatefulDataLoader: the sampler's place, and the states of dataset
        and iterators.

        Warns:
            UserWarning: once, if an explicit sampler draws from a global random state, which is not saved: only the
                current epoch can be resumed exactly.
        """
        if self._fast is not None:
            return self._fast.state_dict()
        return self._generic_path.state_dict(self, self._options())

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Goes on where a state was taken; world size, batch size and number of workers may differ.

        Raises:
            ArgumentError: if the state is of another dataset, order, seed or backend. With the next iterator or batch:
                if an explicit sampler gives other samples than were handed out; on torch's path, if workers have states
                and their number differs.
        """
        self._told.resume()
        if self._fast is None:
            self._generic_path.load_state_dict(self, state_dict)
        else:
            self._fast.load_state_dict(state_dict)
            vars(self)["skip"] = self._fast.options.skip
            change_order(self, self._fast.order)

    def samples_of(self, epoch: int, step: int, *, rank: int | None = None) -> BatchSamples:
        """Returns the samples of a batch of this run, without reading their images.

        Of an epoch in which a run was resumed with another batch size or world size, steps are numbered through; a
        state has what is needed for that.

        Args:
            epoch: The epoch.
            step: Number of the batch in it, from 0.
            rank: The rank whose batch it is; None: this one.

        Returns:
            The samples, before bad ones are replaced by others.

        Raises:
            ArgumentError: for a batch that is not known: before the oldest state of this run that has what is needed,
                with an explicit sampler, or of a dataset that is not feeder's.
        """
        return self._history("samples_of").samples_of(epoch, step, rank)

    def replay(self, epoch: int, step: int, *, rank: int | None = None) -> ReplayedBatch:
        """Makes a batch of this run again, in this process; the iteration goes on as if it had not been made.

        Args and errors are those of :meth:`samples_of`.

        Returns:
            The batch as the loader gave it, its samples, and the substitutions of bad ones.

        Raises:
            DecodeError: if a sample is bad and ``on_error`` is "raise".
        """
        return self._history("replay").replay(epoch, step, rank)

    def steps_of(self, epoch: int) -> int:
        """Returns the number of batches that each rank has in an epoch of this run.

        Args:
            epoch: The epoch.

        Raises:
            ArgumentError: as :meth:`samples_of` does, if the epoch's batches are not known.
        """
        return self._history("steps_of").steps_of(epoch)

    def span_of(self, epoch: int, first_step: int, end_step: int) -> tuple[int, int, int]:
        """Returns the positions of some batches of this run, of all ranks, for ``feeder.Skip(spans=[...])``.

        Args:
            epoch: The epoch.
            first_step: Number of the first batch in it, from 0.
            end_step: Number of the batch after the last one.

        Returns:
            (epoch, first position, end).

        Raises:
            ArgumentError: as :meth:`samples_of` does, and with buckets, as batches there have no span.
        """
        return self._history("span_of").span_of(epoch, first_step, end_step)

    def _history(self, name: str) -> History:
        """Returns the batches of the run, for a method of that name."""
        if self._fast is None:
            reason = self._path_choice.reason or "the dataset is not feeder's"
            raise ArgumentError(f"{name}() is for the fast path, and this loader goes without it: {reason}")
        return History(self._fast)

    def stats(self) -> dict[str, Any]:
        """Returns the time that each stage took so far, and the lists of bad samples and replaced workers.

        docs/loading.md, "Statistics", explains each name. Times are nanoseconds, shares 0-1.
        """
        stats = self._generic_path.stats() if self._fast is None else self._fast.stats()
        stats |= {"path": self.path, "path_reason": self._path_choice.reason}
        remote = remote_counts(self.dataset)
        if remote is not None:
            stats["remote"] = remote
        choice = self._workers_choice
        return stats if choice is None else stats | {"auto": dict(choice)}

    def worker_pids(self) -> list[int]:
        """Returns the process ids of the fast path's running workers."""
        return [] if self._fast_path is None else self._fast_path.worker_pids()

    def close(self) -> None:
        """Ends the workers. The loader can be iterated again.

        Raises:
            ArgumentError: at last, if another rank has found that ranks load different orders.
        """
        if sys is None or sys.is_finalizing():  # see Note [At the interpreter's end]
            return
        try:
            if self._fast_path is not None:
                self._fast_path.close()
        finally:
            self._generic_path.close(self)
            page, self._metrics_page = self._metrics_page, None
            if page is not None:
                page.close()

    def reset(self) -> None:
        """Retires the workers, also persistent ones: those of the next epoch take the dataset as it is then.

        An epoch that has begun goes on. ultralytics' trainer calls it.
        """
        self._iterator = None
        if self._fast is not None:
            self._fast.retire()


_DEFAULTS = {
    name: p.default for name, p in inspect.signature(DataLoader.__init__).parameters.items() if p.default is not p.empty
}
_TORCHS = frozenset(inspect.signature(torch.utils.data.DataLoader.__init__).parameters)
# Arguments that the paths take as they are; they have the others in a form of their own.
_PASSED_ON = _DEFAULTS.keys() & {field.name for field in dataclasses.fields(LoaderOptions)} - {
    "batch_sampler",
    "collate_fn",
    "device",
    "service",
    "shuffle",
}


def _is_given(name: str, value: Any) -> bool:
    """Returns True for a value other than the argument's default."""
    return type(value) is not type(_DEFAULTS[name]) or bool(value != _DEFAULTS[name])
