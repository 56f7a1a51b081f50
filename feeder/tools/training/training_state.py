"""The state of a training loop, restored after a measurement."""

from __future__ import annotations

import copy
import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from feeder.errors import ArgumentError

__all__ = ["Snapshot"]


class Snapshot:
    """The state of modules, other stateful objects and random generators, kept in CPU memory.

    Args:
        restore: Modules (with their gradients and training modes), and objects with state_dict and load_state_dict.
        device: A device whose random state is kept too, besides that of the CPU.

    Raises:
        ArgumentError: for anything else.
    """

    def __init__(self, restore: Sequence[Any], device: torch.device) -> None:
        for each in restore:
            if not isinstance(each, torch.nn.Module) and not hasattr(each, "load_state_dict"):
                kind = type(each).__name__
                raise ArgumentError(f"restore takes modules and objects with load_state_dict, got {kind}")
        self._modules = [each for each in restore if isinstance(each, torch.nn.Module)]
        self._tensors = [_on_cpu(_tensors(module)) for module in self._modules]
        self._gradients = [_on_cpu({n: p.grad for n, p in m.named_parameters()}) for m in self._modules]
        self._modes = [[part.training for part in module.modules()] for module in self._modules]
        self._others = [(o, _on_cpu(o.state_dict())) for o in restore if not isinstance(o, torch.nn.Module)]
        self._python = random.getstate()
        self._numpy = np.random.get_state()
        self._torch = torch.get_rng_state()
        self._cuda = torch.cuda.get_rng_state_all() if device.type == "cuda" else None

    @torch.no_grad()
    def put_back(self) -> None:
        """Restores everything; tensors keep their place in memory."""
        for module, tensors, gradients, modes in zip(
            self._modules, self._tensors, self._gradients, self._modes, strict=True
        ):
            for name, tensor in _tensors(module).items():
                tensor.copy_(tensors[name])
            for name, parameter in module.named_parameters():
                gradient = gradients[name]
                parameter.grad = None if gradient is None else gradient.to(parameter.device, copy=True)
            for part, training in zip(module.modules(), modes, strict=True):
                part.training = training

        for each, state in self._others:
            each.load_state_dict(copy.deepcopy(state))
        random.setstate(self._python)
        np.random.set_state(self._numpy)
        torch.set_rng_state(self._torch)
        if self._cuda is not None:
            torch.cuda.set_rng_state_all(self._cuda)


def _tensors(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


def _on_cpu(value: Any) -> Any:
    """Returns a copy of nested containers with their tensors in CPU memory."""
    if isinstance(value, torch.Tensor):
        return value.detach().to("cpu", copy=True)
    if isinstance(value, dict):
        return {key: _on_cpu(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        items = [_on_cpu(item) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    return copy.deepcopy(value)
