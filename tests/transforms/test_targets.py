"""Targets: how they are declared, which ops they refuse, and draws that depend on boxes."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from feeder import transforms as T
from feeder.errors import ArgumentError
from feeder.transforms.boxes import Boxes, SampleBoxes
from feeder.transforms.op import Uniforms
from feeder.transforms.targets import check_targets
from tests.golden import target_draws


class Given(Uniforms):
    """Uniform numbers that the test has chosen, for one sample."""

    def __init__(self, numbers: npt.ArrayLike) -> None:
        self._numbers = np.asarray(numbers, np.float64)[None]

    def __call__(self, count: int, rows: npt.NDArray[np.int64] | None = None) -> npt.NDArray[np.float64]:
        return self._numbers[:, :count]


@pytest.mark.parametrize("case", target_draws("iou"), ids=lambda case: f"{case['args']}-{case['window']}")
def test_windows_of_iou_crops_are_those_of_torchvision(case: dict[str, Any]) -> None:
    op, sizes = T.RandomIoUCrop(**case["args"]), np.array([case["size"]])
    params, after = op.draw_from(Given(case["uniforms"]), sizes, [case["boxes"]])
    window = [int(params[name][0]) for name in ("top", "left", "height", "width")]
    assert window == (case["window"] or [0, 0, *case["size"]])
    assert bool(params["crop"][0]) == (case["window"] is not None)
    assert after.tolist() == [window[2:]]


def test_the_golden_iou_crops_have_whole_images_and_cut_ones() -> None:
    assert {case["window"] is None for case in target_draws("iou")} == {True, False}


def test_an_iou_crop_that_finds_no_window_leaves_the_image_whole() -> None:
    op = T.RandomIoUCrop(sampler_options=[0.5])
    for boxes in (np.zeros((0, 4), np.float32), np.array([[500, 500, 510, 510]], np.float32)):
        params, _ = op.draw_from(Uniforms(0, 0, np.arange(1), 0), np.array([[40, 50]]), [boxes])
        assert [int(params[name][0]) for name in ("top", "left", "height", "width", "crop")] == [0, 0, 40, 50, 0]


def test_an_iou_crop_draws_from_the_boxes_as_the_ops_before_it_leave_them() -> None:
    # All boxes lie in the lower right corner; mirrored both ways they lie in the upper left one.
    boxes = SampleBoxes([Boxes(np.array([[80, 80, 100, 100]], np.float32), "xyxy")] * 50)
    sizes = np.full((50, 2), 100)
    crop = T.RandomIoUCrop(max_scale=0.5, sampler_options=[0.0])
    corner = T.Recipe.of([crop]).draw(0, 0, np.arange(50), sizes, boxes)
    mirrored = [T.RandomHorizontalFlip(1.0), T.RandomVerticalFlip(1.0), crop]
    other = T.Recipe.of(mirrored).draw(0, 0, np.arange(50), sizes, boxes)
    for name, far in (("top", "height"), ("left", "width")):
        assert (corner.ops[0][name] + corner.ops[0][far] > 90).all()
        assert (other.ops[2][name] < 10).all()


def test_an_iou_crop_with_boxes_of_the_same_sample_is_the_same_whatever_the_batch() -> None:
    recipe = T.Recipe.of([T.RandomZoomOut(), T.RandomIoUCrop(), T.Resize((32, 32))])
    rng = np.random.default_rng(0)
    start = rng.uniform(0, 60, (6, 3, 2))
    boxes = [Boxes(each.astype(np.float32)) for each in np.concatenate([start, start + 30], axis=2)]
    sizes = rng.integers(90, 120, (6, 2))
    whole = recipe.draw(1, 2, np.arange(6), sizes, SampleBoxes(boxes))
    one = recipe.draw(1, 2, [4], sizes[4:5], SampleBoxes(boxes[4:5]))
    for all_params, params in zip(whole.ops, one.ops, strict=True):
        for name, values in params.items():
            np.testing.assert_array_equal(all_params[name][4:5], values)


def test_drawing_an_iou_crop_without_boxes_says_what_to_give() -> None:
    with pytest.raises(ArgumentError, match=r"targets=\{'boxes\.json': T\.BoundingBoxes\(\)\}"):
        T.Recipe.of([T.RandomIoUCrop()]).draw(0, 0, [0], [[10, 10]])


@pytest.mark.parametrize("case", target_draws("jitter"), ids=str)
def test_sizes_of_scale_jitter_are_those_of_torchvision(case: dict[str, Any]) -> None:
    params, after = T.ScaleJitter(**case["args"]).draw(Given([case["uniform"]]), np.array([case["size"]]))
    assert after.tolist() == [case["result"]]
    assert [int(params["resized_height"][0]), int(params["resized_width"][0])] == case["result"]


def test_declarations_take_torchs_spellings() -> None:
    assert T.Mask(255, torch.uint8) == T.Mask(fill=255, dtype=np.uint8) == T.Mask(fill=255, dtype="uint8")
    assert T.Mask(dtype=torch.int32).dtype == "int32"
    assert T.BoundingBoxes(format="XYWH") == T.BoundingBoxes("xywh")
    assert (T.BoundingBoxes().format, T.BoundingBoxes().clamping_mode) == ("xyxy", "soft")
    assert T.KeyPoints() == T.KeyPoints(canvas=None) != T.KeyPoints(canvas="stored")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: T.Mask(256), "fill of a Mask of uint8 must be an integer from 0 to 255, got 256"),
        (lambda: T.Mask(True), "got True"),
        (lambda: T.Mask(dtype="int64"), "must be one of uint8, int32, got 'int64'"),
        (lambda: T.Mask(canvas="raw"), "canvas must be one of stored, upright, None, got 'raw'"),
        (lambda: T.BoundingBoxes("xyxyxyxy"), "must be one of xyxy, xywh, cxcywh, got"),
        (lambda: T.BoundingBoxes(clamping_mode="auto"), "clamping_mode must be one of soft, hard, None"),
        (lambda: T.BoundingBoxes(first_label=-1), "first_label must be an integer from 0 to 2147483647, got -1"),
        (lambda: T.ClampBoundingBoxes("never"), "clamping_mode must be"),
        (lambda: T.SanitizeBoundingBoxes(min_size=0.5), "min_size must be a number of 1 or more"),
        (lambda: T.SanitizeBoundingBoxes(min_area=0), "min_area must be"),
        (lambda: T.RandomIoUCrop(min_scale=0.0), "min_scale and max_scale"),
        (lambda: T.RandomIoUCrop(min_aspect_ratio=3.0), "min_aspect_ratio and max_aspect_ratio"),
        (lambda: T.RandomIoUCrop(sampler_options=[]), "sampler_options"),
        (lambda: T.RandomIoUCrop(sampler_options=0.5), "sampler_options as a list"),  # type: ignore[arg-type]
        (lambda: T.RandomIoUCrop(min_scale="small"), "takes numbers"),  # type: ignore[arg-type]
        (lambda: T.RandomIoUCrop(trials=0), "trials"),
        (lambda: T.ScaleJitter(0), "target_size"),
        (lambda: T.ScaleJitter(8, scale_range=(2.0, 1.0)), "scale_range"),
    ],
)
def test_bad_arguments_are_refused_by_name(make: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        make()


@pytest.mark.parametrize(
    "op", [T.AugMix(), T.AutoAugment(), T.RandAugment(), T.TimmRandAugment(), T.TrivialAugmentWide()], ids=repr
)
@pytest.mark.parametrize("target", [T.Mask(), T.BoundingBoxes(), T.KeyPoints()], ids=repr)
def test_automatic_augmentation_is_refused_with_targets_as_in_torchvision(op: T.Op, target: Any) -> None:
    for recipe in ([op], [T.RandomApply([op])]):
        with pytest.raises(ArgumentError, match=f"{type(op).__name__} can't be used with targets, as in torchvision"):
            check_targets(T.Recipe.of(recipe), (target,))
        check_targets(T.Recipe.of(recipe), ())


@pytest.mark.parametrize("mode", ["edge", "reflect", "symmetric"])
def test_padding_that_repeats_the_image_is_refused_with_boxes_and_keypoints(mode: str) -> None:
    for op in (T.Pad(2, padding_mode=mode), T.RandomCrop(8, 2, padding_mode=mode)):
        for target in (T.BoundingBoxes(), T.KeyPoints()):
            with pytest.raises(
                ArgumentError, match=rf"padding_mode='{mode}'\) can't be used with {type(target).__name__}"
            ):
                check_targets(T.Recipe.of([op]), (T.Mask(), target))
        check_targets(T.Recipe.of([op]), (T.Mask(),))


def test_an_iou_crop_needs_one_target_of_boxes() -> None:
    recipe = T.Recipe.of([T.RandomIoUCrop()])
    check_targets(recipe, (T.Mask(), T.BoundingBoxes()))
    for targets, number in (((), 0), ((T.Mask(),), 0), ((T.BoundingBoxes(), T.BoundingBoxes()), 2)):
        with pytest.raises(ArgumentError, match=f"needs one T.BoundingBoxes among the targets; there are {number}"):
            check_targets(recipe, targets)


@pytest.mark.parametrize(
    ("op", "target", "others"),
    [
        (T.SanitizeBoundingBoxes(), T.BoundingBoxes(), (T.Mask(), T.KeyPoints())),
        (T.SanitizeKeyPoints(), T.KeyPoints(), (T.Mask(), T.BoundingBoxes())),
    ],
)
def test_an_op_that_drops_targets_needs_some_of_its_kind(op: T.Op, target: Any, others: Any) -> None:
    recipe = T.Recipe.of([T.Resize((8, 8)), op])
    check_targets(recipe, (*others, target))
    for given in ((), others):
        with pytest.raises(
            ArgumentError, match=f"{type(op).__name__} is in the recipe, .* no T.{type(target).__name__}"
        ):
            check_targets(recipe, given)


def test_ops_on_targets_alone_leave_the_base_path_whole_wherever_they_stand() -> None:
    ops = [T.SanitizeBoundingBoxes(), T.RandomResizedCrop(8), T.ClampKeyPoints(), T.Normalize([0.5], [0.5])]
    recipe = T.Recipe.of([*ops, T.SanitizeKeyPoints(), T.ClampBoundingBoxes()])
    assert recipe.is_base_path
    assert recipe.output_size == (8, 8)


def test_iou_crops_and_scale_jitter_join_the_base_path() -> None:
    assert T.Recipe.of([T.RandomIoUCrop(), T.RandomHorizontalFlip(), T.Resize((8, 8))]).is_base_path
    assert T.Recipe.of([T.ScaleJitter(8), T.Normalize([0.5], [0.5])]).is_base_path
