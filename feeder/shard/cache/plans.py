"""The plans of trainers: what they will read next, and which files they are not done with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from feeder.errors import FeederError, StoreError
from feeder.shard.cache.cache_folder import CacheFolder
from feeder.shard.cache.cached_file import CachedFile, Plan


def begin_plan(cache: CacheFolder, working_bytes: int) -> Plan:
    """Adds a trainer's plan to a cache, whose lock is held.

    Raises:
        StoreError: if the cache is too small for it and the others.
    """
    coming = working_bytes + sum(plan.working_bytes for plan in cache.plans)
    needed = coming + cache.kept_bytes if coming else 0  # a plan may not know
    if needed > cache.budget_bytes:
        others = f", {len(cache.plans)} other readers of this set included" if cache.plans else ""
        raise StoreError(
            f"{cache.folder}: {cache.budget_bytes:,} bytes of cache are too few for the shards that are read at a "
            f"time{others}. Give cache_bytes={needed:,} or more, a larger disk with cache_dir=, fewer lanes or a "
            "smaller window"
        )
    plan = Plan(working_bytes=working_bytes)
    cache.plans.append(plan)
    cache.set_none_done()
    # It does not become smaller again: shards that were to stay would leave and come in turns.
    cache.ring_bytes = max(cache.ring_bytes or 0, coming) or None
    return plan


def extend_plan(cache: CacheFolder, plan: Plan, step: int, last_steps: Sequence[Sequence[Any]]) -> None:
    """Notes a trainer's progress, and what it needs later on: [(file, last step), ...]; the cache's lock is held."""
    plan.step = step
    for name, last in last_steps:
        plan.last_steps[name] = max(last, plan.last_steps.get(name, -1))
    for name in [name for name, last in plan.last_steps.items() if last < step]:
        del plan.last_steps[name]
        cache.set_done(name)


def next_range(cache: CacheFolder) -> tuple[CachedFile, int, int] | None:
    """Returns the next range to get ahead, of each plan in turn; None if there is none, or no room for it. The
    cache's lock is held."""
    for plan in list(cache.plans):
        plan.first = [each for each in plan.first if each[0].busy and each[0].record.missing(*each[1:])]
        while plan.ranges and not plan.first:
            file, first, end = plan.ranges[0]
            try:
                if file.contents is not None:
                    file = cache.file(file.name, file.contents)
                missing = file.record.missing(first, end)
                absent_bytes = file.absent_bytes(range(first, end))
                if absent_bytes and not cache.make_room(file, absent_bytes, is_urgent=False):
                    break
            except (FeederError, OSError):  # told to whoever needs it
                missing = []
            plan.ranges.popleft()
            if missing:
                cache.plans.remove(plan)
                cache.plans.append(plan)
                return file, first, end
    return None
