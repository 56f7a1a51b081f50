"""Targets of datasets: masks, boxes and keypoints beside the image, moved with it."""

from __future__ import annotations

import json
import pickle
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, Subset

from feeder import transforms as T
from feeder.dataset.folders import FolderDataset
from feeder.dataset.shards import ShardDataset
from feeder.dataset.subset import as_feeder
from feeder.errors import ArgumentError, DecodeError
from tests.support.target_data import SCALE, TARGETS, boxes_in, members, png, write_target_shards

# Ops that move whole pixels, so that image, mask, boxes and keypoints can be held against each other.
WHOLE_PIXELS = [T.Pad((3, 1)), T.RandomCrop((20, 28)), T.RandomHorizontalFlip(), T.RandomVerticalFlip()]
CANVASES = ("stored", "upright")


def moved(canvas: str | None) -> dict[str, Any]:
    return {
        "seg.png": T.Mask(canvas=canvas),
        "boxes.json": T.BoundingBoxes(canvas=canvas),
        "kp.json": T.KeyPoints(canvas=canvas),
    }


def check_sample(image: torch.Tensor, mask: torch.Tensor, boxes: dict[str, Any], points: dict[str, Any]) -> None:
    """Holds a sample's values against each other."""
    assert mask.dtype == torch.uint8
    torch.testing.assert_close(image, (mask * SCALE).expand(3, -1, -1))
    expected = boxes_in(mask.numpy())
    height, width = mask.shape
    for box, label, area in zip(boxes["boxes"].tolist(), boxes["labels"].tolist(), boxes["area"], strict=True):
        # What lies outside has become a box without area, as in torchvision.
        assert expected.get(label, box) == box
        assert (box[2] - box[0]) * (box[3] - box[1]) <= area
    assert set(expected) <= set(boxes["labels"].tolist())
    for (x, y), label in zip(points["keypoints"].tolist(), points["labels"].tolist(), strict=True):
        if 0 <= x < width and 0 <= y < height:
            assert mask[int(y), int(x)] == label


def test_a_sample_has_its_targets_after_the_label_moved_as_the_image(tmp_path: Path) -> None:
    dataset = ShardDataset(write_target_shards(tmp_path), WHOLE_PIXELS, ["key", "index"], targets=TARGETS)
    changed = 0
    for i in range(len(dataset)):
        image, label, mask, boxes, points, key, index = dataset[i]
        assert (label, key, index) == (i % 7, f"{i:04d}", i)
        check_sample(image, mask, boxes, points)
        changed += not torch.equal(mask, dataset[i][2])
    assert changed > 10
    assert dataset.fields == ("key", "index")
    assert "targets={'seg.png': Mask(" in repr(dataset)


@pytest.mark.parametrize("has_labels", [True, False])
def test_boxes_are_float32_labels_int64_and_lists_stay_lists(tmp_path: Path, has_labels: bool) -> None:
    empty = json.dumps({"boxes": [], "area": []} | ({"labels": []} if has_labels else {})).encode()
    groups = json.dumps({"keypoints": [[[1, 2], [3, 4]]], "visibility": [[2, 0]]}).encode()
    replaced = {(0, "boxes.json"): empty, (0, "kp.json"): groups}
    dataset = ShardDataset(write_target_shards(tmp_path, 2, replaced=replaced), targets=TARGETS)
    boxes, points = dataset[0][3:]
    assert (boxes["boxes"].shape, boxes["boxes"].dtype) == ((0, 4), torch.float32)
    assert (boxes["labels"].shape, boxes["labels"].dtype) == ((0,), torch.int64)
    assert boxes["area"] == []
    assert points["keypoints"].tolist() == [[[1, 2], [3, 4]]]
    assert (points["keypoints"].dtype, points["visibility"]) == (torch.float32, [[2, 0]])
    assert dataset[1][3]["id"] == 1


@pytest.mark.parametrize(
    "transform", [None, [T.CenterCrop(8), T.Resize(20), T.ClampKeyPoints(), T.SanitizeKeyPoints()]]
)
def test_an_image_without_keypoints_has_the_shape_of_the_others(tmp_path: Path, transform: Any) -> None:
    given: list[Any] = [{"keypoints": []}, {"keypoints": [], "points_per_group": 17}]
    given.append({"keypoints": np.full((2, 17, 2), 16).tolist(), "points_per_group": 17})
    replaced = {(i, "kp.json"): json.dumps(each).encode() for i, each in enumerate(given)}
    path = write_target_shards(tmp_path, 3, replaced=replaced)
    dataset = ShardDataset(path, transform, targets={"kp.json": T.KeyPoints()})
    found = [dataset[i][2]["keypoints"] for i in range(3)]
    assert [each.shape for each in found] == [(0, 2), (0, 17, 2), (2, 17, 2)]
    assert {each.dtype for each in found} == {torch.float32}
    assert dataset[1][2]["points_per_group"] == 17


