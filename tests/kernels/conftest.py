"""The SIMD levels of the native module."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from feeder import _native as native


@pytest.fixture(params=("portable", "avx2", "avx512"))
def level(request: pytest.FixtureRequest) -> Iterator[str]:
    """Name of the level that kernels run at; each of those that the CPU has."""
    before = native.simd_level()
    if not native.set_simd_level(request.param):
        pytest.skip(f"this CPU has no {request.param}")
    yield request.param
    native.set_simd_level(before)
