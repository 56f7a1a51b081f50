"""Text for people: numbers with nouns, and names that may hold control characters."""

from __future__ import annotations

from typing import TextIO

__all__ = ["count", "printable", "say"]


def count(number: int, noun: str, plural: str | None = None) -> str:
    """Returns a number and its noun: "1 shard", "1,200 shards", "2 classes".

    Args:
        number: The number.
        noun: The noun for one.
        plural: The noun for any other number; None: ``noun`` with an s.
    """
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def printable(text: str, *, lines: bool = False) -> str:
    """Returns the text with characters that are not printable escaped as in Python: "\\x1b", "\\n", "\\udcff".

    Class names, keys and paths come from data: control characters in them must not reach a terminal.

    Args:
        text: Any text.
        lines: True to keep line ends.
    """
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() or (lines and each == "\n") else repr(each)[1:-1] for each in text)


def say(text: str, file: TextIO | None = None) -> None:
    """Prints a text of one or more lines through :func:`printable`.

    Args:
        text: Any text.
        file: The stream; None for standard output.
    """
    print(printable(text, lines=True), file=file, flush=True)
