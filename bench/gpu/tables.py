"""The tables of docs/gpu.md, and the README's sentence, from the results in bench/results/gpu.

python -m bench.gpu.tables     writes both between their marks; exits with 1 if results can't be committed as they are,
                               or if a missed goal has no reason yet

A figure is the median of the rounds, with the least and the largest; a ratio is computed in each round. Each goal that
was missed gets a line in docs/gpu.md, in which a person writes the reason. Reasons stay when the tables are made again.
"""

from __future__ import annotations

import json
import re
import statistics
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bench import ladder
from bench.gpu import cuda, feed, train
from feeder.tools.bench.result_file import processor_name

__all__ = [
    "MARKS",
    "NO_REASON",
    "RESULTS",
    "Goal",
    "documents",
    "faults",
    "filled",
    "goals",
    "markdown",
    "read",
    "sentence",
]

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "bench/results/gpu"
NO_REASON = "REASON MISSING"
NOTHING = "No results are committed."
MARKS = ("goals", "reasons", "tables", "sentence")
_REASON = re.compile(r"^- \*\*(.+?)\*\*: (.+(?:\n  .+)*)", re.MULTILINE)

Results = Mapping[str, dict[str, Any]]


class Goal(NamedTuple):
    """A figure with a goal.

    Attributes:
        name: The figure's name, which is unique.
        values: Its values, one a round.
        limit: The goal.
        at_most: True if less is better.
    """

    name: str
    values: tuple[float, ...]
    limit: float
    at_most: bool = False

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def is_reached(self) -> bool:
        return self.median <= self.limit if self.at_most else self.median >= self.limit


def read(folder: Path = RESULTS) -> dict[str, dict[str, Any]]:
    """Reads the results in a folder, by file name without ".json"; those of a machine without a GPU are left out."""
    found = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))}
    # Elsewhere "skipped" is a count of tests.
    return {name: result for name, result in found.items() if not isinstance(result.get("skipped"), str)}


def faults(results: Results) -> list[str]:
    """Returns why results can't be committed: each has to name its GPU, driver, torch and a clean commit, all one."""
    found = []
    for name, result in results.items():
        machine, gpu = result.get("machine", {}), result.get("gpu", {})
        named = {"the GPU": gpu.get("name"), "its driver": gpu.get("driver")}
        named["torch"] = machine.get("versions", {}).get("torch")
        found += [f"{name}: does not name {what}" for what, value in named.items() if not value]
        if not re.fullmatch("[0-9a-f]{40}", str(machine.get("commit"))):
            found.append(f"{name}: is of commit {machine.get('commit')}, not of a clean one")
    commits = {str(result.get("machine", {}).get("commit")) for result in results.values()}
    return [*found, *([f"several commits: {', '.join(sorted(commits))}"] if len(commits) > 1 else [])]


def goals(results: Results) -> list[Goal]:
    """Returns the goals of the rows that there are; of kernel 1 that of the slowest form."""
    found = []
    forms = results.get("gpu-kernels", {}).get("normalize", [])
    if forms:
        slowest = min(forms, key=lambda row: statistics.median(_of_copy(row)))
        kernel = slowest["kernel"].removeprefix("normalize ")
        found.append(Goal(f"kernel 1, of a copy's bandwidth, slowest form ({kernel})", _of_copy(slowest), 0.8))
    transfer = results.get("gpu-transfer", {})
    if "bandwidth" in transfer:
        found.append(Goal("copy from a slot, of one from torch's pinned memory", _of_pinned(transfer), 0.95))
    if "overlap" in transfer:
        found.append(Goal(f"copies' time that {_hiding(transfer)} hide", (transfer["overlap"]["hidden (0.95)"],), 0.95))
    for result in _feeds(results):
        found += _named(_feed_goals(result), f"{result['workers']} workers: ")
    if "rows" in results.get("gpu-cuda", {}):
        found += _named(_by_round(results["gpu-cuda"]["rows"], cuda.goals), "feeder's decoder: ")
    if "rows" in results.get("gpu-train", {}):
        found += _named(_by_round(_best_fed(results["gpu-train"]), _train_goals), "ResNet-50: ")
    return found


