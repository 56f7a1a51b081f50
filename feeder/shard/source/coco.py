"""COCO's JSON of instances, keypoints or captions, for a folder of images."""

from __future__ import annotations

import io
import json
import math
import os
import posixpath
import urllib.parse
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from feeder.decoders.decoder import MAX_PIXELS
from feeder.errors import ArgumentError, SourceError
from feeder.shard.source.image_file import file_status
from feeder.shard.source.json_field import json_field
from feeder.shard.source.labels import as_number
from feeder.shard.source.pairs import read_names
from feeder.shard.source.source import Source, SourceKind, Spool, drop_duplicates
from feeder.system.arrays import Bools
from feeder.system.files import read_regular
from feeder.system.text import BOM, count

BOXES = "boxes.json"
CAPTIONS = "txt"
KEYPOINTS = "kp.json"
SEGMENTATION = "segmentation.json"
INSTANCES = "instances.png"
_TAKEN = ("bbox", "image_id", "keypoints", "segmentation")
_MOST_BYTE = 255
_MOST_BITS = 60

Annotation = dict[str, Any]


def open_coco(
    images: str, annotations: str, spool_path: str, names: str | None = None, *, instance_masks: bool = False
) -> Source:
    """Lists the images of COCO's JSON. Each gets ``boxes.json``: boxes as (left, top, right, bottom), labels, and the
    annotations' further values, and the image's id; and ``kp.json`` if the file has keypoints, those of each box with
    their visibility.
    With a file of captions each image gets ``txt``, a line for each caption.

    Args:
        images: Folder of the images.
        annotations: The JSON file.
        spool_path: Scratch file.
        names: See :func:`read_names`.
        instance_masks: True for ``instances.png``, whose pixels are the places of the objects in the lists, from 1 on,
            and 0 where there is none; smaller objects cover larger ones. An object without a segmentation has its box
            and no pixels. False for ``segmentation.json``, a list of what the file has for each object.

    Raises:
        SourceError: if the file is no such JSON, or a folder is missing, or masks are wanted of a file without any.
        ArgumentError: if the masks need a package that is not installed.
    """
    rasterize = _rasterizer() if instance_masks else None
    if not os.path.isdir(images):
        raise SourceError(f"{images}: no such folder; the folder of the images is given beside {annotations}")
    data, shown = _read(annotations), os.path.basename(annotations)
    source = Source(SourceKind.ANNOTATED_IMAGES, images)
    source.add_container(os.path.abspath(annotations))
    classes, labels = _classes(data, annotations, source)
    wanted = read_names(names)
    objects = _objects(data, annotations, source)
    if rasterize is not None and data["annotations"] and all(map(_is_bare, data["annotations"])):
        raise SourceError(f"{annotations}: no annotation has a segmentation to make masks of; leave the masks out")

    are_captions = _are_captions(data)
    source.classes = None if are_captions else classes
    fields = None if are_captions else _Fields(data["annotations"], labels, rasterize)
    with Spool(source, spool_path) as spool:
        for image in data["images"]:
            path, own = image["file_name"], objects[image["id"]]
            if wanted is not None and os.path.splitext(path)[0] not in wanted:
                continue
            try:
                status = file_status(images, path)
                found = [(CAPTIONS, _lines(own))] if fields is None else fields.of(image, own)
            except ValueError as error:
                source.reject(path, str(error))
                continue
            stored = [spool.add(*field) for field in found]
            size = status.st_size + sum(field.length for field in stored)
            source.table.add(os.fsencode(path), size, status.st_mtime_ns, -1, stored)

    listed = {os.path.splitext(image["file_name"])[0] for image in data["images"]}
    for name in sorted((wanted or set()) - listed):
        source.reject(name, f"is wanted, but has no image in {shown}")
    source.notes += [] if fields is None else [f"{shown}: {note}" for note in fields.notes()]
    drop_duplicates(source, os.path.normpath, "duplicate path")
    return source


