"""Some rows of a batch on a device, changed or put together. They are known on the CPU, so nothing waits for a GPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from feeder.decoders.tensors import to_device
from feeder.system.arrays import AnyArray, Int64s

# Pixels changed at a time: the ops' intermediate values (float64 in some) stay under a few hundred MiB.
PIXELS_AT_ONCE = 1 << 21


def change_rows(images: torch.Tensor, rows: Int64s, change: Callable[[torch.Tensor, slice], torch.Tensor]) -> None:
    """Replaces some images.

    Args:
        images: uint8 [N, 3, H, W], written to.
        rows: The rows to replace, [R] on the CPU, each once.
        change: Takes images uint8 [r, 3, H, W] and their slice of ``rows``, and returns as many.
    """
    step = max(1, PIXELS_AT_ONCE // (images.shape[2] * images.shape[3]))
    for start in range(0, len(rows), step):
        chunk = slice(start, start + step)
        if len(rows) == len(images):
            images[chunk].copy_(change(images[chunk], chunk))
        else:
            where = to_device(rows[chunk], images.device)
            images.index_copy_(0, where, change(images.index_select(0, where), chunk))


def per_image(values: AnyArray, images: torch.Tensor) -> torch.Tensor:
    """Returns a number for each image, [n], as [n, 1, 1, 1] on their device."""
    return to_device(values, images.device).reshape(-1, 1, 1, 1)


def join_rows(
    pieces: Sequence[tuple[Int64s, torch.Tensor]],
    shape: tuple[int, ...],
    dtype: torch.dtype,
    device: torch.device,
    memory_format: torch.memory_format = torch.contiguous_format,
) -> torch.Tensor:
    """Puts images together that were made in several pieces.

    Args:
        pieces: The rows of each, ascending, and their images, [rows, length, ...] of at most the batch's length.
        shape: The batch's: (N, length, ...).
        dtype: The images'.
        device: The images'.
        memory_format: The batch's.

    Returns:
        The only piece if it has all rows, else a new tensor; 0 where nothing was made.
    """
    if len(pieces) == 1 and len(pieces[0][0]) == shape[0]:
        return pieces[0][1]
    whole = torch.zeros(shape, dtype=dtype, device=device).contiguous(memory_format=memory_format)
    for rows, images in pieces:
        whole[to_device(rows, device), : images.shape[1]] = images
    return whole
