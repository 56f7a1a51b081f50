"""Warnings, located in the code that called this package."""

from __future__ import annotations

import sys
import warnings

from feeder.system.text import printable


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """Issues a warning at the innermost frame outside this package.

    Args:
        message: Any text; characters that are not printable are escaped.
        category: The warning's class.
    """
    frame, level = sys._getframe(), 1
    while frame.f_back is not None and frame.f_globals["__name__"].partition(".")[0] == __name__.partition(".")[0]:
        frame, level = frame.f_back, level + 1
    warnings.warn(printable(message), category, stacklevel=level)  # noqa: TID251
