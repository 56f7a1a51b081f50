"""The message that brings a batch of any kind from a worker to the trainer; the tensors' bytes are in a slot.

Note [Carrying]
    A worker collates straight into the slot if it can (torch's ``default_collate``); other tensors are copied into it
    when the batch is pickled. Tensors that don't fit, and tensors of special kinds, travel as torch's own loader sends
    them, each in a separate piece of shared memory. Reusing slots saves making, zeroing and mapping fresh shared memory
    for every batch, which costs torch's loader more than the copy itself.
    Torch's shared memory is a file in /dev/shm, which has 64 MiB in a container unless configured otherwise. If that is
    full, tensors that don't fit a slot go into the message; slots are no files there.
"""

from __future__ import annotations

import io
import pickle
import threading
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import resource_sharer
from multiprocessing.reduction import ForkingPickler
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch._utils import ExceptionWrapper
from torch.utils.data._utils import collate as torch_collate

__all__ = ["Collated", "Packed", "Slot", "WholeMessage", "pack", "pack_whole", "slot_collate", "unpack", "unpack_whole"]

_ALIGN = 64
# Smaller tensors go into the message: a slot's bookkeeping would cost more.
_SMALLEST = 512


class Slot:
    """A slot that a worker writes one batch into.

    Args:
        memory: uint8 [size], writable shared memory; empty if the batch gets none.
    """

    def __init__(self, memory: npt.NDArray[np.uint8]) -> None:
        self.memory = memory
        self.used = 0
        self.wanted = 0
        self._address = int(memory.__array_interface__["data"][0]) if memory.size else 0
        self._places: dict[int, int] = {}

    def take(self, size: int) -> int | None:
        """Returns the offset of ``size`` unused bytes, or None if they don't fit."""
        self.wanted += -(-size // _ALIGN) * _ALIGN
        if self.used + size > self.memory.size:
            return None
        offset = self.used
        self.used += -(-size // _ALIGN) * _ALIGN
        return offset

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor | None:
        """Returns a contiguous tensor in the slot, or None if it doesn't fit."""
        size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        if not size or self.used + size > self.memory.size:  # counted as wanted when it is placed
            return None
        offset = self.take(size)
        assert offset is not None
        return torch.from_numpy(self.memory[offset : offset + size]).view(dtype).view(shape)

    def place(self, tensor: torch.Tensor) -> int | None:
        """Returns the offset of a tensor's storage in the slot, written now if it wasn't; None if it can't be there."""
        storage = tensor.untyped_storage()
        address, size = storage.data_ptr(), storage.nbytes()
        if self.memory.size and self._address <= address < self._address + self.memory.size:
            return address - self._address
        if size < _SMALLEST or size > 2 * tensor.nbytes:  # a view of something much larger
            return None
        if address not in self._places:
            offset = self.take(size)
            if offset is None:
                return None
            source = torch.empty(0, dtype=torch.uint8, device="cpu").set_(storage)
            torch.from_numpy(self.memory[offset : offset + size]).copy_(source)
            self._places[address] = offset
        return self._places[address]

    def write(self, data: memoryview) -> int | None:
        """Returns the offset of a copy of the data, or None if it doesn't fit."""
        offset = self.take(data.nbytes)
        if offset is not None:
            self.memory[offset : offset + data.nbytes] = data
        return offset


class Packed:
    """A pickled batch.

    Args:
        message: The pickled batch; its tensors are offsets into the slot.
        used: Bytes of the slot that it takes.
        wanted: Bytes that it would take if the slot were large enough.
    """

    def __init__(self, message: bytes, used: int, wanted: int) -> None:
        self.message = message
        self.used = used
        self.wanted = wanted


class _Pickler(ForkingPickler):
    """Pickles as torch does between processes, except for plain tensors that fit the slot."""

    slot: Slot

    def reducer_override(self, obj: Any) -> Any:
        if type(obj) is not torch.Tensor or not _is_plain(obj):
            return NotImplemented
        offset = self.slot.place(obj)
        if offset is None:
            is_small = obj.untyped_storage().nbytes() < _SMALLEST and obj.is_contiguous()
            return _in_message(obj) if is_small or not _can_share(obj) else NotImplemented
        storage = obj.untyped_storage().nbytes()
        return _on_slot, (offset, storage, obj.dtype, tuple(obj.shape), obj.stride(), obj.storage_offset())


def pack(value: Any, slot: Slot) -> Packed:
    """Pickles a batch; its tensors' bytes go into the slot if they fit."""
    file = io.BytesIO()
    pickler = _Pickler(file, pickle.HIGHEST_PROTOCOL)
    pickler.slot = slot
    pickler.dump(value)
    return Packed(file.getvalue(), slot.used, slot.wanted)


class _Current(threading.local):
    """The slots' memory of the messages that this thread unpickles: a list, as a message may hold another."""

    def __init__(self) -> None:
        self.memory: list[npt.NDArray[np.uint8] | None] = []


_current = _Current()


class _Unpickler(pickle.Unpickler):
    fetches: Callable[[], object]

    def find_class(self, module: str, name: str) -> Any:
        if module == resource_sharer.__name__:  # it fetches things from another process
            self.fetches()
        return super().find_class(module, name)


def unpack(message: bytes, memory: npt.NDArray[np.uint8] | None, fetches: Callable[[], object] = lambda: None) -> Any:
    """Returns the batch of a message; its tensors are views of the slot's memory and keep it.

    Args:
        message: From :func:`pack`.
        memory: uint8, the slot; None if nothing was put there.
        fetches: Called before anything outside the slot is fetched from the process that sent the message.
    """
    unpickler = _Unpickler(io.BytesIO(message))
    unpickler.fetches = fetches
    return _loaded(unpickler, memory)


def _loaded(unpickler: pickle.Unpickler, memory: npt.NDArray[np.uint8] | None) -> Any:
    _current.memory.append(memory)
    try:
        return unpickler.load()
    finally:
        _current.memory.pop()


class WholeMessage(NamedTuple):
    """A pickled value that can be read without the process that made it.

    Attributes:
        data: The pickle.
        buffers: (offset, size) of the arrays whose bytes are in the slot and not in the pickle.
        wanted: Bytes that the value would take of the slot if that were large enough.
    """

    data: bytes
    buffers: list[tuple[int, int]]
    wanted: int


class _WholePickler(pickle.Pickler):
    """Pickles as Python does, except for plain tensors and contiguous arrays that fit the slot."""

    def __init__(self, file: io.BytesIO, slot: Slot) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL, buffer_callback=self._is_inside)
        self.slot = slot
        self.buffers: list[tuple[int, int]] = []

    def _is_inside(self, buffer: pickle.PickleBuffer) -> bool:
        """Writes a buffer into the slot; returns True if it doesn't fit, and belongs into the pickle."""
        data = buffer.raw()
        offset = self.slot.write(data) if data.nbytes >= _SMALLEST else None
        if offset is None:
            return True
        self.buffers.append((offset, data.nbytes))
        return False

    def reducer_override(self, obj: Any) -> Any:
        if type(obj) is not torch.Tensor or not _is_plain(obj) or obj.nbytes == 0:
            return NotImplemented
        if obj.untyped_storage().nbytes() > 2 * obj.nbytes:  # a view of something much larger: a copy of it
            obj = obj.clone(memory_format=torch.contiguous_format)
            data = _storage_bytes(obj)
            offset = self.slot.write(data) if data.nbytes >= _SMALLEST else None
        else:
            data, offset = _storage_bytes(obj), self.slot.place(obj)
        shape, stride, start = tuple(obj.shape), obj.stride(), obj.storage_offset()
        if offset is not None:
            return _on_slot, (offset, data.nbytes, obj.dtype, shape, stride, start)
        return _on_bytes, (data.tobytes(), obj.dtype, shape, stride, start)


def pack_whole(value: Any, slot: Slot) -> WholeMessage:
    """Pickles a value: its arrays' bytes into the slot if they fit, the rest into the message."""
    file = io.BytesIO()
    pickler = _WholePickler(file, slot)
    pickler.dump(value)
    return WholeMessage(file.getvalue(), pickler.buffers, slot.wanted)


def unpack_whole(message: WholeMessage, memory: npt.NDArray[np.uint8]) -> Any:
    """Returns the value of a message; its tensors and arrays are views of the slot's memory, uint8, and keep it."""
    buffers = [memory[offset : offset + size] for offset, size in message.buffers]
    return _loaded(pickle.Unpickler(io.BytesIO(message.data), buffers=buffers), memory)


def slot_collate(collate_fn: Callable[[Any], Any]) -> Callable[[Any, Slot], Any]:
    """Returns the collate function with a slot to write into: torch's default one does, any other is just called."""
    if collate_fn is not torch_collate.default_collate:
        return lambda batch, slot: collate_fn(batch)

    def collate(batch: Any, slot: Slot) -> Any:
        # Read at each call: callers may register further types at any time.
        functions = dict(torch_collate.default_collate_fn_map)
        if functions.get(torch.Tensor) is torch_collate.collate_tensor_fn:

            def into_slot(tensors: Any, *, collate_fn_map: Any = None) -> Any:
                first = tensors[0]
                are_plain = all(type(t) is torch.Tensor and _is_plain(t) for t in tensors)
                if are_plain:
                    out = slot.empty((len(tensors), *first.shape), first.dtype)
                    # torch.stack would convert to the dtype of `out`; alone it promotes.
                    if out is not None and all(t.dtype == first.dtype and t.shape == first.shape for t in tensors):
                        return torch.stack(tensors, 0, out=out)
                try:
                    return torch_collate.collate_tensor_fn(tensors, collate_fn_map=collate_fn_map)
                except RuntimeError:
                    if not are_plain:
                        raise
                    return torch.stack(tensors, 0)  # in memory that is not shared, or with the same error

            functions[torch.Tensor] = into_slot
        return torch_collate.collate(batch, collate_fn_map=functions)

    return collate


def _is_plain(tensor: torch.Tensor) -> bool:
    return (
        tensor.layout is torch.strided
        and tensor.device.type == "cpu"
        and not tensor.requires_grad
        and not tensor.is_quantized
        and not tensor.is_nested
        and not tensor.is_conj()
        and not tensor.is_neg()
        and not tensor.__dict__
    )


def _can_share(tensor: torch.Tensor) -> bool:
    """Moves a tensor to torch's shared memory; returns False if there is not enough."""
    try:
        tensor.untyped_storage().share_memory_()
    except RuntimeError:
        return False
    return True


def _in_message(tensor: torch.Tensor) -> Any:
    if tensor.nbytes == 0:
        return NotImplemented
    data = tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes()
    return _from_message, (data, tensor.dtype, tuple(tensor.shape))


def _storage_bytes(tensor: torch.Tensor) -> memoryview:
    return torch.empty(0, dtype=torch.uint8, device="cpu").set_(tensor.untyped_storage()).numpy().data


def _on_bytes(
    data: bytes, dtype: torch.dtype, shape: tuple[int, ...], stride: tuple[int, ...], start: int
) -> torch.Tensor:
    return torch.frombuffer(bytearray(data), dtype=dtype).as_strided(shape, stride, start)


def _from_message(data: bytes, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    return torch.frombuffer(bytearray(data), dtype=dtype).view(shape)


def _on_slot(
    offset: int, size: int, dtype: torch.dtype, shape: tuple[int, ...], stride: tuple[int, ...], start: int
) -> torch.Tensor:
    memory = _current.memory[-1]
    assert memory is not None
    return torch.from_numpy(memory[offset : offset + size]).view(dtype).as_strided(shape, stride, start)


@dataclass
class Collated:
    """The result of a collate_fn, on its way to the caller.

    Attributes:
        result: The result, if it was made in the caller's process; else None.
        message: The result as a message, from another process; else None.
    """

    result: Any = None
    message: WholeMessage | None = None

    def batch(self, memory: npt.NDArray[np.uint8]) -> Any:
        """Returns the result; its tensors and arrays are views of the slot's memory, uint8, and keep it.

        Raises:
            Exception: what the collate_fn raised, of the same type.
        """
        if self.message is None:
            return self.result
        result = unpack_whole(self.message, memory)
        if isinstance(result, ExceptionWrapper):
            result.reraise()  # type: ignore[no-untyped-call]
        return result
