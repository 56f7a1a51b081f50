"""Seeds of worker processes, and what torch's get_worker_info() says in them."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data._utils import worker as torch_worker

from feeder.order.random import philox

__all__ = ["introduce", "seeded"]

_STREAM = 65_531  # the next below those of mixing


def introduce(base_seed: int, worker: int, workers: int, dataset: Any) -> None:
    """Seeds a worker and tells ``get_worker_info()`` of it, as torch does before it calls ``worker_init_fn``."""
    seed = base_seed + worker
    random.seed(seed)
    torch.manual_seed(seed)
    np.random.seed(torch_worker._generate_state(base_seed, worker))  # type: ignore[no-untyped-call]
    torch_worker._worker_info = torch_worker.WorkerInfo(id=worker, num_workers=workers, seed=seed, dataset=dataset)


@contextlib.contextmanager
def seeded(seed: int, epoch: int, place: int) -> Iterator[None]:
    """Seeds Python's, numpy's and torch's generators for the batch at a place in the epoch, and puts them back."""
    words = philox(seed, epoch, [place], _STREAM, 2)[0].tolist()
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
