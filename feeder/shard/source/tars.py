"""Tars in WebDataset's layout, plain or gzipped: all fields of each sample, grouped as the webdataset library does."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
import gzip
import os
import tempfile
import zlib
from collections.abc import Callable, Iterable, Sequence

from feeder.decoders.image_header import is_image_field
from feeder.decoders.packed import CODEBOOK_NAME, MOST_CODEBOOKS, add_codebooks, codebook_name
from feeder.errors import NotFoundError, SourceError, StoreError
from feeder.shard.format.index_file import INDEX_NAME
from feeder.shard.format.manifest import MANIFEST_NAME
from feeder.shard.format.tar import Member, Refused, Seam, read_members
from feeder.shard.source.fetched_tars import GZIP_MAGIC, TarMembers, compressed_error, fetched_tars
from feeder.shard.source.image_field import choose_image, lacks_image, split_fields
from feeder.shard.source.image_file import left_out, left_out_notes, looks_like_image, unpacked_limit
from feeder.shard.source.pattern import expand_pattern
from feeder.shard.source.remote import RemoteSource, named_objects, split_url
from feeder.shard.source.sample_table import NO_FILE, StoredField
from feeder.shard.source.source import Container, Source, SourceKind, drop_duplicates, reject_samples
from feeder.shard.source.table_file import ManifestColumns
from feeder.shard.source.tar_labels import TarLabels
from feeder.shard.store.store import Entry, Store, download
from feeder.shard.store.url import is_remote
from feeder.system.files import DISK_FULL, atomic_file
from feeder.system.text import count

TAR_SUFFIXES = (".tar", ".tar.gz", ".tgz")
UNPACKED_BYTES = 1 << 30
_OTHER_TARS = (".tar.bz2", ".tbz", ".tbz2", ".tar.xz", ".txz", ".tar.zst", ".tzst", ".tar.lz4", ".tar.z")
_MOST_CODEBOOK_BYTES = 1 << 16
_HIDDEN_FOLDERS = 256  # hidden folders that are remembered at a time
_MANY_IMAGES = 10  # a sample seldom has so many fields of images
_SOUND, _JOINED, _DAMAGED = range(3)  # places in a tar: ordinary, next to a seam of two archives, next to damage


def _split_name(name: str) -> tuple[str, str] | None:
    """Splits a member's name into key and field, at the first dot of the base name; None if one of them is empty.

    Source: webdataset's ``base_plus_ext``, which makes fields lower case too.
    """
    folder, slash, base = name.rpartition("/")
    stem, dot, field = base.partition(".")
    return (folder + slash + stem, field.lower()) if stem and dot and field else None


def is_tar(name: str) -> bool:
    """Returns True if a file is a tar by its name, and its name does not say to leave it out."""
    return name.lower().endswith(TAR_SUFFIXES) and not left_out(name)


def leave_out_beside(source: Source, names: Iterable[str], folders: Iterable[str] = ()) -> None:
    """Lists what is left out of a folder of tars: hidden files and the like, loose images, and tars that can't be read.

    Args:
        source: Takes them.
        names: Names of the files in the folder.
        folders: Names of the folders in it.
    """
    kinds = {name: left_out(name, is_folder=True) for name in folders}
    for name in names:
        if kind := left_out(name):
            kinds[name] = kind
        elif name.lower().endswith(_OTHER_TARS):
            kinds[name] = "other compressed tar"
        elif looks_like_image(name):
            kinds[name] = "loose image"
    for name, kind in sorted(kinds.items()):
        if kind:
            source.leave_out(name, kind)


def open_tars(
    pattern: str, work: str | None, image_field: str | None = None, columns: ManifestColumns | None = None
) -> Source:
    """Lists the samples of WebDataset tars.

    Args:
        pattern: As :func:`expand_pattern` takes it, or such a pattern of URLs.
        work: Folder that gzipped tars are unpacked into; None refuses them.
        image_field: Field that holds the image, or several separated by ";", of which each sample has one; None chooses
            one for all samples by the names of the fields.
        columns: Keys of the samples' ``json`` with the label or the targets; None takes the label from ``cls``.

    Raises:
        SourceError: if a tar can't be opened.
    """
    if is_remote(pattern):
        return open_stored_tars(*named_objects(pattern, TAR_SUFFIXES), pattern, work, image_field, columns)
    is_folder = os.path.isdir(pattern)
    listed = (sorted(filter(is_tar, os.listdir(pattern))) if is_folder else ()) or expand_pattern(pattern)
    paths = [os.path.abspath(os.path.join(pattern if is_folder else "", path)) for path in listed]
    source = Source(SourceKind.TARS, os.path.commonpath([os.path.dirname(path) for path in paths]))
    tars = [(os.path.relpath(path, source.root), path) for path in paths]
    if is_folder:
        names = os.listdir(pattern)
        folders = [name for name in names if os.path.isdir(os.path.join(pattern, name))]
        leave_out_beside(source, set(names).difference(folders), folders)

    def list_tar(name: str, path: str, listing: _Listing) -> None:
        plain = _plain_tar(source, name, path, work)
        status = os.stat(path)
        # A resumed run compares the user's file, not the unpacked copy.
        source.containers.append(Container(plain, status.st_size, status.st_mtime_ns, is_scratch=plain != path))
        listing.add_file(name, plain)

    return _listed(source, pattern, tars, list_tar, image_field, columns, source.root)


def open_stored_tars(
    store: Store,
    entries: Sequence[Entry],
    pattern: str,
    work: str | None,
    image_field: str | None,
    columns: ManifestColumns | None,
    copies: str | None = None,
    beside: Sequence[str] = (),
) -> RemoteSource:
    """Lists the samples of WebDataset tars in a store, several at a time.

    Args:
        store: The store.
        entries: The tars.
        pattern: The URL or pattern that named them.
        work, image_field, columns: As :func:`open_tars` takes them.
        copies: Folder for copies of the tars, which are read once then; only those are copied that the disk has room
            for, beside as many bytes as all of them have. None: the work folder, if there is one.
        beside: Names of all objects in the folder of the tars, if a folder is given.

    Raises:
        SourceError, StoreError: if a tar can't be read.
    """
    source = RemoteSource(SourceKind.TARS, store)
    leave_out_beside(source, beside)
    pattern = split_url(pattern)[0]
    fetched = fetched_tars(store, entries, work, copies or work)

    def list_tar(name: str, path: str, listing: _Listing) -> None:
        entry, tar = next(fetched)
        if isinstance(tar, TarMembers):
            source.add_object(entry)
            listing.add_members(name, tar.members, functools.partial(tar.pread, store, entry))
            return

        plain = _plain_tar(source, name, tar, work)
        if plain == tar:
            source.add_object(entry, tar)
        else:
            os.unlink(tar)
            source.containers.append(Container(plain, entry.size_bytes, entry.modified_ns, is_scratch=True))
        listing.add_file(name, plain)

    tars = [(entry.key, store.url.object(entry.key)) for entry in entries]
    with tempfile.TemporaryDirectory() as folder, contextlib.closing(fetched):
        for file in (MANIFEST_NAME, INDEX_NAME):
            try:
                download(store, store.size(file), os.path.join(folder, file))
            except NotFoundError:
                break
            except StoreError as error:  # without the right to list, a missing object is a refused one
                source.notes.append(f"{error}: if the tars are a shard set of feeder, its classes are not known")
                break
        _listed(source, pattern, tars, list_tar, image_field, columns, folder)
    return source


def _listed(
    source: Source,
    pattern: str,
    tars: Sequence[tuple[str, str]],
    list_tar: Callable[[str, str, _Listing], None],
    image_field: str | None,
    columns: ManifestColumns | None,
    folder: str,
) -> Source:
    """Lists the samples of tars, given by name and path; the folder may have the set's manifest and index."""
    asked = None if image_field is None else image_field.lower()
    labels = TarLabels(source, pattern, columns or ManifestColumns(), folder)
    listing = _Listing(source, labels, None if asked is None else split_fields(asked))

    for name, path in tars:
        try:
            list_tar(name, path, listing)
        except OverflowError:  # more fields than a table has numbers for
            raise _dots_error(pattern, source) from None
        except OSError as error:
            if error.errno in DISK_FULL:  # the work folder's disk; nothing is wrong with the tar
                raise
            raise SourceError(f"{path}: can't be read: {error.strerror or error}") from None

    reasons = labels.finish()
    source.notes += left_out_notes(source.root, source.left_out)
    if listing.seamed:
        source.notes.append(
            f"{pattern}: {count(listing.seamed, 'tar')} with another archive after the first, as `cat` joins them; all "
            "are read. If they were not joined, samples have been overwritten with zeros: download the tars again"
        )

    if asked is None and _has_dots_in_keys(source):
        raise _dots_error(pattern, source)
    reject_samples(source, reasons | _incomplete(source, listing.damaged, listing.joined))
    choose_image(source, pattern, asked)
    drop_duplicates(source, lambda path: path, "duplicate key in the same tar")
    return source


