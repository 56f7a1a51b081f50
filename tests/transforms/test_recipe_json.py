"""Recipes as JSON: what is read is what was written, and nothing else is read."""

from __future__ import annotations

import inspect
import json
from typing import Any

import numpy as np
import pytest

from feeder import transforms as T
from feeder.errors import ArgumentError
from feeder.transforms.recipe_json import mix_from_json, mix_to_json, recipe_from_json, recipe_to_json

_OPS = [
    T.AugMix(4, 2, 3, 0.5, all_ops=False, interpolation="nearest", fill=(1, 2, 3)),
    T.AutoAugment("svhn", fill=7),
    T.CenterCrop((5, 6)),
    T.ClampBoundingBoxes("hard"),
    T.ClampKeyPoints(),
    T.CornerCrop((5, 6), "bottom left"),
    T.ColorJitter(0.4, (0.2, 1.3), 0.2, 0.1),
    T.GaussianBlur((3, 5), (0.2, 0.3)),
    T.GaussianNoise(0.1, 0.3, clip=False),
    T.Normalize([0.1, 0.2, 0.3], 0.2),
    T.Pad((1, 2), 3, "reflect"),
    T.RandAugment(3, 4, 20, "bilinear", (1, 2, 3)),
    T.RandomAdjustSharpness(2, 0.3),
    T.Grayscale(3),
    T.JPEG((20, 90)),
    T.LetterBox((30, 40), (1, 2, 3), "bicubic"),
    T.RandomAffine(10, (0.1, 0.2), (0.9, 1.1), (1, 2, 3, 4), "bilinear", 5, (3, 4)),
    T.RandomApply([T.ColorJitter(0.1), T.RandomGrayscale(0.3)], 0.3),
    T.RandomAutocontrast(0.1),
    T.RandomChoice([T.ColorJitter(0.1), T.Compose([T.RandomInvert(), T.RandomEqualize(0.2)])], [0.1, 0.23]),
    T.RandomCrop(30, 4, True, 7, "edge"),
    T.RandomErasing(0.3, (0.1, 0.2), (0.5, 2), (1, 2, 3.5)),
    T.RandomErasing(value="random"),
    T.RandomHorizontalFlip(0.2),
    T.RandomIoUCrop(0.4, sampler_options=[0.1, 0.5], trials=10),
    T.RandomOrder([T.ColorJitter(0.1), T.Compose([T.RandomInvert(), T.RandomEqualize(0.2)])]),
    T.RandomPerspective(0.3, 0.2, fill=4),
    T.RandomPhotometricDistort((0.5, 1), hue=(-0.1, 0.2), p=0.3),
    T.RandomPosterize(4),
    T.RandomResize(20, 30, "bicubic"),
    T.RandomResizedCrop(T.ByEpoch({0: 128, 6: (160, 170)}), (0.1, 1), (1, 2), "bicubic"),
    T.RandomRotation(20, "bilinear", center=(1, 2)),
    T.RandomShortestSize((300, 400), 900),
    T.RandomSolarize(100),
    T.RandomVerticalFlip(),
    T.RandomZoomOut(3, (1.5, 2.5), 0.4),
    T.Resize(T.BUCKET, cover=True),
    T.Resize(None, max_size=20),
    T.SanitizeBoundingBoxes(3, 4),
    T.SanitizeKeyPoints(),
    T.ScaleJitter((20, 30), (0.5, 0.7)),
    T.RandomResizedCrop(24, interpolation="random"),
    T.TimmRandAugment("rand-m7-n3-p0.4", "bicubic", fill=(1, 2, 3)),
    T.ToDtype("float16", scale=True),
    T.TrivialAugmentWide(5, fill=(1, 2, 3)),
]


def through_json(recipe: Any) -> Any:
    return recipe_from_json(json.loads(json.dumps(recipe_to_json(recipe))))


@pytest.mark.parametrize("op", _OPS, ids=lambda op: type(op).__name__)
def test_an_op_comes_back_equal(op: T.Op) -> None:
    before = [] if op.on_images else [T.ToDtype("float32", scale=True)]
    recipe = T.Recipe.of([*before, op])
    assert through_json(recipe) == recipe


def test_numbers_of_numpy_are_written_as_numbers() -> None:
    width, trials, fill = np.int64(2), np.int64(3), np.uint8(255)
    ops = T.Compose([T.AugMix(mixture_width=width), T.RandomIoUCrop(trials=trials), T.RandAugment(np.int64(1))])
    assert through_json(T.Recipe.of(ops)) == T.Recipe.of(
        [T.AugMix(mixture_width=2), T.RandomIoUCrop(trials=3), T.RandAugment(1)]
    )
    assert type(T.Mask(fill).fill) is int
    assert type(T.MixUp(num_classes=np.int64(5)).num_classes) is int


def test_every_op_is_among_those_tested() -> None:
    classes = {each for each in vars(T).values() if inspect.isclass(each) and issubclass(each, T.Op)}
    tested = {type(op) for op in _OPS} | {T.ColorJitter, T.RandomGrayscale, T.RandomInvert, T.RandomEqualize}
    assert classes - tested <= {T.Op, T.Compose, T.Lambda}


def test_views_come_back_equal() -> None:
    views = T.Views([T.RandomResizedCrop(32)] * 2 + [T.Compose([T.RandomResizedCrop(16), T.RandomHorizontalFlip()])])
    assert through_json(views) == views


def test_mixing_ops_come_back_equal() -> None:
    ops = [T.MixUp(alpha=0.2), T.CutMix(num_classes=7)]
    assert mix_from_json(json.loads(json.dumps(mix_to_json(ops)))) == ops


@pytest.mark.parametrize("value", [None, {"MixUp": {}}, [{"BatchOp": {}}], [{"CenterCrop": {"size": [5, 5]}}], [3]])
def test_other_mixing_ops_are_refused(value: Any) -> None:
    with pytest.raises(ArgumentError):
        mix_from_json(value)


def test_a_function_is_refused() -> None:
    with pytest.raises(ArgumentError, match="Lambda"):
        recipe_to_json(T.Recipe.of(T.Lambda(abs)))


@pytest.mark.parametrize(
    "value",
    [
        None,
        {"Views": 3},
        [3],
        [{}],
        [{"Lambda": {"lambd": "os.system"}}],
        [{"Recipe": {"ops": []}}],
        [{"CenterCrop": {"size": [5, 5], "further": 1}}],
        [{"CenterCrop": {}}],
        [{"CenterCrop": {"size": "large"}}],
        [{"CenterCrop": {"size": {"ByEpoch": [3]}}}],
        [{"RandomHorizontalFlip": {"p": 7}}],
        [{"RandomApply": {"transforms": [{"RandomApply": {"transforms": [], "p": 0.5}}], "p": 0.5}}],
    ],
)
def test_anything_else_is_refused(value: Any) -> None:
    with pytest.raises(ArgumentError):
        recipe_from_json(value)
