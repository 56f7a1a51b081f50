"""Measures the cost of a data set's size: time to the first batch, and memory of the trainer and its workers.

The set lists a few tiny images again and again: for feeder in an index, for torch's DataLoader in a Python list of
(path, label), as in torchvision's ImageFolder. Equal: the images' bytes, decoding by Pillow, batches, workers, the
number of batches taken at random. Each run has its own process; runs take turns. torch's list is made before the clock
starts, as the time to walk folders is another question.

    python -m bench.size [--samples 1000,1000000] [--workers 0,4] [--batches 200] [--repeats 5] [--json OUT]
"""

from __future__ import annotations

import json
import os
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
from feeder.shard.write.set_writer import HashedShard, index_path, write_set
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
        shard = HashedShard("shard-000000.tar", sum(map(len, bodies)), sha256)
        builder.write(index_path(str(home), shard.name), blocks, shard.size_bytes)
        write_set(str(home / INDEX_NAME), [shard], None)


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


def main() -> None:
    options = arguments(
        __doc__, "size", smoke={"samples": "2000", "workers": "1", "batches": 3, "repeats": 1},
        samples="1000,1000000", workers="0,4", batches=200, repeats=5, child="",
    )  # fmt: skip
    if options.child:
        print(json.dumps(measure(json.loads(options.child))))
        return
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
    print(f"written to {save('size', {'batches': options.batches, **results}, options.json)}")


if __name__ == "__main__":
    main()
