"""A profile as text, for the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from feeder.tools.profile.analysis import Analysis
from feeder.tools.profile.times import LoaderTimes
from feeder.tools.terminal import table, wrap

__all__ = ["render"]


def render(found: Analysis, gpu_absent: str | None, width: int = 80) -> str:
    """Returns the summary.

    Args:
        found: The verdict.
        gpu_absent: Reason for the lack of GPU figures; None if there are some.
        width: Columns.
    """
    lines = [*wrap(found.headline(), width), ""]
    if found.main is not None and found.main.batches:
        lines += [table(_loader_rows(found.loaders)), ""]
        if found.stage:
            lines += wrap(f"Making batches: {found.stage}.", width)
        if found.load.own_cores is not None:
            own = f"{found.load.own_cores:.1f} cores in the training process"
            lines += wrap(f"CPU: {own}, {found.load.children_cores:.1f} in its workers.", width)
        lines += wrap(f"GPU: {_gpu(found, gpu_absent)}.", width)

    if found.advice:
        lines += ["", "What to do, by expected gain:"]
    for number, advice in enumerate(found.advice, 1):
        lines += wrap(f"{number}. {advice.title} ({advice.expected()})", width, indent="   ")
        lines += wrap(advice.text, width, first="   ", indent="   ")
    return "\n".join(lines).rstrip()


def _loader_rows(loaders: Sequence[LoaderTimes]) -> list[list[str]]:
    """Returns a table of the loaders: the heading, then a row for each."""
    rows = [["loader", "used for", "workers", "batches", "wait ms", "step ms", "waits"]]
    for times in loaders:
        rows.append(
            [
                f"{times.record.kind}, {times.record.place}",
                "training" if times.trains else "evaluation",
                str(times.record.workers),
                f"{times.batches:,}",
                f"{1000 * times.wait_a_batch_s:,.1f}",
                f"{1000 * times.step_a_batch_s:,.1f}",
                f"{times.wait_share:.0%}",
            ]
        )
    return rows


def _gpu(found: Analysis, absent: str | None) -> str:
    if found.load.gpu_busy is None:
        return f"not measured: {absent}" if absent else "its utilisation can't be read"
    return f"busy {found.load.gpu_busy:.0%} of the time"
