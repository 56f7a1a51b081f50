"""Masks cut by the numbers of their rows and columns."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from feeder import _native


@pytest.mark.parametrize("dtype", ["uint8", "int32"])
def test_a_cut_is_numpys_with_the_rest_filled(dtype: str) -> None:
    rng = np.random.default_rng(0)
    whole = rng.integers(0, 200, (9, 14)).astype(dtype)
    masks: list[Any] = [whole, whole.T, whole[::2, 3:], whole[:, ::-1], np.asfortranarray(whole)]
    for given, fill in itertools.product(masks, (0, 255)):
        for height, width in ((5, 7), (30, 3), (0, 4), (4, 0)):
            rows, columns = (rng.integers(-3, n, m) for n, m in zip(given.shape, (height, width), strict=True))
            out = np.full((height, width), 7, dtype)
            _native.cut_mask(given, np.sort(rows), columns, fill, out)
            expected = given[np.ix_(np.maximum(np.sort(rows), 0), np.maximum(columns, 0))].copy()
            expected[np.sort(rows) < 0] = fill
            expected[:, columns < 0] = fill
            np.testing.assert_array_equal(out, expected)


def test_a_mask_without_pixels_gives_the_fill() -> None:
    out = np.zeros((2, 3), np.uint8)
    _native.cut_mask(np.zeros((0, 0), np.uint8), np.full(2, -1), np.full(3, -1), 9, out)
    assert (out == 9).all()


@pytest.mark.parametrize(
    ("rows", "columns", "shape", "message"),
    [
        ([0, 4], [0], (2, 1), "a number of rows is not in the mask"),
        ([0], [5, 0], (1, 2), "a number of columns is not in the mask"),
        ([0], [0, 1], (2, 1), "out must have a row for each of rows"),
    ],
)
def test_numbers_outside_the_mask_are_refused(
    rows: list[int], columns: list[int], shape: tuple[int, int], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        _native.cut_mask(np.zeros((4, 5), np.uint8), np.array(rows), np.array(columns), 0, np.zeros(shape, np.uint8))


def test_arrays_of_different_dtypes_are_refused() -> None:
    with pytest.raises(TypeError):
        _native.cut_mask(
            np.zeros((4, 5), np.uint8), np.zeros(1, np.int64), np.zeros(1, np.int64), 0, np.zeros((1, 1), "i4")
        )
