"""Images on their way through the kernels: from plans to planes, and from there to the output."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from feeder.decoders.decoder import Buffer

if TYPE_CHECKING:
    from feeder.decoders.cuda.driver import Kernels
    from feeder.transforms.values import Affine

__all__ = ["PlannedImages", "Uploaded", "upload"]


class Uploaded(NamedTuple):
    """Plans of a batch, of all its views and output sizes, and their copy on the device.

    Attributes:
        plans: N plans.
        places: int64 [N], where each lies in the copy.
        memory: uint8 [bytes], the copy.
    """

    plans: list[Buffer]
    places: npt.NDArray[np.int64]
    memory: torch.Tensor


def upload(device: torch.device, plans: list[Buffer]) -> Uploaded:
    """Queues copies of plans on the current stream, each of as many as lie back to back.

    From page-locked memory they go straight to the GPU and are not waited for: the plans must not change, and their
    memory must stay page-locked, until the copies are done.
    """
    from feeder import _native

    places, runs, size_bytes = _native.upload_runs(plans)
    memory = torch.empty(size_bytes, dtype=torch.uint8, device=device)
    for run, place in runs:
        memory[place : place + len(run)].copy_(torch.from_numpy(run), non_blocking=True)
    return Uploaded(plans, places, memory)


class PlannedImages:
    """Images of a batch that have one output size, decoded to planes: the work is queued on the current stream.

    The tables go to the GPU from page-locked memory. Torch's allocators own it, and all memory on the GPU, so that
    nothing is used again before the GPU is done with it.

    Args:
        kernels: The kernels, on the device.
        rows: int64 [N], rows of the batch.
        size: (height, width) of the outputs.
        uploaded: Plans of the whole batch.
        here: int64 [N], which of them are these images'.
    """

    def __init__(
        self,
        kernels: Kernels,
        rows: npt.NDArray[np.int64],
        size: tuple[int, int],
        uploaded: Uploaded,
        here: npt.NDArray[np.int64],
    ) -> None:
        from feeder import _native

        self.rows, self.size = rows, size
        self._kernels, self._device = kernels, uploaded.memory.device
        self._plans = uploaded.memory
        self._batch = _native.CudaBatch([uploaded.plans[i] for i in here.tolist()], uploaded.places[here])
        with self._on_device():
            host = self._host_memory(self._batch.tables_bytes)
            self._batch.write(host.numpy())
            self._tables = host.to(self._device, non_blocking=True)
            self._scratch = torch.empty(self._batch.scratch_bytes, dtype=torch.uint8, device=self._device)
            self._scratch[: self._batch.zeroed_bytes].zero_()
            kernels.launch(self._batch.decoding(*self._addresses()), self._stream())
            at = self._batch.faults_at
            self._faults = self._host_memory(4 * len(rows))
            self._faults.copy_(self._scratch[at : at + 4 * len(rows)], non_blocking=True)
            self._decoded = self._event()

    def faults(self) -> npt.NDArray[np.uint32]:
        """Waits until the planes are decoded, and the plans copied; returns uint32 [N], not 0 where an image is left to
        the CPU."""
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
                for memory in (self._tables, self._plans, self._scratch):
                    memory.record_stream(stream)
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

    def _addresses(self) -> tuple[int, int, int]:
        return self._tables.data_ptr(), self._plans.data_ptr(), self._scratch.data_ptr()

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
