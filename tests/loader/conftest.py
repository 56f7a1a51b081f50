"""Shards for the loader's tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.loader_data import write_shards


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """50 samples in shards of 16."""
    return write_shards(tmp_path_factory.mktemp("shards"), 50)
