"""The inputs that are not in a set, as its manifest and ``rejected.jsonl`` have them."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Iterator
from typing import NamedTuple

from feeder.errors import NotFoundError
from feeder.shard.format.manifest import MANIFEST_NAME, Manifest
from feeder.shard.store.open_store import open_store
from feeder.shard.store.store import download
from feeder.shard.store.url import is_remote, local_path
from feeder.shard.write.shard_options import REJECTED_NAME

__all__ = ["Reason", "count_rejected", "rejected_by_reason"]

_PATHS = 200


class Reason(NamedTuple):
    """Inputs that were rejected for one reason: the reason, their number, and the paths of the first 200."""

    reason: str
    number: int
    paths: list[str]


def count_rejected(place: str) -> int | None:
    """Returns the number of inputs that were rejected when a set was made; None if it has no manifest.

    Args:
        place: The set's folder, its index file or its URL.

    Raises:
        FormatError: if the manifest is damaged.
        StoreError: if the store can't be read.
    """
    with _files(place, MANIFEST_NAME) as folder:
        manifest = Manifest.read(folder)
    return None if manifest is None else manifest.rejected


def rejected_by_reason(place: str) -> list[Reason]:
    """Returns the inputs that were rejected when a set was made, those of the most frequent reason first.

    Args:
        place: The set's folder, its index file or its URL.

    Raises:
        StoreError: if the store can't be read.
    """
    found: dict[str, Reason] = {}
    with (
        _files(place, REJECTED_NAME) as folder,
        contextlib.suppress(FileNotFoundError),
        open(os.path.join(folder, REJECTED_NAME), encoding="utf-8", errors="replace") as file,
    ):
        for line in file:
            with contextlib.suppress(ValueError, RecursionError, AttributeError):
                row = json.loads(line)
                reason, path = str(row.get("reason")), str(row.get("path"))
                _, number, paths = found.get(reason, Reason(reason, 0, []))
                found[reason] = Reason(reason, number + 1, [*paths, path] if number < _PATHS else paths)
    return sorted(found.values(), key=lambda each: -each.number)


@contextlib.contextmanager
def _files(place: str, name: str) -> Iterator[str]:
    """Has one of a set's files in a folder, if there is one: the set's own, or a copy of one in a store."""
    if not is_remote(place):
        path = local_path(place)
        yield path if os.path.isdir(path) else os.path.dirname(path)
        return
    store = open_store(place)
    with tempfile.TemporaryDirectory(prefix="feeder-set-") as folder:
        with contextlib.suppress(NotFoundError):
            download(store, store.size(name), os.path.join(folder, name))
        yield folder
