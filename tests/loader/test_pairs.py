"""Everything beyond one label, two at a time: batches hold what the dataset draws alone, or the pair is refused."""

from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path
from typing import Any

import pytest
import torch

from feeder import transforms as T
from feeder.dataset.shards import ShardDataset
from feeder.errors import ArgumentError
from feeder.fields import Choice, Lines
from feeder.loader.dataloader import DataLoader
from feeder.order.buckets import Buckets
from feeder.transforms.pad_to_batch import PadToBatch
from tests.support.drawn_samples import drawn_samples
from tests.support.target_data import TARGETS, members, write_target_shards

SEED, SAMPLES = 5, 24
TURNED = dict.fromkeys((1, 4, 6, 11), 6)
DATASET = ("targets", "drawn text", "drawn sizes", "second image")
SIZES = ("views", "buckets", "pad", "by epoch")
LOADER: dict[str, dict[str, Any]] = {
    "mix": {"mix": T.MixUp()},
    "collate_fn": {"collate_fn": list},
    "skip": {"on_error": "skip"},
    "dali": {"backend": "dali"},
    "workers": {"num_workers": 1},
    "device": {"device": "cpu", "memory_format": torch.channels_last},
    "repeats": {"sampler": [3, 3, 8, 3, 1, 3], "shuffle": None},
}

