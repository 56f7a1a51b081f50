"""The size of each batch's images, where it is not that of the recipe alone: buckets, padding, sizes by epoch."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from feeder.dataset.reader import Reader
from feeder.decoders.device.fused import DividedRecipe, divide_recipe
from feeder.errors import ArgumentError
from feeder.loader.slots.image_slots import Samples
from feeder.order.bucket_order import BucketSplit, BucketTable, id_runs
from feeder.order.buckets import Buckets
from feeder.order.split import Split
from feeder.system.arrays import Int32s, Int64s, Size
from feeder.transforms import Recipe, Views
from feeder.transforms.pad_to_batch import PadToBatch

# Aspect ratios of photos; batches of detection are grouped by them.
_ASPECTS = Buckets(sizes=[(1, 2), (2, 3), (3, 4), (1, 1), (4, 3), (3, 2), (2, 1)])
# What :meth:`BatchSizes.identity` may have.
SIZE_IDENTITY = ("buckets", "group_by_aspect", "image_sizes", "sizes_by_epoch")
_PLANNED = 1 << 16  # samples whose sizes are drawn to plan the slots


@dataclass(frozen=True)
class BatchSizes:
    """The sizes of a loader's batches.

    Args:
        reader: Knows the images' sizes.
        recipe: The ops on every image, or its views.
        seed: Of the augmentation.
        buckets: The sizes of batches; None: without buckets.
        pad: Pads batches to one size; None: images of a batch have one size.
        further: The recipes of further images.
        key_rows: Number of keys that each sample is drawn by.

    Raises:
        ArgumentError: if the recipe does not go with the others.
    """

    reader: Reader
    recipe: Recipe | Views
    seed: int
    buckets: Buckets | None = None
    pad: PadToBatch | None = None
    further: tuple[Recipe, ...] = ()
    key_rows: int = 1

    def __post_init__(self) -> None:
        if isinstance(self.recipe, Views) and (self.buckets is not None or self.pad is not None):
            raise ArgumentError(
                "sizes= is for one image of each sample, and the transform is Views, of their own sizes; leave one of "
                "them out"
            )

        check_buckets(self.recipe, self.buckets)

        if self.pad is not None and self._only.draws_from_boxes:
            raise ArgumentError(
                "PadToBatch needs each image's size before the sample is read, and RandomIoUCrop draws it from the "
                "sample's boxes: end the geometry with Resize((height, width)), and leave sizes= out"
            )
        if self.pad is not None and self._only.output_dtype == "uint8" and self.pad.value not in range(256):
            raise ArgumentError(
                f"PadToBatch(value={self.pad.value!r}) is no pixel of uint8 images, an integer from 0 to 255; a recipe "
                "with ToDtype or Normalize makes floats"
            )

        if self.buckets is not None:
            for size in self.buckets.sizes:
                for recipe, epoch in [(each, epoch) for each in self._recipes for epoch in each.phases]:
                    found = recipe.at(size, epoch).output_size
                    if found != size and recipe.has_bucket:
                        whose = "the recipe" if recipe is self._only else "the transform of a T.Image"
                        raise ArgumentError(
                            f"{whose} makes {'images of different sizes' if found is None else found} of bucket "
                            f"{size}; end its geometry with RandomResizedCrop(T.BUCKET), RandomCrop(T.BUCKET) or "
                            "CenterCrop(T.BUCKET)"
                        )

        if self.buckets is not None or self.pad is not None:
            self.reader.measure()

    @property
    def _only(self) -> Recipe:
        """The recipe of the image, or of its first view; with buckets and padding there are no others."""
        return self.recipe.views[0]

    @property
    def _recipes(self) -> tuple[Recipe, ...]:
        return *self.recipe.views, *self.further

    @property
    def varies(self) -> bool:
        """True if batches differ in size."""
        return any(recipe.is_variable for recipe in self._recipes) or self.pad is not None

    def all(self) -> Iterator[tuple[Size | None, int]]:
        """Yields each bucket's (height, width), None without buckets, and each epoch at which some size changes, by
        which recipes differ."""
        phases = sorted({epoch for recipe in self._recipes for epoch in recipe.phases})
        yield from itertools.product((None,) if self.buckets is None else self.buckets.sizes, phases)

    def largest(self) -> Size | None:
        """Returns the size to make slots for; None: the recipe's. A padded batch may still be larger."""
        if self.buckets is not None:
            return self.buckets.largest
        if self.pad is None:
            return None
        ids = np.unique(np.linspace(0, len(self.reader) - 1, min(len(self.reader), _PLANNED)).astype(np.int64))
        if not ids.size:
            return self.pad.multiple, self.pad.multiple
        sizes = known_sizes(self.reader, ids)
        drawn = [self._only.draw(self.seed, epoch, ids, sizes).output_size for epoch in self.recipe.phases]
        return self.pad.size(np.concatenate(drawn))

    def of(self, epoch: int, split: Split | None, step: int, samples: Samples) -> Size:
        """Returns the (height, width) of a batch's images, or of their first view.

        Args:
            epoch: The epoch.
            split: This rank's share of it; None with an explicit sampler.
            step: The batch's number in the split.
            samples: The batch's samples.
        """
        if self.pad is not None:
            keys = samples.keys(self.key_rows, len(self.reader))[0]
            return self.pad.size(
                self._only.draw(self.seed, epoch, keys, known_sizes(self.reader, samples.ids)).output_size
            )
        if self.buckets is not None:
            assert isinstance(split, BucketSplit)
            return self.buckets.sizes[split.bucket(step)]
        size = self._only.at(None, epoch).output_size
        assert size is not None  # or torch's path had been taken
        return size

    def divided(self) -> tuple[DividedRecipe | None, ...]:
        """Returns the recipes of the image's views and of further images, divided at one of the sizes.

        None for one that can't be divided at all of them, empty if none can.
        """
        found = [[divide_recipe(recipe.at(*when)) for when in self.all()] for recipe in self._recipes]
        divided = tuple(None if None in each else each[0] for each in found)
        return divided if any(divided) else ()

    def identity(self) -> dict[str, Any]:
        """Returns the values that states and ranks have in common, as JSON takes them; see :data:`SIZE_IDENTITY`."""
        identity: dict[str, Any] = {}
        if self.buckets is not None:
            identity["buckets"] = [list(size) for size in self.buckets.sizes]
        if self.pad is not None and self.pad.group_by_aspect:
            identity["group_by_aspect"] = True
        if self.groups is not None and not len(self.reader.shard_sizes()):
            identity["image_sizes"] = self._sizes_digest
        if by_epoch := [each for recipe in self._recipes for each in recipe.by_epoch]:
            identity["sizes_by_epoch"] = [
                [[epoch, [size] if isinstance(size, int) else list(size)] for epoch, size in each.sizes]
                for each in by_epoch
            ]
        return identity

    def table(self) -> BucketTable | None:
        """Returns the samples of each bucket, or of each aspect ratio if padded batches are grouped; else None."""
        return None if self.groups is None else bucket_table(self.groups, self.reader)

    @property
    def groups(self) -> Buckets | None:
        """The sizes by which samples are grouped; None: they are not."""
        return _ASPECTS if self.pad is not None and self.pad.group_by_aspect else self.buckets

    @cached_property
    def _sizes_digest(self) -> str:
        """A digest of the sizes of all images: the order rests on them, and files may be replaced where no index says
        what they are."""
        digest = hashlib.blake2b(digest_size=8)
        for ids in id_runs(len(self.reader)):
            digest.update(np.ascontiguousarray(known_sizes(self.reader, ids)).data)
        return digest.hexdigest()


def check_buckets(recipe: Recipe | Views, buckets: Buckets | None) -> None:
    """Raises ArgumentError if a recipe has T.BUCKET and there are no buckets, or the other way around."""
    if recipe.has_bucket and buckets is None:
        raise ArgumentError("the recipe has T.BUCKET, so the loader needs sizes=feeder.Buckets(...)")
    if buckets is not None and not recipe.has_bucket:
        raise ArgumentError(
            "Buckets need a recipe that makes images of a bucket's size: give T.BUCKET as the size of an op, such as "
            "T.RandomResizedCrop(T.BUCKET)"
        )


def bucket_table(groups: Buckets, reader: Reader) -> BucketTable:
    """Returns the samples of each bucket; reads the headers of files whose sizes are not known yet."""
    reader.measure()
    return BucketTable.of(groups, len(reader), lambda ids: known_sizes(reader, ids))


def known_sizes(reader: Reader, ids: Int64s) -> Int32s:
    """Returns the upright sizes of samples that are measured, int32 [N, 2]."""
    known = reader.stored(ids)
    assert known is not None
    return known[1]
