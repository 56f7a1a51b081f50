"""Existing WebDataset tars, plain or gzipped: all fields of every sample, grouped as the webdataset library does."""

from __future__ import annotations

import glob
import gzip
import os
import zlib

import braceexpand

from feeder.errors import SourceError
from feeder.files import DISK_FULL, atomic_file
from feeder.folders import unlistable
from feeder.manifest import Manifest
from feeder.source.base import NO_FILE, Part, Source, drop_duplicates, reject_samples
from feeder.source.imagefield import choose_image, lacks_image, split_fields
from feeder.tar import Refused, read_members

__all__ = ["TAR_SUFFIXES", "expand_pattern", "open_tars", "parse_label", "split_name"]

TAR_SUFFIXES = (".tar", ".tar.gz", ".tgz")
_GZIP_MAGIC = b"\x1f\x8b"
_LABEL_BYTES = 20
# Images hardly shrink, and their labels and headers not that much; a file of zeros shrinks to a thousandth.
_UNPACKED_TIMES = 100
_UNPACKED_BYTES = 1 << 30


def split_name(name: str) -> tuple[str, str] | None:
    """Splits a member's name at the first dot of its last part into key and field; None if it has no field or key.

    Source: webdataset's ``base_plus_ext``; like there, fields are in lower case.
    """
    folder, slash, base = name.rpartition("/")
    stem, dot, field = base.partition(".")
    return (folder + slash + stem, field.lower()) if stem and dot and field else None


def parse_label(text: bytes) -> int:
    """A class index from a ``cls`` field; -1 if it holds none."""
    try:
        label = int(text.decode("ascii").strip()) if len(text) <= _LABEL_BYTES else -1
    except ValueError:
        return -1
    return label if 0 <= label < 2**63 else -1


def expand_pattern(pattern: str) -> list[str]:
    """The tars that a brace pattern, a glob, a folder or a plain path names, in order.

    Raises:
        SourceError: if it names none, or something that is no local file.
    """
    if pattern.startswith("pipe:") or "://" in pattern:
        raise SourceError(f"{pattern}: only local files can be read, and nothing is executed; copy the tars here first")
    try:
        if os.path.isdir(pattern):
            paths = sorted(os.path.join(pattern, name) for name in os.listdir(pattern) if name.endswith(TAR_SUFFIXES))
        else:
            is_brace = "{" in pattern and not os.path.exists(pattern)
            paths = list(braceexpand.braceexpand(pattern)) if is_brace else [pattern]
            paths = [match for path in paths for match in ([path] if os.path.exists(path) else _glob(path) or [path])]
    except OSError as error:
        raise unlistable(error.filename, error) from None
    missing = next((path for path in paths if not os.path.isfile(path)), None)
    if missing or not paths:
        raise SourceError(
            f"{pattern}: no tar at {missing or pattern}; expected files, such as 'train-{{000..009}}.tar'"
        )
    if len(set(paths)) != len(paths):
        raise SourceError(f"{pattern}: names the same tar twice")
    return paths


def open_tars(pattern: str, work: str | None, image_field: str | None = None) -> Source:
    """Lists the samples of WebDataset tars.

    Args:
        pattern: As :func:`expand_pattern` takes it.
        work: Folder where gzipped tars are unpacked to; None refuses them.
        image_field: Field that holds the image, or several with ";" between them, of which each sample has one; None
            chooses it by the names of the fields, for all samples alike.

    Raises:
        SourceError: if a tar can't be opened.
    """
    paths = [os.path.abspath(path) for path in expand_pattern(pattern)]
    source = Source("tars", os.path.commonpath([os.path.dirname(path) for path in paths]))
    asked = None if image_field is None else image_field.lower()
    without_label = 0
    doubtful: list[int] = []
    for path in paths:
        name = os.path.relpath(path, source.root)
        try:
            group = _list_tar(source, name, _plain_tar(source, name, path, work), path, asked)
        except OSError as error:
            if error.errno in DISK_FULL:  # where it is unpacked to; nothing is wrong with the tar
                raise
            raise SourceError(f"{path}: can't be read: {error.strerror or error}") from None
        without_label += group.without_label
        doubtful += group.doubtful
    _reject_incomplete(source, doubtful)
    choose_image(source, pattern, asked)
    drop_duplicates(source, lambda path: path, "duplicate key in the same tar")
    if without_label:
        source.notes.append(
            f"{pattern}: the cls field of {without_label} samples is no class index; they have no label"
        )
    elif len(source.table) and all(source.table.label(i) < 0 for i in range(len(source.table))):
        source.notes.append(f"{pattern}: no sample has a cls field with a class index, so none has a label")
    manifest = Manifest.read(source.root)
    source.classes = manifest.classes if manifest else None
    return source


def _glob(pattern: str) -> list[str]:
    """The matches of a pattern, sorted; glob itself passes over folders that it can't list.

    Raises:
        OSError: for such a folder.
    """
    folder = os.path.dirname(pattern)
    for path in _glob(folder) if glob.has_magic(folder) else [folder]:
        if os.path.isdir(path or "."):
            os.scandir(path or ".").close()
    return sorted(glob.glob(pattern))


