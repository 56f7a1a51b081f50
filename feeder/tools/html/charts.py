"""Charts for a :mod:`feeder.tools.html.page` page, as inline SVG.

Widths are percentages of the page's, so text keeps its size from a phone to a wide screen. Names and values are text
beside the shapes; series differ by marker, dash or hatching as well as by colour.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from feeder.errors import ArgumentError
from feeder.tools.html.page import Html, escape, number, table
from feeder.tools.html.svg import (
    COLOURS,
    axis_end,
    block,
    block_swatch,
    drawing,
    figure,
    legend,
    letter,
    measured_ticks,
    nothing,
    percent,
    tick_label,
    ticks,
)

__all__ = ["Bar", "Line", "Point", "Stack", "bar_chart", "line_chart", "stacked_bar"]

_DASHES = ("", "7 3", "2 3", "9 3 2 3")
_MARKERS = (  # about the origin, in pixels
    '<circle class="mark" r="5"',
    '<rect class="mark" x="-4.5" y="-4.5" width="9" height="9"',
    '<path class="mark" d="M0-6 6 5H-6z"',
    '<path class="mark" d="M0-6 6 0 0 6-6 0z"',
)


@dataclass(frozen=True)
class Point:
    """A measurement: its place, the median, and the spread if known."""

    x: float
    y: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Line:
    """A series of a :func:`line_chart`; ``reference`` draws it in the background, as an ideal."""

    label: str
    points: Sequence[Point]
    reference: bool = False


@dataclass(frozen=True)
class Bar:
    """A bar of a :func:`bar_chart`: its length, the spread if known, and a remark."""

    label: str
    value: float
    low: float | None = None
    high: float | None = None
    note: str = ""


@dataclass(frozen=True)
class Stack:
    """A bar of a :func:`stacked_bar`: parts by name, 0 or more each."""

    label: str
    parts: Mapping[str, float]


def line_chart(title: str, lines: Sequence[Line], *, x_label: str, y_label: str, note: str = "") -> Html:
    """Returns a chart of measurements over a quantity, such as images/s by workers; the spread is a band.

    Both axes are linear and the vertical one starts at 0, so that a straight line from 0 means proportional.

    Args:
        title: Plain text, as are the labels.
        lines: The series; points that aren't finite are left out.
        x_label: Quantity of the horizontal axis.
        y_label: Quantity and unit of the vertical axis.
        note: Plain text under the title.
    """
    shown = [(i, line, sorted(filter(_finite, line.points), key=lambda p: p.x)) for i, line in enumerate(lines)]
    points = [point for _, _, found in shown for point in found]
    if not points:
        return figure(title, note, nothing())
    xs = sorted({point.x for point in points})
    top = axis_end(max(max(p.y, p.high or 0.0) for p in points))
    margin = 0.03 * (xs[-1] - xs[0]) or 0.5
    left, width = xs[0] - margin, xs[-1] - xs[0] + 2 * margin

    def at(x: float, y: float) -> tuple[str, str]:
        return percent((x - left) / width), percent(1 - y / top)

    parts = []
    for tick in ticks(0, top, 5):
        y = percent(1 - tick / top)
        parts.append(f'<line class="grid" x2="100%" y1="{y}" y2="{y}"/>')
        parts.append(f'<text x="-10" y="{y}" dy=".32em" text-anchor="end">{tick_label(tick)}</text>')
    for tick in measured_ticks(xs):
        x, _ = at(tick, 0)
        parts.append(f'<line class="axis" x1="{x}" x2="{x}" y1="100%" y2="100%" transform="translate(0 5)"/>')
        parts.append(f'<text x="{x}" y="100%" dy="1.6em" text-anchor="middle">{tick_label(tick)}</text>')
    parts.append('<line class="axis" x2="100%" y1="100%" y2="100%"/>')
    parts.append(f'<text x="50%" y="100%" dy="3.1em" text-anchor="middle">{escape(x_label)}</text>')
    parts += [_band(i, found, left, width, top) for i, _, found in shown]
    parts += [_curve(i, line, found, at) for i, line, found in shown]
    rows = [["", *(tick_label(x) for x in xs)]]
    for _, line, found in shown:
        by_x = {point.x: point for point in found}
        rows.append([line.label, *(_value(by_x[x]) if x in by_x else "–" for x in xs)])
    entries = [(line.label, _line_swatch(i, line)) for i, line, _ in shown]
    what = f"{y_label} by {x_label}: " + "; ".join(line.label for line in lines)
    chart = (
        f'<p class="quiet">{escape(y_label)}</p>{legend(entries)}<div class="plot">{drawing(title, what, parts)}</div>'
    )
    figures = f"<details><summary>Figures: {escape(y_label)} by {escape(x_label)}</summary>{table(rows)}</details>"
    return figure(title, note, chart + figures)


def bar_chart(title: str, bars: Sequence[Bar], *, unit: str, note: str = "") -> Html:
    """Returns a chart of figures side by side; the spread is a whisker.

    Args:
        title: Plain text, as are unit and labels.
        bars: Figures to compare, in order.
        unit: Unit of the values.
        note: Plain text under the title.
    """
    values = [v for bar in bars for v in (bar.value, bar.high) if v is not None and math.isfinite(v)]
    if not values:
        return figure(title, note, nothing())
    top = max(*values, 0.0) or 1.0
    rows = []
    for i, bar in enumerate(bars):
        shape = percent(max(0.0, bar.value) / top if math.isfinite(bar.value) else 0)
        parts = [
            f'<rect width="{shape}" y="3" height="18" rx="2" fill="var(--s{i % COLOURS})"/>',
            '<line class="axis" y2="100%"/>',
        ]
        if bar.low is not None and bar.high is not None and math.isfinite(bar.low) and math.isfinite(bar.high):
            low, high = percent(max(0.0, bar.low) / top), percent(max(0.0, bar.high) / top)
            parts += [f'<line class="whisker" x1="{low}" x2="{high}" y1="12" y2="12"/>']
            parts += [f'<line class="whisker" x1="{x}" x2="{x}" y1="7" y2="17"/>' for x in (low, high)]
        spread = f" to {number(bar.high)}" if bar.high is not None else ""
        extra = f"{number(bar.low)}{spread}" if bar.low is not None else ""
        small = "".join(f"<small>{escape(t)}</small>" for t in (extra, bar.note) if t)
        rows.append(
            f'<div class="row"><bdi>{escape(bar.label)}</bdi><svg aria-hidden="true">{"".join(parts)}</svg>'
            f'<div class="value">{escape(number(bar.value))} {escape(unit)}{small}</div></div>\n'
        )
    return figure(title, note, "".join(rows))


def stacked_bar(title: str, stacks: Sequence[Stack], *, unit: str, note: str = "") -> Html:
    """Returns a chart of the parts of a whole, such as the stages of an image's time; all bars share one scale.

    Args:
        title: Plain text, as are unit and labels.
        stacks: The bars; parts of the same name look the same in all of them.
        unit: Unit of the values.
        note: Plain text under the title.

    Raises:
        ArgumentError: if a part is below 0.
    """
    names = list(dict.fromkeys(name for stack in stacks for name in stack.parts))
    if any(value < 0 for stack in stacks for value in stack.parts.values()):
        raise ArgumentError(f"the parts of a stacked bar must be 0 or more, got {[dict(s.parts) for s in stacks]}")
    totals = [sum(filter(math.isfinite, stack.parts.values())) for stack in stacks]
    if not totals or not max(totals):
        return figure(title, note, nothing())
    rows = []
    for stack, total in zip(stacks, totals, strict=True):
        parts, x = [], 0.0
        for i, name in enumerate(names):
            share = stack.parts.get(name, 0.0) / max(totals)
            if not 0 < share <= 1:
                continue
            said = f"{name}: {number(stack.parts[name])} {unit}, {100 * stack.parts[name] / total:.0f} %"
            parts.append(block(x, share, i, said))
            if share > 0.08:  # wide enough for a letter on a phone
                middle = percent(x + share / 2)
                parts.append(f'<text class="key" x="{middle}" y="17" text-anchor="middle">{letter(i)}</text>')
            x += share
        rows.append(
            f'<div class="row"><bdi>{escape(stack.label)}</bdi><svg aria-hidden="true">{"".join(parts)}</svg>'
            f'<div class="value">{escape(number(total))} {escape(unit)}</div></div>\n'
        )
    entries = [(name, block_swatch(i, letter(i))) for i, name in enumerate(names)]
    figures = [["", *(stack.label for stack in stacks)]]
    for name in names:
        figures.append([name, *(_part(stack.parts.get(name), t) for stack, t in zip(stacks, totals, strict=True))])
    more = f"<details><summary>Figures: {escape(unit)} and share</summary>{table(figures)}</details>"
    return figure(title, note, legend(entries) + "".join(rows) + more)


def _line_swatch(i: int, line: Line) -> str:
    mark = "" if line.reference else f'<g transform="translate(14 8)">{_marker(i)}/></g>'
    return (
        f'<svg width="28" height="16" aria-hidden="true"><line {_stroke(i, line)} x2="28" y1="8" y2="8"/>{mark}</svg>'
    )


def _stroke(i: int, line: Line) -> str:
    if line.reference:
        return 'class="line reference" stroke="var(--quiet)"'
    return f'class="line" stroke="var(--s{i % COLOURS})" stroke-dasharray="{_DASHES[i // COLOURS % len(_DASHES)]}"'


def _marker(i: int) -> str:
    return f'{_MARKERS[i % len(_MARKERS)]} fill="var(--s{i % COLOURS})"'


def _band(i: int, points: Sequence[Point], left: float, width: float, top: float) -> str:
    """Returns the spread as an area, in an inner drawing that scales with the page's width."""
    known = [(p.x, p.low, p.high) for p in points if p.low is not None and p.high is not None]
    if len(known) < 2:
        return ""
    edge = [(x, high) for x, _, high in known] + [(x, low) for x, low, _ in reversed(known)]
    outline = " ".join(f"{100 * (x - left) / width:.3f},{100 * (1 - max(0.0, y) / top):.3f}" for x, y in edge)
    return (
        '<svg width="100%" height="100%" viewBox="0 0 100 100" preserveAspectRatio="none">'
        f'<polygon class="band" fill="var(--s{i % COLOURS})" points="{outline}"/></svg>'
    )


