"""A result of ``feeder bench`` as tables for a terminal and as a page with charts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from feeder.system.text import count
from feeder.tools.bench.result_file import processor_name
from feeder.tools.encoding_gain import EncodingGain
from feeder.tools.html.charts import Bar, Line, Point, Stack, bar_chart, line_chart, stacked_bar
from feeder.tools.html.page import Html, Section, Tone, callout, facts, page, text
from feeder.tools.html.page import table as html_table
from feeder.tools.presets import describe
from feeder.tools.terminal import table, wrap

__all__ = ["render", "result_page"]

_LIMITS = {
    "read": "reading: a faster disk",
    "workers": "too few batches are made ahead: a larger prefetch_factor",
    "trainer": "the loop that takes the batches, not feeder",
}


def render(result: Mapping[str, Any]) -> str:
    """Returns a result of :func:`feeder.tools.bench.bench_run.throughput` as tables for a terminal of 80 columns."""
    counts = _counts(result)
    most = str(counts[-1])
    head = [["", "images/s", "min", "max", "ratio", "CPU ms", "first s", "MiB"]]
    for name, rates in result["images_per_s"].items():
        cells = [f"{rates[most][k]:,.0f}" for k in ("median", "min", "max")]
        for measure in ("ratio", "cpu_ms_per_image", "first_batch_s"):
            cells.append(f"{result[measure][name][most]['median']:.2f}" if measure in result else "-")
        head.append([name, *cells, f"{result['pss_mib'][name][most]['median']:,.0f}"])
    parts = [_work(result), f"{_held(result)}; medians", "", _workers(most), table(head)]

    if len(counts) > 1:
        shown = counts if len(counts) <= 7 else [*counts[:3], *counts[-4:]]
        rows = [["images/s by workers", *map(str, shown)]]
        for name, rates in result["images_per_s"].items():
            rows.append([name, *(f"{rates[str(count)]['median']:,.0f}" for count in shown)])
        parts += ["", table(rows)]

    if stages := _stages(result, most):
        total = sum(stages.values()) or 1.0
        shares = ", ".join(f"{stage} {ms:.2f} ({100 * ms / total:.0f}%)" for stage, ms in stages.items())
        parts += ["", f"feeder's workers, ms per image: {shares}"]
    if limit := limit_of(result, most):
        parts.append(f"limit: {limit}")
    parts += [str(EncodingGain(**gain)) for gain in result.get("encodings", {}).values()]

    if "interrupted" in result:
        parts.append(f"interrupted {result['interrupted']}: medians of the runs until then")
    for why in dict.fromkeys(result["absent"].values()):
        names = ", ".join(name for name, reason in result["absent"].items() if reason == why)
        parts.append(f"not measured: {names}: {why}")
    return "\n".join(line if "\n" in line else "\n".join(wrap(line)) for line in parts)


def result_page(result: Mapping[str, Any]) -> str:
    """Returns a result as an HTML page.

    Args:
        result: A result of :func:`feeder.tools.bench.bench_run.throughput`, with its ``machine``.
    """
    counts = _counts(result)
    most = str(counts[-1])
    machine = result["machine"]
    where = f"{processor_name(machine)}, {machine['cores']} cores, {machine['date']}"
    checked = [["before timing", "levels from Pillow"], *([n, f"{v:.2f}"] for n, v in result["check"].items())]
    caption = "Validation crops of the first images: the median over images of the mean difference, of 255 levels"
    absent = [["not measured", "why"], *map(list, result["absent"].items())]

    sections = [
        Section("Throughput", _throughput(result, counts)),
        Section("Where feeder's time goes", _time_parts(result, counts)),
        Section("Start-up", _start_up(result, most)),
        Section("Memory", _memory(result, most)),
        Section(
            "What was measured",
            [html_table(checked, caption), *[html_table(absent)] * bool(result["absent"]), _facts(result)],
        ),
    ]
    return page(
        f"feeder bench: {result['dataset']}",
        sections,
        lead=f"{where}. {_work(result)}. {_held(result)}.",
        top=[_verdict(result, most)],
        foot=f"feeder {machine['versions'].get('feeder')}, commit {machine['commit'] or 'unknown'}",
    )


def _throughput(result: Mapping[str, Any], counts: list[int]) -> list[Html]:
    most = str(counts[-1])
    lines = [
        Line(name, [Point(n, *(rates[str(n)][k] for k in ("median", "min", "max"))) for n in counts])
        for name, rates in result["images_per_s"].items()
    ]
    return [
        line_chart(
            "Images per second by worker processes",
            [*lines, *_proportion(result, counts)],
            x_label="worker processes (DALI: threads)",
            y_label="images/s",
            note=f"Medians of {result['options']['repeats']} runs; bands from the slowest to the fastest",
        ),
        bar_chart(
            f"Images per second with {_workers(most)}",
            _bars(result, "images_per_s", most, ratios=True),
            unit="images/s",
        ),
        bar_chart(
            f"CPU time of an image with {_workers(most)}",
            _bars(result, "cpu_ms_per_image", most),
            unit="ms",
            note="Of the trainer and all workers together; less leaves more of the machine free",
        ),
    ]


def _start_up(result: Mapping[str, Any], most: str) -> list[Html]:
    at = f"with {_workers(most)}"
    return [
        bar_chart(
            "From starting the process to the first batch",
            [_bar(name, values) for name, values in result["startup_s"].items()],
            unit="s",
            note=f"Imports included, {at}",
        ),
        bar_chart("From asking for a batch to the first one", _bars(result, "first_batch_s", most), unit="s", note=at),
    ]


def _memory(result: Mapping[str, Any], most: str) -> list[Html]:
    at = f"with {_workers(most)}"
    return [
        bar_chart(
            f"Memory of all processes {at}",
            _bars(result, "pss_mib", most),
            unit="MiB",
            note="At the end of a run; shared pages count once",
        ),
        bar_chart(
            f"Peak of all processes {at}",
            _bars(result, "peak_rss_mib", most),
            unit="MiB",
            note="Sum of each process's peak; shared pages count for each process",
        ),
    ]


def _work(result: Mapping[str, Any]) -> str:
    options = result["options"]
    return describe(options["preset"], options["dtype"], options["image_size"])


def _held(result: Mapping[str, Any]) -> str:
    options = result["options"]
    runs = f"{count(options['repeats'], 'run')} of {options['seconds']:g} s in turn"
    return f"{count(result['images'], 'image')}, batches of {options['batch_size']}, {runs}"


def _workers(number: str) -> str:
    return count(int(number), "worker")


def _counts(result: Mapping[str, Any]) -> list[int]:
    return sorted(result["options"]["workers"])


def _verdict(result: Mapping[str, Any], most: str) -> Html:
    rate = f"{result['images_per_s']['feeder'][most]['median']:,.0f} images/s with {_workers(most)}"
    limit = limit_of(result, most)
    more = f" What limits it: {limit}." if limit else ""
    torch = next((name for name in result.get("ratio", {}) if name.startswith("torch")), None)
    if torch is None:
        return callout(f"feeder makes {rate}", more.strip())

    ratio = result["ratio"]["feeder"][most]
    tone: Tone = "good" if ratio["min"] > 1 else "bad" if ratio["max"] < 1 else "note"
    spread = f"{ratio['min']:.2f} to {ratio['max']:.2f} times in each of {len(ratio['all'])} turns."
    return callout(f"{rate}: {ratio['median']:.2f} times {torch}", spread + more, tone)


def limit_of(result: Mapping[str, Any], count: str) -> str | None:
    """Returns feeder's limit with a number of workers, and what would help on these images and this machine."""
    stage = result["bottleneck"].get(count) or ""
    if stage == "decode":
        more = ["more workers"] * (int(count) < result.get("usable_cores", math.inf))
        more += ["seekable shards (feeder shard)"] * ("seekable" in result.get("encodings", {}))
        return f"decoding: {', or '.join(more) or 'more cores'}"
    shards = ", or shards in place of files" if stage == "read" and result["kind"] == "folder" else ""
    return f"{_LIMITS[stage]}{shards}" if stage in _LIMITS else None


