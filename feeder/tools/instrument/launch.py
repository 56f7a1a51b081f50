"""Runs a script as ``python script.py`` would: as ``__main__``, with its arguments, its exit code and its tracebacks.

The script becomes the process's real ``__main__`` module, so that its classes can be pickled and the processes that it
spawns find it. runpy would not do, as it restores ``__main__`` at the end.
"""

from __future__ import annotations

import builtins
import os
import sys
from collections.abc import Sequence
from types import ModuleType, TracebackType

from feeder.tools.commands.common import EXIT_INTERRUPTED
from feeder.tools.instrument.script_file import ScriptSource


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
