"""Takes samples out of a finished set for good: in each of its versions, at the places that it has.

Note [Takedown]
    ``takedown.json`` in the set's folder says what goes: keys, and rows by shard. It is written first and removed last.
    Between the two the shards are rewritten, then their indexes, then the headers of all versions, then the manifest;
    each by a rename, or as an object that appears whole. Each step may be done again, so that any later call finishes
    what an interrupted one has left. Until the indexes are rewritten the set can be read, but for the samples that go;
    from then until its headers are, their shards are refused as damaged.
"""

from __future__ import annotations

import dataclasses
import glob
import json
import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from feeder.errors import ArgumentError, FormatError, ShardError
from feeder.shard.format.block_sums import file_sums
from feeder.shard.format.index_file import INDEX_NAME
from feeder.shard.format.manifest import MANIFEST_NAME, PLAN_NAME, Manifest
from feeder.shard.format.set_header import SetHeader, version_path, write_header
from feeder.shard.format.shard_index import ShardIndex
from feeder.shard.store.url import is_remote, local_path
from feeder.shard.write.set_copy import SetCopy, at_once
from feeder.shard.write.set_writer import header_row
from feeder.shard.write.shard_options import TAKEDOWN_NAME
from feeder.shard.write.tombstones import ErasedShard, erase, key_hash, write_tombstones
from feeder.system.files import atomic_file, file_sha256, read_regular
from feeder.system.progress import Progress
from feeder.system.text import count

_SHOWN = 2
_SHOWN_CHARS = 40


@dataclass(frozen=True)
class TakedownSummary:
    """The result of a takedown.

    Attributes:
        set: The set's folder, or its URL.
        samples: Number of samples taken down by this call.
        already: Number of keys whose samples were taken down before.
        shards: Number of shards that were rewritten.
        versions: Numbers of the set's versions that they went from.
        duplicates: Keys of samples that are left and have the same bytes as one that went.
        left: What this command can't reach, a line each.
    """

    set: str
    samples: int
    already: int
    shards: int
    versions: list[int]
    duplicates: list[str]
    left: list[str]


def takedown(place: str, keys: Collection[str] = (), *, progress: Progress | None = None) -> TakedownSummary:
    """Takes samples out of a set: their ids stay, and a substitute from the same shard stands in each one's place.

    The bytes, keys, paths and fields of the samples go from the shards and indexes that all versions share. An
    interrupted call leaves a record, and any later one finishes it, also without keys.

    Args:
        place: The set's folder, or its URL in a store.
        keys: Keys of the samples.
        progress: Advanced with every shard.

    Returns:
        The result, with what is left to do elsewhere.

    Raises:
        ArgumentError: if a key is not in the set, or there are neither keys nor an interrupted call; nothing is changed
            then.
        FormatError: if the set is damaged.
        LockedError: if another process is writing the set.
        ShardError: if a shard is damaged, would have no sample left, or can't be written.
        StoreError: if the store can't be read or written.
    """
    shown = place if is_remote(place) else local_path(place)
    if not is_remote(place) and not os.path.isfile(os.path.join(shown, INDEX_NAME)):
        raise FormatError(f"{shown}: no {INDEX_NAME} in this folder, so it is not a shard set; name one")

    try:
        with SetCopy.to_change(place) as copy:
            return _Takedown(copy, progress or Progress()).run(keys)
    except OSError as error:
        raise ShardError(
            f"{error.filename or shown}: {error.strerror or error}; fix this and run the same command again, which "
            "finishes what was begun"
        ) from error


