"""Class folders: their names, and a walk through the folders below one."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Sequence

from feeder.errors import SourceError
from feeder.shard.source.image_file import UNREADABLE, left_out
from feeder.system.files import scan_folder

# The beginning of a name that is, or has, that of a split.
SPLIT = re.compile(
    r"(training|trainval|train|validation|valid|val|testing|test|eval|dev|unlabell?ed|extra)(?![a-z])[-_. ]?",
    re.IGNORECASE,
)


def class_names(
    root: str, leave_out: Callable[[str, str], object] = lambda name, kind: None, *, skip_unreadable: bool = False
) -> list[str]:
    """Returns the classes of a class-per-folder tree: its folders' names, sorted, as in torchvision's ImageFolder, but
    for hidden folders and those of systems.

    Args:
        root: The folder.
        leave_out: Takes the name of a folder that is no class, and its kind.
        skip_unreadable: See :func:`is_folder`.

    Raises:
        OSError: if the folder can't be listed.
        SourceError: as :func:`is_folder` does.
    """
    names = []
    with scan_folder(root) as entries:
        for entry in entries:
            if is_folder(entry, skip_unreadable=skip_unreadable):
                if kind := left_out(entry.name, is_folder=True):
                    leave_out(entry.name, kind)
                else:
                    names.append(entry.name)
    return sorted(names)


def is_folder(entry: os.DirEntry[str], *, skip_unreadable: bool) -> bool:
    """Returns whether an entry is a folder, or a link to one.

    A link to itself does not count, nor, with ``skip_unreadable``, does a link into an unreadable folder.

    Raises:
        SourceError: if the entry can't be examined.
    """
    try:
        return entry.is_dir()
    except OSError as error:
        if error.errno == errno.ELOOP or (skip_unreadable and error.errno in UNREADABLE):
            return False
        raise unlistable(entry.path, error) from None


def walk(
    root: str,
    top: str,
    visit: Callable[[str], Sequence[str]],
    leave_out: Callable[[str, str], None],
    *,
    skip_unreadable: bool = False,
) -> None:
    """Visits a folder and those below it, following links as torchvision does, but not in circles.

    It does not recurse, as folders may be nested deeper than Python's calls.

    Args:
        root: The folder that all paths are relative to.
        top: The first folder to visit.
        visit: Takes a folder's path; returns the names of its subfolders in the order in which to visit them.
        leave_out: Takes the path of a folder that is not visited, and the reason.
        skip_unreadable: True to leave unreadable folders out.

    Raises:
        SourceError: naming a folder that can't be read.
    """
    ancestors: list[tuple[int, int]] = []
    pending = [(top, 1)]

    while pending:
        relative, depth = pending.pop()
        full = os.path.join(root, relative)

        try:
            if not ancestors:
                ancestors.append(_identity(root))
            del ancestors[depth:]
            identity = _identity(full)
            if identity in ancestors:
                leave_out(relative, "symlink loop")
                continue
            folders = visit(relative)
        except OSError as error:
            if not skip_unreadable or error.errno not in UNREADABLE:
                raise unlistable(full, error) from None
            leave_out(relative, f"unreadable folder: {error.strerror}")
            continue

        ancestors.append(identity)
        pending += [(os.path.join(relative, name), depth + 1) for name in reversed(folders)]


def unlistable(path: str, error: OSError) -> SourceError:
    """Returns the error for a folder that can't be listed."""
    if error.errno in UNREADABLE:
        return SourceError(
            f"{path}: unreadable folder: {error.strerror}; make it readable, move it away, or shard without it by "
            "--skip-unreadable"
        )
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        return SourceError(f"{path}: vanished while it was being listed; run again")
    return SourceError(f"{path}: can't be listed: {error.strerror}; nothing is lost: fix this and run again")


def is_split(name: str) -> bool:
    """Returns whether a folder's name is that of a split, and a year at most."""
    match = SPLIT.match(name)
    return match is not None and not name[match.end() :].strip("0123456789")


def splits_advice(root: str, classes: Sequence[str]) -> str | None:
    """Returns advice if all class folders have names of a dataset's splits, such as "train"; else None.

    Args:
        root: The folder.
        classes: Names of the folders in it.
    """
    if not classes or not all(map(is_split, classes)):
        return None
    return (
        f"{root}: its folders {', '.join(classes)} are taken as classes; if they are splits of one dataset, give one "
        f"at a time, such as {root.rstrip('/')}/{classes[0]}"
    )


def are_downloads(root: str, classes: Sequence[str], is_file: Callable[[str], bool] = os.path.isfile) -> bool:
    """Returns whether the folders are shards of img2dataset and no classes: beside each NAME is NAME.parquet or
    NAME_stats.json."""
    return bool(classes) and all(
        any(is_file(os.path.join(root, f"{name}{ending}")) for ending in (".parquet", "_stats.json"))
        for name in classes
    )


def downloads_note(root: str, classes: Sequence[str]) -> str:
    """Returns the note on folders that :func:`are_downloads` takes as no classes."""
    return f"{root}: its folders, such as {classes[0]}, are shards of img2dataset and no classes: samples have no label"


def _identity(path: str) -> tuple[int, int]:
    status = os.stat(path)
    return status.st_dev, status.st_ino
