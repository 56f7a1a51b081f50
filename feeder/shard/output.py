"""The output folder of ``feeder shard``: what may be written into, the plan of an unfinished run, finished parts.

Note [Resume]
While a run is unfinished, ``.work`` holds its plan (settings, and the input list with sizes and times) and for each
finished shard a part of the index and a record. A shard's own rename into place comes last, so a shard that is there is
finished. ``manifest.json`` is written when everything else is on disk; then ``.work`` goes.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from feeder.errors import ShardError
from feeder.files import atomic_file, exclusive_lock
from feeder.manifest import MANIFEST_NAME, Manifest
from feeder.source import Source

__all__ = ["OutputFolder"]

_LOCK = ".lock"
_WORK = ".work"
_COLUMNS = ("path_starts", "paths", "sizes", "mtimes", "labels")


class OutputFolder:
    """An output folder, locked for this process.

    Args:
        path: The folder.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.work = os.path.join(path, _WORK)
        self._plan_path = os.path.join(self.work, "plan.json")
        self._inputs_path = os.path.join(self.work, "inputs.npy")

    @classmethod
    @contextlib.contextmanager
    def locked(cls, path: str) -> Iterator[OutputFolder]:
        """Makes the folder if need be, and keeps other writers out.

        Raises:
            ShardError: if the folder holds something that is not ours.
            LockedError: if another process is writing it.
        """
        if os.path.lexists(path) and not os.path.isdir(path):
            raise ShardError(f"{path}: is not a folder; choose another --out")
        foreign = _foreign_entry(path)
        if foreign is not None:
            raise ShardError(
                f"{path}: holds {foreign!r} and no shard set of feeder; nothing is overwritten: choose another --out, "
                "or empty the folder"
            )
        folder = cls(path)
        with contextlib.ExitStack() as stack:
            try:
                os.makedirs(path, exist_ok=True)
                stack.enter_context(exclusive_lock(os.path.join(path, _LOCK)))
                os.makedirs(folder.work, exist_ok=True)
            except OSError as error:
                raise ShardError(f"{path}: can't be written: {error.strerror}; choose another --out") from None
            try:
                yield folder
            finally:
                if not os.path.exists(folder._plan_path):  # nothing to resume
                    folder.finish()

    def file(self, name: str) -> str:
        """Full path of a result."""
        return os.path.join(self.path, name)

    def part(self, name: str) -> str:
        """Full path of something that an unfinished run needs."""
        return os.path.join(self.work, name)

    def check_complete(self, manifest: Manifest, settings: dict[str, Any], source: Source) -> None:
        """Checks that a finished shard set is what is being asked for.

        Raises:
            ShardError: naming the first difference.
        """
        self._compare_settings("holds a shard set made with", manifest.settings, settings)
        for record in manifest.shards:
            path = self.file(record.name)
            size = os.stat(path).st_size if os.path.exists(path) else None
            if size != record.size_bytes:
                found = "is missing" if size is None else f"has {size} bytes, expected {record.size_bytes}"
                raise ShardError(
                    f"{path}: {found}, though the set was finished: restore it (`feeder inspect --verify` names all "
                    "damage), or remove the folder and run again"
                )
        now = len(source.table) + len(source.rejected)
        if manifest.source != {"kind": source.kind, "digest": source.digest()}:
            raise ShardError(
                f"{self.path}: holds the shards of another dataset, or of this one before it changed (its paths, "
                f"sizes, labels or columns differ; {manifest.inputs} inputs then, {now} now); nothing is "
                " overwritten: choose another --out"
            )

    @classmethod
    def preview(cls, path: str, settings: dict[str, Any]) -> None:
        """Checks, without writing, whether a run with these settings would be refused.

        Raises:
            ShardError: as :meth:`locked` and :meth:`check_complete` do.
        """
        foreign = _foreign_entry(path)
        if foreign is not None:
            raise ShardError(f"{path}: holds {foreign!r} and no shard set of feeder; choose another --out")
        manifest = Manifest.read(path)
        if manifest is not None:
            cls(path)._compare_settings("holds a shard set made with", manifest.settings, settings)

    def begin(self, settings: dict[str, Any], source: Source) -> bool:
        """Records the plan of a new run, or checks it against the recorded one.

        Returns:
            Whether an unfinished run is being resumed.

        Raises:
            ShardError: if the unfinished run had other settings or inputs; names the first difference.
        """
        plan = {
            "settings": settings,
            "kind": source.kind,
            "containers": [[c.path, c.size_bytes, c.mtime_ns] for c in source.containers],
            "rejected": sorted([r.path, r.reason] for r in source.rejected),
        }
        if os.path.exists(self._plan_path):
            with open(self._plan_path, encoding="utf-8") as file:
                recorded = json.load(file)
            self._compare_settings("holds an unfinished run with", recorded["settings"], settings)
            if source.kind == "samples":
                raise ShardError(
                    f"{self.path}: holds an unfinished run over an iterable, which can't be resumed, as its samples "
                    "can't be compared; remove the folder and run again"
                )
            with open(self._inputs_path, "rb") as file:
                before = {name: np.load(file, allow_pickle=False) for name in _COLUMNS}
            changed = _first_difference(recorded, plan, before, source.table.columns())
            if changed:
                raise ShardError(
                    f"{self.path}: holds an unfinished run over other inputs, so it can't be resumed: {changed}; "
                    "restore the source, or remove the folder and start again"
                )
            return True
        with atomic_file(self._inputs_path) as file:
            columns = source.table.columns()
            for name in _COLUMNS:
                np.save(file, columns[name], allow_pickle=False)
        with atomic_file(self._plan_path) as file:
            file.write(json.dumps(plan).encode())
        return False

    def finish(self) -> None:
        """Removes what only an unfinished run needs."""
        shutil.rmtree(self.work, ignore_errors=True)

    def _compare_settings(self, what: str, recorded: dict[str, Any], asked: dict[str, Any]) -> None:
        for name in [*asked, *recorded]:
            if recorded.get(name) != asked.get(name):
                raise ShardError(
                    f"{self.path}: {what} {name}={recorded.get(name)}, asked for {name}={asked.get(name)}; nothing is "
                    "overwritten: use the same settings, or choose another --out"
                )


