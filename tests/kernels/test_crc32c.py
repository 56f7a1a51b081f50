from __future__ import annotations

import numpy as np
import pytest

from feeder import _native


@pytest.mark.parametrize("portable", [False, True])
def test_the_checksum_is_the_one_of_the_standard(portable: bool) -> None:
    # RFC 3720, B.4
    assert _native.crc32c(b"123456789", portable=portable) == 0xE3069283
    assert _native.crc32c(bytes(32), portable=portable) == 0x8A9136AA
    assert _native.crc32c(b"\xff" * 32, portable=portable) == 0x62A8AB43
    assert _native.crc32c(bytes(range(32)), portable=portable) == 0x46DD794E
    assert _native.crc32c(b"", portable=portable) == 0


@pytest.mark.parametrize("size", [12287, 12288, 12295, 12296, 24576, 36863, 36864, 262144, 300000])
def test_the_instruction_gives_the_checksum_of_the_tables(size: int) -> None:
    data = np.random.default_rng(size).bytes(size)
    for before in (0, 1, 0xFFFFFFFF, 0xE3069283):
        assert _native.crc32c(data, before) == _native.crc32c(data, before, portable=True)


@pytest.mark.parametrize("portable", [False, True])
def test_pieces_give_the_checksum_of_the_whole(portable: bool) -> None:
    data = np.random.default_rng(0).bytes(1000)
    whole = _native.crc32c(data)
    for cut in (0, 1, 7, 8, 9, 500, 999, 1000):
        before = _native.crc32c(memoryview(data)[:cut], portable=portable)
        assert _native.crc32c(memoryview(data)[cut:], before, portable=portable) == whole
