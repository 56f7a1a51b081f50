"""The layout of a folder, by the names in it: no set is made of the wrong samples in silence."""

from __future__ import annotations

import contextlib
import csv
import glob
import itertools
import os
import re
import shlex
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from feeder.errors import ChoiceError, SourceError
from feeder.shard.format.manifest import is_shard_set
from feeder.shard.source.class_folders import SPLIT, are_downloads, is_split
from feeder.shard.source.image_file import left_out, looks_like_image
from feeder.shard.source.image_files import folders_beside, image_files
from feeder.shard.source.table_file import MANIFEST_SUFFIXES
from feeder.shard.source.table_rows import table_rows
from feeder.shard.source.target_sources import TargetSources
from feeder.shard.source.tars import is_tar
from feeder.shard.source.yolo import CLASS_FILES
from feeder.shard.store.url import is_remote
from feeder.system.files import open_regular, scan_folder

__all__ = ["FolderLayout", "recognized"]

_IMAGES = ("images", "image", "imgs", "img", "jpegimages")
_PASSED_OVER = (*_IMAGES, "annotations", "data", "json")  # in the names of sets
_PARTNERS = re.compile(r"(annotation|label|mask|trimap|xml|segmentation(class|object)?)s?", re.IGNORECASE)
_VALUE = r'(?:"[^"]*"|[-+.\w]+|\{[^{}]*\}|\[[^\[\]]*\])'  # a flat one
_COCO = re.compile(
    rf'\s*\{{\s*(?:"[^"]*"\s*:\s*{_VALUE}\s*,\s*)*"(info|licenses|images|annotations|categories|type)"'.encode()
)
_NOT_COCO = ("image_info", "panoptic", "stuff_image_info")
_SNIFFED_ROWS = 100


class FolderLayout(NamedTuple):
    """A way to read a folder, as the options of ``feeder shard`` name it.

    Attributes:
        kind: What is seen, in words.
        path: The source.
        annotations: COCO's JSON, or a folder of annotations.
        masks: The masks of the images ``path``.
        are_classes: True to take its folders as classes, whatever their names.
    """

    kind: str
    path: str
    annotations: str | None = None
    masks: str | None = None
    are_classes: bool = False

    def command(self) -> str:
        """Returns the options of ``feeder shard`` that name it."""
        if self.masks is not None:
            return f"--pair {shlex.quote(f'images={self.path}')} {shlex.quote(f'masks={self.masks}')}"
        beside = "" if self.annotations is None else f" --annotations {shlex.quote(self.annotations)}"
        return shlex.quote(self.path) + beside + " --class-folders" * self.are_classes


def recognized(path: str, targets: TargetSources) -> tuple[str, TargetSources, str | None]:
    """Returns the source and the annotations or masks that a folder holds, and a line that says so; None for a folder
    that is read as it is: class folders, a flat folder or tars.

    Args:
        path: A source of any kind, of which only local folders are looked at.
        targets: The places of boxes and masks that are asked for.

    Raises:
        ChoiceError: if it may be read in several ways, with the commands to choose from.
    """
    if targets or is_remote(path) or not os.path.isdir(path):
        return path, targets, None
    root = path.rstrip("/") or "/"
    found = layouts(root)
    if not found:
        return path, targets, None
    if len(found) > 1:
        raise ChoiceError(*_question(root, found))
    first = found[0]
    pairs = () if first.masks is None else (("masks", first.masks),)
    targets = replace(targets, annotations=first.annotations, pairs=pairs)
    return first.path, targets, f"{root}: {first.kind}, as by: feeder shard {first.command()}"


def _question(root: str, found: Sequence[FolderLayout]) -> list[str]:
    """Returns the lines that name the ways to read a folder."""
    kinds = " or ".join(dict.fromkeys(each.kind for each in found if not each.are_classes))
    lines = [f"{root}: may be read in several ways ({kinds}); choose:"]
    base = os.path.abspath(root) if os.path.basename(root) in ("", ".", "..") else root
    paths = [each.path for each in found]
    for each in sorted(found, key=lambda each: "train" not in each.command()):
        beside = os.path.relpath(each.annotations or each.masks or root, root) if paths.count(each.path) > 1 else ""
        parts = re.findall(r"[A-Za-z0-9_]+", f"{os.path.splitext(os.path.relpath(each.path, root))[0]}/{beside}")
        out = "-".join([base, *(part for part in parts if part.lower() not in _PASSED_OVER), "shards"])
        lines.append(f"  feeder shard {each.command()} --out {shlex.quote(out)}")
    if len(_listed(root)[0]) > 1 and not any(each.are_classes for each in found):
        lines.append(f"  feeder shard {shlex.quote(root)} --class-folders  # if its folders are classes")
    return lines


