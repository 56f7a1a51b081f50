"""Converts the index of a shard set to version 2."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from feeder.errors import FormatError, ShardError
from feeder.shard.format.block_sums import file_sums
from feeder.shard.format.column_index import ColumnIndex
from feeder.shard.format.index_file import COLUMNS, INDEX_NAME, OPTIONAL_COLUMNS, STARTS
from feeder.shard.format.manifest import MANIFEST_NAME, Manifest, ShardRecord
from feeder.shard.format.open_index import open_index
from feeder.shard.format.shard_index import write_shard_index
from feeder.shard.store.url import local_path
from feeder.shard.write.set_copy import SetCopy
from feeder.shard.write.set_writer import index_path, write_set
from feeder.system.files import file_sha256
from feeder.system.progress import Progress

__all__ = ["upgrade_index"]


def upgrade_index(place: str, progress: Progress | None = None) -> bool:
    """Converts a set's ``index.bin`` to version 2; the shards are read once and stay as they are.

    The fingerprint stays, so that a run of the set goes on from its state. A set that has version 2 stays as it is.

    Args:
        place: The set's folder, or its URL in a store.
        progress: Advanced with every shard.

    Returns:
        True if the index was converted.

    Raises:
        FormatError: if the index is missing or damaged, or a shard does not match its checksum.
        ShardError: if the folder can't be written.
        StoreError: if the store can't be read or written.
    """
    try:
        with SetCopy.to_change(place) as copy:
            copy.fetch(INDEX_NAME)
            index = open_index(os.path.join(copy.path, INDEX_NAME))
            if not isinstance(index, ColumnIndex):
                return False
            copy.fetch(MANIFEST_NAME)
            _upgrade(index, copy, progress or Progress())
            return True
    except OSError as error:
        raise ShardError(
            f"{error.filename or local_path(place)}: {error.strerror or error}; the set is as it was: fix this and run "
            "the same command again"
        ) from error


def _upgrade(index: ColumnIndex, copy: SetCopy, progress: Progress) -> None:
    index.check()
    folder = os.path.dirname(index.path)
    manifest = Manifest.read(folder)
    sums = {} if manifest is None else {shard.name: shard.sha256 for shard in manifest.shards}
    classes = index.classes if manifest is None or index.classes is not None else manifest.classes
    counts = np.asarray(index.shard_counts())
    if (np.diff(index.shard.astype(np.int64)) < 0).any():
        raise FormatError(f"{index.path}: damaged: samples are not in the order of their shards; rebuild it")
    ends = np.cumsum(counts).tolist()
    shards = []
    with progress.running(len(index), index.size_bytes):
        for number, (name, size_bytes) in enumerate(index.shards):
            with copy.shard(name):
                sha256, blocks = file_sums(index.shard_path(number))
                found_bytes = os.stat(index.shard_path(number)).st_size
            if found_bytes != size_bytes or sums.get(name, sha256) != sha256:
                raise FormatError(
                    f"{index.shard_path(number)}: does not match its size or its SHA-256 in the manifest; restore it "
                    "(`feeder inspect --verify` names all damage) and run the same command again"
                )
            rows = range(ends[number] - int(counts[number]), ends[number])
            path = index_path(folder, name)
            write_shard_index(
                path, _columns(index, rows), index.fields, index.targets, blocks, size_bytes, index.codebooks
            )
            copy.publish(path)
            shards.append(ShardRecord(name, len(rows), size_bytes, sha256))
            progress.advance(len(rows), size_bytes)
    write_set(index.path, shards, classes, fingerprint=index.fingerprint())
    copy.publish(index.path)
    if manifest is not None:
        entry = {"size_bytes": os.stat(index.path).st_size, "sha256": file_sha256(index.path)}
        manifest.with_index(entry).write(folder)
        copy.publish(os.path.join(folder, MANIFEST_NAME))


def _columns(index: ColumnIndex, rows: range) -> Mapping[str, npt.NDArray[Any]]:
    """Returns the columns of some rows."""
    columns: dict[str, npt.NDArray[Any]] = {}
    for start, data in STARTS.items():
        starts = index.column(start)[rows.start : rows.stop + 1].astype(np.int64)
        if (np.diff(starts) < 0).any():
            raise FormatError(f"{index.path}: damaged: column {start!r} decreases; rebuild it with `feeder index`")
        columns[start] = starts - starts[0]
        own = slice(int(starts[0]), int(starts[-1]))
        names = ("member_field", "member_offset", "member_length") if start == "member_start" else (data,)
        columns |= {name: index.column(name)[own] for name in names}
    for name in (*COLUMNS, *OPTIONAL_COLUMNS):
        if name not in columns and name != "shard" and index.has_column(name):
            columns[name] = index.column(name)[rows.start : rows.stop]
    return columns