def test_labels_count_from_the_first_one_with_those_of_dropped_boxes(tmp_path: Path) -> None:
    path = write_target_shards(tmp_path, 4)
    recipe = T.Compose([T.CenterCrop(8), T.SanitizeBoundingBoxes()])
    from_0, from_1 = (
        ShardDataset(path, recipe, targets={"boxes.json": T.BoundingBoxes(first_label=first)}) for first in (0, 1)
    )
    for i in range(4):
        assert torch.equal(from_1[i][2]["labels"], from_0[i][2]["labels"] + 1)


def test_sanitizing_drops_boxes_with_their_labels_and_lists(tmp_path: Path) -> None:
    given = {
        "boxes": [[0, 0, 9, 9], [4, 4, 4, 20], [20, 2, 30, 9]],
        "labels": [5, 6, 7],
        "name": ["a", "b", "c"],
        "id": 9,
    }
    replaced = {(0, "boxes.json"): json.dumps(given).encode()}
    path = write_target_shards(tmp_path, 1, replaced=replaced)
    whole = ShardDataset(path, targets=TARGETS)[0][3]
    assert (len(whole["boxes"]), whole["name"]) == (3, ["a", "b", "c"])
    left = ShardDataset(path, [T.CenterCrop((24, 10)), T.SanitizeBoundingBoxes(2)], targets=TARGETS)[0][3]
    assert left["boxes"].shape == (0, 4)
    left = ShardDataset(path, [T.SanitizeBoundingBoxes(), T.ToDtype("float32")], targets=TARGETS)[0][3]
    assert left["boxes"].tolist() == [[0, 0, 9, 9], [20, 2, 30, 9]]
    assert (left["labels"].tolist(), left["name"], left["id"]) == ([5, 7], ["a", "c"], 9)


@pytest.mark.parametrize("canvas", CANVASES)
def test_targets_of_turned_images_follow_their_canvas(tmp_path: Path, canvas: str) -> None:
    orientations = {i: i + 1 for i in range(8)}
    path = write_target_shards(tmp_path, 8, orientations=orientations, canvas=canvas)
    for ops in (None, WHOLE_PIXELS):
        dataset = ShardDataset(path, ops, targets=moved(canvas))
        for i in range(8):
            image, _, mask, boxes, points = dataset[i]
            check_sample(image, mask, boxes, points)


@pytest.mark.parametrize(("canvas", "other"), [("stored", "upright"), ("upright", "stored")])
def test_the_error_for_a_mask_of_the_other_canvas_names_it(tmp_path: Path, canvas: str, other: str) -> None:
    path = write_target_shards(tmp_path, 1, orientations={0: 6}, canvas=canvas)
    with pytest.raises(DecodeError, match=f"; canvas='{canvas}' would fit"):
        ShardDataset(path, targets={"seg.png": T.Mask(canvas=other)})[0]


