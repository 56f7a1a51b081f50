"""The tar container: deterministic writing, and reading that trusts nothing.

Note [Hostile tars]
Links, devices, sparse members and names with ".." are refused one by one, and so is a member that claims more bytes
than the file has. Absolute names lose their slash, as in tar itself. Contents are bytes: never unpickled, never
executed.

Note [Damaged tars]
Two blocks of zeros end an archive. Other bytes after them are another archive, as in ``cat a.tar b.tar``, or follow a
hole, as a page that a disk or server lost is all zeros too. More zeros than any writer's padding are damage: a download
that reserved its space and was cut off ends with them.
Anything else in the place of a header, including a single block of zeros, is damage: its offset is reported, and
reading resumes at the next block that is a valid header. Members in between are lost, so a sample next to the damage
may lack fields, and so may one next to the seam of two archives.
"""

from __future__ import annotations

import errno
import hashlib
import io
import os
import re
import tarfile
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

from feeder.shard.format.block_sums import BlockSums
from feeder.system.files import open_regular

BLOCK_BYTES = 512
_FLUSH_BYTES = 1 << 20
_SCAN_BYTES = 1 << 20
_PADDING_BYTES = 1 << 20  # the most; writers pad to 10 KiB, or to the blocks of a tape
_TYPE = 156
_PAX_TYPES = (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE)
_PAX_RECORD = re.compile(rb"([1-9]\d{0,8}) [^=]+=")
_EXTENDED_HEADER_BYTES = 1 << 20  # the most; names and attributes take a few KiB, a damaged file may claim gigabytes
_USTAR_NAME_BYTES = 100
_USTAR_SIZE_END = 8**11


class Member(NamedTuple):
    """A regular file in a tar: its name, and the offset and number of its bytes."""

    name: str
    offset: int
    size: int


class Seam(NamedTuple):
    """The offset at which another archive begins."""

    offset: int


class Refused(NamedTuple):
    """A member that was refused or, without a name, damage between members.

    Attributes:
        name: The member's name; empty for damage.
        reason: The reason, with the byte offset.
        bad: True if data is known to be lost.
    """

    name: str
    reason: str
    bad: bool = True


