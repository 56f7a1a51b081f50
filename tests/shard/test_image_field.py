from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from feeder.dataset.dataset_shards import write_shards
from feeder.errors import ArgumentError, ShardError, SourceError
from feeder.shard.format.manifest import Manifest
from feeder.shard.format.open_index import open_index
from feeder.shard.source.image_field import image_fields
from feeder.shard.write.encode import EncodeOptions
from feeder.shard.write.index_tars import index_tars
from feeder.shard.write.shard_options import ShardOptions
from feeder.shard.write.sharding import shard
from feeder.tools.cli import main
from feeder.tools.verify import verify
from tests.support.images import encode, pixels
from tests.support.shard_sets import kept, write_tar

FORMATS = {"jpg": "JPEG", "png": "PNG", "webp": "WEBP"}


def image(field: str, i: int) -> bytes:
    """An image whose height says which field of which sample it is."""
    return encode(pixels(i, 20 + i, 30 + 2 * len(field)), FORMATS[field.rpartition(".")[2]])


def tar(path: Path, *fields: Sequence[str]) -> Path:
    """A tar of samples with these fields each, and a label."""
    members = []
    for i, names in enumerate(fields):
        members += [(f"{i:03d}.{name}", image(name, i)) for name in names] + [(f"{i:03d}.cls", b"%d" % i)]
    return write_tar(path, members)


@pytest.mark.parametrize(
    ("samples", "chosen"),
    [
        (["mask.png image.jpg"], "image.jpg"),
        (["depth.png rgb.jpg"], "rgb.jpg"),
        (["seg.png jpg"], "jpg"),
        (["image.jpg png"], "png"),  # bare extensions before dotted ones
        (["label.jpg alpha.png left.webp thumb.jpg"], "left.webp"),
        (["other.jpg input.png", "other.jpg"], "input.png"),
        (["input.jpg image.png rgb.jpg img.jpg"], "image.png"),
        (["rgb.png input.jpg"], "rgb.png"),
        (["left.png left.webp left.jpg"], "left.jpg"),
        (["left.png right.png"], "left.png"),
        (["png jpg", "png jpg"], "jpg"),
        (["segmentation.jpg depth_map.jpg"], "depth_map.jpg"),
        # One field in several formats, as long as no sample has two of them.
        (["jpg", "png", "webp"], "jpg;webp;png"),
        (["jpg mask.png", "jpeg mask.png"], "jpeg;jpg"),
        (["jpg png", "png", "webp"], "jpg;webp"),
        (["image.jpg", "image.png", "mask.png"], "image.jpg;image.png"),
        (["txt cls"], ""),
    ],
)
def test_the_image_is_chosen_by_the_names_of_all_fields(samples: list[str], chosen: str) -> None:
    assert image_fields({frozenset(fields.split()): 1 for fields in samples}) == tuple(filter(None, chosen.split(";")))


def test_the_choice_is_one_for_the_set_and_is_noted(tmp_path: Path) -> None:
    source = tar(tmp_path / "t.tar", *[("mask.png", "image.jpg")] * 4, ("mask.png",), ("image.jpg",))
    out = tmp_path / "out"
    summary = shard(str(source), str(out), kept(max_bad=1))
    (note,) = [note for note in summary.notes if "several fields hold images" in note]
    assert "'image.jpg' is taken (5 samples), not 'mask.png' (5 samples): --image-field" in note
    index, manifest = open_index(out / "index.bin"), Manifest.read(str(out))
    assert {index.image_field(i) for i in range(len(index))} == {"image.jpg"}
    assert sorted(index.column("label").tolist()) == [0, 1, 2, 3, 5]
    assert [int(height) for height in index.column("height")] == [30 + 2 * len("image.jpg")] * 5
    assert manifest is not None
    assert manifest.source["image_field"] == "image.jpg"
    (row,) = [json.loads(line) for line in (out / "rejected.jsonl").read_text().splitlines()]
    assert (row["path"], row["bad"]) == ("t.tar/004", True)
    assert row["reason"] == "no field 'image.jpg', which is to be the image, among its fields: cls, mask.png"
    found = index_tars(str(source))
    assert [r.path for r in found.rejected] == ["t.tar/004"]
    tarred = open_index(found.path)
    assert {tarred.image_field(i) for i in range(len(tarred))} == {"image.jpg"}
    assert verify(str(out)) == verify(str(tmp_path)) == []


