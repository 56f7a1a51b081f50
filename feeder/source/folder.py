"""Folders of images: one folder a class, by torchvision's rule, or a flat one without labels."""

from __future__ import annotations

import errno
import os
import stat

from feeder.errors import SourceError
from feeder.source.base import Source, looks_like_image
from feeder.splits import splits_advice

__all__ = ["class_names", "open_folder"]


def class_names(root: str) -> list[str]:
    """The classes of a class-per-folder tree: its folders' names, sorted, as torchvision's ImageFolder finds them."""
    with os.scandir(root) as entries:
        return sorted(entry.name for entry in entries if entry.is_dir())


def open_folder(root: str) -> Source:
    """Lists a class-per-folder tree, or a flat folder if no file stands in a subfolder.

    Raises:
        SourceError: if the folder can't be listed.
    """
    try:
        classes = class_names(root)
        tree = Source("class folders", root)
        tree.classes = classes
        for label, name in enumerate(classes):
            before = len(tree.table)
            _walk(tree, name, label)
            if len(tree.table) == before:
                tree.notes.append(f"class folder {name!r} holds no file; it keeps its label {label}")
        if len(tree.table):
            if advice := splits_advice(root, classes):
                tree.notes.append(advice)
            _list_files(tree, "", -1, "stands outside the class folders")
            return tree
        flat = Source("flat folder", root)
        flat.rejected = tree.rejected
        _list_files(flat, "", -1, None)
        return flat
    except OSError as error:
        raise SourceError(f"{root}: can't be listed: {error.strerror}") from None


def _identity(path: str) -> tuple[int, int]:
    status = os.stat(path)
    return status.st_dev, status.st_ino


def _walk(source: Source, top: str, label: int) -> None:
    """Adds the files below a folder, names sorted, following links as torchvision does, but not in circles.

    A loop and no recursion, as folders may be nested deeper than Python's calls.
    """
    ancestors = [_identity(source.root)]
    pending = [(top, 1)]
    while pending:
        relative, depth = pending.pop()
        del ancestors[depth:]
        try:
            identity = _identity(os.path.join(source.root, relative))
            if identity in ancestors:
                source.reject(relative, "symlink loop")
                continue
            folders = _list_files(source, relative, label, None)
        except OSError as error:
            source.reject(relative, f"unreadable folder: {error.strerror}")
            continue
        ancestors.append(identity)
        pending += [(os.path.join(relative, name), depth + 1) for name in reversed(folders)]


def _list_files(source: Source, relative: str, label: int, refusal: str | None) -> list[str]:
    """Adds a folder's files, or rejects them all with the reason ``refusal``; returns its subfolders, sorted."""
    with os.scandir(os.path.join(source.root, relative)) as entries:
        names = sorted(entry.name for entry in entries)
    folders = []
    for name in names:
        path = os.path.join(relative, name)
        try:
            status = os.stat(os.path.join(source.root, path))
        except OSError as error:
            reasons = {errno.ELOOP: "symlink loop", errno.ENOENT: "broken symlink"}
            source.reject(path, reasons.get(error.errno or 0, f"unreadable: {error.strerror}"))
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