def _plain_tar(source: Source, name: str, path: str, work: str | None) -> str:
    """The tar's path, or that of its unpacked copy.

    Raises:
        SourceError: if it is compressed, and ``work`` is None or it unpacks to what no tar of images does.
    """
    with open(path, "rb") as file:
        if file.read(2) != _GZIP_MAGIC:
            return path
    if work is None:
        raise SourceError(f"{path}: is compressed, and can't be indexed as it is; unpack it, or shard it anew")
    limit = max(_UNPACKED_BYTES, _UNPACKED_TIMES * os.path.getsize(path))
    unpacked = os.path.join(work, f"unpacked-{len(source.containers):06d}.tar")
    with gzip.open(path) as compressed, atomic_file(unpacked) as plain:
        try:
            while chunk := compressed.read1(1 << 20):  # read() would lose what comes before the damage
                if plain.tell() + len(chunk) > limit:
                    raise SourceError(
                        f"{path}: unpacks to more than {limit:,} bytes; images don't shrink so much: look what it is, "
                        "unpack it, and shard the tar"
                    )
                plain.write(chunk)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            source.reject(name, f"damaged gzip: {error}; what comes before byte {plain.tell()} unpacked is used")
    return unpacked


def _list_tar(source: Source, name: str, plain: str, original: str, image_field: str | None) -> _Group:
    """Adds a tar's samples; returns what took them in."""
    container = source.add_container(plain)
    if plain != original:  # what must not change is the user's file, not our copy
        status = os.stat(original)
        source.containers[container] = source.containers[container]._replace(
            size_bytes=status.st_size, mtime_ns=status.st_mtime_ns
        )
    with open(plain, "rb") as file:
        group = _Group(source, name, file.fileno(), None if image_field is None else split_fields(image_field))
        for member in read_members(plain):
            split = split_name(member.name)
            if split is None:
                path = f"{name}/{member.name}".rstrip("/")
                if isinstance(member, Refused):
                    source.reject(path, member.reason, bad=member.bad)
                else:
                    source.reject(path, "no key and extension in its name", bad=False)
                if not member.name:
                    group.damage()
            elif isinstance(member, Refused):
                group.add(split[0], member.reason)
            else:
                group.add(split[0], Part(split[1], container, member.offset, member.size))
        group.finish()
    return group


def _reject_incomplete(source: Source, doubtful: list[int]) -> None:
    """Rejects samples beside damage that lack a field which another sample has, such as the label."""
    if not doubtful:
        return
    groups = source.table.by_fields()
    known = frozenset().union(*groups)
    reasons: dict[int, str] = {}
    for fields, ids in groups.items():
        if fields != known:
            lacking = ", ".join(repr(field) for field in sorted(known - fields))
            reason = f"may be incomplete: the tar is damaged beside it, and other samples have {lacking} too"
            reasons |= dict.fromkeys(set(ids).intersection(doubtful), reason)
    reject_samples(source, reasons)


class _Group:
    """Neighbouring members with one key: a sample, unless one of them is refused.

    Attributes:
        without_label: Number of samples with a cls field that is no class index.
        doubtful: Numbers of the samples beside damage, which may lack a field.
    """

    def __init__(self, source: Source, tar: str, descriptor: int, image_fields: tuple[str, ...] | None) -> None:
        self._source = source
        self._tar = tar
        self._descriptor = descriptor
        self._image_fields = image_fields
        self._key = ""
        self._parts: dict[str, Part] = {}
        self._broken: str | None = None
        self._damaged = False
        self._is_doubtful = False
        self.without_label = 0
        self.doubtful: list[int] = []

    def damage(self) -> None:
        """Takes note that members are lost here."""
        self._damaged = self._is_doubtful = True

    def add(self, key: str, part: Part | str) -> None:
        """Takes the next member, or the reason why it was refused."""
        if key != self._key:
            self.finish()
            self._key = key
            self._is_doubtful = self._damaged
        self._damaged = False
        if isinstance(part, str):
            self._broken = part
        elif part.field in self._parts:
            self._broken = f"two fields named {part.field!r}"
        else:
            self._parts[part.field] = part

    def finish(self) -> None:
        """Adds the sample to the table, or rejects it."""
        path, parts, broken = f"{self._tar}/{self._key}", self._parts, self._broken
        self._parts, self._broken = {}, None
        if not parts and not broken:
            return
        broken = broken or lacks_image(parts, self._image_fields)
        if broken:
            self._source.reject(path, broken)
            return
        label = parts.get("cls")
        number = parse_label(os.pread(self._descriptor, min(label.length, 64), label.offset)) if label else -1
        if label and number < 0:
            self.without_label += 1
        if self._is_doubtful:
            self.doubtful.append(len(self._source.table))
        size = sum(part.length for part in parts.values())
        self._source.table.add(os.fsencode(path), size, NO_FILE, number, list(parts.values()))
