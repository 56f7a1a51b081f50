"""Memory that runs out, images as large as they may be, and folders of very many files."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import math
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from PIL import Image

from feeder.dataset.folders import FolderDataset
from feeder.dataset.shards import ShardDataset
from feeder.decoders.decoder import MAX_PIXELS
from feeder.errors import DecodeError
from feeder.loader.dataloader import DataLoader
from feeder.shard.write.shard_options import ShardOptions
from feeder.shard.write.sharding import shard
from feeder.transforms import Compose, Lambda, RandomResizedCrop
from tests.support import ROOT, images, jpegs
from tests.support.loader_data import write_shards

_LIMIT_BYTES = 192 << 20


class MemoryGroup:
    """A control group of the kernel's, whose processes together may take little memory.

    Args:
        folder: Of the group.
        kills: The file of the group that has a line ``oom_kill N``.
    """

    def __init__(self, folder: Path, kills: str) -> None:
        self.folder, self._kills = folder, kills

    def join(self, _: Any = None) -> None:
        """Moves this process into the group."""
        (self.folder / "cgroup.procs").write_text("0")

    @property
    def kills(self) -> int:
        """Number of processes that the kernel has killed for want of memory."""
        lines = (self.folder / self._kills).read_text().splitlines()
        return int(next(line.split()[1] for line in lines if line.startswith("oom_kill ")))


@pytest.fixture
def memory_group() -> Iterator[MemoryGroup]:
    root = Path("/sys/fs/cgroup")
    first_version = (root / "memory").is_dir()
    folder = root / ("memory" if first_version else "") / f"feeder-test-{os.getpid()}"
    names = ("memory.limit_in_bytes", "memory.swappiness") if first_version else ("memory.max", "memory.swap.max")
    try:
        folder.mkdir()
    except OSError as error:
        pytest.skip(f"no memory control group can be made here: {error}")
    try:
        try:
            (folder / names[0]).write_text(str(_LIMIT_BYTES))
        except OSError as error:
            pytest.skip(f"the memory of a control group can't be limited here: {error}")
        with contextlib.suppress(OSError):  # a kernel without swap
            (folder / names[1]).write_text("0")
        yield MemoryGroup(folder, "memory.oom_control" if first_version else "memory.events")
    finally:
        folder.rmdir()


class Hungry:
    """Takes more memory than the group has at sample 21, as often as there are tokens: files that it takes away."""

    def __init__(self, tokens: Path, count: int) -> None:
        self._tokens = [str(tokens / str(number)) for number in range(count)]
        for token in self._tokens:
            Path(token).touch()

    def __call__(self, image: Any) -> Any:
        if image[0].max() == 21:
            for token in self._tokens:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(token)
                    return np.ones(2 * _LIMIT_BYTES, np.uint8)
        return image


class Plain(torch.utils.data.Dataset[Any]):
    """Samples that are not feeder's."""

    def __init__(self, change: Any) -> None:
        self.change = change

    def __len__(self) -> int:
        return 64

    def __getitem__(self, i: int) -> npt.NDArray[np.uint8]:
        image: npt.NDArray[np.uint8] = self.change(np.full((3, 8, 8), i, np.uint8))
        return image


@pytest.mark.parametrize("kind", ["shards", "plain"])
def test_worker_killed_for_want_of_memory_is_replaced(tmp_path: Path, memory_group: MemoryGroup, kind: str) -> None:
    shards = write_shards(tmp_path / "shards", 64)

    def epoch(change: Any, **options: Any) -> tuple[DataLoader[Any], list[Any]]:
        recipe = Compose([RandomResizedCrop(8), Lambda(change)])
        dataset: Any = ShardDataset(shards, recipe) if kind == "shards" else Plain(change)
        loader = DataLoader(dataset, batch_size=8, shuffle=True, generator=torch.Generator().manual_seed(3), **options)
        return loader, [(batch[0] if kind == "shards" else batch).clone() for batch in loader]

    _, expected = epoch(Hungry(tmp_path, 0))
    loader, batches = epoch(Hungry(tmp_path, 2), num_workers=2, worker_init_fn=memory_group.join)
    assert memory_group.kills == 2
    assert all(map(torch.equal, batches, expected))
    assert len(batches) == len(expected) == 8
    causes = [event["cause"] for event in loader.stats()["replaced_workers"]]
    assert len(causes) == 2
    assert all(("out-of-memory killer" if kind == "shards" else "Killed") in cause for cause in causes)


