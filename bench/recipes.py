"""Augmentation recipes on one core: feeder beside its rivals, images per CPU-second.

Held equal: the images (the original JPEGs, in the page cache; feeder's sets are made of them), RandomResizedCrop(224)
and flip in front, batches of 64, normalized float32 NCHW at the end, and one core for a contestant with all that it
starts. Contestants take turns, and are stopped (SIGSTOP) outside their turn. Each first runs without and with one
worker, and goes on with the better. Each recipe's turns include feeder's without its ops, the base. Ratios are within a
turn.

feeder           its DataLoader on the files as they are, on seekable and on packed shards
torchvision      torch's DataLoader, v1 on Pillow's images and on pillow-simd's: floats from the worker, or "uint8
                 batches", normalized as a whole; and v2 on uint8 tensors (antialias), decoded by pillow-simd
AlbumentationsX  torch's DataLoader with OpenCV, without its threads: INTER_LINEAR, which does not antialias, and
                 INTER_AREA; and albumentations 2.0.8, the last under MIT's licence. They have no RandAugment and kin.
DALI             on the CPU, one thread, queues of 2 and 3 batches, exact and fast IDCT. It decodes the crop alone and
                 flips last. Its policies' op sets, the order of its color ops and their pivots differ; its batches stay
                 in its own memory.
timm             the recipe is timm's own transform on torchvision's rows, with bilinear resizing, and the same ops of
                 feeder.transforms on feeder's; like timm, it drops the jitter beside RandAugment.

    python -m bench.recipes --images IMAGES --rivals DIR [--without NAMES] [--only RECIPES] [--core 0] [--repeats 9]
        [--seconds 3] [--json OUT]

--rivals is a folder with a folder for each package that does not live beside the others; the script names the command
that installs what is missing. --without leaves out packages, --only names recipes, both separated by commas: the
result file's other recipes then stay in it. Each recipe notes the commit and the processor that it was measured on.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from bench.decode import Contestant
from bench.recipe_rivals import RECIPES, RIVALS, unable
from bench.smoke import arguments
from bench.task_feeds.setting import Setting, finds_torchvision
from feeder.decoders.registry import dali_is_installed
from feeder.tools.bench.result_file import interleave, machine, save, spread
from feeder.tools.terminal import table

__all__ = ["OURS", "RECIPES", "Key", "better", "main", "markdown", "missing", "overview", "take_turns"]

_ONE = "pip install --no-deps --target {folder}/{name}"
INSTALL = {
    "torchvision": "make env",
    "dali": "pip install nvidia-dali-cuda130",
    "pillow": f"{_ONE} pillow==12.1.1",  # timm's Posterize asks for 0 bits, which Pillow 13 refuses
    "pillow-simd": f"CC='cc -mavx2' {_ONE} --no-cache-dir --no-binary pillow-simd pillow-simd",
    "timm": f"{_ONE} timm",
    "albumentationsx": "pip install --target {folder}/{name} albumentationsx opencv-python-headless",
    "albumentations": "pip install --target {folder}/{name} albumentations==2.0.8 opencv-python-headless",
}
# (recipe, contestant): the least ratio to the fastest rival, and to the base
GOALS = {
    ("jitter", "seekable"): (6.0, 0.90),
    ("randaugment", "seekable"): (7.0, 0.90),
    ("randaugment", "packed"): (12.0, 0.85),
    ("trivialaugment", "seekable"): (6.0, 0.90),
    ("autoaugment", "seekable"): (6.0, 0.90),
    ("timm", "seekable"): (6.0, 0.80),
    ("simclr", "seekable"): (5.0, 0.75),
    ("dino", "seekable"): (4.0, None),
    ("erasing", "seekable"): (None, 0.97),
    ("lambda", "seekable"): (None, 0.85),
}
BASE = "nothing"
_SHOWN = (BASE, "jitter", "randaugment", "trivialaugment", "autoaugment", "timm", "simclr", "dino")  # in README
_TRIALS = 2  # of each number of workers
OURS = tuple(name for name in RIVALS if name.startswith("feeder, "))
_MOST_APART = 0.25  # of the means of contestants' first batches, in deviations of the pixels
Key = tuple[str, str, int]  # contestant, recipe, workers


def missing(folder: Path) -> dict[str, str]:
    """Returns the commands that install the packages which are not there, by name."""
    found = {"torchvision": finds_torchvision, "dali": dali_is_installed}
    absent = (name for name in INSTALL if not found.get(name, (folder / name).is_dir)())
    return {name: INSTALL[name].format(folder=folder, name=name) for name in absent}


def left_out(recipe: str, without: set[str]) -> dict[str, str]:
    """Returns the contestants that do not run a recipe, with the reason."""
    found = {}
    for name, rival in RIVALS.items():
        needs = {*rival.needs, *(["timm"] if recipe == "timm" and rival.needs else [])}
        reason = unable(name, recipe) or ", ".join(f"without {need}" for need in sorted(needs & without))
        if reason:
            found[name] = reason
    return found


def better(found: dict[Key, list[float]]) -> list[Key]:
    """Returns each contestant's key of the number of workers with the higher rate, for each recipe."""
    best: dict[tuple[str, str], Key] = {}
    for key, values in found.items():
        other = best.get(key[:2])
        if other is None or statistics.median(values) > statistics.median(found[other]):
            best[key[:2]] = key
    return list(best.values())


