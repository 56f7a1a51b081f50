"""``feeder parity``: compares pixels with the Pillow reference."""

from __future__ import annotations

import argparse
from typing import Any

from feeder.system.text import say
from feeder.tools.commands.common import EXIT_ERROR, add_output, check_pages, say_json


def add(commands: Any) -> None:
    command = commands.add_parser(
        "parity",
        examples=(
            "feeder parity images-shards",
            "feeder parity ./images --backend cpu --fidelity exact",
            "feeder parity ./images --html parity.html  # with the images that differ most",
        ),
        help="compare a decode backend's pixels with the Pillow reference",
        description="Decodes your own images by a backend and by Pillow, and compares the pixels. The report has a row "
        "for each range of reductions: how much larger the crop is than its output.",
        epilog="exit codes: 0 within the bounds, 1 outside or error, 2 wrong usage",
    )

    command.add_argument("dir", metavar="DIR", help="shard set, or folder with a subfolder for each class")
    command.add_argument("--backend", default="auto", help="backend to compare (default: %(default)s)")
    command.add_argument(
        "--fidelity",
        choices=("fast", "exact", "draft"),
        default="fast",
        help="fidelity of the backend (default: %(default)s)",
    )
    command.add_argument(
        "--device", default="cpu", help="cpu, or cuda if the backend decodes on the GPU (default: cpu)"
    )

    command.add_argument(
        "--images", type=int, default=250, metavar="N", help="images to compare (default: %(default)s)"
    )
    command.add_argument(
        "--seed", type=int, default=0, help="seed that chooses images and crops (default: %(default)s)"
    )

    command.add_argument(
        "--html",
        metavar="FILE",
        help="also write a page: differences by recipe, and pictures of those that are largest",
    )
    add_output(command)


def run(arguments: argparse.Namespace) -> int:
    from feeder.system.files import check_writable, write_text
    from feeder.system.progress import terminal_progress
    from feeder.tools.parity.comparison import parity

    page = None
    if arguments.html is not None:
        check_pages("feeder parity --html")
        check_writable(arguments.html)
        from feeder.tools.parity.page import ParityPage

        page = ParityPage()
    report = parity(
        arguments.dir,
        backend=arguments.backend,
        fidelity=arguments.fidelity,
        device=arguments.device,
        images=arguments.images,
        seed=arguments.seed,
        progress=terminal_progress(arguments.quiet),
        seen=None if page is None else page.add,
    )
    if page is not None:
        write_text(arguments.html, page.html(arguments.dir, report))
    if arguments.json:
        say_json(report.to_json())
    elif not arguments.quiet:
        say(report.render() + ("" if page is None else f"\n  page: {arguments.html}"))
    return 0 if report.passed else EXIT_ERROR