def _gray(width: int, height: int) -> bytes:
    """A JPEG of blocks that are all of one level, made without its pixels: the codes of each block are four zeros."""
    entropy = bytes(-(-width // 8) * -(-height // 8) // 2) + b"\x0f"
    return jpegs.built((0x11,), (width, height), ([0, 0, 6], range(6)), ([1], [0]), entropy, bytes([16] * 64))


_PEAKS = """
import json, resource, sys
import torch
from feeder.dataset.folders import FolderDataset
from feeder.loader.dataloader import DataLoader
from feeder.transforms import RandomResizedCrop

small, large = (FolderDataset(path, RandomResizedCrop(64, scale=(0.0001, 0.001))) for path in sys.argv[1:3])
grown = {}
for backend in sys.argv[3:]:  # from the least of memory to the most: what counts is the peak
    peaks = []
    for dataset in (small, large):
        ((images, _),) = DataLoader(dataset, backend=backend)
        assert images.unique().tolist() == [128], backend
        peaks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
    grown[backend] = (peaks[1] - peaks[0]) >> 10
print(json.dumps(grown))
"""


@pytest.mark.slow
def test_a_crop_of_the_largest_image_takes_no_memory_of_the_whole_image(tmp_path: Path) -> None:
    """But with Pillow, which decodes all of it."""
    for name, side in (("small", 64), ("large", math.isqrt(MAX_PIXELS))):
        (tmp_path / name / "c").mkdir(parents=True)
        (tmp_path / name / "c/gray.jpg").write_bytes(_gray(side, side))
    backends = [name for name in ("cpu", "dali", "pillow") if name != "dali" or importlib.util.find_spec("nvidia.dali")]
    command = [sys.executable, "-c", _PEAKS, str(tmp_path / "small"), str(tmp_path / "large"), *backends]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    grown = json.loads(done.stdout)
    assert grown.keys() == set(backends)
    assert all(mib < (600 if name == "pillow" else 48) for name, mib in grown.items()), grown


@pytest.mark.parametrize("backend", ["cpu", "dali", "pillow"])
def test_an_image_of_200_megapixels_is_refused_by_name(tmp_path: Path, backend: str) -> None:
    """By its header: nothing of it is decoded. Sharding says so first."""
    if backend == "dali":
        pytest.importorskip("nvidia.dali")
    (tmp_path / "src/c").mkdir(parents=True)
    (tmp_path / "src/c/gray.jpg").write_bytes(_gray(20_000, 10_000))
    (tmp_path / "src/c/small.jpg").write_bytes(_gray(20, 10))
    loader = DataLoader(FolderDataset(tmp_path / "src", RandomResizedCrop(8)), backend=backend)
    with pytest.raises(DecodeError, match=r"c/gray\.jpg.*(200000000|20000x10000) pixels"):
        next(iter(loader))
    shard(str(tmp_path / "src"), str(tmp_path / "out"), ShardOptions(max_bad=1))
    assert len(ShardDataset(tmp_path / "out")) == 1
    (row,) = map(json.loads, (tmp_path / "out/rejected.jsonl").read_text().splitlines())
    assert (row["path"], row["reason"][:59]) == (
        "c/gray.jpg",
        "20000x10000 is more than the 89,478,485 pixels that feeder ",
    )


@pytest.mark.slow
def test_a_hundred_thousand_files_in_one_folder(tmp_path: Path) -> None:
    """Hard links of a few files, as file systems count at most 65,000 of one."""
    count, each = 100_000, 20_000
    (tmp_path / "src/c").mkdir(parents=True)
    for i in range(count):
        if i % each == 0:
            original = tmp_path / "src/c" / f"{i:06d}.png"
            original.write_bytes(images.encode(Image.new("RGB", (1, 1), (i // each, 0, 0)), "PNG"))
        else:
            os.link(original, tmp_path / "src/c" / f"{i:06d}.png")
    dataset = FolderDataset(tmp_path / "src", fields=("key",))
    assert len(dataset) == count
    for i in (0, each - 1, each, count - 1):
        image, label, key = dataset[i]
        assert (image[0, 0, 0], label, key) == (i // each, 0, f"c/{i:06d}.png")
    assert shard(str(tmp_path / "src"), str(tmp_path / "out"), dry_run=True).samples == count
