"""Epochs of other loaders over an S3 store, for a consumer of a fixed rate: ``python bench/remote_runs/rivals.py JSON``

A script for a Python that has MosaicML Streaming (``streaming``), LitData and webdataset. Reads JSON of :class:`Run`;
prints a line of JSON for each epoch, and begins the next one when a line comes on its standard input. Samples stay
encoded, and only their sizes leave the workers.
"""

from __future__ import annotations

import json
import os
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench.standin import StandIn
from feeder.system.process_usage import cpu_seconds


@dataclass(frozen=True)
class Run:
    """A job of one rank.

    Attributes:
        name: "streaming", "litdata" or "webdataset".
        shards: Folder of the shard set whose images it loads.
        bucket: The bucket, in which the shard set lies at "set", and the copies of others at their names.
        cache: An empty folder.
        rate: Images a second that the consumer takes.
        batch_size, workers: Of the loader.
        write: True to write the images in the loader's own format.
    """

    name: str
    shards: str
    bucket: str
    cache: str
    rate: float
    batch_size: int
    workers: int = 2
    write: bool = False


def samples(shards: str) -> Iterator[dict[str, Any]]:
    """Yields the images and labels of a shard set."""
    for path in sorted(Path(shards).glob("*.tar")):
        with tarfile.open(path) as tar:
            image = b""
            for member in tar:
                file = tar.extractfile(member)
                assert file is not None
                if member.name.endswith(".cls"):
                    yield {"image": image, "label": int(file.read())}
                elif member.name.endswith((".jpg", ".jpeg", ".png")):
                    image = file.read()


def write(run: Run) -> None:
    import boto3
    from botocore.config import Config

    shard_bytes = max(path.stat().st_size for path in Path(run.shards).glob("*.tar"))
    with tempfile.TemporaryDirectory() as folder:
        if run.name == "streaming":
            from streaming import MDSWriter  # type: ignore[import-not-found]

            columns = {"image": "bytes", "label": "int"}
            with MDSWriter(out=folder, columns=columns, size_limit=shard_bytes) as writer:
                for sample in samples(run.shards):
                    writer.write(sample)
        elif run.name == "litdata":
            from litdata.streaming.writer import BinaryWriter  # type: ignore[import-not-found]

            binary = BinaryWriter(folder, chunk_bytes=shard_bytes)
            for number, sample in enumerate(samples(run.shards)):
                binary.add_item(number, sample)
            binary.done()
            binary.merge()
        else:
            return
        config = Config(s3={"addressing_style": "path"})
        client = boto3.client("s3", endpoint_url=os.environ["AWS_ENDPOINT_URL"], config=config)
        for path in Path(folder).iterdir():
            client.upload_file(str(path), run.bucket, f"{run.name}/{path.name}")


def loader(run: Run) -> Any:
    options: dict[str, Any] = {"num_workers": run.workers, "persistent_workers": run.workers > 0}
    if run.name == "streaming":
        from streaming import StreamingDataset

        made: Any = StreamingDataset(
            remote=f"s3://{run.bucket}/streaming", local=run.cache, shuffle=True, batch_size=run.batch_size
        )
    elif run.name == "litdata":
        from litdata import StreamingDataLoader  # type: ignore[import-not-found]
        from litdata import StreamingDataset as LitDataset

        # It has no option for plain HTTP.
        sys.modules["litdata.streaming.downloader"]._OBSTORE_CLIENT_OPTIONS["allow_http"] = True
        place = {"endpoint_url": os.environ["AWS_ENDPOINT_URL"]}
        lit = LitDataset(f"s3://{run.bucket}/litdata", cache_dir=run.cache, shuffle=True, storage_options=place)
        return StreamingDataLoader(lit, batch_size=run.batch_size, collate_fn=sizes, **options)
    else:
        import webdataset

        names = sorted(path.name for path in Path(run.shards).glob("*.tar"))
        urls = [f"{os.environ['AWS_ENDPOINT_URL']}/{run.bucket}/set/{name}" for name in names]
        made = webdataset.WebDataset(urls, cache_dir=run.cache, shardshuffle=len(urls), empty_check=False)
        made = made.shuffle(1000).map(lambda sample: {"image": sample["jpg"]})
    return torch.utils.data.DataLoader(made, run.batch_size, collate_fn=sizes, **options)


def sizes(batch: list[dict[str, Any]]) -> torch.Tensor:
    return torch.tensor([len(sample["image"]) for sample in batch])


def epoch(run: Run, batches: Any) -> dict[str, Any]:
    consumer = StandIn()
    consumer.scale *= run.rate / consumer.images_per_s(run.batch_size)
    started, cpu_s, images = time.perf_counter(), cpu_seconds(), 0
    for batch in batches:
        images += len(batch)
        consumer.step(len(batch))
    consumer.wait()
    return {"images": images, "seconds": time.perf_counter() - started, "cpu_s": cpu_seconds() - cpu_s}


def main() -> None:
    run = Run(**json.loads(sys.argv[1]))
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # some of them print
    batches: Any = None
    for _ in sys.stdin:
        if run.write:
            write(run)
            print("{}", file=out, flush=True)
            continue
        batches = loader(run) if batches is None else batches
        print(json.dumps(epoch(run, batches)), file=out, flush=True)


if __name__ == "__main__":
    main()
