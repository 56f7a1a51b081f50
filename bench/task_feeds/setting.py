"""Conditions of a measurement, and the feeds that all tasks have in common."""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any, NamedTuple

import torch

import feeder
from feeder.shard.write.encode import EncodeOptions
from feeder.shard.write.shard_options import ShardOptions
from feeder.shard.write.sharding import shard

__all__ = ["OURS", "PACKED", "Feed", "Setting", "Task", "checked", "epochs", "finds_torchvision", "torch_batches"]

PACKED = "feeder, packed shards"  # the feed of the same task on shards made with --encode packed
OURS = {"feeder": "seekable", PACKED: "packed"}  # feeder's feeds, and the encoding of their shards
_SHARDS = 8  # plenty for two workers
_EPOCH = 20_000  # samples in an epoch, so that its beginning does not count

# Yields the number of samples of each batch, without end; closing it ends what it started.
Feed = Callable[[], Generator[int]]


class Setting(NamedTuple):
    """The conditions of a measurement.

    Attributes:
        images: The folder of images.
        made: A folder for what is made of them, kept until the end.
        workers: Worker processes.
        image_size: Height and width of a sample, pixels.
        batch_size: Samples in a batch.
    """

    images: str
    made: Path
    workers: int
    image_size: int
    batch_size: int

    def paths(self) -> list[Path]:
        """The images, in the order of their names."""
        return sorted(path for path in Path(self.images).rglob("*") if path.is_file())

    def tars(self) -> list[str]:
        """WebDataset tars of the images as they are."""
        out = self.made / "tars"
        if not out.exists():
            count = -(-len(self.paths()) // _SHARDS)
            shard(self.images, str(out), ShardOptions(encode=EncodeOptions("keep"), samples_per_shard=count))
        return sorted(map(str, out.glob("*.tar")))

    def shards(self, encode: str = "seekable") -> str:
        """A shard set of the images."""
        out = self.made / f"shards-{encode}"
        if not out.exists():
            shard(self.images, str(out), ShardOptions(encode=EncodeOptions(encode)))
        return str(out)

    def shard_bytes(self) -> dict[str, int]:
        """Bytes of the tars of each set that was made, by its folder's name."""
        folders = sorted(path for path in self.made.iterdir() if path.is_dir())
        sizes = {folder.name: sum(tar.stat().st_size for tar in folder.glob("*.tar")) for folder in folders}
        return {name: size for name, size in sizes.items() if size}

    def dataset(self, shards: str, transform: Any, **options: Any) -> Any:
        """A shard set, as often as it takes to make a long epoch."""
        return self.long(feeder.ShardDataset(shards, transform, **options))

    def long(self, dataset: Any) -> Any:
        """A dataset, as often as it takes to make a long epoch."""
        return torch.utils.data.ConcatDataset([dataset] * -(-_EPOCH // len(dataset)))


class Task(NamedTuple):
    """A task.

    Attributes:
        feeds: Returns the rivals by name; feeder's comes first. :data:`PACKED` is no rival.
        goals: The least ratio of feeder's samples per CPU-second to those of some others.
        parts: Names of feeds that are a part of the work alone, whose share of each rival's CPU time is reported.
    """

    feeds: Callable[[Setting], dict[str, Feed]]
    goals: dict[str, float]
    parts: tuple[str, ...] = ()


def epochs(dataset: Any, setting: Setting, **options: Any) -> Generator[Any]:
    """Yields feeder's batches, epoch by epoch."""
    given: dict[str, Any] = {"shuffle": True, "drop_last": True, "batch_size": setting.batch_size, **options}
    workers = setting.workers
    loader = feeder.DataLoader(dataset, num_workers=workers, persistent_workers=workers > 0, **given)
    with contextlib.closing(loader):
        if loader.path != "fast":
            raise SystemExit(f"feeder takes its {loader.path} path")
        while True:
            yield from loader


def torch_batches(dataset: Any, setting: Setting) -> Generator[Any]:
    """Yields batches of torch's loader, drawn without end."""
    sampler = torch.utils.data.RandomSampler(dataset, replacement=True, num_samples=1 << 40)
    yield from torch.utils.data.DataLoader(dataset, setting.batch_size, sampler=sampler, num_workers=setting.workers)


def checked(name: str, images: torch.Tensor, *size: int) -> int:
    """Returns the number of images of a batch, which must be float32 [N, 3, height, width]."""
    if images.shape[1:] != (3, *size) or images.dtype != torch.float32:
        raise SystemExit(f"{name}: a batch is {images.dtype} {list(images.shape)}")
    return len(images)


def finds_torchvision() -> bool:
    """Returns True if torchvision can be imported, if need be from the folder that ``make env`` has for it."""
    if importlib.util.find_spec("torchvision"):
        return True
    from tests.support.with_torchvision import FOLDER, add_torchvision

    if FOLDER.exists():
        add_torchvision()
    return FOLDER.exists()
