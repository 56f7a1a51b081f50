"""The last steps on a batch, where its images are wanted: the remaining ops, mixing, the memory format."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from feeder.dataset.further_images import FurtherImage, by_image, in_order
from feeder.dataset.target_values import targets_in
from feeder.decoders.device.finisher import Finisher
from feeder.decoders.device.fused import DividedRecipe
from feeder.errors import ArgumentError
from feeder.loader.fast.batch_queue import BatchRecord
from feeder.loader.fast.sample_maker import Work
from feeder.transforms import BatchOp, Recipe, Views
from feeder.transforms.mixing import Mixing, pick
from feeder.transforms.op import Params


class Finishing:
    """The last steps of one loader.

    Args:
        work: The way its batches are made; the device's side of its divided recipes is done here.
        device: The device that the images go to; None: they stay where they were made.
        channels_last: Memory format of the images.
        mix: Ops of which one mixes the samples of each batch; empty for none.

    Raises:
        ArgumentError: if the dataset has targets, which ``mix`` can't mix; if ``mix`` with ``num_classes`` can't have
            the dataset's labels: there are none, they are floats, or there is no place for a class.
    """

    def __init__(
        self,
        work: Work,
        device: torch.device | None,
        channels_last: bool,
        mix: Sequence[BatchOp],
    ) -> None:
        moved = [*targets_in(work.extras), *(extra for extra in work.extras if extra.replaces_label)]
        if mix and moved:
            raise ArgumentError(
                f"{type(mix[0]).__name__} mixes images and labels, but not the target {moved[0].name!r} of the "
                "dataset: leave mix out, or the dataset's targets"
            )
        if mix and mix[0].num_classes is not None:  # all ops of mix have the same
            _check_labels(mix[0], work)

        self._work = work
        self._channels_last = channels_last
        self._mix = mix
        self._device = device

        # What a collate_fn made stays as it is. Where sizes vary, these are the last steps at one of them.
        recipes = () if work.makes_batches else work.recipes_at(work.largest, 0)
        divided = work.divided or (None,) * len(recipes)
        self._views = [_View(recipe, each, device) for recipe, each in zip(recipes, divided, strict=True)]
        self._views_by_recipes: dict[tuple[Recipe, ...], list[_View]] = {}
        self._has_steps = not work.makes_batches and (bool(mix) or channels_last or any(divided))
        self._has_views = isinstance(work.recipe, Views)
        self._view_count = len(work.recipe.views)
        # Places of further images in a batch, where images and labels come first.
        self._places = [2 + k for k, extra in enumerate(work.extras) if isinstance(extra, FurtherImage)]

    def host_batch(self, record: BatchRecord) -> tuple[Any, ...]:
        """Returns ``(images, labels, *targets, *fields)`` of a batch as it was made.

        Images are [N, 3, H, W] of the recipe's output dtype, or uint8 where ops are left; with views a list of these.
        """
        images = record.images
        if images is None:
            views = zip(self._views, record.arrays.images, strict=True)
            images = [view.stored(torch.from_numpy(array)) for view, array in views]

        labels = record.arrays.labels
        return (
            images[: self._view_count] if self._has_views else images[0],
            torch.from_numpy(labels if self._device is None else labels.copy()),
            *in_order(self._work.extras, self._further(images), self._extras(record)),
        )

    def _further(self, images: Sequence[torch.Tensor]) -> list[Any]:
        """Returns the further images of a batch, with views lists of these, of all images that were made."""
        return by_image(self._work.images, images[self._view_count :])

    def _extras(self, record: BatchRecord) -> Iterator[Any]:
        """Yields the batch's targets and further fields that are no images."""
        arrays, lists = iter(record.arrays.further), iter(record.report.extras)
        for extra in self._work.values:
            if extra.columns:
                found = itertools.islice(arrays, len(extra.columns))
                yield extra.gather(tuple(map(torch.from_numpy, found)))
            else:
                yield extra.collate(next(lists))

    def complete(self, record: BatchRecord | BaseException, batch: Any) -> Any:
        """Returns a batch of :meth:`host_batch` after the last steps; an error, or a collate_fn's batch, as it is."""
        if isinstance(record, BaseException) or self._work.makes_batches:
            return batch
        batch = self._stepped(record, batch) if self._has_steps else batch
        for extra in self._work.extras:
            batch = extra.arrange(batch, is_batch=True)
        return batch

    def _stepped(self, record: BatchRecord, batch: Any) -> tuple[Any, ...]:
        """Returns a batch after its images' last ops and mixing; its extras are not arranged yet."""
        images, labels, *extras = batch
        views = images if self._has_views else [images]
        mixings = self.mixing(record, [(view.shape[2], view.shape[3]) for view in views]) if self._mix else None

        if record.images is None:  # else the decoder in this process has completed them
            held = (batch[place] for place in self._places)
            further = (view for image in held for view in (image if isinstance(image, list) else [image]))
            done = self._images(record, [*views, *further], mixings)
            images = done[: self._view_count] if self._has_views else done[0]
            for place, image in zip(self._places, self._further(done), strict=True):
                extras[place - 2] = image

        if mixings is not None:
            self._mix[0].check_labels(record.arrays.labels)
            labels = self._mix[0].mixed_labels(labels, mixings[0].label_weight)
        return (images, labels, *extras)

    def mixing(self, record: BatchRecord, sizes: Sequence[tuple[int, int]]) -> list[Mixing] | None:
        """Returns each view's mixing, a function of seed, epoch and the position of the batch's first sample.

        All views are mixed by one op with one drawn weight; a rectangle has the same place relative to a view's size.

        Args:
            record: The batch.
            sizes: (height, width) of the images of each view.
        """
        if not self._mix:
            return None
        place = self._work.seed, record.epoch, int(record.arrays.samples.positions[0])
        op = pick(self._mix, *place)
        return [op.draw(*place, *size) for size in sizes]

    def _images(
        self, record: BatchRecord, images: Sequence[torch.Tensor], mixings: Sequence[Mixing] | None
    ) -> list[torch.Tensor]:
        """Completes images that workers decoded: [N, 3, H, W] of its recipe's output dtype, for each view and further
        image."""
        work, keys = self._work, None
        done = []
        for number, (view, pixels) in enumerate(zip(self._views_of(record, images), images, strict=True)):
            rest = None
            if view.needs_rest:
                keys = work.image_keys(record.made()) if keys is None else keys
                rest = view.recipe.draw_rest(work.seed, record.epoch, keys[number])
            mixing = None if mixings is None else mixings[number]
            done.append(view.complete(pixels, rest, mixing, self._channels_last))
        return done

    def _views_of(self, record: BatchRecord, images: Sequence[torch.Tensor]) -> list[_View]:
        """Returns the last steps on the images of a batch."""
        if not self._work.divided:
            return self._views
        recipes = self._work.recipes_at((images[0].shape[2], images[0].shape[3]), record.epoch)
        if recipes == self._work.recipes:
            return self._views
        if recipes not in self._views_by_recipes:
            both = zip(recipes, self._work.divided_of(recipes), strict=True)
            self._views_by_recipes[recipes] = [_View(recipe, divided, self._device) for recipe, divided in both]
        return self._views_by_recipes[recipes]


