"""The contract of backends that decode staged images in the trainer's process, on a device of their own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

import numpy as np

from feeder.decoders.decoder import Buffer, Decoder, DecodeResult, View, check_output_size, check_views
from feeder.decoders.staged.staged import Staged
from feeder.decoders.staged.stager import Stager
from feeder.errors import DecodeError
from feeder.system.arrays import Int32s, Size, Uint8s
from feeder.transforms import Recipe
from feeder.transforms.op import Params

if TYPE_CHECKING:
    import torch


class LeftToCpu(DecodeError):
    """An image that a :class:`TrainerDecoder` leaves to the CPU backend, which has the last word on it."""


class Padding(NamedTuple):
    """A batch of images of different sizes, which stand top left.

    Attributes:
        sizes: int32 [N, 2], (height, width) of each image after the recipe.
        size: (height, width) of the batch.
        value: What is left over has this value, in the output's dtype.
    """

    sizes: Int32s
    size: Size
    value: float


class StagedView(NamedTuple):
    """An output that is made of each of N staged images.

    Attributes:
        recipe: The ops for every image.
        rest: Drawn parameters of the ops after the base path, N rows each.
        padding: Pads the images to one size; given only where the loader has ``pad=``.
        size: (height, width) of the output, for a recipe whose output size depends on the image; without ``padding``
            all images have it.
    """

    recipe: Recipe
    rest: Sequence[Params]
    padding: Padding | None = None
    size: Size | None = None


@runtime_checkable
class TrainerDecoder(Decoder, Protocol):
    """A backend that decodes, in the trainer's process and on its own device, the images that workers have staged.

    Workers never touch it: they get its ``stager``.
    """

    stager: Stager
    device: torch.device

    def check(self, recipe: Recipe) -> None:
        """Refuses a recipe with an op that can't run in batches: a function, or an op whose images differ in size.

        Raises:
            BackendError: naming the op and the backend that can run it.
        """
        from feeder.decoders.device.device_ops import check_device_ops

        check_device_ops(recipe, self.name)

    def decode(
        self,
        buffers: Sequence[Buffer],
        orientations: Uint8s,
        views: Sequence[View],
        first_rows: Int32s | None = None,
    ) -> DecodeResult:
        """Stages N images and finishes them at once; see :meth:`feeder.decoders.decoder.Decoder.decode`."""
        check_views(buffers, orientations, views)
        if len(buffers) == 0:
            return DecodeResult([])
        for view in views:
            check_output_size(view.out, view.draws.output_size)
        return self._decode_with(self.stager, buffers, orientations, views, first_rows)

    def _decode_with(
        self,
        stager: Stager,
        buffers: Sequence[Buffer],
        orientations: Uint8s,
        views: Sequence[View],
        first_rows: Int32s | None,
    ) -> DecodeResult:
        from feeder.decoders.tensors import as_tensor

        recipes, draws = [view.recipe for view in views], [view.draws for view in views]
        staged, result = stager.stage(buffers, orientations, recipes, draws, first_rows)
        wanted = [
            StagedView(recipe, drawn.ops[recipe.base_length :], size=(out.shape[2], out.shape[3]))
            for recipe, drawn, out in views
        ]
        images, late = self.finish(staged, wanted)
        for view, found in zip(views, images, strict=True):
            as_tensor(view.out, view.recipe.output_dtype).copy_(found)
        errors = [error or fault for error, fault in zip(result.errors, late, strict=True)]

        left = np.flatnonzero([isinstance(error, LeftToCpu) for error in errors])
        if len(left):
            again = [view.take(left) for view in views]
            some = [buffers[row] for row in left.tolist()]
            rows = None if first_rows is None else first_rows[left]
            redone = self._decode_with(stager.on_cpu(), some, orientations[left], again, rows)
            for view, copied in zip(views, again, strict=True):
                view.out[left] = copied.out
            for row, error in zip(left.tolist(), redone.errors, strict=True):
                errors[row] = error
            result = DecodeResult.join([result, redone])
        return replace(result, errors=errors)

    def prepare(self, batch_size: int, outlier_pixels: int | None = None) -> None:
        """Prepares for the batches to come.

        Args:
            batch_size: The largest batch.
            outlier_pixels: Images with more stored pixels are decoded by workers; None for the default limit.
        """

    def start(self, staged: Staged) -> bool:
        """Starts to decode a batch, without waiting; :meth:`finish` or :meth:`drop` must follow.

        Returns:
            True if it is in flight; False if there is no memory for it yet, and it may be tried again.
        """
        ...

    def drop(self, staged: Staged) -> None:
        """Forgets a batch that was started."""

    def finish(
        self, staged: Staged, views: Sequence[StagedView], *, channels_last: bool = False
    ) -> tuple[list[torch.Tensor], list[DecodeError | None]]:
        """Decodes and augments a batch, started or not.

        Args:
            staged: N samples, at least one.
            views: The outputs, one for each view of the staged batch.
            channels_last: Memory format of the outputs.

        Returns:
            For each view [N, 3, H, W] of its recipe's output dtype, owned by the caller; and for each sample None or
            why it could not be decoded. One with :class:`LeftToCpu` is to be staged again by ``stager.on_cpu()``.
        """
        ...

    def meters(self) -> dict[str, int]:
        """Returns the number of images so far: its own, those of the CPU and those that were redone there."""
        return {name: getattr(self, name) for name in (f"{self.name}_images", "cpu_images", "redone_images")}

    def close(self) -> None:
        """Ends its threads and frees its memory; it can be used again."""
