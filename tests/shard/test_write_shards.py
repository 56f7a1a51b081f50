"""Shards of the caller's own samples, by write_shards."""

from __future__ import annotations

import io
import json
import math
import os
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import Dataset

import feeder
from feeder.dataset.dataset_shards import write_shards
from feeder.dataset.shards import ShardDataset
from feeder.errors import ArgumentError, FeederError, ShardError, SourceError
from feeder.shard.format.manifest import Manifest
from feeder.shard.format.open_index import open_index
from feeder.shard.write.shard_options import ShardOptions
from feeder.system.progress import Progress
from tests.support.images import encode, pixels
from tests.support.shard_sets import KEEP, samples_of


def test_write_shards_takes_any_iterable_once(tmp_path: Path) -> None:
    images = [encode(pixels(i)) for i in range(20)]
    samples = (
        {"__key__": f"a/b.{i}", "jpg": data, "cls": i % 4, "json": {"n": i}, "note.txt": "é"}
        for i, data in enumerate(images)
    )
    summary = write_shards(samples, tmp_path / "out", seed=1, samples_per_shard=6, encode=KEEP)
    assert (summary.samples, summary.shards) == (20, 4)
    index = open_index(tmp_path / "out" / "index.bin")
    for i, (path, data, label) in enumerate(samples_of(tmp_path / "out")):
        n = int(path.rpartition(".")[2])
        assert data == images[n]
        assert label == n % 4
        with tarfile.open(index.shard_path(int(index.column("shard")[i]))) as tar:
            assert json.load(tar.extractfile(f"{index.key(i)}.json")) == {"n": n}  # type: ignore[arg-type]
            assert tar.extractfile(f"{index.key(i)}.note.txt").read().decode() == "é"  # type: ignore[union-attr]
    assert sorted(os.listdir(tmp_path / "out"))[:2] == [".lock", "index.bin"]


def test_nan_in_json_is_a_missing_value(tmp_path: Path) -> None:
    sample = {"__key__": "a", "jpg": encode(pixels(0)), "json": {"n": [math.nan, 1.5], "most": math.inf}}
    write_shards([sample], tmp_path / "out")
    assert feeder.ShardDataset(tmp_path / "out", fields=["json"])[0][-1] == {"n": [None, 1.5], "most": "inf"}


def test_fields_are_lower_case_as_in_tars(tmp_path: Path) -> None:
    write_shards([{"__key__": "a", "JPG": encode(pixels(1)), "CLS": 3}], tmp_path / "out")
    assert [label for *_, label in samples_of(tmp_path / "out")] == [3]
    sample = {"Left.JPG": encode(pixels(1)), "Right.JPG": encode(pixels(2))}
    write_shards([sample], tmp_path / "right", image_field="Right.JPG", encode=KEEP)
    assert ShardDataset(tmp_path / "right", fields=["left.jpg"])[0][2] == sample["Left.JPG"]
    with pytest.raises(SourceError, match=r"'a': has two fields of one name, but for their case: .*JPG, jpg"):
        write_shards([{"__key__": "a", "JPG": encode(pixels(1)), "jpg": encode(pixels(1))}], tmp_path / "b")


def test_write_shards_names_the_sample_that_it_cannot_encode(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="sample 'x': field 'jpg' is a ndarray; expected bytes"):
        write_shards([{"__key__": "x", "jpg": np.zeros(3)}], tmp_path / "out")
    with pytest.raises(SourceError, match="expected a dict"):
        write_shards([b"x"], tmp_path / "out2")


def test_write_shards_names_its_samples_where_none_has_an_image(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"^the samples: no image found, as there are none$"):
        write_shards([], tmp_path / "out")
    with pytest.raises(SourceError, match=r"^the samples: no image found \(1 input, all rejected, first x: "):
        write_shards([{"__key__": "x", "txt": "a"}], tmp_path / "out")


def test_write_shards_raises_when_too_many_are_bad_and_keeps_the_good_ones(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"1 of 2 images .*rejected"):
        write_shards([{"jpg": b"no image", "cls": 1}, {"jpg": encode(pixels(0))}], tmp_path / "out", encode=KEEP)
    assert [data for _, data, _ in samples_of(tmp_path / "out")] == [encode(pixels(0))]


