"""Makes the samples of a part of a batch: reads, draws, decodes or stages, in a worker or in the caller's process.

Needs no torch.
"""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from feeder.dataset.extras import Column, Extra
from feeder.dataset.further_images import FurtherImage, further_recipes, images_in, key_rows, values_in
from feeder.dataset.reader import Reader, ReadSamples
from feeder.decoders.device.fused import DividedRecipe, divide_recipe
from feeder.decoders.registry import get_decoder
from feeder.decoders.stored_boxes import stored_rows
from feeder.errors import DecodeError
from feeder.loader.fast.part_output import (
    PaddedSink,
    PixelSink,
    SampleSink,
    Sink,
    StagedSink,
    put_extras,
    read_extras,
)
from feeder.loader.fast.part_report import SUBSTITUTES, PartReport, Substitution, no_substitute
from feeder.loader.observe.meter import Meter
from feeder.loader.slots.image_slots import Layout, Samples, Sizes, SlotView
from feeder.order.sample_order import substitute
from feeder.system.arrays import AnyArray, Int32s, Int64s, Uint8s
from feeder.system.warning import warn

if TYPE_CHECKING:
    from feeder.decoders.decoder import Decoder
    from feeder.decoders.staged.stager import Stager
    from feeder.loader.fast.part_runner import PartRunner
    from feeder.order.bucket_order import BucketTable
    from feeder.order.buckets import Buckets
    from feeder.transforms import Draws, Recipe, Views
    from feeder.transforms.boxes import SampleBoxes
    from feeder.transforms.op import Params
    from feeder.transforms.pad_to_batch import PadToBatch

_DRAWN_SUBSTITUTES = 1024  # attempts, where not every sample may be a substitute
_WRONG_ROWS = (
    "the index has wrong places for the rows of an image, so the image was read a second time; "
    "`feeder inspect --verify` names all such images"
)


