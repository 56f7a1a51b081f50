"""Checks that the rivals do the same work, then measures them in turn."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from typing import IO, Any, TypeAlias

import numpy as np

from feeder.errors import BackendError, FeederError, NotFoundError
from feeder.shard.format.manifest import MANIFEST_NAME, Manifest
from feeder.shard.store.store import download, open_store
from feeder.shard.store.url import Url, is_remote
from feeder.system.child_python import child_python
from feeder.system.cores import cores
from feeder.system.text import count
from feeder.tools.bench.images import is_packed_set
from feeder.tools.bench.options import SETTLE, BenchOptions, default_workers
from feeder.tools.bench.result_file import spread
from feeder.tools.bench.rivals import RIVALS
from feeder.tools.encoding_gain import encoding_gains
from feeder.tools.presets import is_shards, open_dataset, preset

__all__ = ["CHECK_LEVELS", "throughput"]

# Upper limit, in levels of 0-255, of the median over images of the mean difference from Pillow's pixels. A shift by
# half a pixel, as DALI's rounding makes it, gives up to 5 on photos; another crop, channel order or scale gives tens.
CHECK_LEVELS = 10.0
_CHECK_IMAGES = 16
_UNPACKING = (
    "torch's loader and webdataset unpack the packed images first; with --folder and the files of `feeder export`, "
    "torch's loader and DALI read those"
)
_START_S = 120.0  # to import a framework from a cold disk and make the first batch
# The results of the runs, by rival and number of workers.
_Runs: TypeAlias = "dict[str, dict[int, list[dict[str, Any]]]]"
MEASURES = ("images_per_s", "first_batch_s", "cpu_ms_per_image", "peak_rss_mib", "pss_mib")


def throughput(
    path: str, options: BenchOptions, *, folder: str | None = None, note: Callable[[str], None] = print
) -> dict[str, Any]:
    """Measures feeder and its rivals on given images, in turn, at each number of workers.

    A KeyboardInterrupt after feeder's first run ends it with the measurements so far.

    Args:
        path: A shard set, also as a URL, or a class-per-folder tree.
        options: The options.
        folder: Folder from which torch's loader, and in place of packed images also DALI, read the same images as
            single files; None for ``path``.
        note: Called with a line about each run.

    Returns:
        JSON values:

        - the common conditions; ``seekable`` (True if most images are decoded in part); ``usable_cores``; ``check``
          (levels from Pillow); ``absent`` (rivals that were not measured, with reasons)
        - by rival and number of workers, every repeat: images_per_s, first_batch_s, cpu_ms_per_image (of all
          processes), peak_rss_mib, pss_mib, ratio (of images/s to torch's in the same turn)
        - by rival: startup_s (from starting the process to the first batch, with the most workers)
        - for feeder, by number of workers: stages_ms and bottleneck
        - ``encodings``, not for sets in stores: the gains of other encodings, as of
          :class:`feeder.tools.encoding_gain.EncodingGain`

        After an interrupt, ``interrupted`` is the turn, and ``options`` has the workers and repeats that were measured.

    Raises:
        BackendError: if feeder can't run, or its pixels differ from Pillow's.
        FormatError, SourceError: if the images can't be opened.
    """
    dataset = open_dataset(
        path,
        preset(options.preset, options.dtype, options.image_size),
        cache_dir=options.cache_dir,
        cache_bytes=options.cache_bytes,
    )
    images = len(dataset)
    workers = options.workers or default_workers()
    options = replace(options, workers=workers, batch_size=min(options.batch_size, images))
    titles = {name: rival.title() for name, rival in RIVALS.items()}
    if is_remote(path):
        absent = dict.fromkeys([name for name in RIVALS if name != "feeder"], "reads local files only")
    else:
        absent = {name: why for name, rival in RIVALS.items() if (why := rival.missing(path, folder)) is not None}
    if not options.peers:
        absent |= dict.fromkeys([name for name in RIVALS if name != "feeder"], "not asked for")
    if options.peers and not is_remote(path) and is_packed_set(path):
        note("webdataset unpacks the packed images first" if folder else _UNPACKING)
    job = {"path": path, "folder": folder, "options": asdict(options)}
    run_s = len(workers) * options.seconds * (1 + SETTLE)
    turns_s = options.repeats * (len(RIVALS) - len(absent)) * run_s
    note(f"takes at least {_duration(turns_s)}; Ctrl-C ends it and shows the measurements so far")
    check, start_s = check_rivals([name for name in RIVALS if name not in absent], job, absent, note)
    present = [name for name in RIVALS if name not in absent]
    note(
        f"{', '.join(titles[name] for name in present)}: {count(options.repeats, 'turn')} of {options.seconds:g} s, "
        f"each with {_workers(workers)}: about {_duration(options.repeats * len(present) * (start_s + run_s))}"
    )
    runs: _Runs = {name: {number: [] for number in workers} for name in present}
    startup: dict[str, list[float]] = {name: [] for name in present}
    interrupted = None
    try:
        _measure(job, options, runs, startup, absent, note)
    except KeyboardInterrupt:
        workers = tuple(number for number in workers if runs["feeder"][number])
        if not workers:
            raise
        for name in present:
            if not all(runs[name][number] for number in workers):
                absent.setdefault(name, "interrupted before")
        turn = max(len(each) for each in runs["feeder"].values())
        interrupted = f"in turn {turn} of {options.repeats}"
        note(f"interrupted {interrupted}")
        options = replace(options, workers=workers, repeats=turn)
    present = [name for name in present if name not in absent]
    result: dict[str, Any] = {
        "dataset": Url.parse(path).name if is_remote(path) else os.path.basename(os.path.abspath(path)),
        "kind": "shards" if is_shards(path) else "folder",
        "seekable": is_seekable(path),
        "usable_cores": cores().usable,
        "images": images,
        "options": {k: v for k, v in asdict(options).items() if k != "cache_dir"} | {"workers": list(workers)},
        "check": {titles[name]: levels for name, levels in check.items()},
        "absent": {titles[name]: absent[name] for name in RIVALS if name in absent},
        "startup_s": {titles[name]: spread(startup[name]) for name in present},
    }
    for measure in MEASURES:
        result[measure] = {
            titles[name]: {str(count): spread([run[measure] for run in runs[name][count]]) for count in workers}
            for name in present
        }
    if "torch" in present:
        result["ratio"] = {
            titles[name]: {str(count): spread(_ratios(runs, name, count)) for count in workers} for name in present
        }
    if interrupted is not None:
        result["interrupted"] = interrupted
    ours = runs["feeder"]
    result["stages_ms"] = {
        str(count): {stage: spread([run["stages_ms"][stage] for run in ours[count]]) for stage in _common(ours[count])}
        for count in workers
    }
    if not is_remote(path):
        result["encodings"] = {gain.encoding: asdict(gain) for gain in encoding_gains(dataset)}
    result["bottleneck"] = {str(count): ours[count][-1]["bottleneck"] for count in workers}
    return result


def _measure(
    job: dict[str, Any],
    options: BenchOptions,
    runs: _Runs,
    startup: dict[str, list[float]],
    absent: dict[str, str],
    note: Callable[[str], None],
) -> None:
    """Adds the turns of each rival to ``runs`` and ``startup``, and rivals that fail to ``absent``."""
    for turn in range(options.repeats):
        for name in [name for name in runs if name not in absent]:
            title = RIVALS[name].title()
            try:
                for number, found in run_turn(name, job, options.workers, startup[name]):
                    runs[name][number].append(found)
                    rate = f"{found['images_per_s']:,.0f} images/s"
                    note(f"  {turn + 1}/{options.repeats} {title}, {_workers((number,))}: {rate}")
            except Failed as error:
                if name == "feeder":
                    raise BackendError(f"{job['path']}: feeder's loader failed: {error}") from None
                absent[name] = f"failed: {error}"
                note(f"  {title} failed: {error}")


def _duration(seconds: float) -> str:
    """Returns a time as text, to two digits or so."""
    return f"{max(1, round(seconds))} s" if seconds < 100 else f"{round(seconds / 60)} minutes"


def is_seekable(path: str) -> bool:
    """Returns True if most of the images were made seekable, or need no decoding."""
    if is_remote(path):
        store = open_store(path)
        with tempfile.TemporaryDirectory() as folder:
            with contextlib.suppress(NotFoundError):
                download(store, store.size(MANIFEST_NAME), os.path.join(folder, MANIFEST_NAME))
            manifest = Manifest.read(folder)
    else:
        manifest = Manifest.read(path) if os.path.isdir(path) else None
    if manifest is None:
        return False
    kept = sum(count for outcome, count in manifest.encoded.items() if outcome.startswith("kept"))
    return 2 * kept < manifest.samples


def _common(runs: list[dict[str, Any]]) -> list[str]:
    """Returns the stages that all runs have."""
    return [stage for stage in runs[0]["stages_ms"] if all(stage in run["stages_ms"] for run in runs)]


def _ratios(runs: _Runs, name: str, count: int) -> list[float]:
    pairs = zip(runs[name][count], runs["torch"][count], strict=False)  # an interrupted turn may have one of them only
    return [ours["images_per_s"] / theirs["images_per_s"] for ours, theirs in pairs]


def _workers(counts: tuple[int, ...]) -> str:
    return f"{', '.join(map(str, counts))} worker{'' if counts == (1,) else 's'}"


def check_rivals(
    names: list[str], job: dict[str, Any], absent: dict[str, str], note: Callable[[str], None]
) -> tuple[dict[str, float], float]:
    """Compares each rival's pixels with Pillow's, and adds rivals that differ or fail to ``absent``.

    Returns:
        Each rival's difference in levels, and the seconds from the start of a process to its first batch.
    """
    found: dict[str, float] = {}
    began, start_s = time.monotonic(), None
    arrays: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory(prefix="feeder-bench-") as work, contextlib.ExitStack() as stack:
        contestant = stack.enter_context(Contestant())
        small = job["options"] | {"batch_size": min(_CHECK_IMAGES, job["options"]["batch_size"])}
        for name in sorted({*names, "torch"}, key=lambda name: name != "torch"):
            out = os.path.join(work, f"{name}.npz")
            try:
                if contestant.ended:
                    contestant = stack.enter_context(Contestant())
                what = {"do": "check", "rival": name, "out": out, "options": small, "workers": 0}
                contestant.ask(job | what, _START_S)
                start_s = time.monotonic() - began if start_s is None else start_s
            except Failed as error:
                if name == "feeder":
                    raise BackendError(f"{job['path']}: feeder's loader failed: {error}") from None
                if name == "torch":
                    raise BackendError(
                        f"{job['path']}: Pillow, which the others are checked against, failed: {error}"
                    ) from None
                absent[name] = f"failed: {error}"
                continue
            with np.load(out) as saved:
                arrays[name] = dict(saved)
            wrong, levels = difference_of(arrays["torch"], arrays[name])
            note(f"  checked {name}: {wrong or f'{levels:.2f} levels from Pillow'}")
            if wrong and name == "feeder":
                raise BackendError(f"{job['path']}: {wrong}, so its speed says nothing; see `feeder parity`")
            if wrong:
                absent[name] = wrong
            elif name in names:
                found[name] = levels
    assert start_s is not None  # torch's loader is the first, and it did not fail
    return found, start_s


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


def run_turn(
    name: str, job: dict[str, Any], workers: tuple[int, ...], startup: list[float]
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yields one process's runs, the one with the most workers first, as its cold start is the one that users see."""
    began = time.monotonic()  # the same clock in all processes
    with Contestant() as contestant:
        for count in sorted(workers, reverse=True):
            limit_s = _START_S + 10 * job["options"]["seconds"]
            found = contestant.ask(job | {"do": "run", "rival": name, "workers": count}, limit_s)
            if count == max(workers):
                startup.append(found["first_batch_at"] - began)
            yield count, found


class Failed(FeederError):
    """A rival's process ended, or did not answer."""


class Contestant:
    """A process in which rivals run."""

    def __init__(self) -> None:
        self._errors: IO[bytes] = tempfile.TemporaryFile()
        code = "from feeder.tools.bench.contestant import main\nsys.path[:] = path\nsys.exit(main())"
        self._process = subprocess.Popen(
            child_python(code),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
        )

    def __enter__(self) -> Contestant:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        assert self._process.stdin is not None
        if kind is KeyboardInterrupt:
            self._process.kill()
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._errors.close()

    @property
    def ended(self) -> bool:
        """True if the process has ended."""
        return self._process.poll() is not None

    def ask(self, job: dict[str, Any], limit_s: float) -> dict[str, Any]:
        """Sends a job and returns the answer.

        Raises:
            Failed: if the job fails, the process ends, or it does not answer in time.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(job).encode() + b"\n")
            self._process.stdin.flush()
        if not select.select([self._process.stdout], [], [], limit_s)[0]:
            self._process.kill()
            self._process.wait()
            raise Failed(f"no answer in {limit_s:.0f} s")
        line = self._process.stdout.readline()
        if line:
            found: dict[str, Any] = json.loads(line)
            if "failed" in found:
                raise Failed(found["failed"])
            return found
        self._process.wait()
        self._errors.seek(0)
        said = self._errors.read().decode(errors="replace").strip().splitlines()
        raise Failed(said[-1].strip() if said else f"it ended with code {self._process.returncode}")
