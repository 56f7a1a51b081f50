"""Writes torchvision.npz: what torchvision makes of small images and given random numbers.

Run it when a case is added: ``python -m tests.support.with_torchvision tests/golden/make_torchvision.py [FILE]``.
Most tests compare with the file, so they need no torchvision. Last written with torchvision 0.29.2 and Pillow 13.0.0.
"""

from __future__ import annotations

import ctypes
import importlib
import itertools
import json
import os
import subprocess
import sys
import tempfile
from typing import Any
from unittest import mock

import numpy as np
import torch
import torchvision
from PIL import Image
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as F

from feeder.decoders.pillow.image_ops import normal
from tests.support.conformance import natural_image

HEIGHT, WIDTH = 16, 20


def pixel_cases(image: Image.Image) -> list[tuple[str, dict[str, Any], dict[str, Any], Any]]:
    """(op, its arguments, its drawn parameters, torchvision's output)."""
    cases: list[tuple[str, dict[str, Any], dict[str, Any], Any]] = []
    row: dict[str, Any]
    args: dict[str, Any]
    options: dict[str, Any]
    for name in ("nearest", "bilinear", "bicubic", "box", "hamming", "lanczos"):
        row = {"resized_height": 9, "resized_width": 13}
        cases.append(("Resize", {"size": [9, 13], "interpolation": name}, row, F.resize(image, [9, 13], name)))
    window = {"top": 3, "left": 5, "height": 11, "width": 14}
    row = {**window, "resized_height": 8, "resized_width": 8}
    cases.append(("RandomResizedCrop", {"size": 8}, row, F.resized_crop(image, *window.values(), size=[8, 8])))
    cases.append(("RandomHorizontalFlip", {}, {"flip": True}, F.horizontal_flip(image)))
    cases.append(("RandomVerticalFlip", {}, {"flip_vertically": True}, F.vertical_flip(image)))
    for mode in ("constant", "edge", "reflect", "symmetric"):
        args = {"padding": [1, 2, 3, 4], "fill": [9, 8, 7], "padding_mode": mode}
        cases.append(("Pad", args, {}, F.pad(image, [1, 2, 3, 4], [9, 8, 7], mode)))
    out = F.pad(image, [7, 2, 0, 5], [9, 8, 7])
    cases.append(("RandomZoomOut", {"fill": [9, 8, 7]}, {"padding": [7, 2, 0, 5]}, out))
    padded = F.crop(F.pad(image, [4, 3, 4, 3], 5), 2, 7, 20, 20)
    row = {"top": 2, "left": 7, "height": 20, "width": 20, "padding": [4, 3, 4, 3]}
    cases.append(("RandomCrop", {"size": [20, 20], "padding": [4, 3], "fill": 5}, row, padded))
    for angle, options in (
        (0.0, {}),
        (90.0, {"expand": True}),
        (33.0, {}),
        (-70.5, {"interpolation": "bilinear", "fill": [10, 20, 30]}),
        (33.0, {"expand": True, "interpolation": "bicubic"}),
        (200.0, {"center": [3.0, 4.0], "interpolation": "bilinear"}),
    ):
        out = F.rotate(image, angle, **options)
        cases.append(("RandomRotation", {"degrees": 180, **options}, {"angle": angle}, out))
    for angle, shift, scale, shear, options in (
        (15.0, (2, -3), 1.2, (0.0, 0.0), {}),
        (-40.0, (0, 0), 0.7, (10.0, -5.0), {"interpolation": "bilinear", "fill": [10, 20, 30]}),
        (0.0, (-4, 1), 1.0, (-20.0, 0.0), {"interpolation": "bicubic", "center": [2.0, 20.0]}),
    ):
        row = {"angle": angle, "shift_x": shift[0], "shift_y": shift[1], "scale": scale}
        row |= {"shear_x": shear[0], "shear_y": shear[1]}
        out = F.affine(image, angle, list(shift), scale, list(shear), **options)
        cases.append(("RandomAffine", {"degrees": 180, **options}, row, out))
    for scale, corners, options in (
        (0.5, [[3, 2], [17, 1], [16, 14], [0, 12]], {}),
        (1.0, [[9, 0], [12, 7], [19, 15], [1, 8]], {"interpolation": "nearest", "fill": [10, 20, 30]}),
        (0.7, [[0, 5], [19, 0], [13, 11], [6, 15]], {"interpolation": "bicubic"}),
    ):
        whole = [[0, 0], [WIDTH - 1, 0], [WIDTH - 1, HEIGHT - 1], [0, HEIGHT - 1]]
        out = F.perspective(image, whole, corners, **options)
        row = {"distort": True, "corners": corners}
        cases.append(("RandomPerspective", {"distortion_scale": scale, **options}, row, out))
    args = {"brightness": 0.9, "contrast": 0.9, "saturation": 0.9, "hue": 0.5}
    names = ("brightness", "contrast", "saturation", "hue")
    for order, factors in (
        ([0, 1, 2, 3], (1.4, 0.5, 1.7, 0.2)),
        ([3, 2, 1, 0], (0.3, 1.6, 0.0, -0.3)),
        ([2, 0, 3, 1], (1.0, 1.0, 1.3, -0.5)),
        ([1, 3, 0, 2], (1.8, 1.9, 0.4, 0.013)),
    ):
        given = dict(zip(names, factors, strict=True))
        params = {"fn_idx": torch.tensor(order), **{f"{name}_factor": value for name, value in given.items()}}
        cases.append(("ColorJitter", args, {"order": order, **given}, v2.ColorJitter().transform(image, params)))
    for change, order, permutation in (
        ([True, True, True, True], [0, 1, 2, 3], [2, 0, 1]),
        ([False, True, True, False], [0, 2, 3, 1], [0, 1, 2]),
        ([True, False, False, True], [0, 2, 3, 1], [1, 0, 2]),
    ):
        strengths = dict(zip(names, (0.9, 1.4, 0.6, -0.04), strict=True))
        changed = zip(strengths.items(), change, strict=True)
        params = {f"{name}_factor": factor if is_changed else None for (name, factor), is_changed in changed}
        params |= {"contrast_before": order[1] == 1, "channel_permutation": torch.tensor(permutation)}
        row = {**strengths, "change": change, "order": order, "permutation": permutation}
        out = v2.RandomPhotometricDistort().transform(image, params)
        cases.append(("RandomPhotometricDistort", {}, row, out))
    tensor = F.pil_to_tensor(image)
    numbers = torch.from_numpy(normal({"key": 5}, tensor.numpy())).float()
    for args in ({}, {"mean": -0.2, "sigma": 0.5}, {"sigma": 2.0, "clip": False}):
        with mock.patch.object(torch, "randn_like", return_value=numbers):
            out = F.to_pil_image(v2.GaussianNoise(**args).transform(tensor, {}))
        cases.append(("GaussianNoise", args, {"key": 5}, out))
    for quality in (1, 40, 75, 100):
        out = F.to_pil_image(F.jpeg(tensor, quality))
        cases.append(("JPEG", {"quality": quality}, {"quality": quality}, out))
    cases.append(("RandomGrayscale", {}, {"gray": True}, F.rgb_to_grayscale(image, 3)))
    for kernel, sigma in (([3, 3], 0.4), ([5, 9], 1.7), ([7, 3], 0.1)):
        out = F.gaussian_blur(image, kernel, [sigma, sigma])
        cases.append(("GaussianBlur", {"kernel_size": kernel}, {"sigma": sigma}, out))
    row = {"erase": True, "i": 4, "j": 6, "h": 9, "w": 12, "key": 0}
    value = torch.tensor([200.0, 17.9, 3.0])[:, None, None]
    out = F.erase(image, 4, 6, 9, 12, value)
    cases.append(("RandomErasing", {"value": [200.0, 17.9, 3.0]}, row, out))
    for name, args, out in (
        ("RandomInvert", {}, F.invert(image)),
        ("RandomAutocontrast", {}, F.autocontrast(image)),
        ("RandomEqualize", {}, F.equalize(image)),
        ("RandomPosterize", {"bits": 1}, F.posterize(image, 1)),
        ("RandomPosterize", {"bits": 5}, F.posterize(image, 5)),
        ("RandomSolarize", {"threshold": 130}, F.solarize(image, 130)),
        ("RandomSolarize", {"threshold": 96.5}, F.solarize(image, 96.5)),
        ("RandomAdjustSharpness", {"sharpness_factor": 0}, F.adjust_sharpness(image, 0)),
        ("RandomAdjustSharpness", {"sharpness_factor": 2.3}, F.adjust_sharpness(image, 2.3)),
    ):
        cases.append((name, args, {"change": True}, out))
    cases.append(("AutoAugment", {}, {"kind": [14], "magnitude": [0.0]}, F.invert(image)))
    return cases


