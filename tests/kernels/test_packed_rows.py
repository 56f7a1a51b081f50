"""The lines of packed JPEGs: DC differences of every width, and patches in their order; anything else is refused."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from feeder import _native as native
from feeder.decoders.packed import add_codebooks, codebook_id
from tests.kernels.test_packed import decoded
from tests.support import jpegs

HEAD_BYTES = 64
DC_WIDTHS = (0, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12)
# One shape for all blocks, two bits a coefficient: most numbers need a patch.
NARROW = b"FPC\x01\0\0" + 2 * sum(1 << 3 * group for group in range(8)).to_bytes(3, "little")
NARROW_BYTES = 8 * 2
DAMAGED = "packed JPEG: damaged row"


def packed(data: bytes) -> bytes:
    add_codebooks([NARROW])
    return native.pack(data, codebook_id(NARROW), bytes(32))


class Line:
    """The only line of a row of a gray image that is packed with :data:`NARROW`."""

    def __init__(self, file: bytes, row: int, blocks: int) -> None:
        (header_bytes,) = struct.unpack_from("<I", file, 48)
        self.file, self.table = file, HEAD_BYTES + header_bytes
        begin, self.end = struct.unpack_from("<II", file, self.table + 4 * row)
        (self.count,) = struct.unpack_from("<H", file, begin)
        self.codes_at = begin + 2 + blocks
        groups = -(-blocks // 8)
        codes = file[self.codes_at : self.codes_at + -(-groups // 2)]
        self.dc_codes = [codes[g // 2] >> 4 * (g % 2) & 15 for g in range(groups)]
        self.patches_at = self.end - 3 * self.count
        length = -(-groups // 2) + sum(DC_WIDTHS[code] for code in self.dc_codes) + blocks * NARROW_BYTES
        assert self.codes_at + length == self.patches_at

    def patches(self) -> list[bytes]:
        return [self.file[at : at + 3] for at in range(self.patches_at, self.end, 3)]

    def with_patches(self, patches: list[bytes]) -> bytes:
        assert len(patches) == self.count
        return self.file[: self.patches_at] + b"".join(patches) + self.file[self.end :]


def place(patch: bytes) -> tuple[int, int]:
    """The block and the index of a patch."""
    bits = int.from_bytes(patch, "little")
    return bits >> 11, bits >> 5 & 63


def gray(width: int, height: int = 8) -> bytes:
    return jpegs.encode(jpegs.photo(3, width, height), mode="L", quality=40)


def refused(file: bytes, box: tuple[int, int, int, int]) -> bool:
    """True if neither a crop nor the JPEG can be had of a file, which says the same both times."""
    status, reason = decoded(file, box)[1:]
    if status == native.Status.OK:
        return False
    assert (status, reason) == (native.Status.CORRUPT, DAMAGED)
    with pytest.raises(native.Unsupported, match="damaged row"):
        native.unpack(file)
    return True


def test_patches_rise_by_block_and_index(packed_level: str) -> None:
    data = gray(40)
    file = packed(data)
    line = Line(file, 0, 5)
    patches = line.patches()
    places = [place(each) for each in patches]
    assert len(patches) > 10
    assert {block for block, _ in places} == {0, 1, 2, 3, 4}
    assert places == sorted(set(places))
    assert native.unpack(line.with_patches(patches)) == data
    assert not refused(file, (0, 0, 40, 8))
    for at in range(len(patches) - 1):
        here, after = patches[at : at + 2]
        assert refused(line.with_patches([*patches[:at], after, here, *patches[at + 2 :]]), (0, 0, 40, 8))
        assert refused(line.with_patches([*patches[:at], here, here, *patches[at + 2 :]]), (0, 0, 40, 8))


def test_a_patch_beyond_the_line_is_refused(packed_level: str) -> None:
    line = Line(packed(gray(40)), 0, 5)
    patches = line.patches()
    for block in (5, 8191):
        beyond = (block << 11 | 63 << 5 | 1).to_bytes(3, "little")
        assert refused(line.with_patches([*patches[:-1], beyond]), (0, 0, 40, 8))


def levels(differences: list[int]) -> bytes:
    """A gray JPEG of one row of flat blocks with these differences of DC coefficients, of up to 15 bits."""
    bits = ""
    for value in differences:
        length = abs(value).bit_length()
        extra = f"{value if value > 0 else value + (1 << length) - 1:0{length}b}" if length else ""
        bits += f"{length:05b}{extra}0"
    bits += "1" * (-len(bits) % 8)
    entropy = int(bits, 2).to_bytes(len(bits) // 8, "big").replace(b"\xff", b"\xff\0")
    dc = ([0, 0, 0, 0, 16], range(16))
    return jpegs.built((0x11,), (8 * len(differences), 8), dc, ([1], [0]), entropy)


@pytest.mark.parametrize("bits", range(16))
def test_dc_differences_of_every_length_come_back(bits: int, packed_level: str) -> None:
    least, most = 1 << bits >> 1, (1 << bits) - 1
    # Their sums, the coefficients, have 16 bits.
    groups = [[least, -least] * 4, [most, -most] * 4, [-most, most] * 4, [0] * 6 + [most, -most], [-least, 0, least]]
    for differences in [*groups, [each for group in groups for each in group]]:
        data = levels(differences)
        file = packed(data)
        assert native.unpack(file) == data
        width = 8 * len(differences)
        for box in ((0, 0, width, 8), (width - 8, 0, width, 8), (width // 2, 2, width - 1, 7)):
            np.testing.assert_array_equal(decoded(file, box)[0], decoded(data, box)[0])


def test_groups_of_dc_differences_take_every_width() -> None:
    # A ninth bit of a number is cheaper in a patch, unless more than a third of the group's numbers have it.
    differences = [each for bits in range(12) for each in [(1 << bits) - 1] * 8]
    line = Line(packed(levels(differences)), 0, len(differences))
    assert line.dc_codes == [0, *range(1, 12)]


@pytest.mark.parametrize("code", range(12, 16))
def test_codes_of_dc_widths_beyond_the_last_one_are_refused(code: int, packed_level: str) -> None:
    """Also where the row has bytes for any width that they might be taken for."""
    file = packed(gray(40))
    line = Line(file, 0, 5)
    (end,) = struct.unpack_from("<I", file, line.table + 4)
    for extra in range(-DC_WIDTHS[line.dc_codes[0]], 33):
        payload = file[line.codes_at + 1 : line.end]
        payload = payload[-extra:] if extra < 0 else bytes(extra) + payload
        moved = struct.pack("<I", end + extra)
        head = file[: line.table + 4] + moved + file[line.table + 8 : line.codes_at] + bytes([code])
        assert refused(head + payload + file[line.end :], (0, 0, 40, 8))
        if extra == 0:
            same = file[: line.codes_at] + file[line.codes_at : line.codes_at + 1] + payload + file[line.end :]
            assert same == file
