"""The subcommands of ``feeder``."""

from __future__ import annotations

import argparse

from feeder.tools.cli import make_parser

__all__ = ["command_names"]


def command_names() -> list[str]:
    """The names of all subcommands."""
    (commands,) = (a for a in make_parser()._actions if isinstance(a, argparse._SubParsersAction))
    return [*commands.choices]
