"""State of the random number generators that belong to the caller."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch

__all__ = ["generator_states"]


def generator_states() -> list[Any]:
    """Returns the states of Python's, numpy's and torch's global generators, which compare by ``==``."""
    numpy_state: Any = np.random.get_state()
    name, key, *position = numpy_state
    return [random.getstate(), (name, key.tolist(), *position), torch.get_rng_state().tolist()]
