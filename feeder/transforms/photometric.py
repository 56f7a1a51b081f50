"""The ops that change colors, sharpness or parts of an image, but not its geometry."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from feeder.errors import ArgumentError
from feeder.system.checks import check_one_of
from feeder.transforms.arguments import check_probability, check_range, check_size
from feeder.transforms.geometry import ATTEMPTS, drawn_sides
from feeder.transforms.op import Drawn, IntArray, Op, Params, ProbabilityOp, Uniforms

# The steps of ColorJitter, by their numbers in the drawn order.
COLOR_STEPS = ("brightness", "contrast", "saturation", "hue")

_MOST_NOISE = 10.0  # times white, which int16 holds with all that is drawn


@dataclass(frozen=True, init=False)
class ColorJitter(Op):
    """Changes brightness, contrast, saturation and hue by random factors, in random order.

    Args:
        brightness: The factor is drawn from [max(0, 1 - brightness), 1 + brightness], or from a given (min, max).
        contrast: As brightness.
        saturation: As brightness.
        hue: The shift, in turns of the color circle, is drawn from [-hue, hue], or from a given (min, max) within
            [-0.5, 0.5].

    Raises:
        ArgumentError: for an argument outside its range.
    """

    brightness: tuple[float, float] | None
    contrast: tuple[float, float] | None
    saturation: tuple[float, float] | None
    hue: tuple[float, float] | None

    def __init__(
        self,
        brightness: float | Sequence[float] | None = None,
        contrast: float | Sequence[float] | None = None,
        saturation: float | Sequence[float] | None = None,
        hue: float | Sequence[float] | None = None,
    ) -> None:
        self._set(
            brightness=_factor_range("brightness", brightness),
            contrast=_factor_range("contrast", contrast),
            saturation=_factor_range("saturation", saturation),
            hue=_factor_range("hue", hue, center=0.0, low=-0.5, high=0.5),
        )

    def draw(self, uniforms: Uniforms, sizes: IntArray) -> Drawn:
        uniform = uniforms(8)
        params: Params = {"order": np.argsort(uniform[:, :4], axis=1, kind="stable")}
        for column, name in enumerate(COLOR_STEPS, start=4):
            bounds: tuple[float, float] | None = getattr(self, name)
            if bounds is not None:
                params[name] = bounds[0] + uniform[:, column] * (bounds[1] - bounds[0])
        return Drawn(params, sizes)


def _factor_range(
    name: str, value: float | Sequence[float] | None, *, center: float = 1.0, low: float = 0.0, high: float = math.inf
) -> tuple[float, float] | None:
    if value is None:
        return None
    if isinstance(value, (int, float)):
        if value < 0:
            raise ArgumentError(f"{name} must not be negative if it is one number, got {value}")
        value = (max(center - value, low) if center else -value, center + value)
    bounds = check_range(name, value, low=low, high=high)
    return None if bounds == (center, center) else bounds


@dataclass(frozen=True, init=False)
class RandomPhotometricDistort(Op):
    """Changes brightness, contrast, saturation and hue, and exchanges the channels, each with probability ``p``.

    The contrast is changed before saturation and hue, or after them, as drawn (Liu et al., 2015).

    Args:
        brightness: (min, max) of the factor.
        contrast: As brightness.
        saturation: As brightness.
        hue: (min, max) of the shift, in turns of the color circle, within [-0.5, 0.5].
        p: Probability of each change, 0 to 1.

    Raises:
        ArgumentError: for an argument outside its range.
    """

    brightness: tuple[float, float]
    contrast: tuple[float, float]
    saturation: tuple[float, float]
    hue: tuple[float, float]
    p: float

    def __init__(
        self,
        brightness: Sequence[float] = (0.875, 1.125),
        contrast: Sequence[float] = (0.5, 1.5),
        saturation: Sequence[float] = (0.5, 1.5),
        hue: Sequence[float] = (-0.05, 0.05),
        p: float = 0.5,
    ) -> None:
        self._set(
            brightness=check_range("brightness", brightness, low=0.0),
            contrast=check_range("contrast", contrast, low=0.0),
            saturation=check_range("saturation", saturation, low=0.0),
            hue=check_range("hue", hue, low=-0.5, high=0.5),
            p=check_probability(p),
        )

    def draw(self, uniforms: Uniforms, sizes: IntArray) -> Drawn:
        """Draws as :class:`ColorJitter` does, with ``change``, bool [N, 4], for its steps, and ``permutation``, [N, 3],
        the channels that become R, G and B."""
        uniform = uniforms(2 * len(COLOR_STEPS) + 5)
        before, exchange, places = uniform[:, 8:9] < 0.5, uniform[:, 9:10] < self.p, uniform[:, 10:]

        params: Params = {
            "order": np.where(before, [0, 1, 2, 3], [0, 2, 3, 1]),
            "change": uniform[:, 0:8:2] < self.p,
            "permutation": np.where(exchange, np.argsort(places, axis=1, kind="stable"), [0, 1, 2]),
        }
        for number, name in enumerate(COLOR_STEPS):
            low, high = getattr(self, name)
            params[name] = low + uniform[:, 2 * number + 1] * (high - low)
        return Drawn(params, sizes)


class RandomGrayscale(ProbabilityOp):
    """Makes the image gray, in three equal channels, with probability ``p``.

    Args:
        p: Probability, 0 to 1.

    Raises:
        ArgumentError: if ``p`` is no probability.
    """

    drawn_name = "gray"

    def __init__(self, p: float = 0.1) -> None:
        super().__init__(p)


@dataclass(frozen=True, init=False)
class Grayscale(Op):
    """Makes every image gray.

    Args:
        num_output_channels: 1, or 3 for three equal channels.

    Raises:
        ArgumentError: for another number.
    """

    num_output_channels: int
    drawn_name = "gray"

    def __init__(self, num_output_channels: int = 1) -> None:
        check_one_of("num_output_channels", num_output_channels, (1, 3))
        self._set(num_output_channels=num_output_channels)

    def draw(self, uniforms: Uniforms, sizes: IntArray) -> Drawn:
        return Drawn({"gray": np.ones(len(sizes), np.bool_)}, sizes)


@dataclass(frozen=True, init=False)
class GaussianBlur(Op):
    """Blurs the image with a Gaussian kernel of random width.

    Args:
        kernel_size: Kernel size in pixels, odd; an int, or (x, y) as torchvision takes it.
        sigma: Standard deviation in pixels, or its (min, max).

    Raises:
        ArgumentError: for an argument outside its range.
    """

    kernel_size: tuple[int, int]
    sigma: tuple[float, float]

    def __init__(self, kernel_size: int | Sequence[int], sigma: float | Sequence[float] = (0.1, 2.0)) -> None:
        kernel = check_size("kernel_size", kernel_size)
        if kernel[0] % 2 == 0 or kernel[1] % 2 == 0:
            raise ArgumentError(f"kernel_size must be odd, got {kernel_size!r}")
        if isinstance(sigma, (int, float)):
            sigma = (sigma, sigma)
        elif len(sigma) == 1:
            sigma = (sigma[0], sigma[0])
        self._set(kernel_size=kernel, sigma=check_range("sigma", sigma, low=1e-6))

    def draw(self, uniforms: Uniforms, sizes: IntArray) -> Drawn:
        return Drawn({"sigma": self.sigma[0] + uniforms(1)[:, 0] * (self.sigma[1] - self.sigma[0])}, sizes)


@dataclass(frozen=True, init=False)
class GaussianNoise(Op):
    """Adds normally distributed noise to each value of the image.

    Args:
        mean: Mean of the noise, where white is 1, also in uint8 images.
        sigma: Its standard deviation.
        clip: True to keep the values from 0 to white; False lets those of uint8 images wrap around.

    Raises:
        ArgumentError: if the mean is not within [-10, 10], or the deviation not within [0, 10].
    """

    on_arrays = True

    mean: float
    sigma: float
    clip: bool

    def __init__(self, mean: float = 0.0, sigma: float = 0.1, clip: bool = True) -> None:
        check_range("mean", (mean, mean), low=-_MOST_NOISE, high=_MOST_NOISE)
        check_range("sigma", (sigma, sigma), low=0.0, high=_MOST_NOISE)
        self._set(mean=float(mean), sigma=float(sigma), clip=bool(clip))

    def draw(self, uniforms: Uniforms, sizes: IntArray) -> Drawn:
        return Drawn({"key": uniforms.keys()}, sizes)


@dataclass(frozen=True, init=False)
class JPEG(Op):
    """Encodes the image as JPEG and decodes it again, for the traces that this leaves.

    Args:
        quality: 1 to 100, or the (min, max) of one that is drawn for each image.

    Raises:
        ArgumentError: for another quality.
    """

    quality: tuple[int, int]

    def __init__(self, quality: int | Sequence[int]) -> None:
        ends = tuple(quality) if isinstance(quality, Sequence) else (quality, quality)
        if len(ends) != 2 or any(type(end) is not int for end in ends) or not 1 <= ends[0] <= ends[1] <= 100:
            raise ArgumentError(f"quality must be 1 to 100, or (min, max) of it, got {quality!r}")
        self._set(quality=ends)

    def draw(self, uniforms: Uniforms, sizes: IntArray) -> Drawn:
        least, most = self.quality
        return Drawn({"quality": least + (uniforms(1)[:, 0] * (most - least + 1)).astype(np.int64)}, sizes)


@dataclass(frozen=True, init=False)
class RandomErasing(Op):
    """Erases a random rectangle with probability ``p``.

    The op usually stands last, after ``Normalize``; ``value`` is in the units of the image at that place.

    Args:
        p: Probability, 0 to 1.
        scale: (min, max) of the rectangle's area as a fraction of the image's.
        ratio: (min, max) of the rectangle's height / width.
        value: One number, three (R, G, B), or "random" or None for normally distributed noise.
        inplace: Accepted as in torchvision, and without effect.

    Raises:
        ArgumentError: for an argument outside its range.
    """

    p: float
    scale: tuple[float, float]
    ratio: tuple[float, float]
    value: tuple[float, float, float] | None
    on_arrays = True
    draws_from_size = True

    def __init__(
        self,
        p: float = 0.5,
        scale: Sequence[float] = (0.02, 0.33),
        ratio: Sequence[float] = (0.3, 3.3),
        value: float | str | Sequence[float] | None = 0.0,
        inplace: bool = False,
    ) -> None:
        numbers: tuple[float, float, float] | None = None
        if value is None or isinstance(value, str):
            if value not in (None, "random"):
                raise ArgumentError(f"value must be numbers or 'random', got {value!r}")
        else:
            given = (value,) if isinstance(value, (int, float)) else tuple(value)
            if len(given) not in (1, 3):
                raise ArgumentError(f"value must be one number or three (R, G, B), got {value!r}")
            numbers = float(given[0]), float(given[len(given) // 2]), float(given[-1])
        self._set(
            p=check_probability(p),
            scale=check_range("scale", scale, low=0.0, high=1.0),
            ratio=check_range("ratio", ratio, low=1e-6),
            value=numbers,
        )

    @property
    def on_images(self) -> bool:  # type: ignore[override]
        """False for noise: values around 0 have no meaning in uint8 images."""
        return self.value is not None

    def draw(self, uniforms: Uniforms, sizes: IntArray) -> Drawn:
        """Draws as torchvision's ``RandomErasing.make_params``: ten attempts, then nothing is erased.

        Samples that are left alone have a rectangle of 0 pixels.
        """
        uniform = uniforms(5 + 2 * ATTEMPTS)
        attempts = uniform[:, 5:].reshape(-1, ATTEMPTS, 2)
        heights, widths = drawn_sides(sizes.prod(axis=1)[:, None], attempts, self.scale, self.ratio)
        fits = (heights < sizes[:, :1]) & (widths < sizes[:, 1:])
        erase = (uniform[:, 2] < self.p) & fits.any(axis=1)
        first = np.arange(len(sizes)), fits.argmax(axis=1)
        sides = np.where(erase[:, None], np.stack([heights[first], widths[first]], axis=1), 0)
        place = np.floor(uniform[:, 3:5] * (sizes - sides + 1)).astype(np.int64)

        params = {
            "erase": erase,
            "i": place[:, 0],
            "j": place[:, 1],
            "h": sides[:, 0],
            "w": sides[:, 1],
            "key": uniforms.keys() if self.value is None else np.zeros(len(sizes), np.uint64),  # the noise's key
        }
        return Drawn(params, sizes)
