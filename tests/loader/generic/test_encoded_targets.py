"""Masks, boxes and keypoints beside feeder.Encoded: moved with the image as those of feeder's own datasets."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import Dataset

import feeder
from feeder import transforms as T
from feeder.errors import ArgumentError, DecodeError
from tests.support.target_data import TARGETS, members, write_target_shards

COUNT = 12
KINDS = tuple(TARGETS.values())
MOVING = T.Compose([T.RandomResizedCrop(20), T.RandomHorizontalFlip(), T.SanitizeBoundingBoxes()])
WARPED = T.Compose([T.RandomRotation(30), T.RandomAffine(10, scale=(0.5, 1.5)), T.Resize((20, 20))])
DETECTION = T.Compose([T.RandomIoUCrop(), T.Resize((20, 20)), T.SanitizeBoundingBoxes()])
Values = Callable[[dict[str, bytes]], list[Any]]


def stored(files: dict[str, bytes]) -> list[Any]:
    return [files[name] for name in TARGETS]


def arrays(files: dict[str, bytes]) -> list[Any]:
    mask, boxes, points = np.asarray(pillow(files["seg.png"])), *map(parsed(np.array), ("boxes", "kp"), 2 * [files])
    return [mask.astype(np.int64), boxes, points]


def tensors(files: dict[str, bytes]) -> list[Any]:
    boxes, points = map(parsed(torch.tensor), ("boxes", "kp"), 2 * [files])
    return [pillow(files["seg.png"]), boxes, points]


def pillow(data: bytes) -> Any:
    return Image.open(io.BytesIO(data))


def parsed(kind: Callable[[Any], Any]) -> Callable[[str, dict[str, bytes]], dict[str, Any]]:
    def parse(name: str, files: dict[str, bytes]) -> dict[str, Any]:
        found = json.loads(files[f"{name}.json"])
        return {key: kind(value) if isinstance(value, list) else value for key, value in found.items()}

    return parse


class Scenes(Dataset[Any]):
    def __init__(self, recipe: Any, values: Values, **changed: Any) -> None:
        self.recipe = recipe
        self.values = values
        self.changed = changed

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, i: int) -> Any:
        files = members(i)
        values = self.values(files)
        if i == self.changed.get("bad"):
            values[0] = np.zeros((3, 4), np.uint8)
        pairs = [*zip(KINDS, values, strict=True)]
        return {"scene": feeder.Encoded(files["png"], self.recipe, targets=pairs), "row": i}


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_target_shards(tmp_path_factory.mktemp("targets"), COUNT)


def check_same(scene: Any, expected: Any) -> None:
    images, masks, boxes, points = scene
    assert torch.equal(images, expected[0])
    assert torch.equal(masks, expected[2])
    assert masks.dtype == torch.uint8
    for found, others in ((boxes, expected[3]), (points, expected[4])):
        assert [each.keys() for each in found] == [each.keys() for each in others]
        for one, other in zip(found, others, strict=True):
            assert all(torch.equal(torch.as_tensor(one[key]), torch.as_tensor(other[key])) for key in other)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("values", [stored, arrays, tensors])
@pytest.mark.parametrize("recipe", [MOVING, WARPED, DETECTION])
def test_targets_move_as_those_of_feeders_own_datasets(shards: Path, recipe: Any, values: Values, workers: int) -> None:
    own = feeder.ShardDataset(shards, recipe, targets=TARGETS)
    expected = feeder.DataLoader(own, batch_size=5, seed=7)
    loader = feeder.DataLoader(Scenes(recipe, values), batch_size=5, seed=7, num_workers=workers)
    for batch, others in zip(loader, expected, strict=True):
        check_same(batch["scene"], others)


def test_a_collate_function_gets_the_targets_behind_the_image() -> None:
    def scenes(samples: list[Any]) -> list[Any]:
        return [sample["scene"] for sample in samples]

    loader = feeder.DataLoader(Scenes(MOVING, stored), batch_size=5, seed=7, collate_fn=scenes)
    stacked = feeder.DataLoader(Scenes(MOVING, stored), batch_size=5, seed=7)
    for samples, batch in zip(loader, stacked, strict=True):
        images, masks, boxes, points = batch["scene"]
        for row, (image, mask, *others) in enumerate(samples):
            assert torch.equal(image, images[row])
            assert torch.equal(mask, masks[row])
            assert [each.keys() for each in others] == [boxes[row].keys(), points[row].keys()]


@pytest.mark.parametrize("workers", [0, 1])
def test_torchs_loader_moves_them_too(workers: int) -> None:
    fixed = T.Compose([T.Resize((48, 64)), T.CenterCrop((24, 32))])
    (theirs,), (ours,) = (
        list(cls(Scenes(fixed, arrays), batch_size=COUNT, num_workers=workers))
        for cls in (torch.utils.data.DataLoader, feeder.DataLoader)
    )
    images, masks, boxes, points = ours["scene"]
    check_same(theirs["scene"], (images, None, masks, boxes, points))
    image, mask, _, _ = Scenes(fixed, arrays)[3]["scene"].decode()
    assert torch.equal(image, images[3])
    assert torch.equal(mask, masks[3])


@pytest.mark.parametrize("kind", [None, "stored", "upright"])
def test_targets_of_a_turned_image_say_their_pixels(kind: str | None) -> None:
    files = members(1, 6, kind or "stored")
    mask = pillow(files["seg.png"])
    scene = feeder.Encoded(files["png"], targets=[(T.Mask(canvas=kind), mask)])
    if kind is None:
        with pytest.raises(DecodeError, match=r"target 'targets\[0\]': the image has EXIF orientation 6"):
            scene.decode()
        return
    image, found = scene.decode()
    assert torch.equal(image[0], found * 60)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_bad_target_is_an_error_or_replaces_its_sample(workers: int) -> None:
    options: Any = {"batch_size": 6, "seed": 7, "num_workers": workers}
    named = r"dataset\[2\].*targets\[0\].*4x3 pixels"
    with pytest.raises(DecodeError, match=named):
        list(feeder.DataLoader(Scenes(MOVING, stored, bad=2), **options))
    with pytest.warns(UserWarning, match="1 samples? of this epoch"):
        batches = list(feeder.DataLoader(Scenes(MOVING, stored, bad=2), on_error="skip", **options))
    expected = list(feeder.DataLoader(Scenes(MOVING, stored), **options))
    rows = torch.cat([batch["row"] for batch in batches]).tolist()
    assert [i for i in range(COUNT) if rows[i] != i] == [2]
    whole = [torch.cat([batch["scene"][k] for batch in expected]) for k in (0, 1)]
    for k, all_of in enumerate(whole):
        assert torch.equal(torch.cat([batch["scene"][k] for batch in batches]), all_of[rows])


@pytest.mark.parametrize(
    ("kind", "value", "message"),
    [
        (T.Mask(), np.full((24, 32), 256), r"fit into uint8, got int64 \[24, 32\]"),
        (T.Mask(), np.zeros((24, 32, 3), np.uint8), r"class numbers \[H, W\]"),
        (T.Mask(), np.zeros((24, 32), np.float32), "got float32"),
        (T.Mask(), "lost.png", "can't be read: No such file"),
        (T.BoundingBoxes(), np.zeros((2, 4)), 'expected {"boxes"'),
        (T.BoundingBoxes(), {"boxes": torch.zeros(2, 4)}, "no 'labels'"),
        (T.BoundingBoxes(), {"boxes": torch.zeros(2, 4), "labels": torch.zeros(3)}, "'labels' has 3 elements"),
        (T.KeyPoints(), {"keypoints": np.zeros((2, 3))}, "'keypoints' must be"),
    ],
)
def test_a_value_that_is_no_target_is_named(kind: Any, value: Any, message: str) -> None:
    with pytest.raises(DecodeError, match=message):
        feeder.Encoded(members(0)["png"], targets=[(kind, value)]).decode()


def test_targets_that_can_not_move_are_refused_when_they_are_made() -> None:
    mask = (T.Mask(), np.zeros((24, 32), np.uint8))
    for wrong in (T.Mask(), (T.Mask, 1), (T.Image(), b""), "ab"):
        with pytest.raises(ArgumentError, match=r"targets\[0\] must be a pair .* another feeder.Encoded"):
            feeder.Encoded(b"", targets=[wrong])  # type: ignore[list-item]
    with pytest.raises(ArgumentError, match="RandAugment can't be used with targets"):
        feeder.Encoded(b"", [T.RandAugment()], targets=[mask])
    with pytest.raises(ArgumentError, match=r"needs one T\.BoundingBoxes"):
        feeder.Encoded(b"", DETECTION, targets=[mask])
    with pytest.raises(ArgumentError, match="RandomIoUCrop draws from a sample's boxes"):
        feeder.Encoded(b"", DETECTION)


def test_inputs_stay_as_they_are() -> None:
    given = {"boxes": torch.tensor([[1, 2, 9, 9]]), "labels": (3,)}
    scene = feeder.Encoded(members(0)["png"], [T.RandomHorizontalFlip(1)], targets=[(T.BoundingBoxes(), given)])
    for _ in range(2):
        _, found = scene.decode()
        assert found["boxes"].tolist() == [[23, 2, 31, 9]]
        assert found["labels"].tolist() == [3]
    assert given.keys() == {"boxes", "labels"}
    assert torch.is_tensor(given["boxes"])


def test_a_target_that_can_not_be_read_is_named_not_the_image(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(members(0)["png"])
    sample = feeder.Encoded(tmp_path / "a.png", WARPED, targets=[(T.Mask(), tmp_path / "gone.png")])
    with pytest.raises(DecodeError, match=r"its target '.*gone\.png' can't be read: No such file"):
        sample.decode()


def test_targets_that_only_some_samples_of_a_batch_have_are_not_lost() -> None:
    image, mask = members(0)["png"], members(0)["seg.png"]
    samples = [feeder.Encoded(image, WARPED), feeder.Encoded(image, WARPED, targets=[(T.Mask(), mask)])]
    with pytest.raises(RuntimeError, match="equal size"):
        torch.utils.data.default_collate(samples)


def test_values_of_a_target_stay_as_they_are() -> None:
    given = {"boxes": torch.ones(1, 4, dtype=torch.bfloat16), "labels": (3,), "names": ("cat",), "mixed": ((1, "b"),)}
    sample = feeder.Encoded(members(0)["png"], WARPED, targets=[(T.BoundingBoxes(), given)])
    _, boxes = sample.decode()
    assert (boxes["labels"].tolist(), boxes["names"], boxes["mixed"]) == ([3], ["cat"], [(1, "b")])
    mask = members(0)["seg.png"]
    masks = [
        feeder.Encoded(members(0)["png"], T.Compose([T.Resize((20, 20))]), targets=[(T.Mask(), kind(mask))]).decode()[1]
        for kind in (bytes, bytearray, memoryview)
    ]
    assert torch.equal(masks[0], masks[1])
    assert torch.equal(masks[0], masks[2])
