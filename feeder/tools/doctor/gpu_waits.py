"""Waits for the GPU in a running script, by line, as torch's sync debug mode reports them.

The rules on scripts read code; this module sees calls as they happen, in libraries too. torch warns at each call that
synchronizes. Warnings are counted by the line of the script that led to them, after the first few batches, when
start-up is over.
"""

from __future__ import annotations

import collections
import linecache
import shutil
import sys
import tempfile
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from feeder.errors import BackendError
from feeder.system.child_python import child_python
from feeder.system.text import count
from feeder.tools.doctor.finding import WAITS, Finding
from feeder.tools.instrument.hooks import LoaderHooks, own_line
from feeder.tools.instrument.script_file import read_source, run_script

_MESSAGE = "called a synchronizing CUDA operation"
_FIRST_BATCH = 3
_EVERY_STEP = 0.5


class WaitCollector:
    """Counts torch's warnings of synchronizing calls by line.

    Args:
        enable: Switches torch's warnings on; returns False as long as no GPU is in use.
    """

    def __init__(self, enable: Callable[[], bool]) -> None:
        self.batches = 0
        self._enable = enable
        self._is_on = False
        self._counts: collections.Counter[tuple[str, int]] = collections.Counter()
        self._show: Any = warnings.showwarning

    def on_batch(self, count: int) -> None:
        """Counts a batch of any loader.

        Args:
            count: Batches so far.
        """
        if self._is_on:
            self.batches += 1
        elif count >= _FIRST_BATCH:
            self._is_on = self._enable()
            if self._is_on:
                self.batches = 1  # the step that begins now
                self._show = warnings.showwarning
                warnings.showwarning = self._note  # type: ignore[assignment]
                warnings.filterwarnings("always", message=_MESSAGE)

    def findings(self) -> list[Finding]:
        """Returns the waits, the most frequent first."""
        found = []
        for (file, line), number in self._counts.most_common():
            rate = number / max(1, self.batches)
            found.append(
                Finding(
                    name="sync",
                    level="warning" if rate >= _EVERY_STEP else "note",
                    found=f"waits for the GPU {rate:.2g} times a step ({number:,} in {count(self.batches, 'step')})",
                    why=WAITS,
                    remedy="read results every N steps only; copy from page-locked memory with non_blocking=True; no "
                    "branches and shapes that depend on values on the GPU (masks as indexes, nonzero, unique)",
                    file=file,
                    line=line,
                    excerpt=linecache.getline(file, line).strip(),
                )
            )
        return found

    def _note(self, message: Any, category: Any, filename: str, lineno: int, *further: Any) -> None:
        if _MESSAGE not in str(message):
            self._show(message, category, filename, lineno, *further)
            return
        self._counts[own_line(sys._getframe(1)) or (filename, lineno)] += 1


def find_waits(
    script: str, arguments: Sequence[str], enable: Callable[[], bool] | None = None
) -> tuple[int, list[Finding]]:
    """Runs a script in this process and collects its waits for the GPU.

    Args:
        script: The script.
        arguments: Its arguments.
        enable: Switches torch's warnings on; None for its sync debug mode.

    Returns:
        The script's exit code, and the findings.

    Raises:
        BackendError: if there is no CUDA device here; the script is not run.
        SourceError: if there is no such script, or it is not Python.
    """
    read = read_source(script)
    if enable is None:
        _need_gpu()
    collector = WaitCollector(enable or _debug_mode)
    folder = tempfile.mkdtemp(prefix="feeder-doctor-")
    try:
        LoaderHooks(folder, collector.on_batch).install()
        code = run_script(read, arguments)
    finally:
        shutil.rmtree(folder, ignore_errors=True)

    findings = collector.findings()
    if not collector.batches:
        findings.append(Finding("sync", "note", "too few batches used the GPU to see anything", "", "", script))
    elif not findings:
        found = f"no waits for the GPU in {count(collector.batches, 'step')}"
        findings.append(Finding("sync", "ok", found, file=script))
    return code, findings


def _debug_mode() -> bool:
    """Switches torch's sync debug mode on, once the script has begun to use the GPU."""
    import torch

    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return False
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Synchronization debug mode")  # torch warns that the mode is a prototype
        torch.cuda.set_sync_debug_mode("warn")
    return True


def _need_gpu() -> None:
    import importlib.util
    import subprocess

    # In another process: the script may set things before CUDA starts.
    code = "import torch; sys.exit(0 if torch.cuda.is_available() else 1)"
    has_torch = importlib.util.find_spec("torch") is not None
    if not has_torch or subprocess.run(child_python(code), check=False).returncode != 0:
        raise BackendError(
            "--run needs a CUDA device and torch finds none, so the script was not run; feeder doctor SCRIPT reads it "
            "without a GPU"
        )
