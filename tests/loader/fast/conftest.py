"""Shards for the tests of the fast path."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.loader_data import write_shards


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """64 samples in shards of 16: whole batches of any size that the tests use."""
    return write_shards(tmp_path_factory.mktemp("shards"), 64)
