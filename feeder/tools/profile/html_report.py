"""A profile as one HTML page."""

from __future__ import annotations

import time
from collections.abc import Sequence

import feeder
from feeder.tools.doctor.finding import Finding
from feeder.tools.html import charts
from feeder.tools.html import page as report
from feeder.tools.profile.analysis import Analysis
from feeder.tools.profile.text_report import loader_rows
from feeder.tools.profile.times import LoaderTimes

__all__ = ["render_page"]

_POINTS = 80


def render_page(
    command: str,
    found: Analysis,
    findings: Sequence[Finding],
    others: Sequence[Analysis],
    gpu_absent: str | None,
    code: int,
) -> str:
    """Returns the page.

    Args:
        command: The script and its arguments.
        found: Verdict on the process that matters most.
        findings: The doctor's findings on the script.
        others: Verdicts on further processes.
        gpu_absent: Reason for the lack of GPU figures; None if there are some.
        code: The script's exit code.
    """
    tone: report.Tone = "bad" if found.bound == "input" else "good" if found.bound == "compute" else "note"
    said = f"{found.stage[:1].upper()}{found.stage[1:]}." if found.stage else ""
    top = [report.callout(found.headline(), said, tone)]
    if code:
        top.append(report.callout(f"The script ended with exit code {code}.", "The figures are of the run until then."))

    sections = [_advice(found, findings), _where(found), _loaders(found), _machine(found, gpu_absent)]
    if others:
        rows = [["process", "verdict"], *([other.process.name(), other.headline()] for other in others)]
        sections.append(report.Section("Other processes", [report.table(rows)]))
    length_s = _s(found.process.ended_ns - found.process.started_ns)
    lead = f"{command}: {report.number(length_s)} s, {time.strftime('%Y-%m-%d %H:%M')}"
    return report.page("feeder profile", sections, lead=lead, top=top, foot=f"feeder {feeder.__version__}")


def _advice(found: Analysis, findings: Sequence[Finding]) -> report.Section:
    parts = []
    if found.advice:
        rows: list[Sequence[object]] = [["what", "expected rate", "why"]]
        rows += [[advice.title, advice.expected(), advice.text] for advice in found.advice]
        parts.append(report.table(rows, "By expected gain, computed from the measurements"))
    elif found.bound == "compute":
        parts.append(report.text("The loader keeps up with the step: nothing to gain from faster loading."))
    if findings:
        rows = [["line", "rule", "what", "rewrite"]]
        for finding in findings:
            rows.append([finding.place or str(finding.line), finding.name, finding.found, finding.remedy])
        caption = "In the script, as feeder doctor reads it; their cost was not measured"
        parts.append(report.table(rows, caption))
    if not parts:
        parts.append(report.text("Nothing."))
    return report.Section("What to do", parts)


def _where(found: Analysis) -> report.Section:
    parts = [charts.stacked_bar("The whole run", [charts.Stack("run", found.parts_s)], unit="s")]
    start = found.process.started_ns
    spans = []
    for times in found.loaders:
        track = times.record.place
        kind = "training step" if times.trains else "evaluation"
        for batch, after in times.record.steps():
            spans.append(charts.Interval(track, _s(batch.asked_ns - start), _s(batch.got_ns - start), "wait for data"))
            if after is not None:
                spans.append(charts.Interval(track, _s(batch.got_ns - start), _s(after.asked_ns - start), kind))
    parts.append(charts.timeline("Loaders over time", spans))
    return report.Section("Where the time goes", parts)


def _loaders(found: Analysis) -> report.Section:
    parts = [report.table(loader_rows(found.loaders), "Means over all batches but the first of the run")]
    if found.main is not None and found.main.batches > 1:
        parts.append(_waits(found.main, found.process.started_ns))
    return report.Section("Loaders", parts)


def _waits(times: LoaderTimes, start_ns: int) -> report.Html:
    batches = [batch for batch in times.record.batches if batch.images][1:]
    size = -(-len(batches) // _POINTS)
    points = []
    for at in range(0, len(batches), size):
        group = batches[at : at + size]
        waits = sorted((batch.got_ns - batch.asked_ns) / 1e6 for batch in group)
        points.append(
            charts.Point(_s(group[0].asked_ns - start_ns), waits[len(waits) // 2], low=waits[0], high=waits[-1])
        )
    note = f"median, least and most of {size} batches" if size > 1 else ""
    lines = [charts.Line(times.record.place, points)]
    return charts.line_chart("Wait for each batch", lines, x_label="seconds", y_label="ms", note=note)


def _machine(found: Analysis, gpu_absent: str | None) -> report.Section:
    start = found.process.started_ns
    samples = found.process.samples
    samples = samples[:: -(-len(samples) // _POINTS) or 1]
    parts = []

    def chart(title: str, unit: str, lines: dict[str, list[tuple[float, float | None]]], scale: float = 1.0) -> None:
        drawn = {name: [charts.Point(x, y * scale) for x, y in line if y is not None] for name, line in lines.items()}
        shown = [charts.Line(name, points) for name, points in drawn.items() if points]
        if shown:
            parts.append(charts.line_chart(title, shown, x_label="seconds", y_label=unit))

    own = [(_s(sample.at_ns - start), sample.own_cores) for sample in samples]
    children = [(_s(sample.at_ns - start), sample.children_cores) for sample in samples]
    chart("Processors", "cores busy", {"training process": [*own], "its workers": [*children]})

    readings = [(_s(s.at_ns - start), gpu, found) for s in samples for gpu, found in s.gpus.items()]
    indexes = sorted({gpu for _, gpu, _ in readings})
    if not indexes:
        parts.append(report.text(f"GPU: not measured: {gpu_absent or 'there is none'}."))
    for title, unit, scale, name in (
        ("GPU utilisation", "%", 100.0, "busy"),
        ("GPU memory", "GiB", 2.0**-30, "memory_bytes"),
        ("PCIe to the GPU", "MB/s", 1e-6, "received_bytes_s"),
        ("PCIe from the GPU", "MB/s", 1e-6, "sent_bytes_s"),
    ):
        lines = {f"GPU {gpu}": [(x, getattr(r, name)) for x, of, r in readings if of == gpu] for gpu in indexes}
        chart(title, unit, lines, scale)
    return report.Section("The machine during the run", parts)


def _s(time_ns: int) -> float:
    return time_ns / 1e9