def take_turns(
    contestants: dict[Key, Contestant], repeats: int, seconds: float
) -> tuple[dict[Key, list[float]], dict[Key, list[float]]]:
    """Returns images per CPU-second: of trials, and of the turns of those with the better number of workers."""

    def turns(keys: Iterable[Key], times: int) -> dict[Key, list[float]]:
        names = {", ".join(map(str, key)): key for key in keys}
        runs = {name: functools.partial(contestants[key].images_per_cpu_s, seconds) for name, key in names.items()}
        return dict(zip(names.values(), interleave(runs, times).values(), strict=True))

    trials = turns(contestants, min(_TRIALS, repeats))
    return trials, turns(better(trials), repeats)


def measure(
    recipe: str, names: list[str], setting: Setting, options: Any
) -> tuple[dict[Key, list[float]], dict[Key, list[float]], dict]:
    """Returns images per CPU-second of trials and of turns, and what contestants said of their first batches."""
    pairs = [(name, recipe) for name in names]
    if recipe not in (BASE, "dino"):
        pairs += [(name, BASE) for name in OURS if name in names]
    amounts = list(map(int, options.workers.split(",")))
    keys = [(*pair, amount) for pair in pairs for amount in RIVALS[pair[0]].workers if amount in amounts]

    with contextlib.ExitStack() as closing:
        contestants: dict[Key, Contestant] = {}
        for name, what, workers in keys:
            command = [sys.executable, "-m", "bench.recipe_rivals", name, what, str(workers), setting.images]
            command += [str(setting.made), str(setting.image_size), str(setting.batch_size)]
            paths = [Path(options.rivals).resolve() / need for need in (*RIVALS[name].needs, "timm")]
            contestants[name, what, workers] = Contestant(name, command, options.core, paths)
            closing.callback(contestants[name, what, workers].close)
        trials, found = take_turns(contestants, options.repeats, options.seconds)
    said = {key: json.loads(made.ready) for key, made in contestants.items()}
    return trials, found, said


def check(said: dict[Key, dict[str, Any]]) -> None:
    """Compares the pixels of contestants without ops.

    Raises:
        SystemExit: if a contestant's mean or deviation is not the others': its crops, resizing or values differ.
    """
    for what in ("mean", "std"):
        typical = statistics.median(each[what] for each in said.values())
        for (name, _, _), each in said.items():
            if abs(each[what] - typical) > _MOST_APART:
                raise SystemExit(f"{name}: {what} of the pixels is {each[what]:.2f}, of the others' {typical:.2f}")


