"""Staged batches: what a worker hands to a decoder on another device."""

from __future__ import annotations

import numpy as np
import pytest

from feeder import transforms as T
from feeder.decoders.registry import available_decoders
from feeder.decoders.staged.staged import ROW, RowKind, Staged
from feeder.decoders.staged.stager import Stager
from feeder.errors import ArgumentError
from tests.support.conformance import encode, natural_image

RECIPE = T.Recipe.of([T.RandomResizedCrop(32), T.RandomHorizontalFlip()])


def draw(count: int, height: int = 60, width: int = 80) -> T.Draws:
    return RECIPE.draw(0, 0, np.arange(count), [[height, width]] * count)


def test_packed_and_unpacked_is_the_same() -> None:
    buffers = [encode(natural_image(1, 60, 80)), encode(natural_image(2, 60, 80), "png"), b"junk"]
    staged, result = Stager().stage(buffers, np.array([1, 6, 1], np.uint8), [RECIPE], [draw(3, 60, 80)])
    assert [error is None for error in result.errors] == [True, False, False]  # orientation 6 turns it to 80x60
    assert staged.rows["kind"].tolist() == [RowKind.JPEG, RowKind.FAILED, RowKind.FAILED]
    memory = np.full(staged.packed_bytes + 8, 9, np.uint8)
    assert staged.pack(memory) == {}
    assert (memory[staged.packed_bytes :] == 9).all()
    check_same(Staged.unpack(memory, 3), staged)


def check_same(found: Staged, expected: Staged) -> None:
    assert [bytes(payload) for payload in found.payloads] == [bytes(payload) for payload in expected.payloads]
    for name in ("kind", "turn", "size", "window", "source"):
        np.testing.assert_array_equal(found.rows[name], expected.rows[name])


@pytest.mark.parametrize("room", [0, 1, 2, 3])
def test_what_finds_no_room_goes_another_way(room: int) -> None:
    buffers = [encode(natural_image(k, 60, 80)) for k in range(3)]
    staged, _ = Stager().stage(buffers, np.ones(3, np.uint8), [RECIPE], [draw(3)])
    memory = np.zeros(staged.rows.nbytes + sum(map(len, staged.payloads[:room])), np.uint8)
    left_over = staged.pack(memory)
    assert sorted(left_over) == list(range(room, 3))
    check_same(Staged.unpack(memory, 3, left_over), staged)
    if room < 3:
        with pytest.raises(ArgumentError, match="does not lie in its slot"):
            Staged.unpack(memory, 3)
    with pytest.raises(ArgumentError, match="3 staged rows take"):
        staged.pack(memory[: staged.rows.nbytes - 8])


def test_joined_batches_are_one() -> None:
    buffers = [encode(natural_image(k, 60, 80)) for k in range(5)]
    staged, _ = Stager().stage(buffers, np.ones(5, np.uint8), [RECIPE], [draw(5)])
    parts = [Staged(staged.rows[a:b], staged.payloads[a:b]) for a, b in ((0, 2), (2, 5))]
    check_same(Staged.join(parts), staged)
    assert Staged.join(parts[:1]) is parts[0]


@pytest.mark.parametrize(("field", "value"), [("offset", -1), ("length", 1 << 40), ("offset", 1 << 62)])
def test_rows_that_point_outside_the_slot_are_refused(field: str, value: int) -> None:
    memory = np.zeros(ROW.itemsize + 10, np.uint8)
    memory[: ROW.itemsize].view(ROW)[field] = value
    with pytest.raises(ArgumentError, match="does not lie in its slot"):
        Staged.unpack(memory, 1)
    with pytest.raises(ArgumentError, match="2 staged rows"):
        Staged.unpack(memory, 2)


