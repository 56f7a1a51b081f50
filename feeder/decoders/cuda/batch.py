"""Images on their way through the kernels: from plans to planes, and from there to the output."""

from __future__ import annotations

import contextlib
from typing import Any, NamedTuple

import numpy as np
import torch

from feeder.decoders.cuda.driver import Kernels
from feeder.decoders.decoder import Buffer
from feeder.decoders.staged.staged import Staged, by_size
from feeder.system.arrays import Int64s, Size, Uint32s
from feeder.transforms.values import Affine


class Uploaded(NamedTuple):
    """Plans of a batch, of all its views and output sizes, and their copy on the device.

    Attributes:
        plans: N plans.
        places: int64 [N], where each lies in the copy.
        memory: uint8 [bytes], the copy.
    """

    plans: list[Buffer]
    places: Int64s
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


class ViewPart(NamedTuple):
    """Images of one view that have one output size.

    Attributes:
        view: Its number.
        rows: int64 [N], their samples.
        size: (height, width) of the outputs.
    """

    view: int
    rows: Int64s
    size: Size


class PlannedImages:
    """Planned images of a batch, decoded to planes: the work is queued on the current stream.

    The tables go to the GPU from page-locked memory. Torch's allocators own it, and all memory on the GPU, so that
    nothing is used again before the GPU is done with it.

    Args:
        kernels: The kernels, on the device.
        staged: The batch.
        planned: int64 [M], at least one, the rows that are plans.
        uploaded: Their plans.

    Attributes:
        parts: The images by view and output size.
    """

    def __init__(self, kernels: Kernels, staged: Staged, planned: Int64s, uploaded: Uploaded) -> None:
        from feeder import _native

        # Images are put in the order of their parts.
        samples, of_view = np.divmod(planned, staged.views)
        self.parts: list[ViewPart] = []
        order = list[Int64s]()
        for view in range(staged.views):
            here = np.flatnonzero(of_view == view)
            for size, some in by_size(staged.rows["size"][planned[here]]) if len(here) else ():
                order.append(here[some])
                self.parts.append(ViewPart(view, samples[here[some]], size))
        self._bounds = np.cumsum([0, *map(len, order)])

        # Views of one image may share its planes: each image has the number of the one that owns its planes.
        here = np.concatenate(order)
        number = np.zeros(len(staged.rows), np.int64)
        number[planned[here]] = np.arange(len(here))
        self._planes = number[staged.owners[planned[here]]]

        self._kernels = kernels
        self._device = uploaded.memory.device
        self._plans = uploaded.memory
        plans = [uploaded.plans[i] for i in here.tolist()]
        self._batch = _native.CudaBatch(plans, uploaded.places[here], self._planes, self._bounds)

        with self._on_device():
            host = self._host_memory(self._batch.tables_bytes)
            self._batch.write(host.numpy())
            self._tables = host.to(self._device, non_blocking=True)
            self._scratch = torch.empty(self._batch.scratch_bytes, dtype=torch.uint8, device=self._device)
            self._scratch[: self._batch.zeroed_bytes].zero_()
            kernels.launch(self._batch.decoding(*self._addresses()), self._stream())

            at = self._batch.faults_at
            self._faults = self._host_memory(4 * len(here))
            self._faults.copy_(self._scratch[at : at + 4 * len(here)], non_blocking=True)
            self._decoded = self._event()

    def faults(self) -> list[Uint32s]:
        """Waits until the planes are decoded, and the plans copied; returns for each part uint32 [N], not 0 where an
        image is left to the CPU."""
        if self._decoded is not None:
            self._decoded.synchronize()
        found = self._faults.numpy().view(np.uint32)[self._planes]
        return np.split(found, self._bounds[1:-1])

    def images(self, part: int, dtype: str, channels_last: bool, affine: Affine | None) -> torch.Tensor:
        """Queues the resize of a part on the current stream.

        Args:
            part: Its number.
            dtype: Of the output.
            channels_last: Its memory format.
            affine: out = pixel * scale + bias; None for uint8.

        Returns:
            [N, 3, height, width]; of an image with a fault, whatever it is.
        """
        rows, size = self.parts[part].rows, self.parts[part].size
        with self._on_device():
            if self._decoded is not None:  # maybe on another stream
                stream: Any = torch.cuda.current_stream(self._device)
                stream.wait_event(self._decoded)
                for memory in (self._tables, self._plans, self._scratch):
                    memory.record_stream(stream)

            out = torch.empty(
                (len(rows), 3, *size),
                dtype=getattr(torch, dtype),
                device=self._device,
                memory_format=torch.channels_last if channels_last else torch.contiguous_format,
            )

            scale, bias = (None, None) if affine is None else affine
            resize = self._batch.finishing(
                *self._addresses(),
                part,
                out.data_ptr(),
                dtype=dtype,
                channels_last=channels_last,
                scale=scale,
                bias=bias,
            )
            self._kernels.launch([resize], self._stream())
        return out

    def _addresses(self) -> tuple[int, int, int]:
        return self._tables.data_ptr(), self._plans.data_ptr(), self._scratch.data_ptr()

    def _host_memory(self, size_bytes: int) -> torch.Tensor:
        return torch.empty(size_bytes, dtype=torch.uint8, device="cpu", pin_memory=self._device.type == "cuda")

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