def _curve(i: int, line: Line, points: Sequence[Point], at: Callable[[float, float], tuple[str, str]]) -> str:
    places = [at(point.x, point.y) for point in points]
    parts = [
        f'<line {_stroke(i, line)} x1="{a[0]}" y1="{a[1]}" x2="{b[0]}" y2="{b[1]}"/>'
        for a, b in itertools.pairwise(places)
    ]
    for point, (x, y) in zip(points, places, strict=True):
        if line.reference:
            continue
        if point.low is not None and point.high is not None:
            low, high = at(point.x, max(0.0, point.low))[1], at(point.x, point.high)[1]
            colour = f'stroke="var(--s{i % COLOURS})"'
            parts.append(f'<line class="line" {colour} x1="{x}" x2="{x}" y1="{low}" y2="{high}"/>')
        said = escape(f"{line.label}, {point.x:,.6g}: {_value(point)}")
        parts.append(
            f'<svg x="{x}" y="{y}">{_marker(i)}><title>{said}</title></{_MARKERS[i % 4][1:].split()[0]}></svg>'
        )
    return "".join(parts)


def _value(point: Point) -> str:
    if point.low is None or point.high is None:
        return number(point.y)
    return f"{number(point.y)} ({number(point.low)} to {number(point.high)})"


def _part(value: float | None, total: float) -> str:
    if value is None or not math.isfinite(value) or not total:
        return number(value)
    return f"{number(value)} ({100 * value / total:.0f} %)"


def _finite(point: Point) -> bool:
    return all(v is None or math.isfinite(v) for v in (point.x, point.y, point.low, point.high)) and point.y >= 0
