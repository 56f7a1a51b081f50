"""DataLoader: torch's surface; feeder's engine for feeder's datasets."""

from __future__ import annotations

import copy
import dataclasses
import functools
import inspect
import sys
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, cast

import numpy as np
import numpy.typing as npt
import torch
import torch.utils.data
from torch.utils.data import BatchSampler
from typing_extensions import TypeVar

from feeder.dataset.mixture import Mixture
from feeder.decoders.registry import Dali
from feeder.errors import ArgumentError
from feeder.loader.auto_workers import WorkersChoice, choose_workers, threads_for
from feeder.loader.collate_errors import ShownCollate, given_collate, without
from feeder.loader.device.feed import StaticBuffers
from feeder.loader.fast.fast_path import FastPath
from feeder.loader.fast.history import BatchSamples, ReplayedBatch, replay, samples_of
from feeder.loader.fast.position import Place
from feeder.loader.generic.encoded_samples import DrawnSampler, ImageDraws
from feeder.loader.generic.generic_path import GenericPath
from feeder.loader.generic.resumable_samplers import make_resumable
from feeder.loader.generic.split_order import SplitOrder, order_of
from feeder.loader.generic.torchdata_state import SKIP_KEY
from feeder.loader.left_out import Kept, check_torchs_skip, skipped_indices
from feeder.loader.observe.live_view import LiveView
from feeder.loader.observe.prometheus import MetricsPage
from feeder.loader.observe.remote_counts import remote_counts
from feeder.loader.options import (
    DEFAULT_COLLATES,
    DEFAULT_PREFETCH,
    CopyStream,
    DeviceOptions,
    EpochOptions,
    FixedOptions,
    ImageOptions,
    Metrics,
    ToDevice,
    WorkerOptions,
)
from feeder.loader.path_choice import choose_path, choose_shuffle, tell_of_conversion
from feeder.loader.ranks import current_ranks
from feeder.loader.run_seed import RunSeed
from feeder.loader.samplers import change_order, check_ranks, follow_sampler, show_order, tell_epoch
from feeder.loader.service_options import Service
from feeder.loader.stateful import method_of
from feeder.order.buckets import Buckets
from feeder.order.lanes import Lanes
from feeder.order.sample_order import FullShuffle, Shuffle, goes_by_shard, in_blocks
from feeder.order.skip import Skip
from feeder.system.limit_errors import explained
from feeder.system.warning import warn
from feeder.transforms import BatchOp
from feeder.transforms.pad_to_batch import PadToBatch

__all__ = ["DataLoader"]

_T_co = TypeVar("_T_co", covariant=True, default=Any)
_HANG_TIMEOUT_S = 300.0
_NOTHING_TOLD = 1 << 33, 1 << 33  # a framework's latest epoch, and the loader's; no epoch follows this one
# Options that the fast path reads once, when it is made, from attributes of their names.
_FIXED = frozenset(field.name for field in dataclasses.fields(FixedOptions)) - {"shuffle", "follows_state"}


