"""Targets and further fields beside images that are made in one native call: the values and errors of the other way."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

from feeder import fields
from feeder.dataset.dataset_shards import write_shards
from feeder.dataset.extras import Extra
from feeder.dataset.fields_of import fields_of
from feeder.dataset.shard_reader import ShardReader
from feeder.dataset.target_values import target_values
from feeder.errors import DecodeError
from feeder.loader.fast.part_report import PartReport
from feeder.loader.fast.sample_maker import Work
from feeder.loader.slots.image_slots import Samples, SlotView
from feeder.transforms import (
    BoundingBoxes,
    Mask,
    RandomHorizontalFlip,
    RandomResizedCrop,
    Recipe,
    SanitizeBoundingBoxes,
)
from tests.support import jpegs
from tests.support.images import encode

RECIPE = Recipe.of([RandomResizedCrop((24, 40)), RandomHorizontalFlip()])
IDS = [5, 1, 4, 0, 2, 3]
PLAIN = fields_of({"key": None, "orientation": None, "txt": fields.Text(), "n.json": fields.Json("n")})
DRAWN = (
    *fields_of({"original_size": None, "crop_box": None, "txt": fields.Choice(fields.Lines())}),
    *target_values({"seg.png": Mask(canvas="stored")}, RECIPE),
)


class OtherReader(ShardReader):
    """A reader that the kernels don't know."""


def png(number: int, width: int, height: int) -> bytes:
    data = io.BytesIO()
    numbers = np.random.default_rng(number).integers(0, 9, (height, width), np.uint8)
    Image.fromarray(numbers).save(data, "PNG")
    return data.getvalue()


def sharded(tmp_path: Path, without: int | None = None) -> str:
    """Six samples, of which one may lack its caption."""
    samples: list[dict[str, Any]] = []
    for k in range(6):
        height, width = 200 + 10 * k, 260 - 9 * k
        sample: dict[str, Any] = {
            "__key__": f"{k}",
            "jpg": encode(jpegs.photo(k, width, height), orientation=1 + k % 2),
        }
        boxes = [[0, 0, width, height], [9 * k, 9, 9 * k + 4, 13]]
        sample |= {
            "n.json": {"n": k},
            "seg.png": png(k, width, height),
            "boxes.json": {"boxes": boxes, "labels": [k, 1]},
        }
        if k != without:
            sample["txt"] = f"caption {k}\nline {k}\nthird {k}"
        samples.append(sample)
    write_shards(samples, tmp_path / "shards", shuffle=False, samples_per_shard=4)
    return str(tmp_path / "shards" / "index.bin")


def part(
    index: str, extras: tuple[Extra, ...], reader: type[ShardReader], recipe: Recipe = RECIPE, **options: Any
) -> tuple[SlotView, PartReport]:
    work = Work(reader(index), recipe, "cpu", extras, seed=3, **options)
    samples = Samples.of(np.arange(len(IDS)), np.array(IDS))
    samples.repeats[2] = 1
    view = SlotView.new(work.layout(len(IDS)), samples)
    return view, work.run(2, view)


def plain(values: Any) -> Any:
    if isinstance(values, dict):
        return {name: plain(value) for name, value in values.items()}
    return [plain(each) for each in values] if isinstance(values, (list, tuple)) else np.asarray(values).tolist()


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Numbers of samples that the known reader is asked for, which go the other way."""
    read, found = ShardReader.read, list[int]()

    def counted(reader: ShardReader, ids: npt.NDArray[np.int64], *arguments: Any) -> Any:
        if type(reader) is ShardReader:
            found.append(len(ids))
        return read(reader, ids, *arguments)

    monkeypatch.setattr(ShardReader, "read", counted)
    return found


def check_same(index: str, extras: tuple[Extra, ...], **options: Any) -> PartReport:
    view, report = part(index, extras, ShardReader, **options)
    other, expected = part(index, extras, OtherReader, **options)
    for own, theirs in zip((*view.images, *view.further), (*other.images, *other.further), strict=True):
        np.testing.assert_array_equal(own, theirs)
    assert plain(report.extras) == plain(expected.extras)
    assert report.substitutions == expected.substitutions
    return report


@pytest.mark.parametrize("extras", [PLAIN, DRAWN], ids=["plain", "drawn"])
def test_values_are_those_of_the_other_way(tmp_path: Path, reads: list[int], extras: tuple[Extra, ...]) -> None:
    check_same(sharded(tmp_path), extras)
    assert reads == []


def test_ops_on_boxes_alone_leave_the_images_to_one_call(tmp_path: Path, reads: list[int]) -> None:
    recipe = Recipe.of([SanitizeBoundingBoxes(), *RECIPE.ops, SanitizeBoundingBoxes(min_size=5)])
    extras = target_values({"boxes.json": BoundingBoxes(canvas="stored")}, recipe)
    report = check_same(sharded(tmp_path), extras, recipe=recipe)
    assert {len(found["boxes"]) for found in report.extras[0]} == {0, 1}
    assert reads == []


@pytest.mark.parametrize("extras", [PLAIN, DRAWN], ids=["plain", "drawn"])
def test_a_sample_whose_value_is_bad_is_named_or_replaced(tmp_path: Path, extras: tuple[Extra, ...]) -> None:
    index = sharded(tmp_path, without=4)
    report = check_same(index, extras, skip=True)
    assert [found.position for found in report.substitutions] == [2]
    for reader in (ShardReader, OtherReader):
        with pytest.raises(DecodeError, match=r"field 'txt': the sample has no such member") as caught:
            part(index, extras, reader)
        assert caught.value.key == "00000004"
