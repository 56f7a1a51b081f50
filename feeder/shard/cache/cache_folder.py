"""One set's folder in the cache, as its fetcher keeps it: which blocks are present, and which files are evicted.

Note [What is evicted]
    A file is not evicted while it is kept (indices), being written, read by a client, or needed by a plan. Files that
    all plans are done with are evicted first, then the others; of each kind, the one used longest ago is first.

    Pinned files stay, as they leave room in the budget for files that come and go. They are evicted only once the
    budget has become smaller or the disk is full. A full disk may also evict planned files, to be fetched again.
"""

from __future__ import annotations

import collections
import contextlib
import errno
import itertools
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Iterable, Sequence

from feeder.errors import FormatError, StoreError
from feeder.shard.cache.cached_file import CachedFile, Contents, Plan
from feeder.shard.cache.presence import BLOCK_BYTES, Record, blocks_of, boot_id, record_path
from feeder.system.files import DISK_FULL, TEMPORARY_SUFFIX, open_regular
from feeder.system.limit_errors import limit_reached

CHECKED = ".checked."  # the start of the names of files that are checked before they count

_FREE_SHARE, _FREE_BYTES = 10, 10 << 30  # without a budget, a tenth of the disk stays free, but no more bytes than this
_DEFAULT_RING = 8  # without a plan, an eighth of the budget is for files that come and go
LOOK_S = 1.0  # between two looks at how much of the disk is free
_WRITE_BLOCKS = 4  # in one call: 2 MiB need memory in one piece, which a virtual machine may lack
# After files were evicted for a full disk, others are evicted only if there is no room by then. Readers close evicted
# files with their next question, or after waiting for a second.
_LEAVE_S, _PAUSE_S = 1.5, 0.02


