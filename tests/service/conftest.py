"""A shard set, and a server that reads it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from feeder.shard.write.encode import EncodeOptions
from feeder.shard.write.shard_options import ShardOptions
from feeder.shard.write.sharding import shard
from tests.support.loader_data import write_shards, write_tree
from tests.support.service import ServiceServer


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with sets: 64 samples, 40 packed ones, and 64 of which two are bad."""
    made = tmp_path_factory.mktemp("root")
    write_shards(made / "set", 64, jpegs=True)
    tree = write_tree(made / "jpegs", 40, extension="jpg")
    shard(str(tree), str(made / "packed"), ShardOptions(encode=EncodeOptions("packed")))
    write_shards(made / "bad", 64, jpegs=True, bad=(9,), cut=(31,))
    return made


@pytest.fixture(scope="module")
def server(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceServer]:
    made = ServiceServer(tmp_path_factory.mktemp("server"), root)
    yield made
    made.close()