def layouts(root: str) -> list[FolderLayout]:
    """Returns the ways to read a folder; none for one that is read as it is."""
    folders, files = _listed(root)
    if are_downloads(root, folders):
        return []
    found = _coco(root, folders, files) + _partners(root, folders)
    found = found or _tables(root, folders, files) or _splits(root, folders) or _unpaired(root, folders)
    if found or len(folders) != 1 or any(map(looks_like_image, files)):
        return found
    only = os.path.join(root, folders[0])
    is_own = folders[0].lower() in _IMAGES or any(map(is_tar, _listed(only)[1]))
    return layouts(only) or ([FolderLayout("one folder of samples", only)] if is_own else [])


def _listed(folder: str) -> tuple[list[str], list[str]]:
    """Returns the names of the folders and of the files in a folder, sorted, without those that are left out and sets
    that feeder has made; none of a folder that can't be listed."""
    folders: list[str] = []
    files: list[str] = []
    try:
        with scan_folder(folder) as entries:
            for each in entries:
                is_folder = each.is_dir()
                if not left_out(each.name, is_folder=is_folder) and not (is_folder and is_shard_set(each.path)):
                    (folders if is_folder else files).append(each.name)
    except OSError:  # its reader says so
        return [], []
    return sorted(folders), sorted(files)


def _coco(root: str, folders: Sequence[str], files: Sequence[str]) -> list[FolderLayout]:
    """Returns the ways to read images with COCO's JSON, in the folder itself or in one of annotations."""
    places = ["", *(name for name in folders if name.lower() in ("annotations", "annotation"))]
    listed = [(place, name) for place in places for name in (_listed(f"{root}/{place}")[1] if place else files)]
    found = []
    for path in (os.path.join(root, place, name) for place, name in listed):
        split = os.path.splitext(os.path.basename(path))[0].rpartition("_")[2]
        below = [os.path.join("images", split), *({split}.difference(places)), *_IMAGES]
        below += [""] * any(map(looks_like_image, files))
        images = next((each for each in below if os.path.isdir(os.path.join(root, each))), None)
        if images is not None and _is_coco(path):
            found.append(FolderLayout("COCO's images and annotations", os.path.join(root, images).rstrip("/"), path))
    return found


def _is_coco(path: str) -> bool:
    if not path.lower().endswith(".json") or os.path.basename(path).startswith(_NOT_COCO):
        return False
    with contextlib.suppress(OSError), open(path, "rb", opener=open_regular) as file:
        return _COCO.match(file.read(64 << 10)) is not None
    return False


def _partners(root: str, folders: Sequence[str]) -> list[FolderLayout]:
    """Returns the ways to read images with masks, or with annotations in a file each."""
    images = next((name for name in folders if name.lower() in _IMAGES), "")
    asked = [name for name in folders if _PARTNERS.fullmatch(name)] if images else []
    others = [os.path.join(name, each) for name in asked for each in ("", *_listed(os.path.join(root, name))[0])]
    splits = [name for name in _listed(os.path.join(root, images))[0] if images and is_split(name)]
    found = []
    for split, other in itertools.product(splits or [""], others or ["" if images == "" else images]):
        place, beside = (os.path.join(root, each, split).rstrip("/") for each in (images, other))
        found += _beside(place, beside)
    return found


