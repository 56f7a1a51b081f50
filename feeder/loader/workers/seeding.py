"""Seeds of worker processes, and what torch's get_worker_info() says in them."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch
from torch.utils.data._utils import worker as torch_worker

__all__ = ["introduce"]


def introduce(base_seed: int, worker: int, workers: int, dataset: Any) -> None:
    """Seeds a worker and tells ``get_worker_info()`` of it, as torch does before it calls ``worker_init_fn``."""
    seed = base_seed + worker
    random.seed(seed)
    torch.manual_seed(seed)
    np.random.seed(torch_worker._generate_state(base_seed, worker))  # type: ignore[no-untyped-call]
    torch_worker._worker_info = torch_worker.WorkerInfo(id=worker, num_workers=workers, seed=seed, dataset=dataset)
