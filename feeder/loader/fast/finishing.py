"""What a loader does to a batch once its images are where they are wanted: the last ops, mixing, the memory format."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from feeder import _gpu
from feeder._gpu.tensors import as_tensor
from feeder.decode.device.finisher import Finisher
from feeder.errors import ArgumentError
from feeder.transforms.mixing import pick

if TYPE_CHECKING:
    from collections.abc import Sequence

    from feeder.loader.fast.batches import Finished
    from feeder.loader.fast.sample_maker import Work
    from feeder.transforms import BatchOp
    from feeder.transforms.mixing import Mixing

__all__ = ["Completion", "mixing_partner"]


class Completion:
    """The last steps of one loader.

    Args:
        work: How its batches are made; with a split of the recipe, the device's side of it is done here.
        device: Where the images are then; None: where they were made.
        channels_last: Memory format of the images.
        mix: What mixes the samples of each batch: one of these for each; empty for none.

    Raises:
        ArgumentError: if ``mix`` with ``num_classes`` can't have the dataset's labels: there are none, they are
            targets, or there is no place for a class.
    """

    def __init__(self, work: Work, device: torch.device | None, channels_last: bool, mix: Sequence[BatchOp]) -> None:
        if mix and mix[0].num_classes is not None:  # the same for all
            _check_labels(mix[0], work)
        self._work, self._channels_last, self._mix = work, channels_last, mix
        self._finisher = Finisher(work.recipe, device) if work.split is not None and device is not None else None

    def stored(self, finished: Finished) -> torch.Tensor:
        """The images as workers left them: [N, 3, H, W] of the output's dtype, or uint8 before the last ops."""
        dtype = "uint8" if self._work.split is not None else self._work.recipe.output_dtype
        return as_tensor(finished.arrays.images, dtype)

    def mixing(self, finished: Finished) -> Mixing | None:
        """What is mixed: a function of seed, epoch and the place in the epoch of the batch's first sample."""
        if not self._mix:
            return None
        size = self._work.recipe.output_size
        assert size is not None
        place = self._work.seed, finished.epoch, int(finished.arrays.positions[0])
        return pick(self._mix, *place).draw(*place, *size)

    def images(self, finished: Finished, images: torch.Tensor) -> torch.Tensor:
        """Completes images that workers decoded.

        Args:
            finished: Their batch.
            images: As :meth:`stored` gives them, on the device.

        Returns:
            [N, 3, H, W] of the recipe's output dtype.
        """
        work, mixing = self._work, self.mixing(finished)
        if self._finisher is None:
            mixed = images if mixing is None else mixing.apply(images)
            return mixed.to(memory_format=torch.channels_last) if self._channels_last else mixed
        assert work.split is not None
        rest = None
        if work.split.fuses_rest and work.recipe.rest:
            rest = work.recipe.draw_rest(work.seed, finished.epoch, finished.made_ids())
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

    def labels(self, finished: Finished, labels: torch.Tensor) -> Any:
        """The labels, or what :meth:`feeder.transforms.BatchOp.mixed_labels` makes of them.

        Raises:
            ArgumentError: if one is out of the range that the mixing op was told.
        """
        mixing = self.mixing(finished)
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


def mixing_partner(mixing: Mixing, count: int, device: torch.device) -> _gpu.Mix:
    """What kernel 1 takes for it: the partner of each of so many samples is the one before it."""
    return _gpu.Mix(torch.arange(-1, count - 1, device=device) % count, mixing.lam, mixing.box)
