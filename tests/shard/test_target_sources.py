"""Boxes and masks that belong to folders of images: COCO, Pascal VOC, and trees of files with the same names."""

from __future__ import annotations

import io
import json
import math
import os
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import feeder
from feeder import transforms as T
from feeder.errors import ArgumentError, ShardError, SourceError
from feeder.shard.format.manifest import Manifest
from feeder.shard.source.coco import open_coco
from feeder.shard.source.pairs import open_pairs, read_names
from feeder.shard.source.source import reject_samples
from feeder.shard.source.target_sources import TargetSources
from feeder.shard.write.sharding import shard
from feeder.tools.cli import main
from feeder.tools.verify import verify
from tests.support.images import encode, pixels
from tests.support.shard_sets import StopAtOnce, contents, kept, member, rejected, samples_of

SQUARE = [2.0, 3.0, 8.0, 3.0, 8.0, 9.0, 2.0, 9.0]


def write(path: Path, data: bytes | str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return path


def gray(seed: int, width: int = 24, height: int = 16) -> bytes:
    return encode(pixels(seed, width, height).convert("L"), "PNG")


def images(folder: Path, *names: str) -> Path:
    for number, name in enumerate(names):
        write(folder / name, gray(number) if name.lower().endswith("png") else encode(pixels(number, 24, 16)))
    return folder


def coco(folder: Path, annotations: list[dict[str, Any]], names: tuple[str, ...] = ("a.jpg", "b.jpg")) -> Path:
    """Images 10, 11, ... of 24x16 pixels; categories cat (18) and dog (3)."""
    listed = [{"id": 10 + i, "file_name": name, "width": 24, "height": 16} for i, name in enumerate(names)]
    categories = [{"id": 18, "name": "cat"}, {"id": 3, "name": "dog"}]
    rows = [{"id": 100 + i, "category_id": 3, "bbox": [1, 2, 3, 4], **row} for i, row in enumerate(annotations)]
    data = {"images": listed, "annotations": rows, "categories": categories}
    return write(folder / "instances.json", json.dumps(data))


def run(source: Path, tmp_path: Path, **targets: Any) -> Path:
    out = tmp_path / "out"
    shard(str(source), str(out), kept(max_bad=1, samples_per_shard=5, targets=TargetSources(**targets)))
    return out


def boxes_of(out: Path, path: str) -> Any:
    return json.loads(member(out, path, "boxes.json") or b"null")


def test_captions_of_coco_become_lines_of_text(tmp_path: Path) -> None:
    folder = images(tmp_path / "src", "a.jpg", "b.jpg", "c.jpg")
    listed = [{"id": 10 + i, "file_name": name} for i, name in enumerate(("a.jpg", "b.jpg", "c.jpg"))]
    texts = [(11, "A dog. "), (10, "é"), (11, "Two\nlines")]
    rows = [{"id": i, "image_id": image, "caption": text} for i, (image, text) in enumerate(texts)]
    data = write(tmp_path / "captions.json", json.dumps({"info": {}, "images": listed, "annotations": rows}))
    out = run(folder, tmp_path, annotations=str(data))
    found = {path: member(out, path, "txt") for path, _, _ in samples_of(out)}
    assert found == {"a.jpg": "é".encode(), "b.jpg": b"A dog.\nTwo lines", "c.jpg": b""}
    assert Manifest.read(str(out)).classes is None  # type: ignore[union-attr]
    rows[1]["caption"] = None
    write(data, json.dumps({"images": listed, "annotations": rows}))
    assert main(["shard", str(folder), "--annotations", str(data), "--out", str(tmp_path / "b"), "--max-bad", "1"]) == 0
    assert rejected(tmp_path / "b") == {"a.jpg": "annotation 1: expected a caption, got None"}


def test_the_classes_of_boxes_are_shown_without_counts_of_samples(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = images(tmp_path / "src", "a.jpg", "b.jpg")
    out = run(folder, tmp_path, annotations=str(coco(tmp_path, [{"image_id": 11}])))
    assert main(["inspect", str(out)]) == 0
    assert capsys.readouterr().out.endswith("no sample has a label\n  classes     dog, cat\n")


def test_coco_gives_boxes_labels_and_segmentations(tmp_path: Path) -> None:
    folder = images(tmp_path / "src", "a.jpg", "sub/b.jpg", "other.jpg")
    rows = [
        {"image_id": 11, "bbox": [1.5, 2, 10, 4.25], "segmentation": [SQUARE], "area": 36, "score": math.nan},
        {"image_id": 11, "category_id": 18, "segmentation": {"size": [16, 24], "counts": [384]}, "score": 1},
    ]
    out = run(folder, tmp_path, annotations=str(coco(tmp_path, rows, ("a.jpg", "sub/b.jpg"))))
    assert {(path, label) for path, _, label in samples_of(out)} == {("a.jpg", -1), ("sub/b.jpg", -1)}
    none: dict[str, Any] = {key: [] for key in ["boxes", "labels", "id", "category_id", "area", "score"]}
    assert boxes_of(out, "a.jpg") == none | {"image_id": 10}
    assert boxes_of(out, "sub/b.jpg") == {
        "boxes": [[1.5, 2, 11.5, 6.25], [1, 2, 4, 6]],
        "labels": [0, 1],
        "id": [100, 101],
        "category_id": [3, 18],
        "image_id": 11,
        "area": [36, None],
        "score": [None, 1],
    }
    assert json.loads(member(out, "sub/b.jpg", "segmentation.json") or b"") == [row["segmentation"] for row in rows]
    assert json.loads(member(out, "a.jpg", "segmentation.json") or b"") == []
    assert feeder.ShardDataset(out).classes == ["dog", "cat"]
    assert rejected(out) == {}


def test_a_byte_order_mark_is_no_part_of_a_name(tmp_path: Path) -> None:
    (tmp_path / "train.txt").write_text("a\nb\n", "utf-8-sig")
    assert read_names(str(tmp_path / "train.txt")) == {"a", "b"}


def test_coco_as_other_tools_write_it_is_read(tmp_path: Path) -> None:
    """Ids as text or floats, sizes as floats, LVIS' images without names, and Roboflow's root category."""
    folder = images(tmp_path / "src", "a.jpg", "b.jpg", "c.jpg")
    data = {
        "images": [
            {"id": "10", "file_name": "a.jpg", "width": 24.0, "height": 16.0},
            {"id": 11.0, "coco_url": "http://images.cocodataset.org/val2017/b.jpg", "width": 24, "height": 16},
            {"id": "twelve", "file_name": "c.jpg", "width": 24, "height": 16},
        ],
        "annotations": [
            {"id": 1, "image_id": 10, "category_id": "1", "bbox": [1, 2, 3, 4], "segmentation": [SQUARE]},
            {"id": 2, "image_id": "11", "category_id": 2.0, "bbox": [1, 2, 3, 4], "segmentation": [SQUARE]},
            {"id": 3, "image_id": "twelve", "category_id": 0, "bbox": [1, 2, 3, 4], "segmentation": [SQUARE]},
        ],
        "categories": [{"id": 0, "name": "dog"}, {"id": "1", "name": "cat"}, {"id": 2.0, "name": "dog"}],
    }
    place = write(tmp_path / "instances.json", json.dumps(data))
    targets = TargetSources(annotations=str(place), instance_masks=True)
    summary = shard(str(folder), str(tmp_path / "out"), kept(targets=targets))
    assert {path: boxes_of(tmp_path / "out", path)["labels"] for path in ("a.jpg", "b.jpg", "c.jpg")} == {
        "a.jpg": [1],
        "b.jpg": [0],
        "c.jpg": [0],
    }
    assert feeder.ShardDataset(tmp_path / "out").classes == ["dog", "cat"]
    assert "instances.json: the categories 0, 2 are all named 'dog': one class" in summary.notes


def test_ids_names_and_values_of_coco_are_read_in_further_forms(tmp_path: Path) -> None:
    folder = images(tmp_path / "src", "a.jpg", "b c.jpg")
    rows = [
        {"id": 1, "image_id": " 1 ", "category_id": "7.0", "bbox": [-3, -2, 8, 8], "segmentation": [[math.nan, 1]]},
        {"id": 2, "image_id": "-2", "category_id": 8, "bbox": [1, 2, 3, 4]},
    ]
    data = {
        "images": [
            {"id": "1.0", "file_name": "a.jpg"},
            {"id": -2, "file_name": None, "coco_url": "http://host/train/b%20c.jpg?x"},
        ],
        "annotations": rows,
        "categories": [{"id": 7, "name": 3}, {"id": "8", "name": "dog"}],
    }
    path = write(tmp_path / "coco.json", json.dumps(data))
    summary = shard(str(folder), str(tmp_path / "out"), kept(targets=TargetSources(annotations=str(path))))
    out = tmp_path / "out"
    assert rejected(out) == {}
    assert Manifest.read(str(out)).classes == ["3", "dog"]  # type: ignore[union-attr]
    assert [boxes_of(out, name)["boxes"] for name in ("a.jpg", "b c.jpg")] == [[[0, 0, 5, 6]], [[1, 2, 4, 6]]]
    assert json.loads(member(out, "a.jpg", "segmentation.json") or b"") == [[[None, 1]]]
    assert [note for note in summary.notes if "clipped" in note] == [
        "coco.json: 1 box clipped, because of sides outside of the image"
    ]


def test_categories_of_coco_with_one_id_and_two_names_are_an_error(tmp_path: Path) -> None:
    folder = images(tmp_path / "src", "a.jpg")
    categories = [{"id": 1, "name": "dog"}, {"id": "1", "name": "cat"}]
    data = {"images": [{"id": 1, "file_name": "a.jpg"}], "annotations": [], "categories": categories}
    path = write(tmp_path / "coco.json", json.dumps(data))
    with pytest.raises(SourceError, match="the categories 'dog' and 'cat' have the same id 1"):
        run(folder, tmp_path, annotations=str(path))


def test_byte_order_marks_are_no_part_of_captions_of_coco(tmp_path: Path) -> None:
    folder = images(tmp_path / "src", "a.jpg")
    rows = [{"image_id": 1, "caption": "\ufeffA dog."}, {"image_id": 1, "caption": "\ufeffA cat."}]
    data = {"images": [{"id": 1, "file_name": "a.jpg"}], "annotations": rows}
    out = run(folder, tmp_path, annotations=str(write(tmp_path / "coco.json", json.dumps(data))))
    assert member(out, "a.jpg", "txt") == b"A dog.\nA cat."


def test_xml_of_another_kind_or_with_a_document_type_is_no_image_without_objects(tmp_path: Path) -> None:
    folder = images(tmp_path / "src", "a.jpg", "b.jpg", "c.jpg")
    write(tmp_path / "xml" / "c.xml", voc())
    write(tmp_path / "xml" / "a.xml", "<annotation xmlns='urn:x'><object><name>dog</name></object></annotation>")
    text = '<?xml version="1.0" encoding="utf-16"?><!DOCTYPE a [<!ENTITY x "dog">]><annotation></annotation>'
    write(tmp_path / "xml" / "b.xml", text.encode("utf-16"))
    found = rejected(run(folder, tmp_path, annotations=str(tmp_path / "xml")))
    assert "expected VOC's <annotation> with an <object>" in found["a.jpg"]
    assert "has a document type" in found["b.jpg"]


def test_texts_beside_images_and_their_xml_are_no_bad_images(tmp_path: Path) -> None:
    folder = images(tmp_path / "src", "a.jpg")
    write(folder / "a.xml", voc())
    write(folder / "a.txt", "0 0.5 0.5 1 1")
    targets = TargetSources(annotations=str(folder))
    shard(str(folder), str(tmp_path / "out"), kept(targets=targets))  # with the usual max_bad
    assert list(rejected(tmp_path / "out")) == ["a.txt"]


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # pycocotools' decode
def test_cocos_instances_become_a_mask(tmp_path: Path) -> None:
    """Small objects cover large ones, and a mask's values are those of the list ``instance``."""
    api = pytest.importorskip("pycocotools.mask")
    blob = np.zeros((16, 24), np.uint8, order="F")
    blob[4:7, 3:5] = blob[12:, 20:] = 1
    text = api.encode(blob)
    rows = [
        {"image_id": 10, "segmentation": {"size": [16, 24], "counts": text["counts"].decode()}},
        {"image_id": 10, "segmentation": {"size": [16, 24], "counts": [32, 64, 288]}, "iscrowd": 1},
        {"image_id": 10, "segmentation": [SQUARE, [12, 0, 20, 0, 16, 8]]},
    ]
    folder, place = images(tmp_path / "src", "a.jpg", "b.jpg"), str(coco(tmp_path, rows))
    out = run(folder, tmp_path, annotations=place, instance_masks=True)
    found = np.asarray(Image.open(io.BytesIO(member(out, "a.jpg", "instances.png") or b"")))
    expected = np.zeros((16, 24), np.uint8)
    both = api.decode(api.merge(api.frPyObjects([SQUARE, [12, 0, 20, 0, 16, 8]], 16, 24))) != 0
    expected[both] = 3
    columns = np.zeros(384, bool)
    columns[32:96] = True
    large = columns.reshape(24, 16).T
    assert large.sum() < both.sum() > blob.sum()
    expected[large] = 2
    expected[blob != 0] = 1
    assert found.dtype == np.uint8
    assert np.array_equal(found, expected)
    assert boxes_of(out, "a.jpg")["instance"] == [1, 2, 3]
    assert member(out, "a.jpg", "segmentation.json") is None
    empty = Image.open(io.BytesIO(member(out, "b.jpg", "instances.png") or b""))
    assert (empty.size, empty.getextrema()) == ((24, 16), (0, 0))


@pytest.mark.parametrize("bare", [{"segmentation": []}, {"segmentation": None}, {}], ids=str)
def test_an_object_without_a_segmentation_keeps_its_box(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], bare: dict[str, Any]
) -> None:
    pytest.importorskip("pycocotools")
    rows = [{"image_id": 10, **bare}, {"image_id": 10, "segmentation": [SQUARE]}, {"image_id": 11, **bare}]
    place = str(coco(tmp_path, rows))
    folder = images(tmp_path / "src", "a.jpg", "b.jpg")
    args = ["shard", str(folder), "--out", str(tmp_path / "out"), "--annotations", place, "--instance-masks"]
    assert main(args) == 0
    assert "instances.json: 2 objects without a segmentation: in boxes.json, not in instances.png" in (
        capsys.readouterr().err
    )
    out = tmp_path / "out"
    assert rejected(out) == {}
    found = np.asarray(Image.open(io.BytesIO(member(out, "a.jpg", "instances.png") or b"")))
    assert np.unique(found).tolist() == [0, 2]
    assert (boxes_of(out, "a.jpg")["boxes"], boxes_of(out, "a.jpg")["instance"]) == ([[1, 2, 4, 6]] * 2, [1, 2])
    assert boxes_of(out, "b.jpg")["boxes"] == [[1, 2, 4, 6]]
    assert Image.open(io.BytesIO(member(out, "b.jpg", "instances.png") or b"")).getextrema() == (0, 0)


def test_masks_of_a_file_without_segmentations_are_refused(tmp_path: Path) -> None:
    pytest.importorskip("pycocotools")
    place = str(coco(tmp_path, [{"image_id": 10}, {"image_id": 11, "segmentation": []}]))
    with pytest.raises(SourceError, match=r"no annotation has a segmentation to make masks of; leave the masks out"):
        run(images(tmp_path / "src", "a.jpg", "b.jpg"), tmp_path, annotations=place, instance_masks=True)


def test_a_dataset_has_the_boxes_and_the_masks_in_them(tmp_path: Path) -> None:
    pytest.importorskip("pycocotools")
    rows = [{"image_id": 10 + i, "bbox": [2, 3, 6, 6], "segmentation": [SQUARE]} for i in range(2)]
    place = str(coco(tmp_path, rows))
    out = run(images(tmp_path / "src", "a.jpg", "b.jpg"), tmp_path, annotations=place, instance_masks=True)
    targets = {"boxes.json": T.BoundingBoxes(format="xyxy"), "instances.png": T.Mask()}
    dataset = feeder.ShardDataset(
        out, T.Compose([T.CenterCrop((16, 22)), T.RandomHorizontalFlip(1.0)]), targets=targets
    )
    for _, labels, boxes, masks in feeder.DataLoader(dataset, batch_size=2):
        assert labels.tolist() == [-1, -1]
        for found, mask in zip(boxes, masks, strict=True):
            assert found["boxes"].tolist() == [[15, 3, 21, 9]]
            assert (found["labels"].tolist(), found["instance"]) == ([0], [1])
            ys, xs = mask.nonzero(as_tuple=True)
            assert [xs.min(), ys.min(), xs.max() + 1, ys.max() + 1] == [15, 3, 21, 9]


def test_cocos_keypoints_move_with_the_image(tmp_path: Path) -> None:
    rows = [
        {"image_id": 10, "id": 7, "keypoints": [4, 5, 2, 0, 0, 0], "num_keypoints": 1},
        {"image_id": 10, "id": 8, "keypoints": [20, 6, 1, 3.5, 3, 2], "num_keypoints": 2, "category_id": 18},
        {"image_id": 10, "id": 9, "keypoints": [], "num_keypoints": 0},
    ]
    out = run(images(tmp_path / "src", "a.jpg", "b.jpg"), tmp_path, annotations=str(coco(tmp_path, rows)))
    assert json.loads(member(out, "a.jpg", "kp.json") or b"") == {
        "keypoints": [[[4, 5], [0, 0]], [[20, 6], [3.5, 3]], [[0, 0], [0, 0]]],
        "visibility": [[2, 0], [1, 2], [0, 0]],
        "labels": [0, 1, 0],
        "id": [7, 8, 9],
        "category_id": [3, 18, 3],
        "image_id": 10,
        "points_per_group": 2,
    }
    empty: dict[str, Any] = {key: [] for key in ["keypoints", "visibility", "labels", "id", "category_id"]}
    assert json.loads(member(out, "b.jpg", "kp.json") or b"") == empty | {"image_id": 11, "points_per_group": 2}
    assert boxes_of(out, "a.jpg").keys() == {"boxes", "labels", "id", "category_id", "num_keypoints", "image_id"}
    recipe = T.Compose([T.CenterCrop((16, 18)), T.RandomHorizontalFlip(1.0), T.SanitizeKeyPoints()])
    dataset = feeder.ShardDataset(out, recipe, targets={"kp.json": T.KeyPoints()})
    by_ids = {len(found["id"]): found for _, _, (found,) in feeder.DataLoader(dataset)}
    assert by_ids[0]["keypoints"].shape == (0, 2, 2)
    found = by_ids[1]
    assert found["keypoints"].tolist() == [[[0, 6], [16.5, 3]]]
    assert (found["visibility"], found["labels"].tolist(), found["id"]) == ([[1, 2]], [1], [8])


def test_keypoints_without_points_in_the_file_give_no_field(tmp_path: Path) -> None:
    rows = [{"image_id": 10, "keypoints": []}]
    out = run(images(tmp_path / "src", "a.jpg", "b.jpg"), tmp_path, annotations=str(coco(tmp_path, rows)))
    assert member(out, "a.jpg", "kp.json") is None


@pytest.mark.parametrize(
    ("keypoints", "message"),
    [
        ([1, 2], r"annotation 101: expected keypoints \[x, y, visibility, ...\], got \[1, 2\]"),
        ("abc", "annotation 101: expected keypoints .* got abc"),
        ([1, 2, 1, 3, 4, 1], "annotation 101: has 2 keypoints, and the file's first one has 1"),
    ],
)
def test_bad_keypoints_reject_their_image(tmp_path: Path, keypoints: Any, message: str) -> None:
    rows = [{"image_id": 10, "keypoints": [1, 2, 2]}, {"image_id": 11, "keypoints": keypoints}]
    out = run(images(tmp_path / "src", "a.jpg", "b.jpg"), tmp_path, annotations=str(coco(tmp_path, rows)))
    assert [path for path, _, _ in samples_of(out)] == ["a.jpg"]
    (reason,) = rejected(out).values()
    assert re.search(message, reason)


def test_more_instances_than_a_byte_counts_take_16_bits(tmp_path: Path) -> None:
    pytest.importorskip("pycocotools")
    rows = [{"image_id": 10, "segmentation": {"size": [16, 24], "counts": [i, 1, 383 - i]}} for i in range(300)]
    names = write(tmp_path / "names.txt", "a\n")
    place = str(coco(tmp_path, rows))
    out = run(images(tmp_path / "src", "a.jpg"), tmp_path, annotations=place, instance_masks=True, names=str(names))
    found = np.asarray(Image.open(io.BytesIO(member(out, "a.jpg", "instances.png") or b"")))
    assert found.T.reshape(-1)[:301].tolist() == [*range(1, 301), 0]


def test_compressed_rle_is_pycocotools(tmp_path: Path) -> None:
    api = pytest.importorskip("pycocotools.mask")
    rng = np.random.default_rng(0)
    rows, masks = [], []
    for density in (0.001, 0.02, 0.5, 0.9, 1.0):
        mask = np.asfortranarray(rng.random((16, 24)) < density, np.uint8)
        masks.append(mask)
        counts = api.encode(mask)["counts"].decode()
        rows.append({"image_id": 10, "segmentation": {"size": [16, 24], "counts": counts}})
    for number, (row, mask) in enumerate(zip(rows, masks, strict=True)):
        folder = tmp_path / str(number)
        place = str(coco(folder, [row], ("a.jpg",)))
        out = run(images(folder / "src", "a.jpg"), folder, annotations=place, instance_masks=True)
        found = np.asarray(Image.open(io.BytesIO(member(out, "a.jpg", "instances.png") or b"")))
        assert np.array_equal(found, mask)


def test_polygons_without_area_are_left_out_and_counted(tmp_path: Path) -> None:
    pytest.importorskip("pycocotools")
    rows = [{"image_id": 10, "segmentation": each} for each in ([[1, 2, 3, 4]], [[], SQUARE, [5, 6]], [SQUARE])]
    place = str(coco(tmp_path, [*rows[:2], rows[2] | {"image_id": 11}]))
    out = run(images(tmp_path / "src", "a.jpg", "b.jpg"), tmp_path, annotations=place, instance_masks=True)
    assert rejected(out) == {}
    first, second = (
        np.asarray(Image.open(io.BytesIO(member(out, name, "instances.png") or b""))) for name in ("a.jpg", "b.jpg")
    )
    np.testing.assert_array_equal(first, 2 * second)
    assert second.any()
    assert json.loads(member(out, "a.jpg", "boxes.json") or b"")["instance"] == [1, 2]
    source = open_coco(str(tmp_path / "src"), place, str(tmp_path / "spool"), instance_masks=True)
    assert any(note.endswith("3 polygons of fewer than three points: not in instances.png") for note in source.notes)


@pytest.mark.parametrize(
    ("segmentation", "message"),
    [
        (0, "expected polygons or RLE, got 0"),
        ([[True, 0, 1]], r"expected polygons \[x, y, "),
        ([[1, 2, 3, 4, 5]], r"expected polygons \[x, y, "),
        ([["a"] * 6], r"expected polygons \[x, y, "),
        ([[0, 0, 1e9, 0, 5, 5]], "far outside of the image"),
        ({"size": [16, 24], "counts": [1, 2]}, r"16x24 pixels \(height x width\), got 3 and size \[16, 24\]"),
        ({"size": [24, 16], "counts": [384]}, r"got 384 and size \[24, 16\]"),
        ({"size": [16, 24], "counts": [-1, 385]}, "neither text nor a list"),
        ({"size": [16, 24], "counts": "<5"}, "got 17"),
        ({"size": [16, 24], "counts": "P"}, "cut off"),
        ({"size": [16, 24], "counts": "o" * 60}, "no compressed RLE"),
        ({"size": [16, 24], "counts": "\t"}, r"its counts hold '\\t'"),
    ],
)
def test_a_bad_segmentation_rejects_its_image(tmp_path: Path, segmentation: Any, message: str) -> None:
    pytest.importorskip("pycocotools")
    rows = [{"image_id": 10, "segmentation": segmentation}, {"image_id": 11, "segmentation": [SQUARE]}]
    place = str(coco(tmp_path, rows))
    out = run(images(tmp_path / "src", "a.jpg", "b.jpg"), tmp_path, annotations=place, instance_masks=True)
    found = rejected(out)
    assert list(found) == ["a.jpg"]
    assert found["a.jpg"].startswith("annotation 100: its segmentation: ")
    with pytest.raises(ValueError, match=message):
        raise ValueError(found["a.jpg"])


def test_coco_takes_the_named_images_of_a_sane_size(tmp_path: Path) -> None:
    pytest.importorskip("pycocotools")
    place = coco(tmp_path, [{"image_id": 10, "segmentation": [SQUARE]}], ("a.jpg", "b.jpg", "c.jpg"))
    data = json.loads(place.read_text())
    data["images"][1] |= {"width": 10**6, "height": 10**6}
    place.write_text(json.dumps(data))
    names = write(tmp_path / "names.txt", "a\nb\n")
    folder = images(tmp_path / "src", "a.jpg", "b.jpg", "c.jpg")
    out = run(folder, tmp_path, annotations=str(place), instance_masks=True, names=str(names))
    assert [path for path, _, _ in samples_of(out)] == ["a.jpg"]
    assert rejected(out) == {"b.jpg": "1000000x1000000 is more than the 89,478,485 pixels that feeder decodes"}


def test_nothing_of_coco_is_lost_in_silence(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"image_id": 10, "bbox": [1, 2, -3, 4]},
        {"image_id": 11, "bbox": [1, 2, 3]},
        {"image_id": 12, "category_id": 4},
        {"image_id": 99},
        {"image_id": 13, "bbox": [1, 2, 3, True]},
        {"image_id": 15, "category_id": [3]},
    ]
    names = ("a.jpg", "b.jpg", "c.jpg", "d.jpg", "gone.jpg", "e.jpg", "f.jpg", "./f.jpg")
    folder = images(tmp_path / "src", "a.jpg", "b.jpg", "c.jpg", "d.jpg", "e.jpg", "f.jpg")
    out = run(folder, tmp_path, annotations=str(coco(tmp_path, rows, names)))
    assert rejected(out) == {
        "a.jpg": "annotation 100: expected bbox [x, y, width, height], got [1, 2, -3, 4]",
        "b.jpg": "annotation 101: expected bbox [x, y, width, height], got [1, 2, 3]",
        "c.jpg": "annotation 102: category 4 is not in the file",
        "d.jpg": "annotation 104: expected bbox [x, y, width, height], got [1, 2, 3, True]",
        "gone.jpg": f"not found in {folder}",
        "instances.json#103": "is of an image that the file does not list",
        "e.jpg": "annotation 105: category [3] is not in the file",
        "./f.jpg": "duplicate path",
    }
    assert [path for path, _, _ in samples_of(out)] == ["f.jpg"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "can't be read: not JSON"),
        ("[]", "expected COCO's .* captions, an object with the lists images, annotations, categories"),
        ('{"images": [], "annotations": []}', "expected COCO's instances"),
        ('{"images": [{"id": 1}], "annotations": [], "categories": []}', r"images\[0\] has no 'file_name' of type str"),
        ('{"images": [], "annotations": [3], "categories": []}', r"annotations\[0\] has no 'image_id' of type int or"),
        ('{"images": [{"id": 1, "file_name": "a"}, {"id": 1, "file_name": "b"}], "annotations": [], "categories": []}',
         "two images have the same id"),
    ],
)  # fmt: skip
def test_refuses_what_is_no_coco(tmp_path: Path, text: str, message: str) -> None:
    place = write(tmp_path / "x.json", text)
    with pytest.raises(SourceError, match=message):
        run(images(tmp_path / "src", "a.jpg"), tmp_path, annotations=str(place))


