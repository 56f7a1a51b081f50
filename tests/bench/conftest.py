"""Fixtures of the benchmarks' tests."""

from __future__ import annotations

import pytest

from feeder.tools.bench import result_file


@pytest.fixture
def one_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """All results of a test have one description of the machine, which takes 0.1 s each: of git and all packages."""
    found = result_file.machine()
    monkeypatch.setattr(result_file, "machine", lambda: found)
