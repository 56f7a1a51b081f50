"""Folders of images: one folder a class, by torchvision's rule, or a flat one without labels."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from feeder.errors import SourceError
from feeder.shard.format.manifest import is_shard_set
from feeder.shard.source.class_folders import (
    are_downloads,
    class_names,
    downloads_note,
    splits_advice,
    unlistable,
    walk,
)
from feeder.shard.source.image_file import LARGE_BYTES, UNREADABLE, left_out, left_out_notes, looks_like_image
from feeder.shard.source.siblings import are_worth_a_word, likely_members, member_names
from feeder.shard.source.source import Source, SourceKind
from feeder.system.text import count


class ListedFile(NamedTuple):
    """A file, relative to the source's root, with its size and modification time when it was listed."""

    path: str
    size_bytes: int
    mtime_ns: int


def open_folder(
    root: str, members: Sequence[str] = (), *, skip_unreadable: bool = False, has_labels: bool = True
) -> Source:
    """Lists a class-per-folder tree, or, if its subfolders hold no file, a flat folder; one of img2dataset without
    labels. Files beside an image become members of its sample, see
    :func:`feeder.shard.source.siblings.member_names`.

    Args:
        root: The folder.
        members: Fields of images beside images, such as "seg.png", which become members, too.
        skip_unreadable: True to reject unreadable folders below it.
        has_labels: False to take all images below it without labels.

    Raises:
        SourceError: if the folder, or one below it, can't be listed, or one in it is a shard set; if no image has one
            of the members.
    """
    source = Source(SourceKind.FLAT_FOLDER, root, skip_unreadable=skip_unreadable)
    try:
        if has_labels:
            _list_classes(source, members)
        else:
            _refuse_sets(root, sorted(os.listdir(root)))
            list_tree(source, members)
    except OSError as error:
        raise SourceError(f"{root}: can't be listed: {error.strerror}") from None
    note_members(source, members)
    return source


def _list_classes(source: Source, members: Sequence[str]) -> None:
    """Adds the files of a class-per-folder tree, or, if its subfolders hold no file, those in the folder itself.

    Raises:
        OSError, SourceError: as :func:`open_folder` does.
    """
    root = source.root
    classes = class_names(root, skip_unreadable=source.skip_unreadable)
    _refuse_sets(root, classes)

    is_labelled = not are_downloads(root, classes)
    if not is_labelled:
        source.notes.append(downloads_note(root, classes))
    for label, name in enumerate(classes):
        before = len(source.table)
        _add_folder(source, name, label if is_labelled else -1, members)
        if is_labelled and len(source.table) == before:
            source.notes.append(f"class folder {name!r} gives no sample; it keeps its label {label}")

    if not len(source.table):
        source.notes.clear()
        _list_files(source, "", -1, None, members)
        return
    source.kind = SourceKind.CLASS_FOLDERS
    source.classes = classes if is_labelled else None
    if advice := splits_advice(root, classes):
        source.notes.append(advice)
    _list_files(source, "", -1, "is outside the class folders")


def _refuse_sets(root: str, names: Sequence[str]) -> None:
    """Raises SourceError if one of the folders in a folder is a shard set."""
    if (shards := next((name for name in names if is_shard_set(os.path.join(root, name))), None)) is not None:
        raise SourceError(
            f"{os.path.join(root, shards)}: is a shard set of feeder, not a class; move it out of the source"
        )


def list_tree(source: Source, members: Sequence[str] | None = None) -> None:
    """Adds all files below a source's root, those of a folder before those of its subfolders, sorted by name.

    Args:
        source: Takes the files.
        members: See :func:`open_folder`; None to take no file as a member.

    Raises:
        SourceError: if a folder can't be listed.
    """
    try:
        for name in _list_files(source, "", -1, None, members):
            _add_folder(source, name, -1, members)
    except OSError as error:
        raise SourceError(f"{source.root}: can't be listed: {error.strerror}") from None


def _add_folder(source: Source, top: str, label: int, members: Sequence[str] | None) -> None:
    """Adds the files below a folder of the source, sorted by name, with that label; see :func:`_list_files`."""

    def leave_out(path: str, reason: str) -> None:
        if reason.startswith("unreadable"):
            source.skip_folder(path, reason)
        else:
            source.reject(path, reason)

    walk(
        source.root,
        top,
        lambda relative: _list_files(source, relative, label, None, members),
        leave_out,
        skip_unreadable=source.skip_unreadable,
    )


