"""The plan of a run: the place of each sample in the shards, and what a run that resumes it must have alike."""

from __future__ import annotations

import hashlib
import json
import os
from typing import Any

import numpy as np

from feeder.order.permutation import permute
from feeder.shard.format.tar import member_bytes
from feeder.shard.source.source import Source
from feeder.shard.store.url import is_remote
from feeder.shard.write.shard_options import ShardOptions
from feeder.system.arrays import Int64s

_CHUNK = 4096  # positions permuted at a time: large enough to amortize numpy's calls
_TAR_END_BYTES = 1024


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
        chunk = sizes[ordered_ids(range(start, min(start + _CHUNK, count)), count, options)]
        for position, size in enumerate(chunk.tolist(), start):
            taken = member_bytes(size) + member_bytes(1)  # the image, and its label
            if filled + taken > options.shard_size_bytes and position > cuts[-1]:
                cuts.append(position)
                filled = _TAR_END_BYTES
            filled += taken
    return [range(start, end) for start, end in zip(cuts, [*cuts[1:], count], strict=True) if end > start]


def ordered_ids(positions: range, count: int, options: ShardOptions) -> Int64s:
    """Returns the samples at these positions of the shuffled order of ``count`` samples, int64 [N]."""
    plain = np.arange(positions.start, positions.stop)
    return permute(plain, count, options.seed) if options.shuffle and len(plain) else plain


def plan_digest(settings: dict[str, Any], source: Source) -> str:
    """Returns a digest that only runs over the same inputs have, unchanged since: the SHA-256, hexadecimal."""
    plan = {
        "settings": settings,
        "root": source.root if is_remote(source.root) else os.path.abspath(source.root),
        "image_fields": source.image_fields,
        "containers": [
            [os.path.basename(c.path) if c.is_scratch else c.path, c.size_bytes, c.mtime_ns] for c in source.containers
        ],
        "rejected": sorted([r.path, r.reason] for r in source.rejected),
        "targets": source.table.targets,
        "source": [source.kind, source.digest()],
    }
    digest = hashlib.sha256(json.dumps(plan, sort_keys=True).encode())
    digest.update(source.table.mtimes().data)
    return digest.hexdigest()
