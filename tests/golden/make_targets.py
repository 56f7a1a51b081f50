"""Writes targets.npz: what torchvision makes of a small mask, boxes and keypoints with given drawn parameters.

Run it when a case is added: ``python -m tests.support.with_torchvision tests/golden/make_targets.py [FILE]``.
Most tests compare with the file, so they need no torchvision. Last written with torchvision 0.29.2.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any
from unittest import mock

import numpy as np
import torch
from torchvision import tv_tensors
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as F

from feeder.transforms.matrices import perspective_matrix

HEIGHT, WIDTH = 17, 22
SIZES = [(HEIGHT, WIDTH), (19, 19)]
# Area from outside the mask, in every op that torchvision lets choose it.
FILL = 7

# An op, its arguments, its drawn parameters, and torchvision's function with these.
Step = tuple[str, dict[str, Any], dict[str, Any], Callable[[Any], Any]]


def step(op: str, args: dict[str, Any], row: dict[str, Any], run: Callable[..., Any], **options: Any) -> Step:
    return op, args, row, lambda target: run(target, **options)


def window(top: int, left: int, height: int, width: int) -> dict[str, Any]:
    return {"top": top, "left": left, "height": height, "width": width}


def resized(height: int, width: int) -> dict[str, Any]:
    return {"resized_height": height, "resized_width": width}


def crops() -> list[Step]:
    steps = [
        step("RandomResizedCrop", {"size": list(size)}, box | resized(*size), F.resized_crop, **box, size=list(size))
        for box, size in (
            (window(2, 5, 9, 14), (8, 31)),
            (window(0, 0, 17, 20), (5, 5)),
            (window(3, 1, 10, 12), (10, 12)),
        )
    ]
    nearest = window(2, 5, 9, 14)
    options = {"size": [16, 20], "interpolation": "nearest-exact"}
    steps.append(step("RandomResizedCrop", options, nearest | resized(16, 20), F.resized_crop, **nearest, **options))
    for box in (window(1, 3, 12, 15), window(5, 0, 12, 19)):
        steps.append(step("RandomCrop", {"size": [box["height"], box["width"]]}, box, F.crop, **box))
    padding = [3, 2, 4, 1]
    inside = window(2, 5, 16, 18)

    def padded(target: Any, mode: str) -> Any:
        return F.crop(F.pad(target, padding, fill=FILL, padding_mode=mode), **inside)

    for mode in ("constant", "edge", "reflect", "symmetric"):
        args = {"size": [16, 18], "padding": padding, "padding_mode": mode}
        steps.append(step("RandomCrop", args, inside | {"padding": padding}, padded, mode=mode))
    for height, width in ((9, 11), (17, 5), (12, 15)):
        box = window(round((HEIGHT - height) / 2), round((WIDTH - width) / 2), height, width)
        steps.append(step("CenterCrop", {"size": [height, width]}, box, F.center_crop, output_size=[height, width]))
    whole = window(0, 0, HEIGHT, WIDTH) | {"crop": 0}
    return [*steps, ("RandomIoUCrop", {}, whole, lambda target: target), iou_crop(window(2, 6, 11, 13))]


def iou_crop(box: dict[str, Any]) -> Step:
    def run(target: Any) -> Any:
        op = v2.RandomIoUCrop()
        params = dict(box)
        if isinstance(target, tv_tensors.BoundingBoxes):
            xyxy = F.convert_bounding_box_format(target, new_format="XYXY").as_subclass(torch.Tensor)
            x, y = 0.5 * (xyxy[:, 0] + xyxy[:, 2]), 0.5 * (xyxy[:, 1] + xyxy[:, 3])
            right, bottom = box["left"] + box["width"], box["top"] + box["height"]
            params["is_within_crop_area"] = (box["left"] < x) & (x < right) & (box["top"] < y) & (y < bottom)
        return op.transform(target, params)

    return "RandomIoUCrop", {}, box | {"crop": 1}, run


def resizes() -> list[Step]:
    steps = []
    for name in ("nearest", "nearest-exact", "bilinear", "bicubic"):
        for size in ([9, 13], [40, 51], [17, 22], [1, 60]):
            args = {"size": size, "interpolation": name}
            steps.append(step("Resize", args, resized(*size), F.resize, **args))
    others: list[dict[str, Any]] = [{"size": 11}, {"target_size": [30, 30]}, {"min_size": 11}]
    for op, args in zip(("Resize", "ScaleJitter", "RandomShortestSize"), others, strict=True):
        size = [11, 14]
        steps.append(step(op, args, resized(*size), F.resize, size=size))
    return steps


def flips_and_borders() -> list[Step]:
    steps = [
        step("RandomHorizontalFlip", {}, {"flip": True}, F.horizontal_flip),
        step("RandomHorizontalFlip", {}, {"flip": False}, lambda target: target),
        step("RandomVerticalFlip", {}, {"flip_vertically": True}, F.vertical_flip),
    ]
    for mode in ("constant", "edge", "reflect", "symmetric"):
        args = {"padding": [1, 2, 3, 4], "padding_mode": mode}
        steps.append(step("Pad", args, {}, F.pad, **args, fill=FILL))
    padding = [7, 2, 0, 5]
    steps.append(step("RandomZoomOut", {}, {"padding": padding}, F.pad, padding=padding, fill=FILL))
    applied = {"apply": True, "0.flip": True, "1.flip_vertically": True}
    flips = [["RandomHorizontalFlip", {}], ["RandomVerticalFlip", {}]]
    steps.append(step("RandomApply", {"transforms": flips}, applied, lambda t: F.vertical_flip(F.horizontal_flip(t))))
    chosen = {"choice": 1, "0.flip": True, "1.flip_vertically": True}
    steps.append(step("RandomChoice", {"transforms": flips}, chosen, F.vertical_flip))
    ordered = {"order": [1, 0], "0.flip": True, "1.flip_vertically": True}
    steps.append(step("RandomOrder", {"transforms": flips}, ordered, lambda t: F.horizontal_flip(F.vertical_flip(t))))
    return steps


def warps(height: int, width: int) -> list[Step]:
    steps = []
    for args in ({}, {"expand": True}, {"center": [3.0, 12.5]}):
        # At some angles torchvision's boxes and masks differ in their canvas after expansion; at these they don't.
        for angle in (40.0, -31.0, 0.0, 90.0, 180.0, 270.0, -90.0):
            if "center" in args and angle % 90.0 == 0.0:
                continue  # the middles of pixels fall between pixels
            if not args and angle % 180.0 == 90.0 and height != width:
                continue  # as above
            options = {"degrees": 360.0, **args}
            steps.append(step("RandomRotation", options, {"angle": angle}, F.rotate, angle=angle, fill=FILL, **args))
    for center in (None, [4.5, 7.0]):
        for angle, shift, scale, shear in (
            (12.7, [3, -2], 1.0, [0.0, 0.0]),
            (-40.0, [0, 5], 0.7, [11.0, 0.0]),
            (0.0, [-4, 3], 1.0, [0.0, 0.0]),
            (5.0, [0, 0], 1.9, [-20.0, 13.0]),
        ):
            row = {"angle": angle, "shift_x": shift[0], "shift_y": shift[1], "scale": scale}
            row |= {"shear_x": shear[0], "shear_y": shear[1]}
            options = {"angle": angle, "translate": shift, "scale": scale, "shear": shear, "center": center}
            steps.append(step("RandomAffine", {"degrees": 90, "center": center}, row, F.affine, fill=FILL, **options))
    for corners in (
        [[2, 1], [width - 4, 3], [width - 1, height - 3], [1, height - 1]],
        [[0, 0], [width - 1, 0], [width - 1, height - 1], [0, height - 1]],
        [[5, 6], [width - 9, 0], [width - 2, height - 6], [3, height - 4]],
    ):
        matrix = perspective_matrix(width, height, corners)
        options = {"startpoints": None, "endpoints": None, "coefficients": matrix, "fill": FILL}
        steps.append(step("RandomPerspective", {}, {"distort": True, "corners": corners}, F.perspective, **options))
    steps.append(step("RandomPerspective", {}, {"distort": False, "corners": corners}, lambda target: target))
    return steps


def only(kind: type, run: Callable[..., Any], **options: Any) -> Callable[[Any], Any]:
    return lambda target: run(target, **options) if isinstance(target, kind) else target


def target_ops() -> list[Step]:
    boxes, points = tv_tensors.BoundingBoxes, tv_tensors.KeyPoints
    steps: list[Step] = [
        ("ClampBoundingBoxes", {}, {}, only(boxes, F.clamp_bounding_boxes)),
        ("ClampBoundingBoxes", {"clamping_mode": None}, {}, only(boxes, F.clamp_bounding_boxes, clamping_mode=None)),
        (
            "ClampBoundingBoxes",
            {"clamping_mode": "hard"},
            {},
            only(boxes, F.clamp_bounding_boxes, clamping_mode="hard"),
        ),
        ("ClampKeyPoints", {}, {}, only(points, F.clamp_keypoints)),
        ("SanitizeKeyPoints", {}, {}, only(points, lambda target: F.sanitize_keypoints(target)[0])),
    ]
    for options in ({}, {"min_size": 4.0}, {"min_area": 30.0}):
        run = only(boxes, lambda target, **given: F.sanitize_bounding_boxes(target, **given)[0], **options)
        steps.append(("SanitizeBoundingBoxes", options, {}, run))
    return steps


def chains() -> list[list[Step]]:
    """Several ops one after the other, each on the other's output."""
    crop, flip = crops(), flips_and_borders()
    rotated = step("RandomRotation", {"degrees": 360.0}, {"angle": 25.0}, F.rotate, angle=25.0, fill=FILL)
    tiny = step("Resize", {"size": [12, 15]}, resized(12, 15), F.resize, size=[12, 15])
    larger = step("Resize", {"size": [45, 33]}, resized(45, 33), F.resize, size=[45, 33])
    clamp, *_, points, sanitize = target_ops()[:1] + target_ops()[4:6]
    return [
        [flip[7], iou_crop(window(4, 8, 12, 14)), flip[0], tiny, sanitize, points],
        [flip[3], larger, flip[0], crop[4], flip[2], rotated, tiny, clamp, sanitize],
        [crop[0], flip[0], flip[3], flip[2], larger],
        [rotated, crop[4], flip[0], rotated, sanitize],
    ]


