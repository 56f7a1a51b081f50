"""Limits of the process: as many files as it may have, and errors with the limit's name, its value and the remedy."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
from collections.abc import Iterator

_MIB = 1 << 20
# Parts of the RuntimeErrors that packages raise when the system refuses a descriptor, memory or a thread.
_MESSAGES = {
    "received 0 items of ancdata": errno.EMFILE,
    os.strerror(errno.EMFILE).lower(): errno.EMFILE,
    "allocate memory": errno.ENOMEM,
    "can't start new thread": errno.EAGAIN,
}


def raise_file_limit() -> None:
    """Allows this process as many open files as it may have."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


@contextlib.contextmanager
def explained() -> Iterator[None]:
    """Adds the limit's name to errors for lack of descriptors, memory or processes that are raised in its context.

    Raises:
        OSError, MemoryError, RuntimeError: as raised inside, with the same ``errno``.
    """
    try:
        yield
    except (OSError, MemoryError, RuntimeError) as error:
        limit = limit_reached(error)
        if limit is None or limit in str(error):
            raise
        if isinstance(error, OSError):
            raise OSError(
                error.errno, f"{error.strerror}: {limit}", *([error.filename] if error.filename else [])
            ) from error
        text = f"{error}: {limit}" if str(error) else limit
        raise (MemoryError if isinstance(error, MemoryError) else RuntimeError)(text) from error


def limit_reached(error: BaseException) -> str | None:
    """Returns the limit of this process that caused an error, and the remedy; None if no limit did."""
    if isinstance(error, MemoryError):
        code = errno.ENOMEM
    elif isinstance(error, OSError):
        code = error.errno or 0
    else:
        text = str(error).lower()
        code = next((number for message, number in _MESSAGES.items() if message in text), 0)
    if code == errno.EMFILE:
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        return (
            f"this process may have {most} files open (RLIMIT_NOFILE): raise it, with `ulimit -n 4096` for "
            "example, or use fewer workers"
        )
    # A thread needs room for its stack, too. Most systems limit processes, so that limit says least.
    is_for_memory = code in (errno.ENOMEM, errno.EAGAIN)
    if is_for_memory and (most := resource.getrlimit(resource.RLIMIT_AS)[0]) != resource.RLIM_INFINITY:
        return (
            f"the address space of this process is limited to {most // _MIB:,} MiB (RLIMIT_AS), of which torch alone "
            "maps thousands: raise it with `ulimit -v`, and limit memory by a control group, which counts what is used"
        )
    if code == errno.EAGAIN and (most := resource.getrlimit(resource.RLIMIT_NPROC)[0]) != resource.RLIM_INFINITY:
        return f"this user may have {most} processes and threads (RLIMIT_NPROC): raise it with `ulimit -u`"
    return None
