"""Measures the cost of a data set's size: time to the first batch, memory of the trainer and its workers, and bytes of
the index.

The set lists a few tiny images again and again: for feeder in an index, for torch's DataLoader in a Python list of
(path, label), as in torchvision's ImageFolder. Equal: the images' bytes, decoding by Pillow, batches, workers, the
number of batches taken at random. Each run has its own process; runs take turns. torch's list is made before the clock
starts, as the time to walk folders is another question.

The index's bytes are those of photos as seekable shards: of the header and the shards' indexes, less what the photos'
paths take in them. Each photo is sharded once, and then also as several copies with other names, in one shard: the
difference gives the bytes of a sample, and what is left is fixed.

    python -m bench.size --images DIR [--samples 1000,1000000] [--workers 0,4] [--batches 200] [--repeats 5]
        [--copies 8] [--json OUT]
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Dataset

from bench.smoke import arguments
from feeder.dataset.shards import ShardDataset
from feeder.loader.dataloader import DataLoader
from feeder.shard.format.block_sums import file_sums
from feeder.shard.format.index_builder import IndexBuilder
from feeder.shard.format.index_file import INDEX_NAME
from feeder.shard.format.manifest import ShardRecord
from feeder.shard.format.set_header import INDEX_SUFFIX
from feeder.shard.format.shard_index import ShardIndex, write_shard_index
from feeder.shard.write.set_writer import index_path, write_set
from feeder.shard.write.shard_options import ShardOptions
from feeder.shard.write.sharding import shard
from feeder.system.process_usage import memory
from feeder.tools.bench.result_file import save, spread
from feeder.tools.terminal import table
from feeder.transforms import CenterCrop, Compose

SIDE_PX = 16
BATCH = 64
IMAGES = 50


class Listed(Dataset[Any]):
    """A dataset of the usual kind: a list of paths and labels, opened with Pillow."""

    def __init__(self, folder: Path, samples: int) -> None:
        self.samples = [(str(folder / f"{i % IMAGES:03d}.jpg"), i % 1000) for i in range(samples)]

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, i: int) -> tuple[torch.Tensor, int]:
        import numpy as np
        from PIL import Image

        path, label = self.samples[i]
        with Image.open(path) as image:
            return torch.from_numpy(np.array(image)).permute(2, 0, 1), label


def prepare(folder: Path, counts: list[int]) -> None:
    """Makes the images as files and as one shard, and an index for each number of samples."""
    from tests.support.images import encode, pixels

    bodies = [encode(pixels(seed, SIDE_PX, SIDE_PX)) for seed in range(IMAGES)]
    starts = [sum(map(len, bodies[:i])) for i in range(IMAGES)]
    for i, body in enumerate(bodies):
        (folder / f"{i:03d}.jpg").write_bytes(body)
    for count in counts:
        home = folder / str(count)
        home.mkdir()
        (home / "shard-000000.tar").write_bytes(b"".join(bodies))
        builder = IndexBuilder()
        for row in range(count):
            i = row % IMAGES
            name = b"%09d" % row
            builder.add(
                key=name,
                path=b"images/%s.jpg" % name,
                field="jpg",
                offset=starts[i],
                length=len(bodies[i]),
                label=row % 1000,
                width=SIDE_PX,
                height=SIDE_PX,
                orientation=1,
                source_bytes=len(bodies[i]),
                crc32=0,
                members=(),
            )
        sha256, blocks = file_sums(str(home / "shard-000000.tar"))
        hashed = ShardRecord("shard-000000.tar", len(builder), sum(map(len, bodies)), sha256)
        builder.write(index_path(str(home), hashed.name), blocks, hashed.size_bytes)
        write_set(str(home / INDEX_NAME), [hashed], None)


def measure(job: dict[str, Any]) -> dict[str, float]:
    """Measures one run, in its own process."""
    folder, workers = Path(job["folder"]), job["workers"]
    listed = Listed(folder, job["samples"]) if job["system"] == "torch" else None
    began = time.perf_counter()
    loader: TorchDataLoader[Any]
    if listed is not None:
        loader = TorchDataLoader(listed, BATCH, shuffle=True, num_workers=workers)
    else:
        dataset = ShardDataset(folder / str(job["samples"]), Compose([CenterCrop(SIDE_PX)]))
        loader = DataLoader(dataset, BATCH, shuffle=True, num_workers=workers, backend="pillow")
    batches = iter(loader)
    images, _ = next(batches)
    first = time.perf_counter() - began
    if tuple(images.shape) != (BATCH, 3, SIDE_PX, SIDE_PX):
        raise SystemExit(f"expected batches of {BATCH}, got {tuple(images.shape)}")
    taken = 1
    while taken < job["batches"]:
        taken += 1
        if next(batches, None) is None:
            batches = iter(loader)
    used = memory()
    return {"first_batch_s": first, "peak_rss_mib": used.peak_rss, "pss_mib": used.pss}


def index_bytes(images: Path, copies: int) -> dict[str, float]:
    """Measures the index of photos as seekable shards, each photo once and again as several samples."""
    found = []
    with tempfile.TemporaryDirectory() as name:
        source = Path(name, "images")
        for copy in range(copies):
            for path in images.rglob("*"):
                if path.is_file():
                    target = source / path.parent.relative_to(images) / f"{copy}-{path.name}"
                    target.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copyfile(path, target)
            if copy in (0, copies - 1):
                out = Path(name, str(copy))
                samples = shard(str(source), str(out), ShardOptions(shard_size_bytes=1 << 40)).samples
                found.append((samples, _index_bytes(out)))
    (few, least), (samples, most) = found
    each = (most - least) / (samples - few)
    return {"index_bytes_a_sample": each, "index_fixed_bytes": most - each * samples, "index_samples": samples}


def _index_bytes(folder: Path) -> int:
    """Returns the size of a set's header and of its shards' indexes, without the paths of the samples."""
    size = (folder / INDEX_NAME).stat().st_size
    with tempfile.TemporaryDirectory() as made:
        for path in folder.glob(f"*{INDEX_SUFFIX}"):
            index, to = ShardIndex(str(path)), Path(made, path.name)
            samples = [index.sample(row)._replace(path=b"") for row in range(index.samples)]
            rest = index.fields, index.targets, index.blocks(), index.tar_bytes, index.codebooks()
            write_shard_index(str(to), samples, *rest, is_numbered=index.is_numbered)
            size += to.stat().st_size
    return size


def main() -> None:
    if sys.argv[1:2] == ["--child"]:
        print(json.dumps(measure(json.loads(sys.argv[2]))))
        return
    options = arguments(
        __doc__, "size", smoke={"samples": "2000", "workers": "1", "batches": 3, "repeats": 1, "copies": 2},
        images=None, samples="1000,1000000", workers="0,4", batches=200, repeats=5, copies=8,
    )  # fmt: skip
    index = index_bytes(Path(options.images), options.copies)
    samples, workers = ([int(n) for n in text.split(",")] for text in (options.samples, options.workers))
    found: dict[str, dict[str, list[dict[str, float]]]] = {"feeder": {}, "torch": {}}
    with tempfile.TemporaryDirectory() as name:
        prepare(Path(name), samples)
        for turn in range(options.repeats):
            for count in samples:
                for processes in workers:
                    for system, rows in found.items():
                        job = {"system": system, "folder": name, "samples": count, "workers": processes}
                        command = [sys.executable, "-m", "bench.size", "--child"]
                        command.append(json.dumps(job | {"batches": options.batches}))
                        done = subprocess.run(command, check=True, capture_output=True, text=True, env=dict(os.environ))
                        row = json.loads(done.stdout.splitlines()[-1])
                        rows.setdefault(f"{count} samples, {processes} workers", []).append(row)
                        print(f"  {turn + 1}/{options.repeats} {system}, {count} samples, {processes} workers: {row}")
    results: dict[str, Any] = {
        measure: {
            system: {what: spread([row[measure] for row in rows]) for what, rows in cells.items()}
            for system, cells in found.items()
        }
        for measure in ("first_batch_s", "pss_mib", "peak_rss_mib")
    }
    lines = [["", "first s", "PSS MiB", "peak MiB"]]
    for system, cells in found.items():
        for what in cells:
            medians = [results[m][system][what]["median"] for m in ("first_batch_s", "pss_mib", "peak_rss_mib")]
            lines.append([f"{system}, {what}", f"{medians[0]:.3f}", f"{medians[1]:.0f}", f"{medians[2]:.0f}"])
    print(table(lines))
    print(
        "index: {index_bytes_a_sample:.1f} bytes a sample and its path, {index_fixed_bytes:.0f} fixed".format(**index)
    )
    print(f"written to {save('size', {'batches': options.batches, **results, **index}, options.json)}")


if __name__ == "__main__":
    main()
