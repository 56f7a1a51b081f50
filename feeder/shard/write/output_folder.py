"""The output folder of ``feeder shard``, with the plan and the finished parts of an unfinished run.

Note [Resume]
While a run is unfinished, ``.work`` holds its plan (settings, and the list of inputs with sizes and times), and a
record for each finished shard. A shard is renamed into place after its index and this record are written, so a shard
that exists is finished. ``manifest.json`` is written when everything else is on disk; then ``.work`` is removed.

Images that were read from URLs stay there until the run has ended well.

A run that adds samples to a finished set has its plan and records there, too. The set's header does not name its shards
until all are written, so that a killed run leaves the set as it was.

When a set is replaced, its parts and shards are removed first, and its manifest once the new plan is written. So the
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
from feeder.shard.source.source import Source
from feeder.shard.source.spool import KEPT_IMAGES
from feeder.shard.write.options import REJECTED_NAME, TAKEDOWN_NAME
from feeder.shard.write.run_plan import first_difference, load_inputs, plan_of, save_inputs
from feeder.shard.write.set_writer import index_path
from feeder.shard.write.shard_job import record_name
from feeder.shard.write.shared_output import FinishedAttempt, SharedFolder, SharedOutput
from feeder.system.files import TEMPORARY_SUFFIX, atomic_file, exclusive_lock, fsync_folder, open_regular

__all__ = ["OutputFolder"]

_LOCK = ".lock"
_ATTEMPTS = "attempts-"
_WORK = os.path.dirname(PLAN_NAME)
_SHARD = re.compile(r"shard-(\d+)\.(tar|idx|fidx(-index.+)?)")
# An earlier version, or one for another image field, which has indexes of its own beside the shards.
_OTHER_INDEX = re.compile(r"index(-\d+)?(\..+)?\.bin")
_RESULTS = (INDEX_NAME, MANIFEST_NAME, REJECTED_NAME, TAKEDOWN_NAME)


class OutputFolder:
    """An output folder, locked for this process.

    Args:
        path: The folder.
        force: True to replace a shard set in it.
        shown: Its name in messages; None for the path.
    """

    def __init__(self, path: str, *, force: bool = False, shown: str | None = None) -> None:
        self.path = path
        self.force = force
        self.shown = shown or path
        self.work = os.path.join(path, _WORK)
        self._plan_path = os.path.join(path, PLAN_NAME)
        self._inputs_path = os.path.join(self.work, "inputs.npy")

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
                raise ShardError(f"{path}: can't be written: {error.strerror}; choose another --out") from None
            try:
                yield folder
            finally:
                if not any(map(os.path.exists, (folder._plan_path, folder.part(KEPT_IMAGES)))):  # nothing to resume
                    folder.finish()
                    if not os.path.exists(folder.file(MANIFEST_NAME)):
                        with contextlib.suppress(OSError):
                            os.unlink(folder.file(_LOCK))

    def file(self, name: str) -> str:
        """Full path of a result."""
        return os.path.join(self.path, name)

    def has(self, name: str) -> bool:
        """Returns True if the set has a file of a name."""
        return os.path.exists(self.file(name))

    def read(self, name: str, start: int, end: int) -> bytes:
        """Returns a range of one of the set's files.

        Raises:
            OSError: if it can't be read.
            StoreError: if the store can't be read.
        """
        with open(self.file(name), "rb", opener=open_regular) as file:
            return os.pread(file.fileno(), end - start, start)

    @contextlib.contextmanager
    def borrowed(self, name: str, size_bytes: int) -> Iterator[str]:
        """Returns the path of the first bytes of one of the set's files, for the duration of the context.

        Args:
            name: The file.
            size_bytes: Number of the bytes; there may be more.
        """
        yield self.file(name)

    def part(self, name: str) -> str:
        """Full path of a file that an unfinished run needs."""
        return os.path.join(self.work, name)

    @staticmethod
    def is_ours(name: str) -> bool:
        """Returns whether a name is that of a shard set's file, finished or still being written."""
        return _is_ours(name)

    def image_field(self) -> str | None:
        """Image field of the set in the folder, finished or not, for the next run to keep; None if it has none."""
        if not self.force and (manifest := Manifest.read(self.path)) is not None:
            return manifest.source.get("image_field")
        try:
            with open(self._plan_path, encoding="utf-8", opener=open_regular) as file:
                recorded = json.load(file).get("image_field")
        except (OSError, ValueError, AttributeError):  # no plan, or a damaged one, which is reported later
            return None
        return recorded if isinstance(recorded, str) else None

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
            shards = range(index.shard_count)
            indexes = {index.header.index_name(n): index.header.shard(n).index_bytes for n in shards}
        for name, expected in {INDEX_NAME: manifest.index.get("size_bytes"), **files, **indexes}.items():
            path = self.file(name)
            size = os.stat(path).st_size if os.path.exists(path) else None
            # The header does not count the optional groups of an index.
            if size is None or (size < indexes[name] if name in indexes else size != expected):
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
        manifest = None if self.force else Manifest.read(self.path)
        if manifest is not None:
            self._compare_settings("holds a shard set made with", manifest.settings, settings)

    def publish(self, *paths: str) -> None:
        """Puts finished files where the set is to be, in this order; those of a folder are there already."""

    @property
    def is_shared(self) -> bool:
        """True if nodes of a cluster see the folder itself."""
        return True

    @contextlib.contextmanager
    def shared(self) -> Iterator[SharedOutput]:
        """Opens the output to the nodes of a cluster; see Note [Attempts] in shared_output.py."""
        attempts = os.path.abspath(self._new_attempts())
        os.mkdir(attempts)
        try:
            yield SharedFolder(attempts)
        finally:
            self._remove_attempts(attempts)

    def adopt(self, finished: FinishedAttempt) -> None:
        """Puts a shard that a node has finished in place, with its index and its record; see Note [Resume]."""
        name = finished.written.record.name
        index, record = index_path(self.path, name), self.part(record_name(name))
        os.replace(index_path(finished.folder, name), index)
        os.replace(os.path.join(finished.folder, record_name(name)), record)
        fsync_folder(self.work)
        fsync_folder(self.path)
        os.replace(os.path.join(finished.folder, name), self.file(name))
        fsync_folder(self.path)
        os.rmdir(finished.folder)

    def remove(self, *paths: str) -> None:
        """Removes files of the set."""
        for path in paths:
            os.unlink(path)

    def refuse_foreign(self) -> None:
        """Raises ShardError if the folder holds foreign files, or with ``force`` any beside a shard set."""
        path, force = self.path, self.force
        if not os.path.isdir(path):
            return
        names = sorted(os.listdir(path))
        is_set = is_shard_set(path) if force else MANIFEST_NAME in names or os.path.isfile(self._plan_path)
        if is_set:
            foreign = next((name for name in names if force and not _is_ours(name)), None)
        else:
            foreign = next((name for name in names if name not in (_LOCK, _WORK)), None)
        if foreign is not None:
            raise ShardError(
                f"{self.shown}: holds {foreign!r} {'beside a' if is_set else 'and no'} shard set of feeder; nothing is "
                "overwritten: choose another --out, or empty the folder"
            )

    def begin(self, settings: dict[str, Any], source: Source) -> bool:
        """Records the plan of a new run, or compares it with the recorded one.

        With ``force``, removes the set in the folder, or an unfinished one that can't be resumed.

        Returns:
            True if an unfinished run is resumed.

        Raises:
            ShardError: if the unfinished run had other settings or inputs; names the first difference.
        """
        plan = plan_of(settings, source)
        replaced = os.path.exists(self.file(MANIFEST_NAME))  # only with force: a run over a finished set does not begin
        if os.path.exists(self._plan_path) and not replaced:
            try:
                self._compare_plan(plan, source)
                return True
            except ShardError:
                if not self.force:
                    raise
        if self.force:
            self._remove_all_but(MANIFEST_NAME, _LOCK, _WORK)
        self._record(plan, source)
        if replaced:
            self.remove(self.file(MANIFEST_NAME))
        return False

    def begin_append(self, settings: dict[str, Any], source: Source, version: int, shards: int) -> bool:
        """Records the plan of a run that adds samples to the set, unless it is that of an unfinished one.

        Shards that an unfinished run over other inputs has left are removed.

        Args:
            settings: The settings of the run.
            source: The samples.
            version: Number of the set's version.
            shards: Number of its shards.

        Returns:
            True if an unfinished run is resumed.
        """
        plan = plan_of(settings, source)
        if os.path.exists(self._plan_path):
            with contextlib.suppress(ShardError):
                if self._compare_plan(plan, source).get("version") == version:
                    return True
        self.remove_after(shards)
        self._record(plan | {"version": version}, source)
        return False

    def remove_after(self, shards: int) -> None:
        """Removes shards that are none of the set's first ones, with their records."""
        for folder in (self.work, self.path):
            for name in sorted(os.listdir(folder)):
                found = _SHARD.match(name)
                if found is not None and int(found[1]) >= shards:
                    self.remove(os.path.join(folder, name))

    def _record(self, plan: dict[str, Any], source: Source) -> None:
        with atomic_file(self._inputs_path) as file:
            save_inputs(file, source)
        with atomic_file(self._plan_path) as file:
            file.write(json.dumps(plan).encode())
        self.publish(self._inputs_path, self._plan_path)

    def discard(self) -> None:
        """Removes all files that the run has written."""
        self._remove_all_but(_LOCK, _WORK)
        self.finish()

    def finish(self) -> None:
        """Removes the files that only an unfinished run needs."""
        shutil.rmtree(self.work, ignore_errors=True)

    def _compare_plan(self, plan: dict[str, Any], source: Source) -> dict[str, Any]:
        """Returns the plan of the unfinished run; raises ShardError unless it is this one."""
        try:
            with open(self._plan_path, encoding="utf-8", opener=open_regular) as file:
                recorded = json.load(file)
            with open(self._inputs_path, "rb", opener=open_regular) as inputs:
                before = load_inputs(inputs)
        except (ValueError, EOFError, FileNotFoundError) as error:
            raise ShardError(
                f"{self.shown}: holds an unfinished run whose plan is damaged ({error}), so it can't be resumed: start "
                "again with --force, or remove the folder"
            ) from None
        self._compare_settings("holds an unfinished run with", recorded["settings"], plan["settings"])
        if source.kind == "samples":
            raise ShardError(
                f"{self.shown}: holds an unfinished run over an iterable, which can't be resumed, as its samples "
                "can't be compared; remove the folder and run again"
            )
        changed = first_difference(recorded, plan, before, source.table.columns())
        if changed:
            raise ShardError(
                f"{self.shown}: holds an unfinished run over other inputs, so it can't be resumed: {changed}; "
                "restore the source, or start again with --force"
            )
        found: dict[str, Any] = recorded
        return found

    def _remove_all_but(self, *kept: str) -> None:
        """Removes the set's files, and the records of finished shards."""
        parts = [self.part(name) for name in os.listdir(self.work) if _SHARD.match(name)]
        files = [self.file(name) for name in os.listdir(self.path) if name not in kept and _is_ours(name)]
        self.remove(*parts, *files)

    def _new_attempts(self) -> str:
        """Path of a folder for attempts that does not exist."""
        return self.part(f"{_ATTEMPTS}{os.urandom(8).hex()}")

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
                self._remove_attempts(self.part(name))
        for folder in (self.path, self.work):
            for name in os.listdir(folder):
                if name.endswith(TEMPORARY_SUFFIX) and (folder == self.work or _is_ours(name)):
                    os.unlink(os.path.join(folder, name))

    def _compare_settings(self, what: str, recorded: dict[str, Any], asked: dict[str, Any]) -> None:
        for name in [*asked, *recorded]:
            if recorded.get(name) != asked.get(name):
                raise ShardError(
                    f"{self.shown}: {what} {name}={recorded.get(name)}, asked for {name}={asked.get(name)}; nothing is "
                    "overwritten: use the same settings, choose another --out, or replace the set with --force"
                )


def _is_ours(name: str) -> bool:
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
