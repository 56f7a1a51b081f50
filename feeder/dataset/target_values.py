"""Masks, boxes and keypoints of samples, as they go through the draws of the recipe. Needs no torch."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from feeder.dataset.drawn_fields import ImageSizes
from feeder.dataset.extras import Column, Extra
from feeder.dataset.further_images import FurtherImage, further_image
from feeder.dataset.reader import SWAPPING_ORIENTATIONS, Reader, check_fields
from feeder.decoders.targets.annotations import Annotations, decode_boxes, decode_points
from feeder.decoders.targets.mask import MaskArray, decode_mask, move_mask
from feeder.errors import ArgumentError, DecodeError
from feeder.shard.format.index_file import NUMBER_FIELDS
from feeder.system.arrays import Float32s, Int32s, Int64s, Size
from feeder.transforms import Draws
from feeder.transforms.boxes import Boxes, SampleBoxes, move_boxes, move_points
from feeder.transforms.moves import Moves, drawn_moves, upright
from feeder.transforms.recipe import Recipe
from feeder.transforms.targets import BoundingBoxes, Image, KeyPoints, Mask, Target, check_targets
from feeder.transforms.views import Views


class _Given(NamedTuple):
    """A target as it was read, and the EXIF orientation that is to be applied to it."""

    value: Any
    orientation: int


@dataclass(frozen=True)
class TargetValue(Extra):
    """Base of the targets that follow the geometry.

    Args:
        name: The member's name.
        target: The declaration.
        recipe: The ops of the image.
    """

    name: str
    target: Target
    recipe: Recipe

    def read(self, reader: Reader, i: int) -> Any:
        data = reader.member(i, self.name)
        if data is None:
            raise self._error("the sample has no such member; each sample needs one")
        return self.given(data, reader.orientation(i))

    def given(self, data: Any, orientation: int) -> Any:
        """Returns a target of an image of that EXIF orientation, as :meth:`read` does.

        Args:
            data: The member's bytes; or a mask's numbers as an array [H, W], or the object of boxes or keypoints.
            orientation: 1-8.

        Raises:
            DecodeError: if it is no such target.
        """
        if orientation != 1 and self.target.canvas is None:
            raise self._error(
                f"the image has EXIF orientation {orientation}: give the target canvas='stored' if it is in pixels of "
                "the file, or canvas='upright' if it is in pixels of the image as it is seen"
            )
        try:
            return _Given(self._decode(data), orientation if self.target.canvas == "stored" else 1)
        except DecodeError as error:
            raise self._error(error.reason) from None

    def _error(self, reason: str) -> DecodeError:
        return DecodeError(f"target {self.name!r}: {reason}")

    def _decode(self, data: Any) -> Any:
        raise NotImplementedError

    def _moves(self, given: _Given, draws: Draws, row: int) -> Moves:
        """Returns what happens to a target from the pixels that it is given in to the output's."""
        height, width = draws.image_size[row].tolist()
        moves = drawn_moves(self.recipe.ops, draws.ops, row, (height, width))
        if given.orientation == 1:
            return moves
        return itertools.chain(upright(given.orientation, _stored(given.orientation, (height, width))), moves)


@dataclass(frozen=True)
class MaskValue(TargetValue):
    """A mask: an array of the image's size in the slot, if the images of a batch have one.

    Args:
        name, target, recipe: See :class:`TargetValue`.
        is_padded: True if batches are padded to one size, and masks with them.
    """

    target: Mask
    is_padded: bool = False

    @cached_property
    def columns(self) -> tuple[Column, ...]:  # asked for once a sample
        size = self.recipe.output_size
        if size is None and not (self.recipe.has_bucket or self.is_padded):
            return ()
        fill = self.target.fill if self.is_padded else None
        return (Column(size or (0, 0), self.target.dtype, 0, fill),)  # the loader knows the size

    def _decode(self, data: Any) -> MaskArray:
        return decode_mask(data, self.target.dtype)

    def finish(self, value: _Given, draws: Draws, row: int) -> Any:
        height, width = draws.image_size[row].tolist()
        expected = _stored(value.orientation, (height, width))
        if value.value.shape != expected:
            found = value.value.shape
            other = {"stored": "upright", "upright": "stored"}.get(self.target.canvas or "")
            raise self._error(
                f"the mask has {found[1]}x{found[0]} pixels (width x height), the image {expected[1]}x{expected[0]}"
                + (f"; canvas={other!r} would fit" if other is not None and found == expected[::-1] else "")
            )
        moved = move_mask(value.value, self.target.fill, self._moves(value, draws, row))
        return (moved,) if self.columns else moved

    def collate(self, values: list[Any]) -> Any:
        masks = [self.sample(value) for value in values]
        if len({mask.shape for mask in masks}) > 1:
            return masks
        import torch

        return torch.stack(masks)

    def sample(self, value: Any) -> Any:
        import torch

        return torch.from_numpy(np.array(value[0] if isinstance(value, tuple) else value))


