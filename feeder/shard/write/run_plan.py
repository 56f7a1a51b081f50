"""The plan of a run of ``feeder shard`` or ``feeder append``: what a run that resumes it must have alike."""

from __future__ import annotations

import hashlib
import json
import os
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from feeder.shard.source.source import Source
from feeder.shard.store.url import is_remote

__all__ = ["first_difference", "load_inputs", "plan_digest", "plan_of", "save_inputs"]

_COLUMNS = ("path_starts", "paths", "sizes", "mtimes", "labels")


def plan_of(settings: dict[str, Any], source: Source) -> dict[str, Any]:
    """Returns all that a run's result depends on, but for the columns of :func:`save_inputs`."""
    return {
        "settings": settings,
        "root": source.root if is_remote(source.root) else os.path.abspath(source.root),
        "kind": source.kind,
        "image_field": ";".join(source.image_fields) or None,
        "containers": [
            [os.path.basename(c.path) if c.is_scratch else c.path, c.size_bytes, c.mtime_ns] for c in source.containers
        ],
        "rejected": sorted([r.path, r.reason] for r in source.rejected),
        "targets": list(source.table.targets),
    }


def plan_digest(settings: dict[str, Any], source: Source) -> str:
    """Returns a digest that only runs over the same inputs have, unchanged since: the SHA-256, hexadecimal."""
    plan = plan_of(settings, source)
    root = plan.pop("root")
    digest = hashlib.sha256(json.dumps([plan, root, source.digest()], sort_keys=True).encode())
    digest.update(np.ascontiguousarray(source.table.columns()["mtimes"]).data)
    return digest.hexdigest()


def save_inputs(file: BinaryIO, source: Source) -> None:
    """Writes the columns of a source's table that stand for its inputs."""
    for name in _COLUMNS:
        _save(file, source.table.columns()[name])


def load_inputs(file: BinaryIO) -> dict[str, npt.NDArray[Any]]:
    """Reads what :func:`save_inputs` wrote.

    Raises:
        ValueError, EOFError: if it is damaged.
    """
    return {name: np.load(file, allow_pickle=False) for name in _COLUMNS}


def _save(file: BinaryIO, column: npt.NDArray[Any]) -> None:
    """Writes an array as ``numpy.save`` does, through the file's own buffer; see :func:`atomic_file`."""
    np.lib.format.write_array_header_1_0(file, np.lib.format.header_data_from_array_1_0(column))
    file.write(np.ascontiguousarray(column).data)


def first_difference(
    old_plan: dict[str, Any],
    new_plan: dict[str, Any],
    old: dict[str, npt.NDArray[Any]],
    new: dict[str, npt.NDArray[Any]],
) -> str | None:
    """Returns what differs first between two plans and their inputs; None if nothing does."""
    if old_plan["kind"] != new_plan["kind"]:
        return f"the source was {old_plan['kind']}, is {new_plan['kind']}"
    if old_plan["root"] != new_plan["root"]:
        return f"the source was {old_plan['root']}, is {new_plan['root']}"
    before_targets, targets = (", ".join(plan["targets"]) or "none" for plan in (old_plan, new_plan))
    if before_targets != targets:
        return f"the targets were {before_targets}, are {targets}"
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
    # The first sample whose path differs in its bytes or its start.
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
