"""Bytes that are needed next are fetched before workers ask for them."""

from __future__ import annotations

import functools
import os
import re
import signal
import threading
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from PIL import Image

import feeder
from feeder import transforms as T
from feeder.dataset.shard_reader import ShardReader
from feeder.dataset.shards import ShardDataset
from feeder.errors import ArgumentError, StoreError
from feeder.loader.fast.batch_queue import BatchRecord
from feeder.loader.fast.position import EpochProgress, Place
from feeder.loader.fast.read_ahead import DrawnAhead, ReadAhead
from feeder.loader.slots.image_slots import Samples
from feeder.order.lanes import Lanes
from feeder.order.sample_order import Order
from feeder.order.split import Split
from feeder.shard.cache.cache_mirror import CacheMirror
from feeder.shard.cache.link import Link
from feeder.shard.cache.presence import Presence, record_path
from feeder.shard.write.shard_options import ShardOptions
from feeder.shard.write.sharding import shard
from tests.support.folder_store import folder_mirror
from tests.support.processes import all_ended, wait_until
from tests.support.remote import Bucket
from tests.support.remote_sets import end_fetchers, make_set, upload


class Progress:
    """Of an epoch that is not over."""

    exhausted = False
    steps = 0

    def __init__(self) -> None:
        self.moved = threading.Event()


def present(cache: Path) -> set[str]:
    """The shards that are in a cache as a whole."""
    found = set()
    for path in cache.glob("*.tar"):
        record = Presence(record_path(str(cache), path.name))
        found |= {path.name} if record.has(0, record.size_bytes) else set()
    return found


def test_batches_of_a_sampler_are_fetched_when_they_are_drawn(tmp_path: Path) -> None:
    folder, cache, progress = make_set(tmp_path / "local", shards=5), tmp_path / "cache", Progress()
    with end_fetchers(tmp_path):
        mirror = folder_mirror(cache, folder, is_set=True)
        reader = ShardReader(os.path.join(cache, "index.bin"), mirror=mirror)
        ahead = DrawnAhead(reader, cast(Any, progress), 3)
        batches = [
            BatchRecord(0, Samples.of(np.arange(4), np.array(ids)), None) for ids in ([4, 5, 6, 7], [16, 0, 1, 17])
        ]
        asked = ahead.watched(iter(batches))
        assert next(asked) is batches[0]
        wait_until(lambda: present(cache) == {"shard-000001.tar"})
        assert next(asked) is batches[1]
        wait_until(lambda: present(cache) == {f"shard-00000{number}.tar" for number in (0, 1, 4)})
        ahead.close()
        mirror.close()


def test_another_fetcher_gets_the_plan_at_the_next_step(bucket: Bucket, tmp_path: Path) -> None:
    """All is planned, and no shard ends for long."""
    url, names = upload(bucket, make_set(tmp_path / "local", shards=5)), {f"shard-00000{k}.tar" for k in range(5)}
    with end_fetchers(tmp_path):
        reader = cast(ShardReader, ShardDataset(url, cache_dir=tmp_path / "cache").reader)
        cache, progress = Path(cast(CacheMirror, reader.mirror).folder), EpochProgress(Place(), Split(20, 1), None)
        ahead = ReadAhead(reader, Order(20, 0), Split(20, 1), progress, 1)
        wait_until(lambda: present(cache) == names)
        pid = int((cache / "fetcher.lock").read_text())
        os.kill(pid, signal.SIGKILL)
        assert all_ended([pid])
        for path in cache.glob("*.tar"):
            path.unlink()
        progress.steps = 1
        progress.moved.set()
        wait_until(lambda: present(cache) == names)
        ahead.close()


