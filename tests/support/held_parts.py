"""An op that holds the parts of a server, or of a loader's workers, as long as a test likes."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Any

from tests.support.processes import wait_until

__all__ = ["HeldParts", "held"]

_VARIABLE = "FEEDER_TEST_HELD_PARTS"


def held(image: Any) -> Any:
    """An op on images, which waits in processes that :attr:`HeldParts.environment` is given to."""
    path = os.environ.get(_VARIABLE)
    if path is not None:
        with open(path, "ab", buffering=0) as file:
            file.write(b".")
            fcntl.flock(file, fcntl.LOCK_SH)
    return image


class HeldParts:
    """Holds the parts of a process and its children, once it is told to.

    Args:
        path: A file for it.

    Attributes:
        environment: Variables for the process.
        path: The file.
    """

    def __init__(self, path: Path) -> None:
        self.environment = {_VARIABLE: str(path)}
        self.path = path
        self._file = open(path, "wb")

    def hold(self) -> None:
        """Holds every part from now on."""
        fcntl.flock(self._file, fcntl.LOCK_EX)
        self._before = self.images()

    def images(self) -> int:
        """Number of images that were begun."""
        return self.path.stat().st_size

    def wait(self, images: int = 1) -> None:
        """Returns once so many images were begun that are held."""
        wait_until(lambda: self.images() >= self._before + images)

    def release(self) -> None:
        """Lets all of them go on."""
        fcntl.flock(self._file, fcntl.LOCK_UN)

    def close(self) -> None:
        self._file.close()
