"""Simulates the ranks of a host with many cores: what does a trainer's thread spend on the loader?

Each rank is a process with the loader's own iterator, task board, ring, messages and worker processes. Only the work is
replaced: a worker sleeps for the time that its images take, so that many workers need few cores. Where the machine has
fewer cores than the loader's own code needs at the full rate, everything is slowed down by a factor: images take so
many times longer. The CPU time of a batch does not depend on that, and is what is measured.

ranks      CPU time of the trainer's thread for a batch, in each of several ranks at once, and the share of a core that
           it takes at the full rate. Goal: less than 25 % of a core.
workers    The same in one rank, by number of workers, and what each further part of a batch costs: the goal is 30 us at
           most. From the middle number of workers to the largest a part must cost no more than from the smallest to the
           middle one, within the noise: then nothing grows faster than the number of parts.

The images of the first batches are checked to be those that were asked for. It takes about three minutes.

    python -m bench.many_cores [--rate 30000] [--ranks 8] [--workers 8] [--json OUT]
"""

from __future__ import annotations

import itertools
import multiprocessing
import statistics
import time
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from bench.smoke import arguments
from feeder.loader.fast.batch_queue import requests
from feeder.loader.fast.epoch import Epoch
from feeder.loader.fast.finishing import Finishing
from feeder.loader.fast.iterator import FastIterator
from feeder.loader.fast.ledger import Ledger
from feeder.loader.fast.part_report import PartReport
from feeder.loader.fast.position import EpochProgress, Place
from feeder.loader.fast.sample_maker import Work
from feeder.loader.fast.setup import make_engine
from feeder.loader.options import DeviceOptions, EpochOptions
from feeder.order.sample_order import Order
from feeder.order.split import Split
from feeder.tools.bench.result_file import save, spread
from feeder.tools.presets import preset
from feeder.tools.terminal import table
from feeder.transforms import recipe_or_views

_SAMPLES = 1_281_167
_CHECKED = 4  # batches, before those that are measured
_GOALS = {"us_per_further_part": 30.0, "share_of_a_core": 0.25}


class Numbers:
    """Stands for a reader: the label of a sample is its number."""

    label_dtype = np.dtype(np.int64)

    def __len__(self) -> int:
        return _SAMPLES

    def field(self, i: int, name: str) -> Any:
        return str(i)


@dataclass
class Sleeper(Work):
    """Sleeps for as long as the images of a part take.

    Args:
        image_s: Seconds for each.
    """

    image_s: float = 0.0

    def prepare(self) -> None:
        pass

    def run(self, epoch: int, view: Any, beat: Any = None) -> PartReport:
        time.sleep(self.image_s * len(view.labels))
        view.labels[:] = view.samples.ids
        return PartReport(encoded_bytes=len(view.labels))


def rank(number: int, workers: int, rate: float, options: Any) -> dict[str, float]:
    """Runs a rank, and returns its figures.

    Args:
        number: The rank's number.
        workers: Number of its workers.
        rate: Images/s of all of them.
        options: The benchmark's.
    """
    size = options.batch_size
    recipe = recipe_or_views(preset("train", "float32", options.image_size))
    work = Sleeper(cast(Any, Numbers()), recipe, "cpu", image_s=workers / rate)
    epoch_options = EpochOptions(
        batch_size=size,
        num_workers=workers,
        drop_last=True,
        prefetch_factor=options.prefetch_factor or 2,
        prefetch_is_given=options.prefetch_factor > 0,
        persistent_workers=False,
        timeout_s=0.0,
        hang_timeout_s=300.0,
        multiprocessing_context=multiprocessing.get_context("fork"),
        memory_limit_bytes=None,
        worker_threads=1,
        numa_node=None,
        snapshot_every_n_steps=None,
        rank=number,
        world_size=options.ranks,
        device=DeviceOptions(),
    )
    order = Order(_SAMPLES, 0, True)
    progress = EpochProgress(Place(), Split(_SAMPLES, size, number, options.ranks, True))
    engine = make_engine(work, epoch_options, None, decodes_here=False)
    epoch = Epoch(
        dataset=None,
        progress=progress,
        requests=requests(order, progress),
        options=epoch_options,
        work=work,
        engine=engine,
        decoder=None,
        finishing=Finishing(work, None, False, ()),
        ledger=Ledger(),
        agree=None,
        channels_last=False,
    )
    wanted = requests(order, EpochProgress(Place(), Split(_SAMPLES, size, number, options.ranks, True)))
    iterator = FastIterator(epoch, None)
    for request, (_, labels) in zip(itertools.islice(wanted, _CHECKED), iterator, strict=False):
        if not np.array_equal(labels, request.samples.ids):
            raise SystemExit("a batch has other samples than were asked for")
    for _ in itertools.islice(iterator, engine.ahead):  # until parts have the size that they keep
        pass
    parts = int(engine.sums()[0])
    cpu, started = time.thread_time(), time.perf_counter()
    for _ in itertools.islice(iterator, options.batches):
        pass
    cpu, wall = time.thread_time() - cpu, time.perf_counter() - started
    parts = int(engine.sums()[0]) - parts
    ring, ahead = engine.ring.slots * engine.ring.layout.slot_bytes, engine.ahead
    iterator.close()
    engine.close()
    return {
        "cpu_us_per_batch": 1e6 * cpu / options.batches,
        "parts_per_batch": parts / options.batches,
        "share_of_a_core": cpu / options.batches * options.rate / size,
        "images_per_s": options.batches * size / wall,
        "ring_bytes": float(ring),
        "batches_ahead": float(ahead),
    }


