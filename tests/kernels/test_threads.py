"""The threads that share a batch: kept from call to call, and another process's after a fork."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import numpy.typing as npt

from feeder.decoders.images import decode
from feeder.transforms import RandomResizedCrop
from tests.support import ROOT, jpegs

_JPEGS = [jpegs.jpeg("4:2:0", (90 + k, 70), k) for k in range(24)]


def _decoded(threads: int) -> npt.NDArray[np.uint8]:
    found: npt.NDArray[np.uint8] = decode(_JPEGS, RandomResizedCrop(32), threads=threads).numpy()
    return found


def _tasks() -> set[str]:
    return set(os.listdir("/proc/self/task"))


def test_threads_are_kept_for_the_next_call() -> None:
    expected = _decoded(1)
    np.testing.assert_array_equal(_decoded(4), expected)
    kept = _tasks()
    for threads in (2, 4, 3):
        np.testing.assert_array_equal(_decoded(threads), expected)
    assert _tasks() == kept


_SIGNALS = """
import os, signal
from pathlib import Path
from tests.kernels.test_threads import _decoded, _tasks
before = _tasks()
_decoded(8)
new = _tasks() - before
masks = [Path(f"/proc/self/task/{task}/status").read_text().partition("SigBlk:")[2].split()[0] for task in new]
assert len(new) == 7, new
assert all(int(mask, 16) >> (signal.SIGTERM - 1) & 1 for mask in masks), masks
assert signal.SIGTERM not in signal.pthread_sigmask(signal.SIG_BLOCK, ())
"""


def test_signals_are_left_to_the_threads_that_python_knows() -> None:
    """In a process without threads of earlier calls."""
    done = subprocess.run([sys.executable, "-c", _SIGNALS], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_forked_process_has_threads_of_its_own() -> None:
    expected = _decoded(4)
    child = os.fork()
    if child == 0:
        signal.alarm(60)  # ends it where it waits for threads that it does not have
        alone = len(_tasks()) == 1
        same = np.array_equal(_decoded(4), expected)
        os._exit(0 if alone and same and len(_tasks()) == 4 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_threads_of_python_may_call_at_the_same_time() -> None:
    expected = _decoded(1)
    with ThreadPoolExecutor(4) as pool:
        for found in pool.map(_decoded, [1, 2, 3, 4] * 4):
            np.testing.assert_array_equal(found, expected)