def test_a_cut_off_write_shards_is_not_resumed_and_says_so(tmp_path: Path) -> None:
    def endless() -> object:
        yield {"jpg": encode(pixels(0))}

    def run(progress: Progress | None = None) -> None:
        write_shards(endless(), tmp_path / "out")

    (tmp_path / "out" / ".work").mkdir(parents=True)
    plan = {"settings": ShardOptions().settings(), "kind": "samples", "containers": [], "rejected": []}
    (tmp_path / "out" / ".work" / "plan.json").write_text(json.dumps(plan))
    with pytest.raises(ShardError, match=r"can't be resumed.*remove the folder"):
        run()


@pytest.mark.parametrize(
    ("label", "message"),
    [(-3, "class number, 0 or"), (b"0.5", "class number, 0 or"), (b"\xff", "class name"), (2**70, "label 118059")],
)
def test_write_shards_refuses_what_is_no_class(tmp_path: Path, label: object, message: str) -> None:
    with pytest.raises(SourceError, match=message):
        write_shards([{"jpg": encode(pixels(0)), "cls": label}], tmp_path / "out")


def test_write_shards_takes_class_names(tmp_path: Path) -> None:
    samples = [{"jpg": encode(pixels(i)), "cls": cls} for i, cls in enumerate(["dog", "cat", -1, "dog"])]
    write_shards(samples, tmp_path / "sorted", shuffle=False, encode="keep")
    dataset = ShardDataset(tmp_path / "sorted")
    assert (dataset.classes, dataset.targets) == (["cat", "dog"], [1, 0, -1, 1])
    write_shards(samples, tmp_path / "given", shuffle=False, classes=["dog", "ant", "cat"])
    dataset = ShardDataset(tmp_path / "given")
    assert (dataset.classes, dataset.targets) == (["dog", "ant", "cat"], [0, 2, -1, 0])
    numbered = [{"jpg": encode(pixels(0)), "cls": 1}]
    write_shards(numbered, tmp_path / "numbered", classes=["ant", "bee"])
    assert ShardDataset(tmp_path / "numbered").classes == ["ant", "bee"]
    for number, (given, message) in enumerate(
        [
            (["dog"], "holds the class 'cat', which is not in the list of 1 class"),
            (["dog", "dog"], "names 'dog' twice"),
            ("dog", "must be a sequence of names"),
        ]
    ):
        with pytest.raises(FeederError, match=message):
            write_shards(samples, tmp_path / f"wrong-{number}", classes=given)
    with pytest.raises(FeederError, match="holds the label 1, but the list has 1 class"):
        write_shards(numbered, tmp_path / "few", classes=["ant"])
    with pytest.raises(FeederError, match="encode must be one of seekable, packed, keep"):
        write_shards(samples, tmp_path / "typo", encode="keeep")


class Pairs(Dataset[Any]):
    """A map-style dataset of one's own, which has no end of its own."""

    def __len__(self) -> int:
        return 3

    def __getitem__(self, i: int) -> Any:
        return pixels(i), torch.tensor(i)


def formats(out: Path) -> dict[str, int]:
    """Number of images of each format in a set."""
    found = Manifest.read(str(out))
    assert found is not None
    return found.formats


def stored(out: Path, **options: Any) -> list[Any]:
    """The samples of a set, by their keys."""
    dataset = ShardDataset(out, **options)
    return [dataset[i] for i in np.argsort(dataset.reader.column("path")).tolist()]


@pytest.mark.parametrize("kind", ["Pillow", "numpy", "tensor", "dict", "dataset"])
def test_pixels_become_png(kind: str, tmp_path: Path) -> None:
    changes: dict[str, Callable[[Image.Image], Any]] = {
        "numpy": np.asarray,
        "tensor": lambda image: torch.from_numpy(np.array(image)).permute(2, 0, 1),
    }
    pairs = [
        (changes.get(kind, lambda image: image)(image), label) for image, label in map(Pairs().__getitem__, range(3))
    ]
    samples: Any = Pairs() if kind == "dataset" else pairs
    if kind == "dict":
        samples = [{"jpg": image, "cls": label} for image, label in pairs]
    write_shards(samples, tmp_path / "out")
    assert formats(tmp_path / "out") == {"png": 3}
    for i, (image, label) in enumerate(stored(tmp_path / "out")):
        assert label == i
        assert np.array_equal(image.permute(1, 2, 0), np.asarray(pixels(i)))
    write_shards(samples if kind != "dataset" else Pairs(), tmp_path / "jpeg", encode="jpeg")
    assert formats(tmp_path / "jpeg") == {"jpg": 3}


