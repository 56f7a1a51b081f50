"""Kernel 1 and its reference against float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from feeder.decoders import gpu
from feeder.errors import ArgumentError
from tests.support import gpu_oracle as oracle
from tests.support.gpu_oracle import BIAS, SCALE, USING

SIZE = (19, 37)  # more pixels than fit one block with none to spare
ULP = {torch.float32: 2.0**-23, torch.float16: 2.0**-10, torch.bfloat16: 2.0**-7}


def stored(turns: list[int], seed: int = 0) -> list[Any]:
    rng = np.random.default_rng(seed)
    return [rng.integers(0, 256, (*(SIZE[::-1] if code & 4 else SIZE), 3), np.uint8) for code in turns]


def pack(images: list[Any], layout: str, device: torch.device) -> torch.Tensor:
    if layout == "nchw":
        images = [image.transpose(2, 0, 1) for image in images]
    return torch.from_numpy(np.stack([np.ascontiguousarray(image).ravel() for image in images])).to(device)


def affine(device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.from_numpy(SCALE).to(device), torch.from_numpy(BIAS).to(device)


def assert_close(found: torch.Tensor, expected: Any, dtype: torch.dtype, using: str) -> None:
    assert found.dtype == dtype
    # Triton's interpreter cuts off what does not fit bfloat16; the GPU and the reference round it.
    cuts = using == "triton" and dtype == torch.bfloat16 and found.device.type == "cpu"
    values = found.cpu().double().numpy()
    # Half a unit for rounding to the dtype, and 1e-6 for float32's product and sum before it, which may cancel.
    limit = (1.0 if cuts else 0.5) * ULP[dtype] * np.abs(expected) * 1.001 + 1e-6
    worst = (np.abs(values - expected) / limit).max()
    assert worst <= 1.0, f"{worst} of what is allowed"


@pytest.mark.pairwise
@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("layout", ["nhwc", "nchw"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("using", USING)
def test_turned_and_normalized(
    using: str, dtype: torch.dtype, layout: str, channels_last: bool, device: torch.device
) -> None:
    turns = list(range(8))
    images = stored(turns)
    found = gpu.normalize(
        pack(images, layout, device), SIZE, affine=affine(device), dtype=dtype, layout=layout,
        channels_last=channels_last, turn=torch.tensor(turns, device=device), using=using,
    )  # fmt: skip
    assert found.is_contiguous(memory_format=torch.channels_last if channels_last else torch.contiguous_format)
    expected = oracle.finish([oracle.turn(image, code) for image, code in zip(images, turns, strict=True)], SCALE, BIAS)
    assert_close(found, expected, dtype, using)


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("using", USING)
def test_everything_in_one_pass(using: str, channels_last: bool, device: torch.device) -> None:
    turns = [0, 1, 2, 7, 4]
    images = stored(turns, seed=1)
    steps = [[1, 2, 3], [3, 2, 1], [2, 1, 3], [0, 1, 0], [0, 0, 3]]
    factors = [[0.75, 1.5, 0.5], [1.25, 0.5, 1.5], [0.25, 2.0, 1.75], [9.0, 0.5, 9.0], [9.0, 9.0, 0.0]]
    colored = [
        oracle.color(oracle.turn(image, code), order, strengths)
        for image, code, order, strengths in zip(images, turns, steps, factors, strict=True)
    ]
    found = gpu.normalize(
        pack(images, "nhwc", device), SIZE, affine=affine(device), channels_last=channels_last,
        turn=torch.tensor(turns, device=device),
        color=gpu.Color(torch.tensor(steps, device=device), torch.tensor(factors, device=device)), using=using,
    )  # fmt: skip
    difference = np.abs(found.cpu().double().numpy() - oracle.finish(colored, SCALE, BIAS))
    level = SCALE.max()
    # These factors have few bits, so that no blend lies on the edge between two levels by rounding.
    assert difference.max() <= 1e-5 * level * 255, difference.max() / level


@pytest.mark.parametrize("using", USING)
def test_the_mean_for_contrast_is_of_the_image_as_it_is_then(using: str, device: torch.device) -> None:
    images = stored([0, 0, 0], seed=2)
    steps, factors = [[1, 2], [2, 1], [3, 2]], [[0.5, 1.0], [1.0, 0.5], [0.0, 1.0]]
    parameters = gpu.Color(torch.tensor(steps, device=device), torch.tensor(factors, device=device))
    found = gpu.gray_mean(pack(images, "nhwc", device), SIZE, parameters, using=using)
    dimmed = [oracle.color(images[0], [1], [0.5]), images[1], oracle.color(images[2], [3], [0.0])]
    expected = [np.floor(oracle.color(image, [3], [0.0]).mean((0, 1)) + 0.5)[0] for image in dimmed]
    np.testing.assert_array_equal(found.cpu().numpy(), expected)


class _DividesAsAGpu(TorchDispatchMode):
    """There torch multiplies by the reciprocal of a number."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.div.Tensor and not isinstance(args[1], torch.Tensor):
            return args[0] * (1.0 / args[1])
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("using", USING)
def test_a_mean_between_two_levels_is_rounded_up_on_a_gpu_too(using: str, device: torch.device) -> None:
    size, levels = (14, 14), torch.tensor([0, 1, 2, 3, 7, 254], dtype=torch.uint8, device=device)
    images = levels[:, None].repeat(1, 14 * 14 * 3)
    images[:, : 7 * 14 * 3] += 1  # the upper half
    contrast = torch.full((len(levels), 1), gpu.CONTRAST, device=device)
    with _DividesAsAGpu():
        found = gpu.gray_mean(images, size, gpu.Color(contrast, torch.ones_like(contrast).float()), using=using)
    assert torch.equal(found, levels.float() + 1)


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("using", USING)
def test_uint8_keeps_its_levels(using: str, channels_last: bool, device: torch.device) -> None:
    turns = [3, 5]
    images = stored(turns)
    found = gpu.normalize(
        pack(images, "nhwc", device), SIZE, dtype=torch.uint8, channels_last=channels_last,
        turn=torch.tensor(turns, device=device), using=using,
    )  # fmt: skip
    expected = np.stack([oracle.turn(image, code) for image, code in zip(images, turns, strict=True)])
    np.testing.assert_array_equal(found.permute(0, 2, 3, 1).cpu().numpy(), expected)


def test_no_images_are_no_work() -> None:
    assert gpu.normalize(torch.zeros((0, 12), dtype=torch.uint8), (2, 2)).shape == (0, 3, 2, 2)


def test_arguments_that_do_not_fit_are_refused() -> None:
    images = torch.zeros((2, 2 * 3 * 3), dtype=torch.uint8)
    ones = torch.ones(3)
    for bad, message in (
        ({"size": (2, 4)}, "2x4x3"),
        ({"layout": "hwc"}, "layout"),
        ({"dtype": torch.float64}, "dtype"),
        ({"dtype": torch.uint8, "affine": (ones, ones)}, "uint8 takes no scale"),
        ({"using": "cuda"}, "using"),
    ):
        arguments: dict[str, Any] = {"size": (2, 3)} | bad
        with pytest.raises(ArgumentError, match=message):
            gpu.normalize(images, **arguments)
    with pytest.raises(ArgumentError, match="uint8"):
        gpu.normalize(images.float(), (2, 3))
