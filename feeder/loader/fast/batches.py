"""Records of batches: requested, made, and decoded."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from feeder.loader.fast.substitution import Substitution
from feeder.loader.slots.image_slots import Samples, Sizes, SlotView

if TYPE_CHECKING:
    from feeder.decoders.decoder import Buffer
    from feeder.loader.slots.batch_message import Collated

__all__ = ["Decoded", "Finished", "Request"]


class Request(NamedTuple):
    """A batch to make.

    Attributes:
        epoch: The epoch that the augmentation is drawn for.
        samples: The samples.
        sizes: Sizes of the images; None: the recipe's.
    """

    epoch: int
    samples: Samples
    sizes: Sizes | None = None


@dataclass
class Finished:
    """A batch that is made.

    Attributes:
        arrays: Its rows.
        extras: Values of the targets and further fields that have no array in the slot, each a list of N.
        substitutions: Bad samples and their substitutes.
        epoch: The epoch of its augmentation.
        parts: (first row, number of rows) of its parts.
        left_over: Staged images that did not fit into the slot, by image of the sample, row and view.
        collated: The batch that a collate_fn made, in place of images, labels and fields; else None.
        clipped, slow: Numbers of images that were decoded with a loss of range, or slowly; see
            :class:`feeder.loader.fast.part_report.PartReport`.
    """

    arrays: SlotView
    extras: list[list[Any]]
    substitutions: list[Substitution]
    epoch: int
    parts: list[tuple[int, int]]
    left_over: dict[tuple[int, int, int], Buffer] = field(default_factory=dict)
    collated: Collated | None = None
    clipped: int = 0
    slow: int = 0

    def let_go(self, *, is_taken: bool = False) -> None:
        """Copies all but the images to ordinary memory and drops the slot; the images are gone from here.

        Args:
            is_taken: True if the caller has the targets and further fields; they are not copied then.
        """
        arrays = self.arrays
        further = () if is_taken else arrays.further
        self.arrays = SlotView(arrays.samples, arrays.labels, (), further, arrays.sizes).copy()

    def made(self) -> Samples:
        """Returns the samples whose images are in the batch: those of the request, or their substitutes."""
        samples = self.arrays.samples
        if not self.substitutions:
            return samples
        made = samples.copy()
        for substitution in self.substitutions:
            row = samples.positions == substitution.position
            made.ids[row], made.repeats[row] = substitution.substitute, 0
        return made


@dataclass
class Decoded(Finished):
    """A batch with its images decoded; its arrays stand in ordinary memory, without images.

    Attributes:
        images: [N, 3, H, W] of the recipe's output dtype, on the decoder's device, for each view.
    """

    images: list[torch.Tensor] = field(default_factory=list)
