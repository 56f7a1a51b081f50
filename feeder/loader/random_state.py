"""States of torch's, numpy's and Python's random number generators, as JSON, and seeds that are drawn from torch's."""

from __future__ import annotations

import base64
import random
from typing import Any

import numpy as np
import torch

RandomSource = torch.Generator | random.Random | np.random.Generator | np.random.RandomState


def global_sources() -> dict[str, RandomSource]:
    """Returns, by package, the generators behind ``torch.rand`` (CPU), ``random.random`` and ``numpy.random.rand``."""
    hidden: Any = random.getstate, np.random.get_state  # methods of generators that have no public name
    return {"torch": torch.default_generator, "random": hidden[0].__self__, "numpy": hidden[1].__self__}


def draw_seed(generator: torch.Generator | None = None) -> int:
    """Draws a seed from torch's random state or a generator, as torch draws those of samplers and workers."""
    device = "cpu" if generator is None else generator.device
    return int(torch.empty((), dtype=torch.int64, device=device).random_(generator=generator).item())


def get_state(source: RandomSource) -> Any:
    """Returns the state of a generator, in JSON's types."""
    if isinstance(source, torch.Generator):
        return base64.b64encode(source.get_state().numpy().tobytes()).decode()
    if isinstance(source, random.Random):
        return list(source.getstate())
    if isinstance(source, np.random.RandomState):
        return _plain(source.get_state(legacy=False))
    return _plain(source.bit_generator.state)


def set_state(source: RandomSource, state: Any) -> None:
    """Puts a generator into a state from :func:`get_state`.

    Raises:
        LookupError, RuntimeError, TypeError, ValueError: if the state is not of that kind of generator.
    """
    if isinstance(source, torch.Generator):
        words = np.frombuffer(base64.b64decode(state, validate=True), np.uint8)
        source.set_state(torch.from_numpy(words.copy()))
    elif isinstance(source, random.Random):
        version, words, gauss = state
        source.setstate((version, tuple(words), gauss))
    elif isinstance(source, np.random.RandomState):
        source.set_state(state)
    else:
        source.bit_generator.state = state


def _plain(state: Any) -> Any:
    if isinstance(state, dict):
        return {name: _plain(value) for name, value in state.items()}
    return state.tolist() if isinstance(state, np.ndarray | np.generic) else state
