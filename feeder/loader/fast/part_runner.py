"""A part of a batch in one native call: the usual samples, and none of the others.

Note [One call]
    The call finds samples in the index, draws, reads, decodes and stores without Python, and mostly without its lock.
    It is for the images and labels of one shard set, of recipes that the kernels run but for functions of the user's,
    with the native backend: what follows the base path is drawn before the call, as programs. Functions run afterwards,
    with the ops behind them, and targets and further fields are added. The images of a remote set are brought into its
    mirror before. Images for the CUDA backend are planned in such a call, whatever follows the base path. A sample of
    which anything is unusual is left to :class:`feeder.loader.fast.sample_maker.Work`, which also says what is wrong
    with it. So are all views of an image, further images, and padded batches: a call fills a tensor of one size, and
    padded images differ in theirs.
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from feeder import _native
from feeder.dataset.reader import Reader
from feeder.dataset.shard_reader import ShardReader
from feeder.dataset.subset_reader import SubsetReader
from feeder.decoders.cpu_decoder import LARGEST_SIDE, CpuDecoder
from feeder.decoders.decoder import Decoder
from feeder.decoders.device.fused import DividedRecipe
from feeder.decoders.programs import Finish, Programs, has_programs, programs
from feeder.loader.fast.part_output import StagedSink
from feeder.loader.fast.part_report import PartReport
from feeder.loader.observe.meter import Meter, stage_at
from feeder.loader.slots.image_slots import Samples, SlotView
from feeder.shard.source.image_file import LARGE_BYTES
from feeder.system.arrays import Int64s, Uint8s
from feeder.transforms import Recipe
from feeder.transforms.arguments import DRAWN
from feeder.transforms.geometry import CenterCrop, RandomCrop, RandomHorizontalFlip, RandomResizedCrop, Resize
from feeder.transforms.op import Params
from feeder.transforms.padding import LetterBox, Pad
from feeder.transforms.target_ops import TargetOp
from feeder.transforms.values import Normalize, ToDtype

_PAUSE = 32  # parts that are made without a call, after a call that left most samples out
_STAGES = ("read", "draw", "decode", "transform")


@dataclass
class PartRunner:
    """Makes parts; see Note [One call].

    Args:
        reader: Reads the shards.
        subsets: int64 [N] each: what the dataset's ids are in the set, subset by subset, outermost first.
        native: The kernels' runner.
        samples: Number of samples of the dataset.
        recipe: The ops on each image, with a fixed size after the base path.
        seed: Of the augmentation.
        behind: Numbers of the ops behind the base path that are run.
        finish: What follows the kernels' call; None for plans.
    """

    reader: ShardReader
    subsets: list[Int64s]
    native: _native.PartRunner
    samples: int
    recipe: Recipe
    seed: int
    behind: list[int]
    finish: Finish | None

    def __post_init__(self) -> None:
        assert self.recipe.base_size is not None
        self._size = self.recipe.base_size
        self._ops = [self.recipe.ops[number] for number in self.behind]
        self._apart: Uint8s | None = None
        self._pause = 0

    @classmethod
    def of(
        cls, reader: Reader, recipe: Recipe, divided: DividedRecipe | None, decoder: Decoder, seed: int
    ) -> PartRunner | None:
        """Returns a runner for images of a recipe; None if they are not for one call.

        Args:
            reader: The dataset's reader.
            recipe: The ops on each image, without variable sizes.
            divided: The recipe divided between CPU and device, to do the CPU's side; None does all.
            decoder: The backend.
            seed: Of the augmentation.
        """
        recipe = recipe.framed
        made = recipe if divided is None else divided.cpu.framed
        if type(decoder) is not CpuDecoder or not has_programs(made) or recipe.base_size != made.base_size:
            return None

        kept = range(len(recipe.ops)) if divided is None else divided.kept
        behind = [number for number in kept if number >= recipe.base_length]
        finish = Finish(made, [recipe.ops[number] for number in behind])
        return cls._made(
            reader,
            recipe,
            seed,
            behind,
            finish,
            max_pixels=decoder.max_pixels,
            fidelity=decoder.fidelity,
            threads=decoder.threads,
            **{"scale": None, "bias": None} | finish.options,
        )

    @classmethod
    def for_plans(cls, reader: Reader, recipe: Recipe, max_pixels: int, seed: int) -> PartRunner | None:
        """Returns a runner for plans of images, see ``_native.plan_images``; None if they are not for one call.

        Args:
            reader, recipe, seed: See :meth:`of`.
            max_pixels: Larger images are left to the other way.
        """
        options: dict[str, Any] = {"fidelity": "fast", "threads": 1, "dtype": "uint8", "scale": None, "bias": None}
        return cls._made(reader, recipe, seed, [], None, max_pixels=max_pixels, **options)

    @classmethod
    def _made(
        cls, reader: Reader, recipe: Recipe, seed: int, behind: list[int], finish: Finish | None, **options: Any
    ) -> PartRunner | None:
        samples, subsets = len(reader), []
        while isinstance(reader, SubsetReader):
            subsets.append(reader.ids)
            reader = reader.whole
        if type(reader) is not ShardReader or not reader.takes_parts:
            return None
        ops, size = base_ops(recipe), recipe.base_size
        if ops is None or size is None or (recipe.pads and size[0] * size[1] > options["max_pixels"]):
            return None
        native = _native.PartRunner(
            ops,
            seed=seed,
            exif=reader.exif,
            large_bytes=LARGE_BYTES,
            made_ns=reader.unchanged_since_ns,
            stages=[stage_at(stage) for stage in _STAGES],
            filter=recipe.base_filter,
            fill=recipe.base_fill,
            **options,
        )
        return cls(reader, subsets, native, samples, recipe, seed, behind, finish)

    def run(
        self,
        epoch: int,
        view: SlotView,
        report: PartReport,
        meter: Meter,
        heartbeat: Callable[[], None],
        rows: Int64s,
    ) -> Int64s:
        """Makes samples of a part, each in its row, and counts them.

        Args:
            epoch: The epoch that the augmentation is drawn for.
            view: The samples, and arrays for them; filled.
            report: The part's report.
            meter: Counts the stages.
            heartbeat: Called between the steps, as a sign of life.
            rows: int64 [K], ascending, those of the samples to make.

        Returns:
            Those of the rows that are left to be made in the other way, ascending.
        """
        if self._pause:
            self._pause -= 1
            return rows

        finish, out = self.finish, view.images[0]
        assert finish is not None  # or this were for plans
        samples = view.samples.part(rows)
        drawn, program = self._draw(epoch, samples, meter) if self._ops else ([], None)
        made = self._memory(len(out)) if finish.is_apart else out
        before = meter.runs("transform") if finish.is_needed else None
        found = self._call(self.native.run, made, epoch, view, samples, meter, heartbeat, rows, program, rows)
        if found is None:
            return rows

        unmade, slow = found
        left = set(unmade)  # numbers of the samples among the K
        if before is not None:
            done = set(range(len(rows))).difference(left)
            started = time.perf_counter_ns()
            left.update(finish.run(drawn, done, made, out, rows))
            meter.lengthen("transform", before, time.perf_counter_ns() - started)
        report.slow += slow
        return rows[sorted(left)]

    def _memory(self, count: int) -> Uint8s:
        """Returns images apart from the slot, the same memory for all parts."""
        assert self.finish is not None
        if self._apart is None or len(self._apart) < count:
            self._apart = self.finish.memory(count, *self._size)
        return self._apart[:count]

    def plan(
        self,
        epoch: int,
        view: SlotView,
        meter: Meter,
        heartbeat: Callable[[], None],
        sink: StagedSink,
    ) -> Int64s:
        """Plans all samples of a part, and counts the stages.

        Args:
            epoch, view, meter, heartbeat: See :meth:`run`; the view's images are left alone.
            sink: Gets the plans.

        Returns:
            See :meth:`run`; the sink takes these rows afterwards.
        """
        rows = np.arange(len(view.samples.ids))
        if self._pause:
            self._pause -= 1
            return rows

        found = self._call(self.native.plan, self._size, epoch, view, view.samples, meter, heartbeat, rows)
        if found is None:
            return rows
        unmade, plan_ns, plans, places = found
        sink.put_plans(plans, places, self._size, plan_ns)
        return rows[list(unmade)]

    def _draw(self, epoch: int, samples: Samples, meter: Meter) -> tuple[list[Params], Programs | None]:
        """Draws for the ops behind the base path, and makes the programs of those that the kernels run."""
        started, recipe = time.perf_counter_ns(), self.recipe
        rest = recipe.draw_rest(self.seed, epoch, samples.ids + samples.repeats * self.samples)
        drawn = [rest[number - recipe.base_length] for number in self.behind]
        end = 0 if self.finish is None else self.finish.end
        made = programs(self._ops[:end], drawn[:end], self._size)
        meter.add("draw", time.perf_counter_ns() - started)
        return drawn, made

    def _call(
        self,
        native: Callable[..., Any],
        out: Any,
        epoch: int,
        view: SlotView,
        samples: Samples,
        meter: Meter,
        heartbeat: Callable[[], None],
        rows: Int64s,
        *more: Any,
    ) -> Any:
        """Calls the kernels' runner on K samples of a view, and once more if it lacks shards, which are opened.

        Returns the numbers, among the K, of those that it left out, and what follows the sums in its answer; None if
        another thread is in a call. ``native`` is the runner's method, ``out`` and ``more`` are its further arguments,
        and ``rows``, int64 [K], are the samples' rows of the view, which gets their labels. See also :meth:`run`.
        """
        reader, ids = self.reader, samples.ids
        for subset in self.subsets:
            ids = subset[ids]
        shards, stored_rows, per_shard = reader.index.located(ids)

        started = time.perf_counter_ns()
        reader.bring_images(ids)
        brought_ns = time.perf_counter_ns() - started
        call = functools.partial(
            native,
            reader.index.native,
            reader.native_shards,
            shards,
            per_shard,
            stored_rows,
            samples.ids,
            samples.repeats,
            self.samples,
            epoch,
            out,
            view.labels if reader.given_labels is None else None,
            meter.words,
            brought_ns,
            reader.advise_from,
        )
        found = call(False, heartbeat, *more)
        if isinstance(found, list):  # numbers of shards that are not open
            reader.open_shards(found, ids, by_rows=self.recipe.crops_first)
            found = call(True, heartbeat, *more)
        if not isinstance(found, tuple):
            return None

        unmade, read_ns, _, read_bytes, *rest = found
        if reader.given_labels is not None:
            view.labels[rows] = reader.given_labels[ids]
        if not unmade:  # or the time would be for other bytes, too
            reader.note_read(read_bytes, read_ns - brought_ns)
        if 2 * len(unmade) > len(ids):
            self._pause = _PAUSE
        return unmade, *rest


def base_ops(recipe: Recipe) -> _native.BaseOps | None:
    """Returns the ops of the base path of a recipe without variable sizes; None if one is unknown to the kernels."""
    ops = _native.BaseOps()
    for stream, op in enumerate(recipe.ops[: recipe.base_length]):
        if max(_sides(op), default=0) > LARGEST_SIDE or getattr(op, "interpolation", None) == DRAWN:
            return None
        if type(op) is RandomResizedCrop:
            logs = math.log(op.ratio[0]), math.log(op.ratio[1])
            ops.add_random_resized_crop(stream, *op.size, op.scale, op.ratio, logs)
        elif type(op) is RandomCrop:
            ops.add_random_crop(stream, *op.size, op.padding or (0, 0, 0, 0), op.pad_if_needed)
        elif type(op) is Pad:
            ops.add_pad(op.padding)
        elif type(op) is LetterBox:
            ops.add_letterbox(*op.size)
        elif type(op) is CenterCrop:
            ops.add_center_crop(*op.size)
        elif type(op) is Resize:
            _add_resize(ops, op)
        elif type(op) is RandomHorizontalFlip:
            ops.add_horizontal_flip(stream, op.p)
        elif type(op) not in (ToDtype, Normalize) and not isinstance(op, TargetOp):
            return None
    return ops


def _sides(op: object) -> list[int]:
    values = (getattr(op, name, None) for name in ("size", "max_size", "padding"))
    return [side for value in values if value is not None for side in ([value] if isinstance(value, int) else value)]


def _add_resize(ops: _native.BaseOps, op: Resize) -> None:
    if op.size is None:
        ops.add_resize("longer", 0, 0, op.max_size or 1)
    elif op.cover or len(op.size) == 2:
        ops.add_resize("cover" if op.cover else "both", op.size[0], op.size[-1], 0)
    else:
        ops.add_resize("shorter", op.size[0], 0, op.max_size or 0)
