"""Seeds of worker processes, and the WorkerInfo of torch's get_worker_info() in them."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils.data._utils import worker as torch_worker

from feeder.order.random import Stream, philox


@dataclass
class WorkerInit:
    """Called in a new worker: seeds it, sets its ``get_worker_info()``, and calls the user's ``worker_init_fn``.

    Attributes:
        init: The user's function, if any.
        workers: Number of workers.
        dataset: The user's dataset.
        base_seed: Seed of worker 0.
    """

    init: Callable[[int], None] | None
    workers: int
    dataset: Any
    base_seed: int = 0

    def __call__(self, number: int) -> None:
        introduce(self.base_seed, number, self.workers, self.dataset)
        if self.init is not None:
            self.init(number)


def introduce(base_seed: int, worker: int, workers: int, dataset: Any) -> None:
    """Seeds a worker and sets its ``get_worker_info()``, as torch does before it calls ``worker_init_fn``."""
    seed = base_seed + worker
    random.seed(seed)
    torch.manual_seed(seed)
    np.random.seed(torch_worker._generate_state(base_seed, worker))  # type: ignore[no-untyped-call]
    torch_worker._worker_info = torch_worker.WorkerInfo(id=worker, num_workers=workers, seed=seed, dataset=dataset)


def epoch_base_seed(seed: int, rank: int, epoch: int) -> int:
    """Returns the base seed of workers that start in an epoch: below 2**62, as torch adds the worker's number."""
    return int(np.random.SeedSequence([seed, rank, epoch]).generate_state(1, np.uint64)[0]) >> 2


@contextlib.contextmanager
def seeded(seed: int, epoch: int, place: int) -> Iterator[None]:
    """Seeds Python's, numpy's and torch's generators for the batch at a place in the epoch, and puts them back."""
    words = philox(seed, epoch, [place], Stream.COLLATE, 2)[0].tolist()
    before = random.getstate(), np.random.get_state(), torch.get_rng_state()
    random.seed(words[0] << 32 | words[1])
    np.random.seed(words[2:4])
    torch.default_generator.manual_seed(words[4] << 32 | words[5])
    try:
        yield
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])
        torch.set_rng_state(before[2])
