"""Fields that are arrays, stored as ``.npy``."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from feeder.errors import ArgumentError
from feeder.fields.field import Field, is_held
from feeder.fields.npy import npy_array
from feeder.system.arrays import AnyArray
from feeder.system.checks import check_one_of

if TYPE_CHECKING:
    import torch

_DTYPES = (
    *("bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"),
    *("float16", "float32", "float64", "complex64", "complex128"),
)


@dataclass(frozen=True)
class Array(Field):
    """An array stored as ``.npy``, read without pickle. A batch has

    - with ``shape`` and ``dtype`` a tensor [N, *shape], which workers fill in the slot, without a copy;
    - with ``pad`` a tuple ``(arrays, lengths)``: arrays [N, L, ...] as ``torch.nn.utils.rnn.pad_sequence`` makes them
      of arrays [l, ...] whose first axis alone differs, lengths int64 [N];
    - with ``nested=True`` a nested tensor of layout ``torch.jagged`` of such arrays;
    - else a list of N tensors.

    A ``collate_fn`` and torch's own path get each sample's tensor, unpadded.

    Args:
        shape: Shape of every sample's array; any other is an error. None: arrays differ.
        dtype: dtype of the tensors, torch's, numpy's or a name; stored ones are cast as numpy's "same_kind" allows.
            None: as stored.
        pad: Value after the end of shorter arrays.
        nested: True for a nested tensor.
        optional: See :class:`Field`; not with ``pad`` or ``nested``.
        fill: A number that fills the array of samples without the member; needs ``shape``.

    Raises:
        ArgumentError: if the arguments do not go together, or the dtype can't hold ``pad`` or ``fill``.
    """

    shape: tuple[int, ...] | None = None
    dtype: Any = None
    pad: float | None = field(default=None, kw_only=True)
    nested: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.dtype is not None:
            object.__setattr__(self, "dtype", _dtype_name(self.dtype))
        if self.shape is not None:
            shape = tuple(self.shape) if isinstance(self.shape, (tuple, list)) else (self.shape,)
            if not all(isinstance(side, int) and side > 0 for side in shape):
                raise ArgumentError(f"Array(shape=...) must be integers from 1, got {self.shape!r}")
            object.__setattr__(self, "shape", shape)
            if self.dtype is None:
                raise ArgumentError("Array(shape=...) needs dtype=, as the batch's array is made before any is read")
        if sum((self.shape is not None, self.pad is not None, self.nested)) > 1:
            raise ArgumentError("Array takes one of shape=, pad= and nested=True")
        if self.optional and (self.pad is not None or self.nested):
            raise ArgumentError(
                "Array(pad=...) and Array(nested=True) need an array of each sample: leave optional=True out, or pad "
                "the list of arrays in a collate_fn"
            )
        if self.fill is not None and (self.shape is None or not isinstance(self.fill, (bool, int, float))):
            raise ArgumentError(f"Array(fill=...) is a number, and needs shape= and dtype=, got {self.fill!r}")
        if self.pad is not None and not isinstance(self.pad, (bool, int, float)):
            raise ArgumentError(f"Array(pad=...) is a number, got {self.pad!r}")
        for name, value in (("fill", self.fill), ("pad", self.pad)):
            if value is not None and self.dtype is not None and not is_held(value, self.dtype):
                raise ArgumentError(f"Array({name}={value!r}) does not fit into {self.dtype}")

    @property
    def columns(self) -> tuple[tuple[tuple[int, ...], str], ...]:
        return () if self.shape is None or (self.optional and self.fill is None) else ((self.shape, self.dtype),)

    @property
    def is_ragged(self) -> bool:
        return not self.columns

    def parse(self, data: bytes, draw: float = 0.0) -> Any:
        if data[:64].lstrip().startswith(b"["):
            raise ValueError(
                "is not an .npy file but a list in JSON: give Apply(function), with a function that makes an array of "
                "its bytes, numpy.array(json.loads(data), 'float32')"
            )
        array = npy_array(data)
        if self.shape is not None and array.shape != self.shape:
            raise ValueError(f"expected shape {list(self.shape)}, got {list(array.shape)}")
        if self.dtype is not None and not np.can_cast(array.dtype, self.dtype, "same_kind"):
            raise ValueError(f"expected {self.dtype}, got {array.dtype}, which is not cast to it")
        if (self.pad is not None or self.nested) and not array.ndim:
            raise ValueError("expected an array with an axis, got a single number")
        if self.columns:
            return (array,)
        return np.array(array, array.dtype.newbyteorder("=") if self.dtype is None else self.dtype, order="C")

    def collate(self, values: list[Any]) -> Any:
        import torch

        if self.pad is None and not self.nested:
            return [None if value is None else torch.from_numpy(value) for value in values]
        _check_ragged(values)
        if self.pad is not None and not is_held(self.pad, values[0].dtype):
            raise ValueError(f"pad={self.pad!r} does not fit into the arrays' {values[0].dtype}: give Array a dtype=")
        tensors = list(map(torch.from_numpy, values))
        if self.nested:
            return torch.nested.nested_tensor(tensors, layout=torch.jagged)
        padded = torch.nn.utils.rnn.pad_sequence(tensors, batch_first=True, padding_value=self.pad or 0.0)
        return padded, torch.tensor([len(value) for value in values], device="cpu")

    def sample(self, value: Any) -> torch.Tensor | None:
        import torch

        if self.columns:  # the value may be a number, or a row of a larger array
            value = np.array(np.broadcast_to(value[0], self.shape or ()), self.dtype)
        return None if value is None else torch.from_numpy(value)


def _check_ragged(arrays: list[AnyArray]) -> None:
    first = arrays[0]
    for array in arrays:
        if array.dtype != first.dtype:
            raise ValueError(f"arrays of a batch are {first.dtype} and {array.dtype}: give Array a dtype=")
        if array.shape[1:] != first.shape[1:]:
            raise ValueError(
                f"arrays of a batch may differ in their first axis only, got {list(first.shape)} and "
                f"{list(array.shape)}: leave pad= and nested= out for a list"
            )


def _dtype_name(dtype: Any) -> str:
    """Returns the name of torch's or numpy's dtype.

    Raises:
        ArgumentError: if there is no such dtype in both.
    """
    name = str(dtype).removeprefix("torch.")
    with contextlib.suppress(TypeError):
        name = np.dtype(name if str(dtype).startswith("torch.") else dtype).name
    check_one_of("Array(dtype=...)", name, _DTYPES)
    return name