def test_masks_of_coco_need_pycocotools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pycocotools", None)
    with pytest.raises(ArgumentError, match=r"pip install 'feeder-data\[coco\]'"):
        run(images(tmp_path / "src", "a.jpg"), tmp_path, annotations=str(coco(tmp_path, [])), instance_masks=True)


def voc(*objects: str) -> str:
    return f"<annotation><filename>a.jpg</filename>{''.join(objects)}</annotation>"


def voc_object(name: str, box: str, further: str = "") -> str:
    sides = zip(("xmin", "ymin", "xmax", "ymax"), box.split(), strict=True)
    inner = "".join(f"<{side}>{value}</{side}>" for side, value in sides)
    return f"<object><name>{name}</name><bndbox>{inner}</bndbox>{further}</object>"


def test_voc_gives_boxes_and_labels_by_name(tmp_path: Path) -> None:
    folder = images(tmp_path / "src", "a.jpg", "b.jpg", "c.jpg", "d.jpg")
    first = voc_object("dog", "1 2 10 12.5", "<difficult>1</difficult><pose>Left</pose>")
    write(tmp_path / "xml" / "a.xml", voc(first, voc_object("cat", "3 4 5 6", "<part><name>x</name></part>")))
    write(tmp_path / "xml" / "b.xml", voc())
    write(tmp_path / "xml" / "c.xml", voc(voc_object("ant", "1 1 2 2")))
    names = write(tmp_path / "train.txt", "a\nb\n\n")
    out = run(folder, tmp_path, annotations=str(tmp_path / "xml"), names=str(names))
    assert boxes_of(out, "a.jpg") == {
        "boxes": [[0, 1, 10, 12.5], [2, 3, 5, 6]],
        "labels": [1, 0],
        "difficult": [1, None],
        "pose": ["Left", None],
    }
    assert boxes_of(out, "b.jpg") == {"boxes": [], "labels": [], "difficult": [], "pose": []}
    assert feeder.ShardDataset(out).classes == ["cat", "dog"]
    assert (rejected(out), len(samples_of(out))) == ({}, 2)


