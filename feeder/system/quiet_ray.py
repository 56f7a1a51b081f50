"""Ray without its daemons' messages on this process's standard output."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

__all__ = ["quiet_ray"]

_SETTING = "RAY_DEDUP_LOGS_SKIP_REGEX"  # read when Ray is imported; log_to_driver=False leaves these messages


@contextlib.contextmanager
def quiet_ray() -> Iterator[None]:
    """Has Ray print no messages of its cluster, such as a node's death, if the block is the first to import it.

    A program that has imported Ray before, or has the setting already, keeps its own way.
    """
    if _SETTING in os.environ:
        yield
        return
    os.environ[_SETTING] = "."
    try:
        yield
    finally:
        del os.environ[_SETTING]
