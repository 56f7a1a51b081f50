"""Recipes: values that compare and pickle, and the part of them that boxes and an affine map can say."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from feeder.errors import ArgumentError
from feeder.transforms import (
    CenterCrop,
    ColorJitter,
    Compose,
    Normalize,
    Op,
    Pad,
    RandomApply,
    RandomCrop,
    RandomErasing,
    RandomHorizontalFlip,
    RandomResizedCrop,
    RandomRotation,
    RandomZoomOut,
    Recipe,
    Resize,
    ToDtype,
)
from tests.support.recipes import ALL_OPS, SIZES, draw

MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]


def test_a_recipe_shows_its_ops_line_by_line() -> None:
    recipe = Compose([Resize((8, 9)), RandomApply([RandomHorizontalFlip()], 0.25)])
    lines = (
        "    Resize(size=(8, 9), interpolation='bilinear', max_size=None),\n"
        "    RandomApply(transforms=(RandomHorizontalFlip(p=0.5),), p=0.25),\n"
    )
    assert repr(recipe) == f"Compose(\n{lines})"
    assert repr(Recipe.of(recipe)) == f"Recipe(\n{lines})"
    assert repr(Recipe()) == "Recipe()"


def test_recipes_pickle_and_compare_by_value() -> None:
    recipe = Recipe.of(Compose(ALL_OPS))
    copy = pickle.loads(pickle.dumps(recipe))
    assert copy == recipe
    assert hash(copy) == hash(recipe)
    assert repr(copy) == repr(recipe)
    before, after = recipe.draw(1, 1, [5], SIZES[:1]), copy.draw(1, 1, [5], SIZES[:1])
    np.testing.assert_array_equal(before.source_box, after.source_box)
    assert Recipe.of(recipe) is recipe
    assert Recipe.of(None).ops == ()
    assert Recipe.of(Compose([Compose(ALL_OPS[:2]), *ALL_OPS[2:]])) == recipe


@pytest.mark.parametrize(
    ("ops", "length", "base_size", "output_size"),
    [
        ([], 0, None, None),
        ([RandomResizedCrop(9), RandomHorizontalFlip(), Normalize(MEAN, STD)], 3, (9, 9), (9, 9)),
        ([Resize(9), CenterCrop(8), ToDtype("float32"), RandomHorizontalFlip()], 4, (8, 8), (8, 8)),
        ([Resize(9), RandomCrop((8, 9))], 2, (8, 9), (8, 9)),
        ([Resize(9)], 1, None, None),
        ([Resize((9, 7))], 1, (9, 7), (9, 7)),
        ([Resize(9), CenterCrop(10)], 1, None, (10, 10)),
        ([Resize(9, max_size=20), CenterCrop(8)], 1, None, (8, 8)),
        ([CenterCrop(8)], 0, None, (8, 8)),
        ([Resize(9), RandomCrop(8, padding=1)], 1, None, (8, 8)),
        ([RandomResizedCrop(9), Resize(7)], 1, (9, 9), (7, 7)),
        ([RandomResizedCrop((9, 18)), Resize(7)], 1, (9, 18), (7, 14)),
        ([RandomResizedCrop(9, interpolation="bicubic")], 1, (9, 9), (9, 9)),
        ([RandomResizedCrop(9, interpolation="lanczos")], 0, None, (9, 9)),
        ([RandomResizedCrop(9), ColorJitter(0.4), RandomHorizontalFlip()], 1, (9, 9), (9, 9)),
        ([RandomResizedCrop(9), Normalize(MEAN, STD), RandomErasing()], 1, (9, 9), (9, 9)),
        ([RandomResizedCrop(9), Pad((1, 2))], 1, (9, 9), (13, 11)),
        ([RandomResizedCrop(9), RandomRotation(5, expand=True)], 1, (9, 9), None),
        ([RandomResizedCrop(9), RandomRotation(5)], 1, (9, 9), (9, 9)),
        ([Resize((9, 7)), RandomZoomOut()], 1, (9, 7), None),
        ([RandomZoomOut(), RandomResizedCrop(9)], 0, None, (9, 9)),
    ],
)
def test_base_path_is_the_longest_part_that_boxes_can_say(
    ops: list[Op], length: int, base_size: tuple[int, int] | None, output_size: tuple[int, int] | None
) -> None:
    recipe = Recipe.of(ops)
    assert recipe.base_length == length
    assert recipe.rest == tuple(ops[length:])
    assert recipe.is_base_path == (length == len(ops))
    assert recipe.base_size == base_size
    assert recipe.output_size == output_size
    draws = recipe.draw(0, 0, np.arange(len(SIZES)), SIZES)
    if base_size is not None:
        assert (draws.base_size == base_size).all()
    if output_size is not None:
        assert (draws.output_size == output_size).all()


def test_boxes_of_a_random_resized_crop_are_the_crop() -> None:
    draws = draw([RandomResizedCrop(9)])
    crop = draws.ops[0]
    box = np.stack([crop["left"], crop["top"], crop["left"] + crop["width"], crop["top"] + crop["height"]], axis=1)
    np.testing.assert_array_equal(draws.source_box, box)
    np.testing.assert_array_equal(draws.support_box, box)
    assert draws.source_box.dtype == np.float64
    assert draws.support_box.dtype == np.int32
    assert draws.flip.dtype == np.uint8


def test_boxes_of_resize_and_center_crop_are_fractional_with_the_whole_image_as_support() -> None:
    draws = draw([Resize(256), CenterCrop(224)], sizes=np.array([[375, 500]]))
    # The image becomes 341 x 256; the window starts at round(117 / 2) = 58 and at 16.
    x, y = 500 / 341, 375 / 256
    np.testing.assert_allclose(draws.source_box, [[58 * x, 16 * y, 282 * x, 240 * y]])
    np.testing.assert_array_equal(draws.support_box, [[0, 0, 500, 375]])


def test_a_window_after_a_flip_is_counted_from_the_other_side() -> None:
    flipped = draw([Resize((10, 20)), RandomHorizontalFlip(1.0), RandomCrop((10, 4))], sizes=np.array([[10, 20]]))
    left = int(flipped.ops[2]["left"][0])
    np.testing.assert_allclose(flipped.source_box, [[16 - left, 0, 20 - left, 10]])
    assert flipped.flip.tolist() == [1]
    twice = draw([RandomHorizontalFlip(1.0), RandomHorizontalFlip(1.0)], sizes=np.array([[10, 20]]))
    assert twice.flip.tolist() == [0]


@pytest.mark.parametrize(
    ("ops", "dtype", "scale", "bias"),
    [
        ([], "uint8", None, None),
        ([ToDtype("uint8", scale=True)], "uint8", None, None),
        ([ToDtype("float32")], "float32", 1.0, 0.0),
        ([ToDtype("float32", scale=True)], "float32", 1 / 255, 0.0),
        ([Normalize([0.5], [0.25])], "float32", 4 / 255, -2.0),
        ([ToDtype("float32", scale=True), Normalize([0.5], [0.25])], "float32", 4 / 255, -2.0),
        ([ToDtype("float32"), Normalize([128], [64])], "float32", 1 / 64, -2.0),
        ([ToDtype("float16", scale=True), ToDtype("float32", scale=True)], "float32", 1 / 255, 0.0),
        ([Normalize([0.5], [0.25]), ToDtype("bfloat16")], "bfloat16", 4 / 255, -2.0),
        ([Normalize([0.5], [0.25]), Normalize([1.0], [2.0])], "float32", 2 / 255, -1.5),
    ],
)
def test_affine_says_what_the_value_ops_do(ops: list[Op], dtype: str, scale: float | None, bias: float | None) -> None:
    recipe = Recipe.of(ops)
    assert recipe.output_dtype == dtype
    assert recipe.storage_dtype == ("uint16" if dtype == "bfloat16" else dtype)
    if scale is None or bias is None:
        assert recipe.affine is None
    else:
        assert recipe.affine is not None
        np.testing.assert_allclose(recipe.affine[0], [scale] * 3, rtol=1e-6)
        np.testing.assert_allclose(recipe.affine[1], [bias] * 3, rtol=1e-6)
        assert recipe.affine[0].dtype == np.float32


def test_sample_ids_and_sizes_must_be_of_one_length() -> None:
    with pytest.raises(ArgumentError, match="got 2 and 6"):
        draw([Resize(3)], ids=[1, 2])


def test_another_modules_compose_is_named_on_one_line() -> None:
    class Other:
        def __repr__(self) -> str:
            return "Compose(\n      Resize(size=[8])\n)"

    with pytest.raises(ArgumentError, match=r"got Compose\( Resize\(size=\[8\]\) \);"):
        Recipe.of(Other())  # type: ignore[arg-type]
