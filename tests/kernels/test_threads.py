"""The threads that share a batch: kept from call to call, and another process's after a fork."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import numpy.typing as npt
import pytest

from feeder import _native as native
from feeder.decoders.decode import decode
from feeder.transforms import RandomResizedCrop
from tests.support import ROOT, jpegs
from tests.support.packed import packed
from tests.support.warm_python import run_warm

_JPEGS = [jpegs.jpeg("4:2:0", (90 + k, 70), k) for k in range(24)]


def _decoded(threads: int) -> npt.NDArray[np.uint8]:
    found: npt.NDArray[np.uint8] = decode(_JPEGS, RandomResizedCrop(32), seed=0, threads=threads).numpy()
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
    done = run_warm(["-c", _SIGNALS], cwd=ROOT, capture_output=True, text=True)
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


_SEEKABLE = [native.transcode(data, keep_metadata=True) for data in _JPEGS]
_PACKED = [packed(data) for data in _JPEGS]


@pytest.mark.parametrize(
    "kernel",
    [
        lambda i: native.transcode(_JPEGS[i], keep_metadata=True),
        lambda i: native.libjpeg_decode(_JPEGS[i]).tobytes(),
        lambda i: [plane.tobytes() for plane in native.jpeg_planes(_JPEGS[i], (0, 0, 90 + i, 70))],
        lambda i: native.cut(_SEEKABLE[i], (20, 30, 40, 50)),
        lambda i: native.row_places(_SEEKABLE[i]),
        lambda i: packed(_JPEGS[i]),
        lambda i: native.unpack(_PACKED[i]),
        lambda i: native.train_codebook(_JPEGS[i : i + 2]),
        lambda i: native.crc32c(_JPEGS[i]),
    ],
    ids=["transcode", "libjpeg", "planes", "cut", "places", "pack", "unpack", "train", "crc"],
)
def test_a_kernel_makes_the_same_in_threads_at_once(kernel: Callable[[int], object]) -> None:
    expected = [kernel(i) for i in range(len(_JPEGS))]
    begin = threading.Barrier(4)

    def run(thread: int) -> list[int]:
        begin.wait(60)
        order = [(i + 6 * thread) % len(_JPEGS) for i in range(len(_JPEGS))] * 3
        return [i for i in order if kernel(i) != expected[i]]

    with ThreadPoolExecutor(4) as pool:
        assert [*pool.map(run, range(4))] == [[]] * 4


def test_threads_share_the_rows_of_shards_that_come_and_go() -> None:
    record = np.dtype([("length", "<u4"), ("steps", "<u4"), ("height", "<u2")])
    data = [np.array([(100 * shard + row, 0, 9) for row in range(5)], record).tobytes() for shard in range(8)]
    steps = np.array([8, 100, 50], "<u2").tobytes()
    rows = native.ShardRows(record.itemsize, 0, 4, 8)
    begin, wanted = threading.Barrier(4), np.array([[0, 9]], np.int32)

    def come_and_go(thread: int) -> None:
        begin.wait(60)
        for i in range(6000):
            shard = 2 * (i % 4) + thread  # none that the other one adds, so that it is here until it is removed
            rows.add(shard, data[shard])
            rows.add_steps(shard, steps)
            assert rows.gather(np.array([shard]), np.array([4])) == data[shard][-record.itemsize :]
            rows.remove(shard)

    def read(thread: int) -> None:
        begin.wait(60)
        for i in range(12_000):
            shard, row = (i * 5 + thread) % 8, i % 5
            expected = data[shard][row * record.itemsize :][: record.itemsize]
            assert rows.gather(np.array([shard]), np.array([row])) in (None, expected)
            extents = rows.extents(np.array([shard]), expected, wanted)
            assert extents is None or extents.shape == (1, 4)

    with ThreadPoolExecutor(4) as pool:
        for job in [pool.submit(work, thread) for work in (come_and_go, read) for thread in range(2)]:
            job.result()
