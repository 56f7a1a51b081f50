"""The fast path of a loader: order, ledger, state, and what its iterators share."""

from __future__ import annotations

import collections
import dataclasses
import operator
import os
import pickle
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import distributed

from feeder.dataset.base import FeederDataset
from feeder.dataset.reader import Reader
from feeder.dataset.subset import as_feeder, joined_in
from feeder.dataset.subset_reader import PartReader
from feeder.decode.decoder import Decoder, TrainerDecoder
from feeder.decode.device.fused import split_for_device
from feeder.decode.image_header import clipped_warning
from feeder.decode.registry import get_decoder
from feeder.decode.staged.capacity import plan_capacity, planning_sample
from feeder.errors import ArgumentError
from feeder.loader.agreement import Agreement, recipe_digest
from feeder.loader.device.page_lock import slot_guard
from feeder.loader.fast.batches import HELD_BATCHES, Finished, Request, part_rows
from feeder.loader.fast.collated import CollatedWork, slot_bytes_per_sample
from feeder.loader.fast.engine import Engine, EngineOptions
from feeder.loader.fast.finishing import Completion
from feeder.loader.fast.iterator import FastIterator, Place, Progress
from feeder.loader.fast.part_report import Substitution
from feeder.loader.fast.pool import PoolOptions
from feeder.loader.fast.replay import Replay, check_replay_state
from feeder.loader.fast.sample_maker import Work
from feeder.loader.fast.trainer_decode import Decoded
from feeder.loader.group_store import is_initialized
from feeder.loader.observe.meter import Meter
from feeder.loader.observe.stats import fused_stages, stage_table, verdict, worker_tables
from feeder.loader.samplers import warn_of_split
from feeder.loader.workers.seeding import introduce
from feeder.order.epoch import Order, Window
from feeder.order.split import Split, ordered_batches
from feeder.system.callers import warn
from feeder.transforms.mixing import check_mix

if TYPE_CHECKING:
    from feeder.loader.dataloader import DataLoader

__all__ = ["FastPath", "current_ranks"]

_STATE_VERSION = 1
_LEDGER_ENTRIES = 10_000
_NO_METERS = dict.fromkeys(("parts", "read_ns", "decode_ns", "busy_ns", "encoded_bytes"), 0)


