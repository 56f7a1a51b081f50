"""Work, decoder and engine of a loader, made from its options."""

from __future__ import annotations

import os
import pickle
from typing import Any

import torch

from feeder.dataset.base import FeederDataset
from feeder.dataset.further_images import further_recipes, images_in
from feeder.dataset.mixture import Mixture
from feeder.dataset.subset_reader import leaves
from feeder.dataset.target_values import in_padded_batches
from feeder.decoders.decoder import Decoder
from feeder.decoders.device.fused import divide_recipe
from feeder.decoders.registry import get_decoder
from feeder.decoders.staged.capacity import plan_capacity, planning_sample
from feeder.decoders.staged.trainer_decoder import TrainerDecoder
from feeder.errors import ArgumentError
from feeder.loader.device.page_lock import slot_guard
from feeder.loader.fast.batch_sizes import BatchSizes
from feeder.loader.fast.collated import CollatedWork, slot_bytes_per_sample
from feeder.loader.fast.engine import Engine, EngineOptions
from feeder.loader.fast.mixed_work import MixedWork
from feeder.loader.fast.part_sizes import part_rows
from feeder.loader.fast.sample_maker import Work
from feeder.loader.options import SAMPLER_OF_A_FRAMEWORK, LoaderOptions
from feeder.loader.service_options import DEFAULT_TIMEOUT_S, ServiceOptions, job_name
from feeder.loader.slots.image_slots import HELD_BATCHES
from feeder.loader.workers.seeding import WorkerInit
from feeder.order.sample_order import goes_by_shard
from feeder.system.numa import cpus_near, gpu_cpus, numa_nodes

_PREFETCH = 2  # batches a worker, as torch has it
_SERVICE_WORKERS = 4  # as many batches ahead as for so many workers more


def make_work(options: LoaderOptions, source: FeederDataset, sizes: BatchSizes) -> tuple[Work, Decoder]:
    """Returns the work on a dataset's samples, and the decoder: a TrainerDecoder decodes what the work stages.

    Raises:
        ArgumentError: if options do not go together.
        BackendError: if the backend is missing or can't run the recipe.
    """
    target, collate_fn, recipe = options.device.target, options.collate_fn, source.recipe
    largest = sizes.largest()

    # A collate_fn takes finished samples, in workers. Batches of different sizes "auto" leaves to workers, too, and
    # all that a service makes, and mixtures.
    in_workers = collate_fn is not None or (
        (sizes.varies or options.service is not None or isinstance(source, Mixture)) and options.backend == "auto"
    )
    parts = source.sources if isinstance(source, Mixture) else (source,)
    recipes = [each for one in parts for each in one.recipe.at(largest, 0).views]
    decoder = get_decoder(
        options.backend,
        (*recipes, *(each.at(largest, 0) for each in further_recipes(images_in(source.extras)))),
        threads=max(1, options.num_workers),
        fidelity=options.fidelity,
        # Without a device even a backend that decodes in the trainer stays on the CPU.
        device="cpu" if target is None or in_workers else str(target),
    )

    _check_sizes(options, sizes)
    if collate_fn is None:
        _check_buffers(options, source)

    extras = source.extras if options.pad is None else in_padded_batches(source.extras)
    what = (source.reader, recipe, decoder.name, extras)
    how: dict[str, Any] = {
        "seed": sizes.seed,
        "skip": options.on_error == "skip",
        "threads": options.workers.threads_now,
        "fidelity": options.fidelity,
    }

    if isinstance(source, Mixture):
        works = tuple(Work(one.reader, one.recipe, decoder.name, one.extras, **how) for one in source.sources)
        mixed = MixedWork(*what, **how, names=source.names, works=works)
        if isinstance(decoder, TrainerDecoder):
            _check_rest(mixed, decoder)
            _stage(mixed, decoder, options, sizes)
        return mixed, decoder

    if collate_fn is not None:
        _check_collating(options, decoder)
        collated = CollatedWork(*what, **how, collate_fn=collate_fn)
        collated.share_bytes = slot_bytes_per_sample(collated) if options.num_workers else 0
        return collated, decoder

    work = Work(*what, **how, table=sizes.table(), pad=options.pad, largest=largest, groups=sizes.groups)
    if isinstance(decoder, TrainerDecoder):
        _stage(work, decoder, options, sizes)
    elif target is not None and options.pad is None:
        work.divided = sizes.divided() if sizes.varies else tuple(divide_recipe(each) for each in work.recipes)
    return work, decoder


