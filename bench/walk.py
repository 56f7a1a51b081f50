"""Counts the modules of feeder that a warm batch enters, in the trainer and in a worker.

Python's profiling hook records the module of every function called while a batch is made and returned, after the first
few batches. The fewer modules, the less there is to read to follow a batch. The count says nothing about speed.

    python -m bench.walk --shards SHARDS [--json OUT]
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from types import FrameType
from typing import Any

import torch

import feeder
from bench.smoke import arguments
from feeder.tools.bench.result_file import save, spread
from feeder.tools.terminal import table
from feeder.transforms import Compose, Normalize, RandomHorizontalFlip, RandomResizedCrop, ToDtype

ROOT = os.path.dirname(os.path.abspath(feeder.__file__)) + os.sep
WARM = 3  # batches before the one that counts


class Walk:
    """Records the modules whose functions are called.

    Args:
        gate: Only calls while this file exists count; None: all calls.
        note: File to which the names are written whenever there is a new one; None for no file.
    """

    def __init__(self, gate: Path | None = None, note: Path | None = None) -> None:
        self.modules: set[str] = set()
        self._gate, self._note = gate, note

    def start(self) -> None:
        """Starts recording calls in this thread."""
        sys.setprofile(self._see)

    def _see(self, frame: FrameType, event: str, argument: Any) -> None:
        name = frame.f_code.co_filename
        if event != "call" or not name.startswith(ROOT) or name[len(ROOT) :] in self.modules:
            return
        if self._gate is not None and not self._gate.exists():
            return
        self.modules.add(name[len(ROOT) :])
        if self._note is not None:
            draft = self._note.with_suffix(".draft")
            draft.write_text("\n".join(sorted(self.modules)))
            draft.replace(self._note)  # at once, as the worker may end at any moment


class WatchedWorker:
    """A ``worker_init_fn`` that watches its worker."""

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)

    def __call__(self, number: int) -> None:
        Walk(self._folder / "gate", self._folder / str(number)).start()


def walk(shards: str) -> tuple[set[str], set[str]]:
    """Returns the modules that a warm batch enters in the trainer and in a worker."""
    steps = [RandomResizedCrop(64), RandomHorizontalFlip(), ToDtype(torch.float32, scale=True)]
    dataset = feeder.ShardDataset(shards, transform=Compose([*steps, Normalize((0.5,) * 3, (0.5,) * 3)]))
    with tempfile.TemporaryDirectory(prefix="feeder-walk-") as folder:
        watched = WatchedWorker(folder)
        loader: Any = feeder.DataLoader(
            dataset, 4, shuffle=True, num_workers=1, worker_init_fn=watched, multiprocessing_context="fork"
        )
        batches = iter(loader)
        for _ in range(WARM):
            next(batches)
        gate = Path(folder) / "gate"
        gate.touch()
        trainer = Walk()
        trainer.start()
        next(batches)
        sys.setprofile(None)
        for _ in range(WARM):  # what the worker has begun after the gate opened
            next(batches)
        gate.unlink()  # the end of the worker is not part of a batch
        loader.close()
        return trainer.modules, set((Path(folder) / "0").read_text().split("\n"))


def main() -> None:
    options = arguments(__doc__, "walk", smoke={}, shards=None)
    trainer, worker = walk(options.shards)
    modules = {"trainer": trainer, "worker": worker, "together": trainer | worker}
    print(table([["modules", "entered"], *([where, str(len(names))] for where, names in modules.items())]))
    for where in ("trainer", "worker"):
        print(f"\n{where}: {', '.join(sorted(name.removesuffix('.py') for name in modules[where]))}")
    results = {where: spread([len(names)]) for where, names in modules.items()}
    names = {where: sorted(names) for where, names in modules.items() if where != "together"}
    print(f"\nwritten to {save('walk', {'modules': results, 'names': names}, options.json)}")


if __name__ == "__main__":
    main()