def _proportion(result: Mapping[str, Any], counts: list[int]) -> list[Line]:
    """Returns feeder's rate if every worker added as much as the first."""
    base = next((count for count in counts if count > 0), None)
    if base is None or len(counts) < 2:
        return []
    each = result["images_per_s"]["feeder"][str(base)]["median"] / base
    ends = [base, counts[-1]]
    return [Line("feeder in proportion", [Point(n, each * n) for n in ends], reference=True)]


def _bars(result: Mapping[str, Any], measure: str, count: str, ratios: bool = False) -> list[Bar]:
    said = {name: f"{v[count]['median']:.2f} x torch" for name, v in result.get("ratio", {}).items() if ratios}
    return [_bar(name, values[count], said.get(name, "")) for name, values in result[measure].items()]


def _bar(name: str, values: Mapping[str, Any], note: str = "") -> Bar:
    return Bar(name, values["median"], values["min"], values["max"], note)


def _stages(result: Mapping[str, Any], count: str) -> dict[str, float]:
    return {stage: values["median"] for stage, values in result["stages_ms"].get(count, {}).items()}


def _time_parts(result: Mapping[str, Any], counts: list[int]) -> list[Html]:
    stacks = [Stack(_workers(str(count)), _stages(result, str(count))) for count in counts]
    chart = stacked_bar(
        "The workers' time per image",
        [stack for stack in stacks if stack.parts],
        unit="ms",
        note="Medians by stage; with more workers than free cores, workers wait for each other",
    )
    limit = limit_of(result, str(counts[-1]))
    return [chart, text(f"What limits feeder with {_workers(str(counts[-1]))}: {limit}.")] if limit else [chart]


def _facts(result: Mapping[str, Any]) -> Html:
    machine = result["machine"]
    versions = {name: value for name, value in machine["versions"].items() if isinstance(value, str)}
    pillow = machine["versions"].get("pillow")
    if isinstance(pillow, Mapping):
        versions["pillow"] = f"{pillow['distribution']} {pillow['version']}, {pillow['libjpeg']}"
    cpu = machine.get("cpu", {})  # earlier results have none
    numbers = ", ".join(f"{n} {cpu[n]}" for n in ("family", "model", "stepping") if cpu.get(n) is not None)
    return facts(
        {
            "processor": processor_name(machine),
            **({"processor's numbers": numbers} if numbers else {}),
            "cores": machine["cores"],
            "memory": f"{machine['memory_gib']} GiB",
            "kernel": machine["kernel"],
            "images": f"{result['images']:,} in {result['kind']} {result['dataset']}",
            "feeder's backend": result["options"]["backend"],
            **versions,
            "command": " ".join(["feeder", *machine["arguments"]]),
        }
    )
