"""feeder's own JPEG decoder beside libjpeg-turbo: the same samples to the bit, nothing taken that libjpeg refuses."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from feeder import _native as native
from tests.support import jpegs

pytestmark = pytest.mark.usefixtures("level")

SAMPLINGS = ("4:4:4", "4:2:2", "4:2:0", "4:4:0", "4:1:1", "gray", "gray with factors 2x2")
# Of three components with at most 10 blocks in an MCU, as the standard has it: every pair of factors for each.
PAIRS = tuple(h << 4 | v for h, v in itertools.product(range(1, 5), repeat=2))
FACTORS = tuple(
    factors
    for factors in itertools.product(PAIRS, repeat=3)
    if sum((both >> 4) * (both & 15) for both in factors) <= 10
)
# libjpeg reads an empty one and goes on; feeder's own decoder leaves such a file to it.
DAC = b"\xff\xcc\x00\x02"


def assert_libjpegs(data: bytes, box: tuple[int, int, int, int], what: object) -> None:
    """Fails unless both decoders take the file and have the same samples of the box."""
    found, expected = native.jpeg_planes(data, box), native.jpeg_planes(data, box, libjpeg=True)
    assert len(found) == len(expected) > 0, what
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.size > 0, what
        assert np.array_equal(ours, theirs), what


def test_every_quality() -> None:
    for quality in range(1, 101):
        for options in ({"subsampling": "4:2:0"}, {"mode": "L", "optimize": True, "restart_marker_blocks": 2}):
            data = jpegs.encode(jpegs.photo(quality, 45, 35), quality=quality, **options)
            assert_libjpegs(data, (0, 0, 45, 35), (quality, options))


@pytest.mark.parametrize("kind", SAMPLINGS)
def test_every_width_and_height(kind: str) -> None:
    for edge in range(1, 41):
        for size in ((edge, 1), (1, edge), (edge, (edge * 7) % 40 + 1)):
            data = jpegs.jpeg(kind, size, edge)
            for file in (data, native.transcode(data, keep_metadata=False, segment_px=8)):
                assert_libjpegs(file, (0, 0, *size), (size, file is data))


def test_every_sampling() -> None:
    assert len(FACTORS) > 500
    for seed, factors in enumerate(FACTORS):
        data = jpegs.random_codes(factors, (37, 21), seed)
        assert_libjpegs(data, (0, 0, 37, 21), [hex(both) for both in factors])


@pytest.mark.parametrize("kind", SAMPLINGS)
def test_every_box(kind: str) -> None:
    size = (75, 43)
    data = jpegs.jpeg(kind, size)
    files = {
        "ordinary": data,
        "segments of 8": native.transcode(data, keep_metadata=False, segment_px=8),
        "segments of 32": native.transcode(data, keep_metadata=False, segment_px=32),
    }
    rng = np.random.default_rng(0)
    boxes = [(x, y, x + 1, y + 1) for x, y in ((0, 0), (74, 0), (0, 42), (74, 42), (15, 16), (16, 15))]
    for _ in range(40):
        left, right = sorted(rng.choice(size[0] + 1, 2, replace=False).tolist())
        top, bottom = sorted(rng.choice(size[1] + 1, 2, replace=False).tolist())
        boxes.append((left, top, right, bottom))
    for (name, file), box in itertools.product(files.items(), boxes):
        assert_libjpegs(file, box, (name, box))


@pytest.mark.parametrize("seed", range(8))
def test_random_codes_of_an_image_of_many_runs(seed: int) -> None:
    """One and three components, several runs of MCUs in a row, full blocks, coefficients beyond any photo's."""
    for factors, size in (((0x11,), (400, 40)), ((0x22, 0x11, 0x11), (300, 60)), ((0x11,) * 3, (200, 30))):
        assert_libjpegs(jpegs.random_codes(factors, size, seed), (0, 0, *size), factors)


@pytest.mark.parametrize("kind", [*SAMPLINGS, "rgb", "optimized", "restart blocks", "restart rows"])
def test_outputs_do_not_depend_on_the_decoder(kind: str) -> None:
    """At both fidelities: the exact one, Pillow's pixels, is libjpeg's work whatever the file."""
    size = (203, 151)
    data = jpegs.jpeg(kind, size)
    ours = [data, native.transcode(data, keep_metadata=False, segment_px=32)]
    files = ours + [jpegs.with_segments(file, DAC) for file in ours]
    for file in ours:
        assert native.jpeg_planes(file, (0, 0, *size))
    for file in files[2:]:
        with pytest.raises(native.Unsupported, match="own decoder"):
            native.jpeg_planes(file, (0, 0, *size))
    boxes = np.array([[0, 0, *size], [40, 30, 190, 149], [1, 90, 80, 151]], np.int32)
    for fidelity in ("fast", "exact"):
        outputs = []
        for file in files:
            out = np.zeros((len(boxes), 3, 64, 48), np.float32)
            ones = np.ones(len(boxes), np.uint8)
            statuses, reasons = native.decode_batch(
                [file] * len(boxes),
                boxes.astype(np.float64),
                boxes,
                ones * 0,
                ones,
                out,
                layout="nchw",
                dtype="float32",
                fidelity=fidelity,
            )
            assert statuses.tolist() == [native.Status.OK] * len(boxes), reasons
            outputs.append(out.tobytes())
        assert outputs[2:] == outputs[:2], fidelity


