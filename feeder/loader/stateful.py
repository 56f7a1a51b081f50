"""torchdata's protocol for objects that save and load a state, and who has the methods of a protocol.

Note [Names are not protocols]
    A class may have a method of a protocol's name for another purpose: the ``state_dict()`` of litdata's and of
    MosaicML's datasets takes arguments. A method is a protocol's if it can be called as the protocol calls it.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, cast


def is_stateful(obj: Any) -> bool:
    """Returns True if the object has the protocol's methods."""
    return method_of(obj, "state_dict", 0) is not None and method_of(obj, "load_state_dict", 1) is not None


def method_of(obj: Any, name: str, arguments: int) -> Callable[..., Any] | None:
    """Returns a method of an object; None if there is none that takes so many arguments. See Note [Names are not
    protocols]."""
    method = getattr(obj, name, None)
    if not callable(method):
        return None
    function = getattr(method, "__func__", None)  # a signature takes 10 us, and there are two a batch
    if function is None:
        return method if _takes(method, arguments) else None
    return method if _function_takes(function, 1 + arguments) else None


def _takes(function: Callable[..., Any], arguments: int) -> bool:
    try:
        inspect.signature(function).bind(*[None] * arguments)
    except TypeError:
        return False
    except ValueError:  # there is no signature of what is written in C
        pass
    return True


_function_takes = functools.lru_cache(256)(_takes)


def state_of(obj: Any) -> dict[str, Any] | None:
    """Returns the object's state; None if it keeps none."""
    return cast("dict[str, Any]", obj.state_dict()) if is_stateful(obj) else None


def load_if_stateful(obj: Any, state: dict[str, Any] | None) -> None:
    """Loads a state into an object that takes one."""
    if state is not None and is_stateful(obj):
        obj.load_state_dict(state)
