"""Ending an iterator that another thread waits in, or this one under a signal's handler.

Note [Closing]
    Descriptors that are closed under someone's hands may be another file's by the time they are written to. So nothing
    is ended while a thread is in the iterator: it is told, sees it within a second, and ends everything on its way
    out. It learns so by an error, and not by an end of the epoch that never came.

Note [At the interpreter's end]
    The last objects go while modules are taken apart, and a finalizer then finds None where a module's name was; those
    of a script's top level are among them once anything keeps its ``__main__``, as dill does. By then ``atexit`` has
    ended the workers, and the system takes memory and descriptors back. So a ``__del__`` does nothing while the
    interpreter ends, and has the function that says so as a default argument.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator

from feeder.errors import WorkerError

__all__ = ["Use"]

PATIENCE_S = 5.0


class Use:
    """Of an iterator, by one thread at a time.

    Attributes:
        is_over: Whether the iterator was told to end. Whoever uses it then ends it before letting go.
    """

    def __init__(self) -> None:
        self.is_over = False
        self._pid, self._lock = os.getpid(), threading.RLock()

    @contextlib.contextmanager
    def begun(self, function: Callable[[], object]) -> Iterator[None]:
        """Around what uses the iterator; ``function`` ends it, if it was told to end meanwhile."""
        with self.lock:
            try:
                yield
            finally:
                if self.is_over:
                    function()

    @property
    def lock(self) -> threading.RLock:
        """Held by who uses the iterator."""
        if self._pid != os.getpid():  # forked off: it may be a thread's that is not here
            self._pid, self._lock = os.getpid(), threading.RLock()
        return self._lock

    def check(self) -> None:
        """Raises WorkerError if the iterator was told to end."""
        if self.is_over:
            raise WorkerError("the loader was closed while a batch was waited for; iterate again to go on")

    def end(self, function: Callable[[], object], hurry: Callable[[], object] = lambda: None) -> bool:
        """Has the iterator ended: at once, or by who uses it.

        Args:
            function: What ends it.
            hurry: Called if who uses it is long in coming: ends what may hold it up.

        Returns:
            Whether it has ended, and is not left to a thread that does not come, or to this one, further up.
        """
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
