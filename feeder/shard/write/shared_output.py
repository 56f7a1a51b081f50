"""Places that the nodes of a cluster write shards to: a folder that all of them see, or a store.

Note [Attempts]
A shard may be written more than once: its node seems lost and is not, or it is slow and another node tries, too. So
each attempt writes files of its own. In a folder, only the process that has the lock moves those of the attempt that
is finished first into place; the others are removed. In a store, where nothing can be moved, each attempt puts the same
bytes, after it has seen that the lock is still that process's.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from feeder.shard.format.manifest import PLAN_NAME
from feeder.shard.store.open_store import open_store
from feeder.shard.store.url import Url
from feeder.shard.write.set_writer import index_path
from feeder.shard.write.shard_writer import record_name
from feeder.shard.write.store_lock import check_lock


@dataclass(frozen=True)
class SharedFolder:
    """A folder of this run's attempts, in the work folder of the output."""

    path: str

    def missing_path(self) -> str | None:
        """Returns the folder of the output if this machine does not have it."""
        return None if os.path.isdir(self.path) else os.path.dirname(os.path.dirname(self.path))

    @contextlib.contextmanager
    def attempt(self, name: str) -> Iterator[str]:
        """Makes a folder for an attempt at the shard of this name; removes it on an error."""
        folder = os.path.join(self.path, os.urandom(8).hex())
        os.mkdir(folder)  # fails once the run has ended, as the parent is gone
        try:
            yield folder
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise


@dataclass(frozen=True)
class SharedStore:
    """A store.

    Attributes:
        url: Its URL.
        lock_id: The lock of the run.
    """

    url: Url
    lock_id: str

    def missing_path(self) -> str | None:
        return None

    @contextlib.contextmanager
    def attempt(self, name: str) -> Iterator[str]:
        """Makes a folder for an attempt at the shard of this name, and puts its files into the store in the end.

        Raises:
            LockedError: if the run that this is for has ended.
            StoreError: if the store can't be written.
        """
        with tempfile.TemporaryDirectory(prefix="feeder-shard-") as folder:
            yield folder

            store = open_store(self.url)
            index = Path(index_path(folder, name))
            record = f"{os.path.dirname(PLAN_NAME)}/{record_name(name)}"
            files = {record: Path(folder, record_name(name)), index.name: index, name: Path(folder, name)}
            for key, file in files.items():
                check_lock(store, self.lock_id)
                store.put(key, file)


# An output as a node sees it; can be pickled.
SharedOutput: TypeAlias = SharedFolder | SharedStore
