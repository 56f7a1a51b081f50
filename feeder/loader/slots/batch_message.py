"""The message that brings a batch of any kind from a worker to the trainer; the arrays' bytes are in a slot.

Note [Carrying]
    A worker collates straight into the slot if it can (torch's ``default_collate``). Other plain tensors and arrays are
    copied into it when the batch is pickled; what does not fit, and tensors of special kinds, are in the message. So
    nothing is left to be fetched from a worker, which may be gone by then. Reusing slots saves making, zeroing and
    mapping fresh shared memory for every batch, which costs torch's loader more than the copy itself.
"""

from __future__ import annotations

import io
import itertools
import math
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch._utils import ExceptionWrapper
from torch.utils.data._utils import collate as torch_collate

from feeder.system.arrays import AnyArray, Uint8s, aligned

_ALIGN = 64
# Smaller tensors go into the message: a slot's bookkeeping would cost more.
_SMALLEST = 512


class Slot:
    """A slot that a worker writes one batch into.

    Args:
        memory: uint8 [size], writable shared memory; empty if the batch gets none.
    """

    def __init__(self, memory: Uint8s) -> None:
        self.memory = memory
        self.used = 0
        self.wanted = 0
        self._address = int(memory.__array_interface__["data"][0]) if memory.size else 0
        self._places: dict[int, int] = {}

    def take(self, size: int) -> int | None:
        """Returns the offset of ``size`` unused bytes, or None if they don't fit."""
        taken = aligned(size, _ALIGN)
        self.wanted += taken
        if self.used + size > self.memory.size:
            return None
        offset = self.used
        self.used += taken
        return offset

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor | None:
        """Returns a contiguous tensor in the slot, or None if it doesn't fit."""
        size = math.prod(shape) * dtype.itemsize
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
        if size < _SMALLEST:
            return None
        if address not in self._places:
            offset = self.take(size)
            if offset is None:
                return None
            source = torch.empty(0, dtype=torch.uint8, device="cpu").set_(storage)
            torch.from_numpy(self.memory[offset : offset + size]).copy_(source)
            self._places[address] = offset
        return self._places[address]

    def write(self, array: AnyArray) -> int | None:
        """Returns the offset of a copy of a contiguous array, or None if it doesn't fit."""
        offset = self.take(array.nbytes)
        if offset is not None:
            self.memory[offset : offset + array.nbytes] = array.reshape(-1).view(np.uint8)
        return offset


@dataclass
class Packed:
    """A pickled batch.

    Args:
        message: The pickled batch; its tensors and arrays are offsets into the slot.
        used: Bytes of the slot that it takes.
        wanted: Bytes that it would take if the slot were large enough.
    """

    message: bytes
    used: int
    wanted: int


class _Pickler(pickle.Pickler):
    """Pickles as Python does, except for plain tensors and contiguous arrays: those are on the slot's memory, the only
    buffer that is not in the message."""

    slot: Slot
    memory: pickle.PickleBuffer

    def reducer_override(self, obj: Any) -> Any:
        if type(obj) is np.ndarray and obj.nbytes >= _SMALLEST and obj.flags.forc and not obj.dtype.hasobject:
            order: Literal["C", "F"] = "C" if obj.flags.c_contiguous else "F"
            offset = self.slot.write(obj.reshape(-1, order=order))
            how = obj.nbytes, obj.dtype, obj.shape, order
            return NotImplemented if offset is None else (_array_on_slot, (self.memory, offset, *how))
        if type(obj) is not torch.Tensor or not _is_plain(obj) or obj.nbytes == 0:
            return NotImplemented
        if obj.untyped_storage().nbytes() > 2 * obj.nbytes:  # a view of something much larger: a copy of it
            obj = obj.clone(memory_format=torch.contiguous_format)
            offset = self.slot.write(_storage_bytes(obj)) if obj.nbytes >= _SMALLEST else None
        else:
            offset = self.slot.place(obj)
        data = _storage_bytes(obj)
        place = obj.dtype, tuple(obj.shape), obj.stride(), obj.storage_offset()
        if offset is None:
            return _on_bytes, (data.tobytes(), *place)
        return _on_slot, (self.memory, offset, data.nbytes, *place)


def pack(value: Any, slot: Slot) -> Packed:
    """Pickles a batch; its tensors' and arrays' bytes go into the slot if they fit."""
    file, memory = io.BytesIO(), pickle.PickleBuffer(slot.memory)  # type: ignore[arg-type]
    pickler = _Pickler(file, pickle.HIGHEST_PROTOCOL, buffer_callback=lambda buffer: buffer is not memory)
    pickler.slot = slot
    pickler.memory = memory
    pickler.dump(value)
    return Packed(file.getvalue(), slot.used, slot.wanted)


def unpack(message: bytes | memoryview, memory: Uint8s | None) -> Any:
    """Returns the batch of a message; its tensors and arrays are views of the slot's memory and keep it.

    Args:
        message: From :func:`pack`.
        memory: uint8, the slot; None if nothing was put there.
    """
    return pickle.loads(message, buffers=itertools.repeat(memory))


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
                if not all(type(t) is torch.Tensor and _is_plain(t) for t in tensors):
                    return torch_collate.collate_tensor_fn(tensors, collate_fn_map=collate_fn_map)
                out = slot.empty((len(tensors), *first.shape), first.dtype)
                # torch.stack would convert to the dtype of `out`; alone it promotes.
                if out is not None and all(t.dtype == first.dtype and t.shape == first.shape for t in tensors):
                    return torch.stack(tensors, 0, out=out)
                return torch.stack(tensors, 0)  # in memory that is not shared

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


def _storage_bytes(tensor: torch.Tensor) -> Uint8s:
    data: Uint8s = torch.empty(0, dtype=torch.uint8, device="cpu").set_(tensor.untyped_storage()).numpy()
    return data


def _on_bytes(
    data: bytes, dtype: torch.dtype, shape: tuple[int, ...], stride: tuple[int, ...], start: int
) -> torch.Tensor:
    return torch.frombuffer(bytearray(data), dtype=dtype).as_strided(shape, stride, start)


def _on_slot(
    memory: Uint8s,
    offset: int,
    size: int,
    dtype: torch.dtype,
    shape: tuple[int, ...],
    stride: tuple[int, ...],
    start: int,
) -> torch.Tensor:
    return torch.from_numpy(memory[offset : offset + size]).view(dtype).as_strided(shape, stride, start)


def _array_on_slot(
    memory: Uint8s, offset: int, size: int, dtype: np.dtype[Any], shape: tuple[int, ...], order: Literal["C", "F"]
) -> AnyArray:
    return memory[offset : offset + size].view(dtype).reshape(shape, order=order)


@dataclass
class Collated:
    """The result of a collate_fn, on its way to the caller.

    Attributes:
        result: The result, if it was made in the caller's process; else None.
        message: The result as a message, from another process; else None.
    """

    result: Any = None
    message: Packed | None = None

    def batch(self, memory: Uint8s) -> Any:
        """Returns the result; its tensors and arrays are views of the slot's memory, uint8, and keep it.

        Raises:
            Exception: what the collate_fn raised, of the same type.
        """
        if self.message is None:
            return self.result
        result = unpack(self.message.message, memory)
        if isinstance(result, ExceptionWrapper):
            result.reraise()  # type: ignore[no-untyped-call]
        return result