@pytest.mark.parametrize("place", ["src", "src/xml"])
def test_voc_beside_its_images_or_below_them_belongs_to_them(tmp_path: Path, place: str) -> None:
    """As labelImg writes it."""
    folder = images(tmp_path / "src", "a.jpg", "b.png", "c/a.jpg", "lone.jpg")
    for name in ("a.xml", "b.XML", "c/a.xml", "orphan.xml"):
        write(tmp_path / place / name, voc(voc_object("dog", "1 2 10 12")))
    write(folder / "classes.txt", "dog")
    annotations = tmp_path / place
    out = run(folder, tmp_path, annotations=str(annotations))
    assert {path for path, _, _ in samples_of(out)} == {"a.jpg", "b.png", "c/a.jpg"}
    assert boxes_of(out, "b.png")["boxes"] == [[0, 1, 10, 12]]
    lone = f"has no file of the same name in annotations={annotations}"
    orphan = os.path.relpath(annotations / "orphan.xml", folder)
    no_image = f"has no image of the same name in {folder}"
    assert rejected(out) == {"lone.jpg": lone, "classes.txt": lone, orphan: no_image}


def test_pairs_in_one_folder_are_told_apart_by_their_names(tmp_path: Path) -> None:
    folder = images(tmp_path / "src", "a.jpg", "b.jpg", "a_mask.png", "c_mask.png")
    out = run(Path(f"{folder}/*.jpg"), tmp_path, pairs=(("masks", f"{folder}/*_mask.png"),))
    assert [path for path, _, _ in samples_of(out)] == ["a.jpg"]
    assert rejected(out).keys() == {"b.jpg", "c_mask.png"}


