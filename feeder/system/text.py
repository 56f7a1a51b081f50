"""Text for people: numbers with nouns, and names that may hold control characters."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TextIO

BOM = "\ufeff"  # the byte order mark


def count(number: int, noun: str, plural: str | None = None) -> str:
    """Returns a number and its noun: "1 shard", "1,200 shards", "2 classes".

    Args:
        number: The number.
        noun: The noun for one.
        plural: The noun for any other number; None: ``noun`` with an s.
    """
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def meant(word: str, words: Iterable[str], cutoff: float = 0.6) -> str:
    """Returns the question whether the nearest of some words was meant, in either case; "" where none is near.

    Args:
        word: The word that is not one of them.
        words: The words.
        cutoff: Similarity from which on a word is near, 0-1.
    """
    import difflib

    by_lower = {each.lower(): each for each in words}
    near = difflib.get_close_matches(word.lower(), by_lower, 1, cutoff)
    return f"; did you mean {by_lower[near[0]]}?" if near else ""


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


def without_bom(value: Any) -> Any:
    """Returns a value with no byte order mark at the start of any text in it, at any depth of lists and dicts.

    Raises:
        RecursionError: if it is too deep.
    """
    if isinstance(value, str):
        return value.removeprefix(BOM)
    if isinstance(value, list):
        return [without_bom(each) for each in value]
    if isinstance(value, dict):
        return {without_bom(key): without_bom(each) for key, each in value.items()}
    return value


def say(text: str, file: TextIO | None = None, style: Callable[[str], str] = str) -> None:
    """Prints a text of one or more lines through :func:`printable`.

    Args:
        text: Any text.
        file: The stream; None for standard output.
        style: Puts a terminal's colors into the printable text.
    """
    print(style(printable(text, lines=True)), file=file, flush=True)
