"""Workers that are killed in every epoch, in between slowly enough that others start in their place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset

from feeder.dataset.shards import ShardDataset
from feeder.loader.dataloader import DataLoader
from feeder.transforms import RandomResizedCrop
from tests.support.loader_data import write_shards
from tests.support.rogue_readers import ToldReader, die_if_told

_EPOCHS = 14  # more than the workers in a row whose deaths end a run


class _Mortal(Dataset[Any]):
    def __init__(self, word: str) -> None:
        self.word = word

    def __len__(self) -> int:
        return 64

    def __getitem__(self, i: int) -> Any:
        die_if_told(self.word)
        return torch.full((3, 60, 60), float(i)), i


def _dataset(folder: Path, is_fast: bool, word: Path) -> Any:
    if not is_fast:
        return _Mortal(str(word))
    dataset = ShardDataset(folder, RandomResizedCrop(16), fields=("index",))
    dataset.reader = ToldReader(str(folder / "index.bin"), str(word))
    return dataset


@pytest.mark.slow
@pytest.mark.parametrize("is_fast", [True, False])
@pytest.mark.parametrize(("context", "epochs"), [("spawn", 3), ("forkserver", _EPOCHS)])
def test_a_worker_killed_in_every_epoch_changes_nothing(
    tmp_path: Path, context: str, epochs: int, is_fast: bool
) -> None:
    """A worker that dies has started: it is at work when the message comes."""
    folder, word = write_shards(tmp_path / "shards", 64), tmp_path / "die"

    def batches(context: str, kills: int) -> list[list[torch.Tensor]]:
        torch.manual_seed(1)
        loader = DataLoader(
            _dataset(folder, is_fast, word),
            batch_size=4,
            shuffle=True,
            num_workers=2,
            prefetch_factor=1,
            persistent_workers=True,
            multiprocessing_context=context,
        )
        found = []
        for epoch in range(epochs):
            for step, batch in enumerate(loader):
                found.append([x.clone() for x in batch])
                if step == 4 and epoch < kills:
                    word.touch()
        assert loader.stats()["respawns"] == kills
        return found

    for one, other in zip(batches(context, epochs), batches("fork", 0), strict=True):
        assert all(torch.equal(x, y) for x, y in zip(one, other, strict=True))
