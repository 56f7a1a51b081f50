"""Images, draws and staged batches for a DALI decoder."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from feeder import transforms as T
from feeder.decoders.dali.dali_decoder import DaliDecoder
from feeder.decoders.staged.trainer_decoder import StagedView, TrainerDecoder
from tests.support.conformance import decode, encode, natural_image

__all__ = ["BASE", "HEIGHT", "WIDTH", "check_alike", "draw", "finish", "jpeg", "rest", "run", "staged"]

BASE = T.Recipe.of([T.RandomResizedCrop(48), T.RandomHorizontalFlip()])
HEIGHT, WIDTH = 120, 160


def jpeg(seed: int = 0, **options: Any) -> bytes:
    return encode(natural_image(seed, HEIGHT, WIDTH), **options)


def draw(recipe: T.Recipe, count: int, epoch: int = 0) -> T.Draws:
    return recipe.draw(1, epoch, np.arange(count), [[HEIGHT, WIDTH]] * count)


def run(decoder: DaliDecoder, buffers: list[bytes], recipe: T.Recipe = BASE, epoch: int = 0) -> npt.NDArray[Any]:
    ones = np.ones(len(buffers), np.uint8)
    return decode(decoder, buffers, recipe, draw(recipe, len(buffers), epoch), ones)


def staged(decoder: DaliDecoder, buffers: list[bytes], recipe: T.Recipe, draws: T.Draws) -> Any:
    batch, result = decoder.stager.stage(buffers, np.ones(len(buffers), np.uint8), [recipe], [draws])
    assert result.errors == [None] * len(buffers)
    return batch


def rest(recipe: T.Recipe, draws: T.Draws) -> Any:
    return draws.ops[recipe.base_length :]


def finish(decoder: TrainerDecoder, batch: Any, recipe: T.Recipe, drawn: Any, **options: Any) -> tuple[Any, list[Any]]:
    """Returns the images and errors of a staged batch of which one view is made."""
    (images,), errors = decoder.finish(batch, [StagedView(recipe, drawn)], **options)
    return images, errors


def check_alike(found: npt.NDArray[Any], expected: npt.NDArray[Any], level: int = 8) -> None:
    """Fails if two decoders' pixels differ by more than they may."""
    difference = np.abs(found.astype(int) - expected)
    assert difference.mean() <= 0.6
    assert np.quantile(difference, 0.999) <= level