ROUNDS, TRIALS = 8, 40


def iou_draws(rng: np.random.Generator) -> tuple[list[dict[str, Any]], list[Any]]:
    """Windows that RandomIoUCrop draws from given uniform numbers: 1 + 4 * TRIALS for each option that it tries."""
    cases, numbers = [], []
    for height, width, args in (
        (120, 160, {}),
        (375, 500, {"sampler_options": [0.3, 0.6]}),
        (90, 400, {"min_scale": 0.5, "sampler_options": [0.0, 0.5, 1.0]}),
        (64, 64, {"min_aspect_ratio": 0.9, "max_aspect_ratio": 1.1, "sampler_options": [0.1]}),
    ) * 3:
        start = rng.uniform(0, [width * 0.4, height * 0.4], (5, 2))
        boxes = np.concatenate([start, start + rng.uniform(0.2, 0.6, (5, 2)) * [width, height]], 1).astype(np.float32)
        uniforms = rng.random((ROUNDS, 1 + 4 * TRIALS), np.float32)
        state = {"round": -1, "trial": -1, "second": False}
        op = v2.RandomIoUCrop(**args)

        def randint(low: int, high: int, size: Any, uniforms: Any = uniforms, state: Any = state) -> torch.Tensor:
            state.update(round=state["round"] + 1, trial=-1, second=False)
            return torch.tensor([int(uniforms[state["round"], 0] * high)])

        def rand(
            count: int, u: Any = uniforms, state: Any = state, op: Any = op, w: int = width, h: int = height
        ) -> Any:
            state["trial"] += not state["second"]
            first = 1 + 4 * state["trial"] + 2 * state["second"]
            pair = torch.from_numpy(u[state["round"], first : first + 2])
            scale = op.min_scale + (op.max_scale - op.min_scale) * pair
            aspect = int(w * scale[0]) / int(h * scale[1])
            state["second"] = not state["second"] and op.min_aspect_ratio <= aspect <= op.max_aspect_ratio
            return pair

        given = tv_tensors.BoundingBoxes(torch.from_numpy(boxes), format="XYXY", canvas_size=(height, width))
        with mock.patch.object(torch, "randint", randint), mock.patch.object(torch, "rand", rand):
            params = op.make_params([torch.empty(3, height, width), given])
        window = [params[name] for name in ("top", "left", "height", "width")] if params else None
        cases.append({"args": args, "size": [height, width], "window": window})
        numbers += [boxes.ravel(), uniforms.ravel()]
    return cases, numbers