@dataclass(eq=False, repr=False)
class Work:
    """The work of making samples; cheap to pickle.

    Args:
        reader: Reads the encoded images.
        recipe: The ops on every image, or its views.
        backend: The decode backend's name; never "auto".
        extras: Targets and further fields.
        seed: Of the augmentation, 0 to 2**64-1.
        skip: True replaces bad samples by substitutes; False raises.
        threads: Threads that the backend may use in this process.
        fidelity: "fast", "exact" or "draft", see :class:`feeder.DataLoader`.
        stager: Stages images for a decoder in the trainer, instead of decoding them.
        share_bytes: Bytes of the slot for each staged image; a multiple of 64.
        divided: Each of :attr:`recipes` divided between CPU and device, of which the CPU's side is done; None does all.
            Empty: none is divided.
        table: The samples of each bucket, of which substitutes are taken; None: without buckets, or made when it is
            needed.
        groups: The sizes by which samples are grouped into buckets; None: they are not.
        pad: Pads the images of a batch to one size; None: they have one.
        largest: (height, width) of the images that slots are made for; None: the recipe's.
        left_out: int64 [N], sorted ids of samples that are no substitutes.

    Attributes:
        images: The further images among the extras.
        values: The other extras.
        views_of: The views of the sample's image and of each further one, as slices of :attr:`recipes`.
        makes_batches: True if a part must be a whole batch.
    """

    makes_batches: ClassVar[bool] = False

    reader: Reader
    recipe: Recipe | Views
    backend: str
    extras: tuple[Extra, ...] = ()
    seed: int = 0
    skip: bool = False
    threads: int = 1
    fidelity: str = "fast"
    stager: Stager | None = None
    share_bytes: int = 0
    divided: tuple[DividedRecipe | None, ...] = ()
    table: BucketTable | None = None
    pad: PadToBatch | None = None
    largest: tuple[int, int] | None = None
    left_out: Int64s = field(default_factory=lambda: np.zeros(0, np.int64))
    groups: Buckets | None = None
    meter: Meter = field(default_factory=Meter, init=False)
    _decoder: Decoder | None = field(default=None, init=False)
    _apart: dict[int, AnyArray] | None = field(default=None, init=False)
    _divided_at: dict[tuple[Recipe, ...], tuple[DividedRecipe | None, ...]] = field(default_factory=dict, init=False)
    _runners: dict[int, tuple[Recipe, PartRunner | None]] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self.images = images_in(self.extras)
        self._further = tuple(further_recipes(self.images))
        self.values = values_in(self.extras)
        self._key_rows = key_rows(self.recipe, self.extras)
        counts = [len(self.recipe.views), *(len(image.recipe.views) for image in self.images)]
        ends = list(itertools.accumulate(counts))
        self.views_of = [slice(end - count, end) for end, count in zip(ends, counts, strict=True)]

    def __getstate__(self) -> dict[str, Any]:
        state = {name: value for name, value in self.__dict__.items() if name != "meter"}
        # The table takes 4 bytes a sample.
        made: dict[str, Any] = {"_decoder": None, "_divided_at": {}, "_runners": {}, "_apart": None}
        return state | made | {"table": self.table if self.skip else None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, meter=Meter())

    @property
    def by_source(self) -> tuple[Work, ...]:
        """The work on each source of a mixture; this one for any other dataset."""
        return (self,)

    def reseed(self, seed: int) -> None:
        """Sets the seed of the augmentation, 0 to 2**64-1."""
        self.seed = seed
        self._runners = {}

    @property
    def decoder(self) -> Decoder:
        """The backend, made on first use in each process."""
        if self._decoder is None:
            recipes = self.recipes_at(self.largest, 0)
            self._decoder = get_decoder(self.backend, recipes, threads=self.threads, fidelity=self.fidelity)
        return self._decoder

    def prepare(self) -> None:
        """Makes the decoder, for which the first part would wait; an unusable backend fails here."""
        if self.stager is None:
            self.decoder  # noqa: B018
        else:
            self.stager.prepare()

    def layout(self, batch_size: int) -> Layout:
        """Returns the layout of slots for batches of that size."""
        return Layout(batch_size, self.image_columns, self.reader.label_dtype, self.further_columns)

    @property
    def further_columns(self) -> tuple[Column, ...]:
        """The arrays of targets and further fields in a slot, of the size that it has space for."""
        sizes = self._largest_sizes
        return tuple(column.at(sizes) for extra in self.values for column in extra.columns)

    @property
    def _largest_sizes(self) -> list[tuple[int, int] | None]:
        """(height, width) of each of :attr:`recipes` that slots have space for; None for one that is not known."""
        first, *rest = self.recipes
        sizes = [first.output_size if self.largest is None else self.largest]
        return sizes + [self.largest if recipe.has_bucket else recipe.output_size for recipe in rest]

    @property
    def recipes(self) -> tuple[Recipe, ...]:
        """The recipe of each image that is made of a sample: of its image or the views, and of further images."""
        return *self.recipe.views, *self._further

    def recipes_at(self, bucket: tuple[int, int] | None, epoch: int) -> tuple[Recipe, ...]:
        """Returns the recipes of one batch, see :meth:`feeder.transforms.Recipe.at`."""
        return *self.recipe.at(bucket, epoch).views, *(each.at(bucket, epoch) for each in self._further)

    @property
    def image_columns(self) -> tuple[Column, ...]:
        """The images of a sample in a slot: (C, H, W) of each of :attr:`recipes`; or (bytes,) of each image that is
        staged, with all its views."""
        if self.stager is not None:
            return (Column((self.share_bytes,), "uint8"),) * len(self.views_of)
        columns: list[Column] = []
        for recipe, divided, size in zip(self.recipes, self.divided_of(self.recipes), self._largest_sizes, strict=True):
            assert size is not None
            shape = *recipe.leading_shape, *size
            columns.append(Column(shape, "uint8" if divided is not None else recipe.storage_dtype.name))
        return tuple(columns)

    def divided_of(self, recipes: tuple[Recipe, ...]) -> tuple[DividedRecipe | None, ...]:
        """Returns the recipes of one batch, divided as :attr:`divided`."""
        if not self.divided:
            return (None,) * len(recipes)
        if recipes == self.recipes:
            return self.divided
        if recipes not in self._divided_at:
            both = zip(recipes, self.divided, strict=True)
            self._divided_at[recipes] = tuple(each and divide_recipe(recipe) for recipe, each in both)
        return self._divided_at[recipes]

    def image_sizes(self, epoch: int, size: tuple[int, int]) -> Sizes:
        """Returns the sizes of a batch's images, see :attr:`recipes`, of which the first has that (height, width)."""
        further = self.recipes_at(size, epoch)[1:]
        return size, *(recipe.output_size or size for recipe in further)

    def include_size(self, size: tuple[int, int]) -> None:
        """Raises the size of slots that are made later, so that images of this (height, width) fit."""
        height, width = self.largest or size
        self.largest = max(height, size[0]), max(width, size[1])

    def run(self, epoch: int, view: SlotView, heartbeat: Callable[[], None] = lambda: None) -> PartReport:
        """Makes N samples.

        Args:
            epoch: The epoch that the augmentation is drawn for.
            view: The samples, and arrays for them as in :meth:`layout`; filled.
            heartbeat: Called between the steps, as a sign of life.

        Raises:
            DecodeError: for a bad sample, unless bad samples are skipped.
        """
        report = self._new_report(view)
        self._run(epoch, view, report, heartbeat)
        return report

    def _new_report(self, view: SlotView) -> PartReport:
        return PartReport([[None] * len(view.labels) for extra in self.values if not extra.columns])

    def _run(
        self,
        epoch: int,
        view: SlotView,
        report: PartReport,
        heartbeat: Callable[[], None],
        rows: Int64s | None = None,
        shared: list[Sink] | None = None,
    ) -> None:
        """Makes the samples of some rows, int64 [K], ascending; None: of all. See :meth:`run`.

        ``shared`` are the ways into the slot, which the caller closes once all rows are made; None: they are made here.
        """
        samples = view.samples
        recipes = self.recipes_at(view.image_size, epoch)
        rows = np.arange(len(samples.ids)) if rows is None else rows
        left = rows  # those that no native call has made

        runner = self._runner(recipes) if shared is None else None
        if runner is not None and self.stager is None:
            left = runner.run(epoch, view, report, self.meter, heartbeat, rows)
            if not len(left) and not self.extras:
                return

        sinks = self._sinks(recipes, view.images) if shared is None else shared
        if runner is not None and self.stager is not None:
            assert isinstance(sinks[0], StagedSink)
            left = runner.plan(epoch, view, self.meter, heartbeat, sinks[0])

        part = _Part(epoch, recipes, view, sinks, report, heartbeat)
        errors: list[DecodeError | None] = [None] * len(samples.ids)

        # A native call makes images and labels only.
        if self.extras and len(left) < len(rows):
            self._add_extras(part, np.setdiff1d(rows, left), errors)
        if len(left):
            found = self._make(part, left, samples.part(left))
            for row, error in zip(left.tolist(), found, strict=True):
                errors[row] = error

        for row, error in enumerate(errors):
            if error is not None:
                self._replace(part, row, error)

        if shared is None:
            self._close(sinks, report)

    def _close(self, sinks: list[Sink], report: PartReport) -> None:
        """Ends a part, whose report gets the staged images that did not fit the slot."""
        for number, (sink, view_slice) in enumerate(zip(sinks, self.views_of, strict=True)):
            for place, data in sink.close().items():
                row, which = divmod(place, view_slice.stop - view_slice.start)
                report.left_over[number, row, which] = bytes(data)

    def _runner(self, recipes: tuple[Recipe, ...]) -> PartRunner | None:
        """Returns the runner of a batch's parts; None if they are not for one call, see Note [One call]."""
        if self.pad is not None or len(recipes) != 1:
            return None
        stager = self.stager
        if stager is not None and not stager.plans:
            return None

        recipe = recipes[0]
        found = self._runners.get(id(recipe))
        if found is None:
            from feeder.loader.fast.part_runner import PartRunner  # it needs the kernels

            runner = None
            if stager is not None:
                most = min(stager.max_pixels, stager.outlier_pixels)
                runner = PartRunner.for_plans(self.reader, recipe, most, self.seed)
            elif self.decoder.name == "cpu":
                divided = self.divided_of(recipes)[0]
                runner = PartRunner.of(self.reader, recipe, divided, self.decoder, self.seed)
            found = self._runners[id(recipe)] = recipe, runner
        return found[1]

    def _sinks(self, recipes: tuple[Recipe, ...], images: tuple[AnyArray, ...]) -> list[Sink]:
        """Returns the ways into the slot: of the image with its views, and of each further image."""
        if self.stager is not None:
            places = zip(self.views_of, images, strict=True)
            return [StagedSink(self.stager, recipes[views], memory, self.meter) for views, memory in places]
        divided = self.divided_of(recipes)
        sinks: list[Sink] = []
        for views in self.views_of:
            own, pixels = recipes[views], images[views]
            if self.pad is not None and not sinks:
                sinks.append(PaddedSink(self.decoder, own[0], pixels[0], self.meter, self.pad.value))
            elif own[0].output_size is None:  # images of any size, for a collate_fn
                sinks.append(SampleSink(self.decoder, own[0], pixels[0], self.meter))
            else:
                sinks.append(PixelSink(self.decoder, own, divided[views], pixels, self.meter, self._apart))
        return sinks

    def substitutes(self, epoch: int, position: int, within: tuple[int, int] | None = None) -> Iterator[int]:
        """Yields the samples to try, one after the other, in place of a bad one.

        Args:
            epoch: The epoch.
            position: The bad sample's position in the epoch.
            within: (height, width) of a padded batch, which they fit in; None: all do.
        """
        if self.table is None and self.groups is not None:  # a server of the input service has not ordered samples
            from feeder.loader.fast.batch_sizes import bucket_table  # few workers need it

            self.table = bucket_table(self.groups, self.reader)
        if self.table is None:
            yield from self._drawn(lambda k: substitute(position, k, len(self.reader), self.seed, epoch), epoch, within)
            return

        assert self.groups is not None  # or there were no table
        tried: set[int] = set()
        for bucket in self.table.substitute_buckets(position, self.groups):
            draw = functools.partial(self.table.substitute, position, seed=self.seed, epoch=epoch, bucket=bucket)
            for i in self._drawn(draw, epoch, within):
                if i not in tried:
                    yield i
                tried.add(i)

    def substitute_samples(self, bad: Samples, epoch: int, within: tuple[int, int] | None = None) -> Iterator[Samples]:
        """Yields the samples to try in place of a bad one, see :meth:`substitutes`."""
        for i in self.substitutes(epoch, int(bad.positions[0]), within):
            yield Samples.of(bad.positions, np.array([i]))

    def _drawn(self, draw: Callable[[int], int], epoch: int, within: tuple[int, int] | None) -> Iterator[int]:
        """Yields the first 16 samples that attempts draw, without those that are left out or don't fit."""
        found, left_out = 0, self.left_out
        for attempt in range(SUBSTITUTES if within is None and not len(left_out) else _DRAWN_SUBSTITUTES):
            i = draw(attempt)
            place = np.searchsorted(left_out, i)
            if place < len(left_out) and left_out[place] == i:
                continue
            if within is None or self._fits(i, epoch, within):
                yield i
                found += 1
            if found == SUBSTITUTES:
                return

    def _fits(self, i: int, epoch: int, within: tuple[int, int]) -> bool:
        """Returns True if a substitute's image is no larger than a padded batch."""
        one = np.array([i])
        self.reader.measure(one)
        known = self.reader.stored(one)
        assert known is not None  # or padding was refused
        drawn = self.recipe.views[0].draw(self.seed, epoch, one, known[1])
        return bool((drawn.output_size <= within).all())

    def keys(self, samples: Samples) -> list[Int64s]:
        """Returns the keys of the augmentation's draws, int64 [N] for each view, and for each further image with draws
        of its own: others for each repeat of a sample."""
        return samples.keys(self._key_rows, len(self.reader))

    def image_keys(self, samples: Samples) -> list[Int64s]:
        """Returns the keys of each image that is made of a sample; see :attr:`recipes`."""
        keys = self.keys(samples)
        further = (each for image in self.images for each in keys[image.number : image.end])
        return [*keys[: len(self.recipe.views)], *further]

    def as_drawn(self, made: Samples, asked: Samples) -> Samples:
        """Returns samples by which those are drawn that were made, in place of some that were asked for."""
        return made

    def draw_rest(
        self, view_slice: slice, epoch: int, samples: Samples, size: tuple[int, int] | None
    ) -> list[Sequence[Params]]:
        """Draws for the ops after the base path of some of :attr:`recipes`, see :meth:`Recipe.draw_rest`; ``size`` is
        that of the batch's images."""
        both = zip(self.recipes_at(size, epoch)[view_slice], self.image_keys(samples)[view_slice], strict=True)
        return [recipe.draw_rest(self.seed, epoch, keys) for recipe, keys in both]

    def _make(
        self,
        part: _Part,
        rows: Int64s,
        samples: Samples,
    ) -> list[DecodeError | None]:
        """Makes samples for some rows of the part; returns an error or None for each."""
        sink, report, heartbeat, ids = part.sinks[0], part.report, part.heartbeat, samples.ids
        started = time.perf_counter_ns()

        # Extras come first: images are valid only until the reader's next call.
        extras = read_extras(self.extras, self.reader, ids)
        drawing = _Drawing(self, part, self.keys(samples), extras)
        takes_rows = self.decoder.takes_rows if self.stager is None else self.stager.takes_rows
        encoded = self._read(ids, started, drawing if takes_rows else None)
        part.view.labels[rows] = encoded.labels
        heartbeat()

        draws = drawing.draw(encoded.sizes) if drawing.draws is None else drawing.draws
        sizes = encoded.sizes
        errors = _add(report, sink, encoded, rows, draws)

        if encoded.first_rows is not None:
            # Images that failed by their rows are read as a whole: the file may be bad, or the index alone.
            again = [row for row in np.flatnonzero(encoded.first_rows >= 0).tolist() if errors[row] is not None]
            if again:
                heartbeat()
                encoded = self._read(ids[again], time.perf_counter_ns())
                found = _add(report, sink, encoded, rows[again], _take(draws, again))
                for row, error in zip(again, found, strict=True):
                    if error is None:
                        warn(_WRONG_ROWS, RuntimeWarning)
                    errors[row] = error

        if len(part.sinks) > 1:
            self._add_images(part, rows, drawing, sizes, errors)
        if extras:
            both = zip(self.extras, extras, strict=True)
            values = [each for extra, each in both if not isinstance(extra, FurtherImage)]
            put_extras(self.values, values, part.view, report, rows, draws, errors)

        return [None if e is None else self.reader.at(e, int(i)) for e, i in zip(errors, ids, strict=True)]

    def _add_extras(self, part: _Part, rows: Int64s, errors: list[DecodeError | None]) -> None:
        """Reads the targets and further fields of rows whose image a native call has made, and puts them in the part.

        Args:
            part: The part.
            rows: int64 [K], the rows.
            errors: An entry for each row of the part, set where there is an error.
        """
        report, samples = part.report, part.view.samples.part(rows)
        started = time.perf_counter_ns()
        values = read_extras(self.extras, self.reader, samples.ids)
        self.meter.add("read", time.perf_counter_ns() - started)
        part.heartbeat()

        drawing = _Drawing(self, part, self.keys(samples), values)
        draws: tuple[Draws, ...] = ()
        if any(extra.follows_draws for extra in self.extras):
            known = self.reader.stored(samples.ids)
            assert known is not None  # else no native call would have made the images
            draws = drawing.draw(known[1])

        found: list[DecodeError | None] = [None] * len(rows)
        put_extras(self.values, values, part.view, report, rows, draws, found)
        for row, i, error in zip(rows.tolist(), samples.ids.tolist(), found, strict=True):
            errors[row] = error if error is None else self.reader.at(error, i)

    def _add_images(
        self,
        part: _Part,
        rows: Int64s,
        drawing: _Drawing,
        sizes: Int32s,
        errors: list[DecodeError | None],
    ) -> None:
        """Makes the further images of samples that have no error yet; one that can't be made is its sample's error."""
        assert drawing.draws is not None
        given = [values for extra, values in zip(self.extras, drawing.extras, strict=True) if extra in self.images]
        for image, view_slice, sink, found in zip(self.images, self.views_of[1:], part.sinks[1:], given, strict=True):
            part.heartbeat()
            encoded = image.encoded(found, sizes)
            unread = encoded.errors
            encoded.errors = [earlier or error for earlier, error in zip(errors, unread, strict=True)]
            draws = image.draw(part.recipes[view_slice], drawing.draws, drawing.keys, encoded.sizes)
            for row, error in enumerate(_add(part.report, sink, encoded, rows, draws)):
                if error is not None and errors[row] is None:
                    errors[row] = image.named(error) if unread[row] is None else error
            self.meter.add_each("read", np.zeros(0, np.int64), sum(map(len, encoded.buffers)))  # with the extras

    def _read(self, ids: Int64s, started: int, drawing: _Drawing | None = None) -> ReadSamples:
        """Reads samples, with ``drawing`` only the rows that their crops need; counts the time since ``started``."""
        encoded = self.reader.read(ids, drawing.rows if drawing is not None and drawing.crops_first else None)
        size_bytes = sum(map(len, encoded.buffers))
        spent_ns = time.perf_counter_ns() - started - (0 if drawing is None else drawing.spent_ns)
        self.meter.add("read", spent_ns, size_bytes)
        return encoded

    def _replace(self, part: _Part, row: int, error: DecodeError) -> None:
        """Makes a substitute in the place of a bad sample; raises DecodeError if bad samples are not skipped."""
        if not self.skip:
            raise error
        here, position = np.array([row]), int(part.view.samples.positions[row])
        for i in self.substitutes(part.epoch, position, None if self.pad is None else part.view.image_size):
            if self._make(part, here, Samples.of(np.array([position]), np.array([i])))[0] is None:
                part.report.substitutions.append(Substitution.of(position, error, i))
                return
        raise no_substitute(error)