def test_boxes_of_voc_that_start_before_the_first_pixel_are_clipped_and_counted(tmp_path: Path) -> None:
    folder = images(tmp_path / "src", "a.jpg", "b.jpg", "c.jpg")
    write(tmp_path / "xml" / "a.xml", voc(voc_object("dog", "0 2 10 12"), voc_object("dog", "1 1 1 1")))
    write(tmp_path / "xml" / "b.xml", voc(voc_object("dog", "3 0 10 12"), voc_object("dog", "-4 0.5 10 12")))
    write(tmp_path / "xml" / "c.xml", voc(voc_object("dog", "5 2 4 12")))
    targets = TargetSources(annotations=str(tmp_path / "xml"))
    summary = shard(str(folder), str(tmp_path / "out"), kept(max_bad=1, targets=targets))
    assert boxes_of(tmp_path / "out", "a.jpg")["boxes"] == [[0, 1, 10, 12], [0, 0, 1, 1]]
    assert boxes_of(tmp_path / "out", "b.jpg")["boxes"] == [[2, 0, 10, 12], [0, 0, 10, 12]]
    assert rejected(tmp_path / "out")["c.jpg"].startswith("../xml/c.xml: object 0: expected a bndbox with xmin, ")
    assert [note for note in summary.notes if "clipped" in note] == [
        f"{tmp_path}/xml: 3 boxes clipped, as VOC counts pixels from 1, and they start before that. If the tool that "
        "wrote them counts from 0, all boxes are a pixel off: write COCO's JSON"
    ]


