"""Boxes in a file for each image: YOLO's text, with a line for each box, and Pascal VOC's XML, with class names."""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import re
from collections.abc import Iterable, Sequence
from typing import Any
from xml.etree import ElementTree

from feeder.decoders.image_header import image_info
from feeder.errors import SourceError
from feeder.shard.source.coco import BOXES
from feeder.shard.source.folder import ListedFile
from feeder.shard.source.image_file import read_image
from feeder.shard.source.json_field import json_field
from feeder.shard.source.pairs import Tree, paired, read_names
from feeder.shard.source.source import Source, SourceKind, Spool
from feeder.system.files import open_regular, read_regular
from feeder.system.text import count

_CLASS_FILE = re.compile(r"classes\.txt|.*\.(names|labels)")  # a class a line, as labelImg and darknet have them
_BOX = re.compile(rb"\s*\d+(\s+[-+.\de]+){4,}\s*")
_SNIFFED = 20
_LONGEST_LINE = 10_000
_NAMES = re.compile(
    r"^names[ \t]*:[ \t]*(?:#[^\n]*)?(\[[^\]]*\]|\{[^}]*\}|(?:\r?\n[ \t]*(?:-|\d+[ \t]*:|#)[^\n]*)+)", re.MULTILINE
)
_NAME = re.compile(r"(?:-\s*|(\d+)\s*:\s*)?(?:\"([^\"]*)\"|'([^']*)'|([^'\"#]+?))\s*(?:#.*)?")
_SIDES = ("xmin", "ymin", "xmax", "ymax")  # the elements of VOC's <bndbox>, in this order


def are_yolo(folder: str) -> bool:
    """Returns True if a folder of annotations has text files, as YOLO writes them, and no XML."""
    endings = {os.path.splitext(name)[1].lower() for *_, names in os.walk(folder) for name in names}
    return ".txt" in endings and ".xml" not in endings


def has_boxes(folder: str, names: Iterable[str]) -> bool:
    """Returns True if one of the first 20 text files in a folder starts with a line of YOLO's.

    Args:
        folder: The folder.
        names: Names of text files in it.
    """
    for name in itertools.islice(names, _SNIFFED):
        path = os.path.join(folder, name)
        with contextlib.suppress(OSError), open(path, "rb", opener=open_regular) as file:
            if _BOX.fullmatch(file.readline(_LONGEST_LINE)):
                return True
    return False


def open_yolo(
    images: str, annotations: str, spool_path: str, names: str | None, *, skip_unreadable: bool = False
) -> Source:
    """Lists images and the text files with the same names. Each sample gets ``boxes.json``: boxes as (left, top, right,
    bottom), in pixels of the upright image, and labels. An image without a text file has no boxes.

    The classes' names are those of the first ``classes.txt``, ``*.names``, ``*.labels`` or YAML file with ``names`` in
    the folder of the annotations or one of the two above it.

    Args:
        images: Folder of the images.
        annotations: Folder of the text files, which may be that of the images.
        spool_path: Scratch file.
        names: See :func:`read_names`.
        skip_unreadable: True to reject unreadable folders.

    Raises:
        SourceError: if a folder can't be listed, or the classes' names can't be read.
    """
    tree = Tree.of(images)
    source = Source(SourceKind.ANNOTATED_IMAGES, tree.folder, skip_unreadable=skip_unreadable)
    source.classes = _class_names(annotations, source)
    others = {"annotations": Tree.of(annotations)._replace(extension=".txt")}
    bare = 0

    with Spool(source, spool_path) as spool:
        for _, image, files in paired(source, tree, others, read_names(names), are_optional=True):
            bare += not files
            try:
                found = _yolo_boxes(tree.folder, image, files.get("annotations"), source.classes)
            except ValueError as error:
                source.reject(image.path, str(error))
                continue
            field = spool.add(BOXES, json_field(found))
            source.table.add(os.fsencode(image.path), image.size_bytes + field.length, image.mtime_ns, -1, [field])

    # A list of class names among the labels belongs to no image: it is not a bad one.
    source.rejected = [
        each._replace(bad=False) if _CLASS_FILE.fullmatch(os.path.basename(each.path)) else each
        for each in source.rejected
    ]
    if bare:
        source.notes.append(f"{annotations}: {count(bare, 'image')} without a text file: no boxes")
    return source