def _has_dots_in_keys(source: Source) -> bool:
    """Returns True if the numbers of samples are in the names of their fields, as in ``video.0000.jpg``.

    There are more fields of images than samples then, or most of them occur once.
    """
    counts = {field: number for field, number in source.table.field_counts().items() if is_image_field(field)}
    once = sum(number == 1 for number in counts.values())
    are_many = len(counts) >= _MANY_IMAGES or sum(field[0].isdigit() for field in counts) > 1
    return are_many and (len(counts) > len(source.table) or 2 * once > len(counts))


def _dots_error(pattern: str, source: Source) -> SourceError:
    field = max(filter(is_image_field, source.table.fields), key=lambda field: field[0].isdigit())
    key = os.path.basename(os.fsdecode(source.table.path(0)))
    return SourceError(
        f"{pattern}: has {count(len(source.table.fields), 'field')} such as {field!r} in "
        f"{count(len(source.table), 'sample')}: a key ends at the first dot of a file's name, so that {key}.{field} is "
        f"of the sample {key!r}. Pack the files with other names, such as {key}_{field}, or give --image-field if each "
        "sample has so many images"
    )


def _plain_tar(source: Source, name: str, path: str, work: str | None) -> str:
    """Returns the path of the tar, or of its unpacked copy.

    Raises:
        SourceError: if it is compressed and ``work`` is None, or it unpacks to more than a tar of images would.
    """
    with open(path, "rb") as file:
        if file.read(2) != GZIP_MAGIC:
            return path
    if work is None:
        raise compressed_error(path)
    limit = unpacked_limit(os.path.getsize(path), UNPACKED_BYTES)
    unpacked = os.path.join(work, f"unpacked-{len(source.containers):06d}.tar")
    with gzip.open(path) as compressed, atomic_file(unpacked) as plain:
        try:
            while chunk := compressed.read1(1 << 20):  # read() would lose the bytes before the damage
                if plain.tell() + len(chunk) > limit:
                    raise SourceError(
                        f"{path}: unpacks to more than {limit:,} bytes; images don't shrink so much: check what it "
                        "holds, unpack it, and shard the tar"
                    )
                plain.write(chunk)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            source.reject(name, f"damaged gzip: {error}; its first {plain.tell()} unpacked bytes are used")
    return unpacked