class FastPath:
    """What the iterators of one loader share.

    Args:
        loader: The loader; only looked at while it lives.
        dataset: Its dataset.
        shuffle: How to shuffle.
        own_order: Whether feeder's order and rank split hold, and no explicit sampler.
    """

    def __init__(
        self, loader: DataLoader[Any], dataset: FeederDataset, shuffle: bool | Window, own_order: bool
    ) -> None:
        self.own_order = own_order
        init = loader.worker_init_fn
        self.collates = loader.collate_fn is not torch.utils.data.default_collate
        self._worker_init: _WorkerInit | None = None
        if init is not None or self.collates:
            self._worker_init = _WorkerInit(init, loader.num_workers, loader.dataset)
        self.dataset = dataset
        self._loader: DataLoader[Any] = weakref.proxy(loader)
        reader = dataset.reader
        sizes = reader.shard_sizes() if isinstance(shuffle, Window) else ()
        seed = loader.seed or 0
        self.order = Order(len(dataset), seed, shuffle, sizes)
        decoder = _decoder(loader, dataset)
        self.backend, self._fused = decoder.name, decoder.fused
        skip = loader.on_error == "skip"
        threads = loader.worker_threads
        fields, fidelity = dataset.fields, loader.fidelity
        what = reader, dataset.recipe, self.backend, fields, seed, skip, threads, fidelity
        self.work = CollatedWork(*what, collate_fn=loader.collate_fn) if self.collates else Work(*what)
        self.decoder: TrainerDecoder | None = None
        if self.collates:
            _check_collating(loader, decoder)
            self.work.share_bytes = slot_bytes_per_sample(self.work) if loader.num_workers else 0
        elif isinstance(decoder, TrainerDecoder):
            self.decoder = decoder
            self._stage_for(decoder)
        elif loader.target_device is not None:
            self.work.split = split_for_device(dataset.recipe)
        self.is_on_device = loader.target_device is not None
        self.completion = Completion(self.work, loader.target_device, loader.channels_last, check_mix(loader.mix))
        self._warned_of_clipped = False
        self.substitutions: collections.deque[Substitution] = collections.deque(maxlen=_LEDGER_ENTRIES)
        self.padded: list[int] = []
        self.counts = {"batches": 0, "samples": 0, "skipped": 0, "waited_ns": 0, "elapsed_ns": 0}
        self.counts |= {"clipped": 0, "slow": 0}
        self.meters_here: dict[str, int] = {}
        self.meter = Meter()
        self.progress: Progress | None = None
        self._next = Place()
        self._iterator: weakref.ref[FastIterator] | None = None
        self._iterators: weakref.WeakSet[FastIterator] = weakref.WeakSet()
        self._engine: Engine | None = None
        self._fingerprint: str | None = None
        self._has_warned = self._has_told = False
        self._agreement = Agreement()
        self._left_after: int | None = None

    def _stage_for(self, decoder: TrainerDecoder) -> None:
        """Has workers stage images for a decoder in this process."""
        loader, recipe = self._loader, self.dataset.recipe
        assert recipe.output_size is not None
        rows = loader.batch_size or 1
        parts = part_rows(rows, loader.num_workers) if loader.num_workers else [(0, rows)]
        reader = self.dataset.reader
        found = reader.peek(planning_sample(len(reader), in_shards=bool(reader.shard_sizes())))
        capacity = plan_capacity(found, recipe.output_size, min(rows for _, rows in parts))
        decoder.prepare(rows, capacity.preallocate, capacity.outlier_pixels)
        self.work.stager = decoder.stager.with_threads(loader.worker_threads)
        self.work.share_bytes = capacity.share_bytes

    def split(self, start: int) -> Split:
        """This rank's part of an epoch, from a position on."""
        loader, (rank, world_size) = self._loader, current_ranks(self._loader)
        assert loader.batch_size is not None
        return Split(len(self.dataset), loader.batch_size, rank, world_size, loader.drop_last, start)

    def iterate(self, loader: DataLoader[Any]) -> FastIterator:
        """The iterator over the next epoch, or over the rest of the one that was loaded; it keeps the loader alive."""
        self._refuse_a_changed_subset()
        place, progress = self._next, self.progress
        split = self.split(place.start) if self.own_order else None
        self._tell_of_split(split)
        self._left_after = progress.steps if progress is not None and progress.is_midway and progress.steps else None
        self._next = Place(place.epoch + 1)
        try:
            iterator = FastIterator(self, loader, place, split)
        except BaseException:  # nothing of it was handed out: the next one starts there
            self._next, self.progress = place, progress
            raise
        self._iterator = weakref.ref(iterator)
        self._iterators.add(iterator)
        return iterator

    def _tell_of_split(self, split: Split | None) -> None:
        """Says once that an epoch in stored order, as of an evaluation, is split by rank where torch's would not be."""
        is_told = self._has_told or self._loader.rank is not None or self.order.shuffle is not False
        if split is None or split.world_size == 1 or is_told:
            return
        self._has_told = True
        warn_of_split(split)

    def agree(self, progress: Progress) -> None:
        """Compares an epoch that all ranks split, with its first batch, and looks for differences with its second and
        last; see :mod:`feeder.loader.agreement`."""
        split, steps = progress.split, progress.steps
        if split is None or steps not in (0, 1, len(split) - 1) or not self._is_shared():
            return
        if steps:
            self._agreement.check(steps)
            return
        loader = self._loader
        identity = self._identity()
        values = {
            "dataset": f"{identity.pop('samples')} samples, fingerprint {identity.pop('fingerprint')}",
            **identity,
            "batch_size": loader.batch_size,
            "drop_last": loader.drop_last,
            "recipe": recipe_digest(self.dataset.recipe),
            "epoch": progress.place.epoch,
            "consumed": progress.place.start,
        }
        self._agreement.begin(split.rank, values, self._left_after)

    def _is_shared(self) -> bool:
        """Whether ranks of torch.distributed split the loader's epochs."""
        return self._loader.rank is None and is_initialized() and distributed.get_world_size() > 1

    def _refuse_a_changed_subset(self) -> None:
        """Torch's loader would take its new indices or dataset; here order and workers rest on those that it had."""
        here, kind = self.dataset, type(self._loader.dataset).__name__
        now = as_feeder(self._loader.dataset, stored_order=isinstance(self.order.shuffle, Window))
        if now is here:
            return
        changed = f"of the {kind} were changed after the loader was made; make another loader"
        if now is None:
            raise ArgumentError(f"the samples {changed}")
        ids, before = _ids(now.reader), _ids(here.reader)
        if ids is not before and (ids is None or before is None or not np.array_equal(ids, before)):
            raise ArgumentError(f"the indices {changed}")
        is_same = list(map(id, joined_in(now.reader))) == list(map(id, joined_in(here.reader)))
        if not is_same or now.recipe != here.recipe or now.fields != here.fields:
            raise ArgumentError(f"the datasets {changed}")

    def set_epoch(self, epoch: int) -> None:
        """See :meth:`feeder.DataLoader.set_epoch`."""
        self._agreement.epoch_was_set()
        self._set_epoch(epoch)

    def _set_epoch(self, epoch: int) -> None:
        epoch = operator.index(epoch)  # of a tensor or numpy's, too: states are JSON
        if not 0 <= epoch < 1 << 32:
            raise ArgumentError(f"epoch must be 0 to 2**32-1, got {epoch}")
        if epoch != self._next.epoch:
            self._next = Place(epoch)
        if self._iterator is None or self._iterator() is None:
            self.progress = None  # of a loop that was broken off, and is not wanted any more

    def aim(self, epoch: int) -> None:
        """Sets the epoch as a framework does it, which may have made the iterator already: of the one that has given
        nothing yet, else of the next."""
        self._agreement.epoch_was_set()
        iterator = self._iterator() if self._iterator is not None else None
        if iterator is None or not iterator.is_untouched:
            self._set_epoch(epoch)
        elif iterator.place().epoch != epoch:
            self._set_epoch(epoch)
            place, self._next = self._next, Place(epoch + 1)
            iterator.begin(place, self.split(0))

    def state_dict(self) -> dict[str, Any]:
        """See :meth:`feeder.DataLoader.state_dict`."""
        iterator = self._iterator() if self._iterator is not None else None
        progress = self.progress
        goes_on = progress is not None and (progress.is_midway if iterator is None else not progress.exhausted)
        place = progress.now() if progress is not None and goes_on else self._next
        state = {"version": _STATE_VERSION, "epoch": place.epoch, **self._identity()}
        if self.own_order:
            return state | {"consumed": place.start}
        replay = progress.replay if progress is not None else None
        if replay is not None and replay.drawn and not self._has_warned:
            self._has_warned = True
            warn(
                f"{replay.name} draws the order of each epoch from {' and '.join(replay.drawn)}'s global random state, "
                "which is not saved: a resumed run finishes the epoch as it would have been, but its next ones are in "
                "another order. Give the sampler a generator: generator=torch.Generator().manual_seed(0)",
            )
        if replay is None or not goes_on:
            replay = self.replay(place)
        assert replay is not None
        return state | {"batches": place.start, "sampler": replay.state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See :meth:`feeder.DataLoader.load_state_dict`."""
        if not isinstance(state, Mapping):
            raise ArgumentError(f"expected a state that state_dict() gave, a dict, got {state!r}")
        version = state.get("version")
        if version != _STATE_VERSION:
            raise ArgumentError(f"expected a state of version {_STATE_VERSION} of feeder's fast path, got {version!r}")
        for name, value in self._identity().items():
            if state.get(name) != value:
                raise ArgumentError(
                    f"this state does not fit: its {name} is {state.get(name)!r}, this loader's is {value!r}; resume "
                    "with the dataset and arguments that it was saved with"
                )
        epoch = state.get("epoch")
        if not isinstance(epoch, int) or isinstance(epoch, bool) or not 0 <= epoch < 1 << 32:
            raise ArgumentError(f"this state is damaged: expected an epoch of 0 to 2**32-1, got {epoch!r}")
        start = state.get("consumed" if self.own_order else "batches")
        if (
            not isinstance(start, int)
            or isinstance(start, bool)
            or start < 0
            or (self.own_order and start > len(self.dataset))
        ):
            raise ArgumentError(
                f"this state does not fit: it was saved {'with' if self.own_order else 'without'} an explicit sampler, "
                f"or is damaged (at {start!r} of {len(self.dataset)})"
            )
        sampler = None if self.own_order else state.get("sampler")
        if sampler is not None:
            check_replay_state(sampler)
        elif start and not self.own_order:
            warn(
                "this state was saved by an older version of feeder, which saved no random state of samplers and no "
                "digest of their samples: batches are counted off, and what they were is not checked",
            )
        self._next = Place(epoch, start, sampler)
        self._iterator = self.progress = None

    def stats(self) -> dict[str, Any]:
        """See :meth:`feeder.DataLoader.stats`."""
        engine = self._engine
        meters = _NO_METERS | (engine.meters() if engine is not None else self.meters_here)
        replaced = engine.replacements if engine is not None else []
        words = self.stage_words()
        stages = stage_table(words)

        def index(i: int) -> int:
            """The id that the caller knows it by: of a Subset's sample that in the whole dataset."""
            ids = _ids(self.dataset.reader)
            return i if ids is None else int(ids[i])

        return {
            **self.counts,
            "backend": self.backend,
            **meters,
            **(self.decoder.meters() if self.decoder is not None else {}),
            **verdict(self.counts, meters | self._trainer_decode(stages), self._loader.num_workers),
            "stages": stages,
            "fused": fused_stages(stages, self._fused),
            "workers": worker_tables(words[2:], [r.worker for r in replaced]),
            "respawns": len(replaced),
            "slots": self._slots(),
            "replaced_workers": [dataclasses.asdict(r) for r in replaced],
            "substitutions": [s._replace(substitute=index(s.substitute))._asdict() for s in list(self.substitutions)],
            "padded": [index(i) for i in list(self.padded)],
        }

    def warn_of_clipped(self) -> None:
        """Says once, at the end of an epoch, that images lost range."""
        clipped = self.counts["clipped"]
        if clipped and not self._warned_of_clipped:
            self._warned_of_clipped = True
            warn(clipped_warning(clipped))

    def _trainer_decode(self, stages: dict[str, dict[str, int]]) -> dict[str, int]:
        return (
            {}
            if self.decoder is None or "decode" not in stages
            else {"trainer_decode_ns": stages["decode"]["total_ns"]}
        )

    def stage_words(self) -> npt.NDArray[np.int64]:
        """The meters: int64 [2 + workers, METER_WORDS], this process's two first."""
        workers = self._engine.stages() if self._engine is not None else ()
        return np.stack([self.meter.words, self.work.meter.words, *workers])

    def _slots(self) -> dict[str, int]:
        iterator = self._iterator() if self._iterator is not None else None
        return {"total": 0, "held": 0, "making": 0, "ready": 0} if iterator is None else iterator.slots()

    def engine(self) -> Engine:
        """The loader's engine, or another one if an earlier iterator still uses it."""
        loader = self._loader
        if self._worker_init is not None:
            ranks, epoch = current_ranks(loader), self.progress.place.epoch if self.progress is not None else 0
            self._worker_init.base_seed = _base_seed(loader.seed or 0, ranks[0], epoch)
        if self._engine is not None and not self._engine.is_ours:
            self._engine = None
        if self._engine is not None and not self._engine.busy:
            return self._engine
        context = loader.multiprocessing_context
        if context is None and (self._worker_init is not None or not _travels(self.work)):
            context = _torchs_context(self.work)
        assert loader.hang_timeout_s is not None
        pool = PoolOptions(loader.num_workers, loader.hang_timeout_s, context, self._worker_init)
        ahead = max(1, (loader.prefetch_factor or 1) * loader.num_workers)
        held, limit, guard = HELD_BATCHES, loader.memory_limit_bytes, None
        if self.decoder is not None:
            # On a GPU, DALI keeps a batch until it is fed the next but one. It has copied it, to page-locked memory of
            # its own, when the batch is there, so nothing on the GPU reads slots.
            held += 1
        else:
            held += loader.prefetch_to_device if loader.target_device is not None else 0
            guard = slot_guard(loader.device_options)
        options = EngineOptions(ahead, loader.persistent_workers, limit, pool, held, guard)
        engine = Engine(self.work, options)
        if self._engine is None:
            self._engine = engine
        return engine

    def worker_pids(self) -> list[int]:
        """Process ids of the workers that run now."""
        return [] if self._engine is None else self._engine.worker_pids()

    def replay(self, place: Place) -> Replay | None:
        """The explicit sampler's epoch from a place on; None with feeder's own order."""
        loader = self._loader
        if self.own_order:
            return None
        return Replay(loader.batch_sampler, len(self.dataset), current_ranks(loader)[0], place.start, place.sampler)

    def requests(self, place: Place, split: Split | None, replay: Replay | None) -> Iterator[Request]:
        """The batches from a place on."""
        if split is not None:
            for positions, chosen in ordered_batches(self.order, place.epoch, split):
                yield Request(place.epoch, positions, chosen)
            return
        assert replay is not None
        for first, chosen in replay.batches():
            yield Request(place.epoch, first + np.arange(len(chosen), dtype=np.int64), chosen)

    def complete(self, finished: Finished | BaseException, batch: Any) -> Any:
        """The last steps on ``(images, labels, *fields)``, where they are wanted."""
        if isinstance(finished, BaseException) or self.collates:
            return batch
        images, labels, *fields = batch
        if not isinstance(finished, Decoded):
            images = self.completion.images(finished, images)
        return (images, self.completion.labels(finished, labels), *fields)

    def close(self) -> None:
        """Ends all iterators and the workers, see Note [Closing]."""
        have_ended = [iterator.close() for iterator in list(self._iterators)]
        if self.decoder is not None and all(have_ended):
            self.decoder.close()
        if self._engine is not None:
            self._engine.retire()
        if self._is_shared():
            self._agreement.close()

    def _identity(self) -> dict[str, Any]:
        if self._fingerprint is None:
            self._fingerprint = self.dataset.reader.fingerprint()
        shuffle = self.order.shuffle
        return {
            "seed": self.order.seed,
            "shuffle": shuffle.samples if isinstance(shuffle, Window) else shuffle,
            "samples": len(self.dataset),
            "fingerprint": self._fingerprint,
            "backend": self.backend,
            "fidelity": self.work.fidelity,
        }


def current_ranks(loader: DataLoader[Any]) -> tuple[int, int]:
    """(rank, world size): the loader's arguments, else torch.distributed's, else torchrun's, else (0, 1)."""
    rank, world_size = loader.rank, loader.world_size
    if rank is not None and world_size is not None:
        return rank, world_size
    if is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


def _ids(reader: Reader) -> npt.NDArray[np.int64] | None:
    """The samples' ids in the whole dataset; None if these are all."""
    return reader.ids if isinstance(reader, PartReader) else None


def _decoder(loader: DataLoader[Any], dataset: FeederDataset) -> Decoder:
    """The backend that a loader asks for. Without a device even one that decodes in the trainer stays on the CPU."""
    is_collated = loader.collate_fn is not torch.utils.data.default_collate
    return get_decoder(
        loader.backend,
        dataset.recipe,
        threads=max(1, loader.num_workers),
        fidelity=loader.fidelity,
        # A collate_fn takes finished samples, in workers: "auto" chooses what decodes there.
        device="cpu" if loader.target_device is None or is_collated else str(loader.target_device),
        gpu_memory_limit_bytes=loader.gpu_memory_limit_bytes,
        hw_decoder_load=loader.hw_decoder_load,
    )


def _check_collating(loader: DataLoader[Any], decoder: Decoder) -> None:
    """Refuses what comes after a batch is put together, where a collate_fn does that."""
    if loader.mix is not None:
        raise ArgumentError(
            "mix= mixes images and labels as feeder collates them, and there is a collate_fn: leave one of them out, "
            "or mix in the collate_fn"
        )
    if loader.channels_last:
        raise ArgumentError(
            "channels_last=True is for images as feeder collates them, and there is a collate_fn: leave it out, and "
            "return images.to(memory_format=torch.channels_last) from the collate_fn"
        )
    if isinstance(decoder, TrainerDecoder):
        raise ArgumentError(
            f"backend {decoder.name!r} decodes in this process, and a collate_fn takes finished samples in workers: "
            "set backend='cpu', or leave the collate_fn out"
        )


def _torchs_context(work: Work) -> Any:
    """Starts workers as torch's loader does by default; what can't be pickled goes along only with a fork."""
    context = torch.multiprocessing.get_context()
    if context.get_start_method() != "fork":
        try:
            pickle.dumps(work)
        except (AttributeError, TypeError, pickle.PicklingError):  # a lambda or a local function
            return torch.multiprocessing.get_context("fork")
    return context


@dataclasses.dataclass
class _WorkerInit:
    """The user's ``worker_init_fn``, if any, in a worker that is seeded and known as torch's are."""

    init: Callable[[int], None] | None
    workers: int
    dataset: Any
    base_seed: int = 0

    def __call__(self, number: int) -> None:
        introduce(self.base_seed, number, self.workers, self.dataset)
        if self.init is not None:
            self.init(number)


def _base_seed(seed: int, rank: int, epoch: int) -> int:
    """Another one for each epoch that workers start in, and on each rank; torch takes 64 bits."""
    return int(np.random.SeedSequence([seed, rank, epoch]).generate_state(1, np.uint64)[0]) >> 2


def _travels(work: Work) -> bool:
    """Whether workers that never import the caller's script can unpickle it."""
    try:
        return b"__main__" not in pickle.dumps(work.recipe)
    except (AttributeError, TypeError, pickle.PicklingError):  # a lambda or a local function
        return False
