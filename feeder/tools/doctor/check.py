"""All findings on a training script; it is read, never run."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from feeder.tools.doctor.finding import Finding
from feeder.tools.doctor.names import Names
from feeder.tools.doctor.rules import RULES, check
from feeder.tools.doctor.script import Script
from feeder.tools.doctor.source import ALL, Source, read_source

__all__ = ["check_script", "check_source"]


def check_script(path: str) -> list[Finding]:
    """Looks for the classic mistakes in a script or notebook.

    Args:
        path: A ``.py`` or ``.ipynb`` file.

    Returns:
        The findings, by line.

    Raises:
        SourceError: if it can't be read, or is no Python.
    """
    return check_source(read_source(path))


def check_source(source: Source) -> list[Finding]:
    """The same of a script that has been read."""
    script = Script(source.tree, Names(source.tree), ast.unparse(source.tree))
    return [*_unknown_rules(source), *check(source, script)]


def _unknown_rules(source: Source) -> Iterator[Finding]:
    for line, rules in sorted(source.ignores.items()):
        for rule in sorted(rules - RULES.keys() - {ALL}):
            yield Finding(
                name="ignore",
                level="note",
                found=f"there is no rule {rule!r}",
                why="This comment silences nothing.",
                remedy=f"one of {', '.join(RULES)}",
                file=source.path,
                line=line,
                excerpt=source.excerpt(line),
                place=source.place(line),
            )
