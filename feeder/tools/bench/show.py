"""A result of ``feeder bench`` as tables for a terminal."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from feeder.system.text import count
from feeder.tools.presets import describe
from feeder.tools.terminal import table, wrap

_LIMITS = {
    "read": "reading: a faster disk",
    "workers": "too few batches are made ahead: a larger prefetch_factor",
    "trainer": "the loop that takes the batches, not feeder",
}

_WIDE = 1.5  # max / min of a rival's runs from which on their difference is shown


def render(result: Mapping[str, Any]) -> str:
    """Returns a result of :func:`feeder.tools.bench.bench_run.throughput` as tables for a terminal of 80 columns."""
    options = result["options"]
    counts = sorted(options["workers"])
    most = str(counts[-1])
    work = describe(options["preset"], options["dtype"], options["image_size"])
    runs = f"{count(options['repeats'], 'run')} of {options['seconds']:g} s in turn"
    held = f"{count(result['images'], 'image')}, batches of {options['batch_size']}, {runs}; medians"

    head = [["", "images/s", "min", "max", "ratio", "CPU ms", "first s", "MiB"]]
    for name, rates in result["images_per_s"].items():
        cells = [f"{rates[most][k]:,.0f}" for k in ("median", "min", "max")]
        for measure in ("ratio", "cpu_ms_per_image", "first_batch_s"):
            cells.append(f"{result[measure][name][most]['median']:.2f}" if measure in result else "-")
        head.append([name, *cells, f"{result['pss_mib'][name][most]['median']:,.0f}"])
    parts = [*_verdict(result, most), work, held, "", count(int(most), "worker"), table(head)]

    if len(counts) > 1:
        shown = counts if len(counts) <= 7 else [*counts[:3], *counts[-4:]]
        rows = [["images/s by workers", *map(str, shown)]]
        for name, rates in result["images_per_s"].items():
            rows.append([name, *(f"{rates[str(number)]['median']:,.0f}" for number in shown)])
        parts += ["", table(rows)]

    if stages := {stage: values["median"] for stage, values in result["stages_ms"].get(most, {}).items()}:
        total = sum(stages.values()) or 1.0
        shares = ", ".join(f"{stage} {ms:.2f} ({100 * ms / total:.0f}%)" for stage, ms in stages.items())
        parts += ["", f"feeder's workers, ms per image: {shares}"]
    if limit := limit_of(result, most):
        parts.append(f"limit: {limit}")

    parts += _doubts(result, most)
    for why in dict.fromkeys(result["absent"].values()):
        names = ", ".join(name for name, reason in result["absent"].items() if reason == why)
        parts.append(f"not measured: {names}: {why}")
    return "\n".join(line if "\n" in line else "\n".join(wrap(line)) for line in parts)


def _verdict(result: Mapping[str, Any], most: str) -> list[str]:
    """Returns the first lines: feeder's rate against that of the fastest rival; [] without rivals."""
    rates = {name: rate[most]["median"] for name, rate in result["images_per_s"].items()}
    ours = rates.pop("feeder")
    if not rates:
        return []
    name, best = max(rates.items(), key=lambda each: each[1])
    said = f"{ours / best:.1f} times as many" if ours >= best else f"{ours / best:.2f} of the"
    return [f"feeder gives {said} images a second as {name}, the fastest of the others", ""]


def _doubts(result: Mapping[str, Any], most: str) -> list[str]:
    """Returns the reasons why the figures may not hold on an idle machine."""
    found = []
    cores, load = result.get("usable_cores", math.inf), result.get("load", 0.0)
    if load > cores:
        found.append(f"{load:.1f} processes wanted the {count(cores, 'core')} before it began")
    for name, rates in result["images_per_s"].items():
        if (wide := rates[most]["max"] / rates[most]["min"]) > _WIDE:
            found.append(f"{name}'s runs differ {wide:.1f} times")
    return [f"warning: {'; '.join(found)}: measure again on an idle machine, or with more --repeats"] if found else []


def limit_of(result: Mapping[str, Any], workers: str) -> str | None:
    """Returns feeder's limit with a number of workers, and what would help on these images and this machine."""
    more = "more workers" if int(workers) < result.get("usable_cores", math.inf) else "more cores"
    stage = result["bottleneck"].get(workers)
    limit = {**_LIMITS, "decode": f"decoding: {more}"}.get(stage)
    is_of_files = result["kind"] == "folder" and stage in ("read", "decode")
    return f"{limit}, or shards in place of files" if is_of_files else limit
