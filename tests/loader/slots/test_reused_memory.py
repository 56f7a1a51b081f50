from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import torch

from feeder import transforms as T
from feeder.dataset.shards import ShardDataset
from feeder.loader.dataloader import DataLoader
from feeder.loader.fast.batch_queue import ReusedMemory
from feeder.loader.slots.image_slots import HELD_BATCHES
from tests.support.batches import copied_epoch, same_batches


def test_memory_is_used_again_once_the_last_tensor_on_it_is_gone() -> None:
    memory = ReusedMemory()
    array = memory.empty((2, 1 << 20), "int32")
    array[:] = 7
    address = array.ctypes.data
    view = torch.from_numpy(array)[1:]
    del array
    other = memory.empty((2, 1 << 20), "int32")
    assert other.ctypes.data != address
    del view
    assert (memory.empty((2, 1 << 20), "int32") == 7).all()


def test_a_smaller_array_uses_the_memory_of_a_larger_one_and_not_the_other_way_around() -> None:
    memory = ReusedMemory()
    address = memory.empty((100,), "uint8").ctypes.data
    small = memory.empty((3, 20), "uint8")
    assert small.ctypes.data == address
    assert small.shape == (3, 20)
    del small
    large = memory.empty((100,), "int64")
    large[:] = 7
    assert (large == 7).all()


@pytest.mark.parametrize("shape", [(), (5, 7)])
def test_arrays_start_at_a_cache_line(shape: tuple[int, ...]) -> None:
    array = ReusedMemory().empty(shape, "float32")
    assert array.shape == shape
    assert array.dtype == np.float32
    assert array.ctypes.data % 64 == 0


def test_no_more_memory_is_kept_than_a_loop_holds() -> None:
    size_bytes, memory = 1 << 20, ReusedMemory()
    tracemalloc.start()
    try:
        held = [memory.empty((size_bytes,), "uint8") for _ in range(HELD_BATCHES + 3)]
        del held
        assert tracemalloc.get_traced_memory()[0] < (HELD_BATCHES + 0.5) * size_bytes
        del memory
        assert tracemalloc.get_traced_memory()[0] < size_bytes / 2
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("views", [1, 3])
def test_batches_without_workers_take_turns_in_memory(shards: Path, views: int) -> None:
    recipe = T.Compose([T.RandomResizedCrop(16), T.ToDtype("float32", scale=True)])
    dataset = ShardDataset(shards, T.Views([recipe] * views) if views > 1 else recipe)
    seen = []
    for images, _ in DataLoader(dataset, batch_size=5):
        seen.append([view.data_ptr() for view in (images if views > 1 else [images])])
    assert all(len(set(pointers)) == 2 for pointers in zip(*seen, strict=True))
    assert all(len(set(pointers)) == views for pointers in seen)


def test_batches_that_the_caller_keeps_stay_as_they_are(shards: Path) -> None:
    loader = DataLoader(ShardDataset(shards, T.CenterCrop(16)), batch_size=5)
    kept = [batch for k, batch in enumerate(loader) if k % 3]
    assert same_batches(kept, [batch for k, batch in enumerate(copied_epoch(loader)) if k % 3])
