"""Readers that do something to their own process, and a dataset with the first of them; for workers without torch."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from feeder.dataset.reader import ReadSamples, Wanted
from feeder.dataset.shard_reader import ShardReader
from tests.support.processes import wait_until

if TYPE_CHECKING:
    from feeder.dataset.shards import ShardDataset

__all__ = [
    "DyingAndWaitingReader",
    "RogueReader",
    "StepReader",
    "ToldReader",
    "WideReader",
    "die_if_told",
    "rogue_dataset",
]


def rogue_dataset(shards: Path, sample: int = -1, deed: str = "", mark: str = "") -> ShardDataset:
    """Random crops of 16 x 16 with the samples' numbers, by a :class:`RogueReader` that does nothing unless told."""
    from feeder.dataset.shards import ShardDataset
    from feeder.transforms import RandomResizedCrop

    dataset = ShardDataset(shards, RandomResizedCrop(16), fields=("index",))
    dataset.reader = RogueReader(str(shards / "index.bin"), sample, deed, mark)
    return dataset


class StepReader(ShardReader):
    """A reader that the kernels don't know: samples are made step by step, in no single call."""

    def __reduce__(self) -> tuple[Any, ...]:
        return StepReader, (self.index.path,)


class RogueReader(ShardReader):
    """Does a deed to its own process when it reads a given sample.

    Args:
        index: Path of the index file.
        sample: The sample.
        deed: "kill", "stop", "abort", "raise" or "exit"; "wait": until another process reads the fifth sample after.
        mark: Path of a file that is made then, after which the deed is not done again; "" for every time.
    """

    def __init__(self, index: str, sample: int, deed: str, mark: str = "") -> None:
        super().__init__(index)
        self.sample, self.deed, self.mark = sample, deed, mark

    def __reduce__(self) -> tuple[Any, ...]:
        return RogueReader, (self.index.path, self.sample, self.deed, self.mark)

    def read(self, ids: np.ndarray, wanted: Wanted | None = None) -> ReadSamples:
        if self.sample in ids:
            first = not self.mark
            if self.deed == "wait":
                wait_until(lambda: os.path.exists(self.mark))
            elif self.mark:
                try:
                    os.close(os.open(self.mark, os.O_CREAT | os.O_EXCL))
                    first = True
                except FileExistsError:
                    pass
            if first and self.deed == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            elif first and self.deed == "stop":
                os.kill(os.getpid(), signal.SIGSTOP)
            elif first and self.deed == "abort":
                os.abort()
            elif first and self.deed == "raise":
                raise RuntimeError("a bug in the reader")
            elif first and self.deed == "exit":
                os._exit(3)
        elif self.deed == "wait" and self.sample + 5 in ids:
            open(self.mark, "w").close()
        return super().read(ids, wanted)


class WideReader(ShardReader):
    """Has a field of 100,000 bytes for each sample."""

    def __reduce__(self) -> tuple[Any, ...]:
        return WideReader, (self.index.path,)

    def field(self, i: int, name: str) -> Any:
        return np.random.default_rng(i).bytes(100_000)


def die_if_told(word: str) -> None:
    """Kills this process if the file is there, and no other process has taken it away."""
    try:
        os.unlink(word)
    except FileNotFoundError:
        return
    os.kill(os.getpid(), signal.SIGKILL)


class ToldReader(ShardReader):
    """Kills its process in a read once the file ``word`` is there."""

    def __init__(self, index: str, word: str) -> None:
        super().__init__(index)
        self.word = word

    def __reduce__(self) -> tuple[Any, ...]:
        return ToldReader, (self.index.path, self.word)

    def read(self, ids: np.ndarray, wanted: Wanted | None = None) -> ReadSamples:
        die_if_told(self.word)
        return super().read(ids, wanted)


class DyingAndWaitingReader(ShardReader):
    """At sample 12, waits until sample 8 was read twice. At the first time that 8 is, waits for a word, and kills its
    process."""

    def __init__(self, index: str, marks: str) -> None:
        super().__init__(index)
        self.marks = marks

    def __reduce__(self) -> tuple[Any, ...]:
        return DyingAndWaitingReader, (self.index.path, self.marks)

    def read(self, ids: np.ndarray, wanted: Wanted | None = None) -> ReadSamples:
        if 8 in ids:
            if self.mark("dying"):
                self.wait("die")
                os.kill(os.getpid(), signal.SIGKILL)
            self.mark("again")
        elif 12 in ids:
            self.mark("waiting")
            self.wait("again")
        return super().read(ids, wanted)

    def mark(self, name: str) -> bool:
        """Leaves a mark; returns whether it is new."""
        try:
            os.close(os.open(os.path.join(self.marks, name), os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return False
        return True

    def wait(self, name: str) -> None:
        """Waits for a mark."""
        wait_until(lambda: os.path.exists(os.path.join(self.marks, name)))
