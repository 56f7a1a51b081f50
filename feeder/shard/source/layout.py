"""The layout of a folder, by the names in it: no set is made of the wrong samples in silence."""

from __future__ import annotations

import contextlib
import csv
import glob
import itertools
import json
import os
import re
import shlex
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from feeder.errors import ChoiceError, SourceError
from feeder.shard.format.manifest import is_shard_set
from feeder.shard.source.box_files import has_boxes
from feeder.shard.source.class_folders import SPLIT, are_downloads, is_split
from feeder.shard.source.image_file import folders_beside, image_files, left_out, looks_like_image
from feeder.shard.source.table_file import MANIFEST_SUFFIXES
from feeder.shard.source.table_rows import table_rows
from feeder.shard.source.target_sources import TargetSources
from feeder.shard.source.tars import is_tar
from feeder.shard.store.url import is_remote
from feeder.system.files import open_regular, scan_folder

_IMAGES = re.compile(r"((jpeg)?image|img)s?(_?dir|tr|ts)?|leftimg8bit", re.IGNORECASE)
_PARTNERS = re.compile(
    r"(ann|annotation|gt|ground_?truth|label|mask|trimap|xml|segmentation(class|object)?)s?(_?dir|tr|ts)?",
    re.IGNORECASE,
)
_VALIDATION = re.compile(r"ILSVRC\d+_val_\d+")
_PASSED_OVER = re.compile(rf"{_IMAGES.pattern}|annotations|data|imagesets|json|main|segmentation", re.IGNORECASE)
_NAME_LISTS = ("train.txt", "trainval.txt", "val.txt", "test.txt")  # Pascal VOC's lists
_FILE_NAME = re.compile(rb'"file_name"\s*:\s*("(?:[^"\\]|\\.)*")')
_VALUE = r'(?:"[^"]*"|[-+.\w]+|\{[^{}]*\}|\[[^\[\]]*\])'  # a flat one
_COCO = re.compile(
    rf'\s*\{{\s*(?:"[^"]*"\s*:\s*{_VALUE}\s*,\s*)*"(info|licenses|images|annotations|categories|type)"'.encode()
)
_NOT_COCO = ("image_info", "panoptic", "stuff_image_info")
_SNIFFED_BYTES = 64 << 10
_SNIFFED_FOLDERS = 100
_SNIFFED_NAMES = 5
_SNIFFED_ROWS = 100


class FolderLayout(NamedTuple):
    """A way to read a folder, as the options of ``feeder shard`` name it.

    Attributes:
        kind: What is seen, in words.
        path: The source.
        annotations: COCO's JSON, or a folder of annotations.
        masks: The masks of the images ``path``.
        names: File with the names of the samples to take.
        are_classes: True to take its folders as classes, whatever their names.
        has_labels: False to take its images without labels, whatever its folders.
    """

    kind: str
    path: str
    annotations: str | None = None
    masks: str | None = None
    names: str | None = None
    are_classes: bool = False
    has_labels: bool = True

    def command(self) -> str:
        """Returns the options of ``feeder shard`` that name it."""
        places = [self.path] if self.masks is None else ["--pair", f"images={self.path}", f"masks={self.masks}"]
        for option, place in (("--annotations", self.annotations), ("--names", self.names)):
            places += [] if place is None else [option, place]
        return shlex.join(places) + " --class-folders" * self.are_classes + " --no-labels" * (not self.has_labels)


def recognized(path: str, targets: TargetSources, *, has_labels: bool) -> tuple[str, TargetSources, str | None]:
    """Returns the source and the annotations or masks that a folder holds, and a line that says so; None for a folder
    that is read as it is: class folders, a flat folder or tars.

    Args:
        path: A source of any kind, of which only local folders are looked at.
        targets: The places of boxes and masks that are asked for.
        has_labels: False if the images are wanted without labels.

    Raises:
        ChoiceError: if it may be read in several ways, with the commands to choose from.
    """
    if targets or is_remote(path) or not os.path.isdir(path):
        return path, targets, None
    root = path.rstrip("/") or "/"
    found = layouts(root, has_labels=has_labels)
    if not found:
        return path, targets, None
    if len(found) > 1 or (has_labels and not found[0].has_labels):
        raise _question(root, found)
    first = found[0]
    pairs = () if first.masks is None else (("masks", first.masks),)
    targets = replace(targets, annotations=first.annotations, pairs=pairs, names=first.names)
    return first.path, targets, f"{root}: {first.kind}, as by: feeder shard {first.command()}"


