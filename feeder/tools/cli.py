"""The ``feeder`` command. Each subcommand imports what it needs, so that ``feeder --help`` is instant."""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any, NoReturn

import feeder
from feeder.errors import ArgumentError, FeederError
from feeder.system.text import meant, printable, say
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

_COMMANDS = {
    "data": (shard, append, takedown, export, index, inspect),
    "look": (browse, replay),
    "speed": (doctor, profile, tune, bench, parity),
    "remote": (cache, serve),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command.

    Args:
        argv: Arguments; None for those of the process. ``help`` before others asks for their help.

    Returns:
        The exit code: 0 success, 1 error or damage found, 2 wrong usage, 3 too many bad inputs, 130 interrupted.
    """
    parser = make_parser()
    if "_ARGCOMPLETE" in os.environ:  # the shell asks for what may follow
        with contextlib.suppress(ImportError):
            import argcomplete

            argcomplete.autocomplete(parser)
    given = [*(sys.argv[1:] if argv is None else argv)]
    arguments, unknown = parser.parse_known_args([*given[1:], "--help"] if given[:1] == ["help"] else given)
    if unknown:
        used = arguments.parser or parser
        options = (option for action in used._actions for option in action.option_strings)
        used.error(f"unrecognized arguments: {' '.join(unknown)}{meant(unknown[0].partition('=')[0], options)}")
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


class _GroupedHelp(_Help):
    """Help text in which the commands stand in groups."""

    def _format_action(self, action: argparse.Action) -> str:
        text = super()._format_action(action)
        if action.metavar == "COMMAND":
            return text.partition("\n\n")[2]  # without a line that says COMMAND
        firsts = {_name(commands[0]): group for group, commands in _COMMANDS.items()}
        return f"\n  {firsts[action.dest]}:\n{text}" if action.dest in firsts else text


class _Parser(argparse.ArgumentParser):
    """The parser of the command and of its subcommands.

    Args:
        examples: Calls that the help shows at its end.
        options: Arguments of :class:`argparse.ArgumentParser`.
    """

    def __init__(self, *, examples: Sequence[str] = (), epilog: str | None = None, **options: Any) -> None:
        shown = "\n".join(["examples:", *(f"  {line}" for line in examples)]) if examples else ""
        options = {"formatter_class": _Help, **options}
        super().__init__(epilog="\n\n".join(filter(None, (shown, epilog))), **options)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            hint = meant(str(value), map(str, action.choices))
            if action.metavar == "COMMAND":
                raise argparse.ArgumentError(
                    None, f"no command {value!r}{hint or ', only ' + ', '.join(action.choices)}"
                )
            choices = ", ".join(map(repr, action.choices))
            raise argparse.ArgumentError(action, f"invalid choice: {value!r} (choose from {choices}){hint}")

    def error(self, message: str) -> NoReturn:
        """Ends the process; instead of the usage, which may have twenty lines, it names the help."""
        say(f"{self.prog}: {printable(message)}; see `{self.prog} --help`", file=sys.stderr)
        self.exit(EXIT_USAGE)


def make_parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="feeder",
        description="An input pipeline for PyTorch vision training: shard once, then load fast.",
        formatter_class=_GroupedHelp,
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
    for command in itertools.chain.from_iterable(_COMMANDS.values()):
        command.add(commands)
        own = commands.choices[_name(command)]
        own.set_defaults(parser=own, run=command.run)
    return parser


def _name(command: ModuleType) -> str:
    """Returns the name of a subcommand, which is that of its module."""
    return command.__name__.rpartition(".")[2]


def _version(verbose: bool) -> str:
    if not verbose:
        return f"feeder {feeder.__version__}"
    from feeder.tools.version_report import report

    return report()
