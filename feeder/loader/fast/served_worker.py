"""A worker's main function for the fork server, which imports here, once, what every worker needs; no torch."""

from __future__ import annotations

import contextlib

import feeder.decoders.pillow.decoder
from feeder.loader.fast.worker import work_loop

with contextlib.suppress(ImportError):  # it was not built
    import feeder.decoders.native  # noqa: F401

__all__ = ["work_loop"]
