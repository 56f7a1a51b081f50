"""Charts for a :mod:`feeder.tools.html.page` page, as inline SVG.

Widths are percentages of the page's, so text keeps its size from a phone to a wide screen. Names and values are text
beside the shapes; series differ by marker, dash or hatching as well as by colour.
"""

from __future__ import annotations

import itertools
import math
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from feeder.tools.html.page import Html, escape, number, table

__all__ = ["Bar", "Interval", "Line", "Point", "Stack", "bar_chart", "line_chart", "stacked_bar", "timeline"]

_GAP = 0.0015  # between blocks, of the whole width
_COLOURS = 8
_HATCHES = 4  # plain, and those that the page defines
_DASHES = ("", "7 3", "2 3", "9 3 2 3")
_MARKERS = (  # about the origin, in pixels
    '<circle class="mark" r="5"',
    '<rect class="mark" x="-4.5" y="-4.5" width="9" height="9"',
    '<path class="mark" d="M0-6 6 5H-6z"',
    '<path class="mark" d="M0-6 6 0 0 6-6 0z"',
)
# Spans closer together than this share of the timeline look like one.
_RESOLUTION = 1 / 1500


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


@dataclass(frozen=True)
class Interval:
    """A stretch of time on a track of a :func:`timeline`."""

    track: str
    start: float
    end: float
    kind: str


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
        return _figure(title, note, _nothing())
    xs = sorted({point.x for point in points})
    top = _axis_end(max(max(p.y, p.high or 0.0) for p in points))
    margin = 0.03 * (xs[-1] - xs[0]) or 0.5
    left, width = xs[0] - margin, xs[-1] - xs[0] + 2 * margin

    def at(x: float, y: float) -> tuple[str, str]:
        return _percent((x - left) / width), _percent(1 - y / top)

    parts = []
    for tick in _ticks(0, top, 5):
        y = _percent(1 - tick / top)
        parts.append(f'<line class="grid" x2="100%" y1="{y}" y2="{y}"/>')
        parts.append(f'<text x="-10" y="{y}" dy=".32em" text-anchor="end">{_tick_label(tick)}</text>')
    for tick in _measured_ticks(xs):
        x, _ = at(tick, 0)
        parts.append(f'<line class="axis" x1="{x}" x2="{x}" y1="100%" y2="100%" transform="translate(0 5)"/>')
        parts.append(f'<text x="{x}" y="100%" dy="1.6em" text-anchor="middle">{_tick_label(tick)}</text>')
    parts.append('<line class="axis" x2="100%" y1="100%" y2="100%"/>')
    parts.append(f'<text x="50%" y="100%" dy="3.1em" text-anchor="middle">{escape(x_label)}</text>')
    parts += [_band(i, found, left, width, top) for i, _, found in shown]
    parts += [_curve(i, line, found, at) for i, line, found in shown]
    rows = [["", *(_tick_label(x) for x in xs)]]
    for _, line, found in shown:
        by_x = {point.x: point for point in found}
        rows.append([line.label, *(_value(by_x[x]) if x in by_x else "–" for x in xs)])
    entries = [(line.label, _line_swatch(i, line)) for i, line, _ in shown]
    what = f"{y_label} by {x_label}: " + "; ".join(line.label for line in lines)
    plot = f'<div class="plot">{_drawing(title, what, parts)}</div>'
    chart = f'<p class="quiet">{escape(y_label)}</p>{_legend(entries)}{plot}'
    figures = f"<details><summary>Figures: {escape(y_label)} by {escape(x_label)}</summary>{table(rows)}</details>"
    return _figure(title, note, chart + figures)


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
        return _figure(title, note, _nothing())
    top = max(*values, 0.0) or 1.0

    rows = []
    for i, bar in enumerate(bars):
        shape = _percent(max(0.0, bar.value) / top if math.isfinite(bar.value) else 0)
        parts = [
            f'<rect width="{shape}" y="3" height="18" rx="2" fill="var(--s{i % _COLOURS})"/>',
            '<line class="axis" y2="100%"/>',
        ]
        if bar.low is not None and bar.high is not None and math.isfinite(bar.low) and math.isfinite(bar.high):
            low, high = _percent(max(0.0, bar.low) / top), _percent(max(0.0, bar.high) / top)
            parts += [f'<line class="whisker" x1="{low}" x2="{high}" y1="12" y2="12"/>']
            parts += [f'<line class="whisker" x1="{x}" x2="{x}" y1="7" y2="17"/>' for x in (low, high)]
        spread = f" to {number(bar.high)}" if bar.high is not None else ""
        extra = f"{number(bar.low)}{spread}" if bar.low is not None else ""
        small = "".join(f"<small>{escape(t)}</small>" for t in (extra, bar.note) if t)
        rows.append(
            f'<div class="row"><bdi>{escape(bar.label)}</bdi><svg aria-hidden="true">{"".join(parts)}</svg>'
            f'<div class="value">{escape(number(bar.value))} {escape(unit)}{small}</div></div>\n'
        )
    return _figure(title, note, "".join(rows))


