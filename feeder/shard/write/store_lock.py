"""The lock on a set in a store: an object that is created by one writer only, and renewed while it works.

The lock of a writer that is gone must not stay for good. On the same machine the kernel knows whether its process is
alive. Of another machine's, the object is watched: if it is not renewed for STALE_S, its writer is dead or has no
network, and the lock is taken over on the condition that it is still unchanged. No clocks are compared.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import threading
import time
from collections.abc import Iterator

from feeder.errors import ChangedError, ConflictError, FeederError, LockedError, NotFoundError, StoreError
from feeder.shard.store.store import Entry, Store

LOCK_NAME = ".lock"
STALE_S = 30.0
RENEW_S = 5.0
POLL_S = 1.0


class StoreLock:
    """A lock that this process has.

    Args:
        store: The store of the set.
        entry: The lock's object.
        text: Its contents.
    """

    def __init__(self, store: Store, entry: Entry, text: dict[str, object]) -> None:
        self._store = store
        self._entry = entry
        self._text = text
        self._changed = threading.Condition()
        self._renewed_s = time.monotonic()
        self._error: FeederError | None = None
        self._ended = threading.Event()

    @classmethod
    @contextlib.contextmanager
    def held(cls, store: Store) -> Iterator[StoreLock]:
        """Holds the lock.

        Raises:
            LockedError: if another process has it.
            StoreError: if the store can't be written.
        """
        text: dict[str, object] = {**_this_process(), "id": os.urandom(8).hex()}
        lock = cls(store, _acquired(store, json.dumps(text).encode()), text)
        thread = threading.Thread(target=lock._renew_always, name="feeder-lock", daemon=True)
        thread.start()
        try:
            yield lock
        finally:
            lock._ended.set()
            thread.join()
            if lock._error is None:
                with contextlib.suppress(StoreError):  # left behind it is taken over, as that of a killed process
                    store.delete(LOCK_NAME)

    @property
    def id(self) -> str:
        """Tells this lock from all others; see :func:`check_lock`."""
        return str(self._text["id"])

    def check(self) -> None:
        """Returns while this process has the lock; waits while the store is out of reach.

        Raises:
            LockedError: if another process has taken it over.
            StoreError: if the store can't be reached any more.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._error or time.monotonic() - self._renewed_s < STALE_S)
            if self._error is not None:
                raise self._error

    def _renew_always(self) -> None:
        for renewals in itertools.count(1):
            if self._ended.wait(RENEW_S):
                return
            error: FeederError | None = None
            began_s = time.monotonic()
            try:
                content = json.dumps(self._text | {"renewals": renewals}).encode()
                self._entry = self._store.put(LOCK_NAME, content, if_match=self._entry)
            except ConflictError:
                error = _locked(self._store, "has taken it over, as this one was silent for long")
            except StoreError as caught:
                error = caught
            with self._changed:
                self._error = error
                self._renewed_s = began_s
                self._changed.notify_all()
            if error is not None:
                return


def check_lock(store: Store, lock_id: str) -> None:
    """Returns if a set's lock is the one with this id, which another process may have.

    Raises:
        LockedError: if it is not, or there is none.
        StoreError: if the store can't be read.
    """
    with contextlib.suppress(NotFoundError, ChangedError):
        if json.loads(bytes(store.get(LOCK_NAME)))["id"] == lock_id:
            return
    raise LockedError(f"{store.url.object(LOCK_NAME)}: the run that this was written for has ended")


def _acquired(store: Store, content: bytes) -> Entry:
    """Returns the entry of the lock, created or taken over."""
    while True:
        with contextlib.suppress(ConflictError):
            return store.put(LOCK_NAME, content, if_absent=True)
        with contextlib.suppress(NotFoundError):  # it has just been given back
            seen = store.size(LOCK_NAME)
            try:
                if not _is_left_behind(store.get(LOCK_NAME, etag=seen.etag)):
                    _watch(store, seen)
                return store.put(LOCK_NAME, content, if_match=seen)
            except (ChangedError, ConflictError):  # it was renewed meanwhile
                raise _locked(store, "is writing there") from None


def _watch(store: Store, seen: Entry) -> None:
    """Returns if the lock is not renewed for STALE_S."""
    began_s = time.monotonic()
    while time.monotonic() - began_s < STALE_S:
        time.sleep(POLL_S)
        if store.size(LOCK_NAME).etag != seen.etag:
            raise _locked(store, "is writing there")


def _is_left_behind(text: bytes | bytearray | memoryview) -> bool:
    """Returns whether a lock is of a process of this machine that is gone, or is the empty file of a local set, which
    was copied along with it.

    Raises:
        LockedError: if that process is alive.
    """
    if not len(text):
        return True
    try:
        holder = json.loads(bytes(text))
        machine, pid, started = holder["machine"], int(holder["pid"]), holder["started"]
    except (ValueError, TypeError, KeyError):
        return False
    if machine != _this_process()["machine"]:
        return False
    if _started(pid) == started:
        raise LockedError(f"another feeder process (pid {pid}) is writing there; wait until it is done")
    return True


def _this_process() -> dict[str, object]:
    """Returns what tells a process from all others: those of other machines, of other containers, and later ones."""
    with open("/proc/sys/kernel/random/boot_id") as file:
        machine = f"{file.read().strip()} {os.readlink('/proc/self/ns/pid')}"
    return {"machine": machine, "pid": os.getpid(), "started": _started(os.getpid())}


def _started(pid: int) -> str:
    """Returns the time at which a process started, in the kernel's ticks; empty if there is none."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split()[19]
    except (FileNotFoundError, ProcessLookupError):
        return ""


def _locked(store: Store, what: str) -> LockedError:
    return LockedError(f"{store.url.object(LOCK_NAME)}: another feeder process {what}; wait until it is done")
