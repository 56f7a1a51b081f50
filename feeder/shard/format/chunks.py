"""Columns that few reads need, compressed in chunks of 64 rows.

Note [Chunks]
A group of chunks is an end u32 for each chunk, counted from the last of these ends, and the chunks, each compressed
with zlib. Numbers are stored by bytes: the first bytes of all numbers, then the second ones, and so on. A chunk of n
rows has
    numbers  n u64
    texts    n lengths u32, and the texts' bytes
    members  n counts u32, and for the M members of these rows M fields u16, M gaps u64 and M lengths u64
A gap is the number of bytes, modulo 2**64, that a member's offset is more than in a plain tar: the offset of the member
before it, or of the image, and the length of that one, rounded up to 512, and a header of 512 bytes.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

__all__ = [
    "CHUNK_ROWS",
    "MemberRows",
    "members",
    "members_of_row",
    "numbers",
    "pack_members",
    "pack_numbers",
    "pack_texts",
    "texts",
]

CHUNK_ROWS = 64
_MAX_CHUNK_BYTES = 1 << 27  # 64 names of a mebibyte each; a damaged or hostile chunk may inflate to more
_BLOCK_BYTES = 512
_BLOCK = np.uint64(_BLOCK_BYTES)

Uint64s = npt.NDArray[np.uint64]


class MemberRows(NamedTuple):
    """The members of some rows, besides the image.

    Attributes:
        counts: int64 [N], members of each row.
        fields: uint16 [M].
        offsets: uint64 [M], bytes.
        lengths: uint64 [M], bytes.
    """

    counts: npt.NDArray[np.int64]
    fields: npt.NDArray[np.uint16]
    offsets: Uint64s
    lengths: Uint64s


def pack_numbers(values: npt.NDArray[Any]) -> bytes:
    """Returns the group of numbers, u64 [N]."""
    return _packed(_by_bytes(values[start : start + CHUNK_ROWS], "<u8") for start in range(0, len(values), CHUNK_ROWS))


def numbers(group: memoryview, rows: int, chunks: range) -> Uint64s:
    """Reads the numbers of some chunks of a group, u64 [N].

    Raises:
        ValueError: if the group is damaged.
    """
    found = [_from_bytes(data, 0, count, "<u8") for data, count in _unpacked(group, rows, chunks)]
    return np.concatenate([np.zeros(0, np.uint64), *found])


def pack_texts(starts: npt.NDArray[Any], data: bytes | memoryview) -> bytes:
    """Returns the group of texts.

    Args:
        starts: [N+1], start of each text in ``data``, and their end.
        data: All texts.
    """
    lengths = np.diff(starts.astype(np.int64))
    places = starts.tolist()
    return _packed(
        _by_bytes(lengths[start : start + CHUNK_ROWS], "<u4")
        + bytes(data[places[start] : places[min(start + CHUNK_ROWS, len(lengths))]])
        for start in range(0, len(lengths), CHUNK_ROWS)
    )


def texts(group: memoryview, rows: int, chunks: range) -> list[bytes]:
    """Reads the texts of some chunks of a group.

    Raises:
        ValueError: if the group is damaged.
    """
    found: list[bytes] = []
    for data, count in _unpacked(group, rows, chunks):
        at = 4 * count
        for length in _from_bytes(data, 0, count, "<u4").tolist():
            found.append(data[at : at + length])
            at += length
        if at != len(data):
            raise ValueError(f"texts of {at - 4 * count} bytes in a chunk that has {len(data) - 4 * count}")
    return found


def pack_members(found: MemberRows, offsets: npt.NDArray[Any], lengths: npt.NDArray[Any]) -> bytes:
    """Returns the group of members.

    Args:
        found: The members.
        offsets, lengths: [N], places of the images.
    """
    ends = np.concatenate([[0], np.cumsum(found.counts)]).astype(np.int64)
    gaps = _gaps(found, offsets, lengths)
    pieces = []
    for start in range(0, len(offsets), CHUNK_ROWS):
        end = min(start + CHUNK_ROWS, len(offsets))
        own = slice(int(ends[start]), int(ends[end]))
        pieces.append(
            _by_bytes(found.counts[start:end], "<u4")
            + _by_bytes(found.fields[own], "<u2")
            + _by_bytes(gaps[own], "<u8")
            + _by_bytes(found.lengths[own], "<u8")
        )
    return _packed(iter(pieces))


def members(
    group: memoryview, rows: int, chunks: range, offsets: npt.NDArray[Any], lengths: npt.NDArray[Any]
) -> MemberRows:
    """Reads the members of some chunks of a group.

    Args:
        group: The group.
        rows: Number of rows in it.
        chunks: The chunks.
        offsets, lengths: [N], places of the images of the chunks' rows.

    Raises:
        ValueError: if the group is damaged.
    """
    counts, fields, gaps, sizes = [], [], [], []
    for data, count in _unpacked(group, rows, chunks):
        own = _from_bytes(data, 0, count, "<u4").astype(np.int64)
        total, at = int(own.sum()), 4 * count
        counts.append(own)
        fields.append(_from_bytes(data, at, total, "<u2"))
        gaps.append(_from_bytes(data, at + 2 * total, total, "<u8"))
        sizes.append(_from_bytes(data, at + 10 * total, total, "<u8"))
    none = np.zeros(0, np.uint64)
    found = MemberRows(
        np.concatenate([none.astype(np.int64), *counts]),
        np.concatenate([none.astype(np.uint16), *fields]),
        none,
        np.concatenate([none, *sizes]),
    )
    return found._replace(offsets=_offsets(found, np.concatenate([none, *gaps]), offsets, lengths))


def members_of_row(group: memoryview, rows: int, row: int, offset: int, length: int) -> list[tuple[int, int, int]]:
    """Reads the members of one row, as :func:`members` does, in a fraction of the time.

    Args:
        group: The group.
        rows: Number of rows in it.
        row: The row.
        offset, length: Place of its image.

    Returns:
        Field, offset and length of each, bytes.

    Raises:
        ValueError: if the group is damaged.
    """
    number, own = divmod(row, CHUNK_ROWS)
    ((data, count),) = _unpacked(group, rows, range(number, number + 1))
    if len(data) < 4 * count:
        raise ValueError(f"{count} counts of members in a chunk of {len(data)} bytes")
    planes = [data[k * count : (k + 1) * count] for k in range(4)]
    before, total = (sum(sum(plane[:end]) << 8 * k for k, plane in enumerate(planes)) for end in (own, count))
    fields, gaps, lengths, end = (4 * count + total * size for size in (0, 2, 10, 18))
    if len(data) < end:
        raise ValueError(f"{total} members in a chunk of {len(data)} bytes")
    found = []
    for place in range(before, before + sum(plane[own] << 8 * k for k, plane in enumerate(planes))):
        gap = int.from_bytes(data[gaps + place : lengths : total], "little")
        offset = (offset + length + -length % _BLOCK_BYTES + _BLOCK_BYTES + gap) % (1 << 64)
        length = int.from_bytes(data[lengths + place : end : total], "little")
        found.append((int.from_bytes(data[fields + place : gaps : total], "little"), offset, length))
    return found


def _taken(lengths: npt.NDArray[Any]) -> Uint64s:
    """Bytes from a member's offset to that of the next one in a plain tar."""
    plain = lengths.astype(np.uint64)
    taken: Uint64s = plain + (np.uint64(0) - plain) % _BLOCK + _BLOCK
    return taken


