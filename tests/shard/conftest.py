"""Images to shard."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.images import make_tree


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four classes of 15 images."""
    return make_tree(tmp_path_factory.mktemp("data") / "images", classes=4, per_class=15)