def augment_cases(image: Image.Image) -> list[tuple[str, dict[str, Any], dict[str, Any], Any]]:
    """Every augmentation of RandAugment and TrivialAugmentWide, weak and strong, with both signs."""
    cases: list[tuple[str, dict[str, Any], dict[str, Any], Any]] = []
    for op, space, bins in (
        ("RandAugment", v2.RandAugment._AUGMENTATION_SPACE, (9, 28)),
        ("TrivialAugmentWide", v2.TrivialAugmentWide._AUGMENTATION_SPACE, (4, 15, 30)),
    ):
        for number, (kind, (magnitudes, signed)) in enumerate(space.items()):
            table = magnitudes(31, HEIGHT, WIDTH)
            strengths = [0.0] if table is None else [float(table[i]) for i in bins]
            for strength in strengths + [-s for s in strengths if signed]:
                out = v2.RandAugment()._apply_image_or_video_transform(
                    image, kind, strength, interpolation=v2.InterpolationMode.NEAREST, fill={"others": None}
                )
                cases.append((op, {}, {"kind": [number], "magnitude": [strength]}, out))
    return cases


def augmix_cases(image: Image.Image) -> list[tuple[str, dict[str, Any], dict[str, Any], Any]]:
    """AugMix with given weights and chains of (augmentation, bin, whether its sign is turned), each done on Pillow's
    image."""
    numbers = {kind: number for number, kind in enumerate(v2.RandAugment._AUGMENTATION_SPACE)}
    chains = [
        [[("ShearX", 2, True)], [("Posterize", 1, False), ("Color", 2, True)], [("Solarize", 2, False)]],
        [[("Equalize", 0, False), ("Rotate", 5, True), ("Brightness", 9, False)], [("Posterize", 9, False)]],
        [[("TranslateY", 9, False), ("AutoContrast", 0, False)], [("Contrast", 9, True), ("Sharpness", 9, False)]],
    ]
    two = {"severity": 10, "mixture_width": 2}
    cases = []
    for args, chosen, share, weights in (
        ({}, chains[0], 0.4, [0.2, 0.5, 0.3]),
        (two | {"fill": [9, 8, 7]}, chains[1], 0.1, [0.9, 0.1]),
        (two | {"chain_depth": 2, "interpolation": "nearest"}, chains[2], 0.5, [0.5, 0.5]),
        (two | {"chain_depth": 2, "interpolation": "bicubic"}, chains[2], 0.0, [1.0, 0.0]),
    ):
        op = v2.AugMix(**args)
        integers: list[torch.Tensor] = []
        signs: list[torch.Tensor] = []
        magnitudes: list[float] = []
        for chain in chosen:
            integers += [] if op.chain_depth > 0 else [torch.tensor([len(chain)])]
            for kind, level, negative in chain:
                table, signed = op._AUGMENTATION_SPACE[kind]
                integers += [torch.tensor(level)] if table(10, HEIGHT, WIDTH) is not None else []
                signs += [torch.tensor(0.2 if negative else 0.8)] if signed else []

        def on_pillow(batch: torch.Tensor, kind: str, magnitude: float, done: Any = magnitudes, **options: Any) -> Any:
            done.append(magnitude)
            if kind == "Posterize":  # to 0 bits, too, which Pillow refuses
                return F.posterize(batch, int(magnitude))
            run = v2.RandAugment()._apply_image_or_video_transform
            return F.pil_to_tensor(run(F.to_pil_image(batch[0]), kind, magnitude, **options))[None]

        items = [(kind, op._AUGMENTATION_SPACE[kind]) for chain in chosen for kind, _, _ in chain]
        given = torch.tensor([[share, 1.0 - share]]), torch.tensor([weights])
        with (
            mock.patch.object(op, "_sample_dirichlet", side_effect=given),
            mock.patch.object(op, "_get_random_item", side_effect=items),
            mock.patch.object(op, "_apply_image_or_video_transform", on_pillow),
            mock.patch.object(torch, "randint", side_effect=integers),
            mock.patch.object(torch, "rand", side_effect=signs),
        ):
            out = op(image)
        depth, strengths = max(map(len, chosen)), iter(magnitudes)
        row = {"weights": [share, *(given[1] * given[0][:, 1:])[0].tolist()], "kind": [], "magnitude": []}
        for chain in chosen:
            rest = [0] * (depth - len(chain))
            row["kind"].append([numbers[kind] for kind, _, _ in chain] + rest)
            row["magnitude"].append([next(strengths) for _ in chain] + rest)
        cases.append(("AugMix", args, row, out))
    return cases