def _list_files(
    source: Source, relative: str, label: int, refusal: str | None, members: Sequence[str] | None = None
) -> list[str]:
    """Adds a folder's files, or rejects them all with the reason ``refusal``; returns its subfolders, sorted.

    Unless ``members`` is None, files beside an image are members of its sample, and so are images of these fields.

    Raises:
        OSError: if the folder can't be listed or searched.
        SourceError: for a link whose target can't be examined and may be a folder, unless unreadable ones are skipped.
    """
    with os.scandir(os.path.join(source.root, relative)) as entries:
        names = sorted(entry.name for entry in entries)

    folders = []
    files: dict[str, ListedFile] = {}

    for name in names:
        path = os.path.join(relative, name)
        full = os.path.join(source.root, path)
        try:
            status = os.stat(full)
        except OSError as error:
            is_link = os.path.islink(full)
            if is_link and (kind := left_out(name)):  # such as the lock of an editor
                source.leave_out(path, kind)
            elif error.errno == errno.ELOOP:
                source.reject(path, "symlink loop")
            elif error.errno == errno.ENOENT and is_link:
                source.reject(path, "broken symlink")
            elif error.errno in UNREADABLE and is_link and looks_like_image(path):
                source.reject(path, f"unreadable: {error.strerror}")
            elif error.errno in UNREADABLE and is_link and source.skip_unreadable:
                source.skip_folder(path, f"unreadable link: {error.strerror}")
            elif error.errno == errno.ENOENT or (error.errno in UNREADABLE and is_link):
                raise unlistable(full, error) from None
            else:  # its folder can't be searched, or the machine failed: not this file's fault
                raise
            continue

        is_folder = stat.S_ISDIR(status.st_mode)
        if kind := left_out(name, is_folder=is_folder):
            source.leave_out(path, kind)
        elif is_folder:
            folders.append(name)
        elif not stat.S_ISREG(status.st_mode):
            source.reject(path, "not a regular file", bad=looks_like_image(path))
        elif refusal:
            source.reject(path, refusal, bad=looks_like_image(path))
        else:
            files[name] = ListedFile(path, status.st_size, status.st_mtime_ns)

    add_files(source, files, label, members)
    return folders


def add_files(source: Source, files: Mapping[str, ListedFile], label: int, members: Sequence[str] | None) -> None:
    """Adds a folder's files to the table, but for those that are members of the others' samples.

    Args:
        source: Takes the files.
        files: The folder's files, sorted by name.
        label: Their label.
        members: See :func:`list_tree`.
    """
    by_stem: dict[str, dict[str, str]] = {}
    for name, field in _members_of_photos(files, members).items() if members is not None else ():
        by_stem.setdefault(name[: -len(field) - 1], {}).setdefault(field.lower(), name)
    taken = {name for own in by_stem.values() for name in own.values()}
    for name, file in files.items():
        if name not in taken:
            own = by_stem.get(os.path.splitext(name)[0], {}) if _is_photo(name) else {}
            add_sample(source, file, label, {field: files[other] for field, other in own.items()})
    for name, field in likely_members([name for name in files if _is_photo(name) and name not in taken]).items():
        source.likely_members.setdefault(field, []).append(files[name].path)


def add_sample(source: Source, image: ListedFile, label: int, beside: Mapping[str, ListedFile]) -> None:
    """Adds an image to the table, with the files beside it as the fields of its sample, by name."""
    stored = [source.table.add_file(name, os.fsencode(file.path), file.size_bytes) for name, file in beside.items()]
    files = [image, *beside.values()]
    size = sum(file.size_bytes for file in files)
    source.table.add(os.fsencode(image.path), size, max(file.mtime_ns for file in files), label, stored)


def _members_of_photos(files: Mapping[str, ListedFile], images: Sequence[str]) -> dict[str, str]:
    """Returns the field of each file that is a member of an image's sample. The label is the folder's, so ``cls`` is
    none, nor are large files, such as videos.

    Args:
        files: The files of a folder.
        images: Fields of images beside images that are members.
    """
    fields = {field.lower() for field in images}
    endings = tuple(f".{field}" for field in fields)
    asked = {name for name in files if _is_photo(name) and name.lower().endswith(endings)} if endings else set()
    photos = [name for name in files if _is_photo(name) and name not in asked]
    others = [name for name, file in files.items() if not _is_photo(name) and file.size_bytes <= LARGE_BYTES]
    found = member_names(photos, [*others, *asked])
    return {
        name: field
        for name, field in found.items()
        if field.lower() != "cls" and (name not in asked or field.lower() in fields)
    }


def _is_photo(name: str) -> bool:
    """Returns whether a file's name claims that it is an image, and can be nothing else, as ``.npy`` can."""
    return looks_like_image(name) and not name.lower().endswith(".npy")


def note_members(source: Source, members: Sequence[str]) -> None:
    """Notes what was left out, the names of the files that became members, and the images that look like members and
    did not.

    Raises:
        SourceError: if no file became one of the members that were asked for.
    """
    source.notes += left_out_notes(source.root, source.left_out)
    counts = source.table.field_counts()
    if (missing := next((name for name in members if name.lower() not in counts), None)) is not None:
        raise SourceError(f"{source.root}: no image has a file such as NAME.{missing} beside it, as for NAME.jpg")
    if counts:
        listed = ", ".join(f"{field} ({number:,})" for field, number in sorted(counts.items()))
        source.notes.append(f"{source.root}: files beside the images are members of their samples: {listed}")
    for field, paths in source.likely_members.items():
        if are_worth_a_word(field, len(paths), len(source.table)):
            source.notes.append(
                f"{source.root}: {count(len(paths), 'image')} such as {min(paths)} become samples, and look like masks "
                f"or second images of those beside them; --members {field} makes them so"
            )
