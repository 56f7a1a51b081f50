"""Pascal VOC's annotations: an XML file for each image, with boxes and class names."""

from __future__ import annotations

import math
import os
from typing import Any
from xml.etree import ElementTree

from feeder.errors import SourceError
from feeder.shard.source.coco import BOXES
from feeder.shard.source.json_field import json_field
from feeder.shard.source.pairs import Tree, paired, read_names
from feeder.shard.source.source import Source, SourceKind
from feeder.shard.source.spool import Spool
from feeder.system.files import read_regular
from feeder.system.text import count

_SIDES = ("xmin", "ymin", "xmax", "ymax")


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
    found = []
    early = 0
    classes: set[str] = set()
    others = {"annotations": Tree.of(annotations)._replace(extension=".xml")}

    for _, image, files in paired(source, tree, others, read_names(names)):
        try:
            boxes = _read(os.path.join(tree.folder, files["annotations"].path))
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


def _read(path: str) -> dict[str, list[Any]]:
    """Returns the content of ``boxes.json``, with class names as labels.

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
    return found | {tag: [_value(each.findtext(tag)) for each in objects] for tag in further}


def _value(text: str | None) -> int | str | None:
    """Returns the value of an element; an int for digits, None where there is no element."""
    return int(text) if text is not None and text.strip().isdecimal() else text
