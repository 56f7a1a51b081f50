"""Where a warning belongs: in the code that called this package."""

from __future__ import annotations

import sys

__all__ = ["callers_level"]


def callers_level() -> int:
    """The ``stacklevel`` of the first frame that is not this package's, for a warning by the calling function."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_globals["__name__"].partition(".")[0] == __package__:
        frame, level = frame.f_back, level + 1
    return level
