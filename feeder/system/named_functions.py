"""Functions by name, ``module:function``, for processes on other machines that have the module, too."""

from __future__ import annotations

import functools
import hashlib
import importlib
import sys
from collections.abc import Callable, Collection
from typing import Any

from feeder.errors import ArgumentError


def function_name(function: Callable[..., Any]) -> str:
    """Returns the name of a module's function, ``module:function``.

    Raises:
        ArgumentError: for a ``lambda``, a local function, one of the script itself, or an object that is no function.
    """
    name = _name(function)
    module, _, rest = name.partition(":")
    if not name:
        raise ArgumentError(f"a {type(function).__name__} is no function that has a name; give a module's function")
    if module == "__main__" or _attribute(sys.modules.get(module), rest) is not function:
        raise ArgumentError(
            f"{rest} of {module} can't be found by its name elsewhere: give a function of a module, and no lambda, no "
            "local function and none of the script itself"
        )
    return name


def module_digest(name: str) -> str:
    """Returns a digest of an imported module's file; empty for a module without one."""
    path = getattr(sys.modules[name], "__file__", None)
    if path is None:
        return ""
    with open(path, "rb") as file:
        return hashlib.blake2b(file.read(), digest_size=16).hexdigest()


class AllowedFunctions:
    """Finds functions by name in a few modules alone.

    Args:
        modules: Names of the modules.
    """

    def __init__(self, modules: Collection[str] = ()) -> None:
        self._modules = frozenset(modules)

    def find(self, name: object, digests: object) -> Callable[..., Any]:
        """Returns a function, of a module that is imported for it.

        Args:
            name: Its name, see :func:`function_name`; trusted in nothing.
            digests: The digest of each module's file where the name was written down, see :func:`module_digest`.

        Raises:
            ArgumentError: if its module is not allowed, can't be imported, differs, or has no such function.
        """
        module, _, rest = name.partition(":") if isinstance(name, str) else ("", "", "")
        if module not in self._modules:
            raise ArgumentError(
                f"function {name!r} is of a module that the service was not started for: feeder serve --allow-module "
                f"{module or 'MODULE'}"
            )
        try:
            found: Callable[..., Any] = _attribute(importlib.import_module(module), rest)
        except Exception as error:  # the module may raise anything
            raise ArgumentError(f"module {module!r} can't be imported here: {error}") from error
        # That rules out what the module has imported itself, such as "augment:os.system".
        if not callable(found) or _name(found) != name:
            raise ArgumentError(f"module {module!r} has no function {rest!r} here")
        if not isinstance(digests, dict) or digests.get(module) != module_digest(module):
            raise ArgumentError(f"module {module!r} has another content here; put the same file on all nodes")
        return found


def _name(function: object) -> str:
    """Returns the name that a function has by itself; empty for what has none."""
    module, name = (getattr(function, each, None) for each in ("__module__", "__qualname__"))
    return f"{module}:{name}" if isinstance(module, str) and isinstance(name, str) else ""


def _attribute(module: object, name: str) -> Any:
    return functools.reduce(lambda found, part: getattr(found, part, None), name.split("."), module)
