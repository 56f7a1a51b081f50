"""Samples decoded one by one, as ``dataset[i]`` gives them."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from feeder.dataset.extras import Extra
from feeder.dataset.further_images import FurtherImage, by_image, further_recipes, images_in
from feeder.dataset.reader import Reader
from feeder.dataset.target_values import boxes_of
from feeder.decoders.decoder import Buffer, View
from feeder.decoders.image_header import clipped_warning
from feeder.decoders.registry import get_decoder
from feeder.errors import DecodeError
from feeder.system.arrays import AnyArray, Int32s, Int64s, Uint8s
from feeder.system.warning import warn
from feeder.transforms import Draws, Recipe, Views

_counting = threading.local()


class Replaced(NamedTuple):
    """A sample with a bad image that was replaced by another.

    Attributes:
        sample: Its index.
        key: Path of the image's file, or the sample's name.
        reason: What is wrong with it.
        substitute: Index of the sample in its place.
    """

    sample: int
    key: str | None
    reason: str
    substitute: int


@dataclass
class DecodeCounts:
    """Numbers of images that were not decoded in the usual way.

    Attributes:
        clipped: Images of more than 8 bits per channel, which were clipped.
        slow: JPEGs that took the backend's slow path.
        substitutions: Samples that were replaced, as far as they were given as :class:`feeder.Encoded`.
    """

    clipped: int = 0
    slow: int = 0
    substitutions: list[Replaced] = field(default_factory=list)


@contextlib.contextmanager
def counted() -> Iterator[DecodeCounts]:
    """Counts the images that this thread decodes one by one, in any dataset. Clipped images then cause no warning."""
    before = current_counts()
    _counting.counts = counts = DecodeCounts()
    try:
        yield counts
    finally:
        _counting.counts = before


def current_counts() -> DecodeCounts | None:
    """Returns the counts of :func:`counted` in this thread; None outside of it."""
    return getattr(_counting, "counts", None)


def noted(clipped: int, slow: int) -> bool:
    """Counts images where :func:`counted` counts them; returns whether to warn of clipped ones.

    Args:
        clipped, slow: As in :class:`DecodeCounts`.
    """
    counts = current_counts()
    if counts is None:
        return clipped > 0
    counts.clipped += clipped
    counts.slow += slow
    return False


class SampleDecoder:
    """Decodes samples one by one, as their images may differ in size. Uses the backend that "auto" chooses.

    Args:
        reader: The samples' encoded bytes.
        recipe: The ops that every image goes through, or its views.
        extras: Targets and further fields.
    """

    def __init__(self, reader: Reader, recipe: Recipe | Views, extras: Sequence[Extra]) -> None:
        self._reader = reader
        self._recipe = recipe
        self._extras = extras
        self._decoder = get_decoder("auto", (*recipe.views, *further_recipes(images_in(extras))))
        self._has_warned = False

    def decode(self, seed: int, epoch: int, keys: Int64s, ids: Int64s) -> tuple[list[Any], AnyArray, list[list[Any]]]:
        """Reads, decodes and augments samples. Warns of the first clipped image, unless :func:`counted` counts them.

        Args:
            seed: Seed of the augmentation, 0 to 2**64-1.
            epoch: Epoch of the augmentation.
            keys: int64 [V, N], keys of the augmentation's draws for each of the V views, or for the one image, and for
                further images with draws of their own.
            ids: int64 [N].

        Returns:
            N images [C, H, W] of the recipe's ``storage_dtype``, each with its own memory, or N lists of views; their
            labels [N]; and for each target and field a list of N entries.

        Raises:
            DecodeError: for the first bad sample, naming it.
        """
        reader, recipe = self._reader, self._recipe.at(None, epoch)
        values = [[_read(extra, reader, i) for i in ids.tolist()] for extra in self._extras]
        encoded = reader.read(ids)

        images = []
        for row, i in enumerate(ids.tolist()):
            problem = encoded.errors[row]
            if problem is None:
                one = slice(row, row + 1)
                given, views = [found[one] for found in values], []
                for each, drawn in zip(recipe.views, keys, strict=False):
                    boxes = boxes_of(each, self._extras, given, encoded.sizes[one])
                    draws = each.draw(seed, epoch, drawn[one], encoded.sizes[one], boxes)
                    views.append(_view(each, draws))
                problem = self._decode(i, encoded.buffers[one], encoded.orientations[one], views)
                made = [view.out[0] for view in views]
                images.append(made if isinstance(recipe, Views) else made[0])

            if problem is not None:
                raise reader.at(problem, i)
            for extra, found in zip(self._extras, values, strict=True):
                try:
                    if isinstance(extra, FurtherImage):
                        size, own = encoded.sizes[row : row + 1], keys[:, row : row + 1]
                        found[row] = self._further(i, extra, found[row], [view.draws for view in views], own, size)
                    else:
                        found[row] = extra.sample(extra.finish_views(found[row], [view.draws for view in views], 0))
                except DecodeError as error:
                    raise reader.at(error, i) from None
        return images, encoded.labels, values

    def _further(
        self,
        i: int,
        image: FurtherImage,
        data: bytes,
        first: Sequence[Draws],
        keys: Int64s,
        size: Int32s,
    ) -> Any:
        """Decodes a further image of one sample to a tensor [C, H, W], or a list of views; see
        :class:`FurtherImage`."""
        from feeder.decoders.tensors import as_tensor

        encoded = image.encoded([data], size)
        problem = encoded.errors[0]
        if problem is not None:
            raise problem
        recipes = image.recipe.at(None, first[0].epoch).views
        views = [*map(_view, recipes, image.draw(recipes, first, list(keys), encoded.sizes))]
        problem = self._decode(i, encoded.buffers, encoded.orientations, views)
        if problem is not None:
            raise image.named(problem)
        return by_image([image], [as_tensor(view.out[0], view.recipe.output_dtype) for view in views])[0]

    def _decode(
        self,
        i: int,
        buffers: Sequence[Buffer],
        orientations: Uint8s,
        views: Sequence[View],
    ) -> DecodeError | None:
        """Decodes an image of sample ``i``, and counts it if it was clipped or slow; or warns."""
        result = self._decoder.decode(buffers, orientations, views)
        if noted(result.clipped, result.slow) and not self._has_warned:
            self._has_warned = True
            key = self._reader.field(i, "key")
            warn(f"sample {key!r}: {clipped_warning(1)}; later ones are not named")
        return result.errors[0]


def _view(recipe: Recipe, draws: Draws) -> View:
    """Returns a view of one image, with memory of its own."""
    return View(
        recipe, draws, np.empty((1, *recipe.leading_shape, *draws.output_size[0].tolist()), recipe.storage_dtype)
    )


def _read(extra: Extra, reader: Reader, i: int) -> Any:
    try:
        return extra.read(reader, i)
    except DecodeError as error:
        raise reader.at(error, i) from None
