"""The plan of a run: the place of each sample in the shards, and what a run that resumes it must have alike."""

from __future__ import annotations

import bisect
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from feeder.order.permutation import permute
from feeder.shard.format.tar import member_bytes
from feeder.shard.source.source import Source
from feeder.shard.store.url import is_remote
from feeder.shard.write.shard_options import ShardOptions

__all__ = [
    "first_difference",
    "load_inputs",
    "ordered_ids",
    "plan_digest",
    "plan_of",
    "plan_shards",
    "save_inputs",
    "shard_name",
]

_CHUNK = 4096  # positions permuted at a time: large enough to amortize numpy's calls
_TAR_END_BYTES = 1024
_VALUES = {"sizes": "size in bytes", "mtimes": "modification time (ns)", "labels": "label"}
_COLUMNS = ("path_starts", "paths", *_VALUES)

_Inputs = Mapping[str, npt.NDArray[Any]]


def plan_shards(source: Source, options: ShardOptions) -> list[range]:
    """Assigns the positions of the permutation to shards, from the input list and its sizes alone."""
    count = len(source.table)
    if options.samples_per_shard is not None:
        step = options.samples_per_shard
        return [range(start, min(start + step, count)) for start in range(0, count, step)]
    sizes = source.table.sizes()
    cuts = [0]
    filled = _TAR_END_BYTES
    for start in range(0, count, _CHUNK):
        chunk = sizes[_sample_ids(range(start, min(start + _CHUNK, count)), count, options)]
        for position, size in enumerate(chunk.tolist(), start):
            taken = member_bytes(size) + member_bytes(1)  # the image, and its label
            if filled + taken > options.shard_size_bytes and position > cuts[-1]:
                cuts.append(position)
                filled = _TAR_END_BYTES
            filled += taken
    return [range(start, end) for start, end in zip(cuts, [*cuts[1:], count], strict=True) if end > start]


def ordered_ids(positions: range, count: int, options: ShardOptions) -> Iterator[int]:
    """Yields the samples at these positions of the shuffled order, of ``count`` samples."""
    for start in range(positions.start, positions.stop, _CHUNK):
        yield from _sample_ids(range(start, min(start + _CHUNK, positions.stop)), count, options).tolist()


def _sample_ids(positions: range, count: int, options: ShardOptions) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Returns the samples at these positions of the shuffled order, int64 [N]."""
    plain = np.arange(positions.start, positions.stop)
    return permute(plain, count, options.seed) if options.shuffle and len(plain) else plain


def shard_name(number: int) -> str:
    return f"shard-{number:06d}.tar"


def plan_of(settings: dict[str, Any], source: Source, version: int) -> dict[str, Any]:
    """Returns all that a run's result depends on, but for the columns of :func:`save_inputs`.

    Args:
        settings: The settings of the run.
        source: The samples.
        version: Number of the version of the set that they are added to; 0 for a new set.
    """
    return {
        "settings": settings,
        "version": version,
        "kind": source.kind,
        "root": source.root if is_remote(source.root) else os.path.abspath(source.root),
        "image_field": ";".join(source.image_fields) or None,
        "containers": [
            [os.path.basename(c.path) if c.is_scratch else c.path, c.size_bytes, c.mtime_ns] for c in source.containers
        ],
        "rejected": sorted([r.path, r.reason] for r in source.rejected),
        "targets": ", ".join(source.table.targets) or "none",
    }


def plan_digest(settings: dict[str, Any], source: Source) -> str:
    """Returns a digest that only runs over the same inputs have, unchanged since: the SHA-256, hexadecimal."""
    plan = [plan_of(settings, source, 0), source.digest()]
    digest = hashlib.sha256(json.dumps(plan, sort_keys=True).encode())
    digest.update(np.ascontiguousarray(source.table.columns()["mtimes"]).data)
    return digest.hexdigest()


def save_inputs(file: BinaryIO, source: Source) -> None:
    """Writes the columns of a source's table that stand for its inputs, as ``numpy.save`` does, but through the file's
    own buffer; see :func:`atomic_file`."""
    for name in _COLUMNS:
        column = source.table.columns()[name]
        np.lib.format.write_array_header_1_0(file, np.lib.format.header_data_from_array_1_0(column))
        file.write(np.ascontiguousarray(column).data)


def load_inputs(file: BinaryIO) -> dict[str, npt.NDArray[Any]]:
    """Reads what :func:`save_inputs` wrote.

    Raises:
        ValueError, EOFError: if it is damaged.
    """
    return {name: np.load(file, allow_pickle=False) for name in _COLUMNS}


def first_difference(old_plan: dict[str, Any], new_plan: dict[str, Any], old: _Inputs, new: _Inputs) -> str | None:
    """Returns what differs first between two plans and their inputs; None if nothing does."""
    for name, text in (
        ("version", "the set had version {}, has {}"),
        ("kind", "the source was {}, is {}"),
        ("root", "the source was {}, is {}"),
        ("targets", "the targets were {}, are {}"),
    ):
        if old_plan[name] != new_plan[name]:
            return text.format(old_plan[name], new_plan[name])
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


def _first_difference_row(old: _Inputs, new: _Inputs) -> str | None:
    counts = len(old["sizes"]), len(new["sizes"])
    totals = f"({counts[0]} inputs then, {counts[1]} now)"
    common = min(counts)
    if _are_alike(old, new, common):
        if counts[0] == counts[1]:
            return None
        is_gone = counts[0] > common
        return f"{_path(old if is_gone else new, common)!r} is {'gone' if is_gone else 'new'} {totals}"

    i = bisect.bisect_left(range(common), True, key=lambda i: not _are_alike(old, new, i + 1))
    before, after = _path(old, i), _path(new, i)
    if before != after:
        return f"input {i} was {before!r}, is {after!r} {totals}"
    name = next(name for name in _VALUES if old[name][i] != new[name][i])
    return f"{after}: {_VALUES[name]} was {old[name][i]}, is {new[name][i]}"


def _are_alike(old: _Inputs, new: _Inputs, rows: int) -> bool:
    """Returns whether the first rows are the same."""
    ends = {"path_starts": rows + 1, "paths": int(old["path_starts"][rows])} | dict.fromkeys(_VALUES, rows)
    return all(np.array_equal(old[name][:end], new[name][:end]) for name, end in ends.items())


def _path(inputs: _Inputs, i: int) -> str:
    start, end = inputs["path_starts"][i : i + 2]
    return os.fsdecode(inputs["paths"][start:end].tobytes())
