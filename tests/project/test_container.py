"""The Dockerfile, as far as it can be held without building it: what it names is there."""

from __future__ import annotations

import fnmatch
import re
import shlex
from typing import Any

import pytest

from tests.support import ROOT
from tests.support.requirements import pyproject

DOCKERFILE = re.sub(r"\\\n", "", re.sub(r"^#.*\n", "", (ROOT / "Dockerfile").read_text(), flags=re.MULTILINE))


@pytest.fixture(scope="module")
def project() -> dict[str, Any]:
    return pyproject()


def pip_arguments() -> list[str]:
    """Arguments of the Dockerfile's calls of pip, options aside."""
    calls = re.findall(r"\bpip (?:install|wheel)((?: \"[^\"]*\"| [^\s&]+)+)", DOCKERFILE)
    found = [word for call in calls for word in shlex.split(call)]
    return [
        word
        for before, word in zip(["", *found], found, strict=False)
        if not word.startswith("-") and before not in ("--wheel-dir", "--no-binary")
    ]


def copied() -> list[str]:
    """Paths that the Dockerfile copies from the checkout."""
    lines = re.findall(r"^COPY (?!--from)(.*)", DOCKERFILE, re.MULTILINE)
    return [path for line in lines for path in line.split()[:-1]]


def test_extras_and_versions_are_known(project: dict[str, Any]) -> None:
    pinned = set(re.findall(r"^([\w-]+)==", (ROOT / "constraints.txt").read_text(), re.MULTILINE))
    named = {word for word in pip_arguments() if re.fullmatch(r"[\w-]+", word)}
    assert {"torch", "pillow-simd"} <= named
    assert named <= pinned
    extras = {extra for word in pip_arguments() for extra in re.findall(r"\w[\w-]*", word.partition("[")[2])}
    assert "gpu" in extras
    assert extras <= set(project["project"]["optional-dependencies"])


def test_all_that_a_build_needs_is_copied_and_let_through(project: dict[str, Any]) -> None:
    meta = project["project"]
    needed = {
        "pyproject.toml",
        "CMakeLists.txt",
        meta["readme"],
        *(path.partition("/")[0] for path in meta["license-files"]),
    }
    needed |= {*project["tool"]["scikit-build"]["wheel"]["packages"]}
    needed |= set(re.findall(r"add_subdirectory\((\w+)\)", (ROOT / "CMakeLists.txt").read_text()))
    assert needed <= set(copied())
    rules = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and line[0] != "#"]
    for path in copied():
        assert (ROOT / path).exists()
        # The last rule that matches counts.
        matching = [rule for rule in rules if fnmatch.fnmatch(path, rule.lstrip("!"))]
        assert matching[-1].startswith("!"), f".dockerignore keeps {path} out"