class _Takedown:
    def __init__(self, copy: SetCopy, progress: Progress) -> None:
        self._copy = copy
        self._progress = progress
        self._path = copy.file(INDEX_NAME)
        self._record = copy.file(TAKEDOWN_NAME)

    def run(self, keys: Collection[str]) -> TakedownSummary:
        copy = self._copy
        if not copy.fetch(INDEX_NAME):
            raise FormatError(f"{copy.shown}: there is no shard set of feeder")
        if copy.fetch(PLAN_NAME):
            raise ShardError(
                f"{copy.shown}: samples are being added to it, and that was interrupted; run the same `feeder append` "
                "again, and take samples down then"
            )
        self._header = SetHeader(self._path)
        at_once(copy.fetch, map(self._header.index_name, range(self._header.shards)))

        done: dict[int, dict[int, str]] = {}
        if copy.fetch(TAKEDOWN_NAME):
            done = self._read_plan()
            self._progress.note("finishing a takedown that was interrupted")
            self._execute(done, is_resumed=True)
            self._header = SetHeader(self._path)
        elif not keys:
            raise ArgumentError(
                f"{copy.shown}: no keys were given, and there is no interrupted takedown to finish; name keys, or a "
                "file of them with --from"
            )

        plan, already, duplicates = self._find(keys)
        if plan:
            self._write_plan(plan)
            self._execute(plan, is_resumed=False)
        return TakedownSummary(
            set=copy.shown,
            samples=sum(map(len, [*plan.values(), *done.values()])),
            already=already,
            shards=len({*plan, *done}),
            versions=[*range(1, self._header.info.version + 1)],
            duplicates=duplicates,
            left=_out_of_reach(is_store=copy.is_copy) if plan or done else [],
        )

    def _find(self, keys: Collection[str]) -> tuple[dict[int, dict[int, str]], int, list[str]]:
        """Returns rows and hashes of their keys by shard, the number of keys that went before, and keys of samples with
        the same bytes."""
        wanted = {key.encode("utf-8", "surrogateescape"): key for key in keys}
        hashes = {key_hash(key): key for key in wanted}
        plan: dict[int, dict[int, str]] = {}
        found, gone = set[bytes](), set[bytes]()
        sums: dict[tuple[int, int], None] = {}

        for number, own in self._each() if wanted else ():
            dead = own.taken_down()
            gone |= {hashes[each] for each in dead.values() if each in hashes}
            texts = [own.details(row).key for row in range(own.samples)]
            live = [row for row, key in enumerate(texts) if key in wanted and row not in dead]
            found.update(texts[row] for row in live)
            if live:
                plan[number] = {row: key_hash(texts[row]) for row in live}
                records = own.rows()
                sums |= {(int(records["crc32"][row]), int(records["length"][row])): None for row in live}
                if len(plan[number]) + len(dead) == own.samples:
                    raise ShardError(
                        f"{self._header.shard_name(number)}: all {own.samples} samples of this shard would go, and "
                        "substitutes are of the same shard: leave one, or shard the dataset again without them"
                    )

        missing = [key for text, key in wanted.items() if text not in found | gone]
        if missing:
            named = ", ".join(map(_short, missing[:_SHOWN])) + (", ..." if len(missing) > _SHOWN else "")
            raise ArgumentError(
                f"{self._copy.shown}: has no sample with {count(len(missing), 'of these keys', 'of these keys')}: "
                f"{named}; nothing was changed. `feeder browse` finds samples and their keys"
            )
        return plan, len(gone - found), self._duplicates(plan, sums)

    def _duplicates(self, plan: dict[int, dict[int, str]], sums: Collection[tuple[int, int]]) -> list[str]:
        """Returns keys of the samples that are left and have checksum and size of one that goes."""
        duplicates = []
        for number, own in self._each() if plan else ():
            records, out = own.rows(), {*plan.get(number, ()), *own.taken_down()}
            likely = np.flatnonzero(np.isin(records["crc32"], [crc for crc, _ in sums])).tolist()
            for row in likely:
                if row not in out and (int(records["crc32"][row]), int(records["length"][row])) in sums:
                    duplicates.append(own.details(row).key.decode("utf-8", "surrogateescape"))
        return duplicates

    def _each(self) -> Any:
        for number in range(self._header.shards):
            path = self._copy.file(self._header.index_name(number))
            yield number, ShardIndex(path, shard=self._header.shard(number))

    def _write_plan(self, plan: dict[int, dict[int, str]]) -> None:
        with atomic_file(self._record) as file:
            shards = {str(number): [[row, key] for row, key in rows.items()] for number, rows in plan.items()}
            file.write(json.dumps({"shards": shards}).encode())
        self._copy.publish(self._record)

    def _read_plan(self) -> dict[int, dict[int, str]]:
        try:
            shards = json.loads(read_regular(self._record))["shards"]
            plan = {int(number): {int(row): str(key) for row, key in rows} for number, rows in shards.items()}
            if not all(0 <= number < self._header.shards for number in plan):
                raise ValueError("a shard that the set does not have")
            return plan
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise FormatError(
                f"{self._record}: the record of an interrupted takedown is damaged ({error}); restore it, or remove it "
                "and run `feeder inspect --verify`"
            ) from None

    def _execute(self, plan: dict[int, dict[int, str]], *, is_resumed: bool) -> None:
        """Runs all steps of Note [Takedown], or those that an interrupted run has left."""
        header, copy = self._header, self._copy
        samples, size_bytes = (sum(getattr(header.shard(n), name) for n in plan) for name in ("samples", "size_bytes"))
        with self._progress.running(samples, size_bytes):
            erased = {number: self._erase(number, [*rows], is_resumed) for number, rows in plan.items()}

        for number, rows in plan.items():
            own = self._opened(number)
            if not rows.keys() <= own.taken_down().keys():
                write_tombstones(own, number, rows, erased[number])
            copy.publish(own.path)

        indexes = {number: self._opened(number) for number in plan}
        gone = [len(self._opened(number).taken_down()) for number in range(header.shards)]
        for path in [*self._earlier_headers(), self._path]:
            self._write_header(path, indexes, erased, gone)
        self._write_manifest(erased)
        self._remove_other_indexes()
        copy.remove(self._record)

    def _erase(self, number: int, rows: Sequence[int], is_resumed: bool) -> ErasedShard:
        name, size_bytes = self._header.shard_name(number), self._header.shard(number).size_bytes
        own = self._opened(number)
        path = self._copy.file(name)
        with self._copy.shard(name):
            # Where their rows are those of others by now, their bytes are gone, and where they were is not known.
            left = [] if {*rows} <= own.taken_down().keys() else rows
            if left:
                erased = erase(path, own, left, is_resumed=is_resumed)
                self._copy.publish(path)
            else:
                erased = ErasedShard(*file_sums(path))
        self._progress.advance(own.samples, size_bytes)
        return erased

    def _opened(self, number: int) -> ShardIndex:
        """Opens the index of a shard as it is now, which the header may not mean any more."""
        index = ShardIndex(self._copy.file(self._header.index_name(number)))
        index.check()
        return index

    def _earlier_headers(self) -> list[str]:
        paths = [version_path(self._path, version) for version in range(1, self._header.info.version)]
        return [path for path in paths if self._copy.fetch(os.path.basename(path))]

    def _write_header(
        self, path: str, indexes: dict[int, ShardIndex], erased: dict[int, ErasedShard], gone: Sequence[int]
    ) -> None:
        header = SetHeader(path)
        rows = header.rows.copy()
        for number, own in indexes.items():
            if number < header.shards:
                rows[number] = header_row(own, header.shard(number).size_bytes, erased[number].sha256)[0]
        names = [header.shard_name(number) for number in range(header.shards)]
        info = dataclasses.replace(header.info, taken_down=sum(gone[: header.shards]))
        write_header(path, info, rows, names)
        self._copy.publish(path)

    def _write_manifest(self, erased: dict[int, ErasedShard]) -> None:
        copy = self._copy
        if not copy.fetch(MANIFEST_NAME):  # sets of tars from elsewhere have none
            return
        manifest = Manifest.read(copy.path)
        assert manifest is not None
        shards = [*manifest.shards]
        for number, each in erased.items():
            shards[number] = dataclasses.replace(shards[number], sha256=each.sha256)
        index = {"size_bytes": os.stat(self._path).st_size, "sha256": file_sha256(self._path)}
        dataclasses.replace(manifest, shards=shards, index=index).write(copy.path)
        copy.publish(copy.file(MANIFEST_NAME))

    def _remove_other_indexes(self) -> None:
        """Removes indexes for other image fields, which are made again when they are needed."""
        pattern = INDEX_NAME.replace(".", ".?*.")
        self._copy.remove(*map(self._copy.file, glob.glob(pattern, root_dir=self._copy.path)))


def _short(key: str) -> str:
    """Returns a key in quotes, cut if it is long, as any line of a wrong file may be."""
    shown = repr(key)
    return shown if len(shown) <= _SHOWN_CHARS else f"{shown[:_SHOWN_CHARS]}..."


def _out_of_reach(*, is_store: bool) -> list[str]:
    """Returns what may still have the bytes, a line each."""
    return [
        "loaders that have the set open: end them",
        "caches of remote sets, until a loader opens the set again there",
        "the source, exports, and other copies of the set",
        "old versions and snapshots of the bucket's objects, where it keeps them"
        if is_store
        else "snapshots and backups of the disk, and its free blocks",
    ]