def stacked_bar(title: str, stacks: Sequence[Stack], *, unit: str, note: str = "") -> Html:
    """Returns a chart of the parts of a whole, such as the stages of an image's time; all bars share one scale.

    Args:
        title: Plain text, as are unit and labels.
        stacks: The bars; parts of the same name look the same in all of them.
        unit: Unit of the values.
        note: Plain text under the title.
    """
    names = list(dict.fromkeys(name for stack in stacks for name in stack.parts))

    totals = [sum(filter(math.isfinite, stack.parts.values())) for stack in stacks]
    if not totals or not max(totals):
        return _figure(title, note, _nothing())

    rows = []
    for stack, total in zip(stacks, totals, strict=True):
        parts, x = [], 0.0
        for i, name in enumerate(names):
            share = stack.parts.get(name, 0.0) / max(totals)
            if not 0 < share <= 1:
                continue
            said = f"{name}: {number(stack.parts[name])} {unit}, {100 * stack.parts[name] / total:.0f} %"
            parts.append(_block(x, share, i, said))
            if share > 0.08:  # wide enough for a letter on a phone
                middle = _percent(x + share / 2)
                parts.append(f'<text class="key" x="{middle}" y="17" text-anchor="middle">{_letter(i)}</text>')
            x += share
        rows.append(
            f'<div class="row"><bdi>{escape(stack.label)}</bdi><svg aria-hidden="true">{"".join(parts)}</svg>'
            f'<div class="value">{escape(number(total))} {escape(unit)}</div></div>\n'
        )

    entries = [(name, _block_swatch(i, _letter(i))) for i, name in enumerate(names)]
    figures = [["", *(stack.label for stack in stacks)]]
    for name in names:
        figures.append([name, *(_part(stack.parts.get(name), t) for stack, t in zip(stacks, totals, strict=True))])
    more = f"<details><summary>Figures: {escape(unit)} and share</summary>{table(figures)}</details>"
    return _figure(title, note, _legend(entries) + "".join(rows) + more)


def timeline(title: str, spans: Iterable[Interval], *, unit: str = "s", note: str = "") -> Html:
    """Returns activities over time: a strip for each track, on a common time axis.

    Args:
        title: Plain text, as are unit, tracks and kinds.
        spans: The activities, in any order; neighbours of one kind too close to tell apart become one.
        unit: Unit of start and end.
        note: Plain text under the title.
    """
    kept = [s for s in spans if math.isfinite(s.start) and math.isfinite(s.end) and s.end >= s.start]
    if not kept:
        return _figure(title, note, _nothing())

    begin, end = min(s.start for s in kept), max(s.end for s in kept)
    length = (end - begin) or 1.0
    kinds = list(dict.fromkeys(s.kind for s in kept))
    rows = []
    for track in dict.fromkeys(s.track for s in kept):
        merged = _merged([s for s in kept if s.track == track], length * _RESOLUTION)
        blocks = [
            _block(
                (s.start - begin) / length,
                max((s.end - s.start) / length, _RESOLUTION),
                kinds.index(s.kind),
                f"{s.kind}: {number(s.start)} to {number(s.end)} {unit}",
                gap=0.0,
            )
            for s in merged
        ]
        what = f"{title}: {', '.join(dict.fromkeys(s.kind for s in merged))}"
        rows.append(f'<div class="row wide"><bdi>{escape(track)}</bdi>{_drawing(track, what, blocks)}</div>\n')

    marks = []
    for tick in _ticks(begin, end, 4):
        x = _percent((tick - begin) / length)
        marks.append(f'<line class="axis" x1="{x}" x2="{x}" y2="5"/>')
        marks.append(f'<text x="{x}" y="19" text-anchor="middle">{_tick_label(tick)}</text>')

    axis = f'<svg aria-hidden="true"><line class="axis" x2="100%"/>{"".join(marks)}</svg>'
    rows.append(f'<div class="row wide ticks"><span class="quiet">{escape(unit)}</span>{axis}</div>\n')
    return _figure(title, note, _legend([(kind, _block_swatch(i)) for i, kind in enumerate(kinds)]) + "".join(rows))


def _line_swatch(i: int, line: Line) -> str:
    mark = "" if line.reference else f'<g transform="translate(14 8)">{_marker(i)}/></g>'
    return (
        f'<svg width="28" height="16" aria-hidden="true"><line {_stroke(i, line)} x2="28" y1="8" y2="8"/>{mark}</svg>'
    )


def _stroke(i: int, line: Line) -> str:
    if line.reference:
        return 'class="line reference" stroke="var(--quiet)"'
    return f'class="line" stroke="var(--s{i % _COLOURS})" stroke-dasharray="{_DASHES[i // _COLOURS % len(_DASHES)]}"'


def _marker(i: int) -> str:
    return f'{_MARKERS[i % len(_MARKERS)]} fill="var(--s{i % _COLOURS})"'


