"""A worker's main function for the fork server, which imports here, once, what nearly every worker needs; no torch.

Pillow is left to the workers that need it: it would take a tenth of the time to the first batch from all.
"""

from __future__ import annotations

import contextlib

import feeder.dataset.shard_reader
from feeder.loader.fast.fast_worker import work_loop  # noqa: F401

with contextlib.suppress(ImportError):  # it was not built
    import feeder.decoders.cpu_decoder
    import feeder.loader.fast.part_runner  # noqa: F401
