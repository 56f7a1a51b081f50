"""Values that an iterator takes for one epoch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from feeder.decoders.staged.trainer_decoder import TrainerDecoder
from feeder.loader.fast.batches import Request
from feeder.loader.fast.engine import Engine
from feeder.loader.fast.finishing import Finishing
from feeder.loader.fast.ledger import Ledger
from feeder.loader.fast.position import EpochProgress
from feeder.loader.fast.sample_maker import Work
from feeder.loader.options import EpochOptions

__all__ = ["Epoch"]


@dataclass(frozen=True)
class Epoch:
    """An epoch, or the rest of one, to iterate over.

    Attributes:
        dataset: The user's dataset.
        progress: Progress through the epoch.
        requests: The batches to make.
        options: The loader's options for this epoch.
        work: The way samples are made.
        engine: Slots and workers; None: batches are made in the calling process.
        decoder: Decodes staged images in the calling process; None: work does.
        finishing: The last steps on a batch.
        ledger: Counts what is handed out.
        agree: Compares the epoch with those of other ranks before a batch is handed out; None: nothing to compare.
        channels_last: Memory format of images that the decoder makes.
    """

    dataset: Any
    progress: EpochProgress
    requests: Iterator[Request]
    options: EpochOptions
    work: Work
    engine: Engine | None
    decoder: TrainerDecoder | None
    finishing: Finishing
    ledger: Ledger
    agree: Callable[[EpochProgress], None] | None
    channels_last: bool
