"""Checks that the rivals do the same work, then measures them in turn."""

from __future__ import annotations

import contextlib
import itertools
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from multiprocessing import Pipe
from typing import IO, Any, TypeAlias

import numpy as np

from feeder.errors import ArgumentError, BackendError, FeederError
from feeder.shard.store.url import Url, is_remote
from feeder.system.child_python import child_python
from feeder.system.cores import cores
from feeder.system.text import count
from feeder.tools.bench.bench_options import SETTLE, BenchOptions, RivalTask, default_workers
from feeder.tools.bench.images import is_packed_set
from feeder.tools.bench.result_file import spread
from feeder.tools.bench.rivals import RIVALS
from feeder.tools.presets import is_shards, open_dataset, preset

# Upper limit, in levels of 0-255, of the median over images of the mean difference from Pillow's pixels. A shift by
# half a pixel, as DALI's rounding makes it, gives up to 5 on photos; another crop, channel order or scale gives tens.
CHECK_LEVELS = 10.0
_CHECK_IMAGES = 16
_UNPACKING = (
    "webdataset unpacks the packed images first; so does torch's loader without --folder and the files of `feeder "
    "export`, which DALI needs"
)
_START_S = 120.0  # to import a framework from a cold disk and make the first batch
# The figures of the runs, by rival and number of workers.
_Runs: TypeAlias = "dict[str, dict[int, list[dict[str, Any]]]]"
MEASURES = ("images_per_s", "first_batch_s", "cpu_ms_per_image", "pss_mib")


def throughput(
    path: str, options: BenchOptions, *, folder: str | None = None, note: Callable[[str], None] = print
) -> dict[str, Any]:
    """Measures feeder and its rivals on given images, in turn, at each number of workers.

    Args:
        path: A local shard set, or a class-per-folder tree.
        options: The options.
        folder: Folder from which torch's loader, and in place of packed images also DALI, read the same images as
            single files; None for ``path``.
        note: Called with a line about each run.

    Returns:
        JSON values:
        - the common conditions; ``load`` (processes that ran or waited for a core in the minute before)
        - ``check`` (levels from Pillow); ``absent`` (rivals that were not measured, and why)
        - by rival and number of workers, every repeat: :data:`MEASURES`, and ratio (of images/s to torch's in the turn)
        - for feeder, by number of workers: stages_ms and bottleneck

    Raises:
        ArgumentError: if the images are in a store.
        BackendError: if feeder can't run, or its pixels differ from Pillow's.
        FormatError, SourceError: if the images can't be opened.
    """
    load, recipe = os.getloadavg()[0], preset(options.preset, options.dtype, options.image_size)
    if is_remote(path):
        raise ArgumentError(f"{Url.parse(path)}: the rivals read local files alone; give a copy of the set on a disk")
    dataset = open_dataset(path, recipe)
    workers = options.workers or default_workers()
    options = replace(options, workers=workers, batch_size=min(options.batch_size, len(dataset)))
    task = RivalTask(path, folder, options, 0)
    absent = _absent(task, note)

    check, start_s = check_rivals([name for name in RIVALS if name not in absent], task, absent, note)
    runs: _Runs = {name: {number: [] for number in workers} for name in RIVALS if name not in absent}
    a_turn_s = len(runs) * (start_s + len(workers) * options.seconds * (1 + SETTLE))
    turns = f"{count(options.repeats, 'turn')} of {options.seconds:g} s, each with {_workers(workers)}"
    note(f"{', '.join(RIVALS[name].title() for name in runs)}: {turns}: about {_duration(options.repeats * a_turn_s)}")

    _measure(task, runs, absent, note)
    done = {name: runs[name] for name in runs if name not in absent}
    return {
        "dataset": os.path.basename(os.path.abspath(path)),
        "kind": "shards" if is_shards(path) else "folder",
        "usable_cores": cores().usable,
        "load": load,
        "images": len(dataset),
        "options": asdict(options),
        "check": {RIVALS[name].title(): levels for name, levels in check.items()},
        "absent": {rival.title(): absent[name] for name, rival in RIVALS.items() if name in absent},
        **_figures(done, workers),
    }


