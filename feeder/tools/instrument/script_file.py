"""A script: read as a syntax tree, and run as ``python script.py`` would.

It runs as ``__main__``, with its arguments, its exit code and its tracebacks. It becomes the process's real
``__main__`` module, so that its classes can be pickled and the processes that it spawns find it. runpy would not do, as
it restores ``__main__`` at the end.
"""

from __future__ import annotations

import ast
import builtins
import os
import sys
import tokenize
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType, TracebackType

from feeder.errors import SourceError
from feeder.tools.commands.common import EXIT_INTERRUPTED


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
            compile(text, path, "exec", dont_inherit=True)  # compiling refuses more than parsing alone
            tree = compile(text, path, "exec", ast.PyCF_ONLY_AST, dont_inherit=True)
    except SyntaxError as error:
        at = error.lineno or 0
        shown = f": {lines[at - 1].strip()}" if 0 < at <= len(lines) else ""
        raise SourceError(f"{path}:{at}: not valid Python: {error.msg}{shown}") from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise SourceError(f"{path}: can't be parsed as Python: {error}") from None
    assert isinstance(tree, ast.Module)
    return ScriptSource(path, tree, lines)


def run_script(script: ScriptSource, arguments: Sequence[str]) -> int:
    """Runs a script in this process, and prints its uncaught exception as Python would.

    Args:
        script: The script.
        arguments: The script's arguments.

    Returns:
        The exit code that Python would end with.
    """
    module = ModuleType("__main__")
    module.__file__ = script.path
    module.__dict__["__builtins__"] = builtins
    module.__spec__ = None
    sys.modules["__main__"] = module
    sys.argv[:] = [script.path, *arguments]
    sys.path[0] = os.path.dirname(os.path.abspath(script.path))

    error: BaseException | None = None
    try:
        exec(compile(script.tree, script.path, "exec", dont_inherit=True), module.__dict__)
    except BaseException as raised:
        error = raised
    sys.stdout.flush()
    if error is None:
        return 0
    if isinstance(error, SystemExit) and (error.code is None or isinstance(error.code, int)):
        return error.code or 0
    _show(error)
    return EXIT_INTERRUPTED if isinstance(error, KeyboardInterrupt) else 1


def _show(error: BaseException) -> None:
    """Prints a script's uncaught exception as Python would, without the frames that ran the script."""
    if isinstance(error, SystemExit):
        print(error.code, file=sys.stderr)  # noqa: T201  the script's own message
        return
    trace: TracebackType | None = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    sys.excepthook(type(error), error.with_traceback(trace), trace)
