"""Every op of :mod:`feeder.transforms` on a Pillow image or, after ToDtype, on a float array: the reference."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
from PIL import Image, ImageEnhance, ImageOps

from feeder import transforms as T
from feeder.decoders.op_math import augmentation_matrix, blur_weights, drawn_matrices
from feeder.errors import DecodeError
from feeder.order.random import uniform
from feeder.system.arrays import AnyArray, Float32s, Float64s
from feeder.transforms.arguments import BASE_FILTERS
from feeder.transforms.augment import AUGMENTATIONS, ENHANCEMENTS, TIMM_AUGMENTATIONS, timm_matrix
from feeder.transforms.choice import Branches
from feeder.transforms.photometric import COLOR_STEPS
from feeder.transforms.target_ops import TARGET_OPS

# One sample's drawn parameters by name.
Row = Mapping[str, Any]

_RESAMPLING: dict[str, Any] = {each.name.lower(): each for each in Image.Resampling}
_RESAMPLING["nearest-exact"] = Image.Resampling.NEAREST


def _window(image: Image.Image, op: T.Op, row: Row) -> Image.Image:
    """Returns the drawn window; Pillow fills the part outside the image with zeros."""
    top, left, height, width = (int(row[name]) for name in ("top", "left", "height", "width"))
    return image.crop((left, top, left + width, top + height))


def _resize(image: Image.Image, op: Any, row: Row) -> Image.Image:
    size = int(row["resized_width"]), int(row["resized_height"])
    name = op.interpolation if "bicubic" not in row else BASE_FILTERS[int(row["bicubic"])]
    return image if size == image.size else image.resize(size, _RESAMPLING[name])


def _pad_image(
    image: Image.Image, padding: Iterable[int], fill: tuple[int, int, int], padding_mode: str = "constant"
) -> Image.Image:
    left, top, right, bottom = map(int, padding)
    if padding_mode == "constant":
        padded = Image.new("RGB", (image.width + left + right, image.height + top + bottom), fill)
        padded.paste(image, (left, top))
        return padded
    mode: Any = padding_mode
    return Image.fromarray(np.pad(np.asarray(image), ((top, bottom), (left, right), (0, 0)), mode=mode))


def _add_border(image: Image.Image, op: T.LetterBox | T.RandomZoomOut, row: Row) -> Image.Image:
    return _pad_image(image, row["padding"], op.fill)


def _random_crop(image: Image.Image, op: T.RandomCrop, row: Row) -> Image.Image:
    if "padding" in row:
        image = _pad_image(image, row["padding"], op.fill, op.padding_mode)
    if image.height < op.size[0] or image.width < op.size[1]:
        raise DecodeError(
            f"RandomCrop of {op.size[0]}x{op.size[1]} (height x width) is larger than the image, "
            f"{image.height}x{image.width}; resize first, or set pad_if_needed=True"
        )
    return _window(image, op, row)


def _rotate(image: Image.Image, op: T.RandomRotation, row: Row) -> Image.Image:
    return image.rotate(float(row["angle"]), _RESAMPLING[op.interpolation], op.expand, op.center, fillcolor=op.fill)


def _move(image: Image.Image, op: T.RandomAffine | T.RandomPerspective, row: Row) -> Image.Image:
    drawn = {name: np.asarray(value)[None] for name, value in row.items()}
    (matrix,) = drawn_matrices(op, drawn, image.width, image.height)
    return image if matrix is None else _warp(image, op, matrix)


def _warp(image: Image.Image, op: Any, matrix: tuple[float, ...]) -> Image.Image:
    """Warps an image by a matrix of :mod:`feeder.transforms.matrices`."""
    method = Image.Transform.AFFINE if len(matrix) == 6 else Image.Transform.PERSPECTIVE
    return image.transform(image.size, method, matrix, _RESAMPLING[op.interpolation], fillcolor=op.fill)


def _color_jitter(image: Image.Image, op: T.ColorJitter | T.RandomPhotometricDistort, row: Row) -> Image.Image:
    for step in row["order"]:
        name = COLOR_STEPS[step]
        if name in row and ("change" not in row or row["change"][step]):
            image = _ADJUSTMENTS[name](image, float(row[name]))
    return image


def _distort(image: Image.Image, op: T.RandomPhotometricDistort, row: Row) -> Image.Image:
    channels = _color_jitter(image, op, row).split()
    return Image.merge("RGB", [channels[number] for number in row["permutation"]])


def _shift_hue(image: Image.Image, turns: float) -> Image.Image:
    hue, saturation, value = image.convert("HSV").split()
    # The shift wraps around in uint8.
    shift = int(turns * 255) % 256
    return Image.merge("HSV", (hue.point([(i + shift) % 256 for i in range(256)]), saturation, value)).convert("RGB")


_ADJUSTMENTS: dict[str, Callable[[Image.Image, float], Image.Image]] = {
    "brightness": lambda image, factor: ImageEnhance.Brightness(image).enhance(factor),
    "contrast": lambda image, factor: ImageEnhance.Contrast(image).enhance(factor),
    "saturation": lambda image, factor: ImageEnhance.Color(image).enhance(factor),
    "sharpness": lambda image, factor: ImageEnhance.Sharpness(image).enhance(factor),
    "hue": _shift_hue,
}
_AUGMENTATIONS: dict[str, Callable[[Image.Image, float], Image.Image]] = {
    "Identity": lambda image, _: image,
    "Posterize": lambda image, bits: _posterize(image, int(bits)),
    "Solarize": lambda image, threshold: _solarize(image, 255.0 * threshold),
    "AutoContrast": lambda image, _: ImageOps.autocontrast(image),
    "Equalize": lambda image, _: ImageOps.equalize(image),
    "Invert": lambda image, _: ImageOps.invert(image),
}


def _grayscale(image: Image.Image) -> Image.Image:
    gray = image.convert("L")
    return Image.merge("RGB", (gray, gray, gray))


def _blur(image: Image.Image, op: T.GaussianBlur, row: Row) -> Image.Image:
    blurred = np.asarray(image).astype(np.float32)
    for axis, size in ((1, op.kernel_size[0]), (0, op.kernel_size[1])):
        kernel = blur_weights(size, float(row["sigma"]))
        padding = [(0, 0), (0, 0), (0, 0)]
        padding[axis] = (size // 2, size // 2)
        padded = np.pad(blurred, padding, mode="reflect")
        length = blurred.shape[axis]
        blurred = sum(
            weight * np.take(padded, range(start, start + length), axis=axis) for start, weight in enumerate(kernel)
        )
    return Image.fromarray(np.rint(blurred).astype(np.uint8))


def _compress(image: Image.Image, op: T.JPEG, row: Row) -> Image.Image:
    if max(image.size) > 65_500:
        raise DecodeError("JPEG: a side of more than 65,500 pixels")
    file = io.BytesIO()
    image.save(file, "JPEG", quality=int(row["quality"]))
    return Image.open(file, formats=["JPEG"]).convert("RGB")


def _erase_array(array: AnyArray, op: T.RandomErasing, row: Row) -> AnyArray:
    if not row["erase"]:
        return array
    top, left, height, width = (int(row[name]) for name in ("i", "j", "h", "w"))
    erased = array.copy()
    window = erased[:, top : top + height, left : left + width]
    if op.value is None:
        window[...] = normal(row, window)
    else:
        value = np.array(op.value)
        window[...] = (np.clip(value, 0, 255) if array.dtype == np.uint8 else value)[:, None, None]
    changed: AnyArray = erased
    return changed


def normal(row: Row, like: AnyArray) -> Float64s:
    """Returns normally distributed numbers, by Box and Muller: two uniform numbers make one."""
    u = uniform(int(row["key"]), 0, np.arange(like.size), 0, 2)
    noise: Float64s = np.sqrt(-2.0 * np.log1p(-u[:, 0])) * np.cos(2.0 * np.pi * u[:, 1])
    return noise.reshape(like.shape)


def _add_noise(array: AnyArray, op: T.GaussianNoise, row: Row) -> AnyArray:
    white = np.float32(255.0 if array.dtype == np.uint8 else 1.0)
    noise = np.float32(op.mean) * white + normal(row, array).astype(np.float32) * (np.float32(op.sigma) * white)
    if array.dtype == np.uint8:
        noise = noise.astype(np.int32)
    noisy = array + noise
    changed: AnyArray = (np.clip(noisy, 0, white) if op.clip else noisy).astype(array.dtype)
    return changed


def _call(image: Image.Image, op: T.Lambda, row: Row) -> Image.Image:
    changed = op.call(image, int(row["key"]))
    return Image.fromarray(np.ascontiguousarray(changed.transpose(1, 2, 0)))


def _as_array(change: Callable[[AnyArray, Any, Row], AnyArray]) -> Callable[..., Image.Image]:
    """Returns an op on images, from one on [3, H, W] arrays."""

    def run(image: Image.Image, op: T.Op, row: Row) -> Image.Image:
        array = change(np.asarray(image).transpose(2, 0, 1), op, row)
        return Image.fromarray(np.ascontiguousarray(array.transpose(1, 2, 0)))

    return run


def _posterize(image: Image.Image, bits: int) -> Image.Image:
    return image.point([i & (0xFF00 >> bits) for i in range(256)] * 3)


def _solarize(image: Image.Image, threshold: float) -> Image.Image:
    return image.point([i if i < threshold else 255 - i for i in range(256)] * 3)


def _if_drawn(change: Callable[[Image.Image, Any], Image.Image]) -> Callable[[Image.Image, Any, Row], Image.Image]:
    """Returns how to run a :class:`feeder.transforms.op.ProbabilityOp`."""
    return lambda image, op, row: change(image, op) if row[op.drawn_name] else image


_Automatic = T.AugMix | T.AutoAugment | T.RandAugment | T.TimmRandAugment | T.TrivialAugmentWide


def _augment(image: Image.Image, op: _Automatic, row: Row) -> Image.Image:
    for kind, magnitude in zip(row["kind"], row["magnitude"], strict=True):
        image = _augment_once(image, op, AUGMENTATIONS[kind], float(magnitude))
    return image


def _augment_once(image: Image.Image, op: _Automatic, kind: str, magnitude: float) -> Image.Image:
    if kind == "Rotate":
        return image.rotate(magnitude, _RESAMPLING[op.interpolation], fillcolor=op.fill)
    if (matrix := augmentation_matrix(kind, magnitude, image.width, image.height)) is not None:
        return _warp(image, op, matrix)
    if kind in ENHANCEMENTS:
        return _ADJUSTMENTS[ENHANCEMENTS[kind]](image, 1.0 + magnitude)
    return _AUGMENTATIONS[kind](image, magnitude)


def _timm_augment(image: Image.Image, op: T.TimmRandAugment, row: Row) -> Image.Image:
    variants = op.variants()
    for number, value, variant in zip(row["kind"], row["value"].tolist(), row["bicubic"], strict=True):
        image = _timm_augment_once(image, variants[variant], TIMM_AUGMENTATIONS[number], value)
    return image


def _timm_augment_once(image: Image.Image, op: T.TimmRandAugment, kind: str, value: float) -> Image.Image:
    matrix = timm_matrix(kind, value, image.width, image.height)
    if matrix is not None:
        return _warp(image, op, matrix)
    if kind == "Solarize":
        return _solarize(image, value)
    if kind == "SolarizeAdd":
        return image.point([min(255, i + int(value)) if i < 128 else i for i in range(256)] * 3)
    return _augment_once(image, op, kind, value - 1.0 if kind in ENHANCEMENTS else value)


def _mix_chains(image: Image.Image, op: T.AugMix, row: Row) -> Image.Image:
    weights = np.asarray(row["weights"], np.float32)
    mixed = weights[0] * np.asarray(image, np.float32)
    for weight, kind, magnitude in zip(weights[1:], row["kind"], row["magnitude"], strict=True):
        augmented = _augment(image, op, {"kind": kind, "magnitude": magnitude})
        mixed += weight * np.asarray(augmented, np.float32)
    return Image.fromarray(mixed.astype(np.uint8))  # cut, not rounded, as torchvision does it


def _branch(image: Image.Image, op: Branches, row: Row) -> Image.Image:
    for is_drawn, steps in op.branches(row):
        if is_drawn:
            for each, params in steps:
                image = IMAGE_OPS[type(each)](image, each, params)
    return image


def _nothing(image: Any, op: T.Op, row: Row) -> Any:
    """Leaves the image to an op on targets alone."""
    return image


IMAGE_OPS: dict[type[T.Op], Callable[[Image.Image, Any, Row], Image.Image]] = {
    **dict.fromkeys(TARGET_OPS, _nothing),
    T.AugMix: _mix_chains,
    T.AutoAugment: _augment,
    T.CenterCrop: _window,
    T.CornerCrop: _window,
    T.ColorJitter: _color_jitter,
    T.GaussianBlur: _blur,
    T.GaussianNoise: _as_array(_add_noise),
    T.Grayscale: _if_drawn(lambda image, _: _grayscale(image)),
    T.JPEG: _compress,
    T.Lambda: _call,
    T.LetterBox: lambda image, op, row: _add_border(_resize(image, op, row), op, row),
    T.Pad: lambda image, op, _: _pad_image(image, op.padding, op.fill, op.padding_mode),
    T.RandAugment: _augment,
    T.RandomAdjustSharpness: _if_drawn(lambda image, op: _ADJUSTMENTS["sharpness"](image, op.sharpness_factor)),
    T.RandomAffine: _move,
    T.RandomApply: _branch,
    T.RandomAutocontrast: _if_drawn(_AUGMENTATIONS["AutoContrast"]),
    T.RandomChoice: _branch,
    T.RandomCrop: _random_crop,
    T.RandomEqualize: _if_drawn(_AUGMENTATIONS["Equalize"]),
    T.RandomErasing: _as_array(_erase_array),
    T.RandomGrayscale: _if_drawn(lambda image, _: _grayscale(image)),
    T.RandomHorizontalFlip: _if_drawn(lambda image, _: image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)),
    T.RandomIoUCrop: _window,
    T.RandomInvert: _if_drawn(_AUGMENTATIONS["Invert"]),
    T.RandomOrder: _branch,
    T.RandomPerspective: _move,
    T.RandomPhotometricDistort: _distort,
    T.RandomPosterize: _if_drawn(lambda image, op: _posterize(image, op.bits)),
    T.RandomResize: _resize,
    T.RandomResizedCrop: lambda image, op, row: _resize(_window(image, op, row), op, row),
    T.RandomRotation: _rotate,
    T.RandomShortestSize: _resize,
    T.RandomSolarize: _if_drawn(lambda image, op: _solarize(image, op.threshold)),
    T.RandomVerticalFlip: _if_drawn(lambda image, _: image.transpose(Image.Transpose.FLIP_TOP_BOTTOM)),
    T.RandomZoomOut: _add_border,
    T.Resize: _resize,
    T.ScaleJitter: _resize,
    T.TimmRandAugment: _timm_augment,
    T.TrivialAugmentWide: _augment,
}

ARRAY_OPS: dict[type[T.Op], Callable[[Float32s, Any, Row], Float32s]] = {
    **dict.fromkeys(TARGET_OPS, _nothing),
    T.GaussianNoise: _add_noise,
    T.Lambda: lambda array, op, row: op.call(array, int(row["key"])),
    T.RandomErasing: _erase_array,
    T.RandomHorizontalFlip: lambda array, _, row: array[:, :, ::-1] if row["flip"] else array,
}