def test_a_turned_image_needs_a_canvas(tmp_path: Path) -> None:
    path = write_target_shards(tmp_path, 2, orientations={1: 6})
    for name in TARGETS:
        with pytest.warns(UserWarning, match=rf"1 of the first 2 images have .*'{name}' canvas='stored'.*'upright'"):
            dataset = ShardDataset(path, targets={name: TARGETS[name]})
        dataset[0]
        with pytest.raises(
            DecodeError, match=f"'{name}': the image has EXIF orientation 6: give the target canvas='stored'"
        ) as caught:
            dataset[1]
        assert "0001" in str(caught.value)
    image, _, mask, *_ = ShardDataset(path, targets=TARGETS, exif_orientation="ignore")[1]
    torch.testing.assert_close(image[0], mask * SCALE)
    with pytest.raises(ArgumentError, match="canvas='upright', and exif_orientation='ignore'"):
        ShardDataset(path, targets=moved("upright"), exif_orientation="ignore")


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("seg.png", None, "target 'seg.png': the sample has no such member"),
        ("seg.png", b"x", "target 'seg.png': a mask must be a PNG"),
        ("seg.png", png(np.zeros((9, 8), np.uint8)), "the mask has 8x9 pixels .width x height., the image 32x24"),
        ("seg.png", png(np.zeros((24, 32, 3), np.uint8)), "RGB colors, which are no class numbers"),
        ("boxes.json", b"[", "target 'boxes.json': not JSON"),
        ("boxes.json", b"[1]", "expected {\"boxes\": .* got '\\[1\\]'"),
        ("boxes.json", b'{"box": []}', "got an object with 'box'"),
        ("boxes.json", b'{"boxes": [[1, 2, 3]]}', "'boxes' must be .*4 numbers"),
        ("boxes.json", b'{"boxes": [[1, 2, 3, NaN]]}', "all finite"),
        ("boxes.json", b'{"boxes": [[1, 2, 3, 1e300]]}', "all finite"),
        ("boxes.json", b'{"boxes": [[1, 2, 3, "4"]]}', "'boxes' must be"),
        ("boxes.json", b'{"boxes": [[1, 2, 3, 4], [1]]}', "'boxes' must be"),
        ("boxes.json", b'{"boxes": [[1, 2, 3, 4]]}', r'no .labels.: give each box a label, "labels": \[0\]'),
        ("boxes.json", b'{"boxes": [[1, 2, 3, 4], [5, 6, 7, 8]]}', r'has boxes and no .labels.*"labels": \[0, ...\]'),
        ("boxes.json", b'{"boxes": [[1, 2, 3, 4]], "labels": []}', "'labels' has 0 elements, and there are 1 boxes"),
        ("boxes.json", b'{"boxes": [[1, 2, 3, 4]], "labels": [1.5]}', "'labels' must be a list of ints"),
        ("boxes.json", b'{"boxes": [[1, 2, 3, 4]], "labels": ["cat"]}', "'labels' must be a list of ints"),
        ("boxes.json", b'{"boxes": [[1, 2, 3, 4]], "labels": 3}', "'labels' must be a list of ints"),
        ("boxes.json", b'{"boxes": [[1, 2, 3, 4]], "area": [1, 2]}', "'area' has 2 elements"),
        ("kp.json", b'{"keypoints": [1, 2]}', "'keypoints' must be"),
        ("kp.json", b'{"keypoints": [[1, 2, 3]]}', "'keypoints' must be"),
        ("kp.json", b'{"keypoints": [[[1, 2]], [[1, 2], [3, 4]]]}', "groups of equal length"),
        ("kp.json", b'{"keypoints": [], "points_per_group": 0}', "'points_per_group' must be an int from 1 to 65,535"),
        ("kp.json", b'{"keypoints": [], "points_per_group": 1e9}', "'points_per_group' must be an int"),
        ("kp.json", b'{"keypoints": [[1, 2]], "points_per_group": 1}', r"is 1, and the keypoints have .* \(1, 2\)"),
        ("kp.json", b'{"keypoints": [[[1, 2]]], "points_per_group": 2}', r"is 2, and the keypoints .* \(1, 1, 2\)"),
    ],
)
def test_bad_targets_name_the_sample_and_the_member(
    tmp_path: Path, name: str, data: bytes | None, message: str
) -> None:
    dataset = ShardDataset(write_target_shards(tmp_path, 2, replaced={(1, name): data}), targets=TARGETS)
    dataset[0]
    with pytest.raises(DecodeError, match=message) as caught:
        dataset[1]
    assert caught.value.key == "0001"
    assert f"target '{name}'" in str(caught.value)


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        ({"no.png": T.Mask()}, "'no.png' is in no sample"),
        ({"seg.png": T.Mask}, "got the class Mask; write T.Mask"),
        ({"seg.png": "mask"}, "must be a T.Mask, T.BoundingBoxes, T.KeyPoints or T.Image, got 'mask'"),
        (["seg.png"], "targets must be a mapping"),
        ({"width": T.Mask()}, "target 'width' is no member"),
        ({"model.pkl": T.Mask()}, "'model.pkl' is refused"),
    ],
)
def test_wrong_targets_are_refused_when_the_dataset_is_made(tmp_path: Path, targets: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        ShardDataset(write_target_shards(tmp_path, 1), targets=targets)


def test_recipes_that_cannot_move_targets_are_refused_when_the_dataset_is_made(tmp_path: Path) -> None:
    path = write_target_shards(tmp_path, 1)
    with pytest.raises(ArgumentError, match="RandAugment can't be used with targets"):
        ShardDataset(path, T.RandAugment(), targets={"seg.png": T.Mask()})
    for targets in (None, {"seg.png": T.Mask()}):
        with pytest.raises(ArgumentError, match=r"needs one T\.BoundingBoxes among the targets"):
            ShardDataset(path, T.RandomIoUCrop(), targets=targets)


def test_an_iou_crop_draws_from_the_samples_boxes(tmp_path: Path) -> None:
    ops = [T.RandomIoUCrop(sampler_options=[0.3]), T.SanitizeBoundingBoxes()]
    dataset = ShardDataset(write_target_shards(tmp_path, 12), ops, targets=TARGETS)
    smaller = 0
    for i in range(len(dataset)):
        image, _, mask, boxes, _ = dataset[i]
        torch.testing.assert_close(image[0], mask * SCALE)
        assert len(boxes["boxes"]) > 0
        smaller += mask.shape != (24, 32)
    assert smaller > 6


def test_an_iou_crop_of_a_turned_image_draws_from_its_turned_boxes(tmp_path: Path) -> None:
    ops = [T.RandomIoUCrop(sampler_options=[0.3]), T.SanitizeBoundingBoxes()]
    orientations = dict.fromkeys(range(12), 6)
    for canvas in CANVASES:
        path = write_target_shards(tmp_path / canvas, 12, orientations=orientations, canvas=canvas)
        dataset = ShardDataset(path, ops, targets=moved(canvas))
        assert all(len(dataset[i][3]["boxes"]) > 0 for i in range(12))


def test_subsets_concatenations_and_pickles_keep_targets(tmp_path: Path) -> None:
    path = write_target_shards(tmp_path, 8)
    dataset = ShardDataset(path, T.CenterCrop(20), targets=TARGETS)
    for wrapped, i in ((Subset(dataset, [5, 2]), 5), (ConcatDataset([dataset, dataset]), 0)):
        found = as_feeder(wrapped)
        assert found is not None
        torch.testing.assert_close(found[0][2], dataset[i][2])
    torch.testing.assert_close(pickle.loads(pickle.dumps(dataset))[3][3]["boxes"], dataset[3][3]["boxes"])


@pytest.mark.parametrize(
    ("others", "field"),
    [
        ("{}.seg.png", "seg.png"),
        ("{}.png", "png"),
        ("{}.right.jpg", "right.jpg"),
        ("{}.copy.jpg", None),
        ("{}.depth.png", "depth.png"),
        ("b{}.png", None),
    ],
)
def test_a_folder_names_the_first_image_that_looks_like_a_mask(tmp_path: Path, others: str, field: str | None) -> None:
    (tmp_path / "a").mkdir()
    image = members(0)["png"]
    for i in range(6):
        (tmp_path / "a" / f"{i}.jpg").write_bytes(image)
        # One JPEG alone may have its name by chance.
        if i == 1 or (i in (3, 5) and field is not None and field != "depth.png"):
            (tmp_path / "a" / others.format(i)).write_bytes(image)
    if field is None:
        assert len(FolderDataset(tmp_path)) == 7
        return
    told = re.escape(f"images such as a/{others.format(1)} are samples") + rf".*targets={{'{field}': T.Mask\(\)}}"
    with pytest.warns(UserWarning, match=told):
        assert len(FolderDataset(tmp_path)) == (7 if field == "depth.png" else 9)
    target = T.Image() if field == "right.jpg" else T.Mask()
    assert len(FolderDataset(tmp_path, targets={field: target})) == 6


def test_a_folder_has_targets_beside_its_images(tmp_path: Path) -> None:
    for i in range(4):
        folder = tmp_path / "ab"[i % 2]
        folder.mkdir(exist_ok=True)
        for name, data in members(i, orientation=1 if i else 6).items():
            if name != "cls":
                (folder / f"{i}.{name}").write_bytes(data)
    dataset = FolderDataset(tmp_path, WHOLE_PIXELS, ["key"], targets=moved("stored"))
    assert [dataset[i][5] for i in range(len(dataset))] == ["a/0.png", "a/2.png", "b/1.png", "b/3.png"]
    for i in range(4):
        image, _, *rest, _ = dataset[i]
        check_sample(image, *rest)
    (tmp_path / "a" / "2.seg.png").unlink()
    with pytest.raises(DecodeError, match=r"a/2\.png.*'seg\.png': the sample has no such member"):
        dataset[1]