def test_nothing_of_voc_is_lost_in_silence(tmp_path: Path) -> None:
    folder = images(tmp_path / "src", "a.jpg", "b.jpg", "c.jpg", "d.jpg", "e.jpg", "f.jpg", "g.jpg")
    write(folder / "notes.txt", "x")
    xml = {
        "a": voc(voc_object("dog", "1 2 10 12")),
        "b": "<annotation>",
        "c": voc("<object><name>cat</name></object>"),
        "d": voc(voc_object("", "1 2 3 4")),
        "e": '<!DOCTYPE a [<!ENTITY b "c">]>' + voc(),
        "f": voc(voc_object("cat", "nan 2 3 4")),
        "h": voc(),
    }
    for name, text in xml.items():
        write(tmp_path / "xml" / f"{name}.xml", text)
    out = run(folder, tmp_path, annotations=str(tmp_path / "xml"))
    found = rejected(out)
    assert found.pop("b.jpg").startswith("../xml/b.xml: not XML: ")
    assert found.pop("e.jpg").startswith("../xml/e.xml: it has a document type")
    assert found == {
        "c.jpg": "../xml/c.xml: object 0: expected a bndbox with xmin, ymin, xmax, ymax, got [None, None, None, None]",
        "d.jpg": "../xml/d.xml: object 0 has no name",
        "f.jpg": "../xml/f.xml: object 0: expected a bndbox with xmin, ymin, xmax, ymax, got ['nan', '2', '3', '4']",
        "g.jpg": f"has no file of the same name in annotations={tmp_path}/xml",
        "notes.txt": f"has no file of the same name in annotations={tmp_path}/xml",
        "../xml/h.xml": f"has no image of the same name in {folder}",
    }
    assert [path for path, _, _ in samples_of(out)] == ["a.jpg"]
    with pytest.raises(SourceError, match="has no polygons to make masks of; pair its masks"):
        run(folder, tmp_path / "other", annotations=str(tmp_path / "xml"), instance_masks=True)