def _absent(task: RivalTask, note: Callable[[str], None]) -> dict[str, str]:
    """Returns the rivals that can't be measured, with the reasons."""
    peers = [name for name in RIVALS if name != "feeder"]
    if not task.options.peers:
        return dict.fromkeys(peers, "not asked for")
    if is_packed_set(task.path):
        note(_UNPACKING)
    return {name: why for name in peers if (why := RIVALS[name].missing(task.path, task.folder)) is not None}


def _measure(task: RivalTask, runs: _Runs, absent: dict[str, str], note: Callable[[str], None]) -> None:
    """Adds the turns of each rival to ``runs``, and rivals that fail to ``absent``."""
    options = task.options
    for turn, name in itertools.product(range(1, options.repeats + 1), runs):
        if name in absent:
            continue
        title = RIVALS[name].title()
        try:
            for number, found in run_turn(name, task, options.workers):
                runs[name][number].append(found)
                rate = f"{found['images_per_s']:,.0f} images/s"
                note(f"  {turn}/{options.repeats} {title}, {_workers((number,))}: {rate}")
        except Failed as error:
            absent[name] = _failure(name, task, error)
            note(f"  {title} {absent[name]}")


def _failure(name: str, task: RivalTask, error: Failed) -> str:
    """Returns the failure of a rival as the reason of its absence.

    Raises:
        BackendError: for feeder itself.
    """
    if name == "feeder":
        raise BackendError(f"{task.path}: feeder's loader failed: {error}") from None
    return f"failed: {error}"


def _figures(runs: _Runs, workers: tuple[int, ...]) -> dict[str, Any]:
    """Returns the measured values of a result."""

    def by_workers(values: Callable[[str, int], list[float]]) -> dict[str, Any]:
        return {
            RIVALS[name].title(): {str(number): spread(values(name, number)) for number in workers} for name in runs
        }

    def measured(measure: str) -> Callable[[str, int], list[float]]:
        return lambda name, number: [run[measure] for run in runs[name][number]]

    def ratios(name: str, number: int) -> list[float]:
        pairs = zip(runs[name][number], runs["torch"][number], strict=True)
        return [ours["images_per_s"] / theirs["images_per_s"] for ours, theirs in pairs]

    def stages(found: list[dict[str, Any]]) -> dict[str, Any]:
        common = [stage for stage in found[0]["stages_ms"] if all(stage in run["stages_ms"] for run in found)]
        return {stage: spread([run["stages_ms"][stage] for run in found]) for stage in common}

    ours = {str(number): runs["feeder"][number] for number in workers}
    return {
        **{measure: by_workers(measured(measure)) for measure in MEASURES},
        **({"ratio": by_workers(ratios)} if "torch" in runs else {}),
        "stages_ms": {number: stages(found) for number, found in ours.items()},
        "bottleneck": {number: found[-1]["bottleneck"] for number, found in ours.items()},
    }


def _duration(seconds: float) -> str:
    """Returns a time as text, to two digits or so."""
    return f"{max(1, round(seconds))} s" if seconds < 100 else f"{round(seconds / 60)} minutes"


def _workers(counts: tuple[int, ...]) -> str:
    return f"{', '.join(map(str, counts))} worker{'' if counts == (1,) else 's'}"


