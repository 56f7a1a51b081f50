"""A script or notebook as a syntax tree, with the rules that its comments silence."""

from __future__ import annotations

import ast
import io
import json
import os
import re
import tokenize
import warnings
from dataclasses import dataclass, field

from feeder.errors import SourceError

__all__ = ["ALL", "ScriptSource", "parse", "read_source"]

ALL = "*"  # in place of a rule's name: every rule
_MAX_BYTES = 10 << 20
_COMMENT = re.compile(r"#\s*feeder:\s*ignore(?:\[([^\]]*)\])?(?![\w-])")
_PYTHON_MAGICS = ("%%time", "%%timeit", "%%capture", "%%prun")


@dataclass(frozen=True)
class ScriptSource:
    """A script.

    Args:
        path: The script's path.
        tree: The syntax tree.
        lines: The lines of code.
        ignores: Names of the silenced rules by line; :data:`ALL` for all of them.
        places: Name of each line in a notebook, by its cell and its line there; None for a script.
    """

    path: str
    tree: ast.Module
    lines: list[str]
    ignores: dict[int, frozenset[str]] = field(default_factory=dict)
    places: list[str] | None = None

    def place(self, line: int) -> str:
        """Returns the name of a line if it is not "file:line"; else ""."""
        return self.places[line - 1] if self.places is not None and 0 < line <= len(self.places) else ""

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
    if path.endswith(".ipynb"):
        return _notebook(path, data)
    return parse(path, _decoded(path, data))


def parse(path: str, text: str, places: list[str] | None = None) -> ScriptSource:
    """Parses a script's text.

    Raises:
        SourceError: if it is not Python.
    """
    flags = ast.PyCF_ONLY_AST | (ast.PyCF_ALLOW_TOP_LEVEL_AWAIT if places is not None else 0)
    lines = text.splitlines()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # such as those of invalid escape sequences
            tree = compile(text, path, "exec", flags, dont_inherit=True)
    except SyntaxError as error:
        at = error.lineno or 0
        where = places[at - 1] if places is not None and 0 < at <= len(places) else f"{path}:{at}"
        shown = f": {lines[at - 1].strip()}" if 0 < at <= len(lines) else ""
        raise SourceError(f"{where}: not valid Python: {error.msg}{shown}") from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise SourceError(f"{path}: can't be parsed as Python: {error}") from None
    assert isinstance(tree, ast.Module)
    return ScriptSource(path, tree, lines, _ignores(text), places)


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


def _ignores(text: str) -> dict[int, frozenset[str]]:
    found: dict[int, frozenset[str]] = {}
    waiting: frozenset[str] = frozenset()
    try:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.COMMENT and (match := _COMMENT.search(token.string)):
                rules = frozenset(name.strip() for name in match[1].split(",")) if match[1] is not None else {ALL}
                if token.line.lstrip().startswith("#"):
                    waiting |= rules
                else:
                    line = token.start[0]
                    found[line] = found.get(line, frozenset()) | rules
            elif waiting and token.type not in (tokenize.COMMENT, tokenize.NL, tokenize.INDENT, tokenize.DEDENT):
                line = token.start[0]
                found[line] = found.get(line, frozenset()) | waiting
                waiting = frozenset()
    except (tokenize.TokenError, SyntaxError):
        pass  # the parser accepts the text; the comments seen so far count
    return found


def _notebook(path: str, data: bytes) -> ScriptSource:
    try:
        cells = json.loads(data)["cells"]
        codes = [("".join(c["source"]), n) for n, c in enumerate(cells, 1) if c["cell_type"] == "code"]
    except (ValueError, KeyError, TypeError) as error:
        raise SourceError(f"{path}: expected a notebook of version 4 (JSON with cells): {error}") from None
    lines: list[str] = []
    places: list[str] = []
    for code, number in codes:
        cell = code.splitlines()
        if code.startswith("%%") and not code.startswith(_PYTHON_MAGICS):
            continue
        for at, line in enumerate(cell, 1):
            word = line.lstrip()
            is_magic = word.startswith(("%", "!", "?")) or word.rstrip().endswith("?")
            lines.append(line[: len(line) - len(word)] + "pass" if is_magic else line)
            places.append(f"{path}: cell {number}, line {at}")
    return parse(path, "\n".join(lines) + "\n", places)
