"""``manifest.json``: the contents of a shard set, and how it was made."""

from __future__ import annotations

import json
import os
import re
import zlib
from dataclasses import asdict, dataclass
from typing import Any

from feeder.errors import FormatError
from feeder.system.files import atomic_file, open_regular

MANIFEST_NAME = "manifest.json"
PLAN_NAME = os.path.join(".work", "plan.json")  # while a set is being written
_VERSION = 1
_MAX_BYTES = 1 << 28  # enough for a million shards; a damaged file may have gigabytes
_CRC32 = re.compile(rb'("crc32": ")([0-9a-f]{8})')


@dataclass(frozen=True)
class ShardRecord:
    """One shard.

    Attributes:
        name: File name.
        samples: Number of samples in it.
        size_bytes: Size of the file.
        sha256: SHA-256 of the file, hexadecimal.
    """

    name: str
    samples: int
    size_bytes: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """The contents of ``manifest.json``.

    Attributes:
        settings: Options that the result depends on: seed, shuffle, shard_size_bytes, samples_per_shard, encode, ...
        source: The source's kind, its digest and, if samples have named fields, image_field: the field that holds the
            image, or several separated by ";", of which each sample has one. Also appended: digests of the sources that
            were added since.
        inputs: Number of inputs found; each is a sample or is listed in ``rejected.jsonl``.
        samples: Number of samples written.
        rejected: Number of inputs rejected.
        bad: Number of rejected inputs that claimed to be images.
        formats: Number of samples by image format.
        encoded: Number of samples by what was done to their image ("kept", ...).
        clipped: Number of samples whose image has more than 8 bits per channel, so that decoding clips it.
        classes: Class names by label, or None.
        index: Size and SHA-256 of the index file.
        shards: The shards, in order.
    """

    settings: dict[str, Any]
    source: dict[str, Any]
    inputs: int
    samples: int
    rejected: int
    bad: int
    formats: dict[str, int]
    encoded: dict[str, int]
    classes: list[str] | None
    index: dict[str, Any]
    shards: list[ShardRecord]
    clipped: int = 0

    @classmethod
    def read(cls, folder: str) -> Manifest | None:
        """Reads a shard set's manifest; None if it has none.

        Raises:
            FormatError: if it is damaged or of another version.
        """
        path = os.path.join(folder, MANIFEST_NAME)
        text = _text(path)
        if text is None:
            return None
        try:
            data = json.loads(text)
            if data["format"] != "feeder-shards" or data["format_version"] != _VERSION:
                raise FormatError(
                    f"{path}: format {data['format']!r} version {data['format_version']}, this feeder reads "
                    f"'feeder-shards' version {_VERSION}; update feeder"
                )
            shards = [ShardRecord(**record) for record in data["shards"]]
            known = {k: v for k, v in data.items() if not k.startswith("format_") and k not in ("format", "crc32")}
            return cls(**known | {"shards": shards})
        except (KeyError, TypeError, ValueError) as error:
            raise FormatError(f"{path}: damaged: {error!r}; restore it, or shard the dataset again") from None

    def write(self, folder: str) -> None:
        """Writes the manifest atomically; its bytes depend only on its contents."""
        data = {"format": "feeder-shards", "format_version": _VERSION, "crc32": "0" * 8, **asdict(self)}
        text = json.dumps(data, indent=1).encode() + b"\n"
        with atomic_file(os.path.join(folder, MANIFEST_NAME)) as file:
            file.write(_CRC32.sub(b"\\g<1>%08x" % zlib.crc32(text), text, count=1))


def matches_checksum(text: bytes) -> bool:
    """Returns whether the bytes of a manifest match its checksum; True for one without."""
    found = _CRC32.search(text)
    return found is None or found[2] == b"%08x" % zlib.crc32(_CRC32.sub(b"\\g<1>00000000", text, count=1))


def _text(path: str) -> bytes | None:
    """Returns the bytes of a manifest; None if the file is not there.

    Raises:
        FormatError: if it can't be read, or is larger than any manifest.
    """
    try:
        with open(path, "rb", opener=open_regular) as file:
            size_bytes = os.fstat(file.fileno()).st_size
            if size_bytes > _MAX_BYTES:
                raise FormatError(
                    f"{path}: {size_bytes:,} bytes are more than any manifest has; restore it, or shard again"
                )
            return file.read()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise FormatError(f"{path}: this manifest can't be read: {error.strerror}") from None


def is_shard_set(folder: str) -> bool:
    """Returns whether ``feeder shard`` wrote a folder, or is writing it. Its manifest or plan tells."""
    if os.path.isfile(os.path.join(folder, PLAN_NAME)):
        return True
    try:
        return os.path.isfile(os.path.join(folder, MANIFEST_NAME)) and Manifest.read(folder) is not None
    except (FormatError, OSError):
        return False