class DataLoader(torch.utils.data.DataLoader[_T_co]):
    """A drop-in replacement for torch's DataLoader.

    Feeder datasets take the fast path, if their recipe has a fixed output size or there are a ``collate_fn`` or
    ``sizes``, and samples come in batches. It yields ``(images, labels, *targets, *fields)``, or
    what ``collate_fn`` returns:

    - images: uint8 [N, 3, H, W], 0-255, or of the dtype that the recipe's ToDtype or Normalize asks for; with
      :class:`feeder.transforms.Views` a list of these, one for each view;
    - labels: int64 [N], or float32 [N] or [N, K] for numeric targets; with padding the images' sizes follow;
    - targets: masks [N, H, W], lists of N dicts of boxes or keypoints, further images; with views a list for each;
    - fields: lists of N values; int64 [N] for "index" and other numbers; for kinds of :mod:`feeder.fields` as they say.

    Order and augmentation are functions of (seed, epoch, position or sample), whatever the number of workers or ranks.

    A torch ``Subset`` of a feeder dataset takes the fast path too, with the indices that it has when the loader is
    made. Its augmentation is drawn by the place in the subset; samples are named by their ids in the whole dataset. So
    does a ``ConcatDataset`` of feeder datasets with equal transforms and fields; labels stay as they are.

    All other datasets take torch's path: batches are made as torch's loader makes them. There, too, feeder datasets
    and classes that derive from them have feeder's order, rank split, ``seed`` and ``shuffle``. Images that a map-style
    dataset returns as :class:`feeder.Encoded` are read, decoded and augmented by the batch, by feeder's draws.

    Args:
        dataset: As torch's, like all arguments up to ``in_order`` but for what follows.
        num_workers: Also "auto": the fewest workers that are about as fast as workers on all cores of this rank. That
            is measured for about three seconds, on a separate iteration, by each rank for itself; where it can't be
            (iterable datasets, datasets with a state), "auto" takes all cores. The choice and its reason are logged and
            in :meth:`stats`. The number changes no batch of a feeder dataset; other datasets' random
            augmentation is seeded by worker, so give a number if runs are to be repeated.
        collate_fn: On the fast path called once for each batch, in the worker that makes the whole batch, with the
            list of its samples as ``dataset[i]`` gives them. For each call the generators of Python, numpy and torch
            are seeded from seed, epoch and the batch's place in the epoch, and restored afterwards. Not together with
            ``mix`` or ``memory_format``, or with a backend that decodes in this process.
        multiprocessing_context: The way to start workers. Without one, workers of the fast path come from a small
            server without torch and CUDA, so that they can be replaced at any time; with a ``worker_init_fn``, a
            ``collate_fn`` or a recipe that can't be pickled (a lambda in it) they start as torch's do, by fork if
            something can't be pickled.
        worker_init_fn: As torch's. On the fast path ``torch.initial_seed()`` in it is a function of seed, rank, the
            epoch that the workers start in and the worker's number. Only local workers call it, and no part of an input
            service.
        shuffle: For feeder datasets also a :class:`feeder.Window` or :class:`feeder.Lanes`. True is a full shuffle of
            local samples, and ``Lanes()`` of remote ones, with a warning; "full" is a full shuffle of either, and
            refused if a remote set does not fit its cache. With True a run keeps the order that it was begun with,
            wherever the set then lies.
        in_order: Ignored on the fast path: batches always come in order, as resume rests on it.
        generator: For feeder datasets the source of ``seed``.
        seed: Seed of order and augmentation, 0 to 2**64-1; None: that of a loaded state, else drawn when the loader is
            made, from ``generator`` or torch's default one, and the same on all ranks: those of a torch.distributed
            group take rank 0's, others 0, with a warning. On torch's path it has no effect beside an explicit sampler,
            and of a dataset that is not feeder's it is that of the draws for :class:`feeder.Encoded` alone.
        rank: This process's rank; None: torch.distributed's, else torchrun's, else 0.
        world_size: Number of ranks; None: likewise, else 1. Each rank gets its part of every global batch, and all
            ranks get the same number of batches: ``stats()["padded"]`` lists the samples that are repeated for that. A
            loader that one rank of a distributed job iterates alone needs ``rank=0, world_size=1``. An explicit
            ``sampler`` or ``batch_sampler`` replaces order and rank split. Samples that it repeats are augmented anew
            each time, and with ``seed=rank`` also those that it repeats on other ranks.
        backend: Decode backend, or "auto" for the best one that is installed and can run the recipe. "dali" decodes in
            this process, on ``device`` if that is a GPU; workers read, check and cut for it. :class:`feeder.Dali` is
            "dali" with options. "cuda" decodes seekable and packed JPEGs on the GPU ``device``, by feeder's own
            kernels; "auto" never takes it. :class:`feeder.Encoded` is decoded in the workers, by a backend for the CPU.
        fidelity: "fast", or "exact" for pixels within one level of Pillow's, which is slower. "draft" is "fast" with
            less work where a crop is at least 2 or 4 times as large as its output: JPEGs are decoded at half or quarter
            size, and fine details differ (``feeder parity --fidelity draft`` measures it). The backend "cpu" has such a
            decoding; "dali" on a GPU repeats chroma, which is faster where a JPEG engine decodes; the others take
            "draft" as "fast".
        device: Device that batches go to: "cuda", "cuda:N" or "cpu", or a :class:`feeder.ToDevice` with options; None
            leaves them where they are made. Copies to a GPU start from page-locked memory, on a separate stream; the
            caller may use a batch at once.
        memory_format: That of images: ``torch.contiguous_format`` or ``torch.channels_last``.
        skip: Ids of samples that no epoch has, or a :class:`feeder.Skip` of ids and of spans of single epochs. The rest
            keeps its order and its augmentation and moves up, so batches and their number change. States have it, and
            it may change from run to run, and with ``loader.skip = ...`` from epoch to epoch, in the middle of an epoch
            too: what was not consumed by then comes once. None: what a loaded state says; ``[]``: nothing. Of any other
            map-style dataset the ids are its indices, and there are no spans. Not together with a sampler.
        mix: A :class:`feeder.transforms.MixUp` or ``CutMix``, or a list of these, of which each batch gets one with
            equal probability. Labels are then float32 [N, num_classes] or, without ``num_classes``, ``(labels, labels
            of the partners, weight of the first)``. A function of seed, epoch and the batch's place in the epoch.
        sizes: In place of a recipe of fixed output size. With :class:`feeder.Buckets` the images of a batch have the
            size of one bucket, all ranks the same one, and ``T.BUCKET`` in the recipe stands for it. Each sample comes
            in the bucket that is nearest to its aspect ratio; what the buckets have left over at the end of an epoch
            shares the last batches with its neighbours. With :class:`feeder.PadToBatch` images of different sizes are
            padded to one for each batch, and their own sizes, int64 [N, 2], follow the labels.
        prefetch_factor: Batches that each worker makes ahead, at most. On the fast path without one as many batches
            are made ahead as keep the workers busy, and up to 2 for each worker while all of them take no more than a
            GiB; with one, as many as it says, as far as the memory allows. An input service counts as four
            workers, and without one gets as many batches as take no more than a GiB, so that many cores have parts.
        worker_options: A :class:`feeder.WorkerOptions`: threads, NUMA node, patience and memory of the workers.
        on_error: "raise" raises a :class:`feeder.DecodeError` that names the sample, in place of its batch; "skip"
            puts another sample, chosen by seed, epoch and position, in its place and lists it in :meth:`stats`; on
            torch's path in place of a sample with a bad :class:`feeder.Encoded`, chosen by seed, epoch and index.
        snapshot_every_n_steps: Number of batches between two snapshots of the state of datasets that have one
            (``state_dict()``) or are not feeder's. A resume makes the batches since the last snapshot again and drops
            them. 0: no snapshots.
        service: Name of an input service, whose servers on other nodes make parts of batches, too, or a
            :class:`feeder.Service`. Batches, order, states and counts stay the same. Local workers go first; what no
            server answers they make, too. For feeder's datasets without a ``collate_fn``; functions in recipes and
            fields must be of modules that the servers allow.
        metrics: A TCP port that serves :meth:`stats` to Prometheus, or a :class:`feeder.Metrics`, which also shows the
            progress of an epoch. None: neither.

    Raises:
        ArgumentError: for a bad argument of feeder's own; torch's arguments raise what torch raises.
        BackendError: if the backend is missing or can't run the recipe.
    """

    dataset: Any  # torch declares a Dataset, which has neither a length nor classes
    skip: Any

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
        skip: Skip | Sequence[int] | npt.NDArray[Any] | None = None,
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
        arguments = locals()
        self._given = {name: value for name in _DEFAULTS if _is_given(name, value := arguments[name])}
        collate_fn = given_collate(collate_fn)
        ranks = None if rank is None or world_size is None else (rank, world_size)
        check_ranks(sampler if batch_sampler is None else getattr(batch_sampler, "sampler", None), ranks)
        chosen = choose_shuffle(
            dataset,
            shuffle,
            by_size=isinstance(sizes, Buckets)
            or getattr(sizes, "group_by_aspect", False)
            or isinstance(dataset, Mixture),
            ranks=ranks,
        )
        path = self._path_choice = choose_path(
            dataset,
            shuffle=chosen,
            in_batches=batch_size is not None or batch_sampler is not None,
            own_order=sampler is None and batch_sampler is None,
            collates=collate_fn not in DEFAULT_COLLATES,
            sizes=sizes is not None,
        )
        self._shuffle = chosen
        self._follows_state = chosen is not False and shuffle != "full" and not goes_by_shard(shuffle)
        # torch's constructor has no place for these, and its __setattr__ lets them pass at any time.
        self.rank = rank
        self.world_size = world_size
        self.skip = skip
        self.mix = mix
        self.sizes = sizes
        self.memory_format = memory_format
        self.device = device
        self.backend = backend
        self.fidelity = fidelity
        self.worker_options = worker_options
        self.on_error = on_error
        self.snapshot_every_n_steps = snapshot_every_n_steps
        self.service = service
        self.metrics = metrics
        vars(self)["seed"] = seed
        fixed = self._fixed_options()
        _metrics(metrics)
        self._target_device = None if self._to_device is None else self._to_device.target()
        self._seed = RunSeed(fixed.seed, generator, ranks) if path.is_fast or path.is_split_generic else None
        # Frameworks that make the loader anew, on one rank or on all, give it what it was given.
        vars(self)["seed"] = fixed.seed if self._seed is None else self._seed.known
        if service is not None and self._seed is not None and self._seed.known is None:
            warn(
                "this loader draws its seed, and trials with different seeds share no parts of an input service: give "
                "all trials the same seed="
            )
        self._keeps_order = False
        self._told: tuple[int, int] | None = _NOTHING_TOLD
        self._workers_choice: WorkersChoice | None = None
        work = (dataset, batch_size, batch_sampler, collate_fn, worker_init_fn, multiprocessing_context)
        num_workers = self._settle_workers(num_workers, *work)

        has_service_alone = service is not None and not num_workers and prefetch_factor is not None
        if has_service_alone and prefetch_factor is not None and prefetch_factor < 1:
            raise ArgumentError(f"prefetch_factor must be 1 or more, got {prefetch_factor}")

        super().__init__(
            dataset,
            batch_size,
            None if shuffle is None else bool(chosen),
            sampler,
            batch_sampler,
            num_workers,
            collate_fn,
            pin_memory,
            drop_last,
            timeout,
            worker_init_fn,
            multiprocessing_context,
            generator,
            prefetch_factor=None if has_service_alone else prefetch_factor,  # which torch refuses without workers
            persistent_workers=persistent_workers,
            pin_memory_device=pin_memory_device,
            in_order=in_order,
        )
        self.prefetch_factor = prefetch_factor if has_service_alone else self.prefetch_factor
        self._shown_collate = ShownCollate(vars(self)["collate_fn"])
        self._fast_path: FastPath | None = None
        self._generic_path = GenericPath(self.num_workers)
        self._draws = ImageDraws(fixed.seed, generator)
        self._metrics_page: MetricsPage | None = None

        if path.is_fast:
            self._fast_path = self._make_fast_path()
        else:
            if path.is_split_generic:
                self._generic_path.order = self._make_split_order()
            else:
                make_resumable(self.sampler, self.batch_sampler)
            path.check(self._fixed_options(), self._epoch_options().ranks)
            tell_of_conversion(dataset)
            self._check_skip(self.skip)
        self._serve_metrics()

    def _fixed_options(self) -> FixedOptions:
        """Returns the options that can't change, from their attributes: past the properties, which show others."""
        given: dict[str, Any] = {name: vars(self).get(name) for name in _FIXED}
        if isinstance(self.service, str):
            given["service"] = Service(self.service)
        if self._path_choice.own_order:
            del given["batch_sampler"]
        return FixedOptions(self._shuffle, self._follows_state, **given)

    @property
    def _to_device(self) -> ToDevice | None:
        return self.device if isinstance(self.device, (ToDevice, type(None))) else ToDevice(self.device)

    @property
    def _workers(self) -> WorkerOptions:
        return WorkerOptions() if self.worker_options is None else self.worker_options

    def _epoch_options(self) -> EpochOptions:
        workers = self._workers
        hang_timeout_s = workers.hang_timeout_s
        if hang_timeout_s is None and self._path_choice.is_fast:
            hang_timeout_s = _HANG_TIMEOUT_S
        return EpochOptions(
            batch_size=self.batch_size,
            num_workers=self.num_workers,
            drop_last=self.drop_last,
            prefetch_factor=self.prefetch_factor,
            prefetch_is_given="prefetch_factor" in self._given or self.prefetch_factor not in (None, DEFAULT_PREFETCH),
            persistent_workers=self.persistent_workers,
            timeout_s=self.timeout,
            hang_timeout_s=hang_timeout_s,
            multiprocessing_context=self.multiprocessing_context,
            memory_limit_bytes=workers.memory_limit_bytes,
            worker_threads=workers.threads if isinstance(workers.threads, int) else 1,
            numa_node=workers.numa_node,
            snapshot_every_n_steps=self.snapshot_every_n_steps,
            rank=self.rank,
            world_size=self.world_size,
            images=self._image_options(),
            device=DeviceOptions(
                target=self._target_device,
                ahead=0 if self._to_device is None else self._to_device.prefetch,
                stream=self._stream,
                put=None if self._static is None else self._static.put,
                pin_memory=self.pin_memory,
            ),
            skip=self.skip,
        )

    def _image_options(self) -> ImageOptions | None:
        """Returns the options of images that samples hold as :class:`feeder.Encoded`; None: there are none."""
        path, threads = self._path_choice, self._workers.threads
        if not path.takes_encoded:
            return None
        return ImageOptions(
            self.backend,
            self.fidelity,
            threads if isinstance(threads, int) else 1,
            self.on_error == "skip",
            path.of_images(self._fixed_options()),
            self._target_device,
        )

    def _serve_metrics(self) -> None:
        wanted = _metrics(self.metrics)
        if wanted.port is not None and self._metrics_page is None:
            self._metrics_page = MetricsPage(self, DataLoader._stage_words, wanted.port, wanted.address)

    def __repr__(self) -> str:
        if "_fast_path" not in vars(self):
            return super().__repr__()
        dataset, path = self.dataset, self._path_choice
        if self.batch_size is None and not path.own_order:
            order = f"batch_sampler={type(self.batch_sampler).__name__}"
        else:
            order = f"batch_size={self.batch_size}, "
            order += f"shuffle={self._shuffle}" if path.own_order else f"sampler={type(self.sampler).__name__}"
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
        given: int | None = vars(self)["seed"]
        return given if self._seed is None else self._seed.value()

    @property
    def collate_fn(self) -> Any:
        """The collate function. Frameworks that make a loader of torch's from this one get it as a
        :class:`feeder.loader.collate_errors.ShownCollate`."""
        function, path = vars(self)["collate_fn"], self._path_choice
        if "_shown_collate" not in vars(self):
            return function
        shown, lost = self._shown_collate, self._lost_in_torchs()
        shown.given = function
        shown.lost = lost
        has_order = path.is_fast or path.is_split_generic
        return shown if lost or (has_order and not self._keeps_order) else function

    @collate_fn.setter
    def collate_fn(self, function: Any) -> None:
        vars(self)["collate_fn"] = given_collate(function)

    def options(self) -> dict[str, Any]:
        """Returns the arguments by which ``feeder.DataLoader(**loader.options())`` makes another loader like this one.

        They are those that were given, as they are now: numbers in place of "auto", what a state says to skip, and the
        seed that was drawn. ``feeder.DataLoader(**(loader.options() | {"batch_size": 32}))`` changes one of them.
        """
        now = {name: vars(self).get(name, value) for name, value in self._given.items()}
        now |= {name: value for name in ("seed", "skip") if (value := getattr(self, name)) is not None}
        return {"dataset": self.dataset, **now}

    def _lost_in_torchs(self) -> list[str]:
        """Returns the names of the given options that a loader of torch's would lack, made from this one."""
        names = [name for name in self._given if name not in _TORCHS and name not in ("seed", "skip")]
        if self.skip:
            names.append("skip")
        if not self._keeps_order:
            names += ["seed"] if "seed" in self._given else []
            names += ["shuffle"] if goes_by_shard(self._given.get("shuffle")) else []
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
        if self._path_choice.is_fast or self._path_choice.is_split_generic:
            warn(
                "Accelerate's prepare() makes one of torch's loaders from this one: the order stays, but not the "
                f"speed, the augmentation by seed and the exact resume. L{way_out}: it splits epochs by rank itself"
            )
        return False

    @property
    def metrics_url(self) -> str | None:
        """URL of the metrics; None if they are not served."""
        return None if self._metrics_page is None else self._metrics_page.url

    def _settle_workers(
        self,
        given: int | str,
        dataset: Any,
        batch_size: int | None,
        batch_sampler: Any,
        collate_fn: Any,
        init: Any,
        context: Any,
    ) -> int:
        """Returns the number of workers, and notes that of their threads: measured ones in place of "auto"."""
        threads = self._workers.threads
        is_fast = self._path_choice.is_fast
        if not isinstance(given, str):
            if threads == "auto":
                self._set_threads(threads_for(given) if is_fast else 1)
            return given
        if given != "auto":
            raise ArgumentError(f"num_workers must be 'auto', or 0 or more, got {given!r}")

        arguments = {"worker_init_fn": init, "multiprocessing_context": context}
        if is_fast:
            names = ["backend", "fidelity", "sizes", "worker_options"]
        else:
            names = [name for name in self._path_choice.of_images(self._fixed_options()) if name != "seed"]
        arguments |= {name: getattr(self, name) for name in names}
        if not is_fast or collate_fn not in DEFAULT_COLLATES:
            arguments["collate_fn"] = collate_fn
        if batch_sampler is not None:
            batch_size = getattr(batch_sampler, "batch_size", None) or 32
        choice = self._workers_choice = choose_workers(
            DataLoader,
            dataset,
            batch_size,
            fast=is_fast,
            device=self._target_device,
            threads=threads if isinstance(threads, int) else None,
            arguments=arguments,
        )
        self._set_threads(choice.worker_threads)
        return choice.num_workers

    def _set_threads(self, threads: int) -> None:
        self.worker_options = dataclasses.replace(self._workers, threads=threads)

    @property
    def _fast(self) -> FastPath | None:
        """The fast path; a copied or unpickled loader makes one of its own."""
        if self._fast_path is None and self._path_choice.is_fast:
            self._fast_path = self._make_fast_path()
        return self._fast_path

    def _make_fast_path(self) -> FastPath:
        assert self._path_choice.source is not None
        assert self._seed is not None
        path = FastPath(
            self._fixed_options(), self._epoch_options(), self._path_choice.source, self.dataset, self._seed
        )
        if path.own_order:
            show_order(self, path.unseeded, self._seed)
        return path

    @property
    def _generic(self) -> GenericPath:
        """The generic path; a copied or unpickled loader makes a split order of its own."""
        if self._path_choice.is_split_generic and self._generic_path.order is None:
            self._generic_path.order = self._make_split_order()
        return self._generic_path

    def _make_split_order(self) -> SplitOrder:
        assert self._seed is not None
        order = order_of(self.dataset, self._seed.known or 0, in_blocks(self._shuffle, self.batch_size))
        show_order(self, order, self._seed)
        return SplitOrder(
            self.dataset,
            order,
            self._shuffle,
            self._follows_state,
            self.batch_size,
            self.drop_last,
            self._epoch_options().ranks,
            self.skip,
            self._seed,
        )

    def _aim(self, told: int) -> None:
        """Sets the epoch as a framework does it, by the sampler. Epochs that are told one after another, and the first
        one after a state was loaded, go on where the loader is: the framework counts its own epochs, in which this
        loader may have had several, or has them counted from 0 again in a resumed run.

        Args:
            told: The framework's epoch.
        """
        due = self._generic.due_epoch if self._fast is None else self._fast.due_epoch
        before, epoch = self._told or (told - 1, told - 1)
        goes_on = told == before + 1 or (told == before and due == epoch)
        epoch = max(due, epoch + told - before) if goes_on else told
        self._told = told, epoch
        if self._fast is None:
            self._generic.aim(self, epoch)
        elif (iterator := self._fast.aim(epoch)) is not None:
            self._show_progress(iterator)

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
        order, sampler = self._generic.order, super()._index_sampler
        if order is not None:
            return order
        if self._path_choice.takes_encoded:
            return DrawnSampler(self._without_skipped(sampler), self._draws)
        return self._without_skipped(sampler)

    def _without_skipped(self, sampler: Any) -> Any:
        if self.skip and self.batch_sampler is not None and not isinstance(sampler, BatchSampler):
            raise ArgumentError(
                "skip= is for the loader's own batches, and a derived class has put another batch sampler in their "
                f"place, {type(sampler).__name__}: leave the samples out of the dataset, by a Subset"
            )
        return Kept(sampler, frozenset(skipped_indices(self.skip, self.dataset).tolist())) if self.skip else sampler

    @functools.cached_property
    def _stream(self) -> CopyStream:
        """The stream of the copies; the same for all iterators."""
        return CopyStream(self._target_device)

    @functools.cached_property
    def _static(self) -> StaticBuffers | None:
        """The addresses of ``ToDevice(static_buffers=True)``; the same for all iterators."""
        is_static = self._to_device is not None and self._to_device.static_buffers
        return StaticBuffers(self.batch_size) if is_static else None

    def __setattr__(self, name: str, value: Any) -> None:
        if "_fast_path" in self.__dict__ and self._is_fixed(name, value):
            raise ArgumentError(f"{name} can't be changed after the loader was made; give it to another one")
        if name == "skip":
            value = Skip.of(value)
            path: FastPath | None = self.__dict__.get("_fast_path")
            if path is not None:
                path.skip = value
            elif "_generic_path" in self.__dict__ and not self._path_choice.is_fast:
                self._check_skip(value)
                if self._generic_path.order is not None:
                    self._generic_path.order.skip = value
        super().__setattr__(name, value)

    def _check_skip(self, skip: Skip | None) -> None:
        """Raises ArgumentError if the loader, on torch's path, can't leave something out."""
        path = self._path_choice
        if skip and self.on_error == "skip":
            raise ArgumentError(
                "on_error='skip' together with skip= is for feeder's datasets: here a bad sample might get one that is "
                "left out in its place. Leave the samples out by a Subset"
            )
        check_torchs_skip(skip, self.dataset, own_order=path.own_order, has_epochs=path.is_split_generic)

    def _is_fixed(self, name: str, value: Any) -> bool:
        """Returns True if an attribute can't be changed any more, or not to this."""
        if name == "batch_sampler" and self._path_choice.own_order and self._repeats_own(value):
            return False
        if not self._path_choice.is_fast:
            return name in ("seed", "device")
        return name in ("sampler", "device") or (name in _FIXED and name != "worker_init_fn")

    def __getstate__(self) -> dict[str, Any]:
        own: dict[str, Any] = {"_fast_path": None, "_generic_path": GenericPath(self.num_workers)}
        own |= {"_iterator": None, "_metrics_page": None, "_seed": copy.copy(self._seed)}
        own["_draws"] = copy.copy(self._draws)
        return {k: v for k, v in self.__dict__.items() if k not in ("_stream", "_static")} | own

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        follow_sampler(self)

    def __iter__(self) -> Any:
        return self._get_iterator()

    def _get_iterator(self) -> Any:
        """Returns the iterator of the next epoch; classes that derive from torch's loader call or replace this method,
        and :meth:`__iter__` calls it."""
        return _Repeated(self._begin_epoch) if self._is_repeated() else self._begin_epoch()

    def _begin_epoch(self) -> Any:
        self._serve_metrics()
        options = self._epoch_options()
        with explained():
            iterator: Any = (
                self._generic.iterate(self, options) if self._fast is None else self._fast.iterate(options, owner=self)
            )
        self._show_progress(iterator)
        return cast("Iterator[Any]", iterator)

    def _is_repeated(self) -> bool:
        """Returns True if a derived class has put a batch sampler without an end around the loader's own, as
        ultralytics' InfiniteDataLoader does.

        Raises:
            ArgumentError: for any other batch sampler in feeder's own order, which has no effect.
        """
        batches, path = self.batch_sampler, self._path_choice
        has_order = path.own_order and (path.is_fast or path.is_split_generic)
        if not has_order or batches is None or type(batches) is BatchSampler:
            return False
        if self._repeats_own(batches):
            return True
        raise ArgumentError("batch_sampler can't be changed after the loader was made; give it to another one")

    def _repeats_own(self, batches: Any) -> bool:
        """Returns True for a batch sampler without an end around the loader's own."""
        own = getattr(batches, "sampler", None)
        return type(own) is BatchSampler and own.sampler is self.sampler and not hasattr(batches, "__len__")

    def _show_progress(self, iterator: Any) -> None:
        """Gives an iterator that begins an epoch a view, if progress is to be seen here."""
        if not _metrics(self.metrics).progress or current_ranks(self._epoch_options().ranks)[0] != 0:
            return
        if iterator.view is not None:
            iterator.view.end()
        # The view must not keep the loader alive; and only an iterator of the fast path does.
        if self._fast is None:
            iterator.view = LiveView(self._generic_path.current_stats(), _length(iterator), "loader")
        else:
            me = weakref.proxy(self)
            iterator.view = LiveView(lambda: me.stats(), _length(iterator), f"epoch {iterator.place().epoch}")

    def __len__(self) -> int:
        """Batches in a whole epoch, on this rank; what is left after a resume is the iterator's length. With spans that
        are skipped it is the epoch that an iterator is in, or the next."""
        if self._fast is None:
            return super().__len__()
        if not self._fast.own_order:
            return len(self.batch_sampler)  # type: ignore[arg-type]
        return len(self._fast.split(self._epoch_options(), Place(self._fast.epoch)))

    def set_epoch(self, epoch: int) -> None:
        """Sets the epoch of the next iterator; those after it go on from there.

        Without feeder's own order the epoch is passed on to whichever of ``sampler``, ``batch_sampler``,
        ``batch_sampler.sampler`` and ``dataset`` has a ``set_epoch`` of its own.

        Args:
            epoch: 0 to 2**32-1. After :meth:`load_state_dict` the epoch that was loaded keeps the place in it.
        """
        self._told = _NOTHING_TOLD
        if self._fast is not None:
            self._fast.set_epoch(epoch)
            if not self._fast.own_order:
                tell_epoch(self, epoch)
        elif self._generic.order is None:
            self._draws.next_epoch = epoch
            tell_epoch(self, epoch)
        else:
            self._generic.set_epoch(self, epoch)
            if set_epoch := method_of(self.dataset, "set_epoch", 1):
                set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Returns the place of the iteration, not counting batches that were made ahead and not handed out. After a
        ``break`` that is the place of the break, although the next iterator goes on to the next epoch.

        On the fast path the state is a few numbers, fit for JSON and the same on every rank; with an explicit sampler
        also the state of its generator, or its own, and a digest of the samples handed out, both of this rank. On
        torch's path it is the state of torchdata's StatefulDataLoader: the sampler's place, from which any rank can go
        on with feeder's own order, and the states of dataset and iterators.

        Warns:
            UserWarning: once, if an explicit sampler draws from a global random state, which is not saved: only the
                current epoch can be resumed exactly.
        """
        if self._fast is not None:
            return self._fast.state_dict()
        state = self._generic.state_dict(self, self._epoch_options())
        return state | {SKIP_KEY: self.skip.state()} if self.skip else state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Goes on where a state was taken; world size, batch size and number of workers may differ.

        Raises:
            ArgumentError: if the state is of another dataset, order, seed or backend. With the next batch: if an
                explicit sampler gives other samples than were handed out; on torch's path, if workers have states and
                their number differs.
        """
        self._told = None
        if self._fast is None:
            self._generic.load_state_dict(self, state_dict)
            if self.skip is None:
                self.skip = Skip.of_state(state_dict.get(SKIP_KEY))
            if self._generic.order is not None and (self._follows_state or isinstance(self._shuffle, Lanes)):
                change_order(self, self._generic.order.order())
        else:
            self._fast.load_state_dict(state_dict)
            object.__setattr__(self, "skip", self._fast.skip)
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
        return samples_of(self._run("samples_of"), epoch, step, rank)

    def replay(self, epoch: int, step: int, *, rank: int | None = None) -> ReplayedBatch:
        """Makes a batch of this run again, in this process; the iteration goes on as if it had not been made.

        Args and errors are those of :meth:`samples_of`.

        Returns:
            The batch as the loader gave it, its samples, and the substitutions of bad ones.

        Raises:
            DecodeError: if a sample is bad and ``on_error`` is "raise".
        """
        return replay(self._run("replay"), epoch, step, rank)

    def steps_of(self, epoch: int) -> int:
        """Returns the number of batches that each rank has in an epoch of this run.

        Args:
            epoch: The epoch.

        Raises:
            ArgumentError: as :meth:`samples_of` does, if the epoch's batches are not known.
        """
        return self._run("steps_of").steps(epoch)

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
        return self._run("span_of").span(epoch, first_step, end_step)

    def _run(self, name: str) -> FastPath:
        """Returns the fast path, which alone knows the batches of a run."""
        if self._fast is None:
            reason = self._path_choice.reason or "the dataset is not feeder's"
            raise ArgumentError(f"{name}() is for the fast path, and this loader goes without it: {reason}")
        return self._fast

    def stats(self) -> dict[str, Any]:
        """Returns the time that each stage took so far, and the lists of bad samples and replaced workers.

        Times are nanoseconds, shares 0-1. ``stages`` has, for each stage that has run, ``count`` (of its runs),
        ``bytes``, ``total_ns`` (summed over workers and threads), ``mean_ns``, ``p50_ns``, ``p90_ns``, ``p99_ns``
        (within an eighth) and ``max_ns``:

        - ``read``: the encoded bytes of a part of a batch (up to 64 samples; without workers the whole batch);
        - ``draw``: the augmentation's parameters of a part;
        - ``cut``: a part's images cut to their crops before they are decoded elsewhere;
        - ``decode``, ``transform``: of an image; crop, resize and all ops are transform. Where the trainer decodes,
          decode is of a batch, in the caller's time;
        - ``fetch``: a batch from a dataset on torch's path, with all that the dataset does;
        - ``collate``: a batch from its samples, into the slot where torch's default function collates;
        - ``write``: pixels of an image into the slot, or the rest of a batch after collating, and the message;
        - ``wait_slot``: a worker waits for something to do: for a free slot, or for the next epoch;
        - ``wait_batch``: the caller waits for a batch of the workers;
        - ``copy``: a batch to the device, as timed there on a GPU;
        - ``consumer``: the caller is busy with a batch.

        Returns:
            For every loader:

            - ``path``: see :attr:`path`; ``path_reason``: why a feeder dataset goes without the fast path, and the way
              out; else None;
            - ``stages``: see above; ``fused``: by stage without a time of its own the one whose time contains it;
            - ``workers``: for each worker ``worker`` (its number), ``respawns`` and its ``stages``;
            - ``respawns``: number of workers that were replaced; ``replaced_workers``: each of these, with
              ``worker``, ``pid``, ``cause`` and, for feeder's datasets, ``keys`` of the samples that it was making;
            - ``slots``: number of slots in all (``total``), held by the caller (``held``), being filled (``making``)
              and full (``ready``, about); all 0 between epochs;
            - ``batches``, ``samples``: handed out; ``elapsed_ns``: from asking for an epoch to getting its last batch;
              ``waited_ns``: of that, waiting for workers; ``busy_ns``: of all workers, or of the caller without any;
            - ``waited_share``: of the caller's time; ``busy_share``: of the workers' time; ``bottleneck``: see
              :func:`feeder.loader.observe.stats.verdict`;
            - ``clipped``: number of images of feeder's datasets that lost range, because their samples have more than
              8 bits: floats, and integers outside 0-255; ``slow``: number of their JPEGs of a kind that the backend's
              usual way does not take (odd sampling factors, CMYK), which a slower one decoded;
            - ``skipped``: number of bad samples that were replaced; ``substitutions``: the last 10,000 of these, see
              ``feeder.loader.fast.part_report.Substitution`` and ``feeder.dataset.decoding.Replaced``;
            - ``padded``, with feeder's own order: ids of the samples that were repeated to fill the last batch of an
              epoch on all ranks.

            For remote sets also:

            - ``remote``: counts of their fetchers, for all ranks and jobs on this machine together, since they were
              started; see :data:`feeder.loader.observe.remote_counts.REMOTE_COUNTS`.

            On the fast path also:

            - ``backend``: the decode backend's name;
            - ``parts``, ``read_ns``, ``decode_ns`` (with drawing and transforming), ``encoded_bytes``: sums over parts.
        """
        stats = self._generic_path.stats() if self._fast is None else self._fast.stats()
        stats |= {"path": self.path, "path_reason": self._path_choice.reason}
        remote = remote_counts(self.dataset)
        if remote is not None:
            stats["remote"] = remote
        choice = self._workers_choice
        return stats if choice is None else stats | {"auto": dataclasses.asdict(choice)}

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
            if self._generic_path.order is not None:
                self._generic_path.order.close()
        finally:
            self._generic_path.close(self)
            page, self._metrics_page = self._metrics_page, None
            if page is not None:
                page.close()

    def _stage_words(self) -> npt.NDArray[np.int64]:
        """The meters behind :meth:`stats`: int64 [K, METER_WORDS], see :mod:`feeder.loader.observe.meter`."""
        return self._generic_path.meters.words() if self._fast is None else self._fast.stage_words()


_DEFAULTS = {
    name: p.default for name, p in inspect.signature(DataLoader.__init__).parameters.items() if p.default is not p.empty
}
_TORCHS = frozenset(inspect.signature(torch.utils.data.DataLoader.__init__).parameters)


def _is_given(name: str, value: Any) -> bool:
    """Returns True for a value other than the argument's default."""
    return type(value) is not type(_DEFAULTS[name]) or bool(value != _DEFAULTS[name])


def _metrics(given: int | Metrics | None) -> Metrics:
    """Returns the options of a loader's argument ``metrics``."""
    return given if isinstance(given, Metrics) else Metrics(given)


def _length(iterator: Any) -> int | None:
    try:
        return len(iterator)
    except TypeError:  # of an iterable dataset without a length
        return None


class _Repeated:
    """The batches of one epoch after the other, without an end.

    Args:
        begin: Returns the next epoch's iterator.
    """

    def __init__(self, begin: Callable[[], Any]) -> None:
        self._begin = begin
        self._iterator = begin()

    def __iter__(self) -> _Repeated:
        return self

    def __next__(self) -> Any:
        try:
            return next(self._iterator)
        except StopIteration:
            self._iterator = self._begin()
            return next(self._iterator)
