"""A set in a store as the output of ``feeder shard``.

A run works in a folder of its own, as for a local set, and puts each file into the store when it is finished. The
folder has the names and sizes of the set's files in the store; shards are holes there. The store has the same files in
the same order as a local folder would; see Note [Resume] in output_folder.py. An object appears whole or not at all.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from functools import partial

from feeder.errors import NotFoundError, ShardError
from feeder.shard.format.index_file import INDEX_NAME
from feeder.shard.format.manifest import MANIFEST_NAME, PLAN_NAME
from feeder.shard.store.open_store import open_store
from feeder.shard.store.store import Entry, Store, download, entry_of
from feeder.shard.store.url import is_remote
from feeder.shard.write.output_folder import OutputFolder, is_ours
from feeder.shard.write.set_copy import at_once
from feeder.shard.write.set_writer import index_path
from feeder.shard.write.shard_options import REJECTED_NAME, TAKEDOWN_NAME
from feeder.shard.write.shard_writer import WrittenShard
from feeder.shard.write.shared_output import SharedOutput, SharedStore
from feeder.shard.write.store_lock import LOCK_NAME, StoreLock
from feeder.system.files import DISK_FULL


@contextlib.contextmanager
def locked_output(out: str, *, force: bool = False, appends: bool = False) -> Iterator[OutputFolder]:
    """Locks an output folder, or a place in a store; see :meth:`OutputFolder.locked`.

    Args:
        out: The path of the folder, or the URL of the place.
        force: True to replace a shard set in it.
        appends: True for a run that adds shards to a finished set, of whose own shards it needs nothing.
    """
    if not is_remote(out):
        if appends and not os.path.exists(os.path.join(out, MANIFEST_NAME)):
            raise no_set(out)
        with OutputFolder.locked(out, force=force) as folder:
            yield folder
        return

    with tempfile.TemporaryDirectory(prefix="feeder-shard-") as scratch:
        output = StoreOutput(scratch, force=force, store=open_store(out, writes=True))
        if appends and entry_of(output.store, MANIFEST_NAME) is None:
            raise no_set(output.shown)
        if not appends:
            output.fetch_all(with_unfinished=False)
            output.refuse_foreign()
        with StoreLock.held(output.store) as output.lock:
            if appends:
                output.fetch_newest()
            else:
                output.fetch_all(with_unfinished=True)
            yield output


def no_set(shown: str) -> ShardError:
    """Returns the error for a place without a finished set."""
    return ShardError(f"{shown}: holds no finished shard set of feeder; make one with `feeder shard`")


@contextlib.contextmanager
def previewed_output(out: str, *, force: bool) -> Iterator[OutputFolder]:
    """Opens an output folder, or a place in a store, without a lock, to look at what is there."""
    if not is_remote(out):
        yield OutputFolder(out, force=force)
        return
    with tempfile.TemporaryDirectory(prefix="feeder-shard-") as scratch:
        output = StoreOutput(scratch, force=force, store=open_store(out, writes=True))
        output.fetch_all(with_unfinished=False)
        yield output


class StoreOutput(OutputFolder):
    """A place in a store, and the folder in which a run for it works.

    Args:
        store: The store of the set.
        path: The folder, empty.
        force: True to replace a shard set in the store.
    """

    store: Store

    def fetch_newest(self) -> None:
        """Brings to the folder the header and the manifest of a finished set, and what an unfinished run that adds
        shards to it has left."""
        self._clear()
        unfinished = list(self.store.list(self._key(self.work)))
        records = [os.path.basename(entry.key) for entry in unfinished]
        added = [record.removesuffix(".json") for record in records if record.endswith(".tar.json")]
        names = [INDEX_NAME, MANIFEST_NAME, REJECTED_NAME, TAKEDOWN_NAME, *added, *(index_path("", n) for n in added)]
        found = [entry for entry in at_once(partial(entry_of, self.store), names) if entry is not None]
        at_once(partial(self._take, with_unfinished=True), [*unfinished, *found])

    def fetch_all(self, *, with_unfinished: bool) -> None:
        """Brings the folder to the state of the store.

        Args:
            with_unfinished: True to fetch the index and the files of an unfinished run, too.
        """
        self._clear()
        entries = [entry for entry in self.store.list() if entry.key != LOCK_NAME]
        at_once(partial(self._take, with_unfinished=with_unfinished), entries)

    def publish(self, *paths: str) -> None:
        for path in paths:
            super().publish(path)
            if path.endswith(".tar"):
                _make_hole(path, os.path.getsize(path))

    @contextlib.contextmanager
    def shared(self) -> Iterator[SharedOutput]:
        assert self.lock is not None
        yield SharedStore(self.store.url.anywhere(), self.lock.id)

    def adopt(self, written: WrittenShard, folder: str) -> None:
        record = written.record
        self.fetch(index_path("", record.name))
        _make_hole(self.file(record.name), record.size_bytes)

    def finish(self) -> None:
        self.remove(*(self.file(entry.key) for entry in self.store.list(self._key(self.work))))
        super().finish()

    def _clear(self) -> None:
        shutil.rmtree(self.path)
        os.makedirs(self.work)

    def _take(self, entry: Entry, *, with_unfinished: bool) -> None:
        """Makes the local file of an object: its bytes, or a hole of its size for shards and what is foreign."""
        path = self.file(entry.key)
        is_unfinished = path.startswith(self.work + os.sep)
        is_wanted = not entry.key.endswith(".tar") and (is_unfinished or is_ours(entry.key))
        try:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            if is_wanted and (with_unfinished or entry.key in (MANIFEST_NAME, PLAN_NAME)):
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