def _question(root: str, found: Sequence[FolderLayout]) -> ChoiceError:
    """Returns the error that names the ways to read a folder."""
    kinds = " or ".join(dict.fromkeys(each.kind for each in found if not each.are_classes))
    found = sorted(found, key=lambda each: "train" not in each.command())
    paths = [each.path for each in found]
    outs = [_out(root, each, is_short=paths.count(each.path) == 1) for each in found]
    if len({*outs}) < len(found):
        outs = [_out(root, each, passed_over=None) for each in found]
    ways = [(each.command(), shlex.quote(out)) for each, out in zip(found, outs, strict=True)]
    if len(_listed(root)[0]) > 1 and not any(each.are_classes for each in found):
        ways.append((f"{shlex.quote(root)} --class-folders", ""))
        kinds += " or class folders"
    if len(ways) == 1:
        return ChoiceError(f"{root}: {kinds}; list their labels in a manifest (docs/sources.md), or take none:", ways)
    return ChoiceError(f"{root}: may be read in several ways ({kinds}); choose:", ways)


def _out(
    root: str, way: FolderLayout, *, is_short: bool = False, passed_over: re.Pattern[str] | None = _PASSED_OVER
) -> str:
    """Returns an output folder beside the folder, named by the parts of the way's paths; a short one by the images'."""
    base = os.path.abspath(root) if os.path.basename(root) in ("", ".", "..") else root
    places = (way.path, *(() if is_short else (way.annotations or way.masks, way.names)))
    stems = [os.path.splitext(os.path.relpath(place, root))[0] for place in places if place is not None]
    parts = dict.fromkeys(re.findall(r"[A-Za-z0-9]+(?:_[A-Za-z0-9]+)*", "/".join(stems)))
    own = [part for part in parts if passed_over is None or not passed_over.fullmatch(part)]
    return "-".join([base, *own, "shards"])


def layouts(root: str, *, has_labels: bool = True) -> list[FolderLayout]:
    """Returns the ways to read a folder; none for one that is read as it is.

    Args:
        root: The folder.
        has_labels: False if its images are wanted without labels.
    """
    folders, files = _listed(root)
    if are_downloads(root, folders):
        return []
    found = _cities(root) if has_labels else []
    found = found or _benchmarks(root, folders) or _coco(root, folders, files) + _partners(root, folders)
    found = found or _tables(root, folders, files) or _splits(root, folders) or _unpaired(root, folders)
    found = found or _several(root, folders) or (_unlabelled(root, files) if has_labels and not folders else [])
    if found or len(folders) != 1 or any(map(looks_like_image, files)):
        return found
    only = os.path.join(root, folders[0])
    is_own = _IMAGES.fullmatch(folders[0]) or any(map(is_tar, _listed(only)[1]))
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


def _benchmarks(root: str, folders: Sequence[str]) -> list[FolderLayout]:
    """Returns the ways to read Cityscapes, ImageNet as the challenge and Kaggle have it, and Pascal VOC's devkit."""
    if {"Data", "ImageSets"}.issubset(folders):
        tasks = [os.path.join(root, "Data", name) for name in _listed(os.path.join(root, "Data"))[0]]
        return [way for task in tasks for way in layouts(task) or [FolderLayout("the images of ImageSets", task)]]

    known = next((name for name in folders if name in ("ILSVRC", "VOCdevkit")), None)
    if known is not None and len(folders) > 1:
        return layouts(os.path.join(root, known))

    return _cityscapes(root, folders)


def _cityscapes(root: str, folders: Sequence[str]) -> list[FolderLayout]:
    """Returns the ways to read Cityscapes: a set for each split."""
    found = []
    images = os.path.join(root, "leftImg8bit")
    for name, split in itertools.product(folders, _listed(images)[0]):
        if name.startswith("gt") and os.path.isdir(os.path.join(root, name, split)):
            masks = os.path.join(root, name, split, f"*_{name}_labelIds.png")
            path = os.path.join(images, split, "*_leftImg8bit.png")
            found.append(FolderLayout("images and masks of Cityscapes", path, masks=masks))
    return found