def _check_rest(work: MixedWork, decoder: TrainerDecoder) -> None:
    """Refuses sources whose images are finished in another way than those of the first, with which they are
    finished."""
    rests = [[(each.base_size, each.rest, repr(each.affine)) for each in one.recipe.views] for one in work.works]
    for name, rest in zip(work.names, rests, strict=True):
        if rest != rests[0]:
            raise ArgumentError(
                f"backend={decoder.name!r} finishes images of all sources alike, and those of {work.names[0]!r} and "
                f"{name!r} have other ops behind crop, resize and flip: give both the same there, or backend='cpu'"
            )


def _check_buffers(options: LoaderOptions, source: FeederDataset) -> None:
    """Refuses values of differing shapes where batches stay at their addresses."""
    ragged = next((extra.name for extra in source.extras if extra.is_ragged), None)
    if options.device.put is not None and ragged is not None:
        raise ArgumentError(
            f"static_buffers=True keeps tensors of one shape at their addresses, and each sample has {ragged!r} of "
            "another: leave one of them out, or give a collate_fn that pads to one shape"
        )


def _stage(work: Work, decoder: TrainerDecoder, options: LoaderOptions, sizes: BatchSizes) -> None:
    """Makes workers stage images for a decoder in this process."""
    reader = work.reader
    for size, epoch in sizes.all() if sizes.varies else ():
        for recipe in work.recipes_at(size, epoch):
            decoder.check(recipe)
    rows = options.batch_size or 1
    parts = part_rows(rows, options.num_workers) if options.num_workers else [(0, rows)]
    found = reader.peek(planning_sample(len(reader), in_shards=len(reader.shard_sizes()) > 0))
    for view_slice in work.views_of:
        views = [recipe.output_size or work.largest for recipe in work.recipes[view_slice]]
        largest = [size for size in views if size is not None]
        assert len(largest) == len(views)
        capacity = plan_capacity(found, largest, min(rows for _, rows in parts), plans=decoder.stager.plans)
        work.share_bytes = max(work.share_bytes, capacity.share_bytes)
    decoder.prepare(rows, capacity.outlier_pixels)  # the same for every view
    work.stager = decoder.stager.with_threads(options.workers.threads_now)


def _check_sizes(options: LoaderOptions, sizes: BatchSizes) -> None:
    """Refuses what does not go together with batches of different sizes."""
    if options.device.put is not None and sizes.varies:
        raise ArgumentError(
            "static_buffers=True keeps batches of one size at their addresses, and sizes= and T.ByEpoch make several "
            "sizes: leave one of them out"
        )
    if options.sizes is None:
        return
    name = f"sizes={type(options.sizes).__name__}(...)"
    if options.collate_fn is not None:
        raise ArgumentError(
            f"{name} is for batches as feeder collates them, and there is a collate_fn: leave one of them out"
        )
    groups = options.buckets is not None or (options.pad is not None and options.pad.group_by_aspect)
    if groups and options.batch_sampler is not None:
        raise ArgumentError(
            f"{name} decides about the order, and so does a sampler: leave one of them out. {SAMPLER_OF_A_FRAMEWORK}"
        )
    if groups and goes_by_shard(options.shuffle):
        kind = type(options.shuffle).__name__
        raise ArgumentError(f"{name} shuffles whole buckets: give shuffle='full' in place of {kind}(...)")
    if options.pad is not None and options.mix is not None:
        raise ArgumentError(
            "mix= mixes images of one size, and PadToBatch is for images of different sizes: leave one out"
        )