@functools.lru_cache(_HIDDEN_FOLDERS)
def _hidden_folder(folder: str) -> tuple[str, str] | None:
    """Returns the part of a member's folder up to the first that is left out, and its kind; None if none is."""
    parts = folder.split("/")
    for depth, part in enumerate(parts, 1):
        if part.strip(".") and (kind := left_out(part, is_folder=True)):
            return "/".join(parts[:depth]), kind
    return None


def _add_codebook(source: Source, tar: str, pread: Callable[[int, int], bytes], member: Member) -> None:
    """Notes the codebook of a tar's packed images, and makes it known to the decoders."""
    codebook = pread(min(member.size, _MOST_CODEBOOK_BYTES), member.offset)
    if codebook in source.codebooks:
        return
    if len(source.codebooks) == MOST_CODEBOOKS:
        source.reject(f"{tar}/{member.name}", f"more than {MOST_CODEBOOKS:,} codebooks of packed images")
        return
    try:
        if codebook_name(codebook) != member.name.rpartition("/")[2]:
            raise ValueError("its bytes do not match its name")
        with contextlib.suppress(ImportError):  # without the kernels, unpacking says so
            add_codebooks([codebook])
    except ValueError as error:
        source.reject(f"{tar}/{member.name}", f"damaged codebook of packed images: {error}")
        return
    source.codebooks.append(codebook)


def _incomplete(source: Source, damaged: list[int], joined: list[int]) -> dict[int, str]:
    """Finds samples next to damage or a seam that lack a field, such as the label, which may have been lost there.

    Args:
        source: The source with the samples in its table.
        damaged: Samples next to damage. They are incomplete if they lack a field that any other sample has.
        joined: Samples next to a seam of two archives, mostly complete. They may lack a field if samples elsewhere lack
            it too.

    Returns:
        Reason for the rejection, by sample.
    """
    if not damaged and not joined:
        return {}
    doubtful = {*damaged, *joined}
    groups = [(_shape(fields), fields, ids) for fields, ids in source.table.by_fields().items()]
    known = frozenset().union(*(shape for shape, _, _ in groups))  # all fields of the set
    usual = {shape for shape, _, ids in groups if not doubtful.issuperset(ids)}

    reasons: dict[int, str] = {}
    for shape, fields, ids in groups:
        suspects = set(ids).intersection(damaged) if shape != known else set()
        # A shape that no sample elsewhere has, and that lacks a field which those have.
        if shape not in usual and any(shape < other for other in usual):
            suspects |= doubtful.intersection(ids)
        reason = f"may be incomplete, next to damage or where archives meet: it has only {', '.join(sorted(fields))}"
        reasons |= dict.fromkeys(suspects, reason)
    return reasons


