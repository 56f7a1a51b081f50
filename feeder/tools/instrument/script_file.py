"""A script as a syntax tree."""

from __future__ import annotations

import ast
import tokenize
import warnings
from dataclasses import dataclass

from feeder.errors import SourceError


@dataclass(frozen=True)
class ScriptSource:
    """A script.

    Args:
        path: The script's path.
        tree: The syntax tree.
        lines: The lines of code.
    """

    path: str
    tree: ast.Module
    lines: list[str]

    def excerpt(self, line: int) -> str:
        """Returns a line of code."""
        return self.lines[line - 1].strip() if 0 < line <= len(self.lines) else ""


def read_source(path: str) -> ScriptSource:
    """Reads a script.

    Raises:
        SourceError: if the file is absent, not text or not Python; the message names the place.
    """
    try:
        with tokenize.open(path) as file:
            return parse(path, file.read())
    except OSError as error:
        raise SourceError(f"expected a Python script, can't read {path}: {error.strerror}") from None
    except (UnicodeDecodeError, SyntaxError) as error:  # or an encoding that Python does not know
        raise SourceError(
            f"{path}: can't be read as text: {error}; save it as UTF-8, or name its encoding in the first line: "
            "# -*- coding: latin-1 -*-"
        ) from None


def parse(path: str, text: str) -> ScriptSource:
    """Parses a script's text.

    Raises:
        SourceError: if it is not Python.
    """
    lines = text.splitlines()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # such as those of invalid escape sequences
            compile(text, path, "exec", dont_inherit=True)  # which refuses more than the parser alone
            tree = compile(text, path, "exec", ast.PyCF_ONLY_AST, dont_inherit=True)
    except SyntaxError as error:
        at = error.lineno or 0
        shown = f": {lines[at - 1].strip()}" if 0 < at <= len(lines) else ""
        raise SourceError(f"{path}:{at}: not valid Python: {error.msg}{shown}") from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise SourceError(f"{path}: can't be parsed as Python: {error}") from None
    assert isinstance(tree, ast.Module)
    return ScriptSource(path, tree, lines)
