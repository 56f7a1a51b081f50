"""A profile as text, for the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from feeder.tools.doctor.finding import Finding
from feeder.tools.profile.analysis import Analysis
from feeder.tools.profile.times import LoaderTimes
from feeder.tools.terminal import table, wrap

__all__ = ["loader_rows", "render", "script_lines"]


def render(
    found: Analysis, findings: Sequence[Finding], others: Sequence[Analysis], gpu_absent: str | None, width: int = 80
) -> str:
    """Returns the summary.

    Args:
        found: Verdict on the process that matters most.
        findings: The doctor's findings on the script.
        others: Verdicts on further processes.
        gpu_absent: Reason for the lack of GPU figures; None if there are some.
        width: Columns.
    """
    lines = [*wrap(found.headline(), width), ""]
    if found.main is not None and found.main.batches:
        lines += [table(loader_rows(found.loaders)), ""]
        if found.stage:
            lines += wrap(f"Making batches: {found.stage}.", width)
        lines += wrap(_cpu(found), width)
        lines += wrap(_gpu(found, gpu_absent), width)
    for other in others:
        rank = other.process.rank
        name = f"rank {rank}" if rank is not None else f"process {other.process.pid}"
        lines += wrap(f"{name}: {other.headline()}", width)
    if found.advice or findings:
        lines += ["", "What to do, by expected gain:"]
    for number, advice in enumerate(found.advice, 1):
        lines += wrap(f"{number}. {advice.title} ({advice.expected()})", width, indent="   ")
        lines += wrap(advice.text, width, first="   ", indent="   ")
    if findings:
        lines += wrap("In the script, gain not measured (feeder doctor says more):", width)
        for line in script_lines(findings):
            lines += wrap(f"- {line}", width, indent="  ")
    return "\n".join(lines).rstrip()


def loader_rows(loaders: Sequence[LoaderTimes]) -> list[list[str]]:
    """Returns a table of the loaders: the heading, then a row for each."""
    rows = [["loader", "used for", "workers", "batches", "wait ms", "step ms", "waits"]]
    for times in loaders:
        n = times.batches or 1
        kind = f"{times.record.kind}, {times.record.place}"
        rows.append(
            [
                kind,
                "training" if times.trains else "evaluation",
                str(times.record.workers),
                f"{times.batches:,}",
                f"{1000 * times.wait_s / n:,.1f}",
                f"{1000 * times.step_s / n:,.1f}",
                f"{times.wait_share:.0%}",
            ]
        )
    return rows


def script_lines(findings: Sequence[Finding]) -> list[str]:
    """Returns the doctor's findings, one line for each rule."""
    by_rule: dict[str, list[Finding]] = {}
    for finding in findings:
        if finding.level != "ok":
            by_rule.setdefault(finding.name, []).append(finding)
    lines = []
    for name, group in by_rule.items():
        places = ", ".join(dict.fromkeys(str(finding.line) for finding in group))
        what = group[0].found if len(group) == 1 else f"{group[0].found}, and {len(group) - 1} more"
        lines.append(f"line {places}: {what} [{name}]")
    return lines


def _cpu(found: Analysis) -> str:
    if found.own_cores is None:
        return ""
    return f"CPU: {found.own_cores:.1f} cores in the training process, {found.children_cores:.1f} in its workers."


def _gpu(found: Analysis, absent: str | None) -> str:
    if found.gpu_busy is None:
        return f"GPU: not measured: {absent}." if absent else "GPU: its utilisation can't be read."
    return f"GPU: busy {found.gpu_busy:.0%} of the time."