class _AnnotationsValue(TargetValue):
    """A dict of float32 boxes or keypoints and of lists."""

    _key: str
    is_ragged = True

    def finish(self, value: _Given, draws: Draws, row: int) -> dict[str, Any]:
        found: Annotations = value.value
        moved = found.keep(*self._moved(found.values, self._moves(value, draws, row)))
        return {self._key: moved.values, **moved.rest}

    def _moved(self, values: Float32s, moves: Moves) -> tuple[Float32s, Int64s]:
        raise NotImplementedError

    def collate(self, values: list[Any]) -> Any:
        return [self.sample(value) for value in values]

    def sample(self, value: dict[str, Any]) -> Any:
        import torch

        return {k: torch.from_numpy(np.array(v)) if isinstance(v, np.ndarray) else v for k, v in value.items()}


class BoxesValue(_AnnotationsValue):
    """Boxes, labels and further lists."""

    target: BoundingBoxes
    _key = "boxes"

    def _decode(self, data: Any) -> Annotations:
        found = decode_boxes(data)
        if "labels" not in found.rest:
            if len(found.values):
                some = "[0]" if len(found.values) == 1 else "[0, ...]"
                raise DecodeError(
                    f"has boxes and no 'labels': give each box a label, \"labels\": {some} if all are of one class"
                )
            found.rest["labels"] = np.zeros(0, np.int64)
        found.rest["labels"] += self.target.first_label
        return found

    def _moved(self, values: Float32s, moves: Moves) -> tuple[Float32s, Int64s]:
        boxes, kept = move_boxes(Boxes(values, self.target.format, self.target.clamping_mode), moves)
        return boxes.values, kept

    def upright(self, given: _Given, size: Size) -> Boxes:
        """Returns the boxes before any op, for an image of that upright (height, width)."""
        boxes = Boxes(given.value.values, self.target.format, self.target.clamping_mode)
        return move_boxes(boxes, upright(given.orientation, _stored(given.orientation, size)))[0]


class PointsValue(_AnnotationsValue):
    """Keypoints and further lists."""

    target: KeyPoints
    _key = "keypoints"

    def _decode(self, data: Any) -> Annotations:
        return decode_points(data)

    def _moved(self, values: Float32s, moves: Moves) -> tuple[Float32s, Int64s]:
        return move_points(values, moves)


@dataclass(frozen=True)
class ViewsTarget(Extra):
    """A target that goes through the draws of each view: a list of its values, one for each.

    Args:
        name: The member's name.
        target: The declaration.
        views: The target with the recipe of each view.
    """

    name: str
    target: Target
    views: tuple[Extra, ...]

    @cached_property
    def columns(self) -> tuple[Column, ...]:  # asked for once a sample
        found = [view.columns for view in self.views]
        if not all(found):
            return ()
        return tuple(
            column if column.image is None else column._replace(image=number)
            for number, columns in enumerate(found)
            for column in columns
        )

    @property
    def is_ragged(self) -> bool:
        return any(view.is_ragged for view in self.views)

    def read(self, reader: Reader, i: int) -> Any:
        return self.views[0].read(reader, i)

    def finish_views(self, value: Any, draws: Sequence[Draws], row: int) -> Any:
        values = [view.finish(value, drawn, row) for view, drawn in zip(self.views, draws, strict=True)]
        return tuple(itertools.chain(*values)) if self.columns else values

    def gather(self, tensors: tuple[Any, ...]) -> list[Any]:
        given = iter(tensors)
        return [view.gather(tuple(itertools.islice(given, len(view.columns)))) for view in self.views]

    def collate(self, values: list[Any]) -> list[Any]:
        return [
            view.collate(list(of_view)) for view, of_view in zip(self.views, zip(*values, strict=True), strict=True)
        ]

    def sample(self, value: Any) -> list[Any]:
        if self.columns:
            given = iter(value)
            value = [tuple(itertools.islice(given, len(view.columns))) for view in self.views]
        return [view.sample(each) for view, each in zip(self.views, value, strict=True)]


