"""The outputs of a part: images as pixels in the slot, or as encoded bytes staged there for a decoder in the trainer;
targets and further fields.

Needs no torch.
"""

from __future__ import annotations

import itertools
import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from feeder.dataset.extras import Extra
from feeder.dataset.reader import Reader, ReadSamples
from feeder.decoders.decoder import Buffer, Decoder, DecodeResult, View
from feeder.decoders.device.fused import DividedRecipe
from feeder.decoders.op_math import bfloat16_bits
from feeder.decoders.staged.staged import ROW, RowKind, Staged
from feeder.decoders.staged.stager import Stager
from feeder.errors import DecodeError
from feeder.loader.fast.part_report import PartReport
from feeder.loader.observe.meter import Meter
from feeder.loader.slots.image_slots import SlotView
from feeder.system.arrays import AnyArray, Int64s, Size, Uint8s
from feeder.transforms import Draws, Recipe


class Sink:
    """Base of what takes the images of a part, all at once, and some of them again."""

    def add(self, rows: Int64s, encoded: ReadSamples, draws: tuple[Draws, ...]) -> DecodeResult:
        """Takes the images of some rows; a row that is given again is replaced.

        Args:
            rows: int64 [K], rows of the part, ascending.
            encoded: K images, as they were read without an error; need not outlive the call.
            draws: The random parameters drawn for each view of them.
        """
        raise NotImplementedError

    def close(self) -> dict[int, Buffer]:
        """Ends the part; returns the payloads of staged images that did not fit the slot, by their place, see
        :class:`feeder.decoders.staged.staged.Staged`."""
        return {}


@dataclass
class PixelSink(Sink):
    """Decodes at once, into the slot.

    Args:
        decoder: The decoder.
        recipes: The recipe of each view.
        divided: For each view its recipe, divided between CPU and device; None does all of it here.
        images: [N, C, H, W] of each view, the part of the slot.
        meter: Counts time and bytes.
        apart: Keeps memory by the number of the view for images of some rows, as fresh pages take a tenth of the time
            that these take; None: none is kept.
    """

    decoder: Decoder
    recipes: tuple[Recipe, ...]
    divided: tuple[DividedRecipe | None, ...]
    images: tuple[AnyArray, ...]
    meter: Meter
    apart: dict[int, AnyArray] | None = None

    def add(self, rows: Int64s, encoded: ReadSamples, draws: tuple[Draws, ...]) -> DecodeResult:
        """See :meth:`Sink.add`."""
        views = []
        each = zip(self.recipes, self.divided, draws, self.images, strict=True)
        for number, (recipe, divided, drawn, images) in enumerate(each):
            out = images if len(rows) == len(images) else self._memory(number, images, len(rows))
            views.append(View(recipe, drawn, out) if divided is None else View(divided.cpu, divided.draws(drawn), out))
        started = time.perf_counter_ns()
        result = self.decoder.decode(encoded.buffers, encoded.orientations, views, encoded.first_rows)
        written = sum(view.out.nbytes for view in views)
        self.meter.add_images(time.perf_counter_ns() - started, len(rows), written, result.spent_ns)
        for view, images in zip(views, self.images, strict=True):
            if view.out is not images:
                images[rows] = view.out
        return result

    def _memory(self, number: int, images: AnyArray, rows: int) -> AnyArray:
        """Returns memory apart from the slot for some rows of a view."""
        if self.apart is None:
            return np.empty((rows, *images.shape[1:]), images.dtype)
        kept = self.apart.get(number)
        if kept is None or len(kept) < rows or (kept.shape[1:], kept.dtype) != (images.shape[1:], images.dtype):
            kept = self.apart[number] = np.empty_like(images)
        return kept[:rows]


@dataclass
class SampleSink(Sink):
    """Decodes at once, each image into a separate array of the size that it has after the recipe.

    Args:
        decoder: The decoder.
        recipe: The recipe.
        images: A list of N, the part's images; filled with arrays [C, H, W].
        meter: Counts time and bytes.
    """

    decoder: Decoder
    recipe: Recipe
    images: Any
    meter: Meter

    def add(self, rows: Int64s, encoded: ReadSamples, draws: tuple[Draws, ...]) -> DecodeResult:
        """See :meth:`Sink.add`."""
        results = []
        for k, row in enumerate(rows.tolist()):
            drawn = draws[0].take([k])
            image = self._image(row, *drawn.output_size[0].tolist())
            sink = PixelSink(self.decoder, (self.recipe,), (None,), (image[None],), self.meter)
            results.append(sink.add(np.zeros(1, np.int64), encoded.take([k]), (drawn,)))
        return DecodeResult.join(results)

    def _image(self, row: int, height: int, width: int) -> AnyArray:
        """Returns the array [C, H, W] of a row's image."""
        image = np.empty((*self.recipe.leading_shape, height, width), self.recipe.storage_dtype)
        self.images[row] = image
        return image


