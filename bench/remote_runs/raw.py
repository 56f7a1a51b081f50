"""An epoch over images as they lie in a bucket, by feeder or by LitData: ``python bench/remote_runs/raw.py JSON``

A script for a Python that has feeder and LitData. Reads JSON of :class:`Run`; opens the folder, and when a line comes
on its standard input runs an epoch and prints a line of JSON.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import feeder
from bench.remote_runs.epoch import SUBREAPER
from feeder.system.process_usage import cpu_seconds, cpu_seconds_of
from feeder.transforms import Compose, RandomHorizontalFlip, RandomResizedCrop


@dataclass(frozen=True)
class Run:
    """An epoch.

    Attributes:
        name: "feeder" or "litdata".
        url: The folder's URL.
        cache: An empty folder, for the listing.
        store: Ids of the store's processes.
        workers, batch_size: Of the loader.
        image_size: Of the images of a batch, px; 0 for their bytes alone.
    """

    name: str
    url: str
    cache: str
    store: Sequence[int]
    workers: int
    batch_size: int
    image_size: int


class _Encoded(torch.utils.data.Dataset[Any]):
    """The encoded images of a folder, a batch at a time."""

    def __init__(self, dataset: feeder.FolderDataset) -> None:
        self._reader = dataset.reader

    def __len__(self) -> int:
        return len(self._reader)

    def __getitems__(self, ids: list[int]) -> list[Any]:
        found = self._reader.read(np.array(ids))
        assert not any(error is not None for error in found.errors)
        return [bytes(each) for each in found.buffers]


def loader(run: Run) -> Any:
    """Returns an iterable of batches, whose first entry has a row for each image."""
    recipe = Compose([RandomResizedCrop(run.image_size or 224), RandomHorizontalFlip()])
    options: dict[str, Any] = {"batch_size": run.batch_size, "shuffle": True, "num_workers": run.workers}
    if run.name == "feeder":
        folder = feeder.FolderDataset(run.url, recipe, cache_dir=run.cache)
        if run.image_size:
            return feeder.DataLoader(folder, **options)
        return torch.utils.data.DataLoader(_Encoded(folder), collate_fn=_sizes, **options)

    import boto3
    from botocore.config import Config
    from litdata import StreamingRawDataset  # type: ignore[import-not-found]
    from litdata.raw.indexer import BaseIndexer, FileMetadata  # type: ignore[import-not-found]

    class Listed(BaseIndexer):  # type: ignore[misc]
        """The listing by boto3: its own wants s3fs, and obstore can't be used before workers are forked."""

        def discover_files(self, input_dir: str, storage_options: Any) -> list[Any]:
            _, _, bucket, prefix = input_dir.rstrip("/").split("/", 3)
            client = boto3.client("s3", config=Config(s3={"addressing_style": "path"}), **storage_options)
            pages = client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=f"{prefix}/")
            found = (each for page in pages for each in page["Contents"])
            return [FileMetadata(f"s3://{bucket}/{each['Key']}", each["Size"]) for each in found]

    sys.modules["litdata.streaming.downloader"]._OBSTORE_CLIENT_OPTIONS["allow_http"] = (
        True  # there is no option for it
    )
    place = {"endpoint_url": os.environ["AWS_ENDPOINT_URL"]}
    made = StreamingRawDataset(run.url, cache_dir=run.cache, indexer=Listed(), storage_options=place)

    def decoded(images: list[bytes]) -> tuple[torch.Tensor, None]:
        return feeder.decode(images, recipe), None

    return torch.utils.data.DataLoader(made, collate_fn=decoded if run.image_size else _sizes, **options)


def _sizes(images: list[bytes]) -> tuple[torch.Tensor, None]:
    return torch.tensor([*map(len, images)]), None


def main() -> None:
    run = Run(**json.loads(sys.argv[1]))
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # LitData prints
    ctypes.CDLL(None).prctl(SUBREAPER, 1, 0, 0, 0)  # feeder's process that fetches counts, too
    torch.set_num_threads(1)
    batches = loader(run)
    sys.stdin.readline()

    started, cpu_s, store_s = time.perf_counter(), cpu_seconds(), cpu_seconds_of(run.store)
    images = sum(len(batch[0]) for batch in batches)
    seconds = time.perf_counter() - started
    found = {"images": images, "seconds": seconds, "cpu_s": cpu_seconds() - cpu_s}
    print(json.dumps(found | {"store_cpu_s": cpu_seconds_of(run.store) - store_s}), file=out, flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
