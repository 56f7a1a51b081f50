"""The lock of an iterator: closes it although another thread waits in it, or this thread below a signal handler.

Note [Closing]
    A descriptor that is closed while a thread uses it may be another file's by the time the thread writes to it. So
    nothing is closed while a thread is in the iterator: it is told, notices within a second, and closes everything on
    its way out. It gets an error then, and not an end of the epoch that never came.

Note [At the interpreter's end]
    The last objects go while modules are taken apart, and a finalizer then finds None in place of a module's global;
    objects of a script's top level are among them once anything keeps its ``__main__``, as dill does. By then
    ``atexit`` has ended the workers, and the system takes memory and descriptors back. So a ``__del__`` does nothing
    while the interpreter ends, and gets ``sys.is_finalizing`` as a default argument. Neither does what generators call
    that are closed with it.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable, Iterator

from feeder.errors import WorkerError

PATIENCE_S = 5.0


class IteratorLock:
    """Held while an iterator is in use, by one thread at a time.

    Attributes:
        is_over: True once the iterator was told to end. The thread that uses it then ends it before letting go.
    """

    def __init__(self) -> None:
        self.is_over = False
        self._pid = os.getpid()
        self._lock = threading.RLock()

    @contextlib.contextmanager
    def begun(self, function: Callable[[], object]) -> Iterator[None]:
        """Holds the lock around a use of the iterator; ``function`` ends it, if it was told to end meanwhile."""
        with self.lock:
            try:
                yield
            finally:
                if self.is_over:
                    function()

    @property
    def lock(self) -> threading.RLock:
        """The lock itself."""
        if self._pid != os.getpid():  # forked off: it may be held by a thread that is not here
            self._pid = os.getpid()
            self._lock = threading.RLock()
        return self._lock

    def check(self) -> None:
        """Raises WorkerError if the iterator was told to end."""
        if self.is_over:
            raise WorkerError("the loader was closed while a batch was waited for; iterate again to go on")

    def end(self, function: Callable[[], object], hurry: Callable[[], object] = lambda: None) -> bool:
        """Ends the iterator: at once, or by the thread that uses it.

        Args:
            function: Ends it.
            hurry: Called if the thread that uses it takes long: ends what may hold it up.

        Returns:
            True if it has ended; False if that is left to another thread, or to this one further up its stack.
        """
        if sys is None or sys.is_finalizing():  # see Note [At the interpreter's end]
            return True
        self.is_over = True
        lock = self.lock
        if lock._is_owned():  # type: ignore[attr-defined]
            return False
        if not lock.acquire(timeout=PATIENCE_S):
            hurry()
            if not lock.acquire(timeout=PATIENCE_S):
                return False
        try:
            function()
        finally:
            lock.release()
        return True
