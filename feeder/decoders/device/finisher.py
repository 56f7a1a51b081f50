"""The last step on the device: uint8 images turned, colored and normalized in one pass of kernel 1.

Ops that kernel 1 lacks run before it, on uint8 images (:mod:`feeder.decoders.device.device_ops`). Erasing runs after
it.
"""

from __future__ import annotations

import collections
import functools
from collections.abc import Sequence

import numpy as np
import torch

from feeder.decoders import gpu
from feeder.decoders.device.device_ops import check_device_ops, run_on_device
from feeder.decoders.device.erase import erase
from feeder.decoders.device.fused import Erasing, fused_from, fused_parameters
from feeder.decoders.staged.staged import by_size
from feeder.decoders.staged.trainer_decoder import Padding, StagedView
from feeder.decoders.stored_boxes import flipped_turns
from feeder.decoders.tensors import to_device
from feeder.system.arrays import Size, Uint8s
from feeder.transforms import Recipe
from feeder.transforms.op import Params

_FINISHERS = 256  # kept: of the recipes of an image's views, and of batches' sizes


class Finisher:
    """Runs a recipe's normalization, and its ops after the base path, on uint8 images.

    Args:
        recipe: The ops for every image.
        device: The images' device.
    """

    def __init__(self, recipe: Recipe, device: torch.device) -> None:
        self._recipe = recipe
        self._device = device
        self._first_fused = fused_from(recipe.rest)

    def __call__(
        self,
        images: torch.Tensor,
        size: Size,
        rest: Sequence[Params] | None,
        *,
        layout: str = "nhwc",
        turn: Uint8s | None = None,
        channels_last: bool = False,
    ) -> torch.Tensor:
        """Queues the work on the current stream.

        Args:
            images: uint8, contiguous, N images of the size after the base path, as
                :func:`feeder.decoders.gpu.normalize` takes them; not written to.
            size: (H, W) of the output.
            rest: Drawn parameters of the ops after the base path; None if these have been done.
            layout: Order of the images' bytes, "nhwc" or "nchw".
            turn: uint8 [N], each image's turn; see Note [Turns] in ``feeder.decoders.gpu.parameters``.
            channels_last: Memory format of the output.

        Returns:
            [N, 3, H, W] of the recipe's output dtype.
        """
        codes = np.zeros(len(images), np.uint8) if turn is None else turn
        color: gpu.Color | None = None
        erasings: list[Erasing] = []
        if rest:
            first = self._first_fused
            if first:
                base_size = self._recipe.base_size or size  # ops on images of any size keep it
                images, layout = self._run(images, base_size, layout, codes, rest[:first]), "nchw"
                codes = np.zeros(len(images), np.uint8)
            fused = fused_parameters(self._recipe.rest[first:], rest[first:], len(images), size[1])
            erasings = fused.erasings
            codes = flipped_turns(codes, fused.flip)
            color = fused.color(self._device)

        result = gpu.normalize(
            images,
            size,
            affine=self._affine,
            dtype=getattr(torch, self._recipe.output_dtype),
            layout=layout,
            channels_last=channels_last,
            turn=to_device(codes, self._device) if codes.any() else None,
            color=color,
        )
        for erasing in erasings:
            erase(result, erasing)
        return result

    @functools.cached_property
    def _affine(self) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Scale and bias on the device, copied once, with a wait: a later call may be on another stream."""
        if self._recipe.affine is None:
            return None
        scale, bias = (torch.tensor(each, device=self._device) for each in self._recipe.affine)
        return scale, bias

    def _run(
        self,
        images: torch.Tensor,
        size: Size,
        layout: str,
        codes: Uint8s,
        rest: Sequence[Params],
    ) -> torch.Tensor:
        """Runs the ops before kernel 1 on the turned images: uint8 [N, 3, H, W], contiguous."""
        turn = to_device(codes, self._device) if codes.any() else None
        pixels = gpu.normalize(images, size, dtype=torch.uint8, layout=layout, turn=turn)
        for op, params in zip(self._recipe.rest, rest, strict=False):
            pixels = run_on_device(pixels, op, params)
        return pixels.contiguous()

    def view(
        self, images: torch.Tensor, view: StagedView, *, turn: Uint8s | None = None, channels_last: bool = False
    ) -> torch.Tensor:
        """Finishes the images of a view, all of one size, or padded to one.

        Args:
            images: uint8 [N, bytes], [H, W, 3] after the base path; a smaller image has the first bytes of its row.
            view: The view; its recipe is this one's.
            turn: uint8 [N], each image's turn.
            channels_last: Memory format of the output.

        Returns:
            [N, 3, H, W] of the recipe's output dtype.
        """
        if view.padding is not None:
            return self.padded(images, view.rest, view.padding, turn=turn, channels_last=channels_last)
        size = view.size or self._recipe.output_size
        assert size is not None
        return self(images, size, view.rest, turn=turn, channels_last=channels_last)

    def padded(
        self,
        images: torch.Tensor,
        rest: Sequence[Params],
        padding: Padding,
        *,
        turn: Uint8s | None = None,
        channels_last: bool = False,
    ) -> torch.Tensor:
        """Finishes images of several sizes, those of each size together, and pads them to one.

        Args:
            images: uint8 [N, bytes], [H, W, 3] after the base path; a smaller image has the first bytes of its row.
            rest: Drawn parameters of the ops after the base path, N rows each.
            padding: The sizes.
            turn: uint8 [N], each image's turn.
            channels_last: Memory format of the output.

        Returns:
            [N, 3, H, W] of the recipe's output dtype.
        """
        recipe = self._recipe
        whole = torch.empty(
            (len(images), 3, *padding.size),
            dtype=getattr(torch, recipe.output_dtype),
            device=images.device,
            memory_format=torch.channels_last if channels_last else torch.contiguous_format,
        ).fill_(padding.value)

        for (height, width), rows in by_size(padding.sizes):
            base_height, base_width = recipe.base_size or (height, width)
            here = to_device(rows, images.device)
            some = images[here, : 3 * base_height * base_width].contiguous()
            drawn = [{name: values[rows] for name, values in params.items()} for params in rest]
            turns = None if turn is None else turn[rows]
            finished = self(some, (height, width), drawn, turn=turns, channels_last=channels_last)
            whole[here, :, :height, :width] = finished
        return whole


class Finishers:
    """The finishers of the recipes in use, each made once.

    Args:
        backend: Name of the backend that they are for.
        device: The images' device.
    """

    def __init__(self, backend: str, device: torch.device) -> None:
        self._backend = backend
        self._device = device
        self._known: collections.deque[tuple[Recipe, Finisher]] = collections.deque(maxlen=_FINISHERS)

    def of(self, recipe: Recipe) -> Finisher:
        """Returns the finisher of a recipe; a new recipe is checked.

        Raises:
            BackendError: for an op that can't run on a device.
        """
        for known, finisher in self._known:
            if known is recipe:
                return finisher
        check_device_ops(recipe, self._backend)
        finisher = Finisher(recipe, self._device)
        self._known.append((recipe, finisher))
        return finisher
