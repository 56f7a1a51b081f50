"""Masks, boxes and keypoints follow the drawn ops as in torchvision v2."""

from __future__ import annotations

import io
import struct
import zlib
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image, ImageOps

from feeder import transforms as T
from feeder.decoders.targets.mask import decode_mask, move_mask
from feeder.errors import DecodeError
from feeder.transforms.boxes import Boxes, move_boxes, move_points
from feeder.transforms.moves import drawn_moves, upright
from tests.golden import TargetCase, target_cases

# The fill of the golden masks; torchvision's crops fill area from outside with 0.
FILL = 7


def made(name: str, args: dict[str, Any]) -> T.Op:
    if "transforms" in args:
        args = {"transforms": [made(*inner) for inner in args["transforms"]]}
    op: T.Op = getattr(T, name)(**args)
    return op


def case_id(case: TargetCase) -> str:
    return " ".join(f"{name}{args or ''}{row}" for name, args, row in case.steps)[:120]


@pytest.mark.parametrize("case", target_cases(), ids=case_id)
def test_targets_are_those_of_torchvision(case: TargetCase) -> None:
    ops = tuple(made(name, args) for name, args, _ in case.steps)
    drawn = tuple({name: np.array([value]) for name, value in row.items()} for *_, row in case.steps)

    def moves() -> Any:
        return drawn_moves(ops, drawn, 0, case.size)

    for name, expected in case.expected.items():
        if name == "mask":
            np.testing.assert_array_equal(move_mask(case.given["mask"], FILL, moves()), expected)
        elif name == "points":
            np.testing.assert_allclose(move_points(case.given["points"], moves())[0], expected, atol=2e-5)
        else:
            format, mode = ("xyxy", None) if name == "unclamped" else (name, "soft")
            boxes = Boxes(in_format(case.given["boxes"], format), format, mode)
            np.testing.assert_allclose(move_boxes(boxes, moves())[0].values, expected, atol=2e-5)


def in_format(xyxy: Any, format: str) -> Any:
    start, size = xyxy[:, :2], xyxy[:, 2:] - xyxy[:, :2]
    return xyxy if format == "xyxy" else np.concatenate([start if format == "xywh" else start + size / 2, size], axis=1)


def png(image: Image.Image, **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, "PNG", **options)
    return file.getvalue()


NUMBERS = np.random.default_rng(0).integers(0, 256, (9, 13)).astype(np.uint8)


@pytest.mark.parametrize("dtype", ["uint8", "int32"])
def test_grayscale_palette_and_bilevel_pngs_give_their_numbers(dtype: str) -> None:
    palette = Image.fromarray(NUMBERS).convert("L")
    palette.putpalette(np.random.default_rng(1).integers(0, 256, 768).tolist())
    few = Image.fromarray(NUMBERS % 3)
    few.putpalette([0, 0, 0, 200, 0, 0, 0, 200, 0])
    bilevel = Image.fromarray(NUMBERS > 99)
    for data, expected in (
        (png(Image.fromarray(NUMBERS)), NUMBERS),
        (png(palette), NUMBERS),
        (png(palette, transparency=3), NUMBERS),
        (png(few, bits=2), NUMBERS % 3),
        (png(bilevel), NUMBERS > 99),
    ):
        mask = decode_mask(data, dtype)
        assert mask.dtype == dtype
        np.testing.assert_array_equal(mask, expected)


def test_a_16_bit_png_gives_int32_and_is_refused_for_uint8() -> None:
    numbers = NUMBERS.astype(np.uint16) * 257
    data = png(Image.fromarray(numbers))
    np.testing.assert_array_equal(decode_mask(data, "int32"), numbers)
    with pytest.raises(DecodeError, match=r"16-bit PNG, which needs T\.Mask\(dtype=torch\.int32\)"):
        decode_mask(data, "uint8")