def _cities(root: str) -> list[FolderLayout]:
    """Returns the ways to read Cityscapes' images or masks, whose folders are cities and no classes."""
    above = os.path.dirname(os.path.abspath(root))
    found = []
    for outer in (above, os.path.dirname(above)):
        ways = _cityscapes(outer, _listed(outer)[0]) if os.path.isdir(os.path.join(outer, "leftImg8bit")) else []
        found += [way for way in ways if os.path.join(os.path.abspath(root), "") in f"{way.path}:{way.masks}"]
    if os.path.basename(above) == "leftImg8bit":
        found.append(FolderLayout("images of Cityscapes alone", root, has_labels=False))
    return found


def _unlabelled(root: str, files: Sequence[str]) -> list[FolderLayout]:
    """Returns the way to read validation images without class folders, of a set that has these for training."""
    above, name = os.path.split(os.path.abspath(root))
    split = SPLIT.match(name)
    is_validation = split is not None and split[1].lower().startswith("val")
    training = os.path.join(above, f"train{name[split.end(1) :]}" if split else "")
    has_classes = is_validation and len(_listed(training)[0]) > 1
    image = next(filter(looks_like_image, files), None)
    is_found = image is not None and (has_classes or _VALIDATION.match(image) is not None)
    return [FolderLayout("validation images without class folders", root, has_labels=False)] if is_found else []


def _coco(root: str, folders: Sequence[str], files: Sequence[str]) -> list[FolderLayout]:
    """Returns the ways to read images with COCO's JSON, in the folder itself or in one of annotations."""
    places = ["", *(name for name in folders if name.lower() in ("annotations", "annotation"))]
    listed = [(place, name) for place in places for name in (_listed(f"{root}/{place}")[1] if place else files)]
    found: list[FolderLayout] = []
    lost: list[FolderLayout] = []
    for path in (os.path.join(root, place, name) for place, name in listed):
        names = _coco_files(path)
        split = os.path.splitext(os.path.basename(path))[0].rpartition("_")[2]
        below = [os.path.join("images", split), *({split}.difference(places)), *filter(_IMAGES.fullmatch, folders)]
        usual = [os.path.join(root, each) for each in below if os.path.isdir(os.path.join(root, each))]
        own = [each for each in (*usual, root) if any(os.path.isfile(os.path.join(each, name)) for name in names or ())]
        usual += [root] * any(map(looks_like_image, files))
        if names is not None and (own or usual):
            way = FolderLayout("COCO's images and annotations", (own or usual)[0], path)
            (found if own or not names else lost).append(way)
    kind = "COCO's annotations without their images"
    return found or [way._replace(kind=kind) for each in lost for way in (each._replace(annotations=None), each)]


def _coco_files(path: str) -> list[str] | None:
    """Returns the first images that COCO's JSON names, as far as they stand at its beginning; None for other files."""
    if not path.lower().endswith(".json") or os.path.basename(path).startswith(_NOT_COCO):
        return None
    with contextlib.suppress(OSError, ValueError), open(path, "rb", opener=open_regular) as file:
        text = file.read(_SNIFFED_BYTES)
        names = itertools.islice(_FILE_NAME.finditer(text), _SNIFFED_NAMES)
        return [json.loads(name[1]) for name in names] if _COCO.match(text) else None
    return None


def _partners(root: str, folders: Sequence[str]) -> list[FolderLayout]:
    """Returns the ways to read images with masks, or with annotations in a file each."""
    found = list(filter(_IMAGES.fullmatch, folders))
    if len(found) > 1:
        return []
    images = "".join(found)
    asked = [name for name in folders if _PARTNERS.fullmatch(name)] if images else []
    others = [os.path.join(name, each) for name in asked for each in ("", *_listed(os.path.join(root, name))[0])]
    splits = [name for name in _listed(os.path.join(root, images))[0] if images and is_split(name)]
    ways = []
    for split, other in itertools.product(splits or [""], others or ["" if images == "" else images]):
        place, beside = (os.path.join(root, each, split).rstrip("/") for each in (images, other))
        ways += [each._replace(names=names) for each in _beside(place, beside) for names in _name_lists(root, each)]
    return ways


def _name_lists(root: str, way: FolderLayout) -> list[str | None]:
    """Returns the files that name the samples of Pascal VOC's splits, and None to take all that have boxes."""
    folder = os.path.join(root, "ImageSets", "Main" if way.masks is None else "Segmentation")
    lists = [os.path.join(folder, name) for name in _NAME_LISTS if os.path.isfile(os.path.join(folder, name))]
    return [*lists] if lists and way.masks is not None else [*lists, None]