def test_further_images_arrays_and_values_are_fields_of_their_names(tmp_path: Path) -> None:
    mask = np.arange(24 * 16, dtype=np.uint8).reshape(16, 24)
    sample = {
        "image": pixels(0),
        "mask": mask,
        "right.jpg": torch.from_numpy(np.array(pixels(1))).permute(2, 0, 1),
        "emb.npy": torch.arange(6.0).reshape(2, 3),
        "boxes.json": {"boxes": np.ones((1, 4)), "labels": torch.tensor([3])},
        "score": np.int64(7),
    }
    write_shards([sample], tmp_path / "out")
    names = ["mask.png", "right.png", "emb.npy", "boxes.json", "score"]
    (entry,) = stored(tmp_path / "out", fields=names)
    found = dict(zip(names, entry[2:], strict=True))
    assert np.array_equal(np.asarray(Image.open(io.BytesIO(found["mask.png"]))), mask)
    assert np.array_equal(np.asarray(Image.open(io.BytesIO(found["right.png"]))), np.asarray(pixels(1)))
    assert np.load(io.BytesIO(found["emb.npy"])).tolist() == [[0, 1, 2], [3, 4, 5]]
    assert json.loads(found["boxes.json"]) == {"boxes": [[1, 1, 1, 1]], "labels": [3]}
    assert found["score"] == b"7"


def test_a_target_that_is_no_class_is_json(tmp_path: Path) -> None:
    write_shards([(pixels(0), {"boxes": torch.ones(1, 4)}), [pixels(1), [2, 3]], pixels(2)], tmp_path / "out")
    assert [entry[2] for entry in stored(tmp_path / "out", fields=["json"])] == [
        {"boxes": [[1, 1, 1, 1]]},
        [2, 3],
        None,
    ]


@pytest.mark.parametrize(
    ("sample", "message"),
    [
        (
            (torch.rand(3, 8, 8), 1),
            r"sample '0': field 'image' is float32 \[8, 8, 3\]: pixels are uint8, 0-255, as before",
        ),
        ((pixels(0).convert("CMYK"), 1), r"sample '0': field 'image': .*CMYK.*; convert\('RGB'\) it"),
        (
            (pixels(0), 1, 2),
            "sample 0: expected a dict of fields, or an image and its label, got tuple of Image, int, int",
        ),
        (("a.jpg", 1), "sample 0: expected a dict of fields, or an image and its label, got tuple of str, int"),
        ({"image": pixels(0), "emb": np.zeros(3)}, "field 'emb' is a ndarray; expected bytes"),
    ],
)
def test_what_is_no_sample_is_named(sample: object, message: str, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=message):
        write_shards([sample], tmp_path / "out")


def test_a_dataset_of_feeders_is_sharded_by_its_folder(tmp_path: Path) -> None:
    write_shards([pixels(0)], tmp_path / "out")
    with pytest.raises(
        ArgumentError, match="ShardDataset reads a folder or a set: `feeder shard` takes it by its path"
    ):
        write_shards(ShardDataset(tmp_path / "out"), tmp_path / "again")


def test_further_image_columns_of_hugging_face_are_members(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    masks = [encode(pixels(k).convert("L"), "PNG") for k in (1, 2)]
    columns: dict[str, Any] = {
        "image": [{"bytes": encode(pixels(k)), "path": None} for k in range(2)],
        "mask": [{"bytes": data, "path": None} for data in masks],
        "text": ["a", "b"],
    }
    features = {"image": datasets.Image(), "mask": datasets.Image(), "text": datasets.Value("string")}
    theirs = datasets.Dataset.from_dict(columns, datasets.Features(features))
    write_shards(theirs, tmp_path / "out")
    found = stored(tmp_path / "out", fields=["mask.png", "json"])
    assert [entry[2] for entry in found] == masks
    assert [entry[3] for entry in found] == [{"text": "a"}, {"text": "b"}]

    lists = datasets.Dataset.from_dict(
        {"image": columns["image"], "views": [[each] for each in columns["mask"]]},
        datasets.Features({"image": datasets.Image(), "views": [datasets.Image()]}),
    )
    with pytest.raises(SourceError, match="views can't be written: a PngImageFile is no value"):
        write_shards(lists, tmp_path / "lists")
