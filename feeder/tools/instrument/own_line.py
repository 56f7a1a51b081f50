"""The line of a script's own code that led to a call."""

from __future__ import annotations

import os
import traceback
from types import FrameType

import feeder

__all__ = ["own_line"]

_LIBRARIES = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")
_PYTHON = os.path.dirname(os.__file__)
_FEEDER = os.path.dirname(os.path.abspath(feeder.__file__))


def own_line(frame: FrameType | None) -> tuple[str, int] | None:
    """Returns file and line of the innermost frame that is not Python's, a library's or feeder's; None without one."""
    for at, line in traceback.walk_stack(frame):
        file = at.f_code.co_filename
        if not file.startswith(("<", _PYTHON, _FEEDER)) and not any(part in file for part in _LIBRARIES):
            return file, line
    return None