def test_pairs_join_files_of_the_same_name(tmp_path: Path) -> None:
    folder = images(tmp_path / "img", "x/a.jpg", "x/b.jpg", "y/a.jpg")
    masks = images(tmp_path / "mask", "x/a.png", "x/b.PNG", "y/a.png")
    depth = tmp_path / "depth"
    for name in ("x/a.npy", "x/b.npy", "y/a.npy"):
        write(depth / name, f"depth of {name}")
    out = run(folder, tmp_path, pairs=(("masks", str(masks)), ("depth", str(depth))))
    assert rejected(out) == {}
    for path in ("x/a.jpg", "x/b.jpg", "y/a.jpg"):
        stem = path[:-4]
        mask = next((masks / f"{stem}{end}") for end in (".png", ".PNG") if (masks / f"{stem}{end}").exists())
        assert member(out, path, "masks.png") == mask.read_bytes()
        assert member(out, path, "depth.npy") == f"depth of {stem}.npy".encode()
        assert {found: data for found, data, _ in samples_of(out)}[path] == (folder / path).read_bytes()


def test_pairs_by_a_common_part_of_the_names(tmp_path: Path) -> None:
    """As in Cityscapes."""
    folder = images(tmp_path / "left", "ulm/ulm_1_left.png", "ulm/ulm_2_left.png", "ulm/ulm_2_right.png")
    write(tmp_path / "fine" / "ulm" / "ulm_1_labelIds.png", gray(7))
    write(tmp_path / "fine" / "ulm" / "ulm_2_labelIds.png", gray(8))
    write(tmp_path / "fine" / "ulm" / "ulm_1_color.png", gray(9))
    out = run(Path(f"{folder}/*_left.png"), tmp_path, pairs=(("masks", f"{tmp_path}/fine/*_labelIds.png"),))
    assert {path for path, _, _ in samples_of(out)} == {"ulm/ulm_1_left.png", "ulm/ulm_2_left.png"}
    assert member(out, "ulm/ulm_1_left.png", "masks.png") == gray(7)
    assert rejected(out) == {
        "../fine/ulm/ulm_1_color.png": "is not named *_labelIds.png",
        "ulm/ulm_2_right.png": "is not named *_left.png",
    }
    with pytest.raises(SourceError, match=r"expected a folder, or folder/\*_suffix.png"):
        run(folder, tmp_path / "other", pairs=(("masks", f"{tmp_path}/*/ulm/*.png"),))


