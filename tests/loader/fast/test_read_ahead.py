"""Bytes that are needed next are fetched before workers ask for them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

import feeder
from feeder import transforms as T
from feeder.dataset.shard_reader import ShardReader
from feeder.dataset.shards import ShardDataset
from feeder.loader.fast.batches import Request
from feeder.loader.fast.position import EpochProgress, Place
from feeder.loader.fast.read_ahead import DrawnAhead, ReadAhead
from feeder.loader.slots.image_slots import Samples
from feeder.order.sample_order import Order
from feeder.order.split import Split
from feeder.shard.cache.mirror import CacheMirror
from feeder.shard.cache.presence import Presence, record_path
from tests.support.folder_store import folder_mirror
from tests.support.processes import wait_until
from tests.support.remote import Bucket
from tests.support.remote_sets import end_fetchers, make_set, upload


class Progress:
    """Of an epoch that is not over."""

    exhausted = False


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
        mirror = folder_mirror(cache, folder)
        reader = ShardReader(os.path.join(cache, "index.bin"), mirror=mirror)
        ahead = DrawnAhead(reader, cast(Any, progress), 3)
        batches = [Request(0, Samples.of(np.arange(4), np.array(ids)), None) for ids in ([4, 5, 6, 7], [16, 0, 1, 17])]
        asked = ahead.watched(iter(batches))
        assert next(asked) is batches[0]
        wait_until(lambda: present(cache) == {"shard-000001.tar"})
        assert next(asked) is batches[1]
        wait_until(lambda: present(cache) == {f"shard-00000{number}.tar" for number in (0, 1, 4)})
        ahead.close()
        mirror.close()


@pytest.mark.parametrize("takes_rows", [False, True])
def test_the_places_of_rows_are_fetched_ahead_where_crops_are_read(
    bucket: Bucket, tmp_path: Path, takes_rows: bool
) -> None:
    url, names = upload(bucket, make_set(tmp_path / "local", shards=5)), [f"shard-00000{k}" for k in range(5)]
    with end_fetchers(tmp_path):
        data = ShardDataset(url, cache_dir=tmp_path / "cache")
        reader = cast(ShardReader, data.reader)
        cache, split = Path(cast(CacheMirror, reader.mirror).folder), Split(20, 2)
        progress = EpochProgress(Place(), split, None)
        ahead = ReadAhead(reader, Order(20, 0), split, progress, 1, takes_rows=takes_rows)
        wait_until(lambda: present(cache) == {f"{name}.tar" for name in names})
        assert {path.name for path in cache.glob("*:*")} == {f"{name}.fidx:steps" for name in names if takes_rows}
        ahead.close()


CROP, WHOLE = T.RandomResizedCrop(32, scale=(0.05, 0.1)), T.Resize((32, 32))


@pytest.mark.parametrize(
    "views",
    [
        pytest.param([CROP], id="crop"),
        pytest.param([WHOLE], id="resize"),
        pytest.param([T.CenterCrop(32)], id="center-crop"),
        pytest.param([CROP, CROP], id="two-crops"),
        pytest.param([CROP, WHOLE], id="crop-and-resize"),
    ],
)
def test_the_places_of_rows_are_fetched_only_for_recipes_that_need_a_part_of_the_rows(
    bucket: Bucket, tmp_path: Path, views: list[T.Op]
) -> None:
    url, names = upload(bucket, make_set(tmp_path / "local", shards=3)), [f"shard-00000{k}" for k in range(3)]
    recipe = T.Views(views) if views[1:] else views[0]
    with end_fetchers(tmp_path):
        data = feeder.ShardDataset(url, recipe, cache_dir=tmp_path / "cache")
        cache = Path(cast(CacheMirror, cast(ShardReader, data.reader).mirror).folder)
        loader = feeder.DataLoader(data, batch_size=4, num_workers=0)
        assert sum(len(labels) for *_, labels in loader) == 12
        is_part = all(view is CROP for view in views)
        assert {path.name for path in cache.glob("*:*")} == {f"{name}.fidx:steps" for name in names if is_part}
