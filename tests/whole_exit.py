"""Runs a script, and ends with status 3 if it leaves threads of torch.distributed behind.

At the interpreter's end gloo's threads drop tensors of Python's, for which they need the interpreter: now and then the
process aborts, or never ends.

python tests/whole_exit.py SCRIPT ARGUMENTS...
"""

from __future__ import annotations

import atexit
import os
import runpy
import sys
from pathlib import Path

__all__: list[str] = []


def _check() -> None:
    names = [path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm")]
    left = [name for name in names if "gloo" in name]
    if left:
        sys.stdout.flush()
        print(f"left at exit: {left}", file=sys.stderr, flush=True)
        os._exit(3)


if __name__ == "__main__":
    atexit.register(_check)
    del sys.argv[0]
    sys.path[0] = os.path.dirname(sys.argv[0])
    runpy.run_path(sys.argv[0], run_name="__main__")
