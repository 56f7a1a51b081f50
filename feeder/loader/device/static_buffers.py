"""Batches on the device at the same addresses, as CUDA graphs need them."""

from __future__ import annotations

from typing import Any

import torch

from feeder.errors import ArgumentError
from feeder.loader.device.nested import map_tensors

__all__ = ["StaticBuffers"]


class StaticBuffers:
    """One place for every tensor of a batch, at an address that never changes, as CUDA graphs want it.

    What is put there overwrites the batch before it.

    Args:
        batch_size: The largest batch; None: as large as the first.
    """

    def __init__(self, batch_size: int | None) -> None:
        self._batch_size = batch_size
        self._places: list[torch.Tensor] = []

    def put(self, batch: Any) -> Any:
        """The same structure with its tensors in their places; copies are queued on the current stream.

        Raises:
            ArgumentError: if a tensor doesn't fit its place.
        """
        found = iter(range(1 << 30))
        return map_tensors(batch, lambda tensor: self._put(next(found), tensor))

    def _put(self, number: int, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.is_nested:
            raise ArgumentError(
                f"static_buffers=True has no room for a nested tensor, as tensor {number} of a batch is: its size "
                "changes; leave static_buffers out, or pad"
            )
        if number == len(self._places):
            rows = max(len(tensor), self._batch_size or 0) if tensor.ndim else 0
            shape = (rows, *tensor.shape[1:]) if tensor.ndim else ()
            channels_last = tensor.ndim == 4 and tensor.is_contiguous(memory_format=torch.channels_last)
            layout = torch.channels_last if channels_last else torch.contiguous_format
            self._places.append(torch.empty(shape, dtype=tensor.dtype, device=tensor.device, memory_format=layout))
        place = self._places[number]
        if (tensor.shape[1:], tensor.dtype) != (place.shape[1:], place.dtype) or tensor.numel() > place.numel():
            raise ArgumentError(
                f"static_buffers=True has room for {place.dtype} {list(place.shape)} as tensor {number} of a batch, "
                f"got {tensor.dtype} {list(tensor.shape)}; give batches of one size, or leave static_buffers out"
            )
        view = place[: len(tensor)] if tensor.ndim else place
        return view.copy_(tensor, non_blocking=True)
