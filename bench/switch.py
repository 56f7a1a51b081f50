"""Public training scripts as they are, and with the lines changed that take them to feeder: images per CPU-second.

The scripts of bench/switch_scripts have the data loading of public ones. The model's step is left out; the loader runs
on one core with all that it starts, workers included, on the same JPEGs (linked several times, so that an epoch is
long), and once on shards of them. Each is measured without and with one worker, and the better counts. Beside two of
them stands what DALI has for the purpose: its torchvision module after Pillow's decoding, and its proxy.

    python -m bench.switch --images IMAGES [--rivals DIR] [--only SCRIPTS] [--workers 0,1] [--core 0] [--repeats 9]
        [--seconds 3] [--json OUT]

Where torchvision can't be imported without help, as beside a torch for the CPU alone, dino is measured without workers:
its functions are of a module that imports torchvision, in workers too.

--rivals is bench/recipes.py's folder, for pillow-simd and timm; the script names the commands that install them.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from bench.decode import Contestant
from bench.recipes import Key, missing, take_turns
from bench.smoke import arguments
from bench.switch_rival import AS_IT_IS, DALI, EDITS, FOLDER, NEEDS_WORKERS, RIVALS, SHARDS, changed_lines
from bench.task_feeds.setting import Setting
from feeder.tools.bench.result_file import save, spread
from feeder.tools.terminal import table

__all__ = ["main", "many", "passage"]

GOALS = {FOLDER: 3.5, SHARDS: 6.0}
_HAS_TORCHVISION = importlib.util.find_spec("torchvision") is not None  # without help, which `missing` gives
_EPOCH = 10_000  # images, so that an epoch's beginning does not count


def many(images: Path, folder: Path, least: int) -> Path:
    """Links the images, as often as it takes to have so many, into folders of their classes; returns their folder."""
    paths = sorted(path for path in images.rglob("*") if path.is_file())
    for number in range(-(-least // len(paths))):
        for path in paths:
            place = folder / path.parent.name / f"{number}-{path.name}"
            place.parent.mkdir(parents=True, exist_ok=True)
            place.symlink_to(path.resolve())
    return folder


def measure(script: str, data: dict[str, Path], made: Path, options: Any) -> dict[str, Any]:
    """Returns the result of a script: rates and changed lines of each variant, and ratios to the script as it is."""
    needed = Path(options.rivals).resolve()
    amounts = list(map(int, options.workers.split(",")))
    if script == "dino" and not _HAS_TORCHVISION:
        amounts = [0]
    with contextlib.ExitStack() as closing:
        contestants: dict[Key, Contestant] = {}
        for variant in (AS_IT_IS, *EDITS[script], *RIVALS.get(script, {})):
            for workers in (each for each in amounts if each or (script, variant) not in NEEDS_WORKERS):
                command = [sys.executable, "-m", "bench.switch_rival", script, variant, str(workers)]
                command += [str(data[variant]), str(made), str(options.image_size), str(options.batch_size)]
                paths = [needed / "pillow-simd", needed / "timm"]
                contestants[variant, script, workers] = Contestant(variant, command, options.core, paths)
                closing.callback(contestants[variant, script, workers].close)
        trials, found = take_turns(contestants, options.repeats, options.seconds)

    plain = next(values for (variant, _, _), values in found.items() if variant == AS_IT_IS)
    result: dict[str, Any] = {"trials": {f"{key[0]}, {key[2]}": spread(values) for key, values in trials.items()}}
    for (variant, _, workers), values in found.items():
        ratio = spread([a / b for a, b in zip(values, plain, strict=True)])
        result[variant] = {"workers": workers, "images_per_cpu_s": spread(values), "ratio": ratio}
        result[variant]["changed_lines"] = changed_lines(script, variant)
    return result


def missed(results: dict[str, Any]) -> list[str]:
    """Lists the goals that were not reached."""
    return [
        f"{script}, {variant}: {found[variant]['ratio']['median']:.2f}, the goal is {goal:g}"
        for script, found in results.items()
        for variant, goal in GOALS.items()
        if variant in found and found[variant]["ratio"]["median"] < goal
    ]


def markdown(results: dict[str, Any]) -> str:
    """Returns the table of the docs: images per CPU-second, and the lines that were changed."""
    lines = [
        "| script | as it is | the same files | lines | shards | lines | DALI | lines |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for script, found in ((script, results[script]) for script in EDITS if script in results):
        cells = [f"{found[AS_IT_IS]['images_per_cpu_s']['median']:,.0f}"]
        for variant in (FOLDER, SHARDS, DALI):
            cells += ["–", "–"]
            if variant in found:
                cells[-2] = f"{found[variant]['ratio']['median']:.1f}x"
                cells[-1] = str(found[variant]["changed_lines"])
        lines.append(f"| `{script}` | {' | '.join(cells)} |")
    return "\n".join(lines)


def passage(result: dict[str, Any]) -> str:
    """Returns the section of docs/switching.md."""
    return (
        "## Measured\n\n"
        f"Images per CPU-second on one core of {result['machine']['processor']}, without the model's step and with\n"
        "the CPU time of workers, each script with the better of no worker and one. Scripts have the shape of the\n"
        "public ones. Multiples are of the script as it is, in the same run, and lines are those that change. DALI is\n"
        "its torchvision module in `imagenet` and its proxy in `own_dataset`, on the CPU alone\n"
        f"([result](../bench/results/switch.json)):\n\n{markdown(result)}"
    )


def main() -> None:
    smoke: dict[str, Any] = {"only": "own_dataset", "workers": "0", "core": min(os.sched_getaffinity(0)), "repeats": 1}
    smoke |= {"seconds": 0.01, "image_size": 32, "batch_size": 4, "epoch": 16}
    extent: dict[str, Any] = {"workers": "0,1", "core": 0, "repeats": 9, "seconds": 3.0, "epoch": _EPOCH}
    options = arguments(
        __doc__, "switch", smoke, images=None, rivals="rivals", only="", image_size=224, batch_size=64, **extent
    )
    scripts = options.only.split(",") if options.only else [*EDITS]
    needed = {"torchvision", "pillow-simd", *(["timm"] if "timm_train" in scripts else [])}
    absent = {name: command for name, command in missing(Path(options.rivals)).items() if name in needed}
    if options.smoke and "torchvision" in absent:
        save("switch", {"skipped": "torchvision is not installed"}, options.json)
        return
    if absent and not options.smoke:
        raise SystemExit("\n  ".join(["missing:", *absent.values()]))

    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="feeder-switch-") as folder:
        made = Path(folder)
        files = many(Path(options.images), made / "files", options.epoch)
        shards = Path(Setting(str(files), made, 0, options.image_size, options.batch_size).shards())
        data = {AS_IT_IS: files, FOLDER: files, SHARDS: shards, DALI: files}
        for script in scripts:
            results[script] = measure(script, data, made, options)
    rows = [["script", "variant", "workers", "images/CPU-s", "min", "max"]]
    for script, found in results.items():
        for variant in data.keys() & found.keys():
            rate = found[variant]["images_per_cpu_s"]
            rows.append(
                [script, variant, str(found[variant]["workers"]), *(f"{rate[k]:.0f}" for k in ("median", "min", "max"))]
            )
    print(table(rows))
    print(markdown(results))
    for line in missed(results):
        print(f"missed: {line}")
    print(f"written to {save('switch', {**results, 'goals_missed': missed(results)}, options.json)}")


if __name__ == "__main__":
    main()
