"""Runs a script as ``python script.py`` would: as ``__main__``, with its arguments, its exit code and its tracebacks.

The script becomes the process's real ``__main__`` module, so that its classes can be pickled and the processes that it
spawns find it. runpy would not do, as it restores ``__main__`` at the end.
"""

from __future__ import annotations

import builtins
import os
import sys
from collections.abc import Sequence
from types import CodeType, ModuleType, TracebackType

from feeder.errors import SourceError
from feeder.tools.commands.common import EXIT_INTERRUPTED

__all__ = ["read_script", "run_script", "show"]


def read_script(path: str) -> CodeType:
    """Returns a script's code.

    Raises:
        SourceError: if there is no such script, or it is not Python.
    """
    try:
        with open(path, "rb") as file:
            return compile(file.read(), path, "exec", dont_inherit=True)
    except OSError as error:
        raise SourceError(f"can't read the script {path}: {error.strerror}") from None
    except (SyntaxError, ValueError) as error:
        raise SourceError(f"{path} is not valid Python: {error}") from None


def run_script(code: CodeType, arguments: Sequence[str]) -> tuple[int, BaseException | None]:
    """Runs a script in this process.

    Args:
        code: The script's code.
        arguments: The script's arguments.

    Returns:
        The exit code that Python would end with, and the uncaught exception, which is not printed yet.
    """
    path = code.co_filename
    module = ModuleType("__main__")
    module.__file__ = path
    module.__dict__["__builtins__"] = builtins
    module.__spec__ = None
    sys.modules["__main__"] = module
    sys.argv[:] = [path, *arguments]
    sys.path[0] = os.path.dirname(os.path.abspath(path))
    try:
        exec(code, module.__dict__)
    except SystemExit as error:
        if error.code is None or isinstance(error.code, int):
            return error.code or 0, None
        return 1, error
    except KeyboardInterrupt as error:
        return EXIT_INTERRUPTED, error
    except BaseException as error:
        return 1, error
    return 0, None


def show(error: BaseException) -> None:
    """Prints a script's uncaught exception as Python would, without the frames that ran the script."""
    if isinstance(error, SystemExit):
        print(error.code, file=sys.stderr)  # noqa: T201  the script's own message
        return
    trace: TracebackType | None = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    sys.excepthook(type(error), error.with_traceback(trace), trace)
