"""The kernels' draws: those of the recipe, to the bit, or none."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feeder.loader.fast.part_runner import base_ops
from feeder.transforms import (
    CenterCrop,
    ClampBoundingBoxes,
    ColorJitter,
    Compose,
    LetterBox,
    Normalize,
    Op,
    Pad,
    RandomCrop,
    RandomHorizontalFlip,
    RandomResizedCrop,
    RandomVerticalFlip,
    Recipe,
    Resize,
    SanitizeBoundingBoxes,
    SanitizeKeyPoints,
    ToDtype,
)

RECIPES: list[list[Op]] = [
    [RandomResizedCrop(224), RandomHorizontalFlip(), ToDtype("float32", scale=True)],
    [RandomHorizontalFlip(0.3), RandomResizedCrop((96, 160), (0.2, 0.9), (0.5, 3.0)), RandomHorizontalFlip(0.9)],
    [RandomResizedCrop(32, (0.9, 1.0), (3.0, 4.0))],  # hardly ever fits
    [RandomResizedCrop(8, (0.0, 1e-4))],
    [Resize(256), CenterCrop(224)],
    [Resize((200, 300)), RandomCrop((101, 150)), RandomHorizontalFlip()],
    [Resize(64, max_size=80)],
    [Resize(None, max_size=333)],
    [Resize((48, 97), cover=True), CenterCrop((48, 97))],
    [RandomHorizontalFlip(), Resize(40), RandomCrop(33), RandomHorizontalFlip(), CenterCrop(21)],
    [ToDtype("float32", scale=True), Normalize((0.5,) * 3, (0.5,) * 3), RandomHorizontalFlip()],
    [RandomHorizontalFlip(0.5), ColorJitter(0.4)],  # the rest is none of theirs
    [SanitizeBoundingBoxes(), RandomResizedCrop(9), ClampBoundingBoxes(), SanitizeKeyPoints(), RandomHorizontalFlip()],
    [RandomCrop(32, 4), RandomHorizontalFlip()],
    [RandomHorizontalFlip(), RandomCrop((300, 40), (0, 9), pad_if_needed=True, fill=3), RandomHorizontalFlip()],
    [Resize(40), RandomHorizontalFlip(), Pad((3, 5, 60, 0), 7), RandomCrop(33, 9, fill=7), RandomHorizontalFlip()],
    [Pad(9), CenterCrop((15, 220)), RandomCrop(13, 70)],  # of which hardly anything is left
    [RandomHorizontalFlip(), LetterBox((97, 200)), RandomHorizontalFlip(), CenterCrop(90)],
]
sides = st.integers(1, 5000) | st.sampled_from([1, 2, 65_500])


def check(recipe: Recipe, seed: int, epoch: int, keys: list[int], sizes: list[tuple[int, int]]) -> int:
    """Compares the draws of both; returns the number of those that the kernels left undecided."""
    recipe = recipe.framed
    ops = base_ops(recipe)
    assert ops is not None
    expected = recipe.draw(seed, epoch, keys, sizes)
    undecided = 0
    for k, found in enumerate(ops.draw(seed, epoch, np.array(keys), np.array(sizes))):
        if found is None:
            undecided += 1
            continue
        source, support, size, flip, frame = found
        assert source == tuple(expected.source_box[k].tolist())
        assert support == tuple(expected.support_box[k].tolist())
        assert size == tuple(expected.base_size[k].tolist())
        assert flip == bool(expected.flip[k])
        assert expected.frame is not None
        assert frame == tuple(expected.frame[k].tolist())
    return undecided


@pytest.mark.parametrize("ops", RECIPES, ids=repr)
@given(
    seed=st.integers(0, 2**64 - 1),
    epoch=st.integers(0, 2**32 - 1),
    samples=st.lists(st.tuples(st.integers(0, 2**62), st.tuples(sides, sides)), min_size=1, max_size=40),
)
def test_draws_are_the_recipes_to_the_bit(ops: list[Op], seed: int, epoch: int, samples: list[Any]) -> None:
    check(Recipe.of(ops), seed, epoch, [key for key, _ in samples], [size for _, size in samples])


@pytest.mark.parametrize("ops", RECIPES, ids=repr)
def test_draws_of_photos_are_nearly_all_decided(ops: list[Op]) -> None:
    sizes = np.random.default_rng(1).integers(120, 3000, (4000, 2))
    assert check(Recipe.of(ops), 7, 3, list(range(4000)), sizes.tolist()) == 0


def test_sides_of_exactly_a_half_are_left_undecided() -> None:
    recipe = Recipe.of(RandomResizedCrop(8, (0.25, 0.25), (1.0, 1.0)))
    sizes = [(11, 11), (12, 12), (101, 101), (102, 100)]
    assert check(recipe, 0, 0, [0, 1, 2, 3], sizes) == 2
    ops = base_ops(recipe)
    assert ops is not None
    found = ops.draw(0, 0, np.arange(4), np.array(sizes))
    assert [each is None for each in found] == [True, False, True, False]


def test_images_that_are_too_small_are_left_undecided() -> None:
    ops = base_ops(Recipe.of([Resize(8), CenterCrop(8)]))
    assert ops is not None
    ops.add_random_crop(5, 9, 8, (0, 0, 0, 0), False)
    assert ops.draw(0, 0, np.arange(1), np.array([[20, 20]])) == [None]


class Own(RandomHorizontalFlip):
    """May draw in a way of its own."""


@pytest.mark.parametrize(
    "op", [Own(), Resize(1 << 16), Resize((8, 1 << 17)), RandomResizedCrop(8, interpolation="random")], ids=repr
)
def test_unknown_ops_and_sizes_have_no_native_draws(op: Op) -> None:
    assert base_ops(Recipe.of(Compose([op]))) is None


def test_ops_after_the_base_path_do_not_matter() -> None:
    assert base_ops(Recipe.of([RandomResizedCrop(8), RandomVerticalFlip(), Own()])) is not None


def test_impossible_numbers_are_refused() -> None:
    ops = base_ops(Recipe.of(RandomResizedCrop(8)))
    assert ops is not None
    for sizes in ([[0, 5]], [[5, 1 << 31]], [[5, 5], [5, 5]]):
        with pytest.raises(ValueError, match="sizes"):
            ops.draw(0, 0, np.arange(1), np.array(sizes))
    with pytest.raises(ValueError, match="stream"):
        ops.add_horizontal_flip(1 << 16, 0.5)
    with pytest.raises(ValueError, match="padding"):
        ops.add_pad((0, -1, 0, 0))
    with pytest.raises(ValueError, match="side"):
        ops.add_resize("other", 1, 1, 0)
    with pytest.raises(ValueError, match="sizes"):
        ops.add_center_crop(-1, 5)