def _beside(place: str, beside: str) -> list[FolderLayout]:
    """Returns the ways to read images with the files of another folder, or of their own."""
    stems = {os.path.splitext(name)[0]: name for name in _listed(place)[1] if looks_like_image(name)}
    names = _listed(beside)[1]
    endings = {ending.lower() for stem, ending in map(os.path.splitext, names) if stem in stems}
    if ".xml" in endings:
        return [FolderLayout("images and Pascal VOC's boxes", place, beside)]
    texts = (name for name in names if name.lower().endswith(".txt") and os.path.splitext(name)[0] in stems)
    if ".txt" in endings and (place != beside or has_boxes(place, texts)):
        return [FolderLayout("images and YOLO's boxes", place, beside)]

    masks = [name for name in names if looks_like_image(name) and place != beside]
    if any(os.path.splitext(name)[0] in stems for name in masks):
        return [FolderLayout("images and masks", place, masks=beside)]
    stem = max((each for each in stems for name in masks[:1] if name.startswith(each)), key=len, default=None)
    if stem is None:
        return []
    images = os.path.splitext(stems[stem])[1]
    further = [each for each in stems if len(each) > len(stem) and each.startswith(stem)]
    own = [name for name in masks if name.startswith(stem) and not name.startswith(tuple(further))]
    suffixes = [name[len(stem) :] for name in own]
    return [FolderLayout("images and masks", f"{place}/*{images}", masks=f"{beside}/*{each}") for each in suffixes]


def _unpaired(root: str, folders: Sequence[str]) -> list[FolderLayout]:
    """Returns the ways to read a folder of images beside others that are not clearly those of their masks."""
    images = [os.path.join(root, name) for name in folders if _IMAGES.fullmatch(name)]
    if not images or len(folders) == 1:
        return []
    others = [os.path.join(root, name) for name in folders if not _IMAGES.fullmatch(name)]
    others = [each for each in others if _PARTNERS.fullmatch(os.path.basename(each)) or _holds_images(each)]
    kind = f"{', '.join(folders)}" if others or len(images) > 1 else "the only one of its folders with images"
    ways = [FolderLayout(kind, each) for each in images]
    for place, other in itertools.product(images, others):
        ways += _beside(place, other) or [FolderLayout(kind, place, masks=other)]
    return ways


def _holds_images(folder: str) -> bool:
    """Returns whether one of the first folders below a folder, or itself, has images."""
    return any(any(map(looks_like_image, names)) for *_, names in itertools.islice(os.walk(folder), _SNIFFED_FOLDERS))


def _several(root: str, folders: Sequence[str]) -> list[FolderLayout]:
    """Returns the ways to read folders of which each is a dataset, as Pascal VOC's years, if the first is one."""
    first = os.path.join(root, folders[0]) if len(folders) > 1 else ""
    below = _listed(first)[0] if first else []
    if not any(map(_IMAGES.fullmatch, below)) or not _partners(first, below):
        return []
    return [way for name in folders for way in layouts(os.path.join(root, name))]


def _tables(root: str, folders: Sequence[str], files: Sequence[str]) -> list[FolderLayout]:
    """Returns the tables in a folder that name or hold images, or the tars of splits."""
    tars = list(filter(is_tar, files))
    if tars:
        found = [] if folders else by_split(root, tars)
        return [FolderLayout("tars of several splits", each) for each in found] if len(found) > 1 else []

    tables = [name for name in files if name.lower().endswith(MANIFEST_SUFFIXES)]
    own = [name for name in tables if os.path.splitext(name)[0].lower() == "metadata"]
    parquet = [name for name in tables if name.lower().endswith(".parquet") and not own]
    paths = [os.path.join(root, name) for name in own or tables if name not in parquet] + by_split(root, parquet)
    kind = "a table that names or holds its images, others are left out"
    ways = [FolderLayout(kind, path) for path in paths if _has_images(path)]
    if (
        ways
        and not own
        and len(folders) > 1
        and not any(SPLIT.match(each) or _IMAGES.fullmatch(each) for each in folders)
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


def by_split(root: str, names: Sequence[str]) -> list[str]:
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
    kind = f"the split{'s' * (len(below) > 1)} {', '.join(splits)}"
    return [way for path in below for way in layouts(path) or [FolderLayout(kind, path)]]
