"""Limits of free-threaded Pythons."""

from __future__ import annotations

import importlib.util
import sysconfig

import pytest

__all__ = ["FREE_THREADED", "need"]

FREE_THREADED = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))


def need(*packages: str) -> None:
    """Skips a test on a free-threaded Python without these packages of the extra dev-gil; others must have them."""
    absent = [name for name in packages if importlib.util.find_spec(name) is None]
    if absent and FREE_THREADED:
        pytest.skip(f"free-threaded Pythons have no {' and no '.join(absent)}")