def _beside(place: str, beside: str) -> list[FolderLayout]:
    """Returns the way to read images with the files of another folder, or of their own; [] if there is none."""
    stems = {os.path.splitext(name)[0]: name for name in _listed(place)[1] if looks_like_image(name)}
    names = _listed(beside)[1]
    endings = {ending.lower() for stem, ending in map(os.path.splitext, names) if stem in stems}
    if ".xml" in endings:
        return [FolderLayout("images and Pascal VOC's boxes", place, beside)]
    if ".txt" in endings and (place != beside or not {*CLASS_FILES, "data.yaml"}.isdisjoint(names)):
        return [FolderLayout("images and YOLO's boxes", place, beside)]

    masks = [name for name in names if looks_like_image(name) and place != beside]
    if any(os.path.splitext(name)[0] in stems for name in masks):
        return [FolderLayout("images and masks", place, masks=beside)]
    stem = max((each for each in stems for name in masks[:1] if name.startswith(each)), key=len, default=None)
    if stem is None:
        return []
    images, suffix = os.path.splitext(stems[stem])[1], masks[0][len(stem) :]
    return [FolderLayout("images and masks", f"{place}/*{images}", masks=f"{beside}/*{suffix}")]


def _unpaired(root: str, folders: Sequence[str]) -> list[FolderLayout]:
    """Returns the ways to read a folder of images beside one that is named as if it had their masks, and has none."""
    images = [os.path.join(root, name) for name in folders if name.lower() in _IMAGES]
    others = [os.path.join(root, name) for name in folders if _PARTNERS.fullmatch(name)]
    if len(images) != 1 or not others:
        return []
    kind = f"{', '.join(folders)}, without files of the same names"
    return [FolderLayout(kind, images[0]), *(FolderLayout(kind, images[0], masks=other) for other in others)]


def _tables(root: str, folders: Sequence[str], files: Sequence[str]) -> list[FolderLayout]:
    """Returns the tables in a folder that name or hold images, or the tars of splits."""
    tars = list(filter(is_tar, files))
    if tars:
        found = [] if folders else _by_split(root, tars)
        return [FolderLayout("tars of several splits", each) for each in found] if len(found) > 1 else []

    tables = [name for name in files if name.lower().endswith(MANIFEST_SUFFIXES)]
    own = [name for name in tables if os.path.splitext(name)[0].lower() == "metadata"]
    parquet = [name for name in tables if name.lower().endswith(".parquet") and not own]
    paths = [os.path.join(root, name) for name in own or tables if name not in parquet] + _by_split(root, parquet)
    kind = "a table that names or holds its images, others are left out"
    ways = [FolderLayout(kind, path) for path in paths if _has_images(path)]
    if (
        ways
        and not own
        and len(folders) > 1
        and not any(SPLIT.match(each) or each.lower() in _IMAGES for each in folders)
    ):
        ways.append(FolderLayout("class folders", root, are_classes=True))
    return ways


def _has_images(table: str) -> bool:
    """Returns whether a table's first rows name images, or hold them."""
    path = table if os.path.exists(table) else glob.glob(table)[0]
    try:
        rows = [row for row in itertools.islice(table_rows(path, []), _SNIFFED_ROWS) if isinstance(row, dict)]
    except (OSError, SourceError, UnicodeDecodeError, csv.Error):
        return False
    values = [value for row in rows[:1] for value in row.values()]
    has_bytes = any(isinstance(each, bytes) or (isinstance(each, dict) and "bytes" in each) for each in values)
    return has_bytes or bool(image_files(rows, folders_beside(os.path.dirname(path) or ".")))


def _by_split(root: str, names: Sequence[str]) -> list[str]:
    """Returns the files of each split, as a path or a pattern."""
    groups: dict[str, list[str]] = {}
    for name in names:
        match = SPLIT.match(name)
        groups.setdefault(match[0] if match else "", []).append(name)
    patterns = []
    for split, found in groups.items():
        pattern = f"{split}*{os.path.splitext(found[0])[1]}"
        patterns += [os.path.join(root, found[0])] if len(found) == 1 else [os.path.join(glob.escape(root), pattern)]
    return patterns


def _splits(root: str, folders: Sequence[str]) -> list[FolderLayout]:
    """Returns the ways to read the folders of a dataset's splits."""
    splits = [name for name in folders if is_split(name)]
    if len(splits) < 2 <= len(folders):
        splits = list(folders) if all(map(SPLIT.match, folders)) else []
    below = [os.path.join(root, name) for name in splits]
    kind = "the split" if len(below) == 1 else "the splits"
    kind = f"{kind} {', '.join(splits)}"
    return [way for path in below for way in layouts(path) or [FolderLayout(kind, path)]]
