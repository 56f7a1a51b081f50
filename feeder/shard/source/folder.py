"""Folders of images: one folder a class, by torchvision's rule, or a flat one without labels."""

from __future__ import annotations

import errno
import os
import stat

from feeder.errors import SourceError
from feeder.shard.format.manifest import is_shard_set
from feeder.shard.source.class_folders import UNREADABLE, class_names, splits_advice, unlistable, walk
from feeder.shard.source.image_file import looks_like_image
from feeder.shard.source.source import Source

__all__ = ["list_tree", "open_folder"]


def open_folder(root: str, *, skip_unreadable: bool = False) -> Source:
    """Lists a class-per-folder tree, or, if its subfolders hold no file, a flat folder.

    Args:
        root: The folder.
        skip_unreadable: True to reject unreadable folders below it.

    Raises:
        SourceError: if the folder, or one below it, can't be listed, or one in it is a shard set.
    """
    try:
        classes = class_names(root, skip_unreadable=skip_unreadable)
        tree = Source("class folders", root, skip_unreadable=skip_unreadable)
        tree.classes = classes
        if (shards := next((name for name in classes if is_shard_set(os.path.join(root, name))), None)) is not None:
            raise SourceError(
                f"{os.path.join(root, shards)}: is a shard set of feeder, not a class; move it out of the source"
            )
        for label, name in enumerate(classes):
            before = len(tree.table)
            _add_class(tree, name, label)
            if len(tree.table) == before:
                tree.notes.append(f"class folder {name!r} holds no file; it keeps its label {label}")
        if len(tree.table):
            if advice := splits_advice(root, classes):
                tree.notes.append(advice)
            _list_files(tree, "", -1, "is outside the class folders")
            return tree
        flat = Source("flat folder", root, skip_unreadable=skip_unreadable)
        flat.rejected, flat.unreadable_folders = tree.rejected, tree.unreadable_folders
        _list_files(flat, "", -1, None)
        return flat
    except OSError as error:
        raise SourceError(f"{root}: can't be listed: {error.strerror}") from None


def list_tree(source: Source) -> None:
    """Adds all files below a source's root, those of a folder before those of its subfolders, sorted by name.

    Raises:
        SourceError: if a folder can't be listed.
    """
    try:
        for name in _list_files(source, "", -1, None):
            _add_class(source, name, -1)
    except OSError as error:
        raise SourceError(f"{source.root}: can't be listed: {error.strerror}") from None


def _add_class(source: Source, top: str, label: int) -> None:
    """Adds the files below a class folder, sorted by name."""

    def leave_out(path: str, reason: str) -> None:
        if reason.startswith("unreadable"):
            source.skip_folder(path, reason)
        else:
            source.reject(path, reason)

    walk(
        source.root,
        top,
        lambda relative: _list_files(source, relative, label, None),
        leave_out,
        skip_unreadable=source.skip_unreadable,
    )


def _list_files(source: Source, relative: str, label: int, refusal: str | None) -> list[str]:
    """Adds a folder's files, or rejects them all with the reason ``refusal``; returns its subfolders, sorted.

    Raises:
        OSError: if the folder can't be listed or searched.
        SourceError: for a link whose target can't be examined and may be a folder, unless unreadable ones are skipped.
    """
    with os.scandir(os.path.join(source.root, relative)) as entries:
        names = sorted(entry.name for entry in entries)
    folders = []
    for name in names:
        path = os.path.join(relative, name)
        full = os.path.join(source.root, path)
        try:
            status = os.stat(full)
        except OSError as error:
            is_link = os.path.islink(full)
            if error.errno == errno.ELOOP:
                source.reject(path, "symlink loop")
            elif error.errno == errno.ENOENT and is_link:
                source.reject(path, "broken symlink")
            elif error.errno == errno.ENOENT:
                raise SourceError(f"{full}: vanished while its folder was being listed; run again") from None
            elif error.errno in UNREADABLE and is_link and looks_like_image(path):
                source.reject(path, f"unreadable: {error.strerror}")
            elif error.errno in UNREADABLE and is_link and source.skip_unreadable:
                source.skip_folder(path, f"unreadable link: {error.strerror}")
            elif error.errno in UNREADABLE and is_link:
                raise unlistable(full, error) from None
            else:  # its folder can't be searched, or the machine failed: not this file's fault
                raise
            continue
        if stat.S_ISDIR(status.st_mode):
            folders.append(name)
        elif not stat.S_ISREG(status.st_mode):
            source.reject(path, "not a regular file", bad=looks_like_image(path))
        elif refusal:
            source.reject(path, refusal, bad=looks_like_image(path))
        else:
            source.table.add(os.fsencode(path), status.st_size, status.st_mtime_ns, label)
    return folders