def test_files_without_a_partner_are_listed(tmp_path: Path) -> None:
    folder = images(tmp_path / "img", "a.jpg", "b.jpg", "c.jpg", "c.png")
    masks = images(tmp_path / "mask", "a.png", "c.png", "d.png")
    names = write(tmp_path / "names.txt", "a\nc\ne\n")
    out = run(folder, tmp_path, pairs=(("masks", str(masks)),))
    assert rejected(out) == {
        "b.jpg": f"has no file of the same name in masks={masks}",
        "c.png": "has the same name as another file, but for its extension",
        "../mask/d.png": f"has no image of the same name in {folder}",
    }
    some = run(folder, tmp_path / "some", pairs=(("masks", str(masks)),), names=str(names))
    assert {path for path, _, _ in samples_of(some)} == {"a.jpg", "c.jpg"}
    assert rejected(some) == {
        "c.png": "has the same name as another file, but for its extension",
        "e": f"is wanted, but has no image in {folder}",
    }


def test_masks_that_fit_no_image_are_rejected_by_their_headers(tmp_path: Path) -> None:
    folder = tmp_path / "img"
    palette, bilevel, deep = (pixels(1).convert(mode) for mode in ("P", "1", "I;16"))
    turned = encode(pixels(2), orientation=6)
    masks = {
        "gray": gray(1),
        "palette": encode(palette, "PNG"),
        "bilevel": encode(bilevel, "PNG"),
        "deep": encode(deep, "PNG"),
        "as-seen": gray(1, 16, 24),
        "as-stored": gray(1),
        "small": gray(1, 12, 8),
        "turned": gray(1, 16, 24),
        "rgb": encode(pixels(1), "PNG"),
        "rgba": encode(pixels(1).convert("RGBA"), "PNG"),
        "jpeg": encode(pixels(1).convert("L")),
    }
    for name, data in masks.items():
        write(folder / f"{name}.jpg", turned if name.startswith("as-") else encode(pixels(1)))
        write(tmp_path / "mask" / f"{name}.png", data)
    out = run(folder, tmp_path, pairs=(("masks", str(tmp_path / "mask")),))
    assert {path for path, _, _ in samples_of(out)} == {f"{name}.jpg" for name in [*masks][:6]}
    found = rejected(out)
    assert found["small.jpg"].startswith("its masks.png: the mask has 12x8 pixels (width x height), the image 24x16; ")
    assert found["turned.jpg"].startswith(
        "its masks.png: the mask has 16x24 pixels (width x height), the image 24x16; "
    )
    assert found["rgb.jpg"].startswith("its masks.png: the mask is a PNG of RGB colors, which are no class numbers")
    assert found["rgba.jpg"].startswith("its masks.png: the mask is a PNG of RGBA colors, ")
    assert found["jpeg.jpg"].startswith("its masks.png: a mask must be a PNG; ")
    assert found["jpeg.jpg"].endswith("; give it another name if it is no mask")
    other = run(folder, tmp_path / "other", pairs=(("right", str(tmp_path / "mask")),))
    assert rejected(other) == {}


def test_masks_of_cocos_sizes_must_have_the_images(tmp_path: Path) -> None:
    pytest.importorskip("pycocotools")
    folder = images(tmp_path / "src", "a.jpg", "b.jpg")
    write(folder / "b.jpg", encode(pixels(1, 48, 32)))
    place = coco(tmp_path, [{"image_id": id_, "segmentation": [SQUARE]} for id_ in (10, 11)])
    out = run(folder, tmp_path, annotations=str(place), instance_masks=True)
    assert rejected(out)["b.jpg"].startswith(
        "its instances.png: the mask has 24x16 pixels (width x height), the image 48"
    )


def test_masks_of_samples_that_are_none_are_counted(tmp_path: Path) -> None:
    jpeg, rgb = encode(pixels(1)), encode(pixels(1), "PNG")
    rows = [(gray(1), rgb), (gray(1, 12, 8), rgb), (rgb, rgb), (b"", rgb)]
    samples = [{"jpg": jpeg, "masks.png": mask, "label.png": other} for mask, other in rows]
    summary = feeder.write_shards(samples, tmp_path / "out", encode="keep", shuffle=False, samples_per_shard=1)
    assert [note for note in summary.notes if "T.Mask" in note] == [
        "label.png of 4 samples is nothing that T.Mask takes, which says why when it reads one",
        "masks.png of 3 samples is nothing that T.Mask takes, which says why when it reads one",
    ]
    assert verify(str(tmp_path / "out")) == []


