"""The output folder of ``feeder shard``, with the plan and the records of an unfinished run.

Note [Resume]
While a run is unfinished, ``.work`` holds its plan (settings, and a digest of the inputs with sizes and times), and a
record for each finished shard. A shard is renamed into place after its index and this record are written, so a shard
that exists is finished. ``manifest.json`` is written when everything else is on disk; then ``.work`` is removed.

A run that adds samples to a finished set has its plan and records there, too. The set's header does not name its shards
until all are written, so that a killed run leaves the set as it was.

When a set is replaced, its records and shards are removed first, and its manifest once the new plan is written. So the
folder always holds a manifest or a plan, and a killed run does not make it look like a foreign folder.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
from collections.abc import Iterator
from typing import Any

from feeder.errors import ShardError
from feeder.shard.format.index_file import INDEX_NAME
from feeder.shard.format.manifest import MANIFEST_NAME, PLAN_NAME, Manifest, is_shard_set
from feeder.shard.format.open_index import open_index
from feeder.shard.source.source import Source, SourceKind
from feeder.shard.store.store import Store
from feeder.shard.write.plan import plan_digest
from feeder.shard.write.set_copy import SetCopy
from feeder.shard.write.set_writer import index_path
from feeder.shard.write.shard_options import REJECTED_NAME, TAKEDOWN_NAME
from feeder.shard.write.shard_writer import WrittenShard, record_name
from feeder.shard.write.shared_output import SharedFolder, SharedOutput
from feeder.system.files import TEMPORARY_SUFFIX, atomic_file, exclusive_lock, fsync_folder, read_regular

_LOCK = ".lock"
_ATTEMPTS = "attempts-"
_WORK = os.path.dirname(PLAN_NAME)
_SHARD = re.compile(r"shard-(\d+)\.(tar|idx|fidx(-index.+)?)")
# An earlier version, or one for another image field, which has indexes of its own beside the shards.
_OTHER_INDEX = re.compile(r"index(-\d+)?(\..+)?\.bin")
_RESULTS = (INDEX_NAME, MANIFEST_NAME, REJECTED_NAME, TAKEDOWN_NAME)


class OutputFolder(SetCopy):
    """An output folder, locked for this process.

    Args:
        path: The folder.
        force: True to replace a shard set in it.
        store: The store of which it is a copy; None for a local set.
    """

    def __init__(self, path: str, *, force: bool = False, store: Store | None = None) -> None:
        super().__init__(path, path if store is None else str(store.url), store)
        self.force = force
        self.work = os.path.join(path, _WORK)
        self._plan_path = os.path.join(path, PLAN_NAME)

    @classmethod
    @contextlib.contextmanager
    def locked(cls, path: str, *, force: bool = False) -> Iterator[OutputFolder]:
        """Makes the folder if it does not exist, and locks it. Removes it in the end if it is empty.

        Raises:
            ShardError: if the folder holds something that feeder did not write.
            LockedError: if another process is writing it.
        """
        if os.path.lexists(path) and not os.path.isdir(path):
            raise ShardError(f"{path}: is not a folder; choose another --out")
        folder = cls(path, force=force)
        folder.refuse_foreign()
        made = _missing_folders(path)
        with contextlib.ExitStack() as stack:
            try:
                os.makedirs(path, exist_ok=True)
                stack.callback(_remove_empty, made)
                stack.enter_context(exclusive_lock(os.path.join(path, _LOCK)))
                os.makedirs(folder.work, exist_ok=True)
                folder._remove_leftovers()
            except OSError as error:
                raise ShardError(f"{path}: can't be written: {error.strerror}; allow it, or name another one") from None
            try:
                yield folder
            finally:
                if not os.path.exists(folder._plan_path):  # nothing to resume
                    folder.finish()
                    if not os.path.exists(folder.file(MANIFEST_NAME)):
                        with contextlib.suppress(OSError):
                            os.unlink(folder.file(_LOCK))

    def work_file(self, name: str) -> str:
        """Returns the full path of a file that an unfinished run needs."""
        return os.path.join(self.work, name)

    def manifest(self) -> Manifest | None:
        """Returns the manifest of the finished set; None if there is none, or it is to be replaced."""
        return None if self.force else Manifest.read(self.path)

    def image_field(self) -> str | None:
        """Returns the image field of the finished set in the folder, for the next run to keep; None if it has none."""
        manifest = self.manifest()
        return None if manifest is None else manifest.source.get("image_field")

    def check_complete(self, manifest: Manifest, settings: dict[str, Any], source: Source) -> None:
        """Checks that a finished shard set has the settings and the source of this run.

        Raises:
            ShardError: naming the first difference.
        """
        self._compare_settings("holds a shard set made with", manifest.settings, settings)
        files = {record.name: record.size_bytes for record in manifest.shards}
        indexes: dict[str, int] = {}
        if os.path.isfile(self.file(INDEX_NAME)):
            index = open_index(self.file(INDEX_NAME))
            shards = range(index.header.shards)
            indexes = {index.header.index_name(n): index.header.shard(n).index_bytes for n in shards}
        for name, expected in {INDEX_NAME: manifest.index.get("size_bytes"), **files, **indexes}.items():
            path = self.file(name)
            size = os.stat(path).st_size if os.path.exists(path) else None
            if size != expected:
                found = "is missing" if size is None else f"has {size} bytes, expected {expected}"
                raise ShardError(
                    f"{os.path.join(self.shown, name)}: {found}, though the set was finished: restore it (`feeder "
                    "inspect --verify` names all damage), or replace the set with --force"
                )
        now = len(source.table) + len(source.rejected)
        if (manifest.source.get("kind"), manifest.source.get("digest")) != (source.kind, source.digest()):
            raise ShardError(
                f"{self.shown}: holds the shards of another dataset, or of this one before it changed (its paths, "
                f"labels or columns differ; {manifest.inputs} inputs then, {now} now): choose another --out, or "
                "replace the set with --force"
            )

    def preview(self, settings: dict[str, Any]) -> None:
        """Checks, without writing, that a run with these settings would not be refused.

        Raises:
            ShardError: as :meth:`locked` and :meth:`check_complete` do.
        """
        self.refuse_foreign()
        manifest = self.manifest()
        if manifest is not None:
            self._compare_settings("holds a shard set made with", manifest.settings, settings)

    @contextlib.contextmanager
    def shared(self) -> Iterator[SharedOutput]:
        """Opens the output to the nodes of a cluster; see Note [Attempts] in shared_output.py."""
        attempts = os.path.abspath(self._new_attempts())
        os.mkdir(attempts)
        try:
            yield SharedFolder(attempts)
        finally:
            self._remove_attempts(attempts)

    def adopt(self, written: WrittenShard, folder: str) -> None:
        """Puts a shard that a node has finished in place, with its index and its record; see Note [Resume].

        Args:
            written: The shard's record.
            folder: The folder with its files.
        """
        name = written.record.name
        os.replace(index_path(folder, name), index_path(self.path, name))
        os.replace(os.path.join(folder, record_name(name)), self.work_file(record_name(name)))
        fsync_folder(self.work)
        fsync_folder(self.path)
        os.replace(os.path.join(folder, name), self.file(name))
        fsync_folder(self.path)
        os.rmdir(folder)

    def refuse_foreign(self) -> None:
        """Raises ShardError if the folder holds foreign files, or with ``force`` any beside a shard set."""
        names = sorted(os.listdir(self.path)) if os.path.isdir(self.path) else []
        if not self.force and (MANIFEST_NAME in names or os.path.isfile(self._plan_path)):
            return
        is_set = self.force and is_shard_set(self.path)
        foreign = [name for name in names if not (is_ours(name) if is_set else name in (_LOCK, _WORK))]
        if foreign:
            raise ShardError(
                f"{self.shown}: holds {foreign[0]!r} {'beside a' if is_set else 'and no'} shard set of feeder; nothing "
                "is overwritten: choose another --out, or empty the folder"
            )

    def begin(self, settings: dict[str, Any], source: Source, *, version: int = 0, shards: int = 0) -> bool:
        """Records the plan of a new run, or compares it with the recorded one.

        With ``force``, removes the set in the folder, or an unfinished one that can't be resumed. A run that adds to a
        set removes what an unfinished run over other inputs has left.

        Args:
            settings: The settings of the run.
            source: The samples.
            version: Number of the version of the set that the samples are added to; 0 for a new set.
            shards: Number of that set's shards.

        Returns:
            True if an unfinished run is resumed.

        Raises:
            ShardError: if the unfinished run had other settings or inputs; names the first difference.
        """
        inputs = len(source.table) + len(source.rejected)
        plan = {"settings": settings, "version": version, "inputs": inputs, "digest": plan_digest(settings, source)}
        is_replaced = self.force and os.path.exists(self.file(MANIFEST_NAME))
        if os.path.exists(self._plan_path) and not is_replaced:
            try:
                self._compare_plan(plan, source)
                return True
            except ShardError:
                if not self.force and not version:
                    raise

        self._remove_after(shards)
        if self.force:
            names = [name for name in os.listdir(self.path) if name not in (MANIFEST_NAME, _LOCK, _WORK)]
            self.remove(*(self.file(name) for name in names if is_ours(name)))
        with atomic_file(self._plan_path) as file:
            file.write(json.dumps(plan).encode())
        self.publish(self._plan_path)
        if is_replaced:
            self.remove(self.file(MANIFEST_NAME))
        return False

    def _remove_after(self, shards: int) -> None:
        """Removes shards that are none of the set's first ones, with their records."""
        paths = [
            os.path.join(folder, name)
            for folder in (self.work, self.path)
            for name in (os.listdir(folder) if os.path.isdir(folder) else ())
            if (found := _SHARD.match(name)) is not None and int(found[1]) >= shards
        ]
        self.remove(*paths)

    def discard(self, shards: int) -> None:
        """Removes all that a run has written beside the set's first shards."""
        self._remove_after(shards)
        self.finish()

    def finish(self) -> None:
        """Removes the files that only an unfinished run needs."""
        shutil.rmtree(self.work, ignore_errors=True)

    def _compare_plan(self, plan: dict[str, Any], source: Source) -> None:
        """Raises ShardError unless the plan of the unfinished run is this one."""
        if source.kind is SourceKind.SAMPLES:
            raise ShardError(
                f"{self.shown}: holds an unfinished run over an iterable, which can't be resumed, as its samples "
                "can't be compared; remove the folder and run again"
            )
        try:
            recorded = json.loads(read_regular(self._plan_path))
            self._compare_settings("holds an unfinished run with", recorded["settings"], plan["settings"])
            is_same = all(recorded[name] == plan[name] for name in ("version", "digest"))
            inputs_then = int(recorded["inputs"])
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            raise ShardError(
                f"{self.shown}: holds an unfinished run whose plan is damaged ({error}), so it can't be resumed: start "
                "again with --force, or remove the folder"
            ) from None
        if not is_same:
            raise ShardError(
                f"{self.shown}: holds an unfinished run over other inputs, or over these before they changed "
                f"({inputs_then} then, {plan['inputs']} now), so it can't be resumed: restore the source, or start "
                "again with --force"
            )

    def _new_attempts(self) -> str:
        """Returns the path of a folder for attempts that does not exist."""
        return self.work_file(f"{_ATTEMPTS}{os.urandom(8).hex()}")

    def _remove_attempts(self, path: str) -> None:
        """Removes a folder of attempts, under another name: a node that still writes to it can then add nothing."""
        renamed = self._new_attempts()
        with contextlib.suppress(OSError):
            os.rename(path, renamed)
        shutil.rmtree(renamed, ignore_errors=True)

    def _remove_leftovers(self) -> None:
        """Removes the temporary files of runs that were killed."""
        for name in os.listdir(self.work):
            if name.startswith(_ATTEMPTS):
                self._remove_attempts(self.work_file(name))
        for folder in (self.path, self.work):
            for name in os.listdir(folder):
                if name.endswith(TEMPORARY_SUFFIX) and (folder == self.work or is_ours(name)):
                    os.unlink(os.path.join(folder, name))

    def _compare_settings(self, what: str, recorded: dict[str, Any], asked: dict[str, Any]) -> None:
        for name in [*asked, *recorded]:
            if recorded.get(name) != asked.get(name):
                raise ShardError(
                    f"{self.shown}: {what} {name}={recorded.get(name)}, asked for {name}={asked.get(name)}; nothing is "
                    "overwritten: use the same settings, choose another --out, or replace the set with --force"
                )


def is_ours(name: str) -> bool:
    """Returns whether a name is that of a shard set's file, finished or still being written."""
    if name.endswith(TEMPORARY_SUFFIX):
        name = name[: -len(TEMPORARY_SUFFIX)].rpartition(".")[0]
    return name in (_LOCK, _WORK, *_RESULTS) or any(kind.fullmatch(name) for kind in (_SHARD, _OTHER_INDEX))


def _missing_folders(path: str) -> list[str]:
    """Returns those of the folder and its parents that do not exist, the deepest first."""
    missing = []
    path = os.path.abspath(path)
    while not os.path.lexists(path):
        missing.append(path)
        path = os.path.dirname(path)
    return missing


def _remove_empty(folders: list[str]) -> None:
    with contextlib.suppress(OSError):
        for folder in folders:
            os.rmdir(folder)
