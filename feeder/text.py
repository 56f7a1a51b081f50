"""Text as people read it: numbers and nouns, and names that may hold what a terminal would act on."""

from __future__ import annotations

from typing import TextIO

__all__ = ["count", "printable", "say"]


def count(number: int, noun: str, plural: str | None = None) -> str:
    """Returns a number and its noun: "1 shard", "1,200 shards", "2 classes".

    Args:
        number: How many.
        noun: The noun for one.
        plural: The noun for any other number; None: ``noun`` with an s.
    """
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def printable(text: str, *, lines: bool = False) -> str:
    """Returns the text with everything but printable characters as Python escapes it: "\\x1b", "\\n", "\\udcff".

    Class names, keys and paths come from data: what a terminal would act on, or can't show, must not reach it raw.

    Args:
        text: Any text.
        lines: Whether line ends stay.
    """
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() or (lines and each == "\n") else repr(each)[1:-1] for each in text)


def say(text: str, file: TextIO | None = None) -> None:
    """Prints a text of one line or more, as :func:`printable` makes it.

    Args:
        text: Any text.
        file: Where to; None: standard output.
    """
    print(printable(text, lines=True), file=file, flush=True)