def member_bytes(size: int) -> int:
    """Returns the bytes that a member of ``size`` bytes takes in a tar, header and padding included."""
    return BLOCK_BYTES + -(-size // BLOCK_BYTES) * BLOCK_BYTES


def read_members(path: str) -> Iterator[Member | Refused | Seam]:
    """Lists a plain (not compressed) tar in file order; see Note [Hostile tars] and Note [Damaged tars].

    Raises:
        OSError: if the file can't be opened or read.
    """
    with open(path, "rb", opener=open_regular) as file:
        yield from members_of(file, os.fstat(file.fileno()).st_size)


def members_of(file: BinaryIO, file_bytes: int) -> Iterator[Member | Refused | Seam]:
    """Lists an open tar of this size as :func:`read_members` does.

    Raises:
        OSError: if it can't be read.
    """
    # Only tarfile's parser of headers is used, as tarfile stops reading at the first zeros or damage.
    archive = tarfile.TarFile(fileobj=io.BytesIO(bytes(2 * BLOCK_BYTES)))
    archive.fileobj = TarHeaders(file)  # type: ignore[assignment]
    position, ended, is_seam, damage = 0, False, False, ""

    while position < file_bytes:
        zeros = _zero_blocks(file, position)
        if zeros > 1:
            if zeros * BLOCK_BYTES > _PADDING_BYTES:
                hole = f"{zeros * BLOCK_BYTES:,} bytes of zeros from byte {position} on"
                damage = damage or f"damaged tar: {hole}, where samples may have been"
            position, ended, is_seam = position + zeros * BLOCK_BYTES, True, True
            continue
        file.seek(position)
        archive.offset = position
        try:
            if zeros:
                raise tarfile.HeaderError("a single block of zeros; two end an archive")
            info = tarfile.TarInfo.fromtarfile(archive)
            if info.size < 0 or archive.offset <= position:
                raise tarfile.HeaderError(f"a header with size {info.size}")
            info.name = info.name.lstrip("/")
            if info.isreg() and not info.name:
                raise tarfile.HeaderError("a header without a name")
        except (tarfile.TarError, ValueError, OverflowError, RecursionError, OSError) as error:
            if isinstance(error, OSError) and error.errno != errno.EINVAL:  # the disk's error, not the tar's damage
                raise
            damage = damage or f"damaged tar: no valid header at byte {position} ({error})"
            position, ended = _next_header(file, max(position + BLOCK_BYTES, file.tell())), True
            continue
        if damage:
            yield Refused("", f"{damage}; reading went on at byte {position}")
        elif is_seam:
            yield Seam(position)
        is_seam = False
        position, ended, damage = archive.offset, False, ""
        reason = _refusal(info)
        if reason:
            yield Refused(info.name, reason)
        elif info.isreg() and info.offset_data + info.size > file_bytes:
            place = f"{info.size} bytes at byte {info.offset_data}"
            damage = f"truncated tar: needs {place}, the file ends at {file_bytes}"
            yield Refused(info.name, damage)
            position, ended = _next_header(file, info.offset_data), True
            damage = damage if position < file_bytes else ""
        elif info.isreg():
            yield Member(info.name, info.offset_data, info.size)
    if damage:
        yield Refused("", f"{damage}; no header follows, the rest can't be read")
    elif not file_bytes:
        yield Refused("", "empty file")
    elif not ended:
        reason = f"truncated tar: ends at byte {file_bytes} without the two blocks of zeros that end an archive"
        yield Refused("", reason, bad=position > file_bytes)


class TarHeaders:
    """A file from which tarfile reads headers of limited size.

    Damaged records in an extended header raise an error. tarfile alone would ignore them and get the name wrong.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._comes_pax = False
        self.seek = file.seek
        self.tell = file.tell

    def read(self, size: int) -> bytes:
        if size > _EXTENDED_HEADER_BYTES:
            raise tarfile.HeaderError(f"an extended header of {size} bytes")
        data = self._file.read(size)
        if self._comes_pax and not _is_pax(data):
            self._comes_pax = False
            raise tarfile.HeaderError("damaged records in an extended header")
        self._comes_pax = not self._comes_pax and data[_TYPE : _TYPE + 1] in _PAX_TYPES
        return data


def _is_pax(data: bytes) -> bool:
    """Returns whether an extended header's data are records, such as ``19 path=cat-1.jpg\\n``, and zeros after them."""
    position = 0
    while record := _PAX_RECORD.match(data, position):
        end = position + int(record[1])
        if end <= record.end() or data[end - 1 : end] != b"\n":
            return False
        position = end
    return not data[position:].strip(b"\0") and (position > 0 or not data)


def _zero_blocks(file: BinaryIO, position: int) -> int:
    """Returns the number of zero blocks from ``position``. An incomplete one at the end of the file counts as one."""
    file.seek(position)
    chunk = file.read(BLOCK_BYTES)
    if not chunk or chunk.strip(b"\0"):
        return 0
    zeros = len(chunk)
    while chunk := file.read(_SCAN_BYTES):
        rest = chunk.lstrip(b"\0")
        zeros += len(chunk) - len(rest)
        if rest:
            return zeros // BLOCK_BYTES
    return -(-zeros // BLOCK_BYTES)


def _next_header(file: BinaryIO, position: int) -> int:
    """Returns the offset of the first block from ``position`` that is a valid header; the file's end without one."""
    position = -(-position // BLOCK_BYTES) * BLOCK_BYTES
    file.seek(position)
    while chunk := file.read(_SCAN_BYTES):
        for start in range(0, len(chunk), BLOCK_BYTES):
            # This test rules out nearly all blocks of data in a hundredth of the time.
            if not chunk[start + 148 : start + 156].strip(b" \0").isdigit():
                continue
            try:
                tarfile.TarInfo.frombuf(chunk[start : start + BLOCK_BYTES], "utf-8", "surrogateescape")
            except (tarfile.HeaderError, ValueError):
                continue
            return position + start
        position += len(chunk)
    return position


def _refusal(info: tarfile.TarInfo) -> str | None:
    if info.issym() or info.islnk():
        return f"link to {info.linkname!r} refused"
    if info.issparse():
        return "sparse member refused"
    if not (info.isreg() or info.isdir()):
        return f"special member (type {info.type!r}) refused"
    if ".." in info.name.split("/"):
        return "name with '..' refused"
    return None


class TarWriter:
    """Writes a plain tar whose bytes depend only on names and contents.

    Args:
        file: The file to write to; the caller opens and closes it.

    Attributes:
        size_bytes: Number of bytes written so far, those in the buffer included.
        blocks: CRC-32C of each block of the file, once it is finished.
    """

    def __init__(self, file: BinaryIO) -> None:
        self.size_bytes = 0
        self.blocks = BlockSums()
        self._file = file
        self._hash = hashlib.sha256()
        self._pending: list[bytes] = []
        self._pending_bytes = 0

    def add(self, name: str, data: bytes) -> int:
        """Adds a member and returns the offset of its bytes in the tar."""
        header = _header(os.fsencode(name), len(data))
        offset = self.size_bytes + len(header)
        self._put(header)
        self._put(data)
        self._put(b"\0" * (-len(data) % BLOCK_BYTES))
        return offset

    def finish(self) -> str:
        """Writes the end of the archive and returns the whole file's SHA-256, hexadecimal."""
        self._put(b"\0" * (2 * BLOCK_BYTES))
        self._flush()
        return self._hash.hexdigest()

    def _put(self, data: bytes) -> None:
        self._pending.append(data)
        self._pending_bytes += len(data)
        self.size_bytes += len(data)
        if self._pending_bytes >= _FLUSH_BYTES:
            self._flush()

    def _flush(self) -> None:
        # Hash and write whole megabytes: both calls release the GIL, so that workers run in parallel.
        chunk = b"".join(self._pending)
        self._pending.clear()
        self._pending_bytes = 0
        self._hash.update(chunk)
        self.blocks.update(chunk)
        self._file.write(chunk)


def _template() -> bytes:
    """Returns a ustar header with empty name, size and checksum: mode 0644, no owner, time 0."""
    header = bytearray(tarfile.TarInfo().tobuf(tarfile.USTAR_FORMAT))
    header[124:136] = b"\0" * 12
    header[148:156] = b" " * 8
    return bytes(header)


_TEMPLATE = _template()
_TEMPLATE_SUM = sum(_TEMPLATE)


def _header(name: bytes, size: int) -> bytes:
    if len(name) > _USTAR_NAME_BYTES or size >= _USTAR_SIZE_END:
        info = tarfile.TarInfo(os.fsdecode(name))
        info.size = size
        return info.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape")
    # Filled in here, as TarInfo.tobuf takes ten times as long, and a sample has two headers.
    digits = b"%011o" % size
    checksum = b"%06o\0 " % (_TEMPLATE_SUM + sum(name) + sum(digits))
    name_field = name.ljust(_USTAR_NAME_BYTES, b"\0")
    return b"".join((name_field, _TEMPLATE[100:124], digits, _TEMPLATE[135:148], checksum, _TEMPLATE[156:]))