class _Part(NamedTuple):
    """A part that is being made.

    Attributes:
        epoch: The epoch that it is drawn for.
        recipes: The recipes of its images.
        view: Its arrays.
        sinks: The ways of its images into these.
        report: Its report.
        heartbeat: Called between the steps, as a sign of life.
    """

    epoch: int
    recipes: tuple[Recipe, ...]
    view: SlotView
    sinks: list[Sink]
    report: PartReport
    heartbeat: Callable[[], None]


@dataclass
class _Drawing:
    """Draws the augmentation of some samples, once their sizes are known.

    Args:
        work: The work on them.
        part: The part that they belong to.
        keys: int64 [N] for each view, and for further images, see :meth:`Work.keys`.
        extras: N values of each target and further field, as they were read.

    Attributes:
        draws: The draws of each view.
        spent_ns: Time that they took, nanoseconds.
    """

    work: Work
    part: _Part
    keys: list[Int64s]
    extras: list[list[Any]]
    draws: tuple[Draws, ...] | None = field(default=None, init=False)
    spent_ns: int = field(default=0, init=False)

    @property
    def crops_first(self) -> bool:
        """True if all views may need a part of the rows only."""
        return all(recipe.crops_first for recipe in self.part.recipes[: len(self.work.recipe.views)])

    def draw(self, sizes: Int32s) -> tuple[Draws, ...]:
        """Draws for images of these upright sizes, int32 [N, 2]."""
        started = time.perf_counter_ns()
        work, epoch = self.work, self.part.epoch
        self.draws = tuple(
            recipe.draw(work.seed, epoch, keys, sizes, self._boxes(recipe, sizes))
            for recipe, keys in zip(self.part.recipes[: len(work.recipe.views)], self.keys, strict=False)
        )
        self.spent_ns = time.perf_counter_ns() - started
        self.work.meter.add("draw", self.spent_ns)
        return self.draws

    def _boxes(self, recipe: Recipe, sizes: Int32s) -> SampleBoxes | None:
        if not recipe.draws_from_boxes:
            return None
        from feeder.dataset.target_values import boxes_of  # few loaders need it

        return boxes_of(recipe, self.work.extras, self.extras, sizes)

    def rows(self, orientations: Uint8s, sizes: Int32s) -> Int32s:
        """Returns the rows that the crops need; see :data:`feeder.dataset.reader.Wanted`."""
        return stored_rows(self.draw(sizes), orientations)


def _take(views: tuple[Draws, ...], rows: list[int]) -> tuple[Draws, ...]:
    return tuple(draws.take(rows) for draws in views)


def _add(
    report: PartReport, sink: Sink, encoded: ReadSamples, rows: Int64s, draws: tuple[Draws, ...]
) -> list[DecodeError | None]:
    """Gives samples that were read to the sink, and counts them; returns an error or None for each."""
    errors = list(encoded.errors)
    good = [row for row, error in enumerate(errors) if error is None]
    if not good:
        return errors
    if len(good) < len(errors):
        rows, encoded, draws = rows[good], encoded.take(good), _take(draws, good)
    result = sink.add(rows, encoded, draws)
    report.clipped += result.clipped
    report.slow += result.slow
    for row, error in zip(good, result.errors, strict=True):
        errors[row] = error
    return errors
