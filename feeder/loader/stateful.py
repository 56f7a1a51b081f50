"""Objects with a state of their own: torchdata's protocol."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

__all__ = ["Stateful", "load_if_stateful", "state_of"]


@runtime_checkable
class Stateful(Protocol):
    """A dataset, sampler or iterator that can say where it is, and go there."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state_dict: dict[str, Any]) -> None: ...


def state_of(obj: Any) -> dict[str, Any] | None:
    """The object's state; None if it has none to give."""
    return obj.state_dict() if isinstance(obj, Stateful) else None


def load_if_stateful(obj: Any, state: dict[str, Any] | None) -> None:
    """Puts an object into a state, if it takes one."""
    if state is not None and isinstance(obj, Stateful):
        obj.load_state_dict(state)
