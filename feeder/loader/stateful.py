"""torchdata's protocol for objects that save and load a state."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

__all__ = ["Stateful", "load_if_stateful", "state_of"]


@runtime_checkable
class Stateful(Protocol):
    """A dataset, sampler or iterator that saves its place as a state, and goes on from one."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state_dict: dict[str, Any]) -> None: ...


def state_of(obj: Any) -> dict[str, Any] | None:
    """Returns the object's state; None if it keeps none."""
    return obj.state_dict() if isinstance(obj, Stateful) else None


def load_if_stateful(obj: Any, state: dict[str, Any] | None) -> None:
    """Loads a state into an object that takes one."""
    if state is not None and isinstance(obj, Stateful):
        obj.load_state_dict(state)
