"""Further images of a sample beside its image: the right one of a stereo pair, the next frame. Needs no torch."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

import numpy as np

from feeder.dataset.extras import Extra
from feeder.dataset.reader import Reader, ReadSamples
from feeder.decoders.image_header import image_info
from feeder.errors import ArgumentError, DecodeError
from feeder.system.arrays import Int32s, Int64s, Size
from feeder.transforms import Draws
from feeder.transforms.recipe import Recipe
from feeder.transforms.targets import Image, check_targets
from feeder.transforms.views import Views

_T = TypeVar("_T")


@dataclass(frozen=True)
class FurtherImage(Extra):
    """An image that is decoded as the sample's, and stands in the slot beside it.

    Args:
        name: The member's name.
        target: The declaration.
        recipe: The ops on it, or its views.
        number: First row of the keys that its views are drawn by, see :func:`key_rows`; 0 for those of the sample's
            image.
        exif: Whether EXIF orientation is applied.
    """

    name: str
    target: Image
    recipe: Recipe | Views
    number: int
    exif: bool = True

    @property
    def end(self) -> int:
        """The row after those of the keys that its views are drawn by."""
        return self.number + len(self.recipe.views)

    def read(self, reader: Reader, i: int) -> bytes:
        data = reader.member(i, self.name)
        if data is None:
            raise self._error("the sample has no such member")
        return data

    def encoded(self, given: Sequence[bytes | DecodeError], sizes: Int32s) -> ReadSamples:
        """Returns the images as a decoder takes them.

        Args:
            given: N images as they were read, or their errors.
            sizes: int32 [N, 2], upright (height, width) of the samples' images.
        """
        found = ReadSamples.unread(np.zeros(len(given), np.int64))
        for row, data in enumerate(given):
            try:
                if isinstance(data, DecodeError):
                    raise data
                info = image_info(data)
                found.orientations[row] = info.orientation if self.exif else 1
                size = info.upright_size if self.exif else (info.height_px, info.width_px)
                self._check_size(size, tuple(sizes[row].tolist()))
                found.buffers[row], found.sizes[row] = memoryview(data), size
            except DecodeError as error:
                found.errors[row] = error
            except ValueError as error:
                found.errors[row] = self._error(str(error))
        return found

    def draw(
        self,
        recipes: Sequence[Recipe],
        first: Sequence[Draws],
        keys: Sequence[Int64s],
        sizes: Int32s,
    ) -> tuple[Draws, ...]:
        """Returns the draws of N images for each view.

        Args:
            recipes: The ops of the views, at the sizes of their batch.
            first: Draws of the samples' first images, for each of their views.
            keys: int64 [N] in each of the rows of :func:`key_rows`.
            sizes: int32 [N, 2], upright (height, width) of these images.
        """
        has_same_draws = self.target.draws == "same" and self.target.recipe is None
        if has_same_draws and (self._one_size_op is not None or np.array_equal(sizes, first[0].image_size)):
            return tuple(first)
        seed, epoch, rows = first[0].seed, first[0].epoch, keys[self.number : self.end]
        return tuple(recipe.draw(seed, epoch, row, sizes) for recipe, row in zip(recipes, rows, strict=True))

    def named(self, error: DecodeError) -> DecodeError:
        """Returns a decoder's error with the member's name."""
        return self._error(error.reason)

    @cached_property
    def _one_size_op(self) -> str | None:
        """Name of the op that draws the same for images of one size only; None if none does."""
        views = self.recipe.views if self.target.draws == "same" else ()
        for op in itertools.chain.from_iterable(recipe.ops for recipe in views):
            for each in (op, *op.inner_ops):
                if each.draws_from_size:
                    return type(each).__name__
        return None

    def _check_size(self, size: Size, expected: tuple[int, ...]) -> None:
        if size != expected and self._one_size_op is not None:
            raise self._error(
                f"this image has {size[1]}x{size[0]} pixels (width x height), the sample's image "
                f"{expected[1]}x{expected[0]}, and {self._one_size_op} draws the same for images of one size only, as "
                "in torchvision v2: store them in one size, or give T.Image(draws='own')"
            )

    def _error(self, reason: str) -> DecodeError:
        return DecodeError(f"target {self.name!r}: {reason}")


def further_image(name: str, target: Image, recipe: Recipe | Views, number: int, *, exif: bool) -> FurtherImage:
    """Returns a dataset's further image; see :class:`FurtherImage`.

    Args:
        name, target, exif: See :class:`FurtherImage`.
        recipe: The ops on the samples' images, or their views.
        number: First row of the keys that it is drawn by.

    Raises:
        ArgumentError: for a recipe that is not for it.
    """
    own = recipe if target.recipe is None else target.recipe
    has_same_draws = own is recipe and target.draws == "same"
    if target.draws == "same" and len(own.views) != len(recipe.views):
        given, made = ("views" if isinstance(each, Views) else "view" for each in (own, recipe))
        raise ArgumentError(
            f"the transform of target {name!r} makes {len(own.views)} {given}, and the dataset's {len(recipe.views)} "
            f"{made}, with whose draws it is made: give T.Views of {len(recipe.views)} recipes, or "
            "T.Image(draws='own', ...)"
        )

    for view in own.views:
        if view.draws_from_boxes and not has_same_draws:
            raise ArgumentError(
                f"target {name!r} can't be cropped by RandomIoUCrop, which draws from the boxes of the sample's image: "
                "give T.Image(draws='same'), or a transform of its own without RandomIoUCrop"
            )
        if target.recipe is not None:
            check_targets(view, ())

    if own.has_bucket and not recipe.has_bucket:
        raise ArgumentError(
            f"the transform of target {name!r} has T.BUCKET, which is the size of the sample's image, and the "
            "dataset's transform has not; give a number"
        )

    return FurtherImage(name, target, own, number, exif)


def further_recipes(images: Iterable[FurtherImage]) -> Iterator[Recipe]:
    """Yields the recipes of all views of further images."""
    for image in images:
        yield from image.recipe.views


def by_image(images: Iterable[FurtherImage], made: Sequence[_T]) -> list[_T | list[_T]]:
    """Returns the views of further images by image: one, or a list of them where the image has Views.

    Args:
        images: The further images.
        made: All their views, in the order of :func:`further_recipes`.
    """
    views = iter(made)
    found = ((image.recipe, [next(views) for _ in image.recipe.views]) for image in images)
    return [each if isinstance(recipe, Views) else each[0] for recipe, each in found]


def images_in(extras: Sequence[Extra]) -> tuple[FurtherImage, ...]:
    """Returns the further images among a dataset's extras."""
    return tuple(extra for extra in extras if isinstance(extra, FurtherImage))


def values_in(extras: Sequence[Extra]) -> tuple[Extra, ...]:
    """Returns the extras that are no further images."""
    return tuple(extra for extra in extras if not isinstance(extra, FurtherImage))


def in_order(extras: Sequence[Extra], images: Iterable[_T], values: Iterable[_T]) -> list[_T]:
    """Returns further images and the values of the other extras in the order of the extras."""
    both = {True: iter(images), False: iter(values)}
    return [next(both[isinstance(extra, FurtherImage)]) for extra in extras]


def key_rows(recipe: Recipe | Views, extras: Sequence[Extra]) -> int:
    """Returns the number of keys that each sample is drawn by: one for each view or the image, and for each view of a
    further image with draws of its own."""
    return max([len(recipe.views), *(image.end for image in images_in(extras))])
