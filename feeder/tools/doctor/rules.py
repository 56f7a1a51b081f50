"""The rules of ``feeder doctor`` for scripts, and the findings that they make."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from feeder.tools.doctor.finding import Finding, Level
from feeder.tools.doctor.script import Script
from feeder.tools.doctor.script_file import ALL, ScriptSource

__all__ = ["NO_MIXED_PRECISION", "RULES", "RuleFindings"]

RULES = {
    "num-workers": "the loader has no workers",
    "feeder-path": "a feeder dataset without feeder's fast path",
    "pin-memory": "the loader's batches are not page-locked",
    "blocking-copy": "a copy to the GPU that the loop waits for",
    "cpu-then-move": "a tensor made on the CPU and then moved",
    "sync-item": "a number read back from the GPU in every step",
    "sync-cpu": "a tensor copied back from the GPU in every step",
    "sync-print": "a tensor printed or logged in every step",
    "data-parallel": "DataParallel",
    "autocast": "no mixed precision",
    "zero-grad": "gradients never cleared",
    "set-epoch": "a DistributedSampler that has the same order in every epoch",
    "file-in-loop": "torch.load or torch.save in every step",
    "empty-cache": "torch.cuda.empty_cache() in every step",
}
# The reason of the rule "autocast".
NO_MIXED_PRECISION = (
    "In float32 the matrix units of a GPU run at a fraction of their rate, and activations take twice the memory."
)


class RuleFindings:
    """The findings of all rules on one script.

    Args:
        source: The script's lines, and the rules that its comments silence.
        script: The script.
    """

    def __init__(self, source: ScriptSource, script: Script) -> None:
        self.source = source
        self.script = script
        self._found: dict[tuple[str, int, int], tuple[Finding, ast.AST]] = {}

    def add(self, rule: str, node: ast.AST, why: str, remedy: str, level: Level = "warning", what: str = "") -> None:
        """Adds a finding, once for each rule and place.

        Args:
            rule: A name of :data:`RULES`.
            node: The code that it is about.
            why: Why it matters.
            remedy: The fix.
            level: See :class:`Finding`.
            what: What was found; "" for the rule's text in :data:`RULES`.
        """
        line, column = getattr(node, "lineno", 1), getattr(node, "col_offset", 0)
        finding = Finding(
            name=rule,
            level=level,
            found=what or RULES[rule],
            why=why,
            remedy=remedy,
            file=self.source.path,
            line=line,
            column=column + 1,
            excerpt=self.source.excerpt(line),
            place=self.source.place(line),
        )
        self._found.setdefault((rule, line, column), (finding, node))

    def unsilenced(self) -> Iterator[Finding]:
        """Yields the findings by line, without those that the script's comments silence."""
        for key in sorted(self._found, key=lambda key: (key[1], key[2], key[0])):
            finding, node = self._found[key]
            last = finding.line if isinstance(node, ast.stmt) else getattr(node, "end_lineno", None) or finding.line
            statement: ast.AST = node
            while not isinstance(statement, ast.stmt) and statement in self.script.parents:
                statement = self.script.parents[statement]
            lines = {getattr(statement, "lineno", finding.line), *range(finding.line, last + 1)}
            silenced = {rule for line in lines for rule in self.source.ignores.get(line, ())}
            if not silenced & {finding.name, ALL}:
                yield finding
