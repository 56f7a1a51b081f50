"""The Triton side of kernel 1; its reference and its tolerance stand in ``normalize.py``."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from feeder._gpu.parameters import Color, Erase, Mix

__all__ = [
    "finish_value",
    "inside_box",
    "launch",
    "launch_gray_mean",
    "on_device",
    "or_nothing",
    "store_pixel",
    "turned",
]

_BLOCK = 1024


@triton.jit
def turned(y, x, turn, height, width):
    """Where an output pixel lies in the stored image, and the stored image's size; see Note [Turns]."""
    swap = (turn & 4) != 0
    stored_height = tl.where(swap, width, height)
    stored_width = tl.where(swap, height, width)
    row = tl.where(swap, x, y)
    column = tl.where(swap, y, x)
    row = tl.where((turn & 2) != 0, stored_height - 1 - row, row)
    column = tl.where((turn & 1) != 0, stored_width - 1 - column, column)
    return row, column, stored_height, stored_width


@triton.jit
def _gray(red, green, blue):
    weighted = red.to(tl.int32) * 19595 + green.to(tl.int32) * 38470 + blue.to(tl.int32) * 7471
    return ((weighted + 32768) >> 16).to(tl.float32)


@triton.jit
def _blend(value, target, factor, step):
    blended = tl.floor(tl.minimum(tl.maximum(target + factor * (value - target), 0.0), 255.0))
    return tl.where(step == 0, value, blended)


@triton.jit
def _color(red, green, blue, step, factor, mean):
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
def finish_value(value, channel, scale, bias, inside, erase_value, AFFINE: tl.constexpr, ERASE: tl.constexpr):
    """Normalizes and erases the values of a channel; ``channel`` may be a block of channel numbers."""
    if AFFINE:
        value = value * tl.load(scale + channel) + tl.load(bias + channel)
    if ERASE:
        value = tl.where(inside, tl.load(erase_value + channel), value)
    return value


@triton.jit
def inside_box(box, y, x):
    """Whether (y, x) lies in the (top, left, bottom, right) that ``box`` points to."""
    rows = (y >= tl.load(box)) & (y < tl.load(box + 2))
    return rows & (x >= tl.load(box + 1)) & (x < tl.load(box + 3))


@triton.jit
def store_pixel(out, image, pixel, pixels, mask, red, green, blue, CHANNELS_LAST: tl.constexpr):
    """Stores R, G and B of the output's pixels, rounded to its dtype."""
    kind = out.dtype.element_ty
    start = image.to(tl.int64) * pixels * 3
    if CHANNELS_LAST:
        place = out + start + 3 * pixel
        tl.store(place, red.to(kind), mask=mask)
        tl.store(place + 1, green.to(kind), mask=mask)
        tl.store(place + 2, blue.to(kind), mask=mask)
    else:
        place = out + start + pixel
        tl.store(place, red.to(kind), mask=mask)
        tl.store(place + pixels, green.to(kind), mask=mask)
        tl.store(place + 2 * pixels, blue.to(kind), mask=mask)


@triton.jit
def _pixel(
    images, image, y, x, height, width, mask, scale, bias, turns, steps, factors, means, boxes, erase_value,
    NCHW: tl.constexpr, TURN: tl.constexpr, STEPS: tl.constexpr, AFFINE: tl.constexpr, ERASE: tl.constexpr,
):  # fmt: skip
    """R, G and B of one sample's output pixels, before mixing."""
    if TURN:
        row, column, _, stored_width = turned(y, x, tl.load(turns + image).to(tl.int32), height, width)
        pixel = row * stored_width + column
    else:
        pixel = y * width + x
    red, green, blue = _load_pixel(images, image, pixel, height * width, mask, NCHW)
    if STEPS > 0:
        mean = tl.load(means + image)
        for number in tl.static_range(STEPS):
            step = tl.load(steps + image * STEPS + number)
            factor = tl.load(factors + image * STEPS + number)
            red, green, blue = _color(red, green, blue, step, factor, mean)
    inside = mask
    if ERASE:
        inside = inside_box(boxes + image * 4, y, x)
    red = finish_value(red, 0, scale, bias, inside, erase_value, AFFINE, ERASE)
    green = finish_value(green, 1, scale, bias, inside, erase_value, AFFINE, ERASE)
    blue = finish_value(blue, 2, scale, bias, inside, erase_value, AFFINE, ERASE)
    return red, green, blue


