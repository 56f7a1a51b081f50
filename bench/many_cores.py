"""Simulates the ranks of a host with many cores: what does a trainer's thread spend on the loader?

Each rank is a process with the loader's own iterator, task board, ring, messages and worker processes. Only the work is
replaced: a worker sleeps for the time that its images take, so that many workers need few cores. Where the machine has
fewer cores than the loader's own code needs at the full rate, everything is slowed down by a factor: images take so
many times longer. The CPU time of a batch is what is measured; its share of a core at the full rate is that time,
multiplied. The eight ranks together run at 469 images/s each, so their share at 30,000 is extrapolated by 64.

ranks      CPU time of the trainer's thread for a batch, in each of several ranks at once, and the share of a core that
           it takes at the full rate. Goal: less than 25 % of a core. Images are small, as the rings of all ranks must
           fit this machine's memory.
workers    The same in one rank, by number of workers, with images of 224 x 224 and batches of as many parts as there
           are workers. Goals: each further part of a batch costs 30 us at most; and from the last number of workers but
           one to the last it costs 1.5 times as much as up to there, at most, or something grows faster than the number
           of parts.

The images of the first batches are checked to be those that were asked for. It takes about nine minutes.

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
from feeder.loader.fast.finishing import Finishing
from feeder.loader.fast.iterator import Epoch, FastIterator, Ledger
from feeder.loader.fast.part_report import PartReport
from feeder.loader.fast.position import EpochProgress, Place
from feeder.loader.fast.sample_maker import Work
from feeder.loader.fast.setup import make_engine
from feeder.loader.observe.meter import part_sums
from feeder.loader.options import DeviceOptions, LoaderOptions, WorkerOptions
from feeder.order.sample_order import Order
from feeder.order.split import Split
from feeder.tools.bench.result_file import save, spread
from feeder.tools.presets import preset
from feeder.tools.terminal import table
from feeder.transforms import recipe_or_views

_SAMPLES = 1_281_167
_CHECKED = 4  # batches, before those that are measured
_GOALS = {"us_per_further_part": 30.0, "growth_of_a_part": 1.5, "share_of_a_core": 0.25}
_LEAST_US = 1.0  # what a part costs at least, for the growth


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

    def run(self, epoch: int, view: Any, heartbeat: Any = None) -> PartReport:
        time.sleep(self.image_s * len(view.labels))
        view.labels[:] = view.samples.ids
        return PartReport()


@dataclass(frozen=True)
class Rank:
    """A rank's setting.

    Args:
        workers: Number of workers.
        rate: Images/s of all of them.
        batch_size: Number of images in a batch.
        image_size: Height and width of the output, pixels.
    """

    workers: int
    rate: float
    batch_size: int
    image_size: int


def run_rank(number: int, rank: Rank, options: Any) -> dict[str, float]:
    """Runs a rank, and returns its figures.

    Args:
        number: The rank's number.
        rank: Its setting.
        options: The benchmark's.
    """
    size = rank.batch_size
    recipe = recipe_or_views(preset("train", "float32", rank.image_size))
    work = Sleeper(cast(Any, Numbers()), recipe, "cpu", image_s=rank.workers / rank.rate)
    epoch_options = LoaderOptions(
        batch_size=size,
        num_workers=rank.workers,
        drop_last=True,
        prefetch_factor=options.prefetch_factor or 2,
        prefetch_is_given=options.prefetch_factor > 0,
        multiprocessing_context=multiprocessing.get_context("fork"),
        rank=number,
        world_size=options.ranks,
        workers=WorkerOptions(numa_node=None, hang_timeout_s=300.0),
        device=DeviceOptions(),
    )
    order = Order(_SAMPLES, 0, True)
    progress = EpochProgress(Place(), Split(_SAMPLES, size, number, options.ranks, True), order=order)
    engine = make_engine(work, epoch_options, None)
    epoch = Epoch(
        progress=progress,
        requests=requests(progress),
        options=epoch_options,
        work=work,
        engine=engine,
        decoder=None,
        finishing=Finishing(work, None, False, ()),
        ledger=Ledger(),
        agree=None,
    )
    wanted = requests(EpochProgress(Place(), Split(_SAMPLES, size, number, options.ranks, True), order=order))
    iterator = FastIterator(epoch, None)
    for request, (_, labels) in zip(itertools.islice(wanted, _CHECKED), iterator, strict=False):
        if not np.array_equal(labels, request.samples.ids):
            raise SystemExit("a batch has other samples than were asked for")
    for _ in itertools.islice(iterator, engine.ahead):  # until parts have the size that they keep
        pass
    parts = part_sums(engine.stages())["parts"]
    cpu, started = time.thread_time(), time.perf_counter()
    for _ in itertools.islice(iterator, options.batches):
        pass
    cpu, wall = time.thread_time() - cpu, time.perf_counter() - started
    parts = part_sums(engine.stages())["parts"] - parts
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


def run_ranks(count: int, rank: Rank, options: Any) -> dict[str, list[float]]:
    """Runs some ranks at once, each in a process, and returns the figures of all of them by name."""
    context = multiprocessing.get_context("fork")
    ends, processes = [], []
    for number in range(count):
        mine, theirs = context.Pipe(False)

        def run(number: int = number, end: Any = theirs) -> None:
            end.send(run_rank(number, rank, options))

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
    smoke = {"ranks": 2, "workers": 2, "scale": "1,2,4", "batches": 4, "repeats": 1, "batch_size": 32}
    smoke |= {"slow_down": 4.0, "workers_batch_size": 32, "workers_image_size": 32}
    options = arguments(
        __doc__, "many_cores", smoke, rate=30000.0, ranks=8, workers=8, scale="4,16,64,128", batches=60, repeats=5,
        slow_down=8.0, batch_size=256, image_size=32, workers_batch_size=512, workers_image_size=224, prefetch_factor=0,
    )  # fmt: skip
    full = options.rate / options.slow_down
    one_of_many = Rank(options.workers, full / options.ranks, options.batch_size, options.image_size)
    counts = sorted(int(count) for count in options.scale.split(","))
    together: dict[str, list[float]] = {}
    alone: dict[int, dict[str, list[float]]] = {count: {} for count in counts}
    further: list[float] = []
    growth: list[float] = []
    steps: dict[str, list[float]] = {f"{few} to {many}": [] for few, many in itertools.pairwise(counts)}
    for _ in range(options.repeats):
        _add(together, run_ranks(options.ranks, one_of_many, options))
        found = {
            count: run_ranks(1, Rank(count, full, options.workers_batch_size, options.workers_image_size), options)
            for count in counts
        }
        first, before, last = (found[counts[at]] for at in (0, -2, -1))
        further.append(further_part_us(first, last))
        growth.append(further_part_us(before, last) / max(_LEAST_US, further_part_us(first, before)))
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
    extrapolated = options.rate / statistics.median(together["images_per_s"])
    print(f"the share of a core is extrapolated from a rate {extrapolated:.0f} times lower")
    missed = [
        f"{name}: {value:.3g}, the goal is {_GOALS[name]:g} at most"
        for name, value in {
            "us_per_further_part": statistics.median(further),
            "growth_of_a_part": statistics.median(growth),
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
        "growth_of_a_part": spread(growth),
        "rate_extrapolated_by": extrapolated,
        "us_per_further_part_by_workers": {step: spread(costs) for step, costs in steps.items()},
        "goals": _GOALS,
    }
    print(f"written to {save('many_cores', results, options.json)}")


def _add(figures: dict[str, list[float]], further: dict[str, list[float]]) -> None:
    for name, values in further.items():
        figures.setdefault(name, []).extend(values)


if __name__ == "__main__":
    main()