def _taken_before(found: MemberRows, lengths: npt.NDArray[Any]) -> Uint64s:
    """Bytes from the offset of the member before each, or of the image, to its own in a plain tar."""
    taken = np.concatenate([np.zeros(1, np.uint64), _taken(found.lengths)])[:-1]
    has = found.counts > 0
    taken[(np.cumsum(found.counts) - found.counts)[has]] = _taken(lengths[has])
    return taken


def _gaps(found: MemberRows, offsets: npt.NDArray[Any], lengths: npt.NDArray[Any]) -> Uint64s:
    """Gaps of the members."""
    before = np.concatenate([np.zeros(1, np.uint64), found.offsets])[:-1]
    has = found.counts > 0
    before[(np.cumsum(found.counts) - found.counts)[has]] = offsets[has]
    gaps: Uint64s = found.offsets - before - _taken_before(found, lengths)
    return gaps


def _offsets(found: MemberRows, gaps: Uint64s, offsets: npt.NDArray[Any], lengths: npt.NDArray[Any]) -> Uint64s:
    """Offsets of the members, from their gaps; the numbers wrap around."""
    ends = np.concatenate([np.zeros(1, np.uint64), np.cumsum(_taken_before(found, lengths) + gaps, dtype=np.uint64)])
    starts = np.cumsum(found.counts) - found.counts
    places: Uint64s = ends[1:] + np.repeat(offsets.astype(np.uint64) - ends[starts], found.counts)
    return places


def _by_bytes(values: npt.NDArray[Any], dtype: str) -> bytes:
    plain = np.ascontiguousarray(values.astype(dtype))
    return bytes(plain.view(np.uint8).reshape(len(plain), plain.itemsize).T.tobytes())


def _from_bytes(data: bytes, at: int, count: int, dtype: str) -> npt.NDArray[Any]:
    size = np.dtype(dtype).itemsize
    if count < 0 or at + count * size > len(data):
        raise ValueError(f"{count} numbers of {size} bytes at byte {at} of a chunk that has {len(data)}")
    raw = np.frombuffer(data, np.uint8, count * size, at)
    return np.ascontiguousarray(raw.reshape(size, count).T).view(dtype).reshape(count)


def _packed(chunks: Iterator[bytes]) -> bytes:
    blobs = [zlib.compress(chunk, 9) for chunk in chunks]
    return np.cumsum([len(blob) for blob in blobs]).astype("<u4").tobytes() + b"".join(blobs)


def _unpacked(group: memoryview, rows: int, chunks: range) -> Iterator[tuple[bytes, int]]:
    """Yields the bytes of some chunks, and the number of rows in each."""
    base = 4 * -(-rows // CHUNK_ROWS)
    for number in chunks:
        start, end = (int.from_bytes(group[4 * k : 4 * k + 4], "little") if k >= 0 else 0 for k in (number - 1, number))
        if not start <= end <= len(group) - base:
            raise ValueError(f"chunk {number} from byte {start} to {end} of {len(group) - base}")
        inflate = zlib.decompressobj()
        try:
            data = inflate.decompress(group[base + start : base + end], _MAX_CHUNK_BYTES)
        except zlib.error as error:
            raise ValueError(f"chunk {number}: {error}") from None
        if not inflate.eof:
            raise ValueError(f"chunk {number} is cut off, or inflates to more than {_MAX_CHUNK_BYTES} bytes")
        yield data, min(CHUNK_ROWS, rows - number * CHUNK_ROWS)