def ranks(count: int, workers: int, rate: float, options: Any) -> dict[str, list[float]]:
    """Runs some ranks at once, each in a process, and returns the figures of all of them by name."""
    context = multiprocessing.get_context("fork")
    ends, processes = [], []
    for number in range(count):
        mine, theirs = context.Pipe(False)

        def run(number: int = number, end: Any = theirs) -> None:
            end.send(rank(number, workers, rate, options))

        process = context.Process(target=run)
        process.start()
        theirs.close()
        ends.append(mine)
        processes.append(process)
    found: dict[str, list[float]] = {}
    for end, process in zip(ends, processes, strict=True):
        for name, value in end.recv().items():
            found.setdefault(name, []).append(value)
        process.join()
    return found


def further_part_us(few: dict[str, list[float]], many: dict[str, list[float]]) -> float:
    """Returns what each further part of a batch costs, microseconds, from runs with few and with many parts."""
    cpu_us, parts = (
        statistics.median(many[name]) - statistics.median(few[name]) for name in ("cpu_us_per_batch", "parts_per_batch")
    )
    return max(0.0, cpu_us / parts) if parts > 0 else 0.0


def main() -> None:
    smoke = {"ranks": 2, "workers": 2, "scale": "1,2", "batches": 4, "repeats": 1, "slow_down": 4.0, "batch_size": 32}
    options = arguments(
        __doc__, "many_cores", smoke, rate=30000.0, ranks=8, workers=8, scale="4,16,64", batches=100, repeats=3,
        slow_down=8.0, batch_size=256, image_size=32, prefetch_factor=0,
    )  # fmt: skip
    full = options.rate / options.slow_down
    counts = sorted(int(count) for count in options.scale.split(","))
    together: dict[str, list[float]] = {}
    alone: dict[int, dict[str, list[float]]] = {count: {} for count in counts}
    further: list[float] = []
    steps: dict[str, list[float]] = {f"{few} to {many}": [] for few, many in itertools.pairwise(counts)}
    for _ in range(options.repeats):
        _add(together, ranks(options.ranks, options.workers, full / options.ranks, options))
        found = {count: ranks(1, count, full, options) for count in counts}
        further.append(further_part_us(found[counts[0]], found[counts[-1]]))
        for (few, many), costs in zip(itertools.pairwise(counts), steps.values(), strict=True):
            costs.append(further_part_us(found[few], found[many]))
        for count in counts:
            _add(alone[count], found[count])
    rows = [["ranks x workers", "parts a batch", "us a batch", "of a core", "batches ahead", "ring MiB"]]
    runs = {f"{options.ranks} x {options.workers}": together, **{f"1 x {count}": alone[count] for count in counts}}
    for name, figures in runs.items():
        middle = {key: statistics.median(values) for key, values in figures.items()}
        cells = [f"{middle['parts_per_batch']:.1f}", f"{middle['cpu_us_per_batch']:.0f}"]
        cells += [f"{middle['share_of_a_core']:.1%}", f"{middle['batches_ahead']:.0f}"]
        rows.append([name, *cells, f"{middle['ring_bytes'] / 2**20:.0f}"])
    print(table(rows))
    by_step = ", ".join(f"{statistics.median(costs):.1f} from {step} workers" for step, costs in steps.items())
    print(f"each further part of a batch: {statistics.median(further):.1f} us ({by_step})")
    missed = [
        f"{name}: {value:.3g}, the goal is {_GOALS[name]:g} at most"
        for name, value in {
            "us_per_further_part": statistics.median(further),
            "share_of_a_core": max(together["share_of_a_core"]),
        }.items()
        if value > _GOALS[name]
    ]
    print("\n".join(missed) or "the goals are met")
    results = {
        "ranks": {name: spread(values) for name, values in together.items()},
        "workers": {
            str(count): {name: spread(values) for name, values in figures.items()} for count, figures in alone.items()
        },
        "us_per_further_part": spread(further),
        "us_per_further_part_by_workers": {step: spread(costs) for step, costs in steps.items()},
        "goals": _GOALS,
    }
    print(f"written to {save('many_cores', results, options.json)}")


def _add(figures: dict[str, list[float]], further: dict[str, list[float]]) -> None:
    for name, values in further.items():
        figures.setdefault(name, []).extend(values)


if __name__ == "__main__":
    main()
