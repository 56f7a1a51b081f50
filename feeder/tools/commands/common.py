"""Exit codes, and arguments that several commands share."""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
import sys
from collections.abc import Callable
from typing import Any

from feeder.errors import ArgumentError
from feeder.system.text import say

EXIT_ERROR = 1
EXIT_USAGE = 2
EXIT_SHORT = 3
EXIT_TOO_MANY_BAD = 3
EXIT_INTERRUPTED = 130

IMAGE_FIELD_HELP = "in tars: field that holds the image, such as rgb.jpg (default: chosen by the fields' names)"

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}


def check_pages(command: str) -> None:
    """Checks that the extra that makes pages is installed.

    Args:
        command: The command that makes them.

    Raises:
        ArgumentError: naming the extra.
    """
    try:
        import jinja2  # noqa: F401
        import starlette  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise ArgumentError(f"{command} needs {error.name}: pip install 'feeder-data[browse]'") from None


def size_bytes(text: str) -> int:
    """Reads a size in bytes, such as 256MiB."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]?i?)b?", text.strip().lower())
    if not match or match[2] not in _UNITS:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a size; expected bytes, or a number with kB, MB, GB, TB, KiB, MiB, GiB or TiB"
        )
    return int(float(match[1]) * _UNITS[match[2]])


def share(text: str) -> float:
    """Reads a share, such as 0.01 or 1%."""
    try:
        value = float(text[:-1]) / 100 if text.endswith("%") else float(text)
    except ValueError:
        value = -1
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a share; expected 0 to 1, or a percentage such as 2%")
    return value


def noting(quiet: bool) -> Callable[[str], None]:
    """Returns what takes the lines about each run of a measurement: they go to stderr, if at all."""
    return (lambda line: None) if quiet else (lambda line: say(line, file=sys.stderr))


def say_json(value: object) -> None:
    """Prints a result as one JSON object, dataclasses by the names of their fields."""
    say(json.dumps(value, default=dataclasses.asdict))


def add_labels(command: Any, what: str) -> None:
    """Adds --label-column and --target-column, which both name a ``what``, and --no-labels."""
    command.add_argument(
        "--label-column",
        metavar="NAME",
        help=f"{what} with the label: numbers from 0 on are classes, text is numbered in sorted order, other numbers "
        "are targets",
    )
    command.add_argument(
        "--target-column",
        action="append",
        default=[],
        metavar="NAME",
        help=f"{what} with a number in place of the label; may be repeated",
    )
    command.add_argument("--no-labels", action="store_true", help="ignore labels")


def add_work(command: Any) -> None:
    """Adds --preset, --dtype, --image-size and --batch-size: the work that is measured."""
    command.add_argument(
        "--preset",
        choices=("train", "val"),
        default="train",
        help="train: RandomResizedCrop, flip, normalize; val: Resize, CenterCrop, normalize (default: %(default)s)",
    )
    command.add_argument(
        "--dtype", choices=("float32", "uint8"), default="float32", help="output dtype (default: %(default)s)"
    )
    command.add_argument("--image-size", type=int, default=224, metavar="PX", help="output size (default: %(default)s)")
    command.add_argument(
        "--batch-size", type=int, default=64, metavar="N", help="images in a batch (default: %(default)s)"
    )


def add_output(command: Any) -> None:
    """Adds --json and --quiet, which exclude each other."""
    output = command.add_mutually_exclusive_group()
    output.add_argument("--json", action="store_true", help="print one JSON object at the end")
    output.add_argument("-q", "--quiet", action="store_true", help="print errors only")