def test_what_jpeg_decoders_disagree_on_is_decoded_here() -> None:
    rgb = natural_image(3, 60, 80)
    from PIL import Image

    named = encode(rgb, keep_rgb=True)
    numbered = named.replace(b"R\x11\0G\x11\0B\x11\0", b"\1\x11\0\2\x11\0\3\x11\0")
    numbered = numbered.replace(b"\3R\0G\0B\0", b"\3\1\0\2\0\3\0")  # only its Adobe marker still says RGB
    assert numbered.count(b"R\0") < named.count(b"R\0")
    buffers = [
        encode(rgb),
        encode(Image.fromarray(rgb).convert("L")),
        encode(Image.fromarray(rgb).convert("CMYK")),
        named,
        numbered,
        encode(rgb, "png"),
    ]
    stager, ones, draws = Stager(), np.ones(6, np.uint8), draw(6)
    staged, result = stager.stage(buffers, ones, [RECIPE], [draws])
    assert result.errors == [None] * 6
    assert staged.rows["kind"].tolist() == [RowKind.JPEG] * 2 + [RowKind.PIXELS] * 4
    assert [len(payload) for payload in staged.payloads[2:]] == [32 * 32 * 3] * 4
    assert staged.rows["turn"][2:].tolist() == [0] * 4
    staged, _ = Stager(outlier_pixels=60 * 80 - 1).stage(buffers, ones, [RECIPE], [draws])
    assert staged.rows["kind"].tolist() == [RowKind.PIXELS] * 6


def test_seekable_images_are_cut_to_their_window() -> None:
    if "cpu" not in available_decoders():
        pytest.skip("feeder._native is not built")
    from feeder import _native

    whole = encode(natural_image(4, 480, 640), subsampling="4:2:0")
    seekable = _native.transcode(whole, keep_metadata=True)
    recipe = T.Recipe.of([T.RandomResizedCrop(32, scale=(0.05, 0.05))])
    draws = recipe.draw(0, 0, [0], [[480, 640]])
    for data, cuts in ((seekable, True), (whole, False)):
        staged, _ = Stager().stage([data], np.ones(1, np.uint8), [recipe], [draws])
        row = staged.rows[0]
        assert (len(staged.payloads[0]) < len(data) / 2) == cuts
        moved = draws.support_box[0] - row["window"]
        np.testing.assert_allclose(draws.source_box[0] - row["source"], moved)
        assert (moved[:2].any()) == cuts
    exact, _ = Stager(fidelity="exact").stage([seekable], np.ones(1, np.uint8), [recipe], [draws])
    assert exact.payloads[0] == seekable


@pytest.mark.parametrize("room", [0, 1, 3])
def test_views_of_a_sample_stand_behind_each_other(room: int) -> None:
    buffers = [encode(natural_image(k, 60, 80)) for k in range(3)]
    draws = [RECIPE.draw(0, 0, np.arange(3) + 3 * k, [[60, 80]] * 3) for k in range(2)]
    staged, result = Stager().stage(buffers, np.ones(3, np.uint8), (RECIPE, RECIPE), draws)
    assert result.errors == [None] * 3
    assert (len(staged), len(staged.rows), staged.owners.tolist()) == (3, 6, [0, 0, 2, 2, 4, 4])
    assert staged.payloads == [buffers[0], b"", buffers[1], b"", buffers[2], b""]
    memory = np.zeros(staged.rows.nbytes + sum(map(len, staged.payloads[: 2 * room])), np.uint8)
    left_over = staged.pack(memory)
    assert sorted(place for place, payload in left_over.items() if payload) == [0, 2, 4][room:]
    found = Staged.unpack(memory, 3, left_over, 2)
    check_same(found, staged)
    np.testing.assert_array_equal(found.rows["decoded"], staged.rows["decoded"])
    parts = [Staged(staged.rows[a:b], staged.payloads[a:b], 2) for a, b in ((0, 2), (2, 6))]
    assert Staged.join(parts).owners.tolist() == staged.owners.tolist()


@pytest.mark.parametrize(("row", "back"), [(0, 1), (2, 1), (1, -1), (3, 2)])
def test_rows_that_name_another_samples_image_are_refused(row: int, back: int) -> None:
    rows = np.zeros(4, ROW)
    rows["back"][row] = back
    memory = np.zeros(4 * ROW.itemsize, np.uint8)
    Staged(rows, [b""] * 4, 2).pack(memory)
    with pytest.raises(ArgumentError, match="another sample's image"):
        Staged.unpack(memory, 2, None, 2)
