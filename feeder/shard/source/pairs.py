"""Trees of files that belong together by their names: images and masks, images and annotations."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from feeder.errors import SourceError
from feeder.shard.source.folder import ListedFile, add_sample, list_tree
from feeder.shard.source.image_file import left_out_notes, looks_like_image
from feeder.shard.source.source import Rejection, Source, SourceKind
from feeder.system.files import open_regular


class Tree(NamedTuple):
    """Files below a folder.

    Attributes:
        folder: The folder.
        prefix, suffix: Of the files' names; a suffix has the extension. Empty ones take all files, and then names are
            compared without their extensions.
        extension: Of the files, in lower case; empty takes any.
    """

    folder: str
    prefix: str = ""
    suffix: str = ""
    extension: str = ""

    @classmethod
    def of(cls, place: str) -> Tree:
        """Returns the tree of a folder, or of ``folder/prefix*suffix``.

        Raises:
            SourceError: if it is neither.
        """
        if "*" not in place:
            tree = cls(place)
        else:
            folder, _, name = place.rpartition("/")
            prefix, _, suffix = name.partition("*")
            if "*" in folder or "*" in suffix or not suffix:
                raise SourceError(f"{place}: expected a folder, or folder/*_suffix.png with one * in the files' name")
            tree = cls(folder or ".", prefix, suffix)
        if not os.path.isdir(tree.folder):
            raise SourceError(f"{tree.folder}: no such folder")
        return tree

    def key(self, path: str) -> str | None:
        """Returns the name of a file that it shares with its partners; None if the file is not of the tree."""
        folder, name = os.path.split(path)
        if not name.lower().endswith(self.extension):
            return None
        if self.suffix:
            shared = name[len(self.prefix) : -len(self.suffix)]
            if f"{self.prefix}{shared}{self.suffix}" != name or not shared:
                return None
        else:
            shared = os.path.splitext(name)[0]
        return os.path.join(folder, shared)


def paired(
    source: Source, images: Tree, others: Mapping[str, Tree], names: set[str] | None, *, are_optional: bool = False
) -> Iterator[tuple[str, ListedFile, dict[str, ListedFile]]]:
    """Yields name, image and further files of each sample, in the images' order; rejects files without a partner.

    The trees may be the same folder, or one inside another: a file that is of a sample is rejected for none.

    Args:
        source: Takes the rejections; its root is the folder of the images.
        images: The images.
        others: The further files, by name.
        names: Names of the samples to take; None takes all. Those that have no image are rejected.
        are_optional: True to yield images without their further files, too.

    Raises:
        SourceError: if a folder can't be listed.
    """
    rejected: dict[str, Rejection] = {}
    partners = {field: dict(_listed(source, tree, names, rejected)) for field, tree in others.items()}

    found: set[str] = set()
    used: set[str] = set()

    for key, image in _listed(source, images, names, rejected):
        own = {field: files[key] for field, files in partners.items() if key in files}
        if image.path in (file.path for file in own.values()):  # an XML without an image, in the folder of both
            continue
        found.add(key)

        lacking = next((field for field in partners if field not in own), None)
        if lacking is not None and not (are_optional and looks_like_image(image.path)):
            reason = f"has no file of the same name in {lacking}={others[lacking].folder}"
            rejected[image.path] = Rejection(image.path, reason, looks_like_image(image.path))
            continue

        used.update((image.path, *(file.path for file in own.values())))
        yield key, image, own

    for files in partners.values():
        for key, file in files.items():
            if key not in found:
                reason = f"has no image of the same name in {images.folder}"
                rejected[file.path] = Rejection(file.path, reason, bad=True)

    source.rejected += [rejection for path, rejection in rejected.items() if path not in used]
    for name in sorted((names or set()) - found):
        source.reject(name, f"is wanted, but has no image in {images.folder}")


def open_pairs(
    images: str, pairs: tuple[tuple[str, str], ...], names: str | None, *, skip_unreadable: bool = False
) -> Source:
    """Lists images and the further files with the same names.

    Args:
        images: See :class:`Tree`.
        pairs: (name, tree) of the further files.
        names: See :func:`read_names`.
        skip_unreadable: True to reject unreadable folders.

    Raises:
        SourceError: if a folder can't be listed.
    """
    tree = Tree.of(images)
    source = Source(SourceKind.PAIRED_FILES, tree.folder, skip_unreadable=skip_unreadable)
    others = {field: Tree.of(place) for field, place in pairs}
    for _, image, files in paired(source, tree, others, read_names(names)):
        fields = {f"{name}{os.path.splitext(file.path)[1].lower()}": file for name, file in files.items()}
        add_sample(source, image, -1, fields)
    return source


def read_names(path: str | None) -> set[str] | None:
    """Returns the lines of a file that names samples, without empty ones; None for no file.

    Raises:
        SourceError: if it can't be read.
    """
    if path is None:
        return None
    try:
        with open(path, encoding="utf-8-sig", errors="surrogateescape", opener=open_regular) as file:
            return {line.strip() for line in file if line.strip()}
    except OSError as error:
        raise SourceError(f"{path}: can't be read: {error.strerror}") from None


def _listed(
    source: Source, tree: Tree, names: set[str] | None, rejected: dict[str, Rejection]
) -> list[tuple[str, ListedFile]]:
    """Returns the files of a tree by the name that they share with their partners. Of files of one name images come
    first, and the others are added to ``rejected``, by path."""
    listing = Source(source.kind, tree.folder, skip_unreadable=source.skip_unreadable)
    list_tree(listing)
    source.unreadable_folders += listing.unreadable_folders
    source.notes += [note for note in left_out_notes(tree.folder, listing.left_out) if note not in source.notes]
    for rejection in listing.rejected:
        path = _relative(source, tree, rejection.path)
        rejected[path] = rejection._replace(path=path)
    found: dict[str, ListedFile] = {}
    mtimes = listing.table.mtimes()
    for i in range(len(listing.table)):
        inside = os.fsdecode(listing.table.path(i))
        path, key = _relative(source, tree, inside), tree.key(inside)
        if names is not None and key not in names:
            continue
        file = ListedFile(path, listing.table.size(i), int(mtimes[i]))
        if key is None:
            reason = f"is not named {tree.prefix}*{tree.suffix or tree.extension}"
            rejected[path] = Rejection(path, reason, bad=False)
        elif (other := found.setdefault(key, file)) is not file:
            if looks_like_image(path) and not looks_like_image(other.path):
                found[key], path = file, other.path
            reason = "has the same name as another file, but for its extension"
            rejected[path] = Rejection(path, reason, bad=looks_like_image(path))
    return list(found.items())


def _relative(source: Source, tree: Tree, path: str) -> str:
    return os.path.relpath(os.path.join(tree.folder, path), source.root)
