"""decode_packed: the JPEG of a packed sample, for programs that read shards without feeder."""

from __future__ import annotations

import hashlib

import pytest

from feeder import _native as native
from feeder.decoders.packed import add_codebooks, codebook_id, decode_packed, packed_head
from feeder.errors import DecodeError
from tests.support import jpegs
from tests.support.packed import codebook, packed


def test_the_jpeg_comes_back_with_its_codebook() -> None:
    data = jpegs.jpeg("4:2:0")
    other = native.train_codebook([])
    assert decode_packed(packed(data), codebook()) == data
    assert decode_packed(packed(data), [other, codebook()]) == data
    assert decode_packed(packed(data), bytearray(codebook())) == data  # type: ignore[arg-type]
    head = packed_head(packed(data))
    assert head.jpeg_bytes == len(data)
    assert head.jpeg_header == data[: jpegs.entropy_offset(data)]


def test_a_missing_codebook_is_named() -> None:
    file = packed(jpegs.jpeg("gray"))
    with pytest.raises(DecodeError, match=f"codebook {packed_head(file).codebook.hex()} is not among the 1 given"):
        decode_packed(file, native.train_codebook([]))


def test_a_codebook_that_is_given_does_not_become_known() -> None:
    """The decoders never forget one, so those of unknown sets would fill the memory."""
    wide = (0o77777777).to_bytes(3, "little")
    one, two = b"FPC\x01\0\0" + 2 * wide, b"FPC\x01\1\0" + 3 * wide
    add_codebooks([one])
    data = jpegs.jpeg("4:2:0", (40, 24))
    file = native.pack(data, codebook_id(one), hashlib.sha256(data).digest())
    file = file[:4] + codebook_id(two) + file[12:]
    assert decode_packed(file, two) == data
    with pytest.raises(native.Unsupported, match=f"unknown codebook {codebook_id(two).hex()}"):
        native.unpack(file)


def test_what_is_no_codebook_is_refused() -> None:
    file = packed(jpegs.jpeg("gray"))
    for other in (b"", b"FPC\x02" + codebook()[4:], codebook() + b"x"):
        with pytest.raises(ValueError, match="not a codebook of packed JPEGs"):
            decode_packed(file[:4] + codebook_id(other) + file[12:], other)


def test_damage_that_decodes_is_found_by_the_checksum() -> None:
    data = jpegs.jpeg("gray", (17, 33))
    file = packed(data)
    header_end = 64 + len(packed_head(file).jpeg_header)
    reasons = []
    for at in range(header_end, len(file)):
        try:
            assert decode_packed(jpegs.patched(file, at, file[at] ^ 1), codebook()) == data  # a bit without a meaning
        except DecodeError as error:
            reasons.append(str(error))
    assert len(reasons) > 0.8 * (len(file) - header_end)
    assert any("SHA-256" in reason for reason in reasons)


def test_what_is_no_packed_jpeg_is_an_error() -> None:
    file = packed(jpegs.jpeg("gray"))
    for data, reason in (
        (b"", "not a packed JPEG"),
        (file[:70], "ends inside its head"),
        (b"FPK\x02" + file[4:], "version 2"),
    ):
        with pytest.raises(DecodeError, match=reason):
            decode_packed(data, codebook())
