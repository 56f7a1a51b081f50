"""Arguments of the fused ops: images of different sizes, turns, color steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from feeder.errors import ArgumentError
from feeder.system.checks import check_one_of

# Note [Turns]
#     An image is stored as in its file, and turned at the output: bit 0 of its turn mirrors the stored image
#     left to right, bit 1 top to bottom, and bit 2 then swaps rows and columns. Every EXIF orientation, with or without
#     a flip, is one of these eight turns. With bit 2 the stored image is as high as the output is wide.

BRIGHTNESS, CONTRAST, SATURATION = 1, 2, 3

DTYPES = (torch.uint8, torch.float16, torch.bfloat16, torch.float32)


@dataclass(frozen=True)
class Color:
    """Steps of brightness, contrast and saturation, in the order of each sample; as in Pillow's ImageEnhance.

    A step blends a pixel p with t: floor(clamp(t + factor * (p - t), 0, 255)), where t is 0 for brightness, the current
    image's mean gray level for contrast, and the pixel's own gray level for saturation.

    Args:
        steps: integers [N, K]: 0 (none), BRIGHTNESS, CONTRAST or SATURATION; at most one CONTRAST per sample.
        factors: float32 [N, K]; 1 changes nothing.
        has_contrast: True if any step may be CONTRAST; False saves the pass for the means.
    """

    steps: torch.Tensor
    factors: torch.Tensor
    has_contrast: bool = True


@dataclass(frozen=True)
class Ragged:
    """Images of different sizes, used in place. They must not move before the queued kernels have read them.

    Args:
        images: N images uint8 [H, W, 3], dense, all on one device: tensors, or objects with DLPack. Only the
            reference uses them, as 256 tensors by DLPack take 1.5 ms of Python, and their addresses 0.1 ms.
        addresses: int64 [N], on the CPU: each image's address in the device's memory.
        sizes: integers [N, 2], on the CPU: (height, width) of each.
        device: The images' device.
    """

    images: Sequence[Any]
    addresses: torch.Tensor
    sizes: torch.Tensor
    device: torch.device

    def __len__(self) -> int:
        return len(self.addresses)

    @classmethod
    def of(cls, images: Sequence[torch.Tensor]) -> Ragged:
        """Makes an instance from N tensors uint8 [H, W, 3] on one device, N at least 1.

        Raises:
            ArgumentError: naming the first tensor that does not fit.
        """
        device = images[0].device
        for row, image in enumerate(images):
            if image.dtype != torch.uint8 or image.ndim != 3 or image.shape[2] != 3 or image.device != device:
                raise ArgumentError(
                    f"images must be uint8 [H, W, 3] on {device}, got {image.dtype} {list(image.shape)} on "
                    f"{image.device} as image {row}"
                )
        dense = [image.contiguous() for image in images]
        addresses = torch.tensor([image.data_ptr() for image in dense], dtype=torch.int64)
        return cls(dense, addresses, torch.tensor([image.shape[:2] for image in dense], dtype=torch.int32), device)

    def check(self, source: torch.Tensor, support: torch.Tensor) -> None:
        """Checks that boxes are inside the images, without waiting for their device.

        Args:
            source: float [N, 4], (left, top, right, bottom).
            support: integers [N, 4], (left, top, right, bottom).

        Raises:
            ArgumentError: naming the first image that does not fit.
        """
        given = {"addresses": self.addresses, "sizes": self.sizes, "source": source, "support": support}
        for name, values in given.items():
            if values.device.type != "cpu":
                raise ArgumentError(f"{name} must be on the CPU, where they are checked, got {values.device}")
        shapes = [list(values.shape) for values in given.values()]
        count = len(self.images)
        if shapes != [[count], [count, 2], [count, 4], [count, 4]] or self.addresses.dtype != torch.int64:
            raise ArgumentError(
                f"addresses must be int64 [{count}], sizes [{count}, 2], source and support [{count}, 4], got "
                f"{self.addresses.dtype} {shapes}"
            )

        sizes, limits = self.sizes.long(), support.long()
        inside = (limits[:, :2] >= 0).all(1) & (limits[:, :2] < limits[:, 2:]).all(1)
        inside &= (limits[:, 2:] <= sizes.flip(1)).all(1) & (self.addresses != 0)
        if not bool(inside.all()):
            row = int((~inside).nonzero()[0])
            raise ArgumentError(
                f"image {row} of {sizes[row].tolist()} (height, width) at {int(self.addresses[row]):#x} does not hold "
                f"its support box {limits[row].tolist()} (left, top, right, bottom)"
            )


def output_tensor(
    count: int,
    size: tuple[int, int],
    dtype: torch.dtype,
    channels_last: bool,
    device: torch.device,
) -> torch.Tensor:
    """Returns a new tensor to write to.

    Raises:
        ArgumentError: for another dtype.
    """
    check_one_of("dtype", dtype, DTYPES)
    layout = torch.channels_last if channels_last else torch.contiguous_format
    return torch.empty((count, 3, *size), dtype=dtype, device=device, memory_format=layout)
