"""One self-contained HTML page: text, tables and charts that open without a network, in light, dark and on paper.

Text from outside (file names, labels, messages) goes through :func:`escape`; only results of these functions and of
:mod:`feeder.tools.html.charts` are markup. There are no scripts, and the page's own policy forbids them.
"""

from __future__ import annotations

import html
import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

__all__ = [
    "Html",
    "Section",
    "Tone",
    "callout",
    "code",
    "displayable",
    "escape",
    "facts",
    "number",
    "page",
    "table",
    "text",
]

Tone = Literal["note", "good", "bad"]
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
# Characters that HTML forbids even as references: control characters, and the lone surrogates of file names.
_FORBIDDEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff]")
_NUMBER = re.compile(r"[-+±]?[\d,]+(\.\d+)?( ?(%|x|s|ms|us|µs|MiB|GiB|MB|GB))?|[-–—]")
# Patterns that fill the shapes of charts, so that colour is not their only difference.
_PATTERNS = (
    '<svg width="0" height="0" style="position:absolute" aria-hidden="true"><defs>'
    '<pattern id="hatch1" width="7" height="7" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
    '<line class="hatch" y2="7"/></pattern>'
    '<pattern id="hatch2" width="6" height="6" patternUnits="userSpaceOnUse">'
    '<circle class="hatch dot" cx="3" cy="3" r="1.2"/></pattern>'
    '<pattern id="hatch3" width="7" height="7" patternUnits="userSpaceOnUse" patternTransform="rotate(-45)">'
    '<line class="hatch" y2="7"/></pattern></defs></svg>\n'
)


class Html(str):
    """Markup, escaped where necessary."""

    __slots__ = ()


@dataclass(frozen=True)
class Section:
    """A part of a page under a heading.

    Attributes:
        heading: Plain text.
        parts: Results of functions of this module and of :mod:`feeder.tools.html.charts`.
    """

    heading: str
    parts: Sequence[Html]


def escape(value: object) -> Html:
    """Returns plain text as markup for text or a quoted attribute; characters that HTML forbids become U+FFFD."""
    return Html(html.escape(displayable(str(value)), quote=True))


def displayable(value: str) -> str:
    """Returns text with U+FFFD in place of the characters that HTML forbids."""
    return _FORBIDDEN.sub("\ufffd", value)


def number(value: float | None) -> str:
    """Returns a number as text: three digits, commas at thousands; a dash for None and infinities."""
    if value is None or not math.isfinite(value):
        return "–"
    size = abs(value)
    if size >= 100 or value == 0:
        return f"{value:,.0f}"
    return f"{value:.1f}" if size >= 10 else f"{value:.2f}" if size >= 0.1 else f"{value:.2g}"


def text(value: object) -> Html:
    """Returns a paragraph."""
    return Html(f"<p>{escape(value)}</p>\n")


def code(value: object) -> Html:
    """Returns a block of code or terminal output; long lines wrap."""
    return Html(f"<pre>{escape(value)}</pre>\n")


def callout(heading: object, value: object = "", tone: Tone = "note") -> Html:
    """Returns a box for the verdict or a warning, which readers should see first."""
    return Html(f'<div class="callout {tone}"><strong>{escape(heading)}</strong>{escape(value)}</div>\n')


def facts(values: Mapping[str, object]) -> Html:
    """Returns names and values as a list."""
    rows = "".join(f"<dt>{escape(name)}</dt><dd><bdi>{escape(value)}</bdi></dd>" for name, value in values.items())
    return Html(f'<dl class="facts">{rows}</dl>\n')


def table(rows: Sequence[Sequence[object]], caption: str = "") -> Html:
    """Returns a table; columns of numbers are aligned to the right.

    Args:
        rows: The heading, then the rows, all of the same length.
        caption: Plain text above it.
    """
    cells = [["–" if cell is None else str(cell) for cell in row] for row in rows]
    kinds = [
        ' class="number"' if len(rows) > 1 and all(not c or _NUMBER.fullmatch(c) for c in column[1:]) else ""
        for column in zip(*cells, strict=True)
    ]

    def line(row: Sequence[str], tag: str) -> str:
        found = (f"<{tag}{kind}><bdi>{escape(cell)}</bdi></{tag[:2]}>" for cell, kind in zip(row, kinds, strict=True))
        return f"<tr>{''.join(found)}</tr>\n"

    title = f"<caption>{escape(caption)}</caption>" if caption else ""
    head, body = line(cells[0], 'th scope="col"'), "".join(line(row, "td") for row in cells[1:])
    return Html(
        f'<div class="scroll" tabindex="0"><table>{title}<thead>{head}</thead><tbody>\n{body}</tbody></table></div>\n'
    )


def page(title: str, sections: Iterable[Section], *, lead: str = "", top: Sequence[Html] = (), foot: str = "") -> str:
    """Returns a whole document.

    Args:
        title: Plain text.
        sections: The parts, in order.
        lead: Plain text under the title: subject, place, date.
        top: Markup before the first section, such as a :func:`callout`.
        foot: Plain text at the end.

    Returns:
        HTML without references to other files.
    """
    with open(os.path.join(os.path.dirname(__file__), "report.css"), encoding="utf-8") as file:
        style = file.read()
    body = "".join(f"<section>\n<h2>{escape(s.heading)}</h2>\n{''.join(s.parts)}</section>\n" for s in sections)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>\n{style}</style>\n</head>\n<body>\n{_PATTERNS}<header>\n"
        f"<h1>{escape(title)}</h1>\n"
        + (f'<p class="lead">{escape(lead)}</p>\n' if lead else "")
        + f"</header>\n<main>\n{''.join(top)}{body}</main>\n"
        + (f"<footer>{escape(foot)}</footer>\n" if foot else "")
        + "</body>\n</html>\n"
    )
