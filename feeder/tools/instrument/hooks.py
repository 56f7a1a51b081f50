"""Meters on the loaders and on ``backward()`` of this process, installed when the script imports torch.

Note [Metered calls]
    Metered are ``iter()`` of torch's, torchdata's and feeder's loaders, and ``next()`` of its result. The latter meter
    is on the iterator's class, so that the script gets the same iterator as without meters. A loader inside another
    loader's ``next()`` does not count twice. Nothing is imported early, as a script may set environment variables
    before it imports torch.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import FrameType, ModuleType
from typing import Any

import feeder
from feeder.tools.instrument.fetch import MeteredInit, meter_fetching, read_fetches
from feeder.tools.instrument.record import TRAINER_DECODE, Fetch, LoaderRecord, NextCall, ProcessRecord

_LOADERS = {
    "torch.utils.data.dataloader": "DataLoader",
    "torchdata.stateful_dataloader.stateful_dataloader": "StatefulDataLoader",
    "feeder.loader.dataloader": "DataLoader",
}
_MAKING = {"read", "draw", "cut", "decode", "transform", "fetch", "collate", "write"}  # stages that are not waits
_HEAP_TYPE = 1 << 9  # a class made by Python code, whose methods can be replaced

_LIBRARIES = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")
_PYTHON = os.path.dirname(os.__file__)
_FEEDER = os.path.dirname(os.path.abspath(feeder.__file__))


class LoaderHooks:
    """Meters on all loaders of this process.

    Args:
        folder: Folder for the workers' measurements.
        on_batch: Called after each batch of any loader, with the number of batches so far.
    """

    def __init__(self, folder: str, on_batch: Callable[[int], None] | None = None) -> None:
        self._folder = folder
        self._on_batch = on_batch
        self._hooks: dict[str, Callable[[ModuleType], None]] = {"torch.autograd": self._hook_backward}
        for module, name in _LOADERS.items():
            self._hooks[module] = functools.partial(self._hook_loader, name)
        self.record = ProcessRecord(time.monotonic_ns())
        self._backwards = 0
        self._count = 0
        self._local = threading.local()
        self.records: weakref.WeakKeyDictionary[Any, LoaderRecord] = weakref.WeakKeyDictionary()
        self._likes: dict[Any, tuple[weakref.ref[Any] | None, LoaderRecord]] = {}
        self._kept: tuple[LoaderRecord | None, dict[str, Any]] = None, {}
        self._stages_before: weakref.WeakKeyDictionary[Any, dict[str, int]] = weakref.WeakKeyDictionary()
        self._iterators: weakref.WeakKeyDictionary[Any, _Place] = weakref.WeakKeyDictionary()

    def install(self) -> None:
        """Puts meters on modules that are already imported, and on others when they are imported."""
        for name in [name for name in self._hooks if name in sys.modules]:
            self._hooks.pop(name)(sys.modules[name])
        sys.meta_path.insert(0, _Finder(self._hooks))

    def finish(self) -> ProcessRecord:
        """Returns the measurements, those of the workers included. What this thread does later is not measured."""
        self._local.inside = True
        self.record.ended_ns = time.monotonic_ns()
        for record in self.record.loaders:
            record.fetches += read_fetches(self._prefix(record))
            record.fetches.sort(key=lambda fetch: fetch.start_ns)
        for loader in list(self.records):
            self.note_stats(loader)
        return self.record

    def arguments_of(self, record: LoaderRecord) -> dict[str, Any] | None:
        """Returns the arguments by which ``feeder.DataLoader`` does as a loader of the script's; None if not kept."""
        return self._kept[1] if self._kept[0] is record else None

    def keep(self, record: LoaderRecord, loader: Any) -> None:
        """Keeps the arguments of the loader that matters most so far. Datasets of others do not stay in memory."""
        kept = self._kept[0]
        if kept is not None and kept is not record and record.matters <= kept.matters:
            return
        with contextlib.suppress(Exception):  # a loader may be anything, and a meter must not end the training
            from feeder.loader.from_torch import options_of

            options = loader.options if record.kind == "feeder" else functools.partial(options_of, loader)
            self._kept = record, {"dataset": loader.dataset} | options()

    def _prefix(self, record: LoaderRecord) -> str:
        """Returns the start of the paths of a loader's workers."""
        number = next(number for number, each in enumerate(self.record.loaders) if each is record)
        return os.path.join(self._folder, f"fetch-{os.getpid()}-{number}-")

    def _hook_backward(self, module: ModuleType) -> None:
        original = module.backward

        @functools.wraps(original)
        def backward(*arguments: Any, **keywords: Any) -> Any:
            self._backwards += 1
            return original(*arguments, **keywords)

        module.backward = backward  # type: ignore[attr-defined]

    def _hook_loader(self, name: str, module: ModuleType) -> None:
        kind: Any = getattr(module, name)
        original = kind.__iter__

        @functools.wraps(original)
        def metered(loader: Any) -> Any:
            if self._is_inside():
                return original(loader)
            record = self.record_of(loader, sys._getframe(1))
            inner = loader.worker_init_fn
            asked = time.monotonic_ns()
            self._local.inside = True
            try:
                if loader.num_workers > 0 and getattr(loader, "path", "generic") == "generic":
                    loader.worker_init_fn = MeteredInit(self._prefix(record), inner)
                iterator = original(loader)
            finally:
                self._local.inside = False
                if loader.worker_init_fn is not inner:
                    loader.worker_init_fn = inner

            record.made_ns.append((asked, time.monotonic_ns()))
            self.keep(record, loader)
            with contextlib.suppress(TypeError):  # an iterator without weak references goes unmetered
                self._iterators[iterator] = _Place(record, len(record.made_ns) - 1, weakref.ref(loader))
                self._meter_next(type(iterator))
            return iterator

        kind.__iter__ = metered
        if name == "DataLoader" and module.__name__.startswith("torch."):
            meter_fetching(self._note_fetch)

    def _meter_next(self, kind: Any) -> None:
        """Puts a meter on ``next()`` of a class of iterators, once."""
        owner = next((base for base in kind.__mro__ if "__next__" in vars(base)), None)
        if owner is None or hasattr(owner.__next__, "_metered") or not owner.__flags__ & _HEAP_TYPE:
            return
        original = owner.__next__
        meter = self

        @functools.wraps(original)
        def metered(iterator: Any) -> Any:
            place = None if meter._is_inside() else meter._iterators.get(iterator)
            if place is None:
                return original(iterator)
            return meter._next(iterator, original, place)

        metered._metered = True  # type: ignore[attr-defined]
        owner.__next__ = metered

    def _next(self, iterator: Any, original: Callable[[Any], Any], place: _Place) -> Any:
        trained = self._backwards > place.backwards
        place.backwards = self._backwards
        images = 0
        matters, waited_ns = place.record.matters
        asked = time.monotonic_ns()
        self._local.inside = True
        self._local.fetching = place.record
        try:
            batch = original(iterator)
            with contextlib.suppress(Exception):  # a batch may be anything, and a meter must not end the training
                images = max(1, _images(batch))
            return batch
        finally:
            self._local.inside = False
            place.record.batches.append(NextCall(asked, time.monotonic_ns(), images, place.epoch, trained))
            place.record.matters = trained or matters, waited_ns + time.monotonic_ns() - asked
            if self._kept[0] is not place.record and (loader := place.loader()) is not None:
                self.keep(place.record, loader)
            if images and self._on_batch is not None:
                self._count += 1
                self._on_batch(self._count)

    def _note_fetch(self, fetch: Fetch) -> None:
        """Records a batch that a loader without workers made in this process."""
        record = getattr(self._local, "fetching", None)
        if record is not None and self._is_inside():
            record.fetches.append(fetch)

    def record_of(self, loader: Any, frame: FrameType | None) -> LoaderRecord:
        """Returns a loader's record, which begins where it is seen first: in a frame, None if that is not known."""
        if loader not in self.records:
            kind = type(loader)
            root = kind.__module__.partition(".")[0]
            fresh = LoaderRecord(
                place=_place(frame),
                kind=root if root in ("torch", "feeder") else kind.__name__,
                workers=int(loader.num_workers),
                batch_size=loader.batch_size or getattr(loader.batch_sampler, "batch_size", None),
                pin_memory=bool(loader.pin_memory) or getattr(loader, "device", None) is not None,
                persistent=bool(loader.persistent_workers),
                convertible=_convertible(loader.dataset),
            )
            self.records[loader] = self._successor_of(loader, fresh)
            if self.records[loader] is fresh:
                self.record.loaders.append(fresh)
        self.note_stats(loader)
        return self.records[loader]

    def _successor_of(self, loader: Any, fresh: LoaderRecord) -> LoaderRecord:
        """Returns the record of the loader that this one replaces, as when each epoch makes a new one; else ``fresh``.

        A loader that still exists is not replaced, even if the same line iterates over both.
        """
        try:
            length = len(loader.dataset)
        except Exception:  # a data set may be anything, and a meter must not end the training
            length = -1
        likeness = repr(fresh), type(loader.dataset), length
        before, record = self._likes.get(likeness, (None, fresh))
        if before is not None and before() is not None:
            record = fresh
        elif record is not fresh:
            self._stages_before[loader] = dict(record.stage_ns)
        self._likes[likeness] = weakref.ref(loader), record
        return record

    def note_stats(self, loader: Any) -> None:
        """Records the current meters of a loader that has some."""
        with contextlib.suppress(Exception):  # a meter must not end the training
            found = loader.stats()
            times = collections.Counter(self._stages_before.get(loader, {}))
            for name in _MAKING & found["stages"].keys():
                in_trainer = name == "decode" and "redone_images" in found
                times[TRAINER_DECODE if in_trainer else name] += int(found["stages"][name]["total_ns"])
            record = self.records[loader]
            record.stage_ns = {name: spent_ns for name, spent_ns in times.items() if spent_ns}
            record.bottleneck = found.get("bottleneck")
            record.path_reason = found.get("path_reason")

    def _is_inside(self) -> bool:
        return bool(getattr(self._local, "inside", False))


