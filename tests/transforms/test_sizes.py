"""Sizes of buckets and of epochs, resizes that cover a size, and random lengths of the shorter side."""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feeder import transforms as T
from feeder.errors import ArgumentError
from feeder.transforms import Op, Recipe
from feeder.transforms.recipe_json import recipe_from_json, recipe_to_json

SIZES = np.array([[375, 500], [500, 375], [64, 64], [30, 900]])
IDS = np.arange(len(SIZES))


@pytest.mark.parametrize(
    "make",
    [
        lambda size: [T.RandomResizedCrop(size)],
        lambda size: [T.Resize(size, cover=True), T.RandomCrop(size), T.RandomHorizontalFlip()],
        lambda size: [T.Resize(size, cover=True), T.CenterCrop(size)],
        lambda size: [T.Resize(size), T.ToDtype("float32")],
    ],
)
def test_a_recipe_for_buckets_is_that_of_the_buckets_size(make: Callable[[object], list[Op]]) -> None:
    recipe = Recipe.of(make(T.BUCKET))
    assert recipe.is_variable
    assert recipe.output_size is None
    for size in ((64, 96), (40, 40)):
        fixed = Recipe.of(make(size))
        found = recipe.at(size, 3)
        assert found == fixed
        assert found.output_size == size
        assert found is recipe.at(size, 0)
        ours, theirs = found.draw(1, 2, IDS, SIZES), fixed.draw(1, 2, IDS, SIZES)
        np.testing.assert_array_equal(ours.source_box, theirs.source_box)
    assert fixed.at((8, 8), 0) is fixed
    with pytest.raises(ArgumentError, match="sizes="):
        recipe.draw(1, 2, IDS, SIZES)


def test_sizes_by_epoch_are_those_of_the_last_epoch_named_before() -> None:
    recipe = Recipe.of(
        [T.Resize(T.ByEpoch({6: 48, 0: 40}), max_size=90), T.CenterCrop(T.ByEpoch({0: 32, 9: (24, 90), 6: 36}))]
    )
    assert recipe.output_size == (24, 90)  # slots are made for it
    assert recipe.phases == (0, 6, 9)
    for epochs, ops in (
        ((0, 5), [T.Resize(40, max_size=90), T.CenterCrop(32)]),
        ((6, 8), [T.Resize(48, max_size=90), T.CenterCrop(36)]),
        ((9, 1000), [T.Resize(48, max_size=90), T.CenterCrop((24, 90))]),
    ):
        for epoch in epochs:
            assert recipe.at(None, epoch) == Recipe.of(ops)
            assert recipe.at((7, 7), epoch).output_size == Recipe.of(ops).output_size
            drawn = recipe.draw(1, epoch, IDS, SIZES)
            np.testing.assert_array_equal(drawn.source_box, Recipe.of(ops).draw(1, epoch, IDS, SIZES).source_box)


@pytest.mark.parametrize(
    ("make", "sizes"),
    [
        (lambda size: T.RandomShortestSize(size, max_size=700), {0: 40, 2: (60, 72), 6: 400}),
        (lambda size: T.RandomShortestSize((40, 60), max_size=size), {0: 60, 2: 72, 6: None}),
        (lambda size: T.Resize(40, max_size=size), {0: 41, 3: 60}),
        (lambda size: T.Resize(None, max_size=size), {0: 41, 3: 60}),
        (T.ScaleJitter, {0: 40, 2: (60, 72)}),
    ],
)
def test_resizes_to_no_fixed_size_take_sizes_by_epoch(make: Callable[[object], Op], sizes: dict[int, object]) -> None:
    recipe = Recipe.of(make(T.ByEpoch(sizes)))
    assert recipe.phases == tuple(sizes)
    assert recipe_from_json(recipe_to_json(recipe)) == recipe
    for epoch in range(8):
        fixed = Recipe.of(make(sizes[max(first for first in sizes if first <= epoch)]))
        found, expected = (each.draw(1, epoch, IDS, SIZES).output_size for each in (recipe, fixed))
        np.testing.assert_array_equal(found, expected)


def test_the_largest_length_grows_with_the_shorter_one() -> None:
    recipe = Recipe.of(T.Resize(T.ByEpoch({0: 40, 4: 80}), max_size=T.ByEpoch({0: 60, 4: 120, 6: 90})))
    assert recipe.phases == (0, 4, 6)
    for epoch, size, longest in ((3, 40, 60), (4, 80, 120), (6, 80, 90)):
        assert recipe.at(None, epoch) == Recipe.of(T.Resize(size, max_size=longest))


