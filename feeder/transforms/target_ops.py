"""Ops on boxes and keypoints that leave the image as it is."""

from __future__ import annotations

from dataclasses import dataclass

from feeder.system.checks import check_number, check_one_of
from feeder.transforms.op import Op, SizeBounds


class TargetOp(Op):
    """An op that changes targets only, and may stand anywhere in a recipe."""

    on_arrays = True

    def fuses(self, extent: SizeBounds) -> bool:
        return True


@dataclass(frozen=True, init=False)
class SanitizeBoundingBoxes(TargetOp):
    """Drops boxes that are too small or reach outside the image, with their labels and their elements of all lists.

    It acts on every target of ``BoundingBoxes`` by itself; masks keep all instances.

    Args:
        min_size: Least width and height, pixels, 1 or more.
        min_area: Least area, pixels, 1 or more.

    Raises:
        ArgumentError: for a smaller number.
    """

    min_size: float
    min_area: float

    def __init__(self, min_size: float = 1.0, min_area: float = 1.0) -> None:
        for name, value in (("min_size", min_size), ("min_area", min_area)):
            check_number(name, value, 1)
        self._set(min_size=float(min_size), min_area=float(min_area))


@dataclass(frozen=True)
class SanitizeKeyPoints(TargetOp):
    """Drops keypoints outside the image, of groups the whole group, with their elements of all lists."""


@dataclass(frozen=True, init=False)
class ClampBoundingBoxes(TargetOp):
    """Cuts boxes at the image's edges.

    Args:
        clamping_mode: "soft" or "hard", which are the same for boxes that are not rotated; None to leave them; "auto"
            for that of the target.

    Raises:
        ArgumentError: for another mode.
    """

    clamping_mode: str | None

    def __init__(self, clamping_mode: str | None = "auto") -> None:
        check_one_of("clamping_mode", clamping_mode, ("soft", "hard", "auto", None))
        self._set(clamping_mode=clamping_mode)


@dataclass(frozen=True)
class ClampKeyPoints(TargetOp):
    """Moves keypoints outside the image to its nearest pixel."""


TARGET_OPS: tuple[type[Op], ...] = (ClampBoundingBoxes, ClampKeyPoints, SanitizeBoundingBoxes, SanitizeKeyPoints)