@dataclass(eq=False)
class _Place:
    """Place of an iterator.

    Args:
        record: Its loader's record.
        epoch: The epoch.
        loader: Its loader.
        backwards: The number of ``backward()`` calls before its last step.
    """

    record: LoaderRecord
    epoch: int
    loader: weakref.ref[Any]
    backwards: int = 1 << 62


class _Finder(importlib.abc.MetaPathFinder):
    """Calls a hook after a module has been imported.

    Args:
        hooks: The hooks, by the module's name; each is called once.
    """

    def __init__(self, hooks: dict[str, Callable[[ModuleType], None]]) -> None:
        self._hooks = hooks

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        hook = self._hooks.pop(fullname, None)
        if hook is None:
            return None
        found = importlib.util.find_spec(fullname)  # by the other finders, as the hook is taken
        if found is not None and found.loader is not None:
            _call_after(found.loader, hook)
        return found


def _call_after(loader: Any, hook: Callable[[ModuleType], None]) -> None:
    original = loader.exec_module

    def exec_module(module: ModuleType) -> None:
        original(module)
        hook(module)

    loader.exec_module = exec_module


def own_rank() -> int | None:
    """Returns the rank that a launcher gave this process; None without one."""
    rank = os.environ.get("RANK", "")
    return int(rank) if rank.isdigit() else None