def test_variable_sizes_pickle_compare_and_show_themselves() -> None:
    recipe = Recipe.of([T.Resize(T.BUCKET, cover=True), T.RandomCrop(T.ByEpoch({0: 8, 4: [8, 9]}))])
    before = recipe.at((9, 9), 0)
    copy = pickle.loads(pickle.dumps(recipe))
    assert copy == recipe
    assert hash(copy) == hash(recipe)
    assert copy.at((9, 9), 0) == before
    assert "Resize(size=BUCKET, interpolation='bilinear', max_size=None, cover=True)" in repr(recipe)
    assert "RandomCrop(size=ByEpoch({0: (8, 8), 4: (8, 9)})" in repr(recipe)
    assert recipe != Recipe.of([T.Resize(T.BUCKET, cover=True), T.RandomCrop(T.ByEpoch({0: 8}))])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: T.ByEpoch({1: 8}), "from 0 on"),
        (lambda: T.ByEpoch({0: 8, -1: 9}), "from 0 on"),
        (lambda: T.ByEpoch({0: 8, 1.5: 9}), "from 0 on"),  # type: ignore[dict-item]
        (lambda: T.ByEpoch([128, 160]), "from 0 on"),  # type: ignore[arg-type]
        (lambda: T.CenterCrop(T.ByEpoch({0: 8, 3: 0})), "positive"),
        (lambda: T.Resize(T.ByEpoch({0: 8, 3: 20}), max_size=20), "greater than size"),
        (
            lambda: T.Resize(T.ByEpoch({0: 8, 3: 30}), max_size=T.ByEpoch({0: 20, 5: 40})),
            "greater than size, got max_size=20 with size=30",
        ),
        (lambda: T.Resize(T.ByEpoch({0: 8, 3: (8, 9)}), max_size=20), r"one int, got size=\(8, 9\)"),
        (lambda: T.RandomShortestSize(480, T.ByEpoch({0: 500, 1: 0})), "max_size must be a positive int"),
        (lambda: T.Resize(T.BUCKET, max_size=20), "size=None or one int"),
        (lambda: T.Resize(8, max_size=20, cover=True), "size=None or one int"),
        (lambda: T.Resize(None, cover=True), "max_size must be an int"),
        (lambda: T.RandomChoice([T.CenterCrop(T.BUCKET)]), "CenterCrop can't be in RandomChoice"),
        (lambda: T.RandomShortestSize([]), "at least one"),
        (lambda: T.RandomResize(20, 20), "0 < min_size < max_size, got 20 and 20"),
        (lambda: T.RandomResize((20, 30), 40), r"got \(20, 30\) and 40"),  # type: ignore[arg-type]
        (lambda: T.JPEG(0), "quality must be 1 to 100"),
        (lambda: T.JPEG((30, 150)), r"got \(30, 150\)"),
        (lambda: T.RandomShortestSize([480, 0]), "min_size must be a positive int"),
        (lambda: T.RandomShortestSize(480, 0), "max_size must be a positive int"),
        (lambda: T.RandomShortestSize(T.ByEpoch({0: 480, 3: [0]})), "min_size must be a positive int"),
        (lambda: T.RandomShortestSize(T.BUCKET), "min_size must be a positive int.*got BUCKET"),
        (lambda: T.ScaleJitter(T.BUCKET), "target_size must be a positive int.*got BUCKET"),
        (lambda: T.RandomShortestSize(480, antialias=False), "antialias"),
    ],
)
def test_impossible_sizes_are_refused(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        make()


@settings(max_examples=200, deadline=None)
@given(*[st.integers(1, 3000)] * 4)
def test_a_covering_resize_is_just_large_enough(height: int, width: int, image_height: int, image_width: int) -> None:
    op, image = T.Resize((height, width), cover=True), np.array([(image_height, image_width)])
    found = op.draw(None, image).sizes[0].tolist()  # type: ignore[arg-type]
    scale = max(Fraction(height, image_height), Fraction(width, image_width))
    assert found == [math.floor(image_height * scale), math.floor(image_width * scale)]


def test_a_square_is_covered_as_the_shorter_side_is_resized() -> None:
    sizes = np.random.default_rng(0).integers(1, 2000, (500, 2))
    covering, plain = (
        Recipe.of(T.Resize(224, cover=cover)).draw(0, 0, np.arange(500), sizes) for cover in (True, False)
    )
    np.testing.assert_array_equal(covering.output_size, plain.output_size)
    assert Recipe.of([T.Resize((64, 96), cover=True), T.CenterCrop((64, 96))]).is_base_path


def test_lengths_of_the_shorter_side_are_all_drawn_and_known_to_the_base_path() -> None:
    recipe = Recipe.of([T.RandomShortestSize([24, 32, 40], max_size=60), T.RandomHorizontalFlip()])
    sizes = np.full((300, 2), (500, 400))
    drawn = recipe.draw(1, 0, np.arange(300), sizes)
    found, counts = np.unique(drawn.output_size, axis=0, return_counts=True)
    assert found.tolist() == [[30, 24], [40, 32], [50, 40]]
    assert counts.min() > 60
    assert recipe.is_base_path
    assert recipe.output_size is None
    assert not Recipe.of([T.RandomShortestSize(40, max_size=60), T.CenterCrop(40)]).is_base_path


def test_random_lengths_are_drawn_below_the_greatest_and_resized_as_by_resize() -> None:
    sizes = np.random.default_rng(0).integers(1, 3000, (2000, 2))
    drawn = Recipe.of(T.RandomResize(24, 28)).draw(3, 1, np.arange(2000), sizes)
    shorter = drawn.output_size.min(axis=1)
    assert set(shorter.tolist()) == {24, 25, 26, 27}
    for length in range(24, 28):
        same = Recipe.of(T.Resize(length)).draw(0, 0, np.arange(2000), sizes).output_size
        np.testing.assert_array_equal(drawn.output_size[shorter == length], same[shorter == length])