def _band(i: int, points: Sequence[Point], left: float, width: float, top: float) -> str:
    """Returns the spread as an area, in an inner drawing that scales with the page's width."""
    known = [(p.x, p.low, p.high) for p in points if p.low is not None and p.high is not None]
    if len(known) < 2:
        return ""
    edge = [(x, high) for x, _, high in known] + [(x, low) for x, low, _ in reversed(known)]
    outline = " ".join(f"{100 * (x - left) / width:.3f},{100 * (1 - max(0.0, y) / top):.3f}" for x, y in edge)
    return (
        '<svg width="100%" height="100%" viewBox="0 0 100 100" preserveAspectRatio="none">'
        f'<polygon class="band" fill="var(--s{i % _COLOURS})" points="{outline}"/></svg>'
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
            colour = f'stroke="var(--s{i % _COLOURS})"'
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


def _figure(title: str, note: str, body: str) -> Html:
    """Returns a chart with its title and a note."""
    small = f"<small>{escape(note)}</small>" if note else ""
    return Html(f"<figure>\n<figcaption>{escape(title)}{small}</figcaption>\n{body}</figure>\n")


def _nothing() -> str:
    """Returns the replacement for a chart without figures."""
    return '<p class="quiet">Nothing was measured.</p>'


def _drawing(title: str, description: str, parts: Sequence[str]) -> str:
    """Returns a drawing that a screen reader can name."""
    key = f"{zlib.crc32(repr((title, description, parts)).encode('utf-8', 'replace')):08x}"
    return (
        f'<svg role="img" aria-labelledby="t{key} d{key}"><title id="t{key}">{escape(title)}</title>'
        f'<desc id="d{key}">{escape(description)}</desc>{"".join(parts)}</svg>'
    )


def _legend(entries: Sequence[tuple[str, str]]) -> str:
    """Returns a list of (label, swatch)."""
    return (
        '<ul class="legend">'
        + "".join(f"<li>{swatch}<bdi>{escape(label)}</bdi></li>" for label, swatch in entries)
        + "</ul>"
    )


def _block_swatch(i: int, key: str = "") -> str:
    """Returns a small block of the i-th kind for a legend."""
    text = f'<text class="key" x="10" y="14" text-anchor="middle">{key}</text>' if key else ""
    size = 'width="20" height="19"'
    return f'<svg {size} aria-hidden="true">{_filled(i, size)}{text}</svg>'


def _filled(i: int, shape: str) -> str:
    """Returns a rectangle in a kind's colour and hatching; neighbours of one colour differ in the hatching."""
    hatch = (i + i // _COLOURS) % _HATCHES
    over = f'<rect {shape} fill="url(#hatch{hatch})"/>' if hatch else ""
    return f'<rect {shape} fill="var(--s{i % _COLOURS})"/>{over}'


def _block(x: float, share: float, i: int, said: str, gap: float = _GAP) -> str:
    """Returns a block with a tooltip; ``x`` and ``share``, its start and its width, are shares of the whole width."""
    shape = f'x="{_percent(x)}" width="{_percent(max(share - gap, share / 2))}" height="100%"'
    return f"<g><title>{escape(said)}</title>{_filled(i, shape)}</g>"


def _letter(i: int) -> str:
    """Returns the letter of the i-th kind."""
    return chr(ord("a") + i) if i < 26 else str(i)


def _percent(share: float) -> str:
    """Returns a share as an SVG length."""
    return f"{100 * share:.3f}%"


def _tick_label(value: float) -> str:
    """Returns the text at a tick: six digits."""
    return f"{value:,.6g}"


def _ticks(low: float, high: float, most: int) -> list[float]:
    """Returns round numbers in a range, at most ``most`` + 1."""
    if high <= low:
        return [low]
    rough = (high - low) / most
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * f for f in (1, 2, 2.5, 5, 10) if power * f >= rough * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [i * step for i in range(first, math.floor(high / step + 1e-9) + 1)]


def _axis_end(value: float) -> float:
    """Returns the end of an axis that holds the value: the next tick."""
    if value <= 0:
        return 1.0
    places = _ticks(0, value, 5)
    return places[-1] if places[-1] >= value * 0.999 else places[-1] + places[1]


def _measured_ticks(xs: Sequence[float]) -> list[float]:
    """Returns the places that were measured, where they are few and their labels are apart on a phone, too; else round
    numbers.
    """
    longest = max(len(_tick_label(x)) for x in xs)
    apart = (xs[-1] - xs[0]) * max(1 / 12, (longest + 1) / 30)  # a phone's axis holds 30 digits
    if len(xs) <= 8 and all(b - a >= apart for a, b in itertools.pairwise(xs)):
        return list(xs)
    return _ticks(xs[0], xs[-1], 5)


def _merged(spans: Sequence[Interval], apart: float) -> list[Interval]:
    """Returns the spans, with neighbours of one kind joined if no gap would be visible."""
    found: list[Interval] = []
    for span in sorted(spans, key=lambda s: (s.start, s.end)):
        last = found[-1] if found else None
        if last is not None and last.kind == span.kind and span.start - last.end < apart:
            found[-1] = Interval(span.track, last.start, max(last.end, span.end), span.kind)
        else:
            found.append(span)
    return found
