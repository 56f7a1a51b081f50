"""Docstrings open with their subject or a verb."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tests.support import ROOT

_FOLDERS = ("bench", "examples", "feeder", "kernels", "scripts", "tests")
_QUESTIONS = {"What", "Whether", "How", "Where", "Which", "Why", "When"}


def _docstrings() -> Iterator[tuple[str, str]]:
    """(file and line, docstring) of everything that has one."""
    for path in sorted(path for folder in _FOLDERS for path in (ROOT / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                docstring = ast.get_docstring(node)
                if docstring:
                    yield f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 1)}", docstring


def test_no_docstring_opens_with_a_question() -> None:
    found = dict(_docstrings())
    assert len(found) > 1000
    assert [place for place, docstring in found.items() if docstring.split()[0] in _QUESTIONS] == []


def test_nothing_stops_the_clusters_of_others() -> None:
    """By ``ray stop``, which ends every cluster of the user's on a machine."""
    words = "ray", "stop"
    paths = (
        path for folder in _FOLDERS for path in (ROOT / folder).rglob("*") if path.suffix in {".py", ".sh", ".yml"}
    )
    for path in paths:
        text = path.read_text().replace('", "', " ")  # as a list of arguments, too
        assert " ".join(words) not in text or path.name == "test_words.py", path