ONE = ([1], [0])  # one code, 0, for one symbol, 0


def stray_bytes() -> bytes:
    """Of 48 x 40 pixels, with what belongs to nothing between two segments of its header."""
    data = jpegs.jpeg("4:2:0", (48, 40))
    tables = data.index(b"\xff\xdb")
    return data[:tables] + b"\1\2\xff\xd3\3" + data[tables:]


def odd_files() -> dict[str, tuple[bytes, native.Status | None]]:
    """Files that feeder's own decoder must leave to libjpeg, of 40 x 40 pixels and more, and libjpeg's status.

    None where that depends on libjpeg's version.
    """
    data = jpegs.jpeg("restart blocks", (48, 40))
    frame, scan = jpegs.frame_offset(data), jpegs.entropy_offset(data)
    interval = data.index(b"\xff\xdd")
    restart = data.index(b"\xff\xd0", scan)

    def lengthened(at: int, end: int) -> bytes:
        length = int.from_bytes(data[at + 2 : at + 4], "big") + 1
        return data[: at + 2] + length.to_bytes(2, "big") + data[at + 4 : end] + b"\0" + data[end:]

    frame_end = frame + 2 + int.from_bytes(data[frame + 2 : frame + 4], "big")
    blocks = 257 * 257
    bits = ("0" + "1" * 15 + "0") * blocks
    bits += "1" * (-len(bits) % 8)
    wrapped = int(bits, 2).to_bytes(len(bits) // 8, "big").replace(b"\xff", b"\xff\0")
    gray = ((0x11,), (40, 40))
    ok, damaged, corrupt = native.Status.OK, native.Status.DAMAGED, native.Status.CORRUPT
    return {
        "a DC code of all ones": (jpegs.built(*gray, ([2], [0, 1]), ONE, bytes(30)), corrupt),
        "an AC code of all ones": (jpegs.built(*gray, ONE, ([1, 2], [0, 1, 2]), bytes(30)), corrupt),
        "a DC difference of 16 bits": (jpegs.built(*gray, ([1, 1], [0, 16]), ONE, bytes(30)), corrupt),
        "a long frame header": (lengthened(frame, frame_end), corrupt),
        "a long scan header": (lengthened(data.index(b"\xff\xda"), scan), corrupt),
        "a long restart interval": (lengthened(interval, interval + 6), corrupt),
        "a reserved marker": (jpegs.with_segments(data, b"\xff\xf0\0\2"), corrupt),
        "an extension": (jpegs.with_segments(data, b"\xff\xc8\0\2"), native.Status.UNSUPPORTED),
        "a bad arithmetic table": (jpegs.with_segments(data, b"\xff\xcc\0\4\x7f\0"), corrupt),
        "too wide": (jpegs.built((0x11,), (65501, 1), ONE, ONE, bytes(9000)), corrupt),
        "predictions beyond 32 bits": (jpegs.built((0x11,), (2056, 2056), ([1], [15]), ONE, wrapped), None),
        "coefficients beyond the block": (jpegs.built(*gray, ONE, ([0, 2], [0xF1, 0]), bytes(300)), ok),
        "a byte left over": (data[:restart] + b"\0" + data[restart:], ok),
        "bytes left over": (data[:restart] + bytes(20) + data[restart:], ok),
        "a lost restart marker": (data[:restart] + data[restart + 2 :], damaged),
        "a wrong restart marker": (jpegs.patched(data, restart + 1, 0xD4), damaged),
        "too few bytes": (jpegs.built(*gray, ONE, ONE, b"\0"), damaged),
    }


def test_odd_files_have_libjpegs_status_at_both_fidelities() -> None:
    for name, (data, expected) in {**odd_files(), "stray bytes": (stray_bytes(), native.Status.OK)}.items():
        frame = data.index(b"\xff\xc0")
        width, height = (int.from_bytes(data[frame + at : frame + at + 2], "big") for at in (7, 5))
        if name == "stray bytes":
            assert_libjpegs(data, (0, 0, width, height), name)
        else:
            with pytest.raises(native.Unsupported):
                native.jpeg_planes(data, (0, 0, width, height))
        box = np.array([[0, 0, width, height]])
        one = np.ones(1, np.uint8)
        outputs = []
        for fidelity in ("exact", "fast"):
            out = np.zeros((1, 3, 32, 32), np.uint8)
            statuses, reasons = native.decode_batch(
                [data],
                box.astype(np.float64),
                box.astype(np.int32),
                one * 0,
                one,
                out,
                layout="nchw",
                dtype="uint8",
                fidelity=fidelity,
            )
            outputs.append((native.Status(statuses[0]), reasons[0]))
        assert outputs[0] == outputs[1], name
        assert expected in (None, outputs[0][0]), (name, outputs)
