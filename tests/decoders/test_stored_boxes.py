"""Boxes of images as they are stored."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from feeder import transforms as T
from feeder.decoders.stored_boxes import stored_boxes, turn_codes
from tests.support.gpu_oracle import turn

RECIPE = T.Recipe.of([T.RandomResizedCrop(32), T.RandomHorizontalFlip()])
# How each orientation is stored, from the upright image: the inverse of what a viewer does.
STORE = {
    1: lambda u: u,
    2: lambda u: u[:, ::-1],
    3: lambda u: u[::-1, ::-1],
    4: lambda u: u[::-1],
    5: lambda u: u.transpose(1, 0, 2),
    6: lambda u: np.rot90(u, 1),
    7: lambda u: np.rot90(u, 2).transpose(1, 0, 2),
    8: lambda u: np.rot90(u, -1),
}


@pytest.mark.parametrize("flip", [0, 1])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_the_stored_box_turned_is_the_upright_box(orientation: int, flip: int) -> None:
    upright = np.arange(60 * 80 * 3).reshape(60, 80, 3)
    stored = STORE[orientation](upright)
    draws = replace(RECIPE.draw(0, 0, [0], [[60, 80]]), flip=np.array([flip], np.uint8))
    orientations = np.array([orientation], np.uint8)
    support, source = stored_boxes(draws, orientations)
    np.testing.assert_array_equal(support, source)
    left, top, right, bottom = support[0]
    code = int(turn_codes(orientations, draws.flip)[0])
    found = turn(stored[top:bottom, left:right], code)
    left, top, right, bottom = draws.support_box[0]
    expected = upright[top:bottom, left:right]
    np.testing.assert_array_equal(found, expected[:, ::-1] if flip else expected)