def _foreign_entry(path: str) -> str | None:
    """The name of something in the folder, if the folder is not one of ours."""
    if not os.path.isdir(path):
        return None
    names = sorted(os.listdir(path))
    if MANIFEST_NAME in names or os.path.isfile(os.path.join(path, _WORK, "plan.json")):
        return None
    return next((name for name in names if name not in (_LOCK, _WORK)), None)


def _first_difference(
    old_plan: dict[str, Any],
    new_plan: dict[str, Any],
    old: dict[str, npt.NDArray[Any]],
    new: dict[str, npt.NDArray[Any]],
) -> str | None:
    if old_plan["kind"] != new_plan["kind"]:
        return f"the source was {old_plan['kind']}, is {new_plan['kind']}"
    for before, after in zip(old_plan["containers"], new_plan["containers"], strict=False):
        if before != after:
            return f"{before[0]} had {before[1]} bytes, {after[0]} has {after[1]}, or their times differ"
    row = _first_difference_row(old, new)
    if row is not None:
        return row
    then, now = ({(path, reason) for path, reason in plan["rejected"]} for plan in (old_plan, new_plan))
    for differing, when in ((then - now, "then, not now"), (now - then, "now, not then")):
        if differing:
            path, reason = min(differing)
            return f"{path!r} was rejected {when} ({reason})"
    return None


def _first_difference_row(old: dict[str, npt.NDArray[Any]], new: dict[str, npt.NDArray[Any]]) -> str | None:
    def path(columns: dict[str, npt.NDArray[Any]], i: int) -> str:
        start, end = columns["path_starts"][i : i + 2]
        return os.fsdecode(columns["paths"][start:end].tobytes())

    counts = len(old["sizes"]), len(new["sizes"])
    common = min(counts)
    # Sample i's path differs, or starts elsewhere, from the first difference in the paths on.
    starts = np.flatnonzero(old["path_starts"][: common + 1] != new["path_starts"][: common + 1])
    texts = min(len(old["paths"]), len(new["paths"]))
    bytes_ = np.flatnonzero(old["paths"][:texts] != new["paths"][:texts])
    candidates = [int(starts[0]) - 1] if len(starts) else []
    if len(bytes_):
        candidates.append(int(np.searchsorted(old["path_starts"], bytes_[0], side="right")) - 1)
    first_path = min(candidates, default=common)
    for name, what in (("sizes", "size in bytes"), ("mtimes", "modification time (ns)"), ("labels", "label")):
        differ = np.flatnonzero(old[name][:common] != new[name][:common])
        if len(differ) and differ[0] < first_path:
            i = int(differ[0])
            return f"{path(old, i)}: {what} was {old[name][i]}, is {new[name][i]}"
    if first_path < common:
        return (
            f"input {first_path} was {path(old, first_path)!r}, is {path(new, first_path)!r} "
            f"({counts[0]} inputs then, {counts[1]} now)"
        )
    if counts[0] > common:
        return f"{path(old, common)!r} is gone ({counts[0]} inputs then, {counts[1]} now)"
    if counts[1] > common:
        return f"{path(new, common)!r} is new ({counts[0]} inputs then, {counts[1]} now)"
    return None