def drawn(transform: Any, height: int, width: int, uniforms: list[float], order: list[int]) -> dict[str, Any]:
    """Returns what ``make_params`` draws from given uniform numbers; ``order`` says which number each call gets."""
    queue = iter(order)

    def uniform_(self: torch.Tensor, low: Any, high: Any) -> torch.Tensor:
        return torch.tensor([float(low) + uniforms[next(queue)] * (float(high) - float(low))], dtype=torch.float64)

    # The integers are drawn last: the row, then the column.
    corner = iter((uniforms[-2], uniforms[-1]))

    def randint(low: int, high: int, size: Any) -> torch.Tensor:
        return torch.tensor([low + int(next(corner) * (high - low))])

    with mock.patch.object(torch.Tensor, "uniform_", uniform_), mock.patch.object(torch, "randint", randint):
        params = transform.make_params([torch.empty(3, height, width)])
    return {name: value for name, value in params.items() if isinstance(value, int)} | {
        "erase": bool(params.get("v") is not None)
    }


def draw_cases(rng: np.random.Generator) -> list[dict[str, Any]]:
    """Crops and erasings from given uniform numbers, for usual and for extreme shapes."""
    cases = []
    for op, args, sizes in (
        ("RandomResizedCrop", {"size": 224}, [(375, 500), (500, 333), (9, 900), (900, 9), (1, 1), (64, 64)] * 5),
        ("RandomResizedCrop", {"size": 8, "scale": [0.9, 1.0], "ratio": [2.0, 3.0]}, [(50, 50), (80, 300), (7, 3)] * 5),
        ("RandomErasing", {"p": 1.0}, [(224, 224), (30, 300), (3, 3), (1, 50)] * 5),
        ("RandomErasing", {"p": 1.0, "scale": [0.5, 1.0], "ratio": [0.1, 9.0]}, [(40, 60), (9, 90)] * 5),
    ):
        for height, width in sizes:
            uniforms = [float(u) for u in rng.random(22)]
            result = drawn(getattr(v2, op)(**args), height, width, uniforms, list(range(20)))
            cases.append({"op": op, "args": args, "size": [height, width], "uniforms": uniforms, "result": result})
    return cases


