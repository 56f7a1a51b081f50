"""Writes one shard: a tar and its rows of the index."""

from __future__ import annotations

import collections
import errno
import json
import math
import os
import zlib
from collections.abc import Sequence

import numpy as np

from feeder.decoders.image_header import ImageInfo, image_info
from feeder.decoders.packed import is_packed, is_packed_field, unpack_checked
from feeder.decoders.targets.mask import check_mask
from feeder.errors import DecodeError, ShardError, SourceError
from feeder.shard.format.index_builder import IndexBuilder, row_data
from feeder.shard.format.tar import TarWriter
from feeder.shard.source.class_folders import UNREADABLE
from feeder.shard.source.image_field import is_mask_field
from feeder.shard.source.image_file import has_other_extension, looks_like_image
from feeder.shard.source.source import Rejection, Source
from feeder.shard.write.encode import EncodeOptions, Encoder

__all__ = ["ShardWriter", "read_sample"]

# Kinds of sources whose fields of images were named by the user, or made for T.Mask; those of others are only counted.
_WITH_MASKS = ("annotated images", "class folders", "flat folder", "paired files")


class ShardWriter:
    """Writes samples into one shard, and counts formats, encodings and rejections.

    Args:
        source: The samples.
        encoding: The options for encoding images.
        codebook: For packed images: their codebook.
        first_key: Number of the key of the first position.
        key_digits: Number of digits of a key.
        raises_unreadable: True to raise the error of a file that can't be read instead of rejecting its sample.
    """

    def __init__(
        self,
        source: Source,
        encoding: EncodeOptions,
        codebook: bytes | None,
        *,
        first_key: int,
        key_digits: int,
        raises_unreadable: bool = False,
    ) -> None:
        self.builder = IndexBuilder(source.table.targets, numbered=source.table.is_numbered)
        self.rejected: list[Rejection] = []
        self.formats: collections.Counter[str] = collections.Counter()
        self.encoded: collections.Counter[str] = collections.Counter()
        self.clipped = 0
        self.odd_masks: collections.Counter[str] = collections.Counter()
        self._source = source
        self._encoder = Encoder(encoding, codebook)
        self._first_key = first_key
        self._digits = key_digits
        self._raises_unreadable = raises_unreadable

    def add(self, tar: TarWriter, position: int, i: int) -> int:
        """Adds sample ``i`` under the key of its position, or rejects it. Returns its size in the source, bytes.

        Raises:
            ShardError: for an error of the machine, not of the sample.
            SourceError: if the sample changed since it was listed.
        """
        table = self._source.table
        is_in_folder, misnamed = self._source.kind.endswith(("folder", "folders")), False
        try:
            image, fields = read_sample(self._source, i)
            info = image_info(image[1])
            if is_in_folder and (misnamed := has_other_extension(self._path(i))):
                raise ValueError(f"not an image by its extension, and {info.extension} by its bytes: rename it")
            encoded = self._encoder.encode(image[1], info)
            odd = _odd_masks(fields, encoded.info)
            if odd and self._source.kind in _WITH_MASKS:
                name, reason = next(iter(odd.items()))
                raise ValueError(f"its {name}: {reason}; give it another name if it is no mask")
        except MemoryError as error:
            raise ShardError(
                f"{self._path(i)}: not enough memory ({error or 'to encode it'}); nothing is lost: use fewer "
                "--workers, or reject large files with --max-file-bytes, and run again"
            ) from None
        except (OSError, ValueError) as error:
            path = self._path(i)
            reason = self._unreadable(error, path) if isinstance(error, OSError) else str(error)
            bad = looks_like_image(path) or misnamed or not is_in_folder
            self.rejected.append(Rejection(path, reason, bad))
            return table.size(i)
        key = f"{self._first_key + position:0{self._digits}d}"
        data = encoded.data
        is_same_format = encoded.info.extension == info.extension
        field = image[0] if image[0] and is_same_format else self._renamed(encoded.info.extension)
        label = table.label(i)
        if self._source.replaces_cls:
            fields = [(name, value) for name, value in fields if name != "cls"]
        if label >= 0 and all(name != "cls" for name, _ in fields):
            fields.insert(0, ("cls", b"%d" % label))
        if table.targets and self._source.kind == "manifest":
            fields = _with_targets(fields, table.targets, table.target(i))
        offset = tar.add(f"{key}.{field}", data)
        checksum = zlib.crc32(data)
        members = []
        for name, value in fields:
            members.append((name, tar.add(f"{key}.{name}", value), len(value)))
            checksum = zlib.crc32(value, checksum)
        self.formats[encoded.info.extension] += 1
        self.encoded[encoded.outcome] += 1
        self.clipped += encoded.clipped
        self.odd_masks.update(odd.keys())
        self.builder.add(
            key=key.encode(),
            path=table.path(i),
            field=field,
            offset=offset,
            length=len(data),
            label=label,
            width=encoded.info.width_px,
            height=encoded.info.height_px,
            orientation=encoded.info.orientation,
            source_bytes=table.size(i),
            crc32=checksum,
            members=members,
            rows=row_data(data),
            target=table.target(i),
            source_row=table.row(i) if table.is_numbered else 0,
        )
        return table.size(i)

    def _unreadable(self, error: OSError, path: str) -> str:
        """Returns the reason to reject a sample that can't be read.

        Raises:
            OSError, ShardError, SourceError: if the error is not the sample's fault, so that it must not be lost.
        """
        if self._raises_unreadable:
            raise error
        if isinstance(error, FileNotFoundError):
            raise SourceError(f"{error.filename}: vanished while it was being sharded; run again") from None
        if error.errno == errno.EIO and not self._source.skip_unreadable:  # a bad block of a disk may stay bad
            raise ShardError(
                f"{error.filename or path}: can't be read: {error.strerror}; nothing is lost: fix the disk and run "
                "the same command again, or reject such files with --skip-unreadable"
            ) from None
        if error.errno not in (*UNREADABLE, errno.EISDIR, errno.EIO):
            raise error
        return f"unreadable: {error.strerror}"

    def _path(self, i: int) -> str:
        return os.fsdecode(self._source.table.path(i))

    def _renamed(self, extension: str) -> str:
        """Returns the field name of an image in a new format: its extension, unless another field has that name."""
        others = self._source.table.fields.keys() - set(self._source.image_fields)
        while extension in others:
            extension = f"image.{extension}"
        return extension


