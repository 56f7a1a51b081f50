"""For tests whose subject is measured time: others may take the machine away for seconds."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import ParamSpec

__all__ = ["undisturbed"]

_TRIES = 3
_Arguments = ParamSpec("_Arguments")


def undisturbed(test: Callable[_Arguments, None]) -> Callable[_Arguments, None]:
    """The test, which passes if it does so once in three times: what is wrong by itself is so each time."""

    @functools.wraps(test)
    def tried(*arguments: _Arguments.args, **options: _Arguments.kwargs) -> None:
        for _ in range(_TRIES - 1):
            with contextlib.suppress(AssertionError):
                return test(*arguments, **options)
        return test(*arguments, **options)

    return tried
