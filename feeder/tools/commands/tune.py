"""``feeder tune``: finds a loader's setting by measurement."""

from __future__ import annotations

import argparse
from typing import Any

from feeder.system.text import count, say
from feeder.tools.commands.common import EXIT_SHORT, add_work, noting, say_json


def add(commands: Any) -> None:
    command = commands.add_parser(
        "tune",
        examples=(
            "feeder tune images-shards",
            "feeder tune images-shards --target 3000 --cpus 8",
        ),
        help="find num_workers, the workers' threads and the backend by measurement",
        description="Finds the loader's setting by measurement, within a budget of CPUs: the cheapest one that "
        "reaches the target or, without a target, that is as fast as the fastest. To reach the rate of a training "
        "step, use feeder.tune(dataset, step=...) in Python.",
        epilog="exit codes: 0 found, 1 error, 2 wrong usage, 3 target not reached, 130 interrupted",
    )
    command.add_argument("dir", metavar="DIR", help="shard set, or folder with a subfolder for each class")
    goal = command.add_argument_group("goal and budget")
    goal.add_argument("--target", type=float, metavar="RATE", help="images/s that are enough (default: the fastest)")
    goal.add_argument(
        "--cpus", type=int, metavar="N", help="workers times threads (default: all that this process may use)"
    )
    goal.add_argument("--seconds", type=float, default=60.0, help="time limit of the search (default: %(default)s)")

    work = command.add_argument_group("work")
    add_work(work)
    work.add_argument("--no-shuffle", action="store_true", help="read in stored order")
    work.add_argument("--backend", default="auto", help="only this decode backend (default: try all)")

    present = command.add_argument_group("present setting, to compare with (default: torch's, no workers)")
    present.add_argument("--num-workers", type=int, default=0, metavar="N", help="default: %(default)s")
    present.add_argument("--worker-threads", type=int, default=1, metavar="N", help="default: %(default)s")

    output = command.add_mutually_exclusive_group()
    output.add_argument("--json", action="store_true", help="print one JSON object with every run")
    output.add_argument("-q", "--quiet", action="store_true", help="print only the result, not each run")


def run(arguments: argparse.Namespace) -> int:
    from feeder.loader.options import WorkerOptions
    from feeder.tools.bench.result_file import machine
    from feeder.tools.presets import describe, open_dataset, preset
    from feeder.tools.tune.tuner import tune

    recipe = arguments.preset, arguments.dtype, arguments.image_size
    dataset = open_dataset(arguments.dir, preset(*recipe))

    workers: dict[str, Any] = {}
    if arguments.worker_threads != 1:
        workers["worker_options"] = WorkerOptions(arguments.worker_threads)
    found = tune(
        dataset,
        target=arguments.target,
        cpus=arguments.cpus,
        seconds=arguments.seconds,
        note=noting(arguments.quiet),
        batch_size=arguments.batch_size,
        shuffle=not arguments.no_shuffle,
        backend=arguments.backend,
        num_workers=arguments.num_workers,
        **workers,
    )
    if arguments.json:
        say_json({"machine": machine(), "recipe": describe(*recipe), **found.to_json()})
    else:
        say(f"{count(len(dataset), 'image')}, batch {arguments.batch_size}, {describe(*recipe)}\n{found.render()}")
    return EXIT_SHORT if found.outcome.reached is False else 0