def read_sample(source: Source, i: int) -> tuple[tuple[str | None, bytes], list[tuple[str, bytes]]]:
    """Reads the image and the other fields of a sample. The image has no name if its bytes decide the extension.

    Packed images, also those of other fields, are unpacked: the new set has no codebook for them.

    Raises:
        OSError, SourceError, ValueError, MemoryError: See :meth:`Source.read`; ValueError also for a packed image that
            is damaged, or whose tar lacks its codebook.
    """
    fields = source.read(i)
    names = [name for name, _ in fields if name is not None]
    image_name = None if len(names) < len(fields) else next(name for name in source.image_fields if name in names)
    image: tuple[str | None, bytes] | None = None
    others = []
    for name, data in fields:
        is_image = name == image_name
        if is_packed(data) and (is_image or name is None or is_packed_field(name)):
            try:
                data = unpack_checked(data)
            except DecodeError as error:
                raise ValueError(error.reason) from None
            if name is not None and is_packed_field(name):
                name = _jpeg_name(name, names)
                names.append(name)
        if is_image:
            image = image or (name, data)
        elif name is not None:
            others.append((name, data))
    assert image is not None
    return image, others


def _odd_masks(fields: Sequence[tuple[str, bytes]], info: ImageInfo) -> dict[str, str]:
    """Returns the reason for each field that is named as a mask and can't be one of the image."""
    odd = {}
    for name, data in fields:
        if is_mask_field(name):
            try:
                check_mask(data, info.sizes)
            except DecodeError as error:
                odd[name] = error.reason
    return odd


def _jpeg_name(name: str, taken: Sequence[str]) -> str:
    """Returns the name of a packed image's field for its JPEG, which none of the sample's fields has."""
    name = f"{name[: -len('fpk')]}jpg"
    while name in taken:
        name = f"image.{name}"
    return name


def _with_targets(
    fields: list[tuple[str, bytes]], names: Sequence[str], numbers: Sequence[float]
) -> list[tuple[str, bytes]]:
    """Adds the targets to the ``json`` field, for programs that read shards without the index."""
    row = {}
    for name, data in fields:
        if name == "json":
            row = json.loads(data)
    # Each as the shortest text that gives the same float32.
    row |= {k: None if math.isnan(v) else float(str(np.float32(v))) for k, v in zip(names, numbers, strict=True)}
    text = json.dumps(row, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogateescape")
    return [*((name, data) for name, data in fields if name != "json"), ("json", text)]
