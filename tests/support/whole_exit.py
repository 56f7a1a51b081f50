"""Runs a script, and ends with status 3 if it leaves threads of torch.distributed behind.

At the interpreter's end gloo's threads drop tensors of Python's, for which they need the interpreter: now and then the
process aborts, or never ends.

python tests/support/whole_exit.py SCRIPT ARGUMENTS...
"""

from __future__ import annotations

import atexit
import contextlib
import os
import runpy
import sys
import time

__all__ = ["left"]

_LIMIT_S = 30.0


def left() -> list[str]:
    """Names of gloo's threads that are there and stay: the kernel lists one for a moment after it was waited for."""
    end = time.monotonic() + _LIMIT_S
    while (found := [name for name in _threads() if "gloo" in name]) and time.monotonic() < end:
        time.sleep(0.01)
    return found


def _threads() -> list[str]:
    names = []
    for number in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError), open(f"/proc/self/task/{number}/comm") as file:  # else it has ended
            names.append(file.read().strip())
    return names


def _check() -> None:
    if found := left():
        sys.stdout.flush()
        print(f"left at exit: {found}", file=sys.stderr, flush=True)
        os._exit(3)


if __name__ == "__main__":
    atexit.register(_check)
    del sys.argv[0]
    sys.path[0] = os.path.dirname(sys.argv[0])
    runpy.run_path(sys.argv[0], run_name="__main__")
