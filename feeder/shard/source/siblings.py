"""Files beside an image that belong to its sample, such as its caption."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Container, Iterable, Sequence


def member_names(images: Iterable[str], others: Iterable[str]) -> dict[str, str]:
    """Finds the files of a folder that are members of its images' samples.

    A member's name is the image's stem, a dot and the name of the field: ``a.txt`` and ``a.emb.npy`` belong to
    ``a.jpg``. The longest stem counts: ``a.b.txt`` belongs to ``a.b.jpg``, if there is one. Names of fields are ASCII.

    Args:
        images: Names of the image files.
        others: Names of the other files.

    Returns:
        The field of each file that belongs to an image, by the file's name.
    """
    stems = {os.path.splitext(image)[0] for image in images}
    fields = {name: _field(name, name, stems) for name in others}
    return {name: field for name, field in fields.items() if field and field.isascii() and field.isprintable()}


def likely_members(images: Sequence[str]) -> dict[str, str]:
    """Finds the images of a folder that look like masks or second images of others: ``a.seg.png`` beside ``a.jpg``, and
    ``a.png``.

    Args:
        images: Names of the image files.

    Returns:
        The field of each such file, by the file's name.
    """
    if all(name.count(".") == 1 for name in images) and len({name[name.find(".") :] for name in images}) < 2:
        return {}  # as of most sets, which may be large
    found = {}
    stems = Counter(os.path.splitext(name)[0] for name in images)
    for name in images:
        stem, extension = os.path.splitext(name)
        if stems[stem] > 1 and extension.lower() == ".png":
            found[name] = extension[1:]
        elif field := _field(name, stem, stems):
            found[name] = field
    return found


def are_worth_a_word(field: str, count: int, images: int) -> bool:
    """Returns True if images that look like members are to be named, as they become samples.

    PNGs beside other images are masks as a rule, however few have one. Copies such as ``a.v2.jpg`` are samples as a
    rule, unless half of the other images have one.

    Args:
        field: Their field.
        count: Their number.
        images: Number of all images.
    """
    return field.lower().endswith("png") or 3 * count >= images


def _field(name: str, stem: str, stems: Container[str]) -> str:
    """Returns what a file's name has after the longest of some stems that is shorter than ``stem``; "" if none is."""
    while "." in stem:
        stem = stem.rpartition(".")[0]
        if stem in stems:
            return name[len(stem) + 1 :]
    return ""