def jitter_draws(rng: np.random.Generator) -> list[dict[str, Any]]:
    """Sizes that ScaleJitter draws from given uniform numbers."""
    cases = []
    for height, width in ((375, 500), (500, 333), (64, 64), (9, 300)):
        for args in ({"target_size": [512, 384]}, {"target_size": [100, 100], "scale_range": [0.8, 1.25]}):
            uniform = float(rng.random(dtype=np.float32))
            with mock.patch.object(torch, "rand", return_value=torch.tensor([uniform])):
                size = v2.ScaleJitter(**args).make_params([torch.empty(3, height, width)])["size"]
            cases.append({"args": args, "size": [height, width], "uniform": uniform, "result": list(size)})
    return cases


def inputs(height: int, width: int) -> dict[str, Any]:
    rng = np.random.default_rng(height)
    start = rng.uniform(-3, [width - 4, height - 4], (12, 2))
    xyxy = np.concatenate([start, start + rng.uniform(0, 14, (12, 2))], axis=1).astype(np.float32)
    return {
        "mask": rng.integers(0, 200, (height, width)).astype(np.uint8),
        "boxes": xyxy,
        "points": rng.uniform(-2, [width + 1, height + 1], (6, 3, 2)).astype(np.float32),
    }


def targets(arrays: dict[str, Any], canvas: tuple[int, int]) -> dict[str, Any]:
    found: dict[str, Any] = {"mask": tv_tensors.Mask(torch.from_numpy(arrays["mask"]))}
    for name in ("xyxy", "xywh", "cxcywh"):
        boxes = tv_tensors.BoundingBoxes(torch.from_numpy(arrays["boxes"]), format="XYXY", canvas_size=canvas)
        found[name] = F.convert_bounding_box_format(boxes, new_format=name.upper())
    unclamped = tv_tensors.BoundingBoxes(torch.from_numpy(arrays["boxes"]), format="XYXY", canvas_size=canvas)
    unclamped.clamping_mode = None
    found["unclamped"] = unclamped
    found["points"] = tv_tensors.KeyPoints(torch.from_numpy(arrays["points"]), canvas_size=canvas)
    return found


