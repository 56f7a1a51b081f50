"""The last steps on a batch, where its images are wanted: the remaining ops, mixing, the memory format."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import torch

from feeder.dataset.targets import targets_in
from feeder.decoders.device.finisher import Finisher, mixing_partner
from feeder.errors import ArgumentError
from feeder.loader.fast.batches import Decoded, Finished
from feeder.transforms.mixing import pick

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from feeder.loader.fast.sample_maker import Work
    from feeder.transforms import BatchOp
    from feeder.transforms.mixing import Mixing

__all__ = ["Finishing"]


class Finishing:
    """The last steps of one loader.

    Args:
        work: The way its batches are made; with a split of the recipe, the device's side of it is done here.
        device: The device that the images go to; None: they stay where they were made.
        channels_last: Memory format of the images.
        mix: Ops of which one mixes the samples of each batch; empty for none.

    Raises:
        ArgumentError: if the dataset has targets, which ``mix`` can't mix; if ``mix`` with ``num_classes`` can't have
            the dataset's labels: there are none, they are floats, or there is no place for a class.
    """

    def __init__(self, work: Work, device: torch.device | None, channels_last: bool, mix: Sequence[BatchOp]) -> None:
        moved = targets_in(work.extras)
        if mix and moved:
            raise ArgumentError(
                f"{type(mix[0]).__name__} mixes images and labels, but not the target {moved[0].name!r} of the "
                "dataset: leave mix out, or the dataset's targets"
            )
        if mix and mix[0].num_classes is not None:  # the same for all
            _check_labels(mix[0], work)
        self._work, self._channels_last, self._mix = work, channels_last, mix
        self._is_on_device = device is not None
        # numpy has no bfloat16: its bits are stored as uint16.
        self._is_bfloat16 = work.split is None and work.recipe.output_dtype == "bfloat16"
        self._finisher = Finisher(work.recipe, device) if work.split is not None and device is not None else None

    def host_batch(self, finished: Finished) -> tuple[Any, ...]:
        """Returns ``(images, labels, *targets, *fields)`` of a batch as it was made.

        Images are [N, 3, H, W] of the recipe's output dtype, or uint8 where ops are left.
        """
        if isinstance(finished, Decoded):
            images = finished.images
        else:
            images = torch.from_numpy(finished.arrays.images[0])
            if self._is_bfloat16:
                images = images.view(torch.bfloat16)
        labels = finished.arrays.labels
        first = images, torch.from_numpy(labels.copy() if self._is_on_device else labels)
        return (*first, *self._extras(finished)) if self._work.extras else first

    def _extras(self, finished: Finished) -> Iterator[Any]:
        """Yields the batch's targets and further fields."""
        arrays, lists = iter(finished.arrays.further), iter(finished.extras)
        for extra in self._work.extras:
            if extra.columns:
                found = itertools.islice(arrays, len(extra.columns))
                yield extra.gather(tuple(map(torch.from_numpy, found)))
            else:
                yield extra.collate(next(lists))

    def complete(self, finished: Finished | BaseException, batch: Any) -> Any:
        """Does the last steps on a batch where it is wanted; an error, or what a collate_fn made, stays as it is."""
        if isinstance(finished, BaseException) or self._work.makes_batches:
            return batch
        images, labels, *extras = batch
        mixing = self.mixing(finished, (images.shape[2], images.shape[3]))
        if not isinstance(finished, Decoded):
            images = self._images(finished, images, mixing)
        return (images, self._labels(finished, labels, mixing), *extras)

    def mixing(self, finished: Finished, size: tuple[int, int] | None = None) -> Mixing | None:
        """Returns the batch's mixing, a function of seed, epoch and the position of the batch's first sample.

        Args:
            finished: The batch.
            size: (height, width) of its images; None: the recipe's.
        """
        if not self._mix:
            return None
        size = size or self._work.recipe.output_size
        assert size is not None
        place = self._work.seed, finished.epoch, int(finished.arrays.samples.positions[0])
        return pick(self._mix, *place).draw(*place, *size)

    def _images(self, finished: Finished, images: torch.Tensor, mixing: Mixing | None) -> torch.Tensor:
        """Completes images that workers decoded: [N, 3, H, W] of the recipe's output dtype."""
        work = self._work
        if self._finisher is None:
            mixed = images if mixing is None else mixing.apply(images)
            return mixed.to(memory_format=torch.channels_last) if self._channels_last else mixed
        assert work.split is not None
        rest = None
        if work.split.fuses_rest and work.recipe.rest:
            rest = work.recipe.draw_rest(work.seed, finished.epoch, work.keys(finished.made()))
        fused = mixing is not None and work.recipe.output_dtype != "uint8"
        done = self._finisher(
            images,
            (images.shape[2], images.shape[3]),
            rest,
            layout="nchw",
            channels_last=self._channels_last,
            mix=mixing_partner(mixing, len(images), images.device) if mixing is not None and fused else None,
        )
        return mixing.apply(done) if mixing is not None and not fused else done

    def _labels(self, finished: Finished, labels: torch.Tensor, mixing: Mixing | None) -> Any:
        """Mixes the labels, see :meth:`feeder.transforms.BatchOp.mixed_labels`.

        Raises:
            ArgumentError: if one is out of the range that the mixing op was told.
        """
        if mixing is None:
            return labels
        self._mix[0].check_labels(finished.arrays.labels)
        return self._mix[0].mixed_labels(labels, mixing.label_weight)


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
