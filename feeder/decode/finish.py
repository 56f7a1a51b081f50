"""The last step on the device: uint8 images turned, colored, normalized, erased and mixed in one pass of kernel 1."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from feeder import _gpu
from feeder.decode.fused import fused_parameters
from feeder.tensors import to_device
from feeder.transforms import Recipe
from feeder.transforms.op import Params

__all__ = ["Finisher"]


class Finisher:
    """Does to uint8 images what a recipe does after its base path, and its normalization.

    Args:
        recipe: What is done to every image.
        device: Where the images are.
    """

    def __init__(self, recipe: Recipe, device: torch.device) -> None:
        self._recipe, self._device = recipe, device
        self._affine: tuple[torch.Tensor | None, torch.Tensor | None] | None = None

    def __call__(
        self,
        images: torch.Tensor,
        size: tuple[int, int],
        rest: Sequence[Params] | None,
        *,
        layout: str = "nhwc",
        turn: npt.NDArray[np.uint8] | None = None,
        channels_last: bool = False,
        mix: _gpu.Mix | None = None,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Queues it on the current stream.

        Args:
            images: uint8, contiguous, N images of ``size``, as :func:`feeder._gpu.normalize` takes them.
            size: (H, W) of the output.
            rest: What was drawn for the ops after the base path; None: they have been done.
            layout: "nhwc" or "nchw": how the images' bytes lie.
            turn: uint8 [N], how each image is turned; see Note [Turns] in ``feeder._gpu.parameters``.
            channels_last: Memory format of the output.
            mix: The partner of each sample; needs a float output.
            out: [N, 3, H, W] of the recipe's output dtype, filled; None makes one.

        Returns:
            [N, 3, H, W] of the recipe's output dtype.
        """
        codes = np.zeros(len(images), np.uint8) if turn is None else turn.copy()
        further: dict[str, Any] = {}
        if rest:
            fused = fused_parameters(self._recipe, rest, len(images), size[1])
            # Mirroring what has been swapped is mirroring the other axis before.
            codes ^= np.where(fused.flip != 0, np.where(codes & 4, 2, 1), 0).astype(np.uint8)
            further = fused.tensors(self._device)
        if self._affine is None:
            affine = self._recipe.affine
            # Once, and waited for: a later call may be on another stream.
            scale, bias = (None, None) if affine is None else (torch.tensor(x, device=self._device) for x in affine)
            self._affine = scale, bias
        return _gpu.normalize(
            images,
            size,
            scale=self._affine[0],
            bias=self._affine[1],
            dtype=getattr(torch, self._recipe.output_dtype),
            layout=layout,
            channels_last=channels_last,
            turn=to_device(codes, self._device) if codes.any() else None,
            mix=mix,
            out=out,
            **further,
        )