def _check_collating(options: LoaderOptions, decoder: Decoder) -> None:
    """Refuses steps that follow feeder's own collating, where a collate_fn replaces it."""
    if options.mix is not None:
        raise ArgumentError(
            "mix= mixes images and labels as feeder collates them, and there is a collate_fn: leave one of them out, "
            "or mix in the collate_fn"
        )
    if options.channels_last:
        raise ArgumentError(
            "memory_format= is for images as feeder collates them, and there is a collate_fn: leave it out, and "
            "return images.to(memory_format=torch.channels_last) from the collate_fn"
        )
    if isinstance(decoder, TrainerDecoder):
        raise ArgumentError(
            f"backend {decoder.name!r} decodes in this process, and a collate_fn takes finished samples in workers: "
            "set backend='cpu', or leave the collate_fn out"
        )


def make_engine(
    work: Work,
    options: LoaderOptions,
    init: WorkerInit | None,
    service: ServiceOptions | None = None,
) -> Engine:
    """Returns a new engine.

    Args:
        work: The work of its workers.
        options: The loader's options.
        init: Called in every new worker.
        service: The input service that parts are made by, too.
    """
    context = options.multiprocessing_context
    if context is None and (init is not None or not _travels(work)):
        context = _torchs_context(work)
    assert options.workers.hang_timeout_s is not None

    workers = 0 if service is not None and service.only else options.num_workers
    held, guard = HELD_BATCHES, None
    if work.stager is not None:
        # One more is started ahead. On a GPU, DALI keeps it until the next but one is submitted, but copies it to
        # page-locked memory of its own. Plans are copied to the GPU from the slots.
        held += 1
        if work.stager.plans:
            guard = slot_guard(options.device)
    else:
        held += options.device.ahead if options.device.target is not None else 0
        guard = slot_guard(options.device)

    # Where the caller sets neither, batches are bounded by what workers need.
    is_given = options.prefetch_is_given or options.workers.memory_limit_bytes is not None
    ahead = options.ahead
    if service is not None:  # free slots are the credit of servers
        ahead = (options.prefetch_factor or _PREFETCH) * (workers + _SERVICE_WORKERS)

    persistent = options.persistent_workers or service is not None  # a relay has to find its servers anew
    return Engine(
        work,
        EngineOptions(
            workers,
            options.workers.hang_timeout_s,
            context,
            init,
            service,
            worker_cpus(options),
            ahead=ahead,
            ahead_is_given=is_given,
            persistent=persistent,
            memory_limit_bytes=options.workers.memory_limit_bytes,
            held=held,
            guard=guard,
        ),
    )


def worker_cpus(options: LoaderOptions) -> frozenset[int] | None:
    """Returns the CPUs that workers stay on, as ``numa_node`` has it; None: any."""
    node, target, allowed = options.workers.numa_node, options.device.target, os.sched_getaffinity(0)
    if isinstance(node, int):
        return cpus_near(node, None, allowed)
    if node is None or target is None or target.type != "cuda" or len(numa_nodes()) < 2:
        return None
    return cpus_near(None, gpu_cpus(torch, target.index), allowed)


def make_service(options: LoaderOptions, work: Work) -> ServiceOptions | None:
    """Returns the options of the input service; None without one.

    Raises:
        ArgumentError: if the work can't be made on another node.
    """
    if options.service is None:
        return None
    from feeder.loader.fast.work_json import work_data  # few loaders need it

    work_data(work)
    name, only = options.service.name, options.service.only
    return ServiceOptions(
        name, only, options.timeout or DEFAULT_TIMEOUT_S, 0 if only else options.num_workers, job_name()
    )


def _torchs_context(work: Work) -> Any:
    """Returns the context that torch's loader would start workers with; fork, if the work can't be pickled."""
    context = torch.multiprocessing.get_context()
    if context.get_start_method() != "fork":
        try:
            pickle.dumps(work)
        except (AttributeError, TypeError, pickle.PicklingError):  # a lambda or a local function
            return torch.multiprocessing.get_context("fork")
    return context


def _travels(work: Work) -> bool:
    """Returns True if workers that never import the caller's script can unpickle the work."""
    try:
        kinds = [getattr(reader, "kind", None) for reader in leaves(work.reader)]
        what = [(each.recipe, each.extras) for each in work.by_source]
        return b"__main__" not in pickle.dumps((what, kinds))
    except (AttributeError, TypeError, pickle.PicklingError):  # a lambda or a local function
        return False