def _convertible(dataset: Any) -> str | None:
    from feeder.dataset.foreign import convertible

    with contextlib.suppress(Exception):  # a data set may be anything, and a meter must not end the training
        return convertible(dataset)
    return None


def _images(batch: Any, depth: int = 0) -> int:
    """Returns the samples in a batch: the length of its first tensor or list; 1 if it has none."""
    shape = getattr(batch, "shape", None)
    if shape is not None:
        return int(shape[0]) if len(shape) else 1
    if depth < 4 and isinstance(batch, dict | list | tuple) and batch:
        first = next(iter(batch.values())) if isinstance(batch, dict) else batch[0]
        return _images(first, depth + 1) if not isinstance(first, str | bytes | int | float) else len(batch)
    return 1


def _place(frame: FrameType | None) -> str:
    """Returns the script's own line that led to a call, as "train.py:34"."""
    if frame is None:
        return "?"
    file, line = own_line(frame) or (frame.f_code.co_filename, frame.f_lineno)
    return f"{os.path.basename(file)}:{line}"


def own_line(frame: FrameType | None) -> tuple[str, int] | None:
    """Returns file and line of the innermost frame that is not Python's, a library's or feeder's; None without one."""
    for at, line in traceback.walk_stack(frame):
        file = at.f_code.co_filename
        if not file.startswith(("<", _PYTHON, _FEEDER)) and not any(part in file for part in _LIBRARIES):
            return file, line
    return None
