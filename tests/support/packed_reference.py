"""A reader of packed JPEGs as docs/packed-format.md describes them, without the kernels."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

__all__ = ["jpeg_of"]

_WIDTHS = (0, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12)


def jpeg_of(file: bytes, codebook: bytes) -> bytes:
    """Returns the JPEG that was packed."""
    head_bytes, trailer_bytes, rows = struct.unpack_from("<III", file, 48)
    ones = file[60] == 1
    header = file[64 : 64 + head_bytes]
    starts = struct.unpack_from(f"<{rows + 1}I", file, 64 + head_bytes)
    assert starts[0] == 64 + head_bytes + 4 * (rows + 1)
    assert starts[-1] + trailer_bytes == len(file)
    frame = _Frame(header)
    tables = _shapes(codebook)
    bits, out, last, done, restarts = "", bytearray(header), [0] * len(frame.factors), 0, 0
    for row in range(rows):
        lines = _Row(file[starts[row] : starts[row + 1]]).lines(frame, tables)
        for column in range(frame.columns):
            if frame.interval and done and done % frame.interval == 0:
                out += _segment(bits, ones) + bytes([0xFF, 0xD0 + restarts % 8])
                bits, last, restarts = "", [0] * len(last), restarts + 1
            for c, (h, v) in enumerate(frame.factors):
                for y in range(v):
                    for x in range(h):
                        block = lines[c, y][column * h + x]
                        bits += _coded(block, last[c], *frame.codes[c])
                        last[c] = int(block[0])
            done += 1
    return bytes(out + _segment(bits, ones) + file[starts[-1] :])


class _Frame:
    """A JPEG's sampling factors, columns of MCUs, restart interval and Huffman codes, of its header."""

    def __init__(self, header: bytes) -> None:
        huffman: dict[int, dict[int, str]] = {}
        self.interval, at = 0, 2
        while at < len(header):
            code, length = header[at + 1], int.from_bytes(header[at + 2 : at + 4], "big")
            data = header[at + 4 : at + 2 + length]
            at += 2 + length
            if code in (0xC0, 0xC1):
                width = int.from_bytes(data[3:5], "big")
                self.factors = [(b >> 4, b & 15) for b in data[7::3]]
            elif code == 0xDD:
                self.interval = int.from_bytes(data, "big")
            elif code == 0xDA:
                self.codes = [(huffman[b >> 4], huffman[16 | b & 15]) for b in data[2:-3:2]]
            while code == 0xC4 and data:
                huffman[data[0]], data = _codes(data[1:])
        if len(self.factors) == 1:
            self.factors = [(1, 1)]
        self.columns = -(-width // (8 * max(h for h, _ in self.factors)))


def _codes(data: bytes) -> tuple[dict[int, str], bytes]:
    """Returns the code of each symbol in a table, and the bytes behind it."""
    codes: dict[int, str] = {}
    code, at = 0, 16
    for length, count in enumerate(data[:16], 1):
        for symbol in data[at : at + count]:
            codes.setdefault(symbol, f"{code:0{length}b}")
            code += 1
        at += count
        code <<= 1
    return codes, data[at:]


def _shapes(codebook: bytes) -> tuple[list[list[int]], list[list[int]]]:
    """Returns the codes of the widths of each shape, of the first component and of the others."""
    assert codebook[:4] == b"FPC\x01"
    numbers = [int.from_bytes(codebook[at : at + 3], "little") for at in range(6, len(codebook), 3)]
    shapes = [[number >> 3 * g & 7 for g in range(8)] for number in numbers]
    first = codebook[4] + 1
    assert len(shapes) == first + codebook[5] + 1
    return shapes[:first], shapes[first:]


class _Row:
    """A row of MCUs, read from its start."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def _take(self, count: int) -> bytes:
        self._at += count
        assert self._at <= len(self._data)
        return self._data[self._at - count : self._at]

    def _group(self, width: int) -> list[int]:
        bits = int.from_bytes(self._take(width), "little")
        return [(bits >> width * i & ((1 << width) - 1)) - (1 << width >> 1 if width else 0) for i in range(8)]

    def lines(
        self, frame: _Frame, tables: tuple[list[list[int]], list[list[int]]]
    ) -> dict[tuple[int, int], npt.NDArray[np.int64]]:
        """Returns int [blocks, 64] in zigzag order of each component and row of blocks."""
        found = {}
        for c, (h, v) in enumerate(frame.factors):
            for y in range(v):
                found[c, y] = self._line(frame.columns * h, tables[min(c, 1)])
        assert self._at == len(self._data)
        return found

    def _line(self, n: int, shapes: list[list[int]]) -> npt.NDArray[np.int64]:
        g = -(-n // 8)
        (patches,) = struct.unpack("<H", self._take(2))
        numbers = self._take(n)
        codes = [code for byte in self._take(-(-g // 2)) for code in (byte & 15, byte >> 4)][:g]
        differences = [each for code in codes for each in self._group(_WIDTHS[code])][:n]
        blocks = np.zeros((n, 64), np.int64)
        for x in range(n):
            blocks[x] = [each for code in shapes[numbers[x]] for each in self._group(_WIDTHS[code])]
        for _ in range(patches):
            patch = int.from_bytes(self._take(3), "little")
            x, index, value = patch >> 11, patch >> 5 & 63, (patch & 31 ^ 16) - 16
            if index == 0:
                differences[x] += value << _WIDTHS[codes[x // 8]]
            else:
                blocks[x, index] += value << _WIDTHS[shapes[numbers[x]][index // 8]]
        blocks[:, 0] = (np.cumsum(differences) + (1 << 15)) % (1 << 16) - (1 << 15)
        return blocks


def _coded(block: npt.NDArray[np.int64], before: int, dc: dict[int, str], ac: dict[int, str]) -> str:
    def parts() -> Iterator[str]:
        difference = int(block[0]) - before
        yield dc[abs(difference).bit_length()] + _value(difference)
        run = 0
        for value in block[1:].tolist():
            if value == 0:
                run += 1
                continue
            yield (
                "".join(ac[0xF0] for _ in range(run // 16))
                + ac[run % 16 << 4 | abs(value).bit_length()]
                + _value(value)
            )
            run = 0
        if run:
            yield ac[0]

    return "".join(parts())


def _value(value: int) -> str:
    size = abs(value).bit_length()
    return f"{value if value > 0 else value + (1 << size) - 1:0{size}b}" if size else ""


def _segment(bits: str, ones: bool) -> bytes:
    bits += ("1" if ones else "0") * (-len(bits) % 8)
    return int(bits or "0", 2).to_bytes(len(bits) // 8, "big").replace(b"\xff", b"\xff\x00")
