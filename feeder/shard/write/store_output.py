"""A set in a store as the output of ``feeder shard``.

A run works in a folder of its own, as for a local set, and puts each file into the store when it is finished. The
folder has the names and sizes of the set's files in the store; shards are holes there. The store has the same files in
the same order as a local folder would; see Note [Resume] in output_folder.py. An object appears whole or not at all.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from feeder.errors import NotFoundError, ShardError
from feeder.shard.format.header_file import version_path
from feeder.shard.format.index_file import INDEX_NAME
from feeder.shard.format.manifest import MANIFEST_NAME, PLAN_NAME, Manifest
from feeder.shard.store.store import Entry, Store, download, open_store
from feeder.shard.store.url import is_remote, local_path
from feeder.shard.write.output_folder import OutputFolder
from feeder.shard.write.set_writer import index_path
from feeder.shard.write.shared_output import FinishedAttempt, SharedOutput, SharedStore
from feeder.shard.write.store_lock import LOCK_NAME, StoreLock
from feeder.system.files import DISK_FULL

__all__ = ["StoreOutput", "locked_output", "previewed_output"]

_REQUESTS = 16  # at once
_MAX_LISTED = 10_000_000  # objects; more are no shard set


@contextlib.contextmanager
def locked_output(out: str, *, force: bool = False, appends: bool = False) -> Iterator[OutputFolder]:
    """Locks an output folder, or a place in a store; see :meth:`OutputFolder.locked`.

    Args:
        out: The folder, or its URL.
        force: True to replace a shard set in it.
        appends: True for a run that reads no more of a finished set than its header and its manifest.
    """
    if not is_remote(out):
        with OutputFolder.locked(local_path(out), force=force) as folder:
            yield folder
        return
    with tempfile.TemporaryDirectory(prefix="feeder-shard-") as scratch:
        output = StoreOutput(open_store(out), scratch, force=force)
        output.fetch(with_parts=False)
        output.refuse_foreign()
        with StoreLock.held(output.store) as lock:
            output.lock = lock
            output.fetch(with_parts=True, appends=appends)
            yield output


@contextlib.contextmanager
def previewed_output(out: str, *, force: bool = False) -> Iterator[OutputFolder]:
    """Opens an output folder, or a place in a store, without a lock, to look at what is there."""
    if not is_remote(out):
        yield OutputFolder(local_path(out), force=force)
        return
    with tempfile.TemporaryDirectory(prefix="feeder-shard-") as scratch:
        output = StoreOutput(open_store(out), scratch, force=force)
        output.fetch(with_parts=False)
        yield output


class StoreOutput(OutputFolder):
    """A place in a store, and the folder in which a run for it works.

    Args:
        store: The store of the set.
        path: The folder, empty.
        force: True to replace a shard set in the store.
    """

    def __init__(self, store: Store, path: str, *, force: bool = False) -> None:
        super().__init__(path, force=force, shown=str(store.url))
        self.store = store
        self.lock: StoreLock | None = None

    def fetch(self, *, with_parts: bool, appends: bool = False) -> None:
        """Brings the folder to the state of the store.

        Args:
            with_parts: True to fetch the index and the parts of an unfinished run, too.
            appends: True to leave out the indexes of the manifest's shards, and the headers of earlier versions.
        """
        shutil.rmtree(self.path)
        os.makedirs(self.work)
        entries = []
        for entry in self.store.list():
            if entry.key != LOCK_NAME:
                entries.append(entry)
            if len(entries) > _MAX_LISTED:
                raise ShardError(f"{self.shown}: holds more than {_MAX_LISTED:,} objects; choose another --out")
        left_out = self._of_the_set(entries) if appends else set()
        with ThreadPoolExecutor(_REQUESTS) as pool:
            for _ in pool.map(lambda entry: self._fetch(entry, with_parts and entry.key not in left_out), entries):
                pass

    def publish(self, *paths: str) -> None:
        """Puts finished files into the store, in this order."""
        assert self.lock is not None
        for path in paths:
            self.lock.check()
            self.store.put(self._key(path), Path(path))
            if path.endswith(".tar"):
                _make_hole(path, os.path.getsize(path))

    @property
    def is_shared(self) -> bool:
        return False

    @contextlib.contextmanager
    def shared(self) -> Iterator[SharedOutput]:
        assert self.lock is not None
        yield SharedStore(self.store.url.anywhere(), self.lock.id)

    def adopt(self, finished: FinishedAttempt) -> None:
        record = finished.written.record
        with open(index_path(self.path, record.name), "wb") as file:
            file.write(finished.index_bytes)
        _make_hole(self.file(record.name), record.size_bytes)

    def remove(self, *paths: str) -> None:
        assert self.lock is not None
        self.lock.check()
        self._delete(map(self._key, paths))
        super().remove(*paths)

    def finish(self) -> None:
        assert self.lock is not None
        self.lock.check()
        self._delete([entry.key for entry in self.store.list(self._key(self.work))])
        super().finish()

    def _key(self, path: str) -> str:
        return os.path.relpath(path, self.path)

    def _delete(self, keys: Iterable[str]) -> None:
        with ThreadPoolExecutor(_REQUESTS) as pool:
            for _ in pool.map(self.store.delete, keys):
                pass

    def _of_the_set(self, entries: Iterable[Entry]) -> set[str]:
        """Returns the indexes of the manifest's shards, and the headers of earlier versions."""
        found = {entry.key: entry for entry in entries}
        if MANIFEST_NAME not in found:
            return set()
        self._fetch(found[MANIFEST_NAME], with_parts=True)
        manifest = Manifest.read(self.path)
        versions = itertools.takewhile(found.__contains__, (version_path(INDEX_NAME, n) for n in itertools.count(1)))
        return {*versions, *(index_path("", record.name) for record in (manifest.shards if manifest else ()))}

    def _fetch(self, entry: Entry, with_parts: bool) -> None:
        """Makes the local file of an object: its bytes, or a hole of its size for shards and what is foreign."""
        path = self.file(entry.key)
        is_part = path.startswith(self.work + os.sep)
        is_wanted = not entry.key.endswith(".tar") and (is_part or self.is_ours(entry.key))
        try:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            if is_wanted and (with_parts or entry.key in (MANIFEST_NAME, PLAN_NAME)):
                download(self.store, entry, path)
            else:
                _make_hole(path, entry.size_bytes)
        except NotFoundError:  # the last request of a killed writer has deleted it
            os.unlink(path)
        except OSError as error:
            if error.errno in DISK_FULL:
                raise
            raise ShardError(f"{self.store.url.object(entry.key)}: can't be copied here: {error.strerror}") from None


def _make_hole(path: str, size_bytes: int) -> None:
    """Makes a file of this size that takes no space."""
    with open(path, "wb") as file:
        file.truncate(size_bytes)
