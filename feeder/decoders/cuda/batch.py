"""Images of one output size on their way through the kernels: from plans to planes, and from there to the output."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from feeder.decoders.decoder import Buffer

if TYPE_CHECKING:
    from feeder.decoders.cuda.driver import Kernels
    from feeder.transforms.values import Affine

__all__ = ["PlannedImages"]


class PlannedImages:
    """Images of a batch that have one output size, decoded to planes: the work is queued on the current stream.

    The tables and compressed bytes go to the GPU in one copy from page-locked memory. Torch's allocators own all
    memory, so that nothing is used again before the GPU is done with it.

    Args:
        kernels: The kernels, on the device.
        device: The device.
        rows: int64 [N], rows of the batch.
        size: (height, width) of the outputs.
        plans: The plans, which must not change during this call only.
    """

    def __init__(
        self,
        kernels: Kernels,
        device: torch.device,
        rows: npt.NDArray[np.int64],
        size: tuple[int, int],
        plans: Sequence[Buffer],
    ) -> None:
        from feeder import _native

        self.rows, self.size = rows, size
        self._kernels, self._device = kernels, device
        self._batch = _native.CudaBatch(plans)
        with self._on_device():
            host = self._host_memory(self._batch.upload_bytes)
            self._batch.write(host.numpy())
            self._upload = host.to(device, non_blocking=True)
            self._scratch = torch.empty(self._batch.scratch_bytes, dtype=torch.uint8, device=device)
            self._scratch[: self._batch.zeroed_bytes].zero_()
            kernels.launch(self._batch.decoding(*self._addresses()), self._stream())
            at = self._batch.faults_at
            self._faults = self._host_memory(4 * len(rows))
            self._faults.copy_(self._scratch[at : at + 4 * len(rows)], non_blocking=True)
            self._decoded = self._event()

    def faults(self) -> npt.NDArray[np.uint32]:
        """Waits until the planes are decoded; returns uint32 [N], not 0 where an image is left to the CPU."""
        if self._decoded is not None:
            self._decoded.synchronize()
        return self._faults.numpy().view(np.uint32)

    def images(self, dtype: str, channels_last: bool, affine: Affine | None) -> torch.Tensor:
        """Queues the resize on the current stream.

        Args:
            dtype: Of the output.
            channels_last: Its memory format.
            affine: out = pixel * scale + bias; None for uint8.

        Returns:
            [N, 3, height, width]; of an image with a fault, whatever it is.
        """
        with self._on_device():
            if self._decoded is not None:  # maybe on another stream
                stream: Any = torch.cuda.current_stream(self._device)
                stream.wait_event(self._decoded)
                self._upload.record_stream(stream)
                self._scratch.record_stream(stream)
            out = torch.empty(
                (len(self.rows), 3, *self.size),
                dtype=getattr(torch, dtype),
                device=self._device,
                memory_format=torch.channels_last if channels_last else torch.contiguous_format,
            )
            scale, bias = (None, None) if affine is None else affine
            resize = self._batch.finishing(
                *self._addresses(), out.data_ptr(), dtype=dtype, channels_last=channels_last, scale=scale, bias=bias
            )
            self._kernels.launch([resize], self._stream())
        return out

    def _addresses(self) -> tuple[int, int]:
        return self._upload.data_ptr(), self._scratch.data_ptr()

    def _host_memory(self, size_bytes: int) -> torch.Tensor:
        return torch.empty(size_bytes, dtype=torch.uint8, pin_memory=self._device.type == "cuda")

    def _event(self) -> Any:
        """Records an event on the current stream, whose waiters sleep; None on the CPU, where all is done by now."""
        if self._device.type == "cpu":
            return None
        event: Any = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def _stream(self) -> int:
        return torch.cuda.current_stream(self._device).cuda_stream if self._device.type == "cuda" else 0

    def _on_device(self) -> contextlib.AbstractContextManager[Any]:
        return torch.cuda.device(self._device) if self._device.type == "cuda" else contextlib.nullcontext()