def low_bits(depth: int) -> bytes:
    """A grayscale PNG of 8 x 1 pixels with fewer bits."""
    header = struct.pack(">IIBBBBB", 8, 1, depth, 0, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(bytes(1 + depth))), (b"IEND", b""))
    body = (struct.pack(">I", len(d)) + k + d + struct.pack(">I", zlib.crc32(k + d)) for k, d in chunks)
    return b"\x89PNG\r\n\x1a\n" + b"".join(body)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (png(Image.new("RGB", (4, 4))), "RGB colors, which are no class numbers; write one number per pixel"),
        (png(Image.new("RGBA", (4, 4))), "RGBA colors"),
        (png(Image.new("LA", (4, 4))), "gray and alpha colors"),
        (low_bits(2), "2-bit grayscale PNG, whose numbers readers scale"),
        (low_bits(4), "4-bit grayscale PNG"),
        (b"", "must be a PNG"),
        (b"\xff\xd8\xff" + bytes(40), "must be a PNG"),
        (png(Image.fromarray(NUMBERS))[:60], "the mask: Pillow"),
        (png(Image.new("L", (400, 300))), "400x300 pixels, more than the 100000 allowed"),
    ],
)
def test_masks_that_are_no_class_numbers_are_refused_by_name(
    data: bytes, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("feeder.decoders.targets.mask.MAX_PIXELS", 100_000)
    with pytest.raises(DecodeError, match=message):
        decode_mask(data, "uint8")


@pytest.mark.parametrize("orientation", range(1, 9))
def test_stored_targets_are_turned_as_the_image_is(orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    with Image.open(io.BytesIO(png(Image.fromarray(NUMBERS), exif=exif))) as stored:
        expected = np.asarray(ImageOps.exif_transpose(stored))
    size = NUMBERS.shape[0], NUMBERS.shape[1]
    np.testing.assert_array_equal(move_mask(NUMBERS, 0, upright(orientation, size)), expected)
    # The box and the point of one pixel.
    y, x = 2, 5
    found = np.argwhere(move_mask(pixel(size, y, x), 0, upright(orientation, size)))[0][::-1].tolist()
    points = np.array([[x, y]], np.float32)
    assert move_points(points, upright(orientation, size))[0].tolist() == [found]
    for format in ("xyxy", "xywh", "cxcywh"):
        boxes = Boxes(in_format(np.array([[x, y, x + 1, y + 1]], np.float32), format), format)
        turned = move_boxes(boxes, upright(orientation, size))[0]
        corner = np.array([[*found, found[0] + 1, found[1] + 1]])
        np.testing.assert_array_equal(turned.values, in_format(corner, format))


def pixel(size: tuple[int, int], y: int, x: int) -> npt.NDArray[np.uint8]:
    mask = np.zeros(size, np.uint8)
    mask[y, x] = 1
    return mask


def test_a_mask_of_int32_keeps_numbers_beyond_those_of_floats() -> None:
    mask = np.full((8, 8), 2**24 + 1, np.int32)
    ops = (T.RandomRotation((30, 30)), T.Resize((5, 5)), T.Pad(1))
    draws = T.Recipe.of(ops).draw(0, 0, [0], [[8, 8]])
    moved = move_mask(mask, 2**30 + 1, drawn_moves(ops, draws.ops, 0, (8, 8)))
    assert moved.dtype == np.int32
    assert set(np.unique(moved).tolist()) == {2**24 + 1, 2**30 + 1}


def test_area_from_outside_the_image_gets_the_masks_fill_in_every_op() -> None:
    mask = np.zeros((8, 8), np.uint8)
    for op in (
        T.CenterCrop(12),
        T.CornerCrop(12, "top left"),
        T.RandomCrop(12, pad_if_needed=True),
        T.Pad(2),
        T.RandomZoomOut(p=1.0),
    ):
        for fill in (7, 255):
            draws = T.Recipe.of([op]).draw(0, 0, [0], [[8, 8]])
            moved = move_mask(mask, fill, drawn_moves((op,), draws.ops, 0, (8, 8)))
            assert set(np.unique(moved).tolist()) == {0, fill}, op


def test_colors_and_erasing_leave_targets_alone() -> None:
    ops = (
        T.ColorJitter(0.5, 0.5, 0.5, 0.5),
        T.GaussianBlur(3),
        T.RandomInvert(1.0),
        T.RandomErasing(1.0),
        T.Lambda(abs),
    )
    draws = T.Recipe.of(ops).draw(0, 0, [0], [[9, 13]])
    assert list(drawn_moves(ops, draws.ops, 0, (9, 13))) == []


def test_boxes_and_points_tell_which_are_left() -> None:
    boxes = Boxes(np.array([[0, 0, 4, 4], [5, 5, 5, 9], [1, 1, 3, 2]], np.float32))
    sanitized, kept = move_boxes(boxes, iter([(T.SanitizeBoundingBoxes(min_size=2), (10, 10))]))
    assert (sanitized.values.tolist(), kept.tolist()) == ([[0, 0, 4, 4]], [0])
    points = np.array([[[1, 1], [9, 9]], [[1, 1], [10, 1]], [[0, 0], [2, 2]]], np.float32)
    left, kept = move_points(points, iter([(T.SanitizeKeyPoints(), (10, 10))]))
    assert (left.shape, kept.tolist()) == ((2, 2, 2), [0, 2])
    empty, kept = move_boxes(boxes, iter([(T.SanitizeBoundingBoxes(min_size=9), (10, 10))]))
    assert (empty.values.shape, kept.tolist()) == ((0, 4), [])


def test_every_op_moves_targets_or_is_known_to_leave_the_geometry() -> None:
    ops = {getattr(T, name) for name in T.__all__ if isinstance(getattr(T, name), type)}
    ops = {op.__name__ for op in ops if issubclass(op, T.Op) and op is not T.Op}
    moved = {name for case in target_cases() for name, *_ in case.steps}
    refused = {"AugMix", "AutoAugment", "RandAugment", "TimmRandAugment", "TrivialAugmentWide"}
    colors = {"ColorJitter", "GaussianBlur", "Lambda", "Normalize", "RandomErasing", "RandomGrayscale", "ToDtype"}
    colors |= {"GaussianNoise", "Grayscale", "JPEG", "RandomPhotometricDistort"}
    colors |= {
        f"Random{name}" for name in ("AdjustSharpness", "Autocontrast", "Equalize", "Invert", "Posterize", "Solarize")
    }
    assert ops == moved | refused | colors | {"Compose", "CornerCrop", "LetterBox", "RandomResize"}


def test_letterboxes_move_targets_as_a_resize_and_a_border() -> None:
    both = (T.Resize((30, 15)), T.Pad((7, 0, 8, 0)))
    draws = [T.Recipe.of(ops).draw(0, 0, [0], [[40, 20]]) for ops in (T.LetterBox(30), both)]
    moves, expected = (
        list(drawn_moves(ops, drawn.ops, 0, (40, 20)))
        for ops, drawn in zip(((T.LetterBox(30),), both), draws, strict=True)
    )
    assert moves == expected