TargetExtra = TargetValue | ViewsTarget | FurtherImage

_VALUES: dict[type[Target], type[TargetValue]] = {Mask: MaskValue, BoundingBoxes: BoxesValue, KeyPoints: PointsValue}


def target_values(
    targets: Mapping[str, Target] | None, recipe: Recipe | Views, *, exif: bool = True
) -> tuple[TargetExtra, ...]:
    """Returns the targets of a dataset by their members' names.

    Args:
        targets: The declarations; None for none.
        recipe: The ops of the image, or its views, of which each has values of its own.
        exif: Whether EXIF orientation is applied to the image.

    Raises:
        ArgumentError: for a name or declaration that is none, or an op of the recipe that can't be done to a target.
    """
    if targets is None:
        targets = {}

    if not isinstance(targets, Mapping):
        raise ArgumentError(f"targets must be a mapping such as {{'seg.png': T.Mask()}}, got {targets!r}")

    names = check_fields(list(targets))
    for name, target in targets.items():
        if name in ("key", "path", *NUMBER_FIELDS):
            raise ArgumentError(f"target {name!r} is no member of a sample; name one such as 'seg.png'")
        if type(target) not in (*_VALUES, Image):
            found = repr(target)
            if isinstance(target, type) and issubclass(target, Target):
                found = f"the class {target.__name__}; write T.{target.__name__}()"
            raise ArgumentError(
                f"target {name!r} must be a T.Mask, T.BoundingBoxes, T.KeyPoints or T.Image, got {found}"
            )
        if target.canvas == "upright" and not exif:
            raise ArgumentError(
                f"target {name!r} has canvas='upright', and exif_orientation='ignore' leaves images as they are stored"
            )

    for view in recipe.views:
        check_targets(view, tuple(target for target in targets.values() if not isinstance(target, Image)))

    values: list[TargetExtra] = []
    key_row = len(recipe.views)
    for name in names:
        target = targets[name]
        if isinstance(target, Image):
            image = further_image(name, target, recipe, key_row if target.draws == "own" else 0, exif=exif)
            key_row = max(key_row, image.end)
            values.append(image)
            continue
        views = tuple(_VALUES[type(target)](name, target, view) for view in recipe.views)
        values.append(ViewsTarget(name, target, views) if isinstance(recipe, Views) else views[0])

    return tuple(values)


def targets_in(extras: Sequence[Extra]) -> tuple[TargetExtra, ...]:
    """Returns the targets among a dataset's extras."""
    return tuple(extra for extra in extras if isinstance(extra, (TargetValue, ViewsTarget, FurtherImage)))


def in_padded_batches(extras: Sequence[Extra]) -> tuple[Extra, ...]:
    """Returns the extras of batches that are padded to one size: the images' own sizes, and masks padded alike."""
    return (ImageSizes(), *(replace(e, is_padded=True) if isinstance(e, MaskValue) else e for e in extras))


def boxes_of(
    recipe: Recipe, extras: Sequence[Extra], values: Sequence[Sequence[Any]], sizes: Int32s
) -> SampleBoxes | None:
    """Returns the boxes of N samples for :meth:`feeder.transforms.Recipe.draw`; None if no op draws from boxes.

    Args:
        recipe: The ops.
        extras: Targets and further fields.
        values: N values of each, as they were read; an error counts as no boxes.
        sizes: int32 [N, 2], upright (height, width) of the images.
    """
    if not recipe.draws_from_boxes:
        return None
    firsts = (extra.views[0] if isinstance(extra, ViewsTarget) else extra for extra in extras)
    target, given = next((e, v) for e, v in zip(firsts, values, strict=True) if isinstance(e, BoxesValue))
    none = Boxes(np.zeros((0, 4), np.float32))
    return SampleBoxes(
        [
            target.upright(each, (height, width)) if isinstance(each, _Given) else none
            for each, (height, width) in zip(given, sizes.tolist(), strict=True)
        ]
    )


def _stored(orientation: int, size: Size) -> Size:
    """Returns the stored (height, width) of an image with that upright one."""
    return size[::-1] if orientation in SWAPPING_ORIENTATIONS else size
