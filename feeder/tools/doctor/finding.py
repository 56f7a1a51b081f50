"""A finding of the doctor, and findings as text and JSON."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from feeder.tools.terminal import wrap

Level = Literal["ok", "note", "warning", "problem"]
LEVELS: tuple[Level, ...] = ("ok", "note", "warning", "problem")
# The reason shared by rules on a script and by waits seen in a run.
WAITS = "The CPU stops until the GPU has done all its work, and then the GPU is idle until the CPU gives it more."
_COLORS = {"problem": 31, "warning": 33, "note": 36, "ok": 32}  # red, yellow, cyan, green


@dataclass(frozen=True)
class Finding:
    """One finding.

    Args:
        name: The subject: a word or two for the machine, the rule's name for a script.
        level: "ok"; "note", worth knowing; "warning", costs speed; "problem", fails or trains wrongly.
        found: The finding, one sentence or less.
        why: The reason why it matters.
        remedy: The fix.
        file: The script; "" for a finding on the machine.
        line: Line in the script, from 1; 0 for none.
        column: Column in the script, from 1; 0 for none.
        excerpt: That line of code.
    """

    name: str
    level: Level
    found: str
    why: str = ""
    remedy: str = ""
    file: str = ""
    line: int = 0
    column: int = 0
    excerpt: str = ""

    def where(self) -> str:
        """Returns the place as text, such as "train.py:12"."""
        return f"{self.file}:{self.line}" if self.line else self.file


def counts(findings: Iterable[Finding]) -> dict[str, int]:
    """Returns the number of findings of each level."""
    found = [finding.level for finding in findings]
    return {level: found.count(level) for level in LEVELS}


def to_json(findings: Sequence[Finding]) -> dict[str, Any]:
    """Returns all findings as JSON values, without the fields that do not apply."""
    listed = [{key: value for key, value in asdict(f).items() if value not in ("", 0)} for f in findings]
    return {"counts": counts(findings), "findings": listed}


def render(findings: Sequence[Finding], width: int = 80) -> str:
    """Returns the findings as text, with each reason given once, and each fix in one line that can be pasted."""
    machine = [finding for finding in findings if not finding.file]
    script = [finding for finding in findings if finding.file]
    column = max((len(finding.name) for finding in machine), default=0)
    lines: list[str] = []
    for finding in machine:
        head = f"{finding.level:<8} {finding.name:<{column}}  "
        lines += wrap(finding.found, width, first=head, indent=" " * len(head))
        lines += _advice(finding, " " * len(head), width)
    said: set[str] = set()
    for finding in script:
        if lines:
            lines.append("")
        said_of = f"{finding.level}: {finding.found} [{finding.name}]"
        lines += wrap(said_of, width, first=f"{finding.where()}: ", indent="  ")
        if finding.excerpt:
            lines.append(_cut("    | " + finding.excerpt.strip(), width))
        lines += _advice(replace(finding, why="") if finding.why in said else finding, "    ", width)
        said.add(finding.why)
    return "\n".join(lines)


def colored(text: str) -> str:
    """Returns the text of :func:`render` with its levels in the colors of a terminal."""
    for level, color in _COLORS.items():
        text = re.sub(rf"^(.+?:\d+:\s+)?{level}\b", f"\\1\x1b[{color}m{level}\x1b[0m", text, flags=re.MULTILINE)
    return text


def _advice(finding: Finding, indent: str, width: int) -> list[str]:
    if finding.level == "ok":
        return []
    lines = wrap(finding.why, width, first=f"{indent}why: ", indent=indent + "     ") if finding.why else []
    return [*lines, f"{indent}fix: {finding.remedy}"] if finding.remedy else lines


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 3] + "..."