def _yolo_boxes(
    folder: str, image: ListedFile, labels: ListedFile | None, classes: Sequence[str] | None
) -> dict[str, list[list[float]] | list[int]]:
    """Returns the content of ``boxes.json`` by a YOLO file; without boxes if there is none.

    Raises:
        ValueError: saying what is wrong with the image or its text file.
    """
    boxes: list[list[float]] = []
    numbers: list[int] = []
    if labels is None:
        return {"boxes": boxes, "labels": numbers}

    height, width = image_info(read_image(os.path.join(folder, image.path))).upright_size
    with open(os.path.join(folder, labels.path), encoding="utf-8-sig", opener=open_regular) as file:
        lines = [line.split() for line in file]
    for number, values in enumerate(lines, 1):
        if not values:
            continue
        label, x, y, w, h = _yolo_box(values, f"{os.path.basename(labels.path)}, line {number}")
        if classes is not None and label >= len(classes):
            raise ValueError(
                f"{os.path.basename(labels.path)}, line {number}: class {label}, of {len(classes)} classes"
            )
        sides = (x - w / 2, y - h / 2, x + w / 2, y + h / 2)
        boxes.append(
            [round(min(max(side, 0), 1) * size, 3) for side, size in zip(sides, 2 * (width, height), strict=True)]
        )
        numbers.append(int(label))
    return {"boxes": boxes, "labels": numbers}


def _yolo_box(values: Sequence[str], place: str) -> tuple[int, float, float, float, float]:
    """Returns (class, x, y, width, height) of a line of YOLO's: center and size as shares of the image's sides.

    Raises:
        ValueError: saying what is wrong with the line.
    """
    if len(values) > 5:
        raise ValueError(f"{place}: {len(values)} values, of a polygon or key points: only boxes are read, of 5 values")
    try:
        label, (x, y, w, h) = int(values[0]), map(float, values[1:])
        if label < 0 or not all(0 <= each <= 1 for each in (x, y, w, h)):
            raise ValueError
    except ValueError:
        shown = " ".join(values)[:60]
        raise ValueError(
            f"{place}: expected class x y width height, all but the class from 0 to 1, got {shown}"
        ) from None
    return label, x, y, w, h


def _class_names(annotations: str, source: Source) -> list[str] | None:
    """Returns the class names in the folder of the annotations or one of the two above it; None if there are none."""
    folder = os.path.abspath(annotations)
    for _ in range(3):
        for name in sorted(os.listdir(folder)):
            path = os.path.join(folder, name)
            is_list = _CLASS_FILE.fullmatch(name) is not None
            if not is_list and not name.endswith((".yaml", ".yml")):
                continue
            with open(path, encoding="utf-8-sig", errors="surrogateescape", opener=open_regular) as file:
                text = file.read()
            lines = [line.strip() for line in text.splitlines()]
            names = list(filter(None, lines)) if is_list else _names_in_yaml(path, text)
            if names:
                source.notes.append(f"{path}: names the {count(len(names), 'class', 'classes')}")
                return names
        folder = os.path.dirname(folder)
    source.notes.append(f"{annotations}: no data.yaml or classes.txt beside it names the classes; labels are numbers")
    return None


def _names_in_yaml(path: str, text: str) -> list[str]:
    """Returns the list or mapping ``names`` of a YAML file; [] if it has none."""
    found = _NAMES.search(text)
    if found is None:
        return []
    parts = found[1][1:-1].split(",") if found[1][0] in "[{" else found[1].splitlines()
    names: list[str] = []
    for part in filter(None, (part.strip() for part in parts)):
        match = _NAME.fullmatch(part)
        if match is None or int(match[1] or len(names)) != len(names):
            if part.startswith("#"):
                continue
            raise SourceError(
                f"{path}: {part[:40]!r} among the names of classes is none that feeder reads: quote it, "
                "number them from 0 on, or write them into classes.txt in the folder of the labels, a line each"
            )
        names.append(match[2] or match[3] or match[4])
    return names


