"""One module for each ``feeder`` subcommand: add() declares its arguments, run() runs it."""

from __future__ import annotations

__all__: list[str] = []