@pytest.fixture(scope="module")
def small_images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A set of 40 shards of 16 tiny images, whose indexes are together as large as one or two of the shards."""
    folder = tmp_path_factory.mktemp("small")
    (folder / "images" / "class").mkdir(parents=True)
    for number in range(640):
        Image.new("RGB", (8, 8), (number % 256, number // 256, 0)).save(folder / "images" / "class" / f"{number}.png")
    shard(str(folder / "images"), str(folder / "set"), ShardOptions(samples_per_shard=16))
    return folder / "set"


def test_a_cache_has_room_for_the_indexes_of_what_is_planned_or_is_refused(
    bucket: Bucket, tmp_path: Path, small_images: Path
) -> None:
    url, progress = upload(bucket, small_images), EpochProgress(Place(), Split(640, 8), None)
    tar_bytes = max(path.stat().st_size for path in small_images.glob("*.tar"))

    def made(cache_bytes: int) -> tuple[ShardReader, feeder.DataLoader]:
        data = ShardDataset(url, T.Resize((8, 8)), cache_dir=tmp_path / "cache", cache_bytes=cache_bytes)
        return cast(ShardReader, data.reader), feeder.DataLoader(data, batch_size=8, num_workers=2)

    with end_fetchers(tmp_path):
        reader, loader = made(5 * tar_bytes)
        with pytest.raises(StoreError, match=r"are too few for .*\. Give cache_bytes=") as refused:
            iter(loader)
        (amount,) = re.findall(r"cache_bytes=([\d,]+) or more", str(refused.value))
        needed, index = int(amount.replace(",", "")), reader.index
        sizes = [index.header.shard(number).index_bytes for number in range(40)]
        shards, further = divmod(needed - sum(sizes), tar_bytes)  # all are planned
        assert shards >= 3
        assert further == 2 * max(sizes) + sum(path.stat().st_size for path in small_images.glob("*.bin"))
        reader, loader = made(needed)
        mirror = cast(CacheMirror, reader.mirror)
        ahead = ReadAhead(reader, Order(640, 0), Split(640, 8), progress, 1)
        wait_until(lambda: len(present(Path(mirror.folder))) >= 3)  # the first batch is in one of them
        ahead.close()
        local = feeder.DataLoader(ShardDataset(small_images, T.Resize((8, 8))), batch_size=8, num_workers=0)
        for (images, _), (expected, _) in zip(loader, local, strict=True):
            assert images.equal(expected)


def test_the_end_of_a_shard_is_told_at_once_and_batches_some_together(
    tmp_path: Path, small_images: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps, window, messages, ask = 80, 32, list[dict[str, Any]](), Link.ask
    order = Order(640, 0, Lanes(2, window, 8), [16] * 40)
    looked_ahead = 2 * 2 * window // 8  # steps
    shards = order.ids(0, np.arange(640)).reshape(steps, 8) // 16
    lasts = {f"shard-{number:06d}.tar": int(np.nonzero(shards == number)[0].max()) for number in range(40)}
    progress = EpochProgress(Place(), Split(640, 8), None)

    def noted(self: Link, message: dict[str, Any], *heartbeat: Any) -> dict[str, Any]:
        answer = ask(self, message, *heartbeat)
        messages.extend([message["plan"]] if "plan" in message else [])
        return answer

    def is_told(step: int) -> bool:
        names = {name for plan in list(messages) for name, _ in plan["last_steps"]}
        needed = {f"shard-{number:06d}.tar" for number in shards[: step + looked_ahead].ravel().tolist()}
        done = [last for name, last in lasts.items() if name in names and last < step]
        return needed <= names and max(plan["step"] for plan in list(messages)) > max(done, default=-1)

    with end_fetchers(tmp_path):
        mirror = folder_mirror(tmp_path / "cache", small_images, is_set=True)
        reader = ShardReader(os.path.join(mirror.folder, "index.bin"), mirror=mirror)
        monkeypatch.setattr(Link, "ask", noted)
        ahead = ReadAhead(reader, order, Split(640, 8), progress, 1)
        wait_until(lambda: bool(messages))
        for step in range(steps):
            progress.steps = step
            progress.moved.set()
            wait_until(functools.partial(is_told, step))
            wait_until(lambda: not progress.moved.is_set())
        ahead.close()
        mirror.close()
    assert sum(bool(plan["last_steps"]) for plan in messages) < steps // 2


def test_a_cache_that_a_full_shuffle_asks_for_keeps_all_of_the_set(
    bucket: Bucket, tmp_path: Path, small_images: Path
) -> None:
    url, tars = upload(bucket, small_images), [path.stat().st_size for path in small_images.glob("*.tar")]
    options: dict[str, Any] = {"batch_size": 16, "num_workers": 1, "shuffle": "full"}
    with end_fetchers(tmp_path):
        data = ShardDataset(url, T.Resize((8, 8)), cache_dir=tmp_path / "cache", cache_bytes=sum(tars))
        with pytest.raises(ArgumentError, match=r"do not fit its cache .* cache_bytes=") as refused:
            feeder.DataLoader(data, **options)
        (amount,) = re.findall(r"cache_bytes=([\d_]+) or more", str(refused.value))
        data = ShardDataset(url, T.Resize((8, 8)), cache_dir=tmp_path / "cache", cache_bytes=int(amount))
        loader = feeder.DataLoader(data, **options)
        asked = []
        for _ in range(2):
            assert sum(len(labels) for _, labels in loader) == 640
            asked.append(loader.stats()["remote"]["bytes"])
    assert asked[1] == asked[0] >= sum(tars)
    assert int(amount) == asked[0] + max(tars)