def open_voc(
    images: str, annotations: str, spool_path: str, names: str | None, *, skip_unreadable: bool = False
) -> Source:
    """Lists images and the XML files with the same names. Each sample gets ``boxes.json``: boxes as (left, top, right,
    bottom), labels by the sorted names of the classes, and what else the objects have, such as ``difficult``:
    the same lists for all images.

    VOC counts pixels from 1 and names the last one inside, so a box that starts in the first column has ``left`` 0. A
    box that starts before it is clipped, and counted in a note.

    Args:
        images: Folder of the images.
        annotations: Folder of the XML files, which may be that of the images.
        spool_path: Scratch file.
        names: See :func:`read_names`.
        skip_unreadable: True to reject unreadable folders and files.

    Raises:
        SourceError: if a folder can't be listed.
    """
    tree = Tree.of(images)
    source = Source(SourceKind.ANNOTATED_IMAGES, tree.folder, skip_unreadable=skip_unreadable)
    others = {"annotations": Tree.of(annotations)._replace(extension=".xml")}
    found = []
    early = 0
    classes: set[str] = set()

    for _, image, files in paired(source, tree, others, read_names(names)):
        try:
            boxes = _voc_boxes(os.path.join(tree.folder, files["annotations"].path))
        except ValueError as error:
            source.reject(image.path, f"{files['annotations'].path}: {error}")
            continue
        classes.update(boxes["labels"])
        early += sum(min(box) < 0 for box in boxes["boxes"])
        boxes["boxes"] = [[max(side, 0) for side in box] for box in boxes["boxes"]]
        found.append((image, boxes))

    if early:
        source.notes.append(
            f"{annotations}: {count(early, 'box', 'boxes')} clipped, as VOC counts pixels from 1, and they start "
            "before that. If the tool that wrote them counts from 0, all boxes are a pixel off: write COCO's JSON"
        )

    # Classes are numbered, and lists made alike for all images, once all files are read.
    source.classes = sorted(classes)
    numbers = {name: label for label, name in enumerate(source.classes)}
    lists = list(dict.fromkeys(name for _, boxes in found for name in boxes))

    with Spool(source, spool_path) as spool:
        for image, boxes in found:
            boxes = {name: boxes.get(name, [None] * len(boxes["boxes"])) for name in lists}
            field = spool.add(BOXES, json_field(boxes | {"labels": [numbers[name] for name in boxes["labels"]]}))
            source.table.add(os.fsencode(image.path), image.size_bytes + field.length, image.mtime_ns, -1, [field])
    return source


class _Builder(ElementTree.TreeBuilder):
    """Builds the tree of an XML file, in any encoding, unless it has a document type."""

    def doctype(self, name: str, public_id: str | None, system: str | None) -> None:
        """Refuses the document type, whose entities may grow without end."""
        raise ValueError("it has a document type, which annotations do not need")


def _voc_boxes(path: str) -> dict[str, list[Any]]:
    """Returns the content of ``boxes.json`` by a VOC file, with class names as labels.

    Raises:
        SourceError: if the file can't be read.
        ValueError: saying what is wrong in it.
    """
    try:
        data = read_regular(path)
    except OSError as error:
        raise SourceError(f"{path}: can't be read: {error.strerror}") from None

    try:
        root = ElementTree.fromstring(data, ElementTree.XMLParser(target=_Builder()))
    except ElementTree.ParseError as error:
        raise ValueError(f"not XML: {error}") from None

    objects = root.findall("object")
    if not objects and root.tag != "annotation":
        raise ValueError(f"expected VOC's <annotation> with an <object> for each box, got <{root.tag}>")
    found: dict[str, list[Any]] = {"boxes": [], "labels": []}
    further = dict.fromkeys(
        child.tag for each in objects for child in each if child.tag not in ("name", *found) and not len(child)
    )

    for number, each in enumerate(objects):
        name = (each.findtext("name") or "").strip()
        if not name:
            raise ValueError(f"object {number} has no name")

        sides = [each.findtext(f"bndbox/{side}") for side in _SIDES]
        try:
            left, top, right, bottom = (float(side or "") for side in sides)
            if not all(map(math.isfinite, (left, top, right, bottom))):
                raise ValueError
            if right < max(left, 1) or bottom < max(top, 1):
                raise ValueError
        except ValueError:
            raise ValueError(f"object {number}: expected a bndbox with {', '.join(_SIDES)}, got {sides}") from None

        found["boxes"].append([left - 1, top - 1, right, bottom])
        found["labels"].append(name)
    return found | {tag: [_voc_value(each.findtext(tag)) for each in objects] for tag in further}


def _voc_value(text: str | None) -> int | str | None:
    """Returns the value of an element; an int for digits, None where there is no element."""
    return int(text) if text is not None and text.strip().isdecimal() else text
