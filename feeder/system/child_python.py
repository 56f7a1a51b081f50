"""Python processes that find the modules of this one.

Note [The current folder]
    A Python that is started with ``-c`` or ``-m`` looks for modules in the current folder first: a ``json.py`` there
    would be run in place of the standard library's. So a process imports what it needs without that folder, and gets
    this one's whole path for the user's own modules after that. feeder's own place comes last, as it may be found by
    that folder alone.
"""

from __future__ import annotations

import os
import sys


def child_python(code: str, *arguments: str) -> list[str]:
    """Returns the command of a Python process.

    Args:
        code: What it runs; see Note [The current folder]. ``sys`` is imported, and ``path`` is this process's path.
        arguments: ``sys.argv[1:]`` there.
    """
    path = [each for each in sys.path if isinstance(each, str)]
    here = os.path.realpath(os.curdir)
    without = [each for each in path if os.path.realpath(each) != here]
    without.append(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
    return [sys.executable, "-c", f"import sys\nsys.path[:] = {without!r}\npath = {path!r}\n{code}", *arguments]
