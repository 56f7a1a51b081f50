"""Golden files, each beside its generator."""

from __future__ import annotations

import functools
import json
import math
import os
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = [
    "TargetCase",
    "cases_of",
    "target_arrays",
    "target_cases",
    "target_draws",
    "torchvision_arrays",
    "torchvision_cases",
]

_TORCHVISION = os.path.join(os.path.dirname(__file__), "torchvision.npz")
_TARGETS = os.path.join(os.path.dirname(__file__), "targets.npz")


@functools.cache
def torchvision_arrays() -> dict[str, npt.NDArray[Any]]:
    """The arrays of torchvision.npz."""
    with np.load(_TORCHVISION) as arrays:
        return dict(arrays)


def torchvision_cases(kind: str) -> list[dict[str, Any]]:
    """The described cases of torchvision.npz: "pixels", "draws", "sizes" or "magnitudes"."""
    cases: list[dict[str, Any]] = json.loads(str(torchvision_arrays()["cases"]))[kind]
    return cases


@dataclass(frozen=True)
class TargetCase:
    """A mask, boxes and keypoints after ops of torchvision.

    Attributes:
        size: (height, width) of the image.
        steps: Ops, each with its arguments and drawn parameters.
        given: The mask, the boxes (left, top, right, bottom) and the keypoints.
        expected: Results for "mask", for the boxes in the formats "xyxy", "xywh" and "cxcywh" and "unclamped", and for
            "points"; without those that torchvision refuses.
    """

    size: tuple[int, int]
    steps: list[tuple[str, dict[str, Any], dict[str, Any]]]
    given: dict[str, npt.NDArray[Any]]
    expected: dict[str, npt.NDArray[Any]]


@functools.cache
def target_arrays() -> dict[str, npt.NDArray[Any]]:
    """The arrays of targets.npz."""
    with np.load(_TARGETS) as arrays:
        return dict(arrays)


def target_draws(kind: str) -> list[dict[str, Any]]:
    """The draws in targets.npz: "iou", each with its "boxes" and its "uniforms", or "jitter"."""
    arrays = target_arrays()
    cases: list[dict[str, Any]] = json.loads(str(arrays["draws"]))[kind]
    if kind == "iou":
        for case, numbers in zip(cases, arrays["iou_numbers"].reshape(len(cases), -1), strict=True):
            case.update(boxes=numbers[:20].reshape(5, 4), uniforms=numbers[20:])
    return cases


@functools.cache
def target_cases() -> list[TargetCase]:
    """The cases of targets.npz."""
    return cases_of(target_arrays())


def cases_of(arrays: dict[str, npt.NDArray[Any]]) -> list[TargetCase]:
    """The cases of arrays such as those of targets.npz."""
    starts = {"masks": 0, "floats": 0}
    found = []
    for case in json.loads(str(arrays["cases"])):
        height, width = case["size"]
        expected = {}
        for name, shape in case["outputs"].items():
            flat = "masks" if name == "mask" else "floats"
            end = starts[flat] + math.prod(shape)
            expected[name] = arrays[flat][starts[flat] : end].reshape(shape)
            starts[flat] = end
        given = {name: arrays[f"{height}x{width}_{name}"] for name in ("mask", "boxes", "points")}
        found.append(TargetCase((height, width), case["steps"], given, expected))
    return found
