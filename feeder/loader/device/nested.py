"""Tensors inside of nested containers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch


def move(value: Any, device: torch.device) -> Any:
    """Returns the same structure with its tensors on the device; the copies may still be under way."""
    return map_tensors(value, lambda tensor: tensor.to(device, non_blocking=True))


def map_tensors(value: Any, function: Callable[[Any], Any], kind: type = torch.Tensor) -> Any:
    """Returns the same structure with each of its tensors, or objects of another kind, replaced by a function of it."""
    if isinstance(value, kind):
        return function(value)
    if isinstance(value, tuple):
        items = [map_tensors(item, function, kind) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if isinstance(value, list):
        return [map_tensors(item, function, kind) for item in value]
    if isinstance(value, Mapping):
        return {key: map_tensors(item, function, kind) for key, item in value.items()}
    return value


def tensors_in(value: Any, kind: type = torch.Tensor) -> Iterator[Any]:
    """Yields the tensors in a structure, or objects of another kind, in their order."""
    if isinstance(value, kind):
        yield value
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from tensors_in(item, kind)
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from tensors_in(item, kind)
