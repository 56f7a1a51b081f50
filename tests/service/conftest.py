"""A shard set, and a server that reads it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.loader_data import write_shards
from tests.support.service import ServiceServer


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with sets: 64 samples, and 64 of which two are bad."""
    made = tmp_path_factory.mktemp("root")
    write_shards(made / "set", 64, jpegs=True)
    write_shards(made / "bad", 64, jpegs=True, bad=(9,), cut=(31,))
    return made


@pytest.fixture(scope="module")
def server(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceServer]:
    made = ServiceServer(tmp_path_factory.mktemp("server"), root)
    yield made
    made.close()
