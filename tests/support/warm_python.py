"""Python processes that have torch and feeder from their start, as to import torch costs each 1.5 s of CPU.

Such a process is forked off a server that has imported them, and is a child of its caller all the same: it has the
arguments, files, folder and environment that it is started with, and ends as an interpreter does. Tests of imports, of
start-up and of memory start ``sys.executable`` instead.
"""

from __future__ import annotations

import ctypes
import functools
import gc
import json
import multiprocessing.process
import os
import runpy
import socket
import subprocess
import sys
import warnings
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from tests.support import ROOT

__all__ = ["WarmPython", "run_warm"]

_PR_SET_CHILD_SUBREAPER = 36
_MESSAGE_BYTES = 1 << 20


class WarmPython(subprocess.Popen[Any]):
    """A Python process, started as :class:`subprocess.Popen` starts one.

    Args:
        arguments: Those of Python: ``-W`` and its value any number of times, and ``-c CODE``, ``-m MODULE`` or a
            script's path with its arguments.
        options: Of :class:`subprocess.Popen`: the files, the folder, the environment and how text is read.
    """

    def __init__(self, arguments: Sequence[Any], **options: Any) -> None:
        super().__init__([sys.executable, *map(str, arguments)], **options)

    def _execute_child(
        self, args: Any, executable: Any, preexec_fn: Any, close_fds: Any, pass_fds: Any, cwd: Any, env: Any, *rest: Any
    ) -> None:
        # Positions of the pipes' ends as in every Python from 3.10 to 3.14.
        pipes = rest[3:9]
        try:
            files = [mine if file == -1 else file for mine, file in enumerate((pipes[0], pipes[3], pipes[5]))]
            self.pid = _start(
                list(args[1:]),
                os.fspath(cwd or os.getcwd()),
                dict(os.environ if env is None else env),
                files,
            )
            self._child_created = True
        finally:
            self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]


def run_warm(
    arguments: Sequence[Any],
    *,
    input: str | None = None,
    check: bool = False,
    capture_output: bool = False,
    **options: Any,
) -> subprocess.CompletedProcess[Any]:
    """Runs a Python process to its end, as :func:`subprocess.run` does."""
    if capture_output:
        options |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    if input is not None:
        options["stdin"] = subprocess.PIPE
    with WarmPython(arguments, **options) as process:
        out, err = process.communicate(input)
    done = subprocess.CompletedProcess(process.args, process.returncode, out, err)
    if check:
        done.check_returncode()
    return done


def _start(arguments: list[str], folder: str, environment: dict[str, str], files: list[int]) -> int:
    """Has the server fork a process, and returns its id."""
    request = {"arguments": arguments, "folder": folder, "environment": environment}
    (_, connection), prctl = _server(os.getpid()), ctypes.CDLL(None).prctl
    # The process between the server and the new one ends, and the new one becomes a child of this one.
    prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        socket.send_fds(connection, [json.dumps(request).encode()], files)
        return int(connection.recv(_MESSAGE_BYTES))
    finally:
        prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


@functools.cache
def _server(pid: int) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """Starts the server of this process, with which it ends, and returns it and the connection."""
    mine, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    code = f"from tests.support.warm_python import serve; serve({its.fileno()})"
    with its:
        return subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, pass_fds=[its.fileno()]), mine


def serve(file: int) -> None:
    """Forks processes while the other side of a socket is open; in each of them it returns when that is to end."""
    import torch  # noqa: F401

    import feeder.loader.dataloader
    import feeder.transforms  # noqa: F401

    gc.collect()
    gc.freeze()
    connection = socket.socket(fileno=file)
    while True:
        message, files, _, _ = socket.recv_fds(connection, _MESSAGE_BYTES, 3)
        if not message:
            return
        told, tell = os.pipe()
        between = os.fork()
        if between == 0:
            ended, end = os.pipe()
            new = os.fork()
            if new == 0:
                os.close(end)
                os.read(ended, 1)  # until it is the caller's child
                os.close(ended)
                break
            os.write(tell, str(new).encode())
            os._exit(0)
        os.waitpid(between, 0)
        connection.send(os.read(told, _MESSAGE_BYTES))
        for each in (told, tell, *files):
            os.close(each)
    connection.close()
    os.close(told)
    os.close(tell)
    _become(json.loads(message), files)


def _become(request: dict[str, Any], files: list[int]) -> None:
    """Runs what a request says, as an interpreter does that was started so."""
    for own, file in enumerate(files):
        os.dup2(file, own)
        os.close(file)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    multiprocessing.process.ORIGINAL_DIR = request["folder"]  # type: ignore[attr-defined]  # where it finds the script
    sys.path[1:1] = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    if threads := os.environ.get("OMP_NUM_THREADS"):
        sys.modules["torch"].set_num_threads(int(threads))

    arguments = request["arguments"]
    while arguments[0] == "-W":
        sys.warnoptions.append(arguments[1])
        action, _, message = arguments[1].partition(":")
        warnings.filterwarnings(action, message)
        del arguments[:2]
    main = sys.modules["__main__"] = ModuleType("__main__")
    main.__dict__["__builtins__"] = __builtins__
    if arguments[0] == "-m":
        sys.path[0], sys.argv = os.getcwd(), arguments[1:]
        runpy._run_module_as_main(arguments[1])  # type: ignore[attr-defined]
    elif arguments[0] == "-c":
        sys.path[0], sys.argv = "", ["-c", *arguments[2:]]
        exec(compile(arguments[1], "<string>", "exec"), main.__dict__)
    else:
        sys.path[0], sys.argv = os.path.dirname(os.path.abspath(arguments[0])), arguments
        main.__file__ = arguments[0]
        with open(arguments[0], "rb") as script:
            code = script.read()
        exec(compile(code, arguments[0], "exec"), main.__dict__)
