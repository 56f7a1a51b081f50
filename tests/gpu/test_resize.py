"""Kernel 2 and its reference against float64 and Pillow."""

from __future__ import annotations

import dataclasses
import functools
import importlib.util

import numpy as np
import pytest
import torch
from PIL import Image

from feeder import transforms as T
from feeder.decoders import gpu
from feeder.errors import ArgumentError
from tests.support import gpu_oracle as oracle
from tests.support.conformance import decode, encode, natural_image
from tests.support.gpu_oracle import USING

SIZE = (12, 17)
IMAGES = [natural_image(k, *size) for k, size in enumerate(((40, 61), (9, 7), (64, 30), (13, 90), (1, 1)))]
SUPPORT = [[3, 2, 60, 39], [0, 0, 7, 9], [0, 0, 30, 64], [11, 4, 90, 13], [0, 0, 1, 1]]
SOURCE: list[list[float]] = [
    [3.0, 2.0, 60.0, 39.0],
    [0.4, 1.3, 5.9, 8.8],
    [2.25, 10.5, 28.0, 61.75],
    [11.5, 4, 89, 12.5],
    [0, 0, 1, 1],
]


def ragged(device: torch.device) -> gpu.Ragged:
    return gpu.Ragged.of([torch.from_numpy(image).to(device) for image in IMAGES])


def tensors() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.tensor(SOURCE, dtype=torch.float64), torch.tensor(SUPPORT)


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("using", USING)
def test_resized_pixels_are_exact_before_they_are_rounded(
    using: str, channels_last: bool, device: torch.device
) -> None:
    found = gpu.crop_resize(ragged(device), *tensors(), SIZE, channels_last=channels_last, using=using)
    assert found.dtype == torch.uint8
    assert found.is_contiguous(memory_format=torch.channels_last if channels_last else torch.contiguous_format)
    boxes = zip(IMAGES, SOURCE, SUPPORT, strict=True)
    expected = np.stack([oracle.resize(image, source, support, SIZE) for image, source, support in boxes])
    assert np.abs(found.permute(0, 2, 3, 1).cpu().double().numpy() - expected).max() <= 0.5 + 0.01


@pytest.mark.parametrize("using", USING)
def test_pixels_are_pillows_to_a_level(using: str, device: torch.device) -> None:
    found = gpu.crop_resize(ragged(device), *tensors(), SIZE, using=using)
    for row, (image, source, (left, top, right, bottom)) in enumerate(zip(IMAGES, SOURCE, SUPPORT, strict=True)):
        box = (source[0] - left, source[1] - top, source[2] - left, source[3] - top)
        cropped = Image.fromarray(image[top:bottom, left:right])
        pillow = np.asarray(cropped.resize(SIZE[::-1], Image.Resampling.BILINEAR, box=box))
        assert np.abs(found[row].permute(1, 2, 0).cpu().numpy().astype(int) - pillow).max() <= 1


@pytest.mark.parametrize("using", USING)
def test_pixels_do_not_depend_on_the_precision_of_matrix_products(using: str, device: torch.device) -> None:
    """Trainers lower that precision for all float32 products of the process, to bfloat16 or TF32 where there are."""
    images = gpu.Ragged.of([torch.from_numpy(natural_image(9, 80, 96)).to(device)])
    boxes = torch.tensor([[0.0, 0.0, 96.0, 80.0]]), torch.tensor([[0, 0, 96, 80]])
    usual, found = torch.get_float32_matmul_precision(), []
    try:
        for precision in ("highest", "medium"):
            torch.set_float32_matmul_precision(precision)
            found.append(gpu.crop_resize(images, *boxes, (32, 32), using=using))
    finally:
        torch.set_float32_matmul_precision(usual)
    assert torch.equal(*found)


def test_boxes_outside_their_image_are_refused(device: torch.device) -> None:
    images = ragged(device)
    source, support = tensors()
    for row, box in ((0, [0, 0, 62, 40]), (1, [-1, 0, 7, 9]), (2, [5, 5, 5, 9])):
        bad = support.clone()
        bad[row] = torch.tensor(box)
        with pytest.raises(ArgumentError, match=f"image {row} .*support box"):
            gpu.crop_resize(images, source, bad, SIZE)
    nowhere = dataclasses.replace(
        images, addresses=torch.cat([images.addresses[:4], torch.zeros(1, dtype=torch.int64)])
    )
    with pytest.raises(ArgumentError, match="image 4"):
        gpu.crop_resize(nowhere, source, support, SIZE)
    for wrong in (images.addresses[:4], images.addresses.int()):
        with pytest.raises(ArgumentError, match="addresses must be"):
            gpu.crop_resize(dataclasses.replace(images, addresses=wrong), source, support, SIZE)


@pytest.mark.parametrize("using", USING)
def test_images_are_read_where_they_are(using: str, device: torch.device) -> None:
    """Also those that lie in the middle of others' memory, at odd addresses."""
    expected = gpu.crop_resize(ragged(device), *tensors(), SIZE, using=using)
    memory = torch.full((20_000,), 7, dtype=torch.uint8, device=device)
    places, end = [], 1
    for image in IMAGES:
        place = memory[end : end + image.size].view(image.shape)
        place.copy_(torch.from_numpy(image))
        places.append(place)
        end += image.size + 3
    images = gpu.Ragged.of(places)
    assert images.addresses.tolist() == [place.data_ptr() for place in places]
    assert torch.equal(gpu.crop_resize(images, *tensors(), SIZE, using=using), expected)
    turned = gpu.Ragged.of([place.transpose(0, 1).contiguous().transpose(0, 1) for place in places])
    assert torch.equal(gpu.crop_resize(turned, *tensors(), SIZE, using=using), expected)


def test_what_are_no_images_of_one_device_is_refused(device: torch.device) -> None:
    good = torch.zeros((4, 5, 3), dtype=torch.uint8, device=device)
    for bad in (good.int(), good[0], good[:, :, :2], good.to("meta")):
        with pytest.raises(ArgumentError, match="as image 1"):
            gpu.Ragged.of([good, bad])


@pytest.mark.skipif(importlib.util.find_spec("nvidia.dali") is None, reason="DALI is not installed")
@pytest.mark.skipif(torch.cuda.is_available(), reason="there the backend's own tests run the kernel")
@pytest.mark.parametrize("using", USING)
def test_dalis_images_are_resized_where_dali_has_them(using: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some of them lying on their side; by the kernel itself, which on a GPU is what the backend runs."""
    from feeder.decoders.dali import crops
    from feeder.decoders.dali.dali_decoder import DaliDecoder

    recipe = T.Recipe.of([T.RandomResizedCrop((10, 14)), T.RandomHorizontalFlip()])
    orientations = np.array([1, 6, 3, 8], np.uint8)
    draws = recipe.draw(0, 0, np.arange(4), [[40, 61] if each < 5 else [61, 40] for each in orientations])
    buffers = [encode(natural_image(k, 40, 61)) for k in range(4)]
    expected = decode(DaliDecoder(), buffers, recipe, draws, orientations)
    monkeypatch.setattr(crops, "on_cpu", crops.on_gpu)
    monkeypatch.setattr(gpu, "crop_resize", functools.partial(gpu.crop_resize, using=using))
    found = decode(DaliDecoder(), buffers, recipe, draws, orientations)
    assert np.abs(found.astype(int) - expected).max() <= 1