REFUSED = {
    ("targets", "mix"): "not the target",
    ("second image", "mix"): "not the target",
    ("second image", "pad"): "sizes of their own",
    ("drawn sizes", "views"): "'crop_box' is one window",
    ("views", "buckets"): "view 0 of Views has the size T.BUCKET",
    ("views", "pad"): "size of view 0 of Views depends on the image",
    ("buckets", "collate_fn"): "collate_fn",
    ("buckets", "repeats"): "sampler",
    ("pad", "mix"): "mix=",
    ("pad", "collate_fn"): "collate_fn",
}
PAIRS = [
    pair
    for pair in itertools.combinations((*DATASET, *SIZES, *LOADER), 2)
    if pair[0] not in LOADER and pair != ("buckets", "pad")  # one argument takes either
]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Shards whose images stand and lie, and the same with a bad image, mask, text and second image."""
    replaced: dict[tuple[int, str], bytes | None] = {}
    for i in range(SAMPLES):
        replaced[i, "txt"] = f"{i} a\n{i} b\n{i} c".encode()
        replaced[i, "second.png"] = members(100 + i, TURNED.get(i, 1))["png"]
    bad = {**replaced, (9, "seg.png"): b"no mask", (12, "txt"): b"\xff", (5, "second.png"): b"no image"}
    folder = tmp_path_factory.mktemp("pairs")
    good = write_target_shards(folder / "good", SAMPLES, orientations=TURNED, replaced=replaced)
    damaged = write_target_shards(folder / "bad", SAMPLES, orientations=TURNED, replaced=bad)
    image, tar = members(7)["png"], damaged / "shard-000000.tar"
    tar.write_bytes(tar.read_bytes().replace(image, bytes(len(image))))
    return good, damaged


def transform_of(names: set[str]) -> Any:
    ops: list[Any] = [T.RandomHorizontalFlip()]
    if "by epoch" in names:
        ops.append(T.RandomResizedCrop(T.ByEpoch({0: 12, 1: 20})))
    if "buckets" in names:
        ops.append(T.RandomResizedCrop(T.BUCKET))
    if "pad" in names:
        ops.append(T.RandomShortestSize([12, 18]))
    if not names & {"by epoch", "buckets", "pad"}:
        ops.append(T.RandomResizedCrop((16, 20)))
    recipe = T.Compose([*ops, T.ToDtype("float32")])
    return T.Views([recipe, recipe, T.Resize((8, 8))]) if "views" in names else recipe


def dataset_of(folders: tuple[Path, Path], names: set[str], transform: Any) -> ShardDataset:
    fields: dict[str, Any] = {"index": None}
    if "drawn text" in names:
        fields["txt"] = Choice(Lines())
    if "drawn sizes" in names:
        fields |= {"original_size": None, "crop_box": None}
    targets: dict[str, Any] = {}
    if "targets" in names:
        targets |= {name: dataclasses.replace(target, canvas="stored") for name, target in TARGETS.items()}
    if "second image" in names:
        targets["second.png"] = T.Image("own")
    return ShardDataset(folders["skip" in names], transform, fields, targets=targets)


def loader_of(folders: tuple[Path, Path], names: set[str]) -> DataLoader[Any]:
    options: dict[str, Any] = {"batch_size": 5, "shuffle": True, "seed": SEED}
    if "buckets" in names:
        options["sizes"] = Buckets(sizes=[(12, 16), (16, 12)])
    if "pad" in names:
        options["sizes"] = PadToBatch(8)
    for name in names & LOADER.keys():
        options |= LOADER[name]
    return DataLoader(dataset_of(folders, names, transform_of(names)), **options)


def rows_of(batch: Any, names: set[str]) -> list[list[Any]]:
    """The samples of a batch, each as ``dataset[i]`` has it; padding is cut off."""
    if "collate_fn" in names:
        return [list(sample) for sample in batch]
    images, labels, *rest = batch
    rows: list[Any] = list(zip(*images, strict=True)) if "views" in names else list(images)
    if "pad" in names:
        sizes, *rest = rest
        planes = [k for k, each in enumerate(rest) if isinstance(each, torch.Tensor) and each.ndim == 3]
        assert len(planes) == ("targets" in names)  # the masks
        cut = [(..., slice(height), slice(width)) for height, width in sizes.tolist()]
        rows = [image[place] for image, place in zip(rows, cut, strict=True)]
        for k in planes:
            rest[k] = [mask[place] for mask, place in zip(rest[k], cut, strict=True)]
    if "views" in names:  # a list for each view
        moved = 3 * ("targets" in names) + ("second image" in names)
        rest = [*(list(zip(*each, strict=True)) for each in rest[:moved]), *rest[moved:]]
    if "mix" in names:
        labels, *_ = labels
    return [list(row) for row in zip(rows, labels, *rest, strict=True)]


def same(found: Any, expected: Any) -> None:
    """Fails unless two values of a sample are equal; views and dicts, part by part."""
    if isinstance(expected, dict):
        assert list(found) == list(expected)
        found, expected = list(found.values()), list(expected.values())
    if isinstance(expected, (list, tuple)):
        for one, other in zip(found, expected, strict=True):
            same(one, other)
    elif isinstance(expected, torch.Tensor):
        torch.testing.assert_close(found, expected, rtol=0, atol=0)
    else:
        assert found == expected


@pytest.mark.filterwarnings("ignore:this loader runs torch's path")
@pytest.mark.parametrize("pair", PAIRS, ids=" and ".join)
def test_a_pair_gives_the_samples_of_the_dataset_or_is_refused(folders: Any, pair: tuple[str, str]) -> None:
    names = set(pair)
    if "dali" in names:
        pytest.importorskip("nvidia.dali", reason="DALI is not installed")
    if pair in REFUSED:
        with pytest.raises(ArgumentError, match=REFUSED[pair]):
            loader_of(folders, names)
        return
    loader = loader_of(folders, names)
    second = 5 if "targets" in names else 2
    index = second + ("second image" in names)
    for epoch in range(2):
        seen: list[int] = []
        for batch in loader:
            dataset, rows = loader.dataset, rows_of(batch, names)
            if "buckets" in names:
                dataset = dataset_of(folders, names, dataset.recipe.at(tuple(batch[0].shape[2:]), epoch))
            ids = [int(row[index]) for row in rows]
            for i, row, expected in zip(ids, rows, drawn_samples(dataset, SEED, epoch, ids), strict=True):
                if "repeats" in names and i in seen:  # has draws of its own
                    continue
                seen.append(i)
                images = {0, second} if "second image" in names else {0}
                same(*([each for k, each in enumerate(values) if k not in images] for values in (row, expected)))
                if not names & {"mix", "dali"}:
                    same(*([values[k] for k in sorted(images)] for values in (row, expected)))
        bad = {
            7,
            *([9] if "targets" in names else []),
            *([12] if "drawn text" in names else []),
            *([5] if "second image" in names else []),
        }
        wanted = set(range(SAMPLES)) - (bad if "skip" in names else set())
        assert set(seen) == ({1, 3, 8} if "repeats" in names else wanted)
