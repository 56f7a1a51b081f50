"""The check of a training script, which is read and never run."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from feeder.tools.doctor.finding import Finding
from feeder.tools.doctor.loader_rules import LoaderRules
from feeder.tools.doctor.rules import RULES, RuleFindings
from feeder.tools.doctor.script import Script
from feeder.tools.doctor.script_file import ALL, ScriptSource, read_source
from feeder.tools.doctor.script_names import Names
from feeder.tools.doctor.step_rules import StepRules

__all__ = ["check_script", "check_source"]


def check_script(path: str) -> list[Finding]:
    """Looks for the classic mistakes in a script or notebook.

    Args:
        path: A ``.py`` or ``.ipynb`` file.

    Returns:
        The findings, by line.

    Raises:
        SourceError: if it can't be read, or is not Python.
    """
    return check_source(read_source(path))


def check_source(source: ScriptSource) -> list[Finding]:
    """Looks for the classic mistakes in a script that has been read."""
    findings = RuleFindings(source, Script(source.tree, Names(source.tree), ast.unparse(source.tree)))
    LoaderRules(findings).check()
    StepRules(findings).check()
    return [*_unknown_rules(source), *findings.unsilenced()]


def _unknown_rules(source: ScriptSource) -> Iterator[Finding]:
    for line, rules in sorted(source.ignores.items()):
        for rule in sorted(rules - RULES.keys() - {ALL}):
            yield Finding(
                name="ignore",
                level="note",
                found=f"there is no rule {rule!r}",
                why="The comment silences nothing.",
                remedy=f"one of {', '.join(RULES)}",
                file=source.path,
                line=line,
                excerpt=source.excerpt(line),
                place=source.place(line),
            )