class _View:
    """The last steps on one view of the images, on the only one, or on further images.

    Args:
        recipe: Its recipe.
        divided: The recipe divided between CPU and device; None if nothing is left to do on the device.
        device: The device that the images go to; None: they stay where they were made.
    """

    def __init__(self, recipe: Recipe, divided: DividedRecipe | None, device: torch.device | None) -> None:
        self.recipe = recipe
        self.needs_rest = divided is not None and divided.fuses_rest and bool(recipe.rest)
        # numpy has no bfloat16: its bits are stored as uint16.
        self._is_bfloat16 = divided is None and recipe.output_dtype == "bfloat16"
        self._finisher = Finisher(recipe, device) if divided is not None and device is not None else None

    def stored(self, images: torch.Tensor) -> torch.Tensor:
        """Returns images as they are stored, in their dtype."""
        return images.view(torch.bfloat16) if self._is_bfloat16 else images

    def complete(
        self, images: torch.Tensor, rest: Sequence[Params] | None, mixing: Mixing | None, channels_last: bool
    ) -> torch.Tensor:
        """Completes images that workers decoded: [N, 3, H, W] of the recipe's output dtype."""
        if self._finisher is not None:
            size = images.shape[2], images.shape[3]
            images = self._finisher(images, size, rest, layout="nchw", channels_last=channels_last)
        mixed = images if mixing is None else mixing.apply(images)
        return mixed.to(memory_format=torch.channels_last) if channels_last else mixed


def _check_labels(op: BatchOp, work: Work) -> None:
    """Refuses labels that ``num_classes`` is not for."""
    labels, what = work.reader.labels(), f"{type(op).__name__}(num_classes={op.num_classes})"
    if labels.dtype.kind == "f":
        raise ArgumentError(
            f"{what} mixes class labels, but those of {work.reader.place} are float32 targets; without num_classes a "
            "batch has the targets of both images and the weight"
        )
    if len(labels) and labels.max() < 0:
        raise ArgumentError(f"{what} mixes class labels, but no sample of {work.reader.place} has a label")
    op.check_labels(labels)
