"""Several views of an image under DALI: decoded once where that is cheaper, with the pixels of each view alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from feeder import transforms as T
from feeder.decoders.dali.dali_decoder import DaliDecoder
from feeder.decoders.dali.pipeline import DaliPipeline, PipelineError, PipelineOptions
from feeder.decoders.decoder import View
from feeder.decoders.registry import Dali, get_decoder
from feeder.decoders.staged.stager import Stager
from tests.support.conformance import encode, natural_image
from tests.support.dali_batches import check_alike

pytest.importorskip("nvidia.dali", reason="DALI is not installed")

HEIGHT, WIDTH = 240, 320
LARGE = T.Recipe.of([T.RandomResizedCrop(48, scale=(0.4, 1.0)), T.RandomHorizontalFlip()])
SMALL = T.Recipe.of([T.RandomResizedCrop((20, 24), scale=(0.05, 0.1)), T.RandomHorizontalFlip(), T.ColorJitter(0.4)])
VIEWS = (LARGE, LARGE, SMALL, SMALL, SMALL)
APART = (SMALL, SMALL)
ORIENTATIONS = np.array([1, 6, 3, 8, 1, 2], np.uint8)


def images(seekable: bool, count: int = 6) -> list[bytes]:
    from feeder import _native

    plain = [encode(natural_image(k, HEIGHT, WIDTH), subsampling="4:2:0") for k in range(count)]
    return [_native.transcode(each, keep_metadata=True) for each in plain] if seekable else plain


def drawn(recipes: tuple[T.Recipe, ...]) -> list[T.Draws]:
    ids = np.arange(len(ORIENTATIONS))
    sizes = [[WIDTH, HEIGHT] if code > 4 else [HEIGHT, WIDTH] for code in ORIENTATIONS.tolist()]
    return [recipe.draw(1, 0, ids + number * len(ids), sizes) for number, recipe in enumerate(recipes)]


def made(decoder: Any, buffers: list[bytes], recipes: tuple[T.Recipe, ...]) -> list[npt.NDArray[Any]]:
    views = [
        View(recipe, draws, np.zeros((len(buffers), 3, *recipe.output_size), np.uint8))  # type: ignore[misc]
        for recipe, draws in zip(recipes, drawn(recipes), strict=True)
    ]
    assert decoder.decode(buffers, ORIENTATIONS, views).errors == [None] * len(buffers)
    return [view.out for view in views]


def alone(buffers: list[bytes], recipes: tuple[T.Recipe, ...]) -> list[npt.NDArray[Any]]:
    """Each view, decoded for itself by the CPU backend."""
    found = []
    for recipe, draws in zip(recipes, drawn(recipes), strict=True):
        out = np.zeros((len(buffers), 3, *recipe.output_size), np.uint8)  # type: ignore[misc]
        result = get_decoder("cpu", recipe).decode(buffers, ORIENTATIONS, [View(recipe, draws, out)])
        assert result.errors == [None] * len(buffers)
        found.append(out)
    return found


class WholeImages(PipelineOptions):
    """Has a decoder on the CPU decode whole images, as DALI does on a GPU."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "crops", False)


