"""The inputs that are not in a set, as its manifest and ``rejected.jsonl`` have them."""

from __future__ import annotations

import contextlib
import json
import os
from typing import NamedTuple

from feeder.shard.format.manifest import MANIFEST_NAME, Manifest
from feeder.shard.store.open_store import local_files
from feeder.shard.write.shard_options import REJECTED_NAME

__all__ = ["Reason", "rejected_of"]

_PATHS = 200


class Reason(NamedTuple):
    """Inputs that were rejected for one reason: the reason, their number, and the paths of the first 200."""

    reason: str
    number: int
    paths: list[str]


def rejected_of(place: str) -> tuple[int | None, list[Reason]]:
    """Returns the number of inputs that were rejected when a set was made, and those that are known, by reason.

    Args:
        place: The set's folder, its index file or its URL.

    Returns:
        The number, None if the set has no manifest; the most frequent reason first.

    Raises:
        FormatError: if the manifest is damaged.
        StoreError: if the store can't be read.
    """
    found: dict[str, Reason] = {}
    with local_files(place, MANIFEST_NAME, REJECTED_NAME) as folder:
        manifest = Manifest.read(folder)
        with (
            contextlib.suppress(FileNotFoundError),
            open(os.path.join(folder, REJECTED_NAME), encoding="utf-8", errors="replace") as file,
        ):
            for line in file:
                with contextlib.suppress(ValueError, RecursionError, AttributeError):
                    row = json.loads(line)
                    reason, path = str(row.get("reason")), str(row.get("path"))
                    _, number, paths = found.get(reason, Reason(reason, 0, []))
                    found[reason] = Reason(reason, number + 1, [*paths, path] if number < _PATHS else paths)

    reasons = sorted(found.values(), key=lambda each: -each.number)
    return None if manifest is None else manifest.rejected, reasons