@triton.jit
def _pixels_kernel(
    images, out, height, width, scale, bias, turns, steps, factors, means, boxes, erase_value, partners, lam, mix_box,
    NCHW: tl.constexpr, CHANNELS_LAST: tl.constexpr, TURN: tl.constexpr, STEPS: tl.constexpr, AFFINE: tl.constexpr,
    ERASE: tl.constexpr, MIX: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    image = tl.program_id(1)
    pixel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = pixel < height * width
    y = pixel // width
    x = pixel % width
    red, green, blue = _pixel(
        images, image, y, x, height, width, mask, scale, bias, turns, steps, factors, means, boxes, erase_value,
        NCHW, TURN, STEPS, AFFINE, ERASE,
    )  # fmt: skip
    if MIX:
        partner = tl.load(partners + image)
        red2, green2, blue2 = _pixel(
            images, partner, y, x, height, width, mask, scale, bias, turns, steps, factors, means, boxes, erase_value,
            NCHW, TURN, STEPS, AFFINE, ERASE,
        )  # fmt: skip
        within = inside_box(mix_box, y, x)
        red = tl.where(within, lam * red + (1.0 - lam) * red2, red)
        green = tl.where(within, lam * green + (1.0 - lam) * green2, green)
        blue = tl.where(within, lam * blue + (1.0 - lam) * blue2, blue)
    store_pixel(out, image, pixel, height * width, mask, red, green, blue, CHANNELS_LAST)


@triton.jit
def _elements_kernel(
    images, out, height, width, scale, bias, turns, boxes, erase_value,
    TURN: tl.constexpr, AFFINE: tl.constexpr, ERASE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """NHWC to channels_last where no channel needs another: one thread an element, so stores are whole vectors."""
    image = tl.program_id(1)
    element = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = element < height * width * 3
    start = image.to(tl.int64) * height * width * 3
    pixel = element // 3
    channel = element % 3
    source = element
    inside = mask
    if TURN or ERASE:
        y = pixel // width
        x = pixel % width
        if TURN:
            row, column, _, stored_width = turned(y, x, tl.load(turns + image).to(tl.int32), height, width)
            source = 3 * (row * stored_width + column) + channel
        if ERASE:
            inside = inside_box(boxes + image * 4, y, x)
    value = tl.load(images + start + source, mask=mask, other=0).to(tl.float32)
    value = finish_value(value, channel, scale, bias, inside, erase_value, AFFINE, ERASE)
    tl.store(out + start + element, value.to(out.dtype.element_ty), mask=mask)


@triton.jit
def _gray_sum_kernel(
    images, sums, pixels, steps, factors, NCHW: tl.constexpr, STEPS: tl.constexpr, BLOCK: tl.constexpr
):
    image = tl.program_id(1)
    pixel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = pixel < pixels
    red, green, blue = _load_pixel(images, image, pixel, pixels, mask, NCHW)
    before = 1
    for number in tl.static_range(STEPS):
        step = tl.load(steps + image * STEPS + number)
        factor = tl.load(factors + image * STEPS + number)
        before = tl.where(step == 2, 0, before)
        red, green, blue = _color(red, green, blue, step * before, factor, 0.0)
    gray = tl.where(mask, _gray(red, green, blue).to(tl.int32), 0)
    tl.atomic_add(sums + image, tl.sum(gray, 0).to(tl.int64))


def on_device(values: torch.Tensor | None, dtype: torch.dtype, like: torch.Tensor) -> torch.Tensor | None:
    """The values as the kernels take them: contiguous, of a dtype, on the device of the images."""
    return None if values is None else values.to(like.device, dtype, non_blocking=True).contiguous()


def or_nothing(values: torch.Tensor | None, like: torch.Tensor | None) -> Any:
    """A pointer that the kernel does not follow, in place of None."""
    return like if values is None else values


def launch(
    images: torch.Tensor,
    size: tuple[int, int],
    out: torch.Tensor,
    scale: torch.Tensor | None,
    bias: torch.Tensor | None,
    layout: str,
    turn: torch.Tensor | None,
    color: Color | None,
    mean: torch.Tensor | None,
    erase: Erase | None,
    mix: Mix | None,
) -> None:
    """Launches kernel 1 on the current stream; arguments as in ``normalize_reference``."""
    height, width = size
    affine = scale is not None or bias is not None
    scales = on_device(torch.ones(3) if scale is None else scale, torch.float32, images)
    biases = on_device(torch.zeros(3) if bias is None else bias, torch.float32, images)
    turns = on_device(turn, torch.int32, images)
    boxes = on_device(None if erase is None else erase.boxes, torch.int32, images)
    erase_value = on_device(None if erase is None else erase.value, torch.float32, images)
    channels_last = not out.is_contiguous()
    nothing = scales
    flags: dict[str, Any] = {"TURN": turn is not None, "AFFINE": affine, "ERASE": erase is not None, "BLOCK": _BLOCK}
    if layout == "nhwc" and channels_last and color is None and mix is None:
        _elements_kernel[(triton.cdiv(3 * height * width, _BLOCK), len(images))](
            images, out, height, width, scales, biases, or_nothing(turns, nothing), or_nothing(boxes, nothing),
            or_nothing(erase_value, nothing), **flags,
        )  # fmt: skip
        return
    steps = on_device(None if color is None else color.steps, torch.int32, images)
    factors = on_device(None if color is None else color.factors, torch.float32, images)
    if color is not None and mean is None:
        mean = torch.zeros(len(images), device=images.device)
    partners = on_device(None if mix is None else mix.partner, torch.int32, images)
    mix_box = None
    if mix is not None:
        mix_box = on_device(torch.tensor(mix.box or (0, 0, height, width)), torch.int32, images)
    _pixels_kernel[(triton.cdiv(height * width, _BLOCK), len(images))](
        images, out, height, width, scales, biases, or_nothing(turns, nothing), or_nothing(steps, nothing),
        or_nothing(factors, nothing), or_nothing(mean, nothing), or_nothing(boxes, nothing),
        or_nothing(erase_value, nothing), or_nothing(partners, nothing), 1.0 if mix is None else float(mix.lam),
        or_nothing(mix_box, nothing), NCHW=layout == "nchw", CHANNELS_LAST=channels_last,
        STEPS=0 if color is None else color.steps.shape[1], MIX=mix is not None, **flags,
    )  # fmt: skip


def launch_gray_mean(images: torch.Tensor, size: tuple[int, int], color: Color, layout: str) -> torch.Tensor:
    """Launches the reduction before a contrast step. Sums are whole numbers, so their order is no matter."""
    pixels = size[0] * size[1]
    sums = torch.zeros(len(images), dtype=torch.int64, device=images.device)
    _gray_sum_kernel[(triton.cdiv(pixels, _BLOCK), len(images))](
        images, sums, pixels, on_device(color.steps, torch.int32, images),
        on_device(color.factors, torch.float32, images), NCHW=layout == "nchw", STEPS=color.steps.shape[1],
        BLOCK=_BLOCK,
    )  # fmt: skip
    return torch.floor(sums.double() / pixels + 0.5).float()