def size_cases() -> list[dict[str, Any]]:
    """Output sizes of Resize and RandomShortestSize, and where CenterCrop's window starts."""
    sizes = [(375, 500), (500, 375), (256, 256), (333, 499), (20, 1000), (1001, 33), (255, 257), (50, 20)]
    cases: list[dict[str, Any]] = []
    args: dict[str, Any]
    for args in ({"size": 256}, {"size": 224, "max_size": 300}, {"size": None, "max_size": 99}, {"size": [64, 32]}):
        for height, width in sizes:
            out = F.resize(Image.new("L", (width, height)), **args)
            cases.append({"op": "Resize", "args": args, "size": [height, width], "result": [out.height, out.width]})
    for args in ({"min_size": [480, 513, 800], "max_size": 1333}, {"min_size": [7, 31, 250]}, {"min_size": 77}):
        op = v2.RandomShortestSize(**args)
        for pick, (height, width) in itertools.product(range(len(op.min_size)), [*sizes, (427, 640), (1, 3)]):
            with mock.patch.object(torch, "randint", return_value=torch.tensor(pick)):
                out = op.make_params([torch.empty(3, height, width)])["size"]
            uniform = (pick + 0.5) / len(op.min_size)
            case = {"op": "RandomShortestSize", "args": args, "size": [height, width], "uniform": uniform}
            cases.append({**case, "result": [max(side, 1) for side in out]})
    for size in (224, [51, 30], [600, 100], [21, 500]):
        for height, width in sizes:
            # Pixel (y, x) of the mask is 1 + its place; the window's start is read off the first pixel inside.
            place = np.arange(1, height * width + 1, dtype=np.int32).reshape(height, width)
            out = v2.CenterCrop(size)(torch.from_numpy(place)[None])[0].numpy()
            y, x = np.argwhere(out > 0)[0].tolist()
            top, left = divmod(int(out[y, x]) - 1, width)
            result = [top - y, left - x]
            cases.append({"op": "CenterCrop", "args": {"size": size}, "size": [height, width], "result": result})
    return cases


