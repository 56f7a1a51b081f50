"""The tar container: deterministic writing, and reading that trusts nothing.

Note [Hostile tars]
Links, devices, sparse members, absolute names and names with ".." are refused one by one; a member that claims more
bytes than the file has, or a damaged header, ends the reading with the byte where it happened, so that nothing is
dropped in silence. Contents are bytes: never unpickled, never executed.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import tarfile
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

__all__ = ["BLOCK_BYTES", "Member", "Refused", "TarWriter", "member_bytes", "read_members"]

BLOCK_BYTES = 512
_FLUSH_BYTES = 1 << 20
_SYNC_FILE_RANGE_WRITE = 2
_sync_file_range = ctypes.CDLL(None).sync_file_range
_sync_file_range.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
_USTAR_NAME_BYTES = 100
_USTAR_SIZE_END = 8**11


class Member(NamedTuple):
    """A regular file in a tar: its name, where its bytes start, and how many there are."""

    name: str
    offset: int
    size: int


class Refused(NamedTuple):
    """A member that was refused, or the place where the tar can't be read on."""

    name: str
    reason: str


def member_bytes(size: int) -> int:
    """Bytes that a member of ``size`` bytes takes in a tar, header and padding included."""
    return BLOCK_BYTES + -(-size // BLOCK_BYTES) * BLOCK_BYTES


def read_members(path: str) -> Iterator[Member | Refused]:
    """Lists a plain (not compressed) tar in file order; see Note [Hostile tars].

    Raises:
        OSError: if the file can't be opened.
    """
    with open(path, "rb") as file:
        file_bytes = os.fstat(file.fileno()).st_size
        position = 0
        try:
            archive = tarfile.TarFile(fileobj=file, mode="r")
        except (tarfile.TarError, ValueError, OverflowError, RecursionError) as error:
            yield Refused("", f"not a readable tar: {error}")
            return
        while True:
            try:
                info = archive.next()
            except (tarfile.TarError, ValueError, OverflowError, RecursionError, OSError) as error:
                yield Refused("", f"damaged tar: {error} at or after byte {position}; the rest can't be read")
                return
            archive.members = []  # type: ignore[attr-defined]  # or it would keep every header in memory
            if info is None:
                break
            if info.size < 0 or archive.offset <= position:
                yield Refused(info.name, f"damaged tar: header with size {info.size} after byte {position}")
                return
            position = archive.offset
            reason = _refusal(info)
            if reason:
                yield Refused(info.name, reason)
            elif info.isreg() and info.offset_data + info.size > file_bytes:
                yield Refused(
                    info.name,
                    f"truncated tar: needs {info.size} bytes at byte {info.offset_data}, the file ends at {file_bytes}",
                )
                return
            elif info.isreg():
                yield Member(info.name, info.offset_data, info.size)
        # tarfile takes a damaged header for the end of the archive; the real end is a block of zeros, or the file's.
        file.seek(position)
        if file.read(BLOCK_BYTES).strip(b"\0"):
            yield Refused("", f"damaged tar: no valid header at byte {position}; the rest can't be read")


def _refusal(info: tarfile.TarInfo) -> str | None:
    if info.issym() or info.islnk():
        return f"link to {info.linkname!r} refused"
    if info.issparse():
        return "sparse member refused"
    if not (info.isreg() or info.isdir()):
        return f"special member (type {info.type!r}) refused"
    if info.name.startswith("/"):
        return "absolute name refused"
    if ".." in info.name.split("/"):
        return "name with '..' refused"
    return None


class TarWriter:
    """Writes a plain tar whose bytes depend on names and contents alone.

    Args:
        file: Where to write; the caller opens and closes it.

    Attributes:
        size_bytes: Bytes written so far, those in the buffer included.
    """

    def __init__(self, file: BinaryIO) -> None:
        self.size_bytes = 0
        self._file = file
        self._hash = hashlib.sha256()
        self._pending: list[bytes] = []
        self._pending_bytes = 0
        self._written = 0
        try:
            self._descriptor: int | None = file.fileno()
        except OSError:  # no file of the operating system's
            self._descriptor = None

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
        # One hash and one write a megabyte: both release the GIL, so that workers run side by side.
        chunk = b"".join(self._pending)
        self._pending.clear()
        self._pending_bytes = 0
        self._hash.update(chunk)
        self._file.write(chunk)
        if self._descriptor is not None:
            # Starts writing back without waiting, so that the disk works while we do and fsync at the end finds little
            # left: a tenth of the time of sharding 2 GB. Only a hint, so its errors don't matter.
            _sync_file_range(self._descriptor, self._written, len(chunk), _SYNC_FILE_RANGE_WRITE)
            self._written += len(chunk)


def _template() -> bytes:
    """A ustar header with the name, size and checksum left empty: mode 0644, no owner, time 0."""
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
    # Filled in by hand, as TarInfo.tobuf takes ten times as long and a small image has two headers.
    digits = b"%011o" % size
    checksum = b"%06o\0 " % (_TEMPLATE_SUM + sum(name) + sum(digits))
    name_field = name.ljust(_USTAR_NAME_BYTES, b"\0")
    return b"".join((name_field, _TEMPLATE[100:124], digits, _TEMPLATE[135:148], checksum, _TEMPLATE[156:]))