def main(path: str) -> None:
    described: list[dict[str, Any]] = []
    arrays: dict[str, Any] = {}
    masks: list[Any] = []
    floats: list[Any] = []
    for size in SIZES:
        given = inputs(*size)
        arrays |= {f"{size[0]}x{size[1]}_{name}": array for name, array in given.items()}
        single = [*crops(), *resizes(), *flips_and_borders(), *target_ops()] if size == SIZES[0] else []
        every = [[each] for each in single + warps(*size)] + (chains() if size == SIZES[0] else [])
        for steps in every:
            steps_given = [[op, args, row] for op, args, row, _ in steps]
            outputs: dict[str, list[int]] = {}
            for name, target in targets(given, size).items():
                result = target
                try:
                    for *_, run in steps:
                        result = run(result)
                except ValueError as error:
                    if "is not supported with" not in str(error):
                        raise
                    continue
                outputs[name] = list(result.shape)
                (masks if name == "mask" else floats).append(result.numpy().ravel())
            described.append({"size": size, "steps": steps_given, "outputs": outputs})
    rng = np.random.default_rng(1)
    windows, numbers = iou_draws(rng)
    draws = {"iou": windows, "jitter": jitter_draws(rng)}
    arrays |= {"iou_numbers": np.concatenate(numbers), "draws": np.array(json.dumps(draws))}
    arrays |= {"masks": np.concatenate(masks), "floats": np.concatenate(floats)}
    np.savez_compressed(path, cases=np.array(json.dumps(described)), **arrays)
    print(f"{len(described)} cases, {os.path.getsize(path)} bytes in {path}")


if __name__ == "__main__":
    main(*sys.argv[1:] or [os.path.join(os.path.dirname(__file__), "targets.npz")])