def magnitude_cases() -> list[dict[str, Any]]:
    """The strengths of the augmentations."""
    cases = []
    for op, space in (
        ("RandAugment", v2.RandAugment._AUGMENTATION_SPACE),
        ("TrivialAugmentWide", v2.TrivialAugmentWide._AUGMENTATION_SPACE),
    ):
        for bins in (31,):
            for number, (magnitudes, signed) in enumerate(space.values()):
                table = magnitudes(bins, 375, 500)
                values = [0.0] * bins if table is None else [float(v) for v in table]
                cases.append({"op": op, "bins": bins, "kind": number, "signed": signed, "values": values})
    for number, (magnitudes, signed) in enumerate(v2.AugMix._AUGMENTATION_SPACE.values()):
        table = magnitudes(10, 375, 500)
        values = [0.0] * 10 if table is None else [float(v) for v in table]
        cases.append({"op": "AugMix", "bins": 10, "kind": number, "signed": signed, "values": values})
    return cases


def policy_cases() -> list[dict[str, Any]]:
    """Results of AutoAugment for each of its pairs, where all that it draws after the pair is one number."""
    cases = []
    for policy in v2.AutoAugmentPolicy:
        for number in range(25):
            for uniform in (0.05, 0.35, 0.55, 0.95):
                op = v2.AutoAugment(policy)
                with (
                    mock.patch.object(torch, "randint", return_value=torch.tensor(number)),
                    mock.patch.object(torch, "rand", return_value=torch.tensor(uniform)),
                    mock.patch.object(op, "_apply_image_or_video_transform") as run,
                ):
                    run.side_effect = lambda image, *_, **__: image
                    op(Image.new("RGB", (500, 375)))
                steps = [list(call.args[1:3]) for call in run.call_args_list]
                cases.append({"policy": policy.value, "pair": number, "uniform": uniform, "steps": steps})
    return cases


def corner_cases(rng: np.random.Generator) -> list[dict[str, Any]]:
    """Corners that RandomPerspective chooses for given uniform numbers."""
    cases = []
    for scale in (0.5, 0.0, 1.0):
        for height, width in ((375, 500), (224, 224), (31, 17), (2, 3)):
            uniforms = [float(u) for u in rng.random(8)]
            queue = iter(uniforms)

            def randint(low: int, high: int, size: Any, queue: Any = queue) -> torch.Tensor:
                return torch.tensor([low + int(next(queue) * (high - low))])

            op = v2.RandomPerspective(scale)
            name = "torchvision.transforms.v2._geometry._get_perspective_coeffs"
            with mock.patch.object(torch, "randint", randint), mock.patch(name) as coefficients:
                op.make_params([torch.empty(3, height, width)])
            corners = coefficients.call_args.args[1]
            size = [height, width]
            cases.append({"scale": scale, "size": size, "uniforms": uniforms, "corners": corners})
    return cases


