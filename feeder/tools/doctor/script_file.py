"""A script as a syntax tree."""

from __future__ import annotations

import ast
import io
import os
import tokenize
import warnings
from dataclasses import dataclass

from feeder.errors import SourceError

__all__ = ["ScriptSource", "parse", "read_source"]

_MAX_BYTES = 10 << 20


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
    """Reads a ``.py`` script or an ``.ipynb`` notebook.

    Raises:
        SourceError: if the file is absent, too large, not text or not Python; the message names the place.
    """
    try:
        size = os.path.getsize(path)
        if size > _MAX_BYTES:
            raise SourceError(f"expected a training script, found {size >> 20} MiB in {path}")
        with open(path, "rb") as file:
            data = file.read()
    except OSError as error:
        raise SourceError(f"expected a Python script, can't read {path}: {error.strerror}") from None
    return parse(path, _decoded(path, data))


def parse(path: str, text: str) -> ScriptSource:
    """Parses a script's text.

    Raises:
        SourceError: if it is not Python.
    """
    lines = text.splitlines()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # such as those of invalid escape sequences
            tree = compile(text, path, "exec", ast.PyCF_ONLY_AST, dont_inherit=True)
    except SyntaxError as error:
        at = error.lineno or 0
        shown = f": {lines[at - 1].strip()}" if 0 < at <= len(lines) else ""
        raise SourceError(f"{path}:{at}: not valid Python: {error.msg}{shown}") from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise SourceError(f"{path}: can't be parsed as Python: {error}") from None
    assert isinstance(tree, ast.Module)
    return ScriptSource(path, tree, lines)


def _decoded(path: str, data: bytes) -> str:
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
        return io.TextIOWrapper(io.BytesIO(data), encoding).read()
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise SourceError(
            f"{path}:{line}: expected {error.encoding}, found byte 0x{data[error.start]:02x} at offset {error.start}; "
            "save it as UTF-8, or name its encoding in the first line: # -*- coding: latin-1 -*-"
        ) from None
    except SyntaxError as error:  # an encoding that Python does not know, or a first line that is not UTF-8
        raise SourceError(f"{path}: can't tell its encoding ({error.msg}); save it as UTF-8") from None
