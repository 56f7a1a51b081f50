"""``feeder bench``: throughput beside torch's DataLoader."""

from __future__ import annotations

import argparse
import sys
from typing import Any

__all__ = ["add", "run"]


def add(commands: Any) -> None:
    command = commands.add_parser(
        "bench",
        help="measure feeder beside torch's DataLoader with Pillow",
        description="Measures images/s of feeder and of torch's DataLoader with Pillow on the same images and the same "
        "preprocessing, in turn.",
    )
    command.add_argument("dir", metavar="DIR", help="shard set, or folder with a subfolder for each class")
    command.add_argument("--folder", metavar="DIR", help="the same images as files, for torch's loader (default: DIR)")
    command.add_argument(
        "--preset",
        choices=("train", "val"),
        default="train",
        help="train: RandomResizedCrop, flip, normalize; val: Resize, CenterCrop, normalize (default: %(default)s)",
    )
    command.add_argument(
        "--dtype", choices=("float32", "uint8"), default="float32", help="output (default: %(default)s)"
    )
    command.add_argument("--image-size", type=int, default=224, metavar="PX", help="output size (default: %(default)s)")
    command.add_argument(
        "--batch-size", type=int, default=64, metavar="N", help="images in a batch (default: %(default)s)"
    )
    command.add_argument("--workers", type=int, metavar="N", help="worker processes (default: one a core)")
    command.add_argument("--seconds", type=float, default=5.0, help="length of a run (default: %(default)s)")
    command.add_argument("--repeats", type=int, default=3, metavar="N", help="runs of each (default: %(default)s)")
    command.add_argument("--backend", default="auto", help="feeder's decode backend (default: %(default)s)")
    command.add_argument("--json", metavar="FILE", help="also write everything to this file, machine included")
    command.add_argument("-q", "--quiet", action="store_true", help="print the table only, not each run")
    command.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    from feeder.bench import BenchOptions, render, throughput
    from feeder.measure import save

    options = BenchOptions(
        preset=arguments.preset,
        dtype=arguments.dtype,
        image_size=arguments.image_size,
        batch_size=arguments.batch_size,
        workers=arguments.workers,
        seconds=arguments.seconds,
        repeats=arguments.repeats,
        backend=arguments.backend,
    )

    def note(line: str) -> None:
        if not arguments.quiet:
            print(line, file=sys.stderr, flush=True)

    result = throughput(arguments.dir, options, folder=arguments.folder, note=note)
    print(render(result))
    if arguments.json:
        print(f"\nwritten to {save('throughput', result, arguments.json)}")
    return 0