def summary(found: dict[Key, list[float]], recipe: str) -> dict[str, Any]:
    """Returns each contestant's rates, and feeder's beside the fastest rival and beside the base."""

    def rates_of(what: str) -> dict[str, dict[str, Any]]:
        return {
            name: {"workers": workers, **spread(values)} for (name, of, workers), values in found.items() if of == what
        }

    def ratio(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
        return spread([a / b for a, b in zip(one["all"], other["all"], strict=True)])

    rates, base = rates_of(recipe), rates_of(BASE)
    result: dict[str, Any] = {"images_per_cpu_s": rates}
    ours = [name for name in OURS if name in rates]
    rivals = {name: rate for name, rate in rates.items() if name not in OURS}
    if rivals:
        fastest = max(rivals, key=lambda name: rivals[name]["median"])
        result["fastest_rival"] = fastest
        result["ratio"] = {name: ratio(rates[name], rivals[fastest]) for name in ours}
    result["of_base"] = {name: ratio(rates[name], base[name]) for name in ours if name in base}
    return result


def missed(results: dict[str, Any]) -> list[str]:
    """Lists the goals that were not reached."""
    found = []
    for (recipe, kind), goals in GOALS.items():
        for what, goal in zip(("ratio", "of_base"), goals, strict=True):
            got = results.get(recipe, {}).get(what, {}).get(f"feeder, {kind}")
            if goal is not None and got is not None and got["median"] < goal:
                found.append(f"{recipe}, {kind}, {what}: {got['median']:.2f}, the goal is {goal:g}")
    return found


def markdown(results: dict[str, Any]) -> str:
    """Returns the table of docs/performance.md: images per CPU-second, ratios of seekable shards in brackets packed."""
    lines = [
        "| RandomResizedCrop(224), flip, normalize and | files | seekable | packed | fastest rival | seekable, packed "
        "relative to it | relative to nothing |",
        "|---|---:|---:|---:|---|---:|---:|",
    ]
    for recipe, label in RECIPES.items():
        found = results.get(recipe)
        if found is None:
            continue
        rates = found["images_per_cpu_s"]
        cells = [f"{rates[name]['median']:,.0f}" if name in rates else "–" for name in OURS]
        fastest = found.get("fastest_rival")
        cells.append(f"{fastest} {rates[fastest]['median']:,.0f}" if fastest else "–")
        for what, digits in (("ratio", 1), ("of_base", 2)):
            ratios = [found.get(what, {}).get(name) for name in OURS[1:]]
            cells.append(", ".join(f"{each['median']:.{digits}f}" for each in ratios if each) or "–")
        lines.append(f"| {label} | {' | '.join(cells)} |")
    return "\n".join(lines)


def overview(results: dict[str, Any]) -> str:
    """Returns the table of README: images per CPU-second of feeder, and of the best contestant of each rival."""
    names = ("packed", "seekable", "your files", "DALI", "Albumentations", "torchvision + Pillow")
    lines = [
        f"| RandomResizedCrop(224), flip, normalize and | {' | '.join(names)} |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for recipe in _SHOWN:
        rates = results[recipe]["images_per_cpu_s"] if recipe in results else {}
        cells = [rates[name]["median"] for name in reversed(OURS) if name in rates]
        for rival in ("DALI", "lbumentations", "torchvision") if rates else ():
            cells.append(max((rate["median"] for name, rate in rates.items() if rival in name), default=None))
        if cells:
            texts = ["–" if cell is None else f"{cell:,.0f}" for cell in cells]
            lines.append(f"| {RECIPES[recipe]} | {' | '.join(texts)} |")
    return "\n".join(lines)


def main() -> None:
    smoke: dict[str, Any] = {"only": "erasing", "workers": "0", "core": min(os.sched_getaffinity(0)), "repeats": 1}
    smoke |= {"seconds": 0.01, "image_size": 32, "batch_size": 4}
    sizes: dict[str, Any] = {"image_size": 224, "batch_size": 64}
    extent: dict[str, Any] = {"workers": "0,1", "core": 0, "repeats": 9, "seconds": 3.0}
    options = arguments(__doc__, "recipes", smoke, images=None, rivals="rivals", without="", only="", **extent, **sizes)
    without = set(filter(None, options.without.split(",")))
    absent = missing(Path(options.rivals))
    if options.smoke:
        without |= absent.keys()
    if absent.keys() - without:
        commands = [f"  {command}    # or --without {name}" for name, command in absent.items() if name not in without]
        raise SystemExit("\n".join(["missing rivals:", *commands]))

    os.environ["NO_ALBUMENTATIONS_UPDATE"] = "1"  # it asks PyPI for its newest version when it is imported
    results: dict[str, Any] = {}
    rows = [["recipe", "contestant", "workers", "images/CPU-s", "min", "max"]]
    with tempfile.TemporaryDirectory(prefix="feeder-recipes-") as made:
        images = str(Path(options.images).resolve())
        setting = Setting(images, Path(made), 0, options.image_size, options.batch_size)
        for encode in ("seekable", "packed"):
            setting.shards(encode)
        for recipe in options.only.split(",") if options.only else RECIPES:
            reasons = left_out(recipe, without)
            names = [name for name in RIVALS if name not in reasons]
            print(f"{recipe}; left out: {reasons}", flush=True)
            if not names:
                continue
            trials, found, said = measure(recipe, names, setting, options)
            if recipe == BASE and not options.smoke:
                check(said)
            by_workers = {f"{name}, {workers}": spread(v) for (name, of, workers), v in trials.items() if of == recipe}
            on = {key: machine()[key] for key in ("processor", "commit", "date")}
            versions = {name: version for each in said.values() for name, version in each["versions"].items()}
            how = {"trials": by_workers, "left_out": reasons, "machine": on, "rivals": versions}
            results[recipe] = {**summary(found, recipe), **how}
            for name, rate in results[recipe]["images_per_cpu_s"].items():
                figures = [f"{rate[key]:.0f}" for key in ("median", "min", "max")]
                rows.append([recipe, name, str(rate["workers"]), *figures])
    print(table(rows))
    if options.only and Path(options.json).exists():
        before = json.loads(Path(options.json).read_text())
        results = {recipe: before[recipe] for recipe in RECIPES if recipe in before} | results
    print(markdown(results), overview(results), sep="\n\n")
    for line in missed(results):
        print(f"missed: {line}")
    result = {**results, "without": sorted(without), "goals_missed": missed(results)}
    print(f"written to {save('recipes', result, options.json)}")


if __name__ == "__main__":
    main()
