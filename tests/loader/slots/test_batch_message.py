"""Batches of any structure in a slot: tensors keep structure and views, and what does not fit is in the message."""

from __future__ import annotations

import collections
from typing import Any

import numpy as np
import pytest
import torch

from feeder.loader.slots.batch_message import Slot, pack, slot_collate, unpack

Point = collections.namedtuple("Point", "x y")


def _carried(value: Any, size: int = 1 << 16) -> Any:
    memory = np.zeros(size, np.uint8)
    packed = pack(value, Slot(memory))
    return unpack(packed.message, memory if packed.used else None), packed


def test_carried_batches_keep_their_structure() -> None:
    value = {
        "point": Point(torch.arange(300.0), torch.tensor(3)),
        "list": [torch.ones(5, 60, dtype=torch.bfloat16), "text", b"bytes", None, 1.5],
        "empty": torch.empty(0, 4),
        "bool": torch.tensor([True, False]),
        "complex": torch.ones(200, dtype=torch.complex64) * 1j,
        "array": np.arange(5),
        "large": np.arange(600).reshape(20, 30)[::-1],
        "dates": np.arange("2026-01", "2036-01", dtype="datetime64[M]"),
    }
    result, packed = _carried(value)
    assert packed.used > 0
    assert type(result["point"]) is Point
    assert result["point"].x.tolist() == value["point"].x.tolist()  # type: ignore[attr-defined]
    assert result["list"][0].dtype == torch.bfloat16
    assert torch.equal(result["list"][0], value["list"][0])  # type: ignore[index]
    assert result["list"][1:] == ["text", b"bytes", None, 1.5]
    assert result["empty"].shape == (0, 4)
    assert result["bool"].tolist() == [True, False]
    assert torch.equal(result["complex"], value["complex"])  # type: ignore[arg-type]
    for name in ("array", "large", "dates"):
        assert (result[name] == value[name]).all()


def test_views_of_one_tensor_stay_views() -> None:
    base = torch.arange(1000.0).view(10, 100)
    (whole, turned, part), _ = _carried([base, base.t(), base[2:9]])
    assert torch.equal(turned, base.t())
    whole[3, 4] = -1
    assert turned[4, 3] == part[1, 4] == -1


def test_small_view_of_something_large_does_not_take_it_along() -> None:
    large = torch.zeros(100_000)
    (part,), packed = _carried([large[5:300]], size=1 << 20)
    assert torch.equal(part, large[5:300])
    assert packed.used < 2 * part.nbytes


def test_batch_too_large_for_its_slot_says_what_it_wants() -> None:
    value = [torch.arange(10_000.0), torch.arange(20_000.0)]
    result, packed = _carried(value, size=50_000)
    assert packed.used <= 50_000 < packed.wanted
    assert all(torch.equal(a, b) for a, b in zip(result, value, strict=True))


def test_collated_batch_too_large_for_its_slot_is_wanted_once() -> None:
    slot = Slot(np.zeros(1 << 16, np.uint8))
    batch = slot_collate(torch.utils.data.default_collate)([torch.ones(6400)] * 4, slot)
    assert pack(batch, slot).wanted == 4 * 6400 * 4


def test_leaves_that_require_grad_and_subclasses_stay_what_they_are() -> None:
    leaf = torch.ones(300, requires_grad=True)
    parameter = torch.nn.Parameter(torch.ones(300))
    (a, b), _ = _carried([leaf, parameter])
    assert a.requires_grad
    assert isinstance(b, torch.nn.Parameter)
    assert torch.equal(a, leaf)
    assert torch.equal(b, parameter)


def test_default_collate_writes_into_the_slot() -> None:
    memory = np.zeros(1 << 16, np.uint8)
    slot = Slot(memory)
    collate = slot_collate(torch.utils.data.default_collate)
    batch = [(torch.full((100,), float(i)), np.full(50, i), i) for i in range(4)]
    images, arrays, numbers = collate(batch, slot)
    assert slot.used >= 4 * 100 * 4 + 4 * 50 * 8
    address = memory.__array_interface__["data"][0]
    assert address <= images.data_ptr() < address + memory.size
    assert images[:, 0].tolist() == [0, 1, 2, 3]
    assert arrays[:, 0].tolist() == numbers.tolist() == [0, 1, 2, 3]
    with pytest.raises(RuntimeError, match="equal size"):
        collate([torch.ones(3), torch.ones(4)], Slot(memory))
