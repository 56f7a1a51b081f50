"""Has Python processes of tests train without torch's compiler, whose import takes 1.5 s of CPU in each.

An optimizer imports it to keep it off its own functions, which matters to nobody who compiles nothing. Python imports
this module at its start from PYTHONPATH.
"""

import sys
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any


class _Finder:
    """Replaces ``torch._disable_dynamo`` once its module is imported."""

    def find_spec(self, name: str, path: Any = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != "torch._compile":
            return None
        sys.meta_path.remove(self)
        spec = PathFinder.find_spec(name, path)
        assert spec is not None
        loader: Any = spec.loader
        execute = loader.exec_module

        def exec_module(module: Any) -> None:
            execute(module)
            module._disable_dynamo = lambda fn=None, recursive=True: fn or (lambda fn: fn)

        loader.exec_module = exec_module
        return spec


sys.meta_path.insert(0, _Finder())
