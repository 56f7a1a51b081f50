"""Meters in the processes that a script starts by multiprocessing, such as those of ``torch.multiprocessing.spawn``.

Workers of loaders, which are daemons or run code of feeder or torchdata, are left alone. Any other process gets a
:class:`MeteredTarget` in place of its target. It installs the meters and then runs the target, with any start method.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import multiprocessing.process
import os
from collections.abc import Callable, Iterator
from typing import Any

from feeder.tools.instrument.hooks import LoaderHooks, own_rank
from feeder.tools.instrument.record import ProcessRecord

__all__ = ["meter_children", "read_children"]


class MeteredTarget:
    """The target of a child process, with meters around it.

    Args:
        folder: Folder for its measurements.
        target: The script's own target.
    """

    def __init__(self, folder: str, target: Callable[..., Any]) -> None:
        self.folder = folder
        self.target = target

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        meter = LoaderHooks.here(self.folder)
        try:
            return self.target(*arguments, **keywords)
        finally:
            record = meter.finish()
            if record.rank is None:
                record.rank = own_rank()  # which the child itself may set
            path = os.path.join(self.folder, f"child-{os.getpid()}.json")
            with contextlib.suppress(OSError), open(path, "w", encoding="utf-8") as file:
                json.dump(dataclasses.asdict(record), file)


def meter_children(folder: str) -> None:
    """Meters every child process from now on.

    Args:
        folder: Folder for the children's measurements.
    """
    original = multiprocessing.process.BaseProcess.start

    def start(process: Any) -> None:
        target = getattr(process, "_target", None)
        root = (getattr(target, "__module__", None) or "").partition(".")[0]
        is_worker = process.daemon or root in ("feeder", "torchdata")
        if target is not None and not is_worker and not isinstance(target, MeteredTarget):
            process._target = MeteredTarget(folder, target)
        original(process)

    multiprocessing.process.BaseProcess.start = start  # type: ignore[method-assign,assignment]


def read_children(folder: str) -> Iterator[ProcessRecord]:
    """Yields the measurements of child processes."""
    for name in sorted(os.listdir(folder)):
        if name.startswith("child-"):
            with contextlib.suppress(OSError, ValueError), open(os.path.join(folder, name), encoding="utf-8") as file:
                yield ProcessRecord.from_json(json.load(file))
