"""decode_views: several views of an image, decoded together, with the pixels of each view alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from feeder import _native as native
from tests.support import jpegs

Status = native.Status
Box = tuple[int, int, int, int]


def arrays(boxes: Sequence[Box]) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int32], npt.NDArray[np.uint8]]:
    flips = np.arange(len(boxes), dtype=np.uint8) % 2
    return np.array(boxes, np.float64), np.array(boxes, np.int32), flips


def view(boxes: Sequence[Box], out: npt.NDArray[Any], **options: Any) -> native.View:
    return native.View(*arrays(boxes), out, **{"layout": "nhwc", "dtype": "uint8"} | options)


def together(
    data: Any, boxes: Sequence[Box], orientation: int = 1, **options: Any
) -> tuple[npt.NDArray[np.uint8], int, str]:
    """Views of one image: uint8 [V, 20, 24, 3], its status and the reason."""
    out = np.full((len(boxes), 1, 20, 24, 3), 77, np.uint8)
    views = [view([box], pixels) for box, pixels in zip(boxes, out, strict=True)]
    statuses, reasons = native.decode_views([data], views, np.array([orientation], np.uint8), **options)
    return out[:, 0], int(statuses[0]), reasons[0]


def apart(data: Any, boxes: Sequence[Box], orientation: int = 1, **options: Any) -> npt.NDArray[np.uint8]:
    out = np.full((len(boxes), 1, 20, 24, 3), 77, np.uint8)
    for box, pixels in zip(boxes, out, strict=True):
        statuses, reasons = native.decode_batch(
            [data], *arrays([box]), np.array([orientation], np.uint8), pixels, layout="nhwc", dtype="uint8", **options
        )
        assert statuses.tolist() == [Status.OK], reasons
    return out[:, 0]


def boxes_in(width: int, height: int) -> list[Box]:
    """The whole image, small and thin boxes, and random ones."""
    rng = np.random.default_rng(width)
    boxes: list[Box] = [(0, 0, width, height), (width - 9, height - 9, width, height), (0, 0, width, 1), (0, 0, 1, 2)]
    for _ in range(6):
        left, right = sorted(rng.choice(width + 1, 2, replace=False).tolist())
        top, bottom = sorted(rng.choice(height + 1, 2, replace=False).tolist())
        boxes.append((left, top, right, bottom))
    return boxes


@pytest.mark.parametrize("kind", jpegs.KINDS)
def test_pixels_are_those_of_each_view_alone(kind: str) -> None:
    data = jpegs.jpeg(kind, (300, 200))
    boxes = boxes_in(300, 200)
    for file in (data, native.transcode(data, keep_metadata=False, segment_px=32)):
        for fidelity in ("exact", "fast"):
            # Without the view of the whole image there are several groups.
            for some in (boxes, boxes[1:], boxes[1:4]):
                out, status, reason = together(file, some, fidelity=fidelity)
                assert status == Status.OK, reason
                np.testing.assert_array_equal(out, apart(file, some, fidelity=fidelity))


@pytest.mark.parametrize("orientation", range(1, 9))
def test_pixels_are_those_of_each_view_alone_in_every_orientation(orientation: int) -> None:
    data = jpegs.jpeg("4:2:0", (300, 200))
    boxes = boxes_in(300, 200) if orientation < 5 else boxes_in(200, 300)
    out, status, reason = together(data, boxes[1:], orientation)
    assert status == Status.OK, reason
    np.testing.assert_array_equal(out, apart(data, boxes[1:], orientation))


def test_views_of_one_image_differ_in_size_and_dtype() -> None:
    files = [jpegs.jpeg("4:2:0", (300, 200), seed) for seed in range(3)]
    boxes = boxes_in(300, 200)[:3]
    scale, bias = np.full(3, 1 / 255, np.float32), np.zeros(3, np.float32)
    large, small = np.zeros((3, 3, 64, 48), np.float32), np.zeros((3, 16, 20, 3), np.uint8)
    options: dict[str, Any] = {"layout": "nchw", "dtype": "float32", "scale": scale, "bias": bias}
    views = [view(boxes, large, **options), view(boxes[::-1], small)]
    ones = np.ones(3, np.uint8)
    statuses, reasons = native.decode_views(files, views, ones, threads=2)
    assert statuses.tolist() == [Status.OK] * 3, reasons
    alone = np.zeros_like(large)
    native.decode_batch(files, *arrays(boxes), ones, alone, **options)
    np.testing.assert_array_equal(large, alone)
    alone = np.zeros_like(small)
    native.decode_batch(files, *arrays(boxes[::-1]), ones, alone, layout="nhwc", dtype="uint8")
    np.testing.assert_array_equal(small, alone)


def test_views_that_overlap_are_decoded_together_and_others_apart() -> None:
    data = bytearray(native.transcode(jpegs.jpeg("4:4:4", (512, 512)), keep_metadata=False, segment_px=64))
    corner = max(data.rfind(bytes([0xFF, 0xD0 + i])) for i in range(8)) + 2
    data[corner:-2] = b"\xfe" * (len(data) - 2 - corner)  # no codes; the segment at the lower right

    def status(boxes: list[Box]) -> int:
        for box in boxes:  # no view alone needs the corner
            assert together(bytes(data), [box])[1] == Status.OK
        return together(bytes(data), boxes)[1]

    assert status([(0, 0, 400, 512), (0, 0, 512, 400)]) == Status.DAMAGED
    assert status([(0, 0, 200, 512), (0, 0, 512, 200)]) == Status.OK


def test_an_image_has_the_status_of_its_worst_view() -> None:
    data = jpegs.jpeg("4:2:0", (300, 200))
    for boxes in ([(0, 0, 9, 9), (0, 0, 301, 9)], [(0, 0, 301, 9), (0, 0, 9, 9)]):
        _, status, reason = together(data, boxes)
        assert status == Status.CORRUPT
        assert "the support box does not lie in the image of 300x200 pixels" in reason


def test_rows_that_all_views_need_are_enough() -> None:
    data = native.transcode(jpegs.jpeg("4:2:0", (300, 600)), keep_metadata=False, segment_px=32)
    boxes: list[Box] = [(10, 210, 200, 300), (100, 250, 290, 310)]
    places = np.frombuffer(native.row_places(data) or b"", np.uint32)
    ((first, header, begin, end),) = native.row_extents(
        places,
        np.array([0], np.uint64),
        np.array([len(places)], np.uint64),
        np.array([len(data)], np.uint64),
        np.array([600], np.uint32),
        np.array([[210, 310]], np.int32),
    ).tolist()
    assert first > 0
    rows = data[:header] + data[begin:end]
    out, status, reason = together(rows, boxes, first_rows=np.array([first], np.int32))
    assert status == Status.OK, reason
    np.testing.assert_array_equal(out, apart(data, boxes))


def test_refuses_arrays_that_do_not_fit() -> None:
    data, ones = jpegs.jpeg("4:2:0", (300, 200)), np.ones(1, np.uint8)
    out = np.zeros((2, 20, 24, 3), np.uint8)
    with pytest.raises(ValueError, match="one entry per buffer"):
        native.decode_views([data], [view([(0, 0, 9, 9)] * 2, out)], ones)
    with pytest.raises(ValueError, match="at least one entry"):
        native.decode_views([data], [], ones)
    with pytest.raises(ValueError, match="3 channels"):
        view([(0, 0, 9, 9)], np.zeros((1, 4, 20, 24), np.uint8), layout="nchw")
