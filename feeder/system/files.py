"""Files that appear whole or not at all, and a lock against a second writer."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import stat
from collections.abc import Iterable, Iterator
from typing import BinaryIO

from feeder.errors import ArgumentError, LockedError, ServiceError

DISK_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
TEMPORARY_SUFFIX = ".tmp"
_BUFFER_BYTES = 1 << 20
_confined_to: set[str] = set()  # real paths of folders; empty: to none


@contextlib.contextmanager
def atomic_file(path: str) -> Iterator[BinaryIO]:
    """Opens a temporary file that is renamed to ``path`` once its bytes are on disk.

    On an exception the temporary file is removed and ``path`` is unchanged. A killed process leaves only the temporary
    file, whose name (the start of ``path``'s, a random part and TEMPORARY_SUFFIX) is unique. Write with the file's own
    methods: functions that write to its descriptor, as ``numpy.save`` and ``tofile`` do, may lose errors.
    """
    temporary = _temporary_name(path)
    file = open(temporary, "xb", buffering=_BUFFER_BYTES)
    try:
        yield file
        file.flush()
        os.fsync(file.fileno())
        file.close()
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            file.close()  # flushes, which fails again on a full disk
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    fsync_folder(os.path.dirname(path))


def default_cache() -> str:
    """Returns the cache's folder where none is named."""
    return os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "feeder")


def write_text(path: str, text: str) -> str:
    """Writes a report, creates its folder if needed, and returns the path.

    Raises:
        ArgumentError: if the report can't be written there.
    """
    try:
        os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
        if os.path.exists(path) and not os.path.isfile(path):  # /dev/stdout and pipes are written to, not replaced
            with open(path, "w", encoding="utf-8") as stream:
                stream.write(text)
        else:
            with atomic_file(path) as file:
                file.write(text.encode())
    except OSError as error:
        raise ArgumentError(f"{path}: can't be written: {error.strerror}; name another file") from error
    return path


def check_writable(path: str) -> None:
    """Checks, before the work starts, that a report can be written; an existing file stays as it is.

    Raises:
        ArgumentError: if the report can't be written there.
    """
    try:
        os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
        if os.path.isdir(path):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if os.path.exists(path):
            os.close(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK))
        else:
            temporary = _temporary_name(path)
            os.close(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644))
            os.unlink(temporary)
    except OSError as error:
        raise ArgumentError(f"{path}: can't be written: {error.strerror}; name another file") from error


def _temporary_name(path: str) -> str:
    folder, name = os.path.split(path)
    start = os.fsdecode(os.fsencode(name)[:200])  # a name may have 255 bytes
    return os.path.join(folder, f"{start}.{os.urandom(4).hex()}{TEMPORARY_SUFFIX}")


def is_below(path: str, folder: str) -> bool:
    """Returns whether a path is a folder's, or lies below it. Both are real paths, without links."""
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def confine(folders: Iterable[str]) -> None:
    """Confines :func:`open_regular` and :func:`scan_folder`, from now on and in this process, to what lies below
    these folders or earlier ones, after links were followed: for processes that read for others."""
    _confined_to.update(map(os.path.realpath, folders))


def scan_folder(path: str) -> contextlib.AbstractContextManager[Iterator[os.DirEntry[str]]]:
    """Returns :func:`os.scandir` of a folder.

    Raises:
        OSError: as :func:`os.scandir` does.
        ServiceError: for one that this process may not read, see :func:`confine`.
    """
    if _confined_to:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            _check_place(descriptor, path)
        finally:
            os.close(descriptor)
    return os.scandir(path)


def open_regular(path: str, flags: int = 0) -> int:
    """Opens a regular file for reading; also an ``opener`` for :func:`open`.

    Args:
        path: The file.
        flags: Passed by :func:`open`, and ignored: the file is only read.

    Returns:
        A descriptor.

    Raises:
        OSError: if it can't be opened, or is a FIFO (which would block until somebody writes), a device or a socket.
        ServiceError: for one that this process may not read, see :func:`confine`.
    """
    if not _confined_to:
        return _open_regular(path, path)
    # Nothing happens to a file that is opened like this, and what is checked is what is read, whoever changes links.
    place = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        _check_place(place, path)
        return _open_regular(f"/proc/self/fd/{place}", path)
    finally:
        os.close(place)


def read_regular(path: str) -> bytes:
    """Returns the content of a regular file; see :func:`open_regular`."""
    with open(path, "rb", opener=open_regular) as file:
        return file.read()


def _check_place(descriptor: int, path: str) -> None:
    found = os.readlink(f"/proc/self/fd/{descriptor}")
    if not any(is_below(found, folder) for folder in _confined_to):
        raise ServiceError(f"{path}: leads out of the folders that the service was started for (--root)")


def _open_regular(path: str, shown: str) -> int:
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOCTTY
    try:
        descriptor = os.open(path, flags | os.O_NONBLOCK)
    except OSError as error:
        if error.errno == errno.ENXIO:  # a socket, or a device without a driver
            raise OSError(errno.EINVAL, "not a regular file", shown) from None
        if error.errno != errno.EWOULDBLOCK or not os.path.isfile(path):
            raise
        descriptor = os.open(path, flags)  # blocks until another process gives up its lease on the file
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), shown)
        raise OSError(errno.EINVAL, "not a regular file", shown)
    return descriptor


def fsync_folder(path: str) -> None:
    """Makes renames and new files in a folder durable."""
    descriptor = os.open(path or ".", os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def exclusive_lock(path: str, *, waits: bool = False) -> Iterator[None]:
    """Holds a lock file; the kernel releases the lock when the process ends, even if it is killed.

    Args:
        path: The file, made if need be; whoever waits for it never removes it.
        waits: True to wait for another process that holds it.

    Raises:
        LockedError: if another process holds it, without ``waits``.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if waits else fcntl.LOCK_NB))
            if not os.path.samestat(os.fstat(descriptor), os.stat(path)):
                raise FileNotFoundError  # its holder has just removed it, and another process may have locked a new one
        except OSError:
            raise LockedError(
                f"{os.path.dirname(path)}: another feeder process is writing this folder; wait until it is done"
            ) from None
        yield
    finally:
        os.close(descriptor)


def file_sha256(path: str) -> str:
    """Returns a file's SHA-256, hexadecimal."""
    digest = hashlib.sha256()
    with open(path, "rb", opener=open_regular) as file:
        while chunk := file.read(1 << 22):
            digest.update(chunk)
    return digest.hexdigest()