@dataclass
class PaddedSink(SampleSink):
    """Decodes at once, each image into the top left of its row; the rest of the row gets one value.

    Args:
        decoder: The decoder.
        recipe: The recipe.
        images: [N, C, H, W], the part of the slot.
        meter: Counts time and bytes.
        value: The value of the padding.
    """

    value: Any

    def __post_init__(self) -> None:
        if self.recipe.output_dtype == "bfloat16":
            self.value = bfloat16_bits(np.array(self.value, np.float32))

    def _image(self, row: int, height: int, width: int) -> AnyArray:
        padded: AnyArray = self.images[row]
        padded[:, height:] = self.value
        padded[:, :height, width:] = self.value
        return padded[:, :height, :width]


@dataclass
class StagedSink(Sink):
    """Checks the images and cuts them to what their views need; they are decoded elsewhere.

    Args:
        stager: Checks and cuts.
        recipes: The recipe of each view.
        memory: uint8 [N, bytes], the part of the slot.
        meter: Counts time and bytes: of checking and cutting, and of writing.
    """

    stager: Stager
    recipes: tuple[Recipe, ...]
    memory: Uint8s
    meter: Meter

    def __post_init__(self) -> None:
        rows = np.zeros(len(self.memory) * len(self.recipes), ROW)
        rows["kind"] = RowKind.FAILED
        self._staged = Staged(rows, [b""] * len(rows), len(self.recipes))

    def add(self, rows: Int64s, encoded: ReadSamples, draws: tuple[Draws, ...]) -> DecodeResult:
        """See :meth:`Sink.add`."""
        started, views = time.perf_counter_ns(), len(self.recipes)
        staged, result = self.stager.stage(
            encoded.buffers, encoded.orientations, self.recipes, draws, encoded.first_rows
        )
        self.meter.add("cut", time.perf_counter_ns() - started, sum(map(len, staged.payloads)))
        places = (views * rows[:, None] + np.arange(views)).reshape(-1)
        self._staged.rows[places] = staged.rows
        for place, payload in zip(places.tolist(), staged.payloads, strict=True):
            self._staged.payloads[place] = payload
        return result

    def put_plans(self, plans: Uint8s, places: Int64s, size: Size, time_ns: int) -> None:
        """Takes the only view of all images as plans, see ``_native.plan_images``; those without bytes are added later.

        Args:
            plans, places: The plans.
            size: (height, width) of the outputs.
            time_ns: Time of planning.
        """
        self._staged.rows["kind"], self._staged.rows["size"] = RowKind.PLAN, size
        memory = plans.data
        self._staged.payloads[:] = [memory[a:b] for a, b in itertools.pairwise(places.tolist())]
        self.meter.add("cut", time_ns, len(plans))

    def close(self) -> dict[int, Buffer]:
        """See :meth:`Sink.close`."""
        started = time.perf_counter_ns()
        left_over = self._staged.pack(self.memory.reshape(-1))
        self.meter.add("write", time.perf_counter_ns() - started, sum(map(len, self._staged.payloads)))
        return left_over


def read_extras(extras: tuple[Extra, ...], reader: Reader, ids: Int64s) -> list[list[Any]]:
    """Returns the values of targets and further fields as they are read, N of each; errors in place of bad ones."""
    return [[_read(extra, reader, i) for i in ids.tolist()] for extra in extras]


def _read(extra: Extra, reader: Reader, i: int) -> Any:
    try:
        return extra.read(reader, i)
    except DecodeError as error:
        return error


def put_extras(
    extras: tuple[Extra, ...],
    values: list[list[Any]],
    view: SlotView,
    report: PartReport,
    rows: Int64s,
    draws: tuple[Draws, ...],
    errors: list[DecodeError | None],
) -> None:
    """Puts values of targets and further fields in a part; one that can't be had is the sample's error.

    Args:
        extras: The targets and fields, without further images.
        values: K values of each, from :func:`read_extras`.
        view: The part's rows of its slot, which get the arrays.
        report: The part's report, which gets the other values.
        rows: int64 [K], rows of the part.
        draws: The K samples' drawn parameters for each view; may be empty if no extra follows them.
        errors: K entries; samples that have an error already are left out.
    """
    columns = [extra.columns for extra in extras]
    for k, row in enumerate(rows.tolist()):
        further, lists = iter(view.further), iter(report.extras)
        for extra, of_extra, own in zip(extras, values, columns, strict=True):
            if errors[k] is not None:
                break

            value = of_extra[k]
            if isinstance(value, DecodeError):
                errors[k] = value
                break
            try:
                value = extra.finish_views(value, draws, k)
            except DecodeError as error:
                errors[k] = error
                break

            if not own:
                next(lists)[row] = value
                continue
            for column, each in zip(own, value, strict=True):
                column.put(each, next(further), row)
