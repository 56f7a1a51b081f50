"""The ``feeder`` command. Each subcommand imports what it needs, so that ``feeder --help`` is instant."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

import feeder
from feeder.errors import ArgumentError, FeederError
from feeder.system.text import printable, say
from feeder.tools.commands import (
    append,
    bench,
    browse,
    cache,
    doctor,
    export,
    index,
    inspect,
    parity,
    profile,
    replay,
    serve,
    shard,
    takedown,
    tune,
)
from feeder.tools.commands.common import EXIT_ERROR, EXIT_INTERRUPTED, EXIT_USAGE

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command.

    Args:
        argv: Arguments; None for those of the process.

    Returns:
        The exit code: 0 success, 1 error or damage found, 2 wrong usage, 3 too many bad inputs, 130 interrupted.
    """
    parser = make_parser()
    if "_ARGCOMPLETE" in os.environ:  # the shell asks for what may follow
        with contextlib.suppress(ImportError):
            import argcomplete

            argcomplete.autocomplete(parser)
    arguments, unknown = parser.parse_known_args(argv)
    if unknown:
        (arguments.parser or parser).error(f"unrecognized arguments: {' '.join(unknown)}")
    if arguments.run is None and not arguments.version:
        parser.print_help()
        return EXIT_USAGE
    try:
        if arguments.version:
            say(_version(arguments.verbose))
            return 0
        code: int = arguments.run(arguments)
        return code
    except FeederError as error:
        say(f"feeder: {error}", file=sys.stderr)
        return EXIT_USAGE if isinstance(error, ArgumentError) else EXIT_ERROR
    except KeyboardInterrupt:
        hint = f": {arguments.on_interrupt}" if "on_interrupt" in arguments else ""
        say(f"\nfeeder: interrupted{hint}", file=sys.stderr)
        return EXIT_INTERRUPTED
    except BrokenPipeError:  # the reader of the output, such as `head`, has ended
        sys.stdout = None
        return 0
    except OSError as error:
        say(printable(f"feeder: {error.filename or 'error'}: {error.strerror or error}"), file=sys.stderr)
        return EXIT_ERROR


class _Help(argparse.HelpFormatter):
    """Help text in which indented lines stay as they are."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        fill = super()._fill_text
        return "\n".join(line if line.startswith(" ") else fill(line, width, indent) for line in text.split("\n"))


class _Parser(argparse.ArgumentParser):
    """The parser of the command and of its subcommands.

    Args:
        examples: Calls that the help shows at its end.
        options: Arguments of :class:`argparse.ArgumentParser`.
    """

    def __init__(self, *, examples: Sequence[str] = (), epilog: str | None = None, **options: Any) -> None:
        shown = "\n".join(["examples:", *(f"  {line}" for line in examples)]) if examples else ""
        super().__init__(formatter_class=_Help, epilog="\n\n".join(filter(None, (shown, epilog))), **options)

    def error(self, message: str) -> NoReturn:
        """Ends the process; instead of the usage, which may have twenty lines, it names the help."""
        say(f"{self.prog}: {printable(message)}; see `{self.prog} --help`", file=sys.stderr)
        self.exit(EXIT_USAGE)


def make_parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="feeder", description="An input pipeline for PyTorch vision training: shard once, then load fast."
    )
    parser.set_defaults(run=None, parser=None)
    parser.add_argument("--version", action="store_true", help="print the version and exit")
    parser.add_argument(
        "-v",
        "--verbose",
        action="store_true",
        help="with --version: also the machine and the installed packages, for bug reports",
    )
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    commands_of_data = (shard, append, takedown, inspect, browse, index, export, cache, serve)
    for command in (*commands_of_data, bench, parity, doctor, profile, tune, replay):
        command.add(commands)
    for each in commands.choices.values():
        each.set_defaults(parser=each)
    return parser


def _version(verbose: bool) -> str:
    if not verbose:
        return f"feeder {feeder.__version__}"
    from feeder.tools.version_report import report

    return report()
