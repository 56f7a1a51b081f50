"""Images and shards for the tools' tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from feeder.shard.write.sharding import shard
from tests.support.images import make_tree


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two classes of 16 images."""
    return make_tree(tmp_path_factory.mktemp("tools") / "images", 2, 16)


@pytest.fixture(scope="module")
def shards(tree: Path) -> Path:
    """The shards of ``tree``."""
    shard(str(tree), str(tree.parent / "shards"))
    return tree.parent / "shards"
