"""``feeder doctor``: the machine."""

from __future__ import annotations

import argparse
import json
import shutil
from typing import Any

from feeder.commands.common import EXIT_DAMAGED, add_output, count

__all__ = ["add", "run"]


def add(commands: Any) -> None:
    command = commands.add_parser(
        "doctor",
        help="look for what keeps the GPU waiting",
        description="Looks at what of this machine keeps the GPU waiting: each finding with why it matters and the way "
        "out.",
        epilog="levels: note, worth knowing; warning, costs speed; problem, fails or trains wrongly. exit codes: "
        "0 no problem, 1 problems (with --strict also warnings) or error, 2 wrong usage",
    )
    command.add_argument("--data", metavar="DIR", help="data set: measure its disk, and how much of it is in memory")
    command.add_argument("--strict", action="store_true", help="exit with 1 for warnings too")
    add_output(command)
    command.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    from feeder.doctor import check_machine, counts, render, to_json

    findings = check_machine(arguments.data)
    if arguments.quiet:
        findings = [finding for finding in findings if finding.level in ("warning", "problem")]
    found = counts(findings)
    if arguments.json:
        print(json.dumps(to_json(findings)))
    elif findings or not arguments.quiet:
        if findings:
            print(render(findings, min(100, max(60, shutil.get_terminal_size().columns))) + "\n")
        print(", ".join(count(found[level], level) for level in ("problem", "warning", "note")))
    bad = found["problem"] + (found["warning"] if arguments.strict else 0)
    return EXIT_DAMAGED if bad else 0
