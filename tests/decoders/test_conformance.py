"""Every backend that is installed passes the conformance checks."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from feeder.decoders.decoder import Decoder
from feeder.decoders.registry import available_decoders, get_decoder
from tests.support.conformance import CHECKS

# A new backend is one more name here.
BACKENDS = ("pillow", "cpu", "dali")


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__.removeprefix("check_"))
@pytest.mark.parametrize("name", BACKENDS)
def test_backend_conforms(name: str, check: Callable[[Decoder], None]) -> None:
    if name == "dali" and name not in available_decoders():  # the others are part of feeder: absent, they fail
        pytest.skip(f"backend {name!r} is not installed")
    check(get_decoder(name))