def test_a_set_of_several_formats_loses_none(tmp_path: Path) -> None:
    source = tar(tmp_path / "t.tar", ("jpg",), ("png",), ("webp",), ("jpg",))
    summary = shard(str(source), str(tmp_path / "out"), kept())
    assert (summary.samples, summary.rejected) == (4, 0)
    assert not [note for note in summary.notes if "--image-field" in note]


@pytest.mark.parametrize("command", ["shard", "index"])
def test_another_field_is_taken_where_it_is_asked_for(
    tmp_path: Path, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "in").mkdir()
    source = tar(tmp_path / "in" / "t.tar", *[("mask.png", "image.jpg")] * 3, ("image.jpg",))
    out = tmp_path / ("in" if command == "index" else "out")
    to = ["--out", str(out)] if command == "shard" else []
    arguments = [command, str(source), *to, "--image-field", "Mask.png", "--max-bad", "1"]
    assert main(arguments) == 0
    index = open_index(out / "index.bin")
    assert [index.image_field(i) for i in range(len(index))] == ["mask.png"] * 3
    assert sorted(field for field, _, _ in index.stored_fields(0)[1:]) == ["cls", "image.jpg"]
    assert main([*arguments[:-4], "--image-field", "rgb.jpg"] if command == "index" else [*arguments, "--force"]) == (
        1 if command == "index" else 0
    )
    if command == "index":
        assert "no field 'rgb.jpg', which is to be the image, among its fields: mask.png" in capsys.readouterr().err


def test_a_finished_set_keeps_its_own_choice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, out = tar(tmp_path / "t.tar", *[("left.jpg", "right.jpg")] * 6), tmp_path / "out"
    options = kept(samples_per_shard=2, shuffle=False, workers=1)
    shard(str(source), str(out), options)
    # A later feeder, say, that would choose otherwise.
    monkeypatch.setattr("feeder.shard.source.image_field.image_fields", lambda samples: ("right.jpg",))
    shard(str(source), str(out), options)
    index = open_index(out / "index.bin")
    assert [index.image_field(i) for i in range(6)] == ["left.jpg"] * 6
    with pytest.raises(ShardError, match=r"image_field=None, asked for image_field=right\.jpg"):
        shard(str(source), str(out), kept(samples_per_shard=2, shuffle=False, image_field="right.jpg"))


def test_an_image_whose_format_changes_takes_no_other_fields_name(tmp_path: Path) -> None:
    samples = [{"__key__": str(i), "png": image("png", i), "jpg": image("jpg", i), "cls": i} for i in range(3)]
    out = tmp_path / "out"
    summary = write_shards(samples, out, image_field="png", encode=EncodeOptions("jpeg"))
    assert (summary.samples, summary.rejected) == (3, 0)
    index = open_index(out / "index.bin")
    assert [index.image_field(i) for i in range(3)] == ["image.jpg"] * 3
    assert sorted(field for field, _, _ in index.stored_fields(0)[1:]) == ["cls", "jpg"]
    assert verify(str(out)) == []


def test_what_has_no_fields_has_none_to_choose(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "a.jpg").write_bytes(image("jpg", 0))
    with pytest.raises(SourceError, match="leave --image-field out"):
        shard(str(tmp_path / "images"), str(tmp_path / "out"), ShardOptions(image_field="jpg"))
    with pytest.raises(ArgumentError, match="image_field must name a field"):
        ShardOptions(image_field=" ; ")
