"""The SIMD levels of the native module."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from feeder import _native as native

LEVELS = ("portable", "avx2", "avx512")


@pytest.fixture(params=LEVELS)
def level(request: pytest.FixtureRequest) -> Iterator[str]:
    """Name of the level that kernels run at; each of those that the CPU has."""
    yield from at_level(request.param)


@pytest.fixture(params=(*LEVELS, "avx2 with a slow pdep"))
def packed_level(request: pytest.FixtureRequest) -> Iterator[str]:
    """The same for packed JPEGs, which AMD's CPUs before Zen 3 unpack without pdep."""
    name, _, slow = request.param.partition(" ")
    yield from at_level(name, slow_pdep=bool(slow))


def at_level(name: str, **options: Any) -> Iterator[str]:
    before = native.simd_level()
    if not native.set_simd_level(name, **options):
        pytest.skip(f"this CPU has no {name}")
    yield name
    native.set_simd_level(before)
