"""Batches of datasets that are not feeder's: torch's arguments and meaning, and slots that are used again."""

from __future__ import annotations

import gc
import inspect
import os
import random
import resource
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, IterableDataset, get_worker_info

from feeder.loader.dataloader import DataLoader
from tests.support import PYTHON_PATH
from tests.support.processes import wait_until
from tests.support.torch_datasets import Tensors, as_it_is, as_lists
from tests.support.warm_python import run_warm

_TORCH = tuple(int(number) for number in torch.__version__.split(".")[:2])


class _Random(Dataset[Any]):
    def __len__(self) -> int:
        return 24

    def __getitem__(self, i: int) -> Any:
        info = get_worker_info()
        worker = -1 if info is None else info.id
        return i, worker, torch.rand(()), random.random(), np.random.rand()


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("seeded", [False, True])
def test_random_numbers_are_those_of_torchs_loader(workers: int, shuffle: bool, seeded: bool) -> None:
    found = []
    for cls in (torch.utils.data.DataLoader, DataLoader):
        torch.manual_seed(3)
        random.seed(3)
        np.random.seed(3)
        generator = torch.Generator().manual_seed(4) if seeded else None
        loader: Any = cls(_Random(), batch_size=4, shuffle=shuffle, num_workers=workers, generator=generator)
        found.append([as_lists(loader) for _ in range(2)] + [[torch.rand(()).item()]])
    assert found[0] == found[1]


def test_every_tensor_of_a_large_batch_arrives(tmp_path: Any) -> None:
    loader = DataLoader(Tensors(), batch_size=8, num_workers=2)
    for _ in range(2):
        for number, (images, labels) in enumerate(loader):
            assert labels.tolist() == list(range(8 * number, 8 * number + 8))
            assert images.shape == (8, 3, 50, 60)
            assert images[:, 0, 0, 0].tolist() == labels.tolist()
            assert (images == labels[:, None, None, None]).all()


def _write_no_files(worker: int) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))


def _own_collate(samples: list[Any]) -> Any:
    images = torch.stack([image for image, _ in samples])
    return images, images[:, :, ::2], [label for _, label in samples]


@pytest.mark.parametrize("collate", [None, _own_collate])
def test_batches_arrive_where_torchs_shared_memory_is_too_small(collate: Any) -> None:
    def batches(**options: Any) -> Any:
        loader = DataLoader(Tensors(), batch_size=4, num_workers=2, collate_fn=collate, prefetch_factor=1, **options)
        for batch in loader:
            yield [torch.as_tensor(x).clone() for x in batch]

    for batch, other in zip(batches(worker_init_fn=_write_no_files), batches(), strict=True):
        assert all(torch.equal(a, b) for a, b in zip(batch, other, strict=True))


_IN_A_DEEP_FOLDER = """
import sys
import feeder
from tests.support.torch_datasets import Tensors
for context in ("fork", "forkserver"):
    loader = feeder.DataLoader(Tensors(), batch_size=4, num_workers=1, multiprocessing_context=context)
    print(len([labels for _, labels in loader]))
"""


def test_the_path_of_the_temporary_folder_may_be_long(tmp_path: Path) -> None:
    folder = tmp_path / ("a" * 170)
    folder.mkdir()
    environment = {**os.environ, "TMPDIR": str(folder), "PYTHONPATH": PYTHON_PATH}
    done = run_warm(["-c", _IN_A_DEEP_FOLDER], env=environment, capture_output=True, text=True)
    assert done.stdout == "10\n10\n", done.stderr


def test_held_batches_never_change() -> None:
    loader = DataLoader(Tensors(), batch_size=4, num_workers=2, persistent_workers=True)
    held = [*loader, *loader]
    for number, (images, labels) in enumerate(held):
        assert labels.tolist() == [4 * (number % 10) + k for k in range(4)]
        assert (images == labels[:, None, None, None]).all()


def test_slots_are_used_again_and_no_descriptor_is_left() -> None:
    loader = DataLoader(Tensors(400), batch_size=4, num_workers=2, persistent_workers=True)
    assert sum(1 for _ in loader) == 100  # without a name that holds the last one's slot
    gc.collect()  # what other tests have left
    before = len(os.listdir("/proc/self/fd"))
    addresses = {images.data_ptr() for images, _ in loader}
    assert len(addresses) <= 6
    assert len(os.listdir("/proc/self/fd")) == before


def test_batches_that_grow_still_arrive() -> None:
    class Growing(Dataset[Any]):
        def __len__(self) -> int:
            return 12

        def __getitem__(self, i: int) -> torch.Tensor:
            return torch.full((20_000 * (i + 1),), float(i))

    for number, batch in enumerate(DataLoader(Growing(), batch_size=1, num_workers=2)):
        assert batch.shape == (1, 20_000 * (number + 1))
        assert (batch == number).all()


def test_iterable_datasets_of_different_lengths() -> None:
    class Uneven(IterableDataset[int]):
        def __iter__(self) -> Iterator[int]:
            info = get_worker_info()
            assert info is not None
            return iter(range(10 * info.id, 10 * info.id + 3 * (info.id + 1)))

    loader = DataLoader(Uneven(), batch_size=2, num_workers=3, persistent_workers=True)
    expected = [b.tolist() for b in torch.utils.data.DataLoader(Uneven(), batch_size=2, num_workers=3)]
    for _ in range(3):
        assert [b.tolist() for b in loader] == expected


