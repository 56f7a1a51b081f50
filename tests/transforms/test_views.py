"""Views: recipes of fixed size, one for each view."""

from __future__ import annotations

import operator
import pickle
from io import BytesIO
from typing import Any

import numpy as np
import pytest

import feeder
from feeder import transforms as T
from feeder.errors import ArgumentError

LARGE = T.Compose([T.RandomResizedCrop(224, scale=(0.4, 1.0)), T.RandomHorizontalFlip(), T.ToDtype("float32", True)])
SMALL = [T.RandomResizedCrop(96, scale=(0.05, 0.4)), T.RandomHorizontalFlip()]


def test_views_have_the_recipes_in_order() -> None:
    views = T.Views([LARGE] * 2 + [SMALL] * 3)
    assert [recipe.output_size for recipe in views.views] == [(224, 224)] * 2 + [(96, 96)] * 3
    assert [recipe.output_dtype for recipe in views.views] == ["float32"] * 2 + ["uint8"] * 3
    assert views == T.Views([LARGE, LARGE, SMALL, SMALL, SMALL])
    assert views != T.Views([LARGE, SMALL, LARGE, SMALL, SMALL])
    assert pickle.loads(pickle.dumps(views)) == views
    assert repr(views).count("RandomResizedCrop") == 5


@pytest.mark.parametrize(
    ("transforms", "said"),
    [
        ([], "at least one recipe"),
        (LARGE, "at least one recipe"),
        ([LARGE, T.Views([LARGE])], "view 1 of Views is a Views"),
        ([LARGE, T.Compose([T.Resize(96)])], r"view 1 of Views depends on the image: Resize\(size=\(96,"),
        (SMALL, r"view 1 of Views is RandomHorizontalFlip.*Views\(\[\[op, op"),
        ([LARGE, []], "view 1 of Views depends on the image: it has no ops"),
        ([LARGE, [T.RandomResizedCrop(T.BUCKET)]], "view 1 of Views has the size T.BUCKET"),
        ([[T.Resize(T.ByEpoch({0: 8, 3: (16, 16)}))]], "view 0 of Views depends on the image"),
        ([LARGE, "crop"], "expected an op of feeder.transforms, got 'crop'"),
    ],
    ids=[
        "none",
        "no list",
        "nested",
        "size of the image",
        "one flat recipe",
        "no ops",
        "bucket",
        "size of the image by epoch",
        "no op",
    ],
)
def test_views_refuse_what_they_can_not_make(transforms: Any, said: str) -> None:
    with pytest.raises(ArgumentError, match=f"(?s){said}"):
        T.Views(transforms)


def test_each_view_has_the_size_of_its_epoch() -> None:
    growing = T.RandomResizedCrop(T.ByEpoch({0: 8, 3: 16}))
    views = T.Views([growing, SMALL, T.Resize(T.ByEpoch({0: (4, 6), 2: (5, 9)}))])
    assert views.phases == (0, 2, 3)
    sizes = [[view.output_size for view in views.at(None, epoch).views] for epoch in range(4)]
    first = [(8, 8), (96, 96), (4, 6)]
    assert sizes == [first, first, [(8, 8), (96, 96), (5, 9)], [(16, 16), (96, 96), (5, 9)]]
    assert all(map(operator.is_, views.at(None, 1).views, views.at(None, 0).views))
    assert pickle.loads(pickle.dumps(views)) == views
    fixed = T.Views([SMALL])
    assert fixed.at(None, 9) is fixed


def test_views_are_no_op_of_a_recipe() -> None:
    ops: Any = [T.Views([SMALL]), T.RandomHorizontalFlip()]
    for make in (T.Compose, T.Recipe.of):
        with pytest.raises(ArgumentError, match="Views stands among other ops"):
            make(ops)


def crops(image: Any, height: int, width: int) -> list[Any]:
    """Returns the corners and the middle, in the order of torchvision's FiveCrop."""
    rest = image.shape[1] - height, image.shape[2] - width
    corners = [(0, 0), (0, rest[1]), (rest[0], 0), rest, (round(rest[0] / 2), round(rest[1] / 2))]
    return [image[:, y : y + height, x : x + width] for y, x in corners]


@pytest.mark.parametrize("backend", ["cpu", "pillow"])
@pytest.mark.parametrize("size", [(24, 20), (31, 45), (24, 43)])
def test_five_and_ten_crops_are_the_corners_and_the_middle(size: tuple[int, int], backend: str) -> None:
    image = np.random.default_rng(0).integers(0, 256, (3, 31, 45), np.uint8)
    file = BytesIO()
    np.save(file, image.transpose(1, 2, 0))

    def made(views: T.Views) -> list[Any]:
        return [feeder.decode([file.getvalue()], view, backend=backend)[0].numpy() for view in views.views]

    expected = crops(image, *size) + crops(image[:, :, ::-1], *size)
    np.testing.assert_array_equal(made(T.Views.five_crop(size)), expected[:5])
    np.testing.assert_array_equal(made(T.Views.ten_crop(size, after=[T.RandomInvert(1.0)])), 255 - np.array(expected))


def test_crops_are_of_what_the_ops_before_them_make() -> None:
    before, after = [T.Resize(40)], [T.ToDtype("float32", scale=True)]
    views = T.Views.ten_crop(32, before=before, after=after)
    assert views.views[4] == T.Recipe.of([*before, T.CenterCrop(32), *after])
    assert views.views[6] == T.Recipe.of([*before, T.RandomHorizontalFlip(1.0), T.CornerCrop(32, "top right"), *after])


def test_a_corner_is_named() -> None:
    with pytest.raises(ArgumentError, match="corner must be one of top left, top right, bottom left, bottom right"):
        T.CornerCrop(8, "top")


@pytest.mark.parametrize("backend", ["cpu", "pillow"])
def test_a_corner_of_a_smaller_image_has_a_border_at_the_other_sides(backend: str) -> None:
    file = BytesIO()
    np.save(file, np.full((4, 9, 3), 7, np.uint8))
    found = feeder.decode([file.getvalue()], T.CornerCrop((6, 5), "bottom right"), backend=backend)[0].numpy()
    np.testing.assert_array_equal(found, np.pad(np.full((3, 4, 5), 7, np.uint8), ((0, 0), (2, 0), (0, 0))))