def check_rivals(
    names: list[str], task: RivalTask, absent: dict[str, str], note: Callable[[str], None]
) -> tuple[dict[str, float], float]:
    """Compares each rival's pixels with Pillow's, and adds rivals that differ or fail to ``absent``.

    Returns:
        Each rival's difference in levels, and the seconds from the start of a process to its first batch.
    """
    small = replace(task.options, batch_size=min(_CHECK_IMAGES, task.options.batch_size))
    task = replace(task, options=small, in_order=True)
    levels: dict[str, float] = {}
    with contextlib.ExitStack() as stack:
        began = time.monotonic()
        contestant = stack.enter_context(Contestant())
        try:
            reference = contestant.ask("torch", task, _START_S)
        except Failed as error:
            raise BackendError(f"{task.path}: Pillow, which the others are checked against, failed: {error}") from None
        start_s = time.monotonic() - began

        for name in names:
            if contestant.ended:
                contestant = stack.enter_context(Contestant())
            try:
                found = reference if name == "torch" else contestant.ask(name, task, _START_S)
            except Failed as error:
                absent[name] = _failure(name, task, error)
                continue

            wrong, levels[name] = difference_of(reference, found)
            note(f"  checked {name}: {wrong or f'{levels[name]:.2f} levels from Pillow'}")
            if wrong and name == "feeder":
                raise BackendError(f"{task.path}: {wrong}, so its speed says nothing; see `feeder parity`")
            if wrong:
                absent[name] = wrong
    return {name: each for name, each in levels.items() if name not in absent}, start_s


def difference_of(reference: dict[str, Any], found: dict[str, Any]) -> tuple[str | None, float]:
    """Returns a batch's fault (None if it has none), and the median over images of the mean difference in levels."""
    if found["images"].shape != reference["images"].shape:
        return f"its batches are {found['images'].shape}, expected {reference['images'].shape}", 0.0
    if "labels" in found and "labels" in reference and not np.array_equal(found["labels"], reference["labels"]):
        return f"its labels are {found['labels'].tolist()}, expected {reference['labels'].tolist()}", 0.0
    difference = np.abs(found["images"].astype(np.int16) - reference["images"])
    levels = float(np.median(difference.mean(axis=(1, 2, 3))))
    if levels > CHECK_LEVELS:
        return f"its pixels are {levels:.1f} levels from Pillow's, more than {CHECK_LEVELS:g}", levels
    return None, levels


def run_turn(name: str, task: RivalTask, workers: tuple[int, ...]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yields one process's runs, the one with the most workers first, as its cold start is the one that users see."""
    limit_s = _START_S + 10 * task.options.seconds
    with Contestant() as contestant:
        for number in sorted(workers, reverse=True):
            yield number, contestant.ask(name, replace(task, workers=number), limit_s)


class Failed(FeederError):
    """A rival's process ended, or did not answer."""


class Contestant:
    """A process in which rivals run."""

    def __init__(self) -> None:
        self._errors: IO[bytes] = tempfile.TemporaryFile()
        self._channel, theirs = Pipe()
        code = "from feeder.tools.bench.contestant import main\nsys.path[:] = path\nmain(int(sys.argv[1]))"
        with theirs:
            self._process = subprocess.Popen(
                child_python(code, str(theirs.fileno())),
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=self._errors,  # libraries may print
                stderr=self._errors,
            )

    def __enter__(self) -> Contestant:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._channel.close()
        if kind is not KeyboardInterrupt:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_START_S)  # it may be importing yet
        self._process.kill()
        self._process.wait()
        self._errors.close()

    @property
    def ended(self) -> bool:
        """True if the process has ended."""
        return self._process.poll() is not None

    def ask(self, rival: str, task: RivalTask, limit_s: float) -> dict[str, Any]:
        """Sends a job, see :mod:`feeder.tools.bench.contestant`, and returns the answer.

        Raises:
            Failed: if the job fails, the process ends, or it does not answer in time.
        """
        with contextlib.suppress(BrokenPipeError):
            self._channel.send((rival, task))
        if not self._channel.poll(limit_s):
            self._process.kill()
            self._process.wait()
            raise Failed(f"no answer in {limit_s:.0f} s")

        try:
            found: dict[str, Any] = self._channel.recv()
        except (EOFError, ConnectionResetError):
            self._process.wait()
            self._errors.seek(0)
            said = self._errors.read().decode(errors="replace").strip().splitlines()
            raise Failed(said[-1].strip() if said else f"it ended with code {self._process.returncode}") from None
        if "failed" in found:
            raise Failed(found["failed"])
        return found