class CacheFolder:
    """The files in a mirror's folder. Several threads may call its methods.

    Args:
        folder: The folder.
        budget_bytes: Bytes that they may take; None: what leaves 10 GiB of the disk free, or a tenth of a smaller one.

    Attributes:
        leases: Number of clients that read each file.
        plans: The plans of trainers, in the order of their turns.
        ring_bytes: Bytes of the budget that are for files that come and go.
        used_bytes: Bytes of all blocks that are present.
        coming_bytes: Bytes of the blocks that are on their way.
        whole_bytes: Bytes that came of files that come as a whole.
        damaged: Names of the files whose bytes are wrong on the disk, as far as the job that began last knows.
        notes: Warnings of damaged files, for clients.
        files: The files by name, the one used last at the end; one that was evicted is not among them.
        lock: Held by those who change a file's record.

    Raises:
        StoreError: if the folder can't be read.
    """

    def __init__(self, folder: str, budget_bytes: int | None = None) -> None:
        self.folder = folder
        self.lock = threading.RLock()
        self.ring_bytes: int | None = None
        self.budget_bytes = self.used_bytes = self.coming_bytes = self.whole_bytes = 0
        self._pinned_bytes = self._largest = 0
        self.leases: collections.Counter[str] = collections.Counter()
        self.plans: list[Plan] = []
        self._waits_until = 0.0
        self.damaged: set[str] = set()
        self.notes: collections.deque[str] = collections.deque()
        self.files: OrderedDict[str, CachedFile] = OrderedDict()
        # Files that are not pinned, by whether a plan is done with them: evict() looks through these alone.
        self._passing: dict[bool, OrderedDict[str, CachedFile]] = {True: OrderedDict(), False: OrderedDict()}
        try:
            self._load()
        except OSError as error:
            reason = limit_reached(error) or "name another place with cache_dir="
            raise StoreError(
                f"{error.filename or folder}: the cache can't be read: {error.strerror}; {reason}"
            ) from error
        self.set_budget(budget_bytes)

    def is_needed(self, name: str) -> bool:
        """Returns True for a file that somebody reads, or that a trainer is not done with."""
        return name in self.leases or any(plan.last_steps.get(name, -1) >= plan.step for plan in self.plans)

    def file(self, name: str, contents: Contents) -> CachedFile:
        """Returns a file, made if it is missing, with none of its blocks if it was another one.

        Raises:
            StoreError: if it can't be made.
        """
        with self.lock:
            file = self.files.get(name)
            while file is None or not file.is_of(contents) or not self._is_whole(file):
                try:
                    file = self._remake(name, contents, file)
                except OSError as error:
                    self.disk_is_full(error, BLOCK_BYTES, name)
            if file.contents is not contents:
                file.contents = contents
                self._check_boot(file)
            if contents.is_kept and not file.record.is_pinned:
                self._set_pinned(file)
            self.files.move_to_end(name)
            self._place(file)
            return file

    def current(self, file: CachedFile) -> CachedFile | None:
        """Returns a file, made anew if it was evicted meanwhile; None if one of other contents is in its place.

        Raises:
            StoreError: if it can't be made.
        """
        with self.lock:
            found = self.files.get(file.name)
            if found is file:
                return file
            assert file.contents is not None
            return self.file(file.name, file.contents) if found is None or found.is_of(file.contents) else None

    def set_done(self, name: str) -> None:
        """Notes that a plan has come past its last use of a file."""
        file = self.files.get(name)
        if file is not None:
            file.is_done = True
            self._place(file)

    def set_none_done(self) -> None:
        """Notes that there is a new plan, which may use any file."""
        for file in self.files.values():  # in the order of use
            file.is_done = False
            self._place(file)

    def brought(self, name: str, contents: Contents) -> CachedFile:
        """Returns a file as :meth:`file` does, and with all of its blocks if it comes as a whole.

        Raises:
            FeederError: if it can't be made or fetched.
        """
        while True:
            file = self.file(name, contents)
            if contents.fetch is None or file.is_complete:
                return file
            with contents.lock:
                self.compare(file, 0, file.record.blocks)
                if not file.is_complete:
                    try:
                        data = contents.fetch()
                    except OSError as error:
                        self.disk_is_full(error, contents.size_bytes, name)
                        continue
                    with self.lock:
                        self.whole_bytes += len(data)
                    self._fill(file, data)

    def _fill(self, file: CachedFile, data: bytes | memoryview) -> None:
        while True:
            self.make_room(file, len(data), is_urgent=True)
            try:
                self.write(file, 0, [memoryview(data)])
                return
            except FileNotFoundError:  # it was deleted meanwhile, and is made anew
                return
            except OSError as error:
                self.disk_is_full(error, len(data), file.name)

    def write(self, file: CachedFile, first: int, data: Sequence[memoryview]) -> int:
        """Writes whole blocks that were checked, and marks them as present.

        Args:
            file: The file.
            first: The first block.
            data: Their bytes, in pieces.

        Returns:
            Size of those that were not present before.

        Raises:
            FileNotFoundError: if the file was deleted or replaced meanwhile.
            OSError: if the disk takes no more.
        """
        start, left = first * BLOCK_BYTES, list(data)
        path, at = os.path.join(self.folder, file.name), start

        with self.lock:
            descriptor = self._open_own(file, path)

        try:
            inode = os.fstat(descriptor).st_ino
            while left:
                done = os.pwritev(descriptor, left[:_WRITE_BLOCKS], at)
                at += done
                while left and done >= len(left[0]):
                    done -= len(left.pop(0))
                if done:
                    left[0] = left[0][done:]
        finally:
            os.close(descriptor)

        with self.lock:
            if inode != file.inode or self.files.get(file.name) is not file:
                raise FileNotFoundError(errno.ENOENT, "was deleted meanwhile", path)
            before, stop = file.present_bytes, blocks_of(start, at)[1]
            absent_bytes = file.absent_bytes(range(first, stop))
            file.record.mark(first, stop)
            self._count(file, absent_bytes)
            return file.present_bytes - before

    def _open_own(self, file: CachedFile, path: str) -> int:
        """Opens a file for writing, with the lock held: it must not be another one that has taken its place."""
        if self.files.get(file.name) is file:
            descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
            if os.fstat(descriptor).st_ino == file.inode:
                return descriptor
            os.close(descriptor)
        raise FileNotFoundError(errno.ENOENT, "was deleted meanwhile", path)

    def make_room(self, file: CachedFile, size_bytes: int, *, is_urgent: bool) -> bool:
        """Evicts files that nobody needs until so many bytes more fit the budget.

        Args:
            file: The file that they are for.
            size_bytes: The bytes.
            is_urgent: True if somebody waits for them: they are taken beyond the budget if need be.

        Returns:
            False if there is no room for bytes that nobody waits for.
        """
        with self.lock:
            if not self._has_budget and time.monotonic() - self._looked >= LOOK_S:
                self.set_budget(None)  # others write to the disk, too

            self._pin(file)
            self._largest = max(self._largest, 0 if file.is_kept else file.record.size_bytes)
            if not is_urgent and not file.record.is_pinned:
                size_bytes += self._largest  # room for a file that somebody will wait for
            return self.trim(size_bytes, besides=file) or is_urgent or file.is_kept

    def trim(self, size_bytes: int = 0, besides: CachedFile | None = None) -> bool:
        """Evicts files that nobody needs any more until so many bytes more fit the budget; returns whether they do.

        Args:
            size_bytes: The bytes.
            besides: A file to keep.
        """
        with self.lock:
            over = self.used_bytes + self.coming_bytes + size_bytes - self.budget_bytes
            if over > 0:
                over -= self.evict(over, besides=besides)
            if over > 0 and self._pinned_bytes + self._ring_bytes() > self.budget_bytes:  # it has become smaller
                over -= self.evict(over, besides=besides, pinned=True)
            return over <= 0

    def evict(
        self, size_bytes: int, *, besides: CachedFile | None = None, pinned: bool = False, planned: bool = False
    ) -> int:
        """Evicts files that nobody needs until so many bytes are free; see Note [What is evicted].

        Args:
            size_bytes: The bytes.
            besides: A file to keep.
            pinned: True to evict pinned files, too.
            planned: True to evict any file that nobody reads just now, the one used last first.

        Returns:
            The bytes that were freed.
        """
        freed, going = 0, list[CachedFile]()

        with self.lock:
            files: Iterable[CachedFile] = itertools.chain(self._passing[True].values(), self._passing[False].values())

            if pinned:
                files = sorted(self.files.values(), key=lambda file: not file.is_done)
            if planned:
                files = reversed(self.files.values())
            is_needed = self.leases.__contains__ if planned else self.is_needed

            for file in files:
                if freed >= size_bytes:
                    break
                if file is not besides and not file.busy and not file.is_kept and not is_needed(file.name):
                    freed += file.present_bytes
                    going.append(file)

            for file in going:
                self._remove(file)
        return freed

    def disk_is_full(self, error: OSError, size_bytes: int, name: str) -> None:
        """Goes on with less room after a write has failed for want of it: evicts files, so that it may be tried again.

        Args:
            error: The failure.
            size_bytes: Size of what was to be written.
            name: The file that it was for, which is kept.

        Raises:
            StoreError: if no file can be evicted, or the write has failed for another reason.
        """
        if error.errno not in DISK_FULL:
            reason = limit_reached(error) or "name another place with cache_dir="
            raise StoreError(f"{self.folder}/{name}: can't be written: {error.strerror}; {reason}") from error

        disk = os.statvfs(self.folder)
        if disk.f_bavail * disk.f_frsize < size_bytes and time.monotonic() < self._waits_until:
            time.sleep(_PAUSE_S)  # readers may still hold evicted files open, whose bytes are not free yet
            return

        with self.lock:
            besides, most = self.files.get(name), max(size_bytes, self.used_bytes // 20)
            # What is planned is fetched again when it is needed.
            freed = self.evict(most, besides=besides, pinned=True) or self.evict(
                size_bytes, besides=besides, planned=True
            )
            self._waits_until = time.monotonic() + _LEAVE_S
            self.budget_bytes = min(self.budget_bytes, self.used_bytes + size_bytes)
            self._has_budget = True  # a disk with a quota looks free

        if not freed:
            raise StoreError(
                f"{self.folder}: the disk of the cache is full, and all that is cached is in use; make room on it, or "
                "name another disk with cache_dir="
            ) from error

    @property
    def kept_bytes(self) -> int:
        """Bytes of the files that stay while the set is in use: its header, as a rule."""
        with self.lock:
            return sum(file.present_bytes for file in self.files.values() if file.is_kept)

    def set_budget(self, budget_bytes: int | None) -> None:
        """Sets the budget; None: what leaves 10 GiB of the disk free, or a tenth of a smaller one."""
        with self.lock:
            self._has_budget = budget_bytes is not None
            self._looked = time.monotonic()
            self.budget_bytes = self._free_budget() if budget_bytes is None else budget_bytes

    def begin_job(self) -> None:
        """Notes that a job begins: what is cached is compared with its checksums once more before it is used."""
        with self.lock:
            self.damaged.clear()
            for file in self.files.values():
                file.record.doubt(0, file.record.blocks)

    def doubt(self, file: CachedFile, first: int, end: int) -> None:
        """Marks blocks to be compared with their checksums before use; forgets those without a checksum."""
        with self.lock:
            file.record.doubt(first, end)
            if file.contents is not None and file.contents.blocks is None and file.contents.check is None:
                self._forget(file, file.record.doubtful(first, end))

    def compare(self, file: CachedFile, first: int, end: int) -> list[int]:
        """Compares doubtful blocks with their checksums: returns those that are right, and forgets the others.

        Args:
            file: The file; one that comes as a whole is compared as a whole.
            first: The first block.
            end: The block after the last one.
        """
        contents, doubtful, wrong = file.contents, file.record.doubtful(first, end), list[int]()
        if not doubtful or contents is None:
            return []

        path = os.path.join(self.folder, file.name)
        try:
            if contents.check is not None:
                contents.check(path)
            with open(path, "rb", opener=open_regular) as stream:
                for block in doubtful:
                    begin, stop = file.block_range(block, block + 1)
                    wrong += file.wrong_blocks(block, [[memoryview(os.pread(stream.fileno(), stop - begin, begin))]])
        except (FormatError, OSError):
            wrong = doubtful

        with self.lock:
            still = {*doubtful} & {*file.record.doubtful(first, end)}  # the file may have been evicted
            right = sorted(still - {*wrong})
            for block in right:
                file.record.mark(block, block + 1)
            self._forget(file, still & {*wrong})

            if len(right) < len(still) and file.name not in self.damaged:
                self.damaged.add(file.name)
                self.notes.append(
                    f"{path}: this cached file was damaged on the disk; its bytes are fetched again from "
                    "the store. If it comes again, check the disk, or name another cache_dir"
                )

            return right

    def also_damaged(self, name: str) -> str:
        """Returns the end of a message about wrong bytes of the store, for a file that was damaged here, too."""
        return f", as were those in {self.folder}/{name}" if name in self.damaged else ""

    def _forget(self, file: CachedFile, blocks: Iterable[int]) -> None:
        """Marks blocks that are present, or doubtful, as missing."""
        for block in blocks:
            begin, end = file.block_range(block, block + 1)
            self._count(file, begin - end)
            file.record.unmark(block)

    def _pin(self, file: CachedFile) -> None:
        """Decides whether a file stays: while all that stay leave room for those that come and go."""
        if file.record.is_pinned or file.present_bytes or self.files.get(file.name) is not file:
            return
        if self._pinned_bytes + file.record.size_bytes + self._ring_bytes() <= self.budget_bytes:
            self._set_pinned(file)

    def _ring_bytes(self) -> int:
        return self.budget_bytes // _DEFAULT_RING if self.ring_bytes is None else self.ring_bytes

    def _set_pinned(self, file: CachedFile) -> None:
        self._pinned_bytes += file.record.size_bytes
        file.record.pin()
        self._place(file)

    def _place(self, file: CachedFile) -> None:
        """Puts a file at the end of those that it now belongs to."""
        for files in self._passing.values():
            files.pop(file.name, None)
        if not file.record.is_pinned and self.files.get(file.name) is file:
            self._passing[file.is_done][file.name] = file

    def _count(self, file: CachedFile, size_bytes: int) -> None:
        file.present_bytes += size_bytes
        self.used_bytes += size_bytes

    def _load(self) -> None:
        """Takes over what an earlier fetcher has left, but for what it was just writing."""
        records = record_path(self.folder, "")
        times: dict[str, int] = {}
        for entry in os.listdir(self.folder):
            if entry.startswith(CHECKED) and entry.endswith(TEMPORARY_SUFFIX):
                os.unlink(os.path.join(self.folder, entry))
        for place, _, names in os.walk(records):
            for entry in names:
                name = os.path.relpath(os.path.join(place, entry), records)
                try:
                    record = Record(os.path.join(place, entry))
                    times[name] = os.stat(os.path.join(self.folder, name)).st_mtime_ns
                    if record.is_retired:
                        raise ValueError("its file was to be evicted")
                except (FileNotFoundError, ValueError):  # cut off when it was made, or when it was evicted
                    times.pop(name, None)
                    for path in (os.path.join(self.folder, name), os.path.join(place, entry)):
                        with contextlib.suppress(FileNotFoundError):
                            os.unlink(path)
                    continue
                file = self.files[name] = CachedFile(name, record)
                self.used_bytes += file.present_bytes
                self._pinned_bytes += record.size_bytes if record.is_pinned else 0
        for name in sorted(times, key=times.__getitem__):
            self.files.move_to_end(name)
            self._place(self.files[name])

    def _is_whole(self, file: CachedFile) -> bool:
        """Returns True unless it was evicted, or somebody has deleted or cut it or its record."""
        try:
            status = os.stat(os.path.join(self.folder, file.name))
        except OSError:
            return False
        if file.inode == -1:
            file.inode = status.st_ino
        is_same = (status.st_size, status.st_ino) == (file.record.size_bytes, file.inode)
        return is_same and os.path.exists(file.record.path)

    def _remake(self, name: str, contents: Contents, before: CachedFile | None) -> CachedFile:
        """Makes a file without any block, in place of one that is there; raises OSError if it can't be made."""
        path = os.path.join(self.folder, name)
        if before is not None and self.files.get(name) is before:
            self._remove(before)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        record = Record.create(record_path(self.folder, name), contents.size_bytes, contents.identity)
        if before is not None and before.is_of(contents):  # what is on its way goes on
            file = before
            file.record = record
        else:
            file = CachedFile(name, record)
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as made:
            made.truncate(contents.size_bytes)
            file.inode = os.fstat(made.fileno()).st_ino
        self.files[name] = file
        return file

    def _remove(self, file: CachedFile) -> None:
        """Evicts a file; see Note [Presence]."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(self.folder, file.name))
        self._pinned_bytes -= file.record.size_bytes if file.record.is_pinned else 0
        self._count(file, -file.present_bytes)
        del self.files[file.name]
        self._place(file)
        file.record.retire()

    def _check_boot(self, file: CachedFile) -> None:
        """Doubts blocks that were written before this machine was started; see Note [Presence]."""
        if file.record.boot != boot_id():
            self.doubt(file, 0, file.record.blocks)
            file.record.adopt()
            self.damaged.add(file.name)  # a power failure may have damaged it: no warning is due

    def _free_budget(self) -> int:
        disk = os.statvfs(self.folder)
        kept_free = min(disk.f_blocks * disk.f_frsize // _FREE_SHARE, _FREE_BYTES)
        return self.used_bytes + max(0, disk.f_bavail * disk.f_frsize - kept_free)
