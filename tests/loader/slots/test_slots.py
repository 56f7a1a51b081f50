from __future__ import annotations

import gc
import os
from typing import Any

import numpy as np
import pytest
import torch

from feeder.dataset.extras import Column
from feeder.errors import ArgumentError
from feeder.loader.slots.image_slots import Layout, Ring, SlotView, plan_slots
from feeder.loader.slots.region import Region

LAYOUT = Layout(4, (Column((3, 5, 6), "uint8"),))


def _fill(ring: Ring, slot: int, value: int) -> None:
    ring.views[slot].images[0][...] = value
    ring.views[slot].labels[...] = value


def test_slot_arrays_do_not_overlap() -> None:
    ring = Ring(Layout(3, (Column((3, 5, 6), "float32"),), further=(Column((2,), "int16"), Column((), "float64"))), 2)
    for slot in range(2):
        view = ring.views[slot]
        for k, array in enumerate((*view.samples, view.labels, *view.images, *view.further)):
            array[...] = 10 * slot + k
    for slot in range(2):
        view = ring.views[slot]
        for k, array in enumerate((*view.samples, view.labels, *view.images, *view.further)):
            assert (array == 10 * slot + k).all()
        assert view.images[0].shape == (3, 3, 5, 6)
        assert view.images[0].dtype == np.float32


def test_slot_comes_free_with_the_last_tensor_on_it() -> None:
    ring = Ring(LAYOUT, 1)
    slot = ring.acquire()
    assert slot == 0
    assert ring.acquire() is None
    view = SlotView.of(ring.layout, ring.lease(slot))
    images, labels = torch.from_numpy(view.images[0][:2]), torch.from_numpy(view.labels)
    del view
    part = images[1:, 0]
    del images
    assert ring.acquire() is None
    del labels
    assert ring.acquire() is None
    array = part.numpy()
    del part
    assert ring.acquire() is None
    del array
    assert ring.acquire() == 0


def test_held_batches_never_change() -> None:
    ring = Ring(LAYOUT, 3)
    held = []
    for value in range(50):
        slot = ring.acquire()
        assert slot is not None
        _fill(ring, slot, value)
        held.append((value, torch.from_numpy(SlotView.of(ring.layout, ring.lease(slot)).images[0])))
        for v, tensor in held:
            assert tensor.unique().tolist() == [v]
        if len(held) == 3:
            del held[value % 2]


def test_tensors_outlive_the_ring() -> None:
    ring = Ring(LAYOUT, 2)
    slot = ring.acquire()
    assert slot is not None
    _fill(ring, slot, 7)
    tensor = torch.from_numpy(SlotView.of(ring.layout, ring.lease(slot)).images[0])
    ring.region.close()
    del ring
    gc.collect()
    assert tensor.unique().tolist() == [7]


def test_slot_waits_for_the_copies_that_may_still_read_it() -> None:
    class Guard:
        passed: set[int]
        count = 0

        def record(self) -> Any:
            self.count += 1
            return self.count

        def done(self, mark: Any) -> bool:
            return mark in self.passed

    guard = Guard()
    guard.passed = set()
    ring = Ring(LAYOUT, 2, guard)
    for _ in range(2):
        slot = ring.acquire()
        assert slot is not None
        ring.lease(slot)
    assert ring.acquire() is None
    assert ring.leased == 2
    guard.passed = {2}
    assert ring.acquire() == 1
    guard.passed = {1, 2}
    assert ring.acquire() == 0


@pytest.mark.filterwarnings("error")
def test_a_slot_of_which_nobody_can_say_when_its_copies_are_done_is_not_used_again() -> None:
    """As in a process forked off one that uses CUDA, or after an error that CUDA does not recover from."""

    class Guard:
        def record(self) -> Any:
            raise RuntimeError("CUDA error: initialization error")

        def done(self, mark: Any) -> bool:
            return True

    ring = Ring(LAYOUT, 1, Guard())
    assert ring.acquire() == 0
    ring.lease(0)  # and let go at once
    assert ring.acquire() is None
    assert ring.leased == 1


def test_region_is_shared_with_who_maps_its_descriptor() -> None:
    region = Region(8192)
    other = Region(8192, os.dup(region.descriptor))
    region.array(np.uint8, (8192,))[5000] = 9
    assert other.array(np.uint8, (8192,))[5000] == 9
    readonly = Region(8192, os.dup(region.descriptor), writable=False)
    with pytest.raises(ValueError, match="read-only"):
        readonly.array(np.uint8, (8192,))[0] = 1


def test_no_signal_that_comes_again_and_again_keeps_a_region_from_being_allocated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An older kernel gives up a piece at a signal, however far it is, and has to begin it anew."""
    allocate, at_once = os.posix_fallocate, 8 << 20  # what it allocates between two signals

    def interrupted(descriptor: int, offset: int, size: int) -> None:
        assert size <= at_once, "never done"
        allocate(descriptor, offset, size)

    monkeypatch.setattr(os, "posix_fallocate", interrupted)
    region = Region((20 << 20) + 4096)
    assert os.fstat(region.descriptor).st_blocks * 512 == region.size_bytes


def test_regions_leave_no_descriptor_behind() -> None:
    gc.collect()  # what other tests have left
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        ring = Ring(LAYOUT, 2)
        ring.lease(0)
        del ring
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before


def test_plan_keeps_to_the_limit() -> None:
    size = LAYOUT.slot_bytes
    assert plan_slots(LAYOUT, 4, 2, None) == (6, 4)
    assert plan_slots(LAYOUT, 4, 2, 6 * size) == (6, 4)
    assert plan_slots(LAYOUT, 4, 2, 4 * size) == (4, 3)
    assert plan_slots(LAYOUT, 4, 2, 2 * size) == (2, 1)
    with pytest.raises(ArgumentError, match="memory_limit_bytes") as caught:
        plan_slots(LAYOUT, 4, 2, 2 * size - 1)
    assert "batch_size" in str(caught.value)


@pytest.mark.parametrize(("available", "plan"), [(12, (6, 4)), (8, (4, 3)), (6, (3, 2)), (3, (2, 1)), (2, (2, 1))])
def test_without_a_limit_half_of_the_memory_is_left_to_others(
    monkeypatch: pytest.MonkeyPatch, available: int, plan: tuple[int, int]
) -> None:
    monkeypatch.setattr("feeder.loader.slots.image_slots.available_bytes", lambda: available * LAYOUT.slot_bytes)
    assert plan_slots(LAYOUT, 4, 2, None) == plan
    assert plan_slots(LAYOUT, 4, 2, 99 * LAYOUT.slot_bytes) == (min(6, available), max(1, min(4, available - 1)))


def test_batches_too_large_for_memory_name_what_to_change() -> None:
    with pytest.raises(ArgumentError, match="lower batch_size"):
        plan_slots(Layout(1 << 24, (Column((3, 1024, 1024), "float32"),)), 4, 2, None)
