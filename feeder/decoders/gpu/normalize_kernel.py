"""The Triton side of kernel 1; its reference and tolerance are in ``normalize.py``."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from feeder.decoders.gpu.parameters import Color
from feeder.system.arrays import Size

_BLOCK = 1024
# Four per thread: with more, each of a warp's loads of NHWC bytes touches more cache lines, and registers run out.
_PIXELS = 512
# Images per program of the elements' kernel, which does the same elements of each: work that depends on the place alone
# is a third of its instructions for one image.
_IMAGES = 4
# a * b + c may be rounded once. Set at every launch, as the default changes between versions of Triton.
COMPILE: dict[str, Any] = {"enable_fp_fusion": True}


@triton.jit
def turn_strides(turn, height, width):
    """Returns (origin, per_y, per_x): output pixel (y, x) is stored at origin + per_y * y + per_x * x (Note [Turns]).

    Each of the eight turns is such a sum, so an image's turn is three numbers and no branch.
    """
    swap = (turn & 4) != 0
    stored_height = tl.where(swap, width, height)
    stored_width = tl.where(swap, height, width)
    per_row = tl.where((turn & 2) != 0, -stored_width, stored_width)
    per_column = tl.where((turn & 1) != 0, -1, 1)
    origin = tl.where((turn & 2) != 0, (stored_height - 1) * stored_width, 0)
    origin += tl.where((turn & 1) != 0, stored_width - 1, 0)
    return origin, tl.where(swap, per_column, per_row), tl.where(swap, per_row, per_column)


@triton.jit
def _gray(red, green, blue):
    # Pillow's luma: 0.299, 0.587 and 0.114 in 16 bits, rounded.
    weighted = red.to(tl.int32) * 19595 + green.to(tl.int32) * 38470 + blue.to(tl.int32) * 7471
    return ((weighted + 32768) >> 16).to(tl.float32)


@triton.jit
def _blend(value, target, factor, step):
    """Blends a channel with a target, rounded down to a level, as Pillow does; step 0 leaves it as it is."""
    blended = tl.floor(tl.minimum(tl.maximum(target + factor * (value - target), 0.0), 255.0))
    return tl.where(step == 0, value, blended)


@triton.jit
def _color(red, green, blue, step, factor, mean):
    """Takes one color step: 1 blends with black (brightness), 2 with the mean (contrast), 3 with gray (saturation)."""
    target = tl.where(step == 2, mean, tl.where(step == 1, 0.0, _gray(red, green, blue)))
    return _blend(red, target, factor, step), _blend(green, target, factor, step), _blend(blue, target, factor, step)


@triton.jit
def _load_pixel(images, image, pixel, pixels, mask, NCHW: tl.constexpr):
    start = image.to(tl.int64) * pixels * 3
    if NCHW:
        red = tl.load(images + start + pixel, mask=mask, other=0)
        green = tl.load(images + start + pixels + pixel, mask=mask, other=0)
        blue = tl.load(images + start + 2 * pixels + pixel, mask=mask, other=0)
    else:
        red = tl.load(images + start + 3 * pixel, mask=mask, other=0)
        green = tl.load(images + start + 3 * pixel + 1, mask=mask, other=0)
        blue = tl.load(images + start + 3 * pixel + 2, mask=mask, other=0)
    return red.to(tl.float32), green.to(tl.float32), blue.to(tl.float32)


@triton.jit
def by_channel(values, channel, WANTED: tl.constexpr):
    """Returns the value of each element's channel, from three in memory; 0 if not wanted."""
    found = 0.0
    if WANTED:
        found = tl.where(
            channel == 0, tl.load(values), tl.where(channel == 1, tl.load(values + 1), tl.load(values + 2))
        )
    return found


