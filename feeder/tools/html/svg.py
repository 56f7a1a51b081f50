"""Shapes, legends and axes that charts are drawn with, as inline SVG."""

from __future__ import annotations

import itertools
import math
import zlib
from collections.abc import Sequence

from feeder.tools.html.page import Html, escape

__all__ = [
    "COLOURS",
    "HATCHES",
    "axis_end",
    "block",
    "block_swatch",
    "drawing",
    "figure",
    "filled",
    "legend",
    "letter",
    "measured_ticks",
    "nothing",
    "percent",
    "tick_label",
    "ticks",
]

_GAP = 0.0015  # between blocks, of the whole width
COLOURS = 8
HATCHES = 4  # plain, and those that the page defines


def figure(title: str, note: str, body: str) -> Html:
    """Returns a chart with its title and a note."""
    small = f"<small>{escape(note)}</small>" if note else ""
    return Html(f"<figure>\n<figcaption>{escape(title)}{small}</figcaption>\n{body}</figure>\n")


def nothing() -> str:
    """Returns the replacement for a chart without figures."""
    return '<p class="quiet">Nothing was measured.</p>'


def drawing(title: str, description: str, parts: Sequence[str]) -> str:
    """Returns a drawing that a screen reader can name."""
    key = f"{zlib.crc32(repr((title, description, parts)).encode('utf-8', 'replace')):08x}"
    return (
        f'<svg role="img" aria-labelledby="t{key} d{key}"><title id="t{key}">{escape(title)}</title>'
        f'<desc id="d{key}">{escape(description)}</desc>{"".join(parts)}</svg>'
    )


def legend(entries: Sequence[tuple[str, str]]) -> str:
    """Returns a list of (label, swatch)."""
    return (
        '<ul class="legend">'
        + "".join(f"<li>{swatch}<bdi>{escape(label)}</bdi></li>" for label, swatch in entries)
        + "</ul>"
    )


def block_swatch(i: int, key: str = "") -> str:
    """Returns a small block of the i-th kind for a legend."""
    text = f'<text class="key" x="10" y="14" text-anchor="middle">{key}</text>' if key else ""
    size = 'width="20" height="19"'
    return f'<svg {size} aria-hidden="true">{filled(i, size)}{text}</svg>'


def filled(i: int, shape: str) -> str:
    """Returns a rectangle in a kind's colour and hatching; neighbours of one colour differ in the hatching."""
    hatch = (i + i // COLOURS) % HATCHES
    over = f'<rect {shape} fill="url(#hatch{hatch})"/>' if hatch else ""
    return f'<rect {shape} fill="var(--s{i % COLOURS})"/>{over}'


def block(x: float, share: float, i: int, said: str) -> str:
    """Returns a block with a tooltip; ``x`` and ``share``, its start and its width, are shares of the whole width."""
    shape = f'x="{percent(x)}" width="{percent(max(share - _GAP, share / 2))}" height="100%"'
    return f"<g><title>{escape(said)}</title>{filled(i, shape)}</g>"


def letter(i: int) -> str:
    """Returns the letter of the i-th kind."""
    return chr(ord("a") + i) if i < 26 else str(i)


def percent(share: float) -> str:
    """Returns a share as an SVG length."""
    return f"{100 * share:.3f}%"


def tick_label(value: float) -> str:
    """Returns the text at a tick: six digits."""
    return f"{value:,.6g}"


def ticks(low: float, high: float, most: int) -> list[float]:
    """Returns round numbers in a range, at most ``most`` + 1."""
    if high <= low:
        return [low]
    rough = (high - low) / most
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * f for f in (1, 2, 2.5, 5, 10) if power * f >= rough * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [i * step for i in range(first, math.floor(high / step + 1e-9) + 1)]


def axis_end(value: float) -> float:
    """Returns the end of an axis that holds the value: the next tick."""
    if value <= 0:
        return 1.0
    places = ticks(0, value, 5)
    return places[-1] if places[-1] >= value * 0.999 else places[-1] + places[1]


def measured_ticks(xs: Sequence[float]) -> list[float]:
    """Returns the places that were measured, where they are few and their labels are apart on a phone, too; else round
    numbers.
    """
    longest = max(len(tick_label(x)) for x in xs)
    apart = (xs[-1] - xs[0]) * max(1 / 12, (longest + 1) / 30)  # a phone's axis holds 30 digits
    if len(xs) <= 8 and all(b - a >= apart for a, b in itertools.pairwise(xs)):
        return list(xs)
    return ticks(xs[0], xs[-1], 5)