@pytest.mark.parametrize("options", [PipelineOptions, WholeImages], ids=["crops", "as on a GPU"])
@pytest.mark.parametrize("seekable", [False, True], ids=["plain", "seekable"])
def test_views_are_decoded_once_with_the_pixels_of_each_alone(
    seekable: bool, options: type[PipelineOptions], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("feeder.decoders.dali.dali_decoder.PipelineOptions", options)
    decoder = DaliDecoder()
    buffers = images(seekable)
    together = made(decoder, buffers, VIEWS)
    assert decoder.dali_images == len(buffers)
    for found, expected, recipe, draws in zip(together, alone(buffers, VIEWS), VIEWS, drawn(VIEWS), strict=True):
        check_alike(found, expected)
        out = np.zeros_like(found)
        assert decoder.decode(buffers, ORIENTATIONS, [View(recipe, draws, out)]).errors == [None] * len(buffers)
        np.testing.assert_array_equal(found, out)


def test_views_that_lie_apart_are_cut_and_decoded_apart() -> None:
    decoder, buffers = DaliDecoder(), images(seekable=True)
    for found, expected in zip(made(decoder, buffers, APART), alone(buffers, APART), strict=True):
        check_alike(found, expected)
    assert len(buffers) < decoder.dali_images <= 2 * len(buffers)


@pytest.mark.parametrize("recipes", [VIEWS, APART], ids=["together", "apart"])
def test_views_in_parts_under_a_memory_limit_are_the_same(recipes: tuple[T.Recipe, ...]) -> None:
    buffers = images(seekable=True)
    expected = made(DaliDecoder(), buffers, recipes)
    few = DaliDecoder(options=Dali(memory_limit_bytes=3 * 3 * HEIGHT * WIDTH // 4))
    few.stager.outlier_pixels = HEIGHT * WIDTH
    runs = []
    submit = DaliPipeline.submit

    def counted(pipeline: DaliPipeline, rows: Any, payloads: Any, ticket: object) -> None:
        runs.append(len(rows))
        submit(pipeline, rows, payloads, ticket)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DaliPipeline, "submit", counted)
        for found, whole in zip(made(few, buffers, recipes), expected, strict=True):
            np.testing.assert_array_equal(found, whole)
    assert len(runs) > 1
    assert sum(runs) == few.dali_images


@pytest.mark.parametrize("seekable", [False, True], ids=["plain", "seekable"])
def test_views_that_dali_fails_on_are_redone_on_the_cpu(seekable: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(pipeline: DaliPipeline, *_: Any) -> None:
        pipeline.rebuild()
        raise PipelineError("it fails")

    monkeypatch.setattr(DaliPipeline, "submit", failing)
    decoder, buffers = DaliDecoder(), images(seekable)
    for found, expected in zip(made(decoder, buffers, VIEWS), alone(buffers, VIEWS), strict=True):
        check_alike(found, expected)
    assert (decoder.redone_images, decoder.dali_images) == (len(buffers), 0)


def test_a_bad_image_has_no_view_and_others_join_as_pixels() -> None:
    decoder, buffers = DaliDecoder(), images(seekable=False)
    buffers[1], buffers[4] = b"junk", encode(natural_image(4, HEIGHT, WIDTH), "png")
    views = [
        View(recipe, draws, np.zeros((6, 3, *recipe.output_size), np.uint8))  # type: ignore[misc]
        for recipe, draws in zip(VIEWS, drawn(VIEWS), strict=True)
    ]
    errors = decoder.decode(buffers, ORIENTATIONS, views).errors
    assert [error is None for error in errors] == [True, False, True, True, True, True]
    assert (decoder.dali_images, decoder.cpu_images) == (4, 1)
    good = [0, 2, 3, 4, 5]
    expected = alone([buffers[0], buffers[0], *buffers[2:]], VIEWS)
    for view, other in zip(views, expected, strict=True):
        check_alike(view.out[good], other[good])


def test_a_decoder_with_one_place_for_each_image_gets_one_cut() -> None:
    buffers, ones = images(seekable=True), np.ones(6, np.uint8)
    draws = [recipe.draw(1, 0, np.arange(6) + k * 6, [[HEIGHT, WIDTH]] * 6) for k, recipe in enumerate(APART)]
    for apart in (False, True):
        staged, result = Stager(apart=apart).stage(buffers, ones, APART, draws)
        assert result.errors == [None] * 6
        own = sum(bool(payload) for payload in staged.payloads)
        assert (own == 6) is not apart
        assert own == len(np.unique(staged.owners))
        assert sum(map(len, staged.payloads)) < sum(map(len, buffers))