class _Fields:
    """Makes the fields of images that have objects, and counts what was done to these.

    Args:
        annotations: All annotations of the file.
        labels: The label of each category.
        rasterize: Makes ``instances.png``; None for ``segmentation.json``.
    """

    def __init__(self, annotations: Sequence[Annotation], labels: Mapping[int | str, int], rasterize: Any) -> None:
        self._labels = labels
        self._rasterize = rasterize
        self._further = list(dict.fromkeys(key for each in annotations for key in each if key not in _TAKEN))
        keypoints = [each["keypoints"] for each in annotations if each.get("keypoints")]
        self._has_points = bool(keypoints)
        self._points_each = next((len(flat) // 3 for flat in keypoints if _are_triples(flat)), 0)
        self._bare = self._short = self._early = 0

    def of(self, image: Mapping[str, Any], objects: Sequence[Annotation]) -> list[tuple[str, bytes]]:
        """Returns names and bytes of the fields of an image.

        Raises:
            ValueError: naming the annotation that is wrong.
        """
        found = _boxes(objects, self._labels, self._further) | {"image_id": image["id"]}
        early = sum(min(box) < 0 for box in found["boxes"])
        found["boxes"] = [[max(side, 0) for side in box] for box in found["boxes"]]
        if self._rasterize is None:
            fields = [(SEGMENTATION, json_field([each.get("segmentation") for each in objects]))]
        else:
            found["instance"] = list(range(1, len(found["boxes"]) + 1))
            fields = [(INSTANCES, self._rasterize(objects, image))]
        if self._has_points:
            same = {key: found[key] for key in ("labels", "id", "category_id", "image_id") if key in found}
            fields.append((KEYPOINTS, json_field(_points(objects, self._points_each) | same)))
        fields.append((BOXES, json_field(found)))

        self._early += early
        self._bare += sum(map(_is_bare, objects))
        self._short += sum(map(_short_polygons, objects))
        return fields

    def notes(self) -> Iterator[str]:
        """Yields what was done to the objects."""
        if self._rasterize is not None and self._bare:
            yield f"{count(self._bare, 'object')} without a segmentation: in {BOXES}, not in {INSTANCES}"
        if self._rasterize is not None and self._short:
            yield f"{count(self._short, 'polygon')} of fewer than three points: not in {INSTANCES}"
        if self._early:
            yield f"{count(self._early, 'box', 'boxes')} clipped, because of sides outside of the image"


def _classes(data: dict[str, Any], annotations: str, source: Source) -> tuple[list[str], dict[Any, int]]:
    """Returns the names of the classes, and labels by the ids of categories; notes names that several have."""
    categories = sorted(
        data.get("categories", []), key=lambda category: (isinstance(category["id"], str), category["id"])
    )
    names_by_id: dict[Any, str] = {}
    for category in categories:
        name = names_by_id.setdefault(category["id"], category["name"])
        if name != category["name"]:
            raise SourceError(
                f"{annotations}: the categories {name!r} and {category['name']!r} have the same id {category['id']!r}"
            )

    classes = list(dict.fromkeys(names_by_id.values()))
    for name in classes if len(classes) < len(names_by_id) else ():
        if len(ids := [str(number) for number, each in names_by_id.items() if each == name]) > 1:
            shown = os.path.basename(annotations)
            source.notes.append(f"{shown}: the categories {', '.join(ids)} are all named {name!r}: one class")
    return classes, {number: classes.index(name) for number, name in names_by_id.items()}


def _objects(data: dict[str, Any], annotations: str, source: Source) -> dict[Any, list[Annotation]]:
    """Returns the annotations of each image, by its id; rejects those of other images."""
    objects: dict[Any, list[Annotation]] = {image["id"]: [] for image in data["images"]}
    if len(objects) < len(data["images"]):
        raise SourceError(f"{annotations}: two images have the same id")
    for annotation in data["annotations"]:
        if annotation["image_id"] in objects:
            objects[annotation["image_id"]].append(annotation)
        else:
            name = f"{os.path.basename(annotations)}#{annotation.get('id')}"
            source.reject(name, "is of an image that the file does not list")
    return objects


def _read(path: str) -> dict[str, Any]:
    try:
        data = json.loads(read_regular(path))
    except (OSError, ValueError, RecursionError) as error:
        reason = error.strerror if isinstance(error, OSError) else f"not JSON: {error}"
        raise SourceError(f"{path}: can't be read: {reason}") from None

    ids = (int, str)
    keys: dict[str, tuple[tuple[str, tuple[type, ...]], ...]] = {
        "images": (("id", ids), ("file_name", (str,))),
        "annotations": (("image_id", ids),),
        "categories": (("id", ids), ("name", (str,))),
    }

    if isinstance(data, dict) and _are_captions(data):
        del keys["categories"]

    for name, needed in keys.items():
        rows = data.get(name) if isinstance(data, dict) else None
        if not isinstance(rows, list):
            raise SourceError(
                f"{path}: expected COCO's instances, keypoints or captions, an object with the lists {', '.join(keys)}"
            )
        for number, row in enumerate(rows):
            if isinstance(row, dict):
                _straighten(row)
            for key, kinds in needed:
                if not isinstance(row, dict) or not isinstance(row.get(key), kinds):
                    of_type = " or ".join(kind.__name__ for kind in kinds)
                    raise SourceError(f"{path}: {name}[{number}] has no {key!r} of type {of_type}")

    found: dict[str, Any] = data
    return found


def _straighten(row: dict[str, Any]) -> None:
    """Writes a row as COCO does: numbers of images, categories and pixels as integers, names of categories as text, and
    as LVIS does not, a name of its file."""
    for key in ("id", "image_id", "category_id", "height", "width"):
        value = row.get(key)
        if isinstance(value, str):
            number = as_number(value.strip())  # None for 007
            value = int(value) if value.isdecimal() else number
        if (isinstance(value, float) and value.is_integer()) or isinstance(value, int):
            row[key] = int(value)
    if isinstance(name := row.get("name"), (int, float)):
        row["name"] = str(name)
    if row.get("file_name") is None and isinstance(url := row.get("coco_url"), str):
        row["file_name"] = posixpath.basename(urllib.parse.unquote(urllib.parse.urlsplit(url).path))


def _are_captions(data: Mapping[str, Any]) -> bool:
    """Returns True if the annotations have captions and no boxes."""
    rows = data.get("annotations")
    if not isinstance(rows, list) or not all(isinstance(row, dict) and "bbox" not in row for row in rows):
        return False
    return any("caption" in row for row in rows)


def _lines(annotations: Sequence[Annotation]) -> bytes:
    """Returns captions, a line each.

    Raises:
        ValueError: naming the annotation that is wrong.
    """
    lines = []
    for each in annotations:
        if not isinstance(caption := each.get("caption"), str):
            raise ValueError(f"annotation {each.get('id')}: expected a caption, got {str(caption)[:60]}")
        lines.append(" ".join(caption.removeprefix(BOM).split()))
    return "\n".join(lines).encode()


def _boxes(
    objects: Sequence[Annotation], labels: Mapping[int | str, int], further: Sequence[str]
) -> dict[str, list[Any]]:
    """Returns the content of ``boxes.json``.

    Args:
        objects: The image's annotations.
        labels: The label of each category.
        further: Names of the further lists, the same for all images, so that those without objects have them, too.

    Raises:
        ValueError: naming the annotation that is wrong.
    """
    found: dict[str, list[Any]] = {"boxes": [], "labels": []}
    for each in objects:
        box: Any = each.get("bbox")
        if not _are_numbers(box) or len(box) != 4 or min(box[2:]) < 0:
            raise ValueError(f"annotation {each.get('id')}: expected bbox [x, y, width, height], got {str(box)[:60]}")
        if not isinstance(each.get("category_id"), (int, str)) or each["category_id"] not in labels:
            raise ValueError(f"annotation {each.get('id')}: category {each.get('category_id')} is not in the file")
        x, y, width, height = box
        if min(x + width, y + height) < 0:
            raise ValueError(f"annotation {each.get('id')}: its bbox {box} ends before its image starts")
        found["boxes"].append([x, y, x + width, y + height])
        found["labels"].append(labels[each["category_id"]])
    return found | {key: [each.get(key) for each in objects] for key in further if key not in found}


def _points(objects: Sequence[Annotation], count: int) -> dict[str, Any]:
    """Returns the points and their visibility in ``kp.json``, a group for each of the image's annotations.

    The number of points in a group is with them, for images without annotations.

    An annotation without keypoints has those of COCO's objects that are not labeled: at 0, of visibility 0.

    Args:
        objects: The image's annotations.
        count: Number of points in a group.

    Raises:
        ValueError: naming the annotation that is wrong.
    """
    found: dict[str, Any] = {"keypoints": [], "visibility": [], "points_per_group": count}
    for each in objects:
        flat: Any = each.get("keypoints") or [0] * 3 * count
        if not _are_triples(flat):
            raise ValueError(
                f"annotation {each.get('id')}: expected keypoints [x, y, visibility, ...], got {str(flat)[:60]}"
            )
        if len(flat) != 3 * count:
            raise ValueError(
                f"annotation {each.get('id')}: has {len(flat) // 3} keypoints, and the file's first one has {count}; "
                "give each kind of objects a file of its own"
            )
        found["keypoints"].append([list(point) for point in zip(flat[::3], flat[1::3], strict=True)])
        found["visibility"].append(flat[2::3])
    return found


def _is_bare(annotation: Annotation) -> bool:
    """Returns True for an object without a segmentation."""
    return annotation.get("segmentation") in (None, [])


def _short_polygons(annotation: Annotation) -> int:
    """Returns the number of an object's polygons that have no area, which tools for annotation write."""
    segmentation = annotation.get("segmentation")
    return sum(map(_is_short, segmentation)) if isinstance(segmentation, list) else 0


def _is_short(polygon: Any) -> bool:
    return _are_numbers(polygon) and len(polygon) in (0, 2, 4)


def _are_triples(values: Any) -> bool:
    return _are_numbers(values) and len(values) % 3 == 0


def _are_numbers(values: Any) -> bool:
    return isinstance(values, list) and all(
        isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value) for value in values
    )


def _rasterizer() -> Any:
    """Returns the function that makes ``instances.png`` of an image's annotations."""
    try:
        from pycocotools import mask as coco
    except ImportError:
        raise ArgumentError("masks of COCO's instances need pycocotools: pip install 'feeder-data[coco]'") from None
    from PIL import Image

    def rasterize(objects: Sequence[Annotation], image: Mapping[str, Any]) -> bytes:
        height, width = image.get("height"), image.get("width")
        if not isinstance(height, int) or not isinstance(width, int) or min(height, width) < 1:
            raise ValueError(f"its masks need its size, got height {height!r} and width {width!r}")
        if height * width > MAX_PIXELS:
            raise ValueError(f"{width}x{height} is more than the {MAX_PIXELS:,} pixels that feeder decodes")
        masks = []
        for each in objects:
            try:
                masks.append(
                    np.zeros((height, width), np.bool_)
                    if _is_bare(each)
                    else _mask(coco, each["segmentation"], height, width)
                )
            except ValueError as error:
                raise ValueError(f"annotation {each.get('id')}: its segmentation: {error}") from None
        instances = np.zeros((height, width), np.uint8 if len(masks) <= _MOST_BYTE else np.uint16)
        for place in sorted(range(len(masks)), key=lambda place: -int(masks[place].sum())):
            instances[masks[place]] = place + 1
        file = io.BytesIO()
        Image.fromarray(instances).save(file, "PNG")
        return file.getvalue()

    return rasterize


def _mask(coco: Any, segmentation: Any, height: int, width: int) -> Bools:
    """Returns the pixels of polygons or RLE, [H, W]. pycocotools' own code takes RLE on trust, beyond its memory.

    Raises:
        ValueError: saying what is wrong.
    """
    size = [height, width]

    if isinstance(segmentation, dict):
        counts, size = segmentation.get("counts"), segmentation.get("size", size)
    elif isinstance(segmentation, list) and segmentation:
        for polygon in segmentation:
            if not _are_numbers(polygon) or len(polygon) % 2:
                raise ValueError(f"expected polygons [x, y, x, y, x, y, ...], got {str(polygon)[:60]}")
            if min(polygon, default=0) < -max(height, width) or max(polygon, default=0) > 2 * max(height, width):
                raise ValueError(f"a polygon lies far outside of the image: {str(polygon)[:60]}")
        polygons = [polygon for polygon in segmentation if not _is_short(polygon)]
        if not polygons:
            return np.zeros((height, width), np.bool_)
        counts = coco.merge(coco.frPyObjects(polygons, height, width))["counts"].decode()
    else:
        raise ValueError(f"expected polygons or RLE, got {str(segmentation)[:60]}")

    if isinstance(counts, str):
        counts = _counts(counts)

    if not isinstance(counts, list) or not all(isinstance(each, int) and each >= 0 for each in counts):
        raise ValueError("its counts are neither text nor a list of numbers from 0 on")
    if size != [height, width] or sum(counts) != height * width:
        raise ValueError(
            f"expected counts that add up to the image's {height}x{width} pixels (height x width), got {sum(counts)} "
            f"and size {size}"
        )

    runs = np.arange(len(counts)) % 2 == 1  # columns from top to bottom, the first run outside
    return np.repeat(runs, counts).reshape((height, width), order="F")


def _counts(text: str) -> list[int]:
    """Returns the counts of compressed RLE: digits of 5 bits from the lowest on, as differences from the last but one.

    Source: rleFrString in cocoapi's maskApi.c.
    """
    counts: list[int] = []
    value = shift = 0
    for letter in text:
        digit = ord(letter) - 48
        if not 0 <= digit < 64 or shift > _MOST_BITS:
            raise ValueError(f"its counts hold {letter!r}, which is no compressed RLE")
        value |= (digit & 31) << shift
        shift += 5
        if not digit & 32:
            if digit & 16:
                value -= 1 << shift
            counts.append(value + counts[-2] if len(counts) > 2 else value)
            value = shift = 0
    if shift:
        raise ValueError("its counts are cut off")
    return counts
