"""The modules that a warm batch enters: few, so that a newcomer can follow it."""

from __future__ import annotations

from pathlib import Path

from bench.walk import walk
from feeder.shard.write.shard_options import ShardOptions
from feeder.shard.write.sharding import shard
from tests.support.images import make_tree

_MOST = 27


def test_a_warm_batch_enters_few_modules(tmp_path: Path) -> None:
    shard(str(make_tree(tmp_path / "images", 2, 32)), str(tmp_path / "shards"), ShardOptions())
    trainer, worker = walk(str(tmp_path / "shards"))
    assert len(trainer | worker) <= _MOST