def _hiding(transfer: Mapping[str, Any]) -> str:
    """Results without a share of matrix products have no other."""
    return "kernels" if "hidden_by_products" in transfer.get("overlap", {}) else "matrix products alone"


def _of_copy(row: Mapping[str, Any]) -> tuple[float, ...]:
    return _ratios(row["copy_seconds"], row["seconds"])


def _of_pinned(transfer: Mapping[str, Any]) -> tuple[float, ...]:
    return _ratios(transfer["bandwidth"]["gb_per_s"]["slot"], transfer["bandwidth"]["gb_per_s"]["pinned"])


def _ratios(above: Mapping[str, Any], below: Mapping[str, Any]) -> tuple[float, ...]:
    """Returns one spread divided by another, in each round that both have."""
    return tuple(a / b for a, b in zip(above["all"], below["all"], strict=False))


def _feeds(results: Results) -> Iterator[dict[str, Any]]:
    """The results of bench.gpu.feed that have rows, by their workers."""
    names = (f"gpu-feed-{workers}" for workers in (4, 8, 16))
    return (results[name] for name in names if "rows" in results.get(name, {}))


def _feed_goals(result: Mapping[str, Any]) -> dict[str, list[float]]:
    rows, workers = result["rows"], result["workers"]

    def found(rows: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
        return feed.goals({name: row["images_per_s"] for name, row in rows.items()}, workers)

    whole = {name: values for name, values in _by_round(rows, found).items() if not name.startswith("best")}
    best = _best_of(rows, "feeder")
    if best is None:
        return whole
    # The same rival in all rounds: the best of each would be better than any.
    against = _by_round(
        {best: rows[best], **{name: row for name, row in rows.items() if name.startswith("torch")}}, found
    )
    return whole | {name.replace("best of feeder", best): values for name, values in against.items()}


def _best_of(rows: Mapping[str, Any], prefix: str) -> str | None:
    names = [name for name in rows if name.startswith(prefix)]
    return max(names, key=lambda name: rows[name]["images_per_s"]["median"], default=None)


def _best_fed(result: Mapping[str, Any]) -> dict[str, Any]:
    """The rows of the resident batch and of the fastest loader."""
    rows = result["rows"]
    kept = {_best_of({name: row for name, row in rows.items() if name != train.RESIDENT}, ""), train.RESIDENT}
    return {name: row for name, row in rows.items() if name in kept}


def _train_goals(rows: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    return dict(train.reached({name: dict(row) for name, row in rows.items()}).get("goals", {}))


def _by_round(
    rows: Mapping[str, Any], compute: Callable[[Mapping[str, Mapping[str, float]]], Mapping[str, float]]
) -> dict[str, list[float]]:
    """Computes figures in each round, of the rows that it has."""
    found: dict[str, list[float]] = {}
    for turn in range(max(len(row["images_per_s"]["all"]) for row in rows.values())):
        having = {name: row for name, row in rows.items() if len(row["images_per_s"]["all"]) > turn}
        values = {name: {key: each["all"][turn] for key, each in row.items()} for name, row in having.items()}
        for name, value in compute(values).items():
            found.setdefault(name, []).append(value)
    return found


def _named(found: Mapping[str, Sequence[float]], prefix: str) -> list[Goal]:
    """Makes goals of figures whose names end with the goal in parentheses; others have none."""
    goals = []
    for name, values in found.items():
        goal = re.fullmatch(r"(.+?)(, at most)? \(([\d.]+)\)", name)
        if goal is not None:
            goals.append(Goal(prefix + goal[1], tuple(values), float(goal[3]), goal[2] is not None))
    return goals


def markdown(results: Results) -> str:
    """Returns the tables below the goals, of the results that there are."""
    parts = [_feed(result) for result in _feeds(results)]
    parts += [_train(results.get("gpu-train", {})), _cuda(results.get("gpu-cuda", {}))]
    parts += [_kernels(results.get("gpu-kernels", {})), _transfer(results.get("gpu-transfer", {}))]
    parts += [_ladder(results.get("gpu-ladder", {})), _parity(results), _tests(results)]
    return "\n\n".join(part for part in parts if part)


def _machines(results: Results) -> str:
    """A paragraph for each machine, with the results from it, and one for the images."""
    machines: dict[str, list[str]] = {}
    images: dict[str, None] = {}
    for name, result in results.items():
        machine, gpu = result["machine"], result["gpu"]
        versions = machine["versions"]
        text = (
            f"{gpu['name']} ({gpu['memory_gib']} GiB, driver {gpu['driver']}), {machine['cores']} cores of "
            f"{processor_name(machine)}; torch {versions['torch']} for CUDA {gpu['torch_cuda']}, "
            f"Triton {gpu['triton']['version']}, DALI {versions['dali'] or 'absent'}; "
            f"commit {(machine['commit'] or 'unknown')[:12]}"
        )
        machines.setdefault(text, []).append(name)
        found = result.get("images")
        if isinstance(found, dict):  # a parity report has a number there
            images[
                f"The images: {found['distinct']:,} different JPEGs of {found['mean_bytes'] / 1000:,.0f} KB and "
                f"{found['mean_pixels'] / 1e6:.2f} megapixels on average, {found['samples']:,} samples by links."
            ] = None
    if len(machines) == 1:
        return "\n\n".join([f"{next(iter(machines))}.", *images])
    return "\n\n".join([f"{text}: {', '.join(names)}." for text, names in machines.items()] + list(images))


def _goals(results: Results) -> str:
    if not results:
        return NOTHING
    rows = []
    for goal in goals(results):
        limit = f"at {'most' if goal.at_most else 'least'} {goal.limit:,g}"
        rows.append([goal.name, limit, *_with_spread(goal.values), "yes" if goal.is_reached else "**no**"])
    table = _table("### Goals", ["figure", "goal", "median", "rounds", "reached"], rows)
    return "\n\n".join(part for part in (_machines(results), table) if part)


def _feed(result: Mapping[str, Any]) -> str:
    workers, rows = result["workers"], []
    for name, row in result["rows"].items():
        given = result.get("processes_and_dali_threads", {}).get(name, "")
        cores = f"{row['cores_per_1000_images_per_s']['median']:.2f}"
        rows.append([name, given, *_with_spread(row["images_per_s"]["all"]), cores])
    head = ["loader", "processes + DALI threads", "images/s", "rounds", "CPU cores for 1,000 images/s"]
    return _table(f"### Images/s with {workers} workers", head, rows, result)


def _train(result: Mapping[str, Any]) -> str:
    rows = []
    whole = result.get("rows", {}).get(train.RESIDENT)
    for name, row in result.get("rows", {}).items():
        used = row.get("gpu_utilisation_percent")
        shares = _ratios(row["images_per_s"], whole["images_per_s"]) if whole and row is not whole else ()
        rows.append([name, f"{row['images_per_s']['median']:,.0f}", *(_with_spread(shares) if shares else ("", ""))])
        rows[-1] += [f"{used['median']:.1f} %" if used else "unknown"]
        rows[-1] += [f"{row['cores_per_1000_images_per_s']['median']:.2f}"]
    head = ["batches", "images/s", "of the resident batch", "rounds", "GPU used", "CPU cores for 1,000 images/s"]
    title = f"### ResNet-50, {result.get('workers')} workers"
    return _table(title, head, rows, result)


def _cuda(result: Mapping[str, Any]) -> str:
    rows = []
    for name, row in result.get("rows", {}).items():
        cpu_us = 1000 * row["cores_per_1000_images_per_s"]["median"]
        rows.append([name, *_with_spread(row["images_per_s"]["all"]), f"{cpu_us:.0f}"])
    title = f"### feeder's decoder, {result.get('workers')} workers"
    return _table(title, ["loader", "images/s", "rounds", "CPU us an image"], rows, result)


def _kernels(result: Mapping[str, Any]) -> str:
    rows = []
    for row in result.get("normalize", []):
        rates = [f"{row[name]:,.0f}" for name in ("gb_per_s", "copy_gb_per_s")]
        rows.append([row["kernel"].removeprefix("normalize "), *rates, *_with_spread(_of_copy(row))])
    first = _table("### Kernels", ["kernel 1", "GB/s", "copy, GB/s", "of the copy", "rounds"], rows, result)
    rows = []
    for row in result.get("crop_resize", []):
        images_per_s = [result["batch"] / seconds for seconds in row["seconds"]["all"]]
        rows.append([f"{row['crop']} to 224x224", *_with_spread(images_per_s)])
    second = _table("", ["kernel 2", "images/s", "rounds"], rows)
    return "\n\n".join(part for part in (first, second) if part)


def _transfer(result: Mapping[str, Any]) -> str:
    rows = []
    if "bandwidth" in result:
        rates = result["bandwidth"]["gb_per_s"]
        for name, label in (("slot", "from a page-locked slot"), ("pinned", "from torch's pinned memory")):
            rows.append([f"{label}, GB/s", *_with_spread(rates[name]["all"])])
    for name, label in (
        ("hidden (0.95)", f"share of the copies' time that {_hiding(result)} hide"),
        ("hidden_by_products", "share that matrix products alone hide"),
        ("products_busy_share", "share of all time that the products run"),
    ):
        if name in result.get("overlap", {}):
            rows.append([label, *_with_spread([result["overlap"][name]])])
    return _table("### Copies to the GPU", ["", "median", "rounds"], rows, result)


def _ladder(result: Mapping[str, Any]) -> str:
    if "rows" not in result:
        return ""
    return f"### From a naive loop to a busy GPU\n\n{ladder.render(dict(result), markdown=True)}"


def _parity(results: Results) -> str:
    rows = []
    for name, report in results.items():
        if not name.startswith("parity-"):
            continue
        buckets = [bucket for bucket in report["buckets"] if bucket["images"]]
        worst = [max((bucket[key] for bucket in buckets), default=0) for key in ("mean", "percentile_999", "max")]
        rows.append([
            name.removeprefix("parity-"), report["backend"], report["device"], report["fidelity"],
            str(report["images"]),
            *(f"{worst[0]:.3f}", f"{worst[1]:g}", f"{worst[2]:g}"), str(report.get("views_differing", "-")),
            "yes" if report["passed"] else "**no**",
        ])  # fmt: skip
    head = ["shards", "backend", "decoded on", "fidelity", "images", "mean", "99.9 %", "largest", "views that differ"]
    head.append("passed")
    title = "### Pixels beside Pillow's\n\nIn levels of 0 to 255, of the worst range of reductions."
    return _table(title, head, rows)


def _tests(results: Results) -> str:
    rows, failed = [], []
    for name, result in results.items():
        if name.startswith("tests-"):
            counts = (result[key] for key in ("passed", "failed", "skipped"))
            rows.append([name.removeprefix("tests-"), *map(str, counts)])
            failed += result["names_of_failed"]
    text = _table("### Tests run there", ["tests", "passed", "failed", "skipped"], rows)
    return "\n\n".join([text, *(["Failed: " + ", ".join(f"`{name}`" for name in failed) + "."] if failed else [])])


def _table(
    title: str, head: Sequence[str], rows: Sequence[Sequence[str]], result: Mapping[str, Any] | None = None
) -> str:
    """Returns a table under its title, and below it what could not be measured; nothing without rows."""
    failed = [name for name in (result or {}).get("errors", {}) if not re.search(r"Settings\(|hw_decoder_load", name)]
    if not rows and not failed:
        return ""
    parts = [title] if title else []
    if rows:
        lines = [f"| {' | '.join(row)} |" for row in (head, *rows)]
        lines.insert(1, "|---|" + "---:|" * (len(head) - 1))
        parts.append("\n".join(lines))
    if failed:
        parts.append(f"Failed, and so not measured: {'; '.join(failed)}.")
    return "\n\n".join(parts)


def _figure(value: float) -> str:
    """Three decimals of a ratio, so that none is rounded to a goal of two; fewer of larger numbers."""
    return f"{value:.3f}" if value < 10 else f"{value:.1f}" if value < 1000 else f"{value:,.0f}"


def _with_spread(values: Iterable[float]) -> tuple[str, str]:
    """Returns the median, and the least and largest value if there are several."""
    values = list(values)
    several = f"{_figure(min(values))} to {_figure(max(values))}" if len(values) > 1 else ""
    return _figure(statistics.median(values)), several


def _reasons(text: str, results: Results) -> str:
    """Returns a line for each goal that was missed, with the reason that ``text`` has for it, or with NO_REASON."""
    known = dict(_REASON.findall(text))
    missed = [goal.name for goal in goals(results) if not goal.is_reached]
    lines = [f"- **{name}**: {known.get(name, NO_REASON)}" for name in missed]
    return "\n".join(["Goals that were missed, and why:", "", *lines]) if lines else ""


def sentence(results: Results) -> str:
    """Returns the README's sentence with up to three ratios; without them, that there are none."""
    medians = {goal.name: goal.median for goal in goals(results)}
    said = []
    for pattern, words in (
        (
            r"ResNet-50: .*, of a resident batch",
            "ResNet-50 on batches of feeder reaches {:.3f} of its speed without a loader",
        ),
        (
            r"4 workers: feeder dali, .* / torch \+ Pillow",
            "With DALI and 4 workers, feeder loads {:.1f} times as many images as torch's `DataLoader` with Pillow",
        ),
        (
            r"4 workers: feeder cpu .* / torch \+ Pillow",
            "With 4 workers, feeder loads {:.1f} times as many images as torch's `DataLoader` with Pillow",
        ),
        (
            r"feeder's decoder: seekable / plain DALI",
            "feeder's own decoder makes {:.1f} times as many images as plain DALI",
        ),
    ):
        said += [words.format(value) for name, value in medians.items() if re.fullmatch(pattern, name)]
    if not said:
        return "The GPU paths have [a page](docs/gpu.md#measured) of their own, also for what is measured."
    gpus = " and an ".join(dict.fromkeys(result["gpu"]["name"] for result in results.values()))
    return textwrap.fill(f"On an {gpus}, {'. '.join(said)} ([GPU](docs/gpu.md#measured)).", 120, break_on_hyphens=False)


def filled(page: str, script: str, make: Callable[[str, str], str]) -> str:
    """Returns a page with the blocks of a script.

    Args:
        page: The text.
        script: The script's module.
        make: Returns a block's text by its name and the text that it had; empty for none.
    """
    block = re.compile(rf"(<!-- ([\w ]+): python -m {re.escape(script)} -->\n)(.*?)(<!-- end -->\n)", re.S)

    def made(found: re.Match[str]) -> str:
        inner = make(found[2], found[3])
        return found[1] + (f"\n{inner}\n\n" if inner else "") + found[4]

    return block.sub(made, page)


def documents(results: Results, root: Path = ROOT) -> dict[Path, str]:
    """Returns the documents with tables, reasons and sentence of some results, by path."""
    parts: dict[str, Callable[[str], str]] = {
        "goals": lambda _: _goals(results),
        "reasons": lambda before: _reasons(before, results),
        "tables": lambda _: markdown(results),
        "sentence": lambda _: sentence(results),
    }
    paths = (root / "docs/gpu.md", root / "README.md")
    return {
        path: filled(path.read_text(encoding="utf-8"), "bench.gpu.tables", lambda name, before: parts[name](before))
        for path in paths
    }


def main() -> int:
    results, missing = read(), 0
    unfit = faults(results)
    if unfit:
        print("nothing is written:", *unfit, sep="\n  ")
        return 1
    for path, text in documents(results).items():
        path.write_text(text, encoding="utf-8")
        missing += text.count(NO_REASON)
        print(f"written: {path.relative_to(ROOT)}")
    if missing:
        print(f"docs/gpu.md: {missing} times {NO_REASON}: write why the goal was missed")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
