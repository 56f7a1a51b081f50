"""Compares two builds of the native module in turn, at every SIMD level and stage.

Held equal: the images and their lossless transcodes, the crops (random resized crop to 224, flip, normalize to float32
NCHW), the batch of 64, one core. Each build has its own process, which sleeps outside its turn. Nothing is timed unless
the pixels of both builds are equal at both fidelities.

us_per_image   CPU time of decoding, one pass over all images in each turn: the least, and the median of the ratios
stages_us      the same by stage: the least of all passes for each 16 images, including the time to read the clock

    python -m bench.decode_builds --images IMAGES --before OLD/feeder/_native.*.so [--before-commit HASH]
        [--after feeder/_native.*.so] [--repeats 15] [--core 0] [--json OUT]
"""

from __future__ import annotations

import hashlib
import importlib.util
import multiprocessing
import os
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from bench.smoke import arguments
from feeder.tools.bench.result_file import save, spread

__all__ = ["main", "markdown"]

BATCH, SIZE = 64, 224
# For the stages, which are timed by the wall clock: short enough to be undisturbed in one of the turns.
SHORT_BATCH = 16
LEVELS = ("avx512", "avx2", "portable")
KINDS = ("seekable", "ordinary")
LABELS = {
    "tables": "Huffman and quantization tables",
    "markers": "finding the restart markers",
    "unstuff": "unstuffing",
    "entropy": "Huffman decoding",
    "idct": "inverse DCT",
    "resize": "resize, color, flip, normalize, store",
}
STAGES = ("header", "tables", "markers", "unstuff", "entropy", "idct", "libjpeg", "resize")
_SCALE = (1 / (255 * np.array([0.229, 0.224, 0.225]))).astype(np.float32)
_BIAS = (-np.array([0.485, 0.456, 0.406]) / np.array([0.229, 0.224, 0.225])).astype(np.float32)


class _Build:
    """One native module with its work prepared."""

    def __init__(self, path: str, core: int, files: dict[str, list[bytes]], boxes: Any, flips: Any) -> None:
        os.sched_setaffinity(0, {core})
        spec = importlib.util.spec_from_file_location("_native", path)
        assert spec is not None
        assert spec.loader is not None
        self._native = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(self._native)
        self._files, self._boxes, self._flips = files, boxes, flips
        self._out = np.empty((BATCH, 3, SIZE, SIZE), np.float32)

    def level(self, level: str) -> bool:
        return bool(self._native.set_simd_level(level))

    def _batches(self, kind: str, size: int = BATCH, **options: Any) -> Any:
        for start in range(0, len(self._boxes), size):
            files, boxes = self._files[kind][start : start + size], self._boxes[start : start + size]
            out, flips = self._out[: len(files)], self._flips[start : start + size]
            affine = {"scale": _SCALE, "bias": _BIAS, "layout": "nchw", "dtype": "float32"}
            statuses, reasons = self._native.decode_batch(
                files, boxes.astype(np.float64), boxes, flips, np.ones(len(files), np.uint8), out, **affine, **options
            )
            if statuses.any():
                raise SystemExit(next(filter(None, reasons)))
            yield out

    def pixels(self, kind: str, fidelity: str) -> str:
        """Returns a hash of all pixels."""
        found = hashlib.sha256()
        for out in self._batches(kind, fidelity=fidelity):
            found.update(out.tobytes())
        return found.hexdigest()

    def cpu_us(self, kind: str) -> float:
        started = time.process_time()
        for _ in self._batches(kind):
            pass
        return (time.process_time() - started) * 1e6 / len(self._boxes)

    def stages_ns(self, kind: str) -> list[dict[str, int]]:
        """Returns nanoseconds by stage for each batch."""
        times: list[dict[str, int]] = []
        wanted: dict[str, int] = {}
        for _ in self._batches(kind, SHORT_BATCH, times=wanted):
            times.append(dict(wanted))
        return times


_build: _Build


def _open(*about: Any) -> None:
    global _build
    _build = _Build(*about)


def _call(method: str, *about: Any) -> Any:
    return getattr(_build, method)(*about)


class _Process:
    """The process of a build."""

    def __init__(self, *about: Any) -> None:
        context = multiprocessing.get_context("spawn")
        self._pool = ProcessPoolExecutor(1, mp_context=context, initializer=_open, initargs=about)

    def __call__(self, method: str, *about: Any) -> Any:
        return self._pool.submit(_call, method, *about).result()