def _shape(fields: frozenset[str]) -> frozenset[str]:
    """Returns the fields of a sample, numbered by kind: "image 0" for any format, which may differ between samples."""
    names: collections.Counter[str] = collections.Counter()
    for field in fields:
        names[f"{field.rpartition('.')[0]}.image" if is_image_field(field) else field] += 1
    return frozenset(f"{name} {k}" for name, number in names.items() for k in range(number))


@dataclasses.dataclass(eq=False)
class _Listing:
    """Adds the samples of tars to a source. Neighbouring members with one key are a sample, unless one is refused.

    Attributes:
        source: Takes the samples.
        labels: Takes their labels.
        image_fields: Fields of which a sample has one; None for any that hold images.
        damaged: Samples next to damage, which may lack a field.
        joined: Samples next to a seam of two archives.
        seamed: Number of tars of several archives.
    """

    source: Source
    labels: TarLabels
    image_fields: tuple[str, ...] | None
    damaged: list[int] = dataclasses.field(default_factory=list)
    joined: list[int] = dataclasses.field(default_factory=list)
    seamed: int = 0

    def add_file(self, tar: str, path: str) -> None:
        """Adds the samples of a tar in a file; see :meth:`add_members`."""
        with open(path, "rb") as file:
            self.add_members(tar, read_members(path), functools.partial(os.pread, file.fileno()))

    def add_members(
        self, tar: str, members: Iterable[Member | Refused | Seam], pread: Callable[[int, int], bytes]
    ) -> None:
        """Adds the samples of a tar, which is the source's last container.

        Args:
            tar: The tar's name.
            members: Its members.
            pread: Returns bytes of it: takes their number and their offset.
        """
        source = self.source
        container = len(source.containers) - 1
        self._tar = tar
        self._pread = pread
        self._key = ""
        self._stored: dict[str, StoredField] = {}
        self._broken: str | None = None
        # The place of the sample that is being read, and that of the next one: damage may lie before its first member.
        self._place = self._next_place = _SOUND
        has_seam = False

        for member in members:
            if isinstance(member, Seam):
                has_seam = True
                self._end_archive()
                continue

            if (hidden := _hidden_folder(member.name.rpartition("/")[0])) is not None:
                folder, kind = f"{tar}/{hidden[0]}", hidden[1]
                if folder not in source.left_out.get(kind, ())[-_HIDDEN_FOLDERS:]:
                    source.leave_out(folder, kind)
                continue

            split = _split_name(member.name)
            if isinstance(member, Member) and CODEBOOK_NAME.fullmatch(member.name.rpartition("/")[2]):
                _add_codebook(source, tar, pread, member)
            elif split is None:
                self._reject_nameless(member)
            elif isinstance(member, Refused):
                self._add(split[0], member.reason)
            else:
                self._add(split[0], StoredField(split[1], container, member.offset, member.size))

        self._finish()
        self.seamed += has_seam

    def _end_archive(self) -> None:
        """Ends the sample, as another archive begins."""
        self._place = max(self._place, _JOINED)
        self._finish()
        self._key = ""
        self._next_place = max(self._next_place, _JOINED)

    def _reject_nameless(self, member: Member | Refused) -> None:
        """Rejects a member without a key and a field in its name; one without a name stands for damage."""
        path = f"{self._tar}/{member.name}".rstrip("/")
        if isinstance(member, Refused):
            self.source.reject(path, member.reason, bad=member.bad)
        else:
            self.source.reject(path, "no key and extension in its name", bad=False)
        if not member.name:  # members are lost here
            self._place = self._next_place = _DAMAGED

    def _add(self, key: str, field: StoredField | str) -> None:
        """Takes the next member, or the reason why it was refused."""
        if key != self._key:
            self._finish()
            self._key = key
            self._place = self._next_place
        self._next_place = _SOUND
        if isinstance(field, str):
            self._broken = field
        elif field.name in self._stored:
            self._broken = f"two fields named {field.name!r}"
        else:
            self._stored[field.name] = field

    def _finish(self) -> None:
        """Adds the sample to the table, or rejects it."""
        path, stored, broken = f"{self._tar}/{self._key}", self._stored, self._broken
        self._stored = {}
        self._broken = None
        if not stored and not broken:
            return

        broken = broken or lacks_image(stored, self.image_fields)
        if broken:
            self.source.reject(path, broken)
            return
        try:
            label = self.labels.take(self._pread, stored)
        except ValueError as error:
            self.source.reject(path, f"no label: {error}")
            return

        if self._place != _SOUND:
            (self.damaged if self._place == _DAMAGED else self.joined).append(len(self.source.table))
        size = sum(field.length for field in stored.values())
        self.source.table.add(os.fsencode(path), size, NO_FILE, label, list(stored.values()))
