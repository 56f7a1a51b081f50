"""Functions of the user's, on the type that they ask for, with or without the shape that they got."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from PIL import Image

import feeder
from feeder import transforms as T
from feeder.errors import ArgumentError
from feeder.transforms.recipe_json import recipe_from_json, recipe_to_json
from tests.support.conformance import natural_image, npy
from tests.support.noise import add_noise

IMAGES = [npy(natural_image(seed, 40, 60)) for seed in range(3)]
CROP = T.RandomResizedCrop((16, 24))
FLOATS = T.ToDtype("float32", scale=True)


def decode(*ops: T.Op, backend: str = "cpu", ids: list[int] | None = None) -> torch.Tensor:
    images = IMAGES if ids is None else [IMAGES[i] for i in ids]
    return feeder.decode(images, T.Compose(ops), backend=backend, ids=ids, seed=0)


@pytest.mark.parametrize("backend", ["cpu", "pillow"])
@pytest.mark.parametrize("place", ["last", "behind floats", "before others"])
def test_a_function_gets_what_it_asks_for(backend: str, place: str) -> None:
    for on in ("array", "tensor", "pil"):
        if (on, place) == ("pil", "behind floats"):
            continue
        seen: list[Any] = []
        behind = [T.RandomInvert(1.0)] if place == "before others" else []
        before = [FLOATS] if place == "behind floats" else []

        def see(image: Any, seen: list[Any] = seen) -> Any:
            seen.append(image)
            return image

        found = decode(CROP, *before, T.Lambda(see, on=on), *behind, backend=backend)
        assert torch.equal(found, decode(CROP, *before, *behind, backend=backend))
        dtype = "float32" if before else "uint8"
        assert len(seen) == 3
        for image in seen:
            if on == "pil":
                assert isinstance(image, Image.Image)
                assert (image.mode, image.size) == ("RGB", (24, 16))
            else:
                assert isinstance(image, torch.Tensor if on == "tensor" else np.ndarray)
                assert (tuple(image.shape), str(image.dtype).removeprefix("torch.")) == ((3, 16, 24), dtype)


def test_a_function_behind_native_ops_gets_the_batchs_own_memory() -> None:
    seen: list[npt.NDArray[Any]] = []
    out = torch.empty((3, 3, 16, 24))
    feeder.decode(
        IMAGES,
        [CROP, FLOATS, T.Lambda(lambda image: seen.append(image) or np.negative(image, out=image))],
        seed=0,
        out=out,
    )
    assert all(np.shares_memory(image, out.numpy()) for image in seen)
    assert torch.equal(out, -decode(CROP, FLOATS))


def test_what_a_function_draws_does_not_depend_on_the_batch() -> None:
    def state() -> list[str]:
        return [
            repr(each) for each in (random.getstate(), np.random.get_state(), torch.random.get_rng_state().tolist())
        ]

    before = state()
    whole = decode(CROP, T.Lambda(add_noise), ids=[0, 1, 2])
    assert state() == before
    assert all(torch.equal(decode(CROP, T.Lambda(add_noise), ids=[i])[0], whole[i]) for i in range(3))


def _two_channels(image: torch.Tensor) -> torch.Tensor:
    return image[:2, ::2].double()


@pytest.mark.parametrize("backend", ["cpu", "pillow"])
@pytest.mark.parametrize(
    ("on", "function", "shape", "dtype"),
    [
        ("tensor", _two_channels, (2, 8, 24), torch.float64),
        ("tensor", lambda image: image.to(torch.bfloat16)[None], (1, 3, 16, 24), torch.bfloat16),
        ("array", lambda image: image.sum(0).astype(np.int64), (16, 24), torch.int64),
        ("pil", lambda image: image.convert("CMYK").resize((5, 7)), (4, 7, 5), torch.uint8),
        ("pil", lambda image: image.convert("L"), (1, 16, 24), torch.uint8),
        ("pil", lambda image: np.array(image), (16, 24, 3), torch.uint8),
    ],
)
def test_the_last_function_may_change_shape_and_dtype(
    backend: str, on: str, function: Any, shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    recipe = T.Recipe.of([CROP, T.Lambda(function, on=on, keeps_shape=False)])
    assert (*recipe.leading_shape, *(recipe.output_size or ())) == shape
    found = feeder.decode(IMAGES, recipe, seed=0, backend=backend)
    assert (tuple(found.shape), found.dtype) == ((3, *shape), dtype)
    for image, before in zip(found, decode(CROP, backend=backend), strict=True):
        given = before.numpy().transpose(1, 2, 0)
        result = function({"tensor": before, "array": before.numpy(), "pil": Image.fromarray(given)}[on])
        if isinstance(result, Image.Image):
            result = np.atleast_3d(np.array(result)).transpose(2, 0, 1)
        assert torch.equal(image, torch.as_tensor(result))


@pytest.mark.parametrize("backend", ["cpu", "pillow"])
def test_a_function_of_images_of_any_size_keeps_it_or_gives_one(backend: str) -> None:
    tall, wide = npy(natural_image(1, 50, 30)), npy(natural_image(2, 30, 50))
    keeps = T.Recipe.of([T.Resize(20), T.Lambda(lambda image: image[:1], keeps_shape=False)])
    assert keeps.output_size is None
    for image, shape in ((tall, (1, 1, 33, 20)), (wide, (1, 1, 20, 33))):
        assert feeder.decode([image], keeps, backend=backend).shape == shape
    small = T.Lambda(lambda image: image.resize((9, 8)), on="pil", keeps_shape=False)
    assert feeder.decode([tall, wide], small, backend=backend).shape == (2, 3, 8, 9)
    crop = T.Lambda(lambda image: image[:, :700, :600] if min(image.shape[1:]) > 700 else 1 / 0, keeps_shape=False)
    assert T.Recipe.of(crop).output_size == (700, 600)


def test_a_function_that_may_change_the_shape_has_its_place() -> None:
    cut = T.Lambda(lambda image: image[:2], keeps_shape=False)
    with pytest.raises(ArgumentError, match="must be the last op"):
        T.Compose([cut, FLOATS])
    with pytest.raises(ArgumentError, match="can't be in RandomApply"):
        T.RandomApply([cut])
    with pytest.raises(ArgumentError, match="can't be used with targets"):
        feeder.transforms.targets.check_targets(T.Recipe.of(cut), (T.Mask(),))
    with pytest.raises(ArgumentError, match=r"must return an array of uint8 \[3, 16, 24\].*keeps_shape=False"):
        decode(CROP, T.Lambda(lambda image: image[:2]))
    with pytest.raises(ArgumentError, match="on must be one of array, pil, tensor, got 'numpy'"):
        T.Lambda(abs, on="numpy")
    with pytest.raises(ArgumentError, match="takes uint8 images; put it before"):
        decode(CROP, FLOATS, T.Lambda(lambda image: image, on="pil"))


def test_a_result_of_another_shape_than_the_made_images_is_an_error() -> None:
    sizes = iter([8, 9, 8, 8])
    with pytest.raises(ArgumentError, match=r"uint8 \[3, 9, 24\] for this image, and uint8 \[3, 8, 24\]"):
        decode(CROP, T.Lambda(lambda image: image[:, : next(sizes)], keeps_shape=False))
    uneven = T.Lambda(lambda image: image[:, : image.shape[1] // 2], keeps_shape=False)
    with pytest.raises(ArgumentError, match=r"returns \[3, 240, 640\] and \[3, 320, 427\], and a batch"):
        decode(uneven)
    with pytest.raises(ArgumentError, match=r"fails on a made image, uint8 of 16x24 .*division by zero"):
        decode(CROP, T.Lambda(lambda image: 1 / 0, keeps_shape=False))


def test_functions_are_written_down_with_what_they_take() -> None:
    for op in (T.Lambda(add_noise), T.Lambda(add_noise, on="tensor"), T.Lambda(add_noise, on="pil", keeps_shape=False)):
        recipe = T.Recipe.of(op)
        written = recipe_to_json(recipe, lambda function: "name")
        assert recipe_from_json(written, {"name": add_noise}.__getitem__) == recipe


@pytest.mark.parametrize("backend", ["cpu", "pillow"])
def test_gray_images_have_one_channel_or_three_equal_ones(backend: str) -> None:
    three = decode(CROP, T.Grayscale(3), T.RandomInvert(1.0), FLOATS, T.Normalize(0.5, 0.2), backend=backend)
    one = decode(CROP, T.Grayscale(), T.RandomInvert(1.0), FLOATS, T.Normalize(0.5, 0.2), backend=backend)
    assert torch.equal(three, one.expand(-1, 3, -1, -1))
    assert one.shape == (3, 1, 16, 24)
    changed = decode(CROP, T.Grayscale(), T.Lambda(lambda image: 255 - image, keeps_shape=False), backend=backend)
    assert torch.equal(changed, 255 - decode(CROP, T.Grayscale(), backend=backend))
    modes = T.Lambda(lambda image: np.full((4, 4), len(image.mode)), on="pil", keeps_shape=False)
    assert decode(CROP, T.Grayscale(), modes, backend=backend).unique().tolist() == [1]


def test_gray_images_are_refused_where_three_channels_are_needed() -> None:
    for op in (T.Normalize((0.1, 0.2, 0.3), 1), T.Lambda(abs)):
        with pytest.raises(ArgumentError, match=r"takes three channels and stands after Grayscale\(1\)"):
            T.Compose([T.Grayscale(), op])
    with pytest.raises(ArgumentError, match="Grayscale can't be in RandomApply"):
        T.RandomApply([T.Grayscale()])
    T.RandomApply([T.Grayscale(3)])
    with pytest.raises(ArgumentError, match="must be one of 1, 3, got 2"):
        T.Grayscale(2)