@triton.jit
def store_pixel(out, image, pixel, pixels, mask, red, green, blue, CHANNELS_LAST: tl.constexpr):
    """Stores R, G and B of the output's pixels, rounded to its dtype."""
    kind = out.dtype.element_ty
    start = image.to(tl.int64) * pixels * 3
    if CHANNELS_LAST:
        # Channels side by side in a warp: a store per channel would write the same cache lines at least three times.
        fourth = tl.zeros(red.shape, kind)
        channels = tl.join(tl.join(red.to(kind), blue.to(kind)), tl.join(green.to(kind), fourth))
        channel = tl.arange(0, 4)[None, :]
        place = out + start + 3 * pixel[:, None] + channel
        tl.store(place, channels.reshape(red.shape[0], 4), mask=mask[:, None] & (channel < 3))
    else:
        place = out + start + pixel
        tl.store(place, red.to(kind), mask=mask)
        tl.store(place + pixels, green.to(kind), mask=mask)
        tl.store(place + 2 * pixels, blue.to(kind), mask=mask)


@triton.jit
def _pixels_kernel(
    images, out, scale, bias, turns, steps, factors, means,
    HEIGHT: tl.constexpr, WIDTH: tl.constexpr, NCHW: tl.constexpr, CHANNELS_LAST: tl.constexpr, TURN: tl.constexpr,
    STEPS: tl.constexpr, AFFINE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    image = tl.program_id(1)
    pixel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = pixel < HEIGHT * WIDTH
    source = pixel
    if TURN:
        origin, per_y, per_x = turn_strides(tl.load(turns + image).to(tl.int32), HEIGHT, WIDTH)
        source = origin + per_y * (pixel // WIDTH) + per_x * (pixel % WIDTH)

    red, green, blue = _load_pixel(images, image, source, HEIGHT * WIDTH, mask, NCHW)
    if STEPS > 0:
        mean = tl.load(means + image)
        for number in tl.static_range(STEPS):
            step = tl.load(steps + image * STEPS + number)
            factor = tl.load(factors + image * STEPS + number)
            red, green, blue = _color(red, green, blue, step, factor, mean)

    if AFFINE:
        red = red * tl.load(scale) + tl.load(bias)
        green = green * tl.load(scale + 1) + tl.load(bias + 1)
        blue = blue * tl.load(scale + 2) + tl.load(bias + 2)
    store_pixel(out, image, pixel, HEIGHT * WIDTH, mask, red, green, blue, CHANNELS_LAST)


# The last batch of an epoch has another count, which must not cause another compilation.
@triton.jit(do_not_specialize=["count"])
def _elements_kernel(
    images, out, count, scale, bias, turns,
    HEIGHT: tl.constexpr, WIDTH: tl.constexpr, NCHW: tl.constexpr, TURN: tl.constexpr, AFFINE: tl.constexpr,
    BLOCK: tl.constexpr, IMAGES: tl.constexpr,
):  # fmt: skip
    """Writes channels_last if no channel needs another: one thread an element, so stores are whole vectors.

    A program does the same elements of a few images, so that values that depend on the place alone are computed once.
    """
    element = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = element < HEIGHT * WIDTH * 3
    pixel = element // 3
    channel = element % 3
    y = pixel // WIDTH
    x = pixel % WIDTH
    factor = by_channel(scale, channel, AFFINE)
    offset = by_channel(bias, channel, AFFINE)

    for number in tl.static_range(IMAGES):
        image = tl.minimum(tl.program_id(1) * IMAGES + number, count - 1)  # past the end, the last one again
        start = images + image.to(tl.int64) * (HEIGHT * WIDTH * 3)
        turn = 0
        if TURN:
            turn = tl.load(turns + image).to(tl.int32)
        if NCHW:
            origin, per_y, per_x = turn_strides(turn, HEIGHT, WIDTH)
            source = per_y * y + (per_x * x + (channel * (HEIGHT * WIDTH) + origin))
            level = tl.load(start + source, mask=mask, other=0)
        elif turn == 0:  # the common case: whole vectors are loaded
            level = tl.load(start + element, mask=mask, other=0)
        else:
            origin, per_y, per_x = turn_strides(turn, HEIGHT, WIDTH)
            source = 3 * per_y * y + (3 * per_x * x + (channel + 3 * origin))
            level = tl.load(start + source, mask=mask, other=0)
        value = level.to(tl.float32)
        if AFFINE:
            value = value * factor + offset
        place = out + image.to(tl.int64) * (HEIGHT * WIDTH * 3) + element
        tl.store(place, value.to(out.dtype.element_ty), mask=mask)


@triton.jit
def _gray_sum_kernel(
    images, sums, pixels, steps, factors, NCHW: tl.constexpr, STEPS: tl.constexpr, BLOCK: tl.constexpr
):
    image = tl.program_id(1)
    pixel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = pixel < pixels
    red, green, blue = _load_pixel(images, image, pixel, pixels, mask, NCHW)

    before = 1  # 0 from the contrast step on: its mean is that of the image as it is by then
    for number in tl.static_range(STEPS):
        step = tl.load(steps + image * STEPS + number)
        factor = tl.load(factors + image * STEPS + number)
        before = tl.where(step == 2, 0, before)
        red, green, blue = _color(red, green, blue, step * before, factor, 0.0)

    gray = tl.where(mask, _gray(red, green, blue).to(tl.int32), 0)
    tl.atomic_add(sums + image, tl.sum(gray, 0).to(tl.int64))


def on_device(values: torch.Tensor | None, dtype: torch.dtype, like: torch.Tensor) -> torch.Tensor | None:
    """Returns the values as the kernels take them: contiguous, of a dtype, on the device of the images."""
    if values is None:
        return None
    if like.device.type == "cuda" and values.device.type == "cpu":
        values = values.pin_memory()  # from other memory the copy may wait for queued work
    return values.to(like.device, dtype, non_blocking=True).contiguous()


def or_nothing(values: torch.Tensor | None, like: torch.Tensor) -> Any:
    """Returns the values; in place of None, a pointer that the kernel does not follow."""
    return like if values is None else values


def launch(
    images: torch.Tensor,
    size: Size,
    out: torch.Tensor,
    affine: tuple[torch.Tensor, torch.Tensor] | None,
    layout: str,
    turn: torch.Tensor | None,
    color: Color | None,
    mean: torch.Tensor | None,
) -> None:
    """Launches kernel 1 on the current stream; arguments as in ``normalize``."""
    height, width = size
    numbers = [on_device(each, torch.float32, images) for each in affine or (None, None)]
    turns = on_device(turn, torch.int32, images)
    channels_last = not out.is_contiguous()
    shared = [or_nothing(each, images) for each in (*numbers, turns)]
    flags: dict[str, Any] = {
        "HEIGHT": height, "WIDTH": width, "NCHW": layout == "nchw", "TURN": turn is not None,
        "AFFINE": affine is not None, **COMPILE,
    }  # fmt: skip

    if channels_last and color is None:
        grid = (triton.cdiv(3 * height * width, _BLOCK), triton.cdiv(len(images), _IMAGES))
        _elements_kernel[grid](images, out, len(images), *shared, BLOCK=_BLOCK, IMAGES=_IMAGES, **flags)
        return

    steps = on_device(None if color is None else color.steps, torch.int32, images)
    factors = on_device(None if color is None else color.factors, torch.float32, images)
    if color is not None and mean is None:
        mean = torch.zeros(len(images), device=images.device)
    coloring = [or_nothing(each, images) for each in (steps, factors, mean)]
    _pixels_kernel[(triton.cdiv(height * width, _PIXELS), len(images))](
        images, out, *shared, *coloring, CHANNELS_LAST=channels_last,
        STEPS=0 if color is None else color.steps.shape[1], BLOCK=_PIXELS, **flags,
    )  # fmt: skip


def launch_gray_sum(images: torch.Tensor, size: Size, color: Color, layout: str) -> torch.Tensor:
    """Launches the reduction before a contrast step: the sum of each image's gray levels, int64 [N].

    Sums are whole numbers, so their order does not matter.
    """
    pixels = size[0] * size[1]
    sums = torch.zeros(len(images), dtype=torch.int64, device=images.device)
    _gray_sum_kernel[(triton.cdiv(pixels, _BLOCK), len(images))](
        images, sums, pixels, on_device(color.steps, torch.int32, images),
        on_device(color.factors, torch.float32, images), NCHW=layout == "nchw", STEPS=color.steps.shape[1],
        BLOCK=_BLOCK, **COMPILE,
    )  # fmt: skip
    return sums
