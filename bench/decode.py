"""Decode, random resized crop to 224, flip and normalize to float32 NCHW on one core: feeder beside its rivals.

Held equal: the images (in the page cache), the batch of 64, the distribution of crops, the output, and one core for
each contestant with its threads. Contestants are processes that run in turn; outside their turn they are stopped
(SIGSTOP), so that no thread disturbs another contestant. Feeder's rows are its DataLoader without workers, as torch's,
over sets that ``feeder shard`` has made: "keep" of the original files, "seekable" of their lossless transcode, "packed"
of the same without Huffman codes, "raw" of uint8 arrays of at most 500 pixels on a side. Rivals read the original
files. First feeder's pixels are compared with those of its Pillow backend, and its planes with libjpeg-turbo's, which
must be equal to the bit. "uint8" is without normalizing, as in tf.data's row; "avx2" and "portable" are with fewer CPU
features. The "entropy" rows only decode the Huffman codes of whole images, "cut-packed" only makes the JPEGs that DALI
gets of packed images. The yardstick is libjpeg-turbo alone, decoding whole images to RGB. Ratios are of images per
CPU-second, which on an otherwise idle core are images per second. Bytes are those of the tars; "q75" are the images
encoded again at quality 75.

    python -m bench.decode --images IMAGES [--core 0] [--repeats 9] [--seconds 1] [--pillow-simd DIR]
        [--tensorflow PYTHON] [--turboloader PYTHON] [--only NAMES] [--json OUT]

--pillow-simd names a folder with pillow-simd (pip install --no-deps --target DIR pillow-simd), --tensorflow a Python
interpreter with tensorflow-cpu and numpy, --turboloader one with turboloader; without them these contestants are left
out, but for a turboloader that this interpreter has. --only names contestants, separated by commas.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from bench import decode_rivals
from bench.smoke import arguments
from feeder.tools.bench.result_file import interleave, save, spread
from feeder.tools.terminal import table

__all__ = ["Contestant", "main", "markdown"]

# (name, what it is divided by, the least it should be)
TARGETS = (
    ("feeder-packed", "dali", 9.0),
    ("feeder-packed-uint8", "dali", 12.0),
    ("feeder-seekable", "dali", 5.0),
    ("feeder-uint8", "dali", 5.8),
    ("feeder-keep", "dali", 3.3),
    ("feeder-packed-avx2", "dali", 7.0),
    ("feeder-uint8", "tensorflow", 1.9),
    ("entropy-seekable", "entropy-seekable-libjpeg", 2.0),
    ("entropy-keep", "entropy-keep-libjpeg", 1.3),
    ("feeder-validation", "dali-validation", 2.0),
    ("transcode", "libjpeg", 0.45),
    ("pack", "libjpeg", 0.5),
)
# The most bytes of packed tars, relative to those of seekable ones.
MOST_BYTES = {"photos": 1.22, "q75": 1.33}
RAW_SIDE_PX = 500
RAW_IMAGES_PER_CPU_S = 3000
RESIZE_320_US = 180
BOXES = 3  # of each file, beside the whole
_SMOKE = "feeder-seekable,feeder-packed,feeder-raw,entropy-keep,entropy-keep-libjpeg,libjpeg,pack"


def prepare(source: Path, work: Path) -> tuple[dict[str, Path], dict[str, dict[str, int]]]:
    """Makes shard sets of the images in each encoding, and folders of the original files and of their transcodes.

    Returns:
        The places by name; the bytes of the tars, of the photos and of the same at quality 75, by encoding.
    """
    from feeder import _native
    from feeder.shard.write.encode import EncodeOptions
    from feeder.shard.write.shard_options import ShardOptions
    from feeder.shard.write.sharding import shard

    places = {name: work / name for name in ("files", "transcodes", "q75")}
    for folder in places.values():
        folder.mkdir()
    paths = sorted(path for path in source.rglob("*") if path.suffix.lower() in (".jpg", ".jpeg"))
    if not paths:
        raise SystemExit(f"{source}: no .jpg or .jpeg file in it")
    for number, path in enumerate(paths):
        name = f"{number:06d}.jpg"
        data = path.read_bytes()
        shutil.copy(path, places["files"] / name)
        try:
            transcode = _native.transcode(data, keep_metadata=True)
        except _native.Unsupported:
            transcode = data
        (places["transcodes"] / name).write_bytes(transcode)
        Image.open(path).convert("RGB").save(places["q75"] / name, quality=75)

    def make(name: str, of: str, encode: EncodeOptions) -> int:
        places[name] = work / name
        shard(str(places[of]), str(places[name]), ShardOptions(encode=encode))
        return sum(tar.stat().st_size for tar in places[name].glob("*.tar"))

    photos = {name: make(name, "files", EncodeOptions(name)) for name in ("keep", "seekable", "packed")}
    photos["raw"] = make("raw", "files", EncodeOptions("raw", max_side=RAW_SIDE_PX))
    q75 = {name: make(f"q75-{name}", "q75", EncodeOptions(name)) for name in ("seekable", "packed")}
    tar_bytes = {"photos": photos, "q75": q75}
    print(f"seekable tars take {photos['seekable'] / photos['keep'] - 1:+.2%} more bytes than the original files'")
    for what, sizes in tar_bytes.items():
        print(f"{what}: packed tars take {sizes['packed'] / sizes['seekable']:.3f} times the bytes of seekable ones")
    return places, tar_bytes


def check(folder: Path) -> float:
    """Returns the mean absolute difference of feeder's first batch from that of its Pillow backend, in levels.

    Raises:
        SystemExit: if it is more than 0.6.
    """
    batches = [next(iter(decode_rivals.feeder_loader(str(folder), backend=name)))[0] for name in ("cpu", "pillow")]
    std = torch.tensor(decode_rivals.STD)[:, None, None]
    levels = float(((batches[0] - batches[1]).abs() * 255 * std).mean())
    if levels > 0.6:
        raise SystemExit(f"feeder is {levels:.2f} levels from Pillow on average, more than 0.6: nothing to time")
    return levels


def check_planes(folders: Iterable[Path]) -> dict[str, Any]:
    """Compares the planes of feeder's own decoder with libjpeg-turbo's, to the bit, in whole images and boxes.

    Returns:
        Numbers of files and boxes compared, the SIMD levels, and the number of files that feeder's decoder leaves out.

    Raises:
        SystemExit: if they differ.
    """
    from feeder import _native

    best, rng = _native.simd_level(), np.random.default_rng(0)
    levels = [level for level in ("portable", "avx2", "avx512") if _native.set_simd_level(level)]
    files = boxes = others = 0
    for path in sorted(path for folder in folders for path in folder.iterdir()):
        data = path.read_bytes()
        width, height = Image.open(path).size
        corners = rng.random((BOXES, 2, 2)) * (height, width)
        wanted = [(0, 0, width, height)]
        for (top, left), (bottom, right) in np.sort(corners, axis=1).astype(int).tolist():
            wanted.append((left, top, right + 1, bottom + 1))
        try:
            for level in levels:
                _native.set_simd_level(level)
                for box in wanted:
                    pairs = zip(
                        _native.jpeg_planes(data, box), _native.jpeg_planes(data, box, libjpeg=True), strict=True
                    )
                    if not all(np.array_equal(ours, theirs) for ours, theirs in pairs):
                        raise SystemExit(f"{path.name}: feeder's planes are not libjpeg-turbo's in {box} at {level}")
            files, boxes = files + 1, boxes + len(wanted)
        except _native.Unsupported:
            others += 1
    _native.set_simd_level(best)
    return {"files": files, "boxes": boxes, "levels": levels, "files_of_other_kinds": others}


class Contestant:
    """A rival's processes, pinned to the core and stopped outside their turn.

    Args:
        name: For messages.
        command: Starts it; it writes "ready" when its turn may begin.
        core: Number of the core.
        paths: Folders in front of its Python's own, of packages that it has instead of others.
    """

    def __init__(self, name: str, command: Sequence[str], core: int, paths: Sequence[Path] = ()) -> None:
        root = Path(__file__).resolve().parent.parent
        path = os.pathsep.join(map(str, (*paths, root)))
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": path}
        self._process = subprocess.Popen(
            ["taskset", "-c", str(core), *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
            start_new_session=True,  # its workers are stopped with it
        )
        self._name = name
        self.images_per_s: list[float] = []
        self.ready = self._answer("ready").removeprefix("ready").strip()
        self._send(signal.SIGSTOP)

    def _send(self, number: signal.Signals) -> None:
        os.killpg(self._process.pid, number)

    def _answer(self, expected: str = "{") -> str:
        assert self._process.stdout is not None
        while line := self._process.stdout.readline():
            if line.startswith(expected):
                return line
        raise SystemExit(f"{self._name} ended with code {self._process.wait()}")

    def ask(self, line: str) -> dict:
        assert self._process.stdin is not None
        self._send(signal.SIGCONT)
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        answer = json.loads(self._answer())
        self._send(signal.SIGSTOP)
        return answer

    def images_per_cpu_s(self, seconds: float) -> float:
        found = self.ask(str(seconds))
        self.images_per_s.append(found["images"] / found["seconds"])
        return found["images"] / found["cpu_seconds"]

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._send(
                signal.SIGKILL
            )  # while stopped it would not see the end of its input, and it has nothing to save
        self._process.communicate()


def markdown(result: dict[str, Any]) -> str:
    """Returns the table of a run with all contestants: images per CPU-second, and the relevant ratios."""
    found = result["images_per_cpu_s"]

    def rate(*names: str) -> str:
        return " / ".join(f"{found[name]['median']:,.0f}" for name in names)

    def times(rival: str, *names: str, digits: int = 1) -> str:
        turns = [[a / b for a, b in zip(found[name]["all"], found[rival]["all"], strict=True)] for name in names]
        return " / ".join(f"{statistics.median(ratios):.{digits}f}" for ratios in turns)

    beside_libjpeg = [times(f"{name}-libjpeg", name) for name in ("entropy-seekable", "entropy-keep")]
    rows = [
        ("", "images/CPU-s", ""),
        ("---", "---", "---"),
        (
            "feeder, seekable",
            rate("feeder-seekable"),
            f"{times('torch', 'feeder-seekable')} times torch, {times('dali', 'feeder-seekable')} times DALI",
        ),
        (
            "feeder, packed, float32 / uint8 output",
            rate("feeder-packed", "feeder-packed-uint8"),
            f"{times('dali', 'feeder-packed', 'feeder-packed-uint8')} times DALI, "
            f"{times('feeder-seekable', 'feeder-packed')} and "
            f"{times('feeder-uint8', 'feeder-packed-uint8')} times seekable",
        ),
        (
            "feeder, packed, AVX2 / portable",
            rate("feeder-packed-avx2", "feeder-packed-portable"),
            f"{times('dali', 'feeder-packed-avx2', 'feeder-packed-portable')} times DALI",
        ),
        ("feeder, ordinary JPEG", rate("feeder-keep"), f"{times('dali', 'feeder-keep')} times DALI"),
        (
            "feeder, seekable, AVX2 / portable",
            rate("feeder-avx2", "feeder-portable"),
            f"{times('dali', 'feeder-avx2', 'feeder-portable')} times DALI",
        ),
        (
            "feeder, seekable, uint8 output",
            rate("feeder-uint8"),
            f"{times('dali', 'feeder-uint8')} times DALI, {times('tensorflow', 'feeder-uint8')} times tf.data's "
            f"`decode_and_crop_jpeg` ({rate('tensorflow')})",
        ),
        (f"feeder, raw arrays of at most {RAW_SIDE_PX} pixels a side", rate("feeder-raw"), ""),
        (
            "feeder, seekable, Resize(256) and CenterCrop(224)",
            rate("feeder-validation"),
            f"{times('dali-validation', 'feeder-validation')} times DALI ({rate('dali-validation')})",
        ),
        (
            "entropy decoding alone, seekable / ordinary",
            rate("entropy-seekable", "entropy-keep"),
            f"{' / '.join(beside_libjpeg)} times libjpeg-turbo's",
        ),
        ("DALI on the CPU, original files", rate("dali"), ""),
        ("torch DataLoader with pillow-simd / with Pillow", rate("torch-simd", "torch"), ""),
        ("libjpeg-turbo alone, whole images to RGB", rate("libjpeg"), ""),
        (
            "lossless transcode",
            rate("transcode"),
            f"{times('libjpeg', 'transcode', digits=2)} of libjpeg-turbo's decode",
        ),
    ]
    rows.append(("packing", rate("pack"), f"{times('libjpeg', 'pack', digits=2)} of libjpeg-turbo's decode"))
    rows.append(("the JPEGs that DALI gets of packed images, made", rate("cut-packed"), ""))
    if "turboloader" in found:
        share = f"feeder, seekable: {times('turboloader', 'feeder-seekable')} times"
        rows.append(("TurboLoader, original files", rate("turboloader"), share))
    return "\n".join(f"| {a} | {b} | {c} |".replace("|  |", "| |") for a, b, c in rows).replace(" --- ", "---")


def main() -> int:
    args = arguments(
        __doc__,
        "decode",
        smoke={"core": min(os.sched_getaffinity(0)), "repeats": 1, "seconds": 0.01, "only": _SMOKE},
        images=None,
        core=0,
        repeats=9,
        seconds=1.0,
        pillow_simd="",
        tensorflow="",
        turboloader="",
        only="",
    )

    with tempfile.TemporaryDirectory() as work, contextlib.ExitStack() as closing:
        folders, tar_bytes = prepare(Path(args.images), Path(work))
        level = check(folders["seekable"])
        print(f"feeder is {level:.3f} levels from Pillow on average")
        planes = check_planes([folders["files"], folders["transcodes"]])
        print(f"equal to libjpeg-turbo's planes to the bit: {planes}")
        inputs = dict.fromkeys(("entropy-seekable", "entropy-seekable-libjpeg"), "transcodes")
        for name in decode_rivals.RIVALS:
            if name.startswith("feeder-") or name == "cut-packed":
                encoding = name.split("-")[1]
                inputs[name] = encoding if encoding in ("keep", "packed", "raw") else "seekable"
        names = args.only.split(",") if args.only else list(decode_rivals.RIVALS)
        if not args.pillow_simd and "torch-simd" in names:
            names.remove("torch-simd")
        if not args.tensorflow and "tensorflow" in names:
            names.remove("tensorflow")
        if not args.turboloader and find_spec("turboloader") is None and "turboloader" in names:
            names.remove("turboloader")
        pythons = {"tensorflow": args.tensorflow, "turboloader": args.turboloader}
        contestants = {}
        for name in names:
            python = pythons.get(name) or sys.executable
            command = [python, str(decode_rivals.__file__), name, str(folders[inputs.get(name, "files")])]
            if name == "torch-simd":
                command += ["--pillow-simd", args.pillow_simd]
            contestants[name] = Contestant(name, command, args.core)
            closing.callback(contestants[name].close)
        found = interleave(
            {name: functools.partial(c.images_per_cpu_s, args.seconds) for name, c in contestants.items()}, args.repeats
        )
        ours = contestants.get("feeder-seekable")
        stages = ours.ask(f"stages {folders['transcodes']}") if ours is not None else {}
        wall = {name: contestant.images_per_s for name, contestant in contestants.items()}

    rows = [["contestant", "images/CPU-s", "min", "max", "CPU ms/image", "of libjpeg", "images/s"]]
    yardstick = statistics.median(found["libjpeg"]) if "libjpeg" in found else float("nan")
    for name, values in found.items():
        median = statistics.median(values)
        rows.append(
            [
                name,
                *(f"{value:.0f}" for value in (median, min(values), max(values))),
                f"{1000 / median:.3f}",
                f"{median / yardstick:.2f}",
                f"{statistics.median(wall[name]):.0f}",
            ]
        )
    print(table(rows))
    ratios: list[dict[str, Any]] = []
    for name, rival, least in TARGETS:
        if name in found and rival in found:
            # A ratio within each turn, whose runs saw the same load on the machine; then the median.
            ratio = statistics.median(a / b for a, b in zip(found[name], found[rival], strict=True))
            ratios.append({"name": name, "rival": rival, "ratio": ratio, "least": least})
    good = all(r["ratio"] >= r["least"] for r in ratios)
    if "feeder-raw" in found:
        good = good and statistics.median(found["feeder-raw"]) >= RAW_IMAGES_PER_CPU_S
    if stages:
        good = good and stages["crop of 320x320"]["resize"] <= RESIZE_320_US
    for what, most in MOST_BYTES.items():
        good = good and tar_bytes[what]["packed"] <= most * tar_bytes[what]["seekable"]
    print(
        table(
            [
                ["ratio", "found", "wanted"],
                *([f"{r['name']} / {r['rival']}", f"{r['ratio']:.2f}", f"{r['least']:.2f}"] for r in ratios),
            ]
        )
    )
    for what, shares in stages.items():
        total = sum(shares.values())
        parts = ", ".join(
            f"{name} {value:.1f} ({100 * value / total:.0f} %)" for name, value in shares.items() if value
        )
        print(f"stages, {what}, microseconds an image (clock readings included): {parts}")
    # A rival that is not installed is a gap, not a target met.
    absent = sorted({rival for _, rival, _ in TARGETS if rival not in found} | ({"torch-simd"} - set(found)))
    if absent and not args.only:
        print(f"absent: {', '.join(absent)}")
    results: dict[str, Any] = {
        "absent": absent,
        "images_per_s": {name: spread(values) for name, values in wall.items()},
        "images_per_cpu_s": {name: spread(values) for name, values in found.items()},
        "ratios": ratios,
        "tar_bytes": tar_bytes,
        "stages_us": stages,
        "mean_levels_from_pillow": level,
        "planes_equal_to_libjpegs": planes,
        "core": args.core,
    }
    print(f"written: {save('decode', results, args.json)}")
    if not absent and not args.only:
        print(markdown(results))
    print("all targets met" if good else "a target was missed")
    return 0 if good or args.smoke else 1


if __name__ == "__main__":
    sys.exit(main())