def test_breaking_off_a_persistent_loader_begins_anew() -> None:
    loader = DataLoader(Tensors(), batch_size=4, num_workers=2, persistent_workers=True)
    for stop in (0, 3, 5):
        for number, (_, labels) in enumerate(loader):
            assert labels.tolist() == list(range(4 * number, 4 * number + 4))
            if number == stop:
                break


class _Wide:
    """Batches of so many bytes are asked for by names of so many bytes."""

    def __init__(self, name_bytes: int, batch_bytes: int) -> None:
        self.name_bytes, self.batch_bytes = name_bytes, batch_bytes

    def __iter__(self) -> Iterator[list[str]]:
        return ([str(k) * self.name_bytes] for k in range(10))

    def __len__(self) -> int:
        return 10

    def __getitem__(self, name: str) -> bytes:
        return name[:1].encode() * self.batch_bytes


def test_trainer_and_worker_do_not_wait_for_each_other_to_read() -> None:
    wide = _Wide(500_000, 60_000)
    loader = DataLoader(wide, batch_sampler=wide, num_workers=1, prefetch_factor=10, collate_fn=as_it_is)
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.extend(loader), daemon=True)
    thread.start()
    thread.join(60)
    assert found == [[wide[str(k)]] for k in range(10)]


def test_arguments_are_torchs_in_its_order_with_its_defaults() -> None:
    theirs = inspect.signature(torch.utils.data.DataLoader.__init__).parameters
    ours = inspect.signature(DataLoader.__init__).parameters
    assert list(ours)[: len(theirs)] == list(theirs)
    for name, parameter in theirs.items():
        assert (ours[name].kind, ours[name].default) == (parameter.kind, parameter.default), name
    assert all(parameter.kind is parameter.KEYWORD_ONLY for name, parameter in ours.items() if name not in theirs)
    plain: Any = torch.utils.data.DataLoader(range(8), 2)  # type: ignore[arg-type]
    loader: Any = DataLoader(range(8), 2)
    for name in set(vars(plain)) - {"sampler", "batch_sampler", "dataset"}:
        assert getattr(loader, name) == getattr(plain, name), name


def test_batches_may_come_as_they_are_ready(tmp_path: Path) -> None:
    class FirstLast(Dataset[int]):
        """Worker 0 waits until the caller has another batch."""

        def __len__(self) -> int:
            return 6

        def __getitem__(self, i: int) -> int:
            if i == 0:
                wait_until(mark.exists)
            return i

    mark = tmp_path / "mark"
    options: dict[str, Any] = {"batch_size": 1, "num_workers": 2, "prefetch_factor": 2, "timeout": 60}
    iterator = iter(DataLoader(FirstLast(), in_order=False, **options))
    found = [next(iterator).item()]
    assert found == [1]
    mark.touch()
    assert sorted(found + [batch.item() for batch in iterator]) == list(range(6))
    assert [batch.item() for batch in DataLoader(FirstLast(), **options)] == list(range(6))


@pytest.mark.parametrize("workers", [0, 1])
def test_datasets_may_give_several_samples_at_once(workers: int) -> None:
    class AtOnce(Dataset[int]):
        def __len__(self) -> int:
            return 10

        def __getitems__(self, indices: list[int]) -> list[int]:
            return [100 * len(indices) + i for i in indices]

    batches = [batch.tolist() for batch in DataLoader(AtOnce(), batch_size=4, num_workers=workers)]
    assert batches == [[400, 401, 402, 403], [404, 405, 406, 407], [208, 209]]


class _Pinnable:
    def __init__(self, samples: list[int]) -> None:
        self.samples, self.is_pinned = samples, False

    def pin_memory(self) -> _Pinnable:
        self.is_pinned = True
        return self


@pytest.mark.skipif(_TORCH < (2, 8), reason="older ones ask torch.cuda, which can't be said to be there")
@pytest.mark.parametrize("workers", [0, 1])
def test_batches_with_a_pin_memory_of_their_own_are_asked_to(workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda *_: None)
    options: dict[str, Any] = {"batch_size": 2, "num_workers": workers, "collate_fn": _Pinnable}
    for pin in (False, True):
        batches = list(DataLoader(range(4), pin_memory=pin, **options))
        assert [(batch.samples, batch.is_pinned) for batch in batches] == [([0, 1], pin), ([2, 3], pin)]


@pytest.mark.parametrize("persistent", [False, True])
def test_the_number_of_workers_may_change_between_epochs(persistent: bool) -> None:
    loader = DataLoader(Tensors(8), batch_size=2, num_workers=1, persistent_workers=persistent)
    assert len(list(loader)) == 4
    loader.close()
    loader.num_workers = 3
    assert len(list(loader)) == 4
    stats = loader.stats()
    assert [worker["stages"]["fetch"]["count"] for worker in stats["workers"]] == [6, 1, 1]
    loader.close()