def zoom_cases(rng: np.random.Generator) -> list[dict[str, Any]]:
    """Padding that RandomZoomOut chooses for given uniform numbers."""
    cases = []
    for low, high in ((1.0, 4.0), (1.2, 1.5)):
        for height, width in ((375, 500), (224, 224), (31, 17), (1, 3)):
            uniforms = [float(u) for u in rng.random(3).astype(np.float32)]
            numbers = [torch.tensor(uniforms[:1]), torch.tensor(uniforms[1:])]
            with mock.patch.object(torch, "rand", side_effect=numbers):
                params = v2.RandomZoomOut(side_range=(low, high)).make_params([torch.empty(3, height, width)])
            case = {"side_range": [low, high], "size": [height, width], "uniforms": uniforms}
            cases.append({**case, "padding": params["padding"]})
    return cases


def mixing_cases(images: torch.Tensor) -> dict[str, Any]:
    """MixUp and CutMix with given weights."""
    labels = torch.arange(len(images))
    arrays: dict[str, Any] = {"mixing_input": images.numpy()}
    for lam in (0.3, 0.95):
        mixup = v2.MixUp(num_classes=len(images))
        params = {"labels": labels, "batch_size": len(images), "lam": lam}
        arrays[f"mixup_{lam}"] = mixup.transform(images, params)
        arrays[f"mixup_labels_{lam}"] = mixup.transform(labels, params)
        corners = [torch.tensor([20]), torch.tensor([3])]
        with (
            mock.patch.object(torch, "randint", side_effect=corners),
            mock.patch.object(torch.distributions.Beta, "sample", return_value=torch.tensor([lam])),
        ):
            cutmix = v2.CutMix(num_classes=len(images))
            params = {"labels": labels, "batch_size": len(images), **cutmix.make_params([images])}
        arrays[f"cutmix_{lam}"] = cutmix.transform(images, params)
        arrays[f"cutmix_lam_{lam}"] = np.array(params["lam_adjusted"])
        arrays[f"cutmix_box_{lam}"] = np.array(params["box"])
    return {name: np.asarray(value) for name, value in arrays.items()}


def load_codecs() -> None:
    """Loads torchvision's codecs beside a torch for the CPU alone, with empty functions in place of CUDA's."""
    names = ("torch_get_cuda_stream_from_pool", "aoti_torch_get_current_cuda_stream")
    functions = "".join(f"void {name}(void) {{}}\n" for name in names)
    with tempfile.TemporaryDirectory() as folder:
        for name in ("libc10_cuda.so", "libtorch_cuda.so"):
            out = os.path.join(folder, name)
            command = ["cc", "-shared", "-fPIC", "-xc", "-", "-o", out, f"-Wl,-soname,{name}"]
            subprocess.run(command, input=functions, text=True, check=True)
            ctypes.CDLL(out, ctypes.RTLD_GLOBAL)
    importlib.reload(torchvision.io.image)


def main(path: str) -> None:
    if torch.version.cuda is None:
        load_codecs()
    pixels = natural_image(3, HEIGHT, WIDTH)
    image = Image.fromarray(pixels)
    cases = pixel_cases(image) + augment_cases(image) + augmix_cases(image)
    arrays: dict[str, Any] = {"pixels": np.concatenate([np.asarray(out).ravel() for *_, out in cases])}
    floats = v2.Compose([v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.Normalize([0.4] * 3, [0.2, 0.3, 0.1])])
    erased = F.erase(floats(image), 4, 6, 9, 12, torch.tensor([1.5, -2.0, 0.0])[:, None, None])
    described = {
        "pixels": [{"op": op, "args": args, "row": row, "size": out.size} for op, args, row, out in cases],
        "draws": draw_cases(np.random.default_rng(0)),
        "sizes": size_cases(),
        "magnitudes": magnitude_cases(),
        "policies": policy_cases(),
        "corners": corner_cases(np.random.default_rng(2)),
        "zooms": zoom_cases(np.random.default_rng(3)),
    }
    batch = torch.from_numpy(np.random.default_rng(1).random((3, 3, 8, 24), np.float32))
    arrays |= {"input": pixels, "erased_floats": erased.numpy(), **mixing_cases(batch)}
    np.savez_compressed(path, cases=np.array(json.dumps(described)), **arrays)
    print(f"{len(cases)} images, {os.path.getsize(path)} bytes in {path}")


if __name__ == "__main__":
    main(*sys.argv[1:] or [os.path.join(os.path.dirname(__file__), "torchvision.npz")])
