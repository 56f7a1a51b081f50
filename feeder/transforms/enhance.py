"""The ops that change colors or sharpness of some images in one fixed way."""

from __future__ import annotations

from dataclasses import dataclass

from feeder.errors import ArgumentError
from feeder.system.checks import check_int, check_number
from feeder.transforms.op import ProbabilityOp


class RandomInvert(ProbabilityOp):
    """Turns each value v into 255 - v, with probability ``p``.

    Args:
        p: Probability, 0 to 1.

    Raises:
        ArgumentError: if ``p`` is no probability.
    """


class RandomAutocontrast(ProbabilityOp):
    """Stretches each channel's values, from the lowest to the highest, over 0-255, with probability ``p``.

    Args:
        p: Probability, 0 to 1.

    Raises:
        ArgumentError: if ``p`` is no probability.
    """


class RandomEqualize(ProbabilityOp):
    """Spreads each channel's values so that all are about as frequent, with probability ``p``.

    Args:
        p: Probability, 0 to 1.

    Raises:
        ArgumentError: if ``p`` is no probability.
    """


@dataclass(frozen=True, init=False)
class RandomPosterize(ProbabilityOp):
    """Keeps the upper bits of each value, with probability ``p``.

    Args:
        bits: Number of bits kept, 0 to 8.
        p: Probability, 0 to 1.

    Raises:
        ArgumentError: for an argument outside its range.
    """

    bits: int

    def __init__(self, bits: int, p: float = 0.5) -> None:
        super().__init__(p)
        check_int("bits", bits, 0, 8)
        self._set(bits=int(bits))


@dataclass(frozen=True, init=False)
class RandomSolarize(ProbabilityOp):
    """Inverts the values from ``threshold`` on, with probability ``p``.

    Args:
        threshold: Level of a uint8 image, 0 to 255, and not between 0 and 1.
        p: Probability, 0 to 1.

    Raises:
        ArgumentError: for an argument outside its range.
    """

    threshold: float

    def __init__(self, threshold: float, p: float = 0.5) -> None:
        super().__init__(p)
        check_number("threshold", threshold, 0, 255)
        if 0 < threshold < 1:
            raise ArgumentError(
                f"threshold is a level of uint8 images, 0-255, got {threshold!r}; for one of 0.0-1.0 images take "
                f"{255 * threshold:g}"
            )
        self._set(threshold=float(threshold))


@dataclass(frozen=True, init=False)
class RandomAdjustSharpness(ProbabilityOp):
    """Sharpens or blurs the image, with probability ``p``.

    Args:
        sharpness_factor: 0 blurs, 1 changes nothing, 2 sharpens; 0 or more.
        p: Probability, 0 to 1.

    Raises:
        ArgumentError: for an argument outside its range.
    """

    sharpness_factor: float

    def __init__(self, sharpness_factor: float, p: float = 0.5) -> None:
        super().__init__(p)
        check_number("sharpness_factor", sharpness_factor, 0)
        self._set(sharpness_factor=float(sharpness_factor))
