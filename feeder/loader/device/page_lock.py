"""Page-locked slots, and the guard that says when copies are done with them.

Note [Reuse of page-locked slots]
    torch's allocator delays the reuse of memory that it allocated itself until the copies that read it are done. Slots
    are not its memory. So when a slot's last tensor is gone, an event is recorded on the consumer's current stream and
    on the stream that feeds the device, and the slot is filled again only after both have passed. That covers copies
    that the caller made with ``non_blocking=True`` on its current stream and then let go of the source. Where batches
    are only page-locked, the loader isn't told which GPU they go to: then it is the current stream of every GPU in use.
    The memory is unlocked, and goes, after the last of those events, too. While the caller captures a CUDA graph none
    is recorded, as CUDA never says of an event on a captured stream whether it has passed, and none is asked, as that
    ends the capture: both are done when it is over.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from feeder.errors import ArgumentError
from feeder.loader.options import DeviceOptions
from feeder.loader.slots.slots import Slots


@dataclass(eq=False)
class CudaGuard:
    """Says when copies on a GPU that may still read a slot are done; see :class:`feeder.loader.slots.slots.Slots`.

    Args:
        device: The GPU; None for all that this process uses by then.
        stream: The stream that feeds it; None if there is none.
    """

    device: torch.device | None
    stream: Any = None

    def record(self) -> list[Any]:
        """Events on the consumer's current stream, of each GPU that it may be on, and on the feeding one; during a
        capture the streams."""
        streams: list[Any] = [torch.cuda.current_stream(each) for each in _in_use(self.device)]
        if self.stream is not None:
            streams.append(self.stream)
        return streams if torch.cuda.is_current_stream_capturing() else [stream.record_event() for stream in streams]

    def done(self, mark: list[Any]) -> bool:
        """Returns True if all of them have passed; False during a capture."""
        if torch.cuda.is_current_stream_capturing():
            return False
        mark[:] = [each.record_event() if hasattr(each, "record_event") else each for each in mark]
        return all(event.query() for event in mark)


def _in_use(device: torch.device | None) -> list[torch.device]:
    """Returns the GPU, or else all that have a context: to record an event makes one, which takes hundreds of MiB."""
    if device is not None:
        return [device]
    has_context: Callable[[int], bool] = torch._C._cuda_hasPrimaryContext  # type: ignore[attr-defined]
    return [torch.device("cuda", number) for number in range(torch.cuda.device_count()) if has_context(number)]


def page_lock(slots: Slots) -> None:
    """Page-locks the slots' memory, for as long as it is mapped, so that copies from it need not wait.

    Raises:
        ArgumentError: if the system refuses.
    """
    runtime = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    address, size = slots.address, slots.region.size_bytes
    # The slots' GPU is made the current one: CUDA makes a context there, which takes hundreds of MiB.
    with torch.cuda.device(slots.guard.device if isinstance(slots.guard, CudaGuard) else None):
        code = int(runtime.cudaHostRegister(address, size, 0))
        if code != 0:
            with contextlib.suppress(RuntimeError):  # kept by CUDA for the next kernel, which would be the caller's
                torch.ones(1, device="cuda")
    if code != 0:
        raise ArgumentError(
            f"can't page-lock {size >> 20} MiB for batches (CUDA error {code}): raise the limit of locked memory "
            "(ulimit -l), or set pin_memory=False and device=None, which takes another backend than 'cuda'"
        )
    slots.before_end(runtime.cudaHostUnregister, address)


def slot_guard(options: DeviceOptions) -> CudaGuard | None:
    """Returns the guard of a loader's slots, where they are to be page-locked; else None."""
    if options.target is not None and options.target.type == "cuda":
        return CudaGuard(options.target, options.stream())
    if options.pin_memory and torch.cuda.is_available():
        return CudaGuard(None)
    return None
