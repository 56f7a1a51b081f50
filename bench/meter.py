"""Measures the cost of the meters.

difference     CPU time of making a part of a batch (read, draw, decode, transform, 224x224) with the meters, beside the
               same part with meters that do nothing, in turn. Equal: images, recipe, process. The median over many
               pairs, as other work on the machine disturbs a single pair by more than the meters' cost.
calls          CPU time of the meters' calls alone for such a part, as a share of the part's time.

    python -m bench.meter --shards SHARDS [--repeats 40] [--json OUT]
"""

from __future__ import annotations

import statistics
import time
from typing import Any

import numpy as np

from bench.smoke import arguments
from feeder.dataset.shards import ShardDataset
from feeder.decoders.registry import get_decoder
from feeder.loader.fast.sample_maker import Work
from feeder.loader.observe.meter import Meter
from feeder.loader.slots.image_slots import Samples, SlotView
from feeder.tools.bench.result_file import save, spread
from feeder.tools.terminal import table
from feeder.transforms import Compose, RandomHorizontalFlip, RandomResizedCrop

_PART = 32


class _Nothing(Meter):
    def add(self, stage: str, time_ns: int, size_bytes: int = 0) -> None:
        pass

    def add_images(self, time_ns: int, images: int, size_bytes: int, spent_ns: Any) -> None:
        pass


def main() -> None:
    options = arguments(__doc__, "meter", smoke={"repeats": 2}, shards=None, repeats=40)
    dataset = ShardDataset(options.shards, Compose([RandomResizedCrop(224), RandomHorizontalFlip()]))
    work = Work(dataset.reader, dataset.recipe, get_decoder("auto", dataset.recipe).name)
    meters = {"with": Meter(), "without": _Nothing()}
    layout = work.layout(_PART)
    parts = [np.arange(k, k + _PART) % len(dataset) for k in range(0, 4 * _PART, _PART)]
    times: dict[str, list[float]] = {name: [] for name in meters}
    for turn in range(options.repeats + 1):
        for number, ids in enumerate(parts):
            for name in sorted(meters, reverse=(turn + number) % 2 == 0):
                work.meter = meters[name]
                started = time.process_time_ns()
                work.run(0, SlotView.new(layout, Samples.of(ids, ids)))
                if turn:  # the first turn opens files and allocates memory
                    times[name].append((time.process_time_ns() - started) / _PART / 1000)
    calls = [_calls_us() for _ in range(options.repeats)]
    ratios = [a / b for a, b in zip(times["with"], times["without"], strict=True)]
    typical = {name: statistics.median(values) for name, values in times.items()}
    shares = {"difference": statistics.median(ratios) - 1, "calls": min(calls) / typical["without"]}
    rows = [["", "us an image"], *([name, f"{value:.2f}"] for name, value in typical.items())]
    print(table([*rows, ["calls", f"{min(calls):.3f}"]]))
    print(f"calls: {shares['calls']:.3%} of the time; with beside without: {shares['difference']:+.2%}")
    found = {"cpu_us_per_image": {name: spread(values) for name, values in times.items()}, "ratio": spread(ratios)}
    result = {**found, "calls_us_per_image": spread(calls), "share": shares, "part": _PART}
    print(f"written to {save('meter', result, options.json)}")


def _calls_us() -> float:
    """Returns the CPU time per image of the meters' calls for a part: waiting for it, reading, drawing, its images."""
    meter, count = Meter(), 200
    spent_ns = np.tile(np.array([[500_000, 100_000, 0]]), (_PART, 1))
    started = time.process_time_ns()
    for _ in range(count):
        for stage in ("wait_slot", "read", "draw"):
            meter.add(stage, 1_000_000, 3_000_000)
        meter.add_images(20_000_000, _PART, 5_000_000, spent_ns)
    return (time.process_time_ns() - started) / (count * _PART) / 1000


if __name__ == "__main__":
    main()