def test_a_run_over_pairs_resumes_and_notices_changes(tmp_path: Path) -> None:
    folder, masks = tmp_path / "img", tmp_path / "mask"
    images(folder, *(f"{i}.jpg" for i in range(9)))
    images(masks, *(f"{i}.png" for i in range(9)))
    options = kept(samples_per_shard=2, workers=1, targets=TargetSources(pairs=(("masks", str(masks)),)))
    with pytest.raises(KeyboardInterrupt):
        shard(str(folder), str(tmp_path / "out"), options, progress=StopAtOnce())
    shard(str(folder), str(tmp_path / "out"), options)
    shard(str(folder), str(tmp_path / "whole"), options)
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")
    assert shard(str(folder), str(tmp_path / "out"), options).written_shards == 0
    (masks / "3.png").rename(masks / "3.PNG")
    with pytest.raises(ShardError, match="holds the shards of another dataset, or of this one before it changed"):
        shard(str(folder), str(tmp_path / "out"), options)


def test_an_unfinished_run_notices_a_mask_that_changed(tmp_path: Path) -> None:
    folder, masks = tmp_path / "img", tmp_path / "mask"
    images(folder, *(f"{i}.jpg" for i in range(4)))
    images(masks, *(f"{i}.png" for i in range(4)))
    options = kept(samples_per_shard=2, workers=1, targets=TargetSources(pairs=(("masks", str(masks)),)))
    with pytest.raises(KeyboardInterrupt):
        shard(str(folder), str(tmp_path / "out"), options, progress=StopAtOnce())
    later = (masks / "3.png").stat().st_mtime_ns + 10**9
    os.utime(masks / "3.png", ns=(later, later))
    with pytest.raises(ShardError, match="over these before they changed"):
        shard(str(folder), str(tmp_path / "out"), options)


def test_files_stay_with_the_samples_that_others_are_rejected_beside(tmp_path: Path) -> None:
    folder, masks = images(tmp_path / "img", "a.jpg", "b.jpg"), images(tmp_path / "mask", "a.png", "b.png")
    source = open_pairs(str(folder), (("masks", str(masks)),), None)
    reject_samples(source, {0: "not wanted"})
    assert source.read(0) == [(None, (folder / "b.jpg").read_bytes()), ("masks.png", (masks / "b.png").read_bytes())]


def test_a_folder_that_is_missing_is_named(tmp_path: Path) -> None:
    folder = images(tmp_path / "img", "a.jpg")
    gone = tmp_path / "gone"
    with pytest.raises(SourceError, match="gone: no such folder"):
        run(folder, tmp_path, pairs=(("masks", str(gone)),))
    with pytest.raises(SourceError, match="gone: no such folder"):
        run(gone, tmp_path, annotations=str(coco(tmp_path, [])))
    with pytest.raises(SourceError, match=r"x.txt: can't be read: No such file"):
        run(folder, tmp_path, pairs=(("masks", str(folder)),), names=str(tmp_path / "x.txt"))


def test_a_mask_that_is_too_large_is_named(tmp_path: Path) -> None:
    folder, masks = images(tmp_path / "img", "a.jpg", "b.jpg"), images(tmp_path / "mask", "a.png", "b.png")
    write(masks / "b.png", b"x" * 5000)
    targets = TargetSources(pairs=(("masks", str(masks)),))
    shard(str(folder), str(tmp_path / "out"), kept(max_bad=1, max_file_bytes=4000, targets=targets))
    assert rejected(tmp_path / "out") == {
        "b.jpg": "its masks.png: 5,000 bytes are more than the 4,000 that an image or field may have"
    }


def test_the_command_takes_pairs_and_annotations(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, masks = images(tmp_path / "img", "a.jpg"), images(tmp_path / "mask", "a.png")
    assert main(["shard", "--pair", f"images={folder}", f"masks={masks}", "-q"]) == 0
    assert member(tmp_path / "img-shards", "a.jpg", "masks.png") == (masks / "a.png").read_bytes()
    manifest = Manifest.read(str(tmp_path / "img-shards"))
    assert manifest is not None
    assert manifest.source["kind"] == "paired files"
    place = str(coco(tmp_path, [], ("a.jpg",)))
    assert main(["shard", str(folder), "--annotations", place, "--out", str(tmp_path / "boxes"), "-q"]) == 0
    assert boxes_of(tmp_path / "boxes", "a.jpg") == {"boxes": [], "labels": [], "image_id": 10}
    capsys.readouterr()
    wrong = {
        ("shard",): "expected SRC, or --pair images=DIR NAME=DIR ... in its place",
        ("shard", "--pair", f"images={folder}"): "expected SRC, or --pair",
        ("shard", str(folder), "--pair", f"images={folder}", f"masks={masks}"): "expected SRC, or --pair",
        ("shard", "--pair", f"images={folder}", str(masks)): "--pair takes NAME=DIR",
        ("shard", "--pair", f"images={folder}", f"mas/ks={masks}"): "a pair's name must be a field's, such as 'masks'",
        ("shard", str(folder), "--names", "x"): "names choose among the samples of annotations or pairs",
        ("shard", str(folder), "--annotations", place, "--encode", "jpeg", "--max-side", "8"): "max_side would shrink",
        ("shard", str(folder), "--annotations", place, "--pair", "a=b"): "expected SRC, or --pair",
        ("shard", str(folder), "--instance-masks"): "instance_masks are made of annotations; give COCO's JSON",
    }
    for command, message in wrong.items():
        assert main(list(command)) == 2
        assert message in capsys.readouterr().err
    assert main(["shard", str(folder), "--annotations", place, "--no-labels", "--out", str(tmp_path / "x")]) == 1
    assert "options for manifests, labels and tars don't go with annotations" in capsys.readouterr().err
    assert main(["shard", "--pair", f"images={folder}", f"masks={masks}", "--out", str(masks / "out")]) == 1
    assert "lies inside the source" in capsys.readouterr().err
