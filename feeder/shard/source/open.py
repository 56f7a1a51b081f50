"""Opens a source of any kind: folders, with or without annotations, manifests, WebDataset tars and iterables."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Sequence
from shlex import quote

from feeder.errors import ChoiceError, SourceError
from feeder.shard.format.manifest import is_shard_set
from feeder.shard.source.box_files import are_yolo, open_voc, open_yolo
from feeder.shard.source.coco import open_coco
from feeder.shard.source.folder import open_folder
from feeder.shard.source.image_file import left_out, looks_like_image
from feeder.shard.source.layout import by_split
from feeder.shard.source.pairs import open_pairs
from feeder.shard.source.pattern import expand_pattern, fixed_start
from feeder.shard.source.remote import list_objects, open_remote_folder, split_url
from feeder.shard.source.source import Source
from feeder.shard.source.table_file import MANIFEST_SUFFIXES, ManifestColumns, open_manifest
from feeder.shard.source.target_sources import TargetSources
from feeder.shard.source.tars import TAR_SUFFIXES, is_tar, open_stored_tars, open_tars
from feeder.shard.store.store import Entry
from feeder.shard.store.url import Url, is_remote, shown_place

_ARCHIVES = (".zip", ".7z", ".rar")
# With these errors the path may still be a pattern; if it is not, there is a better error for it.
_NO_PATH = (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG, errno.ELOOP)


def open_source(
    path: str,
    columns: ManifestColumns,
    work: str,
    *,
    skip_unreadable: bool = False,
    image_field: str | None = None,
    targets: TargetSources | None = None,
) -> Source:
    """Lists a dataset of any kind.

    Args:
        path: A class-per-folder tree, a flat folder, a folder of tars, a manifest, or a pattern of tars.
        columns: The purposes of a manifest's columns, or of the keys of tars' json.
        work: Folder for scratch files.
        skip_unreadable: True to reject unreadable folders; otherwise the first ends the run.
        image_field: For tars, see :func:`open_tars`.
        targets: The places of the boxes and masks of a folder of images.

    Raises:
        SourceError: if it is none of these, or can't be read.
    """
    members = () if targets is None else targets.members
    if targets and not members:
        if is_remote(path):
            raise SourceError(f"{split_url(path)[0]}: images with annotations or pairs must lie in local folders")
        if columns != ManifestColumns() or image_field is not None:
            raise SourceError(f"{path}: options for manifests, labels and tars don't go with annotations or pairs")
        return _open_with_targets(path, targets, os.path.join(work, "spool"), skip_unreadable)

    kind, shown = source_kind(path), shown_place(path)
    option = None if kind == "manifest" else columns.only_for_manifests()

    if option is not None:
        raise SourceError(f"{shown}: {option} is for manifests ({', '.join(MANIFEST_SUFFIXES)})")
    if members and kind in ("manifest", "tars"):
        raise SourceError(f"{shown}: is no folder of images with {members[0]!r} beside them; leave --members out")

    if kind == "prefix":
        store, entries = list_objects(path)
        if tars := _lone_tars(entries):
            beside = [entry.key for entry in entries if "/" not in entry.key]
            return open_stored_tars(store, tars, path, work, image_field, columns, beside=beside)
        if image_field is None and not members and (tables := _tables(path, entries)):
            return open_manifest(tables, columns, os.path.join(work, "spool"))

    if kind == "tars":
        return open_tars(path, work, image_field, columns)
    if image_field is not None:
        raise SourceError(f"{shown}: has no fields to choose the image from; leave --image-field out, it is for tars")

    if kind == "manifest":
        return open_manifest(path, columns, os.path.join(work, "spool"))
    if columns.label is not None or columns.targets:
        raise SourceError(f"{shown}: a folder's classes are its subfolders; it has no columns for labels")
    if kind == "prefix":
        return open_remote_folder(store, entries, members, has_labels=columns.has_labels)
    return open_folder(path, members, skip_unreadable=skip_unreadable, has_labels=columns.has_labels)


def _open_with_targets(path: str, targets: TargetSources, spool: str, skip_unreadable: bool) -> Source:
    if targets.annotations is None:
        return open_pairs(path, targets.pairs, targets.names, skip_unreadable=skip_unreadable)
    if not os.path.isdir(targets.annotations):
        masks = targets.instance_masks
        return open_coco(path, targets.annotations, spool, targets.names, instance_masks=masks)
    if targets.instance_masks:
        raise SourceError(f"{targets.annotations}: a folder of boxes has no polygons to make masks of; pair its masks")
    reader = open_yolo if are_yolo(targets.annotations) else open_voc
    return reader(path, targets.annotations, spool, targets.names, skip_unreadable=skip_unreadable)


def source_kind(path: str) -> str:
    """Returns the kind of a source, judged by names alone: "folder", "manifest", "tars" or, in a store, "prefix".

    Raises:
        SourceError: if it is none of these, or does not exist.
    """
    if is_remote(path):
        return _remote_kind(path)

    try:
        os.stat(path)
    except OSError as error:
        if error.errno not in _NO_PATH:
            raise SourceError(f"{path}: can't be examined: {error.strerror}") from None
    except ValueError as error:
        raise SourceError(f"{path!r}: is not a path: {error}") from None
    if os.path.isdir(path):
        try:
            return "tars" if _is_tar_folder(path) else "folder"
        except OSError as error:
            raise SourceError(f"{path}: can't be listed: {error.strerror}") from None

    if path.lower().endswith(MANIFEST_SUFFIXES):
        is_pattern = "{" in path or "*" in path
        if not os.path.isfile(path) and (os.path.exists(path) or not is_pattern):
            raise SourceError(f"{path}: " + ("is not a regular file" if os.path.exists(path) else "no such manifest"))
        expand_pattern(path)
        return "manifest"

    if path.lower().endswith(TAR_SUFFIXES) or "{" in path or "*" in path or path.startswith("pipe:"):
        paths = expand_pattern(path)
        if any(map(looks_like_image, paths)) and not any(map(is_tar, paths)):
            raise SourceError(f"{path}: names images: give their folder, or a manifest of some of them")
        return "tars"

    if path.lower().endswith(_ARCHIVES):
        raise SourceError(f"{path}: is an archive: unzip it first, and give the folder")

    raise SourceError(
        f"{path}: "
        + ("is not a dataset that feeder knows" if os.path.exists(path) else "no such file or folder")
        + "; expected a folder of images, a manifest (.csv, .tsv, .jsonl, .parquet) or "
        "WebDataset tars ('train-{000..009}.tar')"
    )


def _remote_kind(path: str) -> str:
    base, query = split_url(path)
    Url.parse(fixed_start(base) + query)  # raises for what is no URL, or has a secret
    if base.lower().endswith(MANIFEST_SUFFIXES):
        return "manifest"
    return "tars" if base.lower().endswith(TAR_SUFFIXES) or "{" in base or "*" in base else "prefix"


def _tables(path: str, entries: Sequence[Entry]) -> str | None:
    """Returns the Parquet files of a prefix, as a path or a pattern; None without any, or with an image below it.

    Raises:
        ChoiceError: if they are of several splits.
    """
    base, query = split_url(path)
    keys = [entry.key for entry in entries]
    tables = [] if any(map(looks_like_image, keys)) else [*filter(re.compile(r"[^/.][^/]*\.parquet").fullmatch, keys)]
    ways = [f"{each}{query}" for each in by_split(base, tables)]
    if len(ways) > 1:
        raise ChoiceError(f"{base}: has tables of several splits; choose:", [(quote(way), "") for way in ways])
    return ways[0] if ways else None


def _lone_tars(entries: Sequence[Entry]) -> list[Entry]:
    """Returns the tars of a prefix that holds no folders, as a folder of tars is told from one of images."""
    if any("/" in entry.key and not left_out(entry.key.partition("/")[0], is_folder=True) for entry in entries):
        return []
    return [entry for entry in entries if "/" not in entry.key and is_tar(entry.key)]


def overlaps_source(path: str, out: str) -> bool:
    """Returns whether an output folder is or lies inside a source folder, or is the folder of a source's files."""
    if is_remote(path) or is_remote(out):
        if not (is_remote(path) and is_remote(out)):
            return False
        base, query = split_url(path)
        is_prefix = _remote_kind(path) == "prefix"
        base = fixed_start(base).rstrip("/")
        outer_url = Url.parse((base if is_prefix else base.rpartition("/")[0]) + query).identity()
        inner_url = Url.parse(out).identity()
        return inner_url == outer_url or (is_prefix and inner_url.startswith(f"{outer_url}/"))
    folder = path if os.path.isdir(path) else os.path.dirname(fixed_start(path)) or "."
    inner, outer = os.path.realpath(out), os.path.realpath(folder)
    return inner == outer or (os.path.isdir(path) and inner.startswith(outer.rstrip("/") + "/"))


def _is_tar_folder(path: str) -> bool:
    with os.scandir(path) as entries:
        listed = list(entries)
    return any(is_tar(e.name) and os.path.isfile(e.path) for e in listed) and not any(
        os.path.isdir(e.path) and not left_out(e.name, is_folder=True) and not is_shard_set(e.path) for e in listed
    )
