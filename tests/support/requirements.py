"""Requirements of pyproject.toml, and the versions that constraints.txt pins."""

from __future__ import annotations

import re
import sys
from typing import Any

from tests.support import ROOT

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["normalized", "pins", "pyproject", "toml"]


def toml(text: str) -> dict[str, Any]:
    """Parses TOML."""
    return tomllib.loads(text)


def pyproject() -> dict[str, Any]:
    """The contents of pyproject.toml."""
    return toml((ROOT / "pyproject.toml").read_text())


def normalized(name: str) -> str:
    """Returns a distribution's name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def pins() -> dict[str, set[str]]:
    """The versions of each distribution in constraints.txt; more than one where a marker tells them apart."""
    found: dict[str, set[str]] = {}
    for line in (ROOT / "constraints.txt").read_text().splitlines():
        if line and not line.startswith("#"):
            match = re.fullmatch(r"([A-Za-z0-9._-]+)==([^\s;]+)(; python_version (<|>=) \"3\.11\")?", line)
            assert match, f"not an exact pin: {line!r}"
            found.setdefault(normalized(match[1]), set()).add(match[2])
    return found
