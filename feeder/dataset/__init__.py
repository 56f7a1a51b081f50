"""Map-style datasets: from sample numbers to encoded bytes."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any

_HOMES = {
    "FeederDataset": "base",
    "FolderDataset": "folders",
    "ShardDataset": "shards",
    "as_feeder": "subset",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)


class _Moved(ModuleType):
    """A module under the name by which pickles of earlier versions refer to it."""

    def __init__(self, old: str, new: str) -> None:
        super().__init__(old)
        self.__dict__["new"] = new

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(importlib.import_module(self.__dict__["new"]), name)


for _old, _new in {
    "feeder.read_shards": f"{__name__}.shard_reader",
    "feeder.read_folder": f"{__name__}.folder_reader",
    "feeder.read_part": f"{__name__}.subset_reader",
    f"{__name__}.datasets": __name__,
}.items():
    sys.modules.setdefault(_old, _Moved(_old, _new))
