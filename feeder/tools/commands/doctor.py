"""``feeder doctor``: checks the machine, and the loaders of training scripts."""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any

from feeder.errors import ArgumentError
from feeder.system.text import count, say
from feeder.tools.commands.common import EXIT_ERROR, add_output, say_json
from feeder.tools.terminal import columns


def add(commands: Any) -> None:
    command = commands.add_parser(
        "doctor",
        examples=(
            "feeder doctor                                # the machine",
            "feeder doctor train.py                       # a script, without running it",
        ),
        help="find what keeps the GPU waiting, in the machine and in a training script",
        description="Without a script: checks the machine. With a script: reads it, without running it, and lists "
        "mistakes around its loaders by line, each with its cost and a rewrite.",
        epilog="levels: note, worth knowing; warning, costs speed; problem, fails or trains wrongly. exit codes: "
        "0 no problem, 1 problems (with --strict also warnings) or error, 2 wrong usage; with --run the script's own, "
        "if not 0",
    )
    command.add_argument("scripts", metavar="SCRIPT", nargs="*", help="training script (.py)")
    command.add_argument("--machine", action="store_true", help="with a script: check the machine too")
    command.add_argument("--strict", action="store_true", help="exit with code 1 for warnings too")
    add_output(command)
    command.add_argument(
        "--run",
        dest="run_script",
        nargs=argparse.REMAINDER,
        metavar="SCRIPT ...",
        help="run the script that follows, with its arguments, on a GPU, and list the lines that wait for the GPU; "
        "everything after this option belongs to the script",
    )


def run(arguments: argparse.Namespace) -> int:
    from feeder.tools.doctor import check_machine, check_script, colored, counts, render, to_json

    findings: list[Any] = []
    code = 0
    if arguments.run_script is not None:
        code, findings = _run(arguments)
    elif arguments.machine or not arguments.scripts:
        findings += check_machine()
    for script in arguments.scripts:
        findings += check_script(script)
    if arguments.quiet:
        findings = [finding for finding in findings if finding.level in ("warning", "problem")]
    found = counts(findings)
    if arguments.json:
        say_json(to_json(findings))
    elif findings or not arguments.quiet:
        if findings:
            takes_color = sys.stdout is not None and sys.stdout.isatty() and not os.environ.get("NO_COLOR")
            say(render(findings, columns()) + "\n", style=colored if takes_color else str)
        say(", ".join(count(found[level], level) for level in ("problem", "warning", "note")))
    bad = found["problem"] + (found["warning"] if arguments.strict else 0)
    return code or (EXIT_ERROR if bad else 0)


def _run(arguments: argparse.Namespace) -> tuple[int, list[Any]]:
    from feeder.tools.doctor.gpu_waits import find_waits

    if not arguments.run_script:
        raise ArgumentError("--run needs a script: feeder doctor --run train.py [its arguments]")
    if arguments.scripts or arguments.machine:
        raise ArgumentError(
            "--run takes no other checks: check the machine or scripts in another call of feeder doctor"
        )
    return find_waits(arguments.run_script[0], arguments.run_script[1:])