def _work(folder: Path) -> tuple[dict[str, list[bytes]], Any, Any]:
    """Returns the JPEGs that can be transcoded, original and seekable, and the crops and flips drawn for them."""
    from feeder import _native
    from feeder.decoders.image_header import image_info
    from feeder.transforms import RandomHorizontalFlip, RandomResizedCrop, Recipe

    files: dict[str, list[bytes]] = {kind: [] for kind in KINDS}
    sizes = []
    for path in sorted(path for path in folder.rglob("*") if path.suffix.lower() in (".jpg", ".jpeg")):
        data = path.read_bytes()
        try:
            files["seekable"].append(_native.transcode(data, keep_metadata=True))
        except _native.Unsupported:
            continue
        files["ordinary"].append(data)
        info = image_info(data)
        sizes.append((info.height_px, info.width_px))
    if not sizes:
        raise SystemExit(f"{folder}: no JPEG in it that can be made seekable")
    recipe = Recipe.of([RandomResizedCrop(SIZE), RandomHorizontalFlip()])
    draws = recipe.draw(0, 0, np.arange(len(sizes)), np.array(sizes))
    upright = np.ascontiguousarray(draws.support_box, np.int32)
    return files, upright, np.asarray(draws.flip, np.uint8)


def _least(passes: Sequence[list[dict[str, int]]], images: int) -> dict[str, float]:
    """Returns microseconds per image, from the least pass of each batch and stage."""
    batches = list(zip(*passes, strict=True))
    return {
        stage: sum(min(times.get(f"{stage}_ns", 0) for times in batch) for batch in batches) / images / 1000
        for stage in STAGES
    }


def markdown(found: dict[str, Any]) -> str:
    """Returns a result's two tables: the stages at the best SIMD level, and the whole decode at each level."""
    best = next(iter(found["stages_us"])).partition(",")[0]
    columns = [found["stages_us"][f"{best}, {kind}"][name] for kind in KINDS for name in ("before", "after")]
    sums = [sum(column.values()) for column in columns]
    rows = [[LABELS[stage], *(column[stage] for column in columns)] for stage in STAGES if stage in LABELS]
    lines = [
        "| us per image | seekable, before | after | ordinary, before | after |",
        "|---|---|---|---|---|",
        *(
            f"| {label} | "
            + " | ".join(f"{v:.0f} ({v / total:.0%})" for v, total in zip(values, sums, strict=True))
            + " |"
            for label, *values in rows
        ),
        "",
        "| CPU us per image | before | after | times as fast |",
        "|---|---|---|---|",
    ]
    for where, both in found["us_per_image"].items():
        ratio = found["times_as_fast"][where]["median"]
        lines.append(f"| {where} | {both['before']['min']:.0f} | {both['after']['min']:.0f} | {ratio:.2f} |")
    return "\n".join(lines)


def main() -> None:
    from feeder import _native

    here = str(_native.__file__)
    options = arguments(
        __doc__,
        "decode_builds",
        smoke={"before": here, "repeats": 1},
        images=None,
        before=None,
        before_commit="",
        after=here,
        repeats=15,
        core=min(os.sched_getaffinity(0)),
    )
    files, boxes, flips = _work(Path(options.images))
    images = len(boxes)
    builds = {
        name: _Process(path, options.core, files, boxes, flips)
        for name, path in (("before", options.before), ("after", options.after))
    }
    for kind in files:
        for fidelity in ("fast", "exact"):
            if len({build("pixels", kind, fidelity) for build in builds.values()}) > 1:
                raise SystemExit(f"the builds differ in the {fidelity} pixels of {kind} files: nothing to time")
    levels = [level for level in LEVELS if all(build("level", level) for build in builds.values())]

    cpu: dict[tuple[str, str, str], list[float]] = {}
    stages: dict[tuple[str, str, str], list[list[dict[str, int]]]] = {}
    for turn in range(options.repeats):
        for level in levels:
            for kind in files:
                for name in sorted(builds, reverse=turn % 2 == 0):
                    build, key = builds[name], (level, kind, name)
                    build("level", level)
                    cpu.setdefault(key, []).append(build("cpu_us", kind))
                    stages.setdefault(key, []).append(build("stages_ns", kind))
        print(f"  {turn + 1}/{options.repeats}", flush=True)

    found: dict[str, Any] = {"us_per_image": {}, "times_as_fast": {}, "stages_us": {}}
    for level in levels:
        for kind in files:
            where, both = f"{level}, {kind}", [cpu[level, kind, name] for name in builds]
            found["us_per_image"][where] = {name: spread(cpu[level, kind, name]) for name in builds}
            found["times_as_fast"][where] = spread([a / b for a, b in zip(*both, strict=True)])
            found["stages_us"][where] = {name: _least(stages[level, kind, name], images) for name in builds}
    print(markdown(found))
    about = {"images": images, "before_commit": options.before_commit or None, "core": options.core}
    print(f"written to {save('decode_builds', {**about, **found}, options.json)}")


if __name__ == "__main__":
    main()
