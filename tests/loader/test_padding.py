"""Batches of images of different sizes, padded to one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from feeder import transforms as T
from feeder.dataset.folders import FolderDataset
from feeder.dataset.shards import ShardDataset
from feeder.errors import ArgumentError, BackendError, DecodeError
from feeder.loader.dataloader import DataLoader
from feeder.loader.options import ToDevice, WorkerOptions
from feeder.transforms.pad_to_batch import PadToBatch
from tests.support.batches import copied_epoch, same_batches
from tests.support.loader_data import write_shards, write_tree

IMAGES = [(24, 24), (20, 41), (44, 22), (30, 31), (18, 60), (25, 50), (33, 30)]
PAD = PadToBatch(multiple=8, value=3)
RECIPE = T.Compose([T.RandomShortestSize([12, 16, 20], max_size=36), T.RandomHorizontalFlip()])


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_shards(tmp_path_factory.mktemp("shards"), 60, sizes=IMAGES, turned=(3, 9), jpegs=True)


def loader_of(shards: Path, recipe: Any = RECIPE, **options: Any) -> DataLoader:
    given: dict[str, Any] = {"batch_size": 4, "shuffle": True, "seed": 5, "sizes": PAD, **options}
    return DataLoader(ShardDataset(shards, recipe, fields=("index",)), **given)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"num_workers": 2},
        {"num_workers": 1, "device": "cpu"},
        {"sampler": range(60)},
        {"backend": "dali"},
        {"backend": "dali", "num_workers": 2, "memory_format": torch.channels_last},
    ],
    ids=str,
)
@pytest.mark.parametrize("dtype", ["uint8", "float32", "bfloat16"])
def test_images_stand_top_left_in_a_batch_of_the_largest_sides(
    shards: Path, dtype: str, options: dict[str, Any]
) -> None:
    recipe = T.Compose([RECIPE, T.ToDtype(dtype, scale=True)])
    if is_dali := options.get("backend") == "dali":
        pytest.importorskip("nvidia.dali", reason="DALI is not installed")
    options = {"shuffle": None, **options} if "sampler" in options else options
    alone: dict[int, torch.Tensor] = {}
    collate: Any = lambda samples: samples  # noqa: E731
    for samples in loader_of(shards, recipe, sizes=None, collate_fn=collate, shuffle=False):
        alone |= {index: image for image, _, index in samples}
    seen: list[int] = []
    for images, labels, sizes, index in loader_of(shards, recipe, **options):
        assert sizes.dtype == torch.int64
        assert images.shape[2:] == tuple(-(-side // 8) * 8 for side in sizes.max(dim=0).values.tolist())
        assert labels.tolist() == [i % 7 for i in index.tolist()]
        for image, (height, width), i in zip(images, sizes.tolist(), index.tolist(), strict=True):
            # Another decoder has other pixels.
            off = (image[:, :height, :width].float() - alone[i].float()).abs().mean()
            assert off <= 0.6 / (1 if dtype == "uint8" else 255) if is_dali else off == 0
            assert (image[:, height:] == 3).all()
            assert (image[:, :, width:] == 3).all()
        seen += index.tolist()
    assert sorted(seen) == list(range(60))


@pytest.mark.parametrize(
    "ops",
    [
        [T.ColorJitter(0.4, 0.4, 0.4, 0.2), T.RandomAutocontrast(1.0)],
        [T.RandomApply([T.GaussianBlur(3)], p=0.5), T.RandomRotation(20)],
        [T.TrivialAugmentWide(), T.RandomVerticalFlip(), T.RandomErasing(1.0, value=7)],
    ],
    ids=["colors", "blur and warp", "augment"],
)
def test_ops_that_dali_does_in_batches_are_done_to_the_images_of_each_size(shards: Path, ops: list[Any]) -> None:
    pytest.importorskip("nvidia.dali", reason="DALI is not installed")
    recipe = T.Compose([RECIPE, *ops])
    found, expected = (loader_of(shards, recipe, backend=name, num_workers=1) for name in ("dali", "cpu"))
    for (images, _, sizes, index), (others, _, wanted, ids) in zip(found, expected, strict=True):
        assert torch.equal(index, ids)
        assert torch.equal(sizes, wanted)
        assert (images.float() - others.float()).abs().mean() < 3
        for image, other, (height, width) in zip(images, others, sizes.tolist(), strict=True):
            assert torch.equal(image[:, height:], other[:, height:])
            assert torch.equal(image[:, :, width:], other[:, :, width:])
            assert (image[:, :height, :width].float() - other[:, :height, :width].float()).abs().median() <= 2


@pytest.mark.parametrize("options", [{}, {"num_workers": 1, "backend": "dali"}], ids=str)
def test_lengths_by_epoch_are_those_of_a_loader_with_them(shards: Path, options: dict[str, Any]) -> None:
    if "backend" in options:
        pytest.importorskip("nvidia.dali", reason="DALI is not installed")
    lengths: dict[int, Any] = {0: 12, 1: [16, 20], 2: 28}
    growing = loader_of(shards, T.RandomShortestSize(T.ByEpoch(lengths), max_size=40), **options)
    resumed = loader_of(shards, T.RandomShortestSize(T.ByEpoch(lengths), max_size=40), **options)
    for epoch, length in lengths.items():
        state = growing.state_dict()
        fixed = loader_of(shards, T.RandomShortestSize(length, max_size=40), **options)
        fixed.set_epoch(epoch)
        expected = copied_epoch(fixed)
        assert same_batches(copied_epoch(growing), expected)
    resumed.load_state_dict(json.loads(json.dumps(state)))
    assert same_batches(copied_epoch(resumed), expected)
    other = loader_of(shards, T.RandomShortestSize(T.ByEpoch(lengths | {2: 32}), max_size=40))
    with pytest.raises(ArgumentError, match="its sizes_by_epoch is"):
        other.load_state_dict(state)


def test_slots_grow_for_a_batch_that_is_larger_than_was_planned(shards: Path) -> None:
    recipe = T.Compose([T.Resize(12), T.RandomZoomOut(p=0.02, side_range=(4, 20))])
    runs = []
    for workers in (0, 2):
        loader = loader_of(shards, recipe, num_workers=workers, persistent_workers=workers > 0)
        runs.append([batch for _ in range(6) for batch in copied_epoch(loader)])
    assert same_batches(*runs)
    sides = [max(batch[0].shape[2:]) for batch in runs[0]]
    assert max(sides[15:]) > 2 * max(sides[:15])  # the first epoch is what is planned with


def test_batches_of_similar_aspect_ratios_are_padded_less(shards: Path) -> None:
    padded = []
    for pad in (PAD, PadToBatch(multiple=8, value=3, group_by_aspect=True)):
        batches = copied_epoch(loader_of(shards, sizes=pad))
        assert sorted(i for batch in batches for i in batch[3].tolist()) == list(range(60))
        pixels = sum(batch[0].numel() for batch in batches) / 3
        padded.append(pixels / sum(batch[2].prod(dim=1).sum().item() for batch in batches))
    assert padded[1] < 0.85 * padded[0]


@pytest.mark.parametrize("group", [False, True])
def test_two_ranks_go_on_as_four(shards: Path, group: bool) -> None:
    """Padding goes by rank, so batches are compared without it."""
    pad = PadToBatch(multiple=8, group_by_aspect=group)

    def run(world_size: int, state: Any, steps: int) -> tuple[list[Any], Any]:
        loaders = [
            loader_of(shards, sizes=pad, rank=rank, world_size=world_size, batch_size=8 // world_size)
            for rank in range(world_size)
        ]
        for loader in loaders:
            if state is not None:
                loader.load_state_dict(json.loads(json.dumps(state)))
        iterators = [iter(loader) for loader in loaders]
        found = []
        for _ in range(min(steps, len(iterators[0]))):
            for images, _, sizes, index in [next(iterator) for iterator in iterators]:
                for image, (height, width), i in zip(images, sizes.tolist(), index.tolist(), strict=True):
                    found.append((i, image[:, :height, :width].clone()))
        return found, loaders[0].state_dict()

    unbroken, _ = run(2, None, 100)
    before, state = run(2, None, 3)
    after, _ = run(4, state, 100)
    pairs = list(zip([*before, *after], unbroken, strict=True))
    assert len(pairs) == 60
    assert all(i == j and torch.equal(image, other) for (i, image), (j, other) in pairs)
    assert ("group_by_aspect" in state) == group
    with pytest.raises(ArgumentError, match="its group_by_aspect is"):
        loader_of(shards, sizes=PadToBatch(group_by_aspect=not group)).load_state_dict(state)


@pytest.mark.parametrize("backend", ["cpu", "dali"])
def test_substitutes_fit_in_the_padded_batch(tmp_path: Path, backend: str) -> None:
    """With DALI also in place of images that only it finds to be bad."""
    if backend == "dali":
        pytest.importorskip("nvidia.dali", reason="DALI is not installed")
    bad, cut = (1, 4, 8, 12, 21, 30), (11, 29)
    shards = write_shards(tmp_path, 60, sizes=IMAGES, bad=bad, cut=cut, jpegs=True)
    runs = []
    for workers in (0, 2):
        loader = loader_of(shards, batch_size=2, on_error="skip", num_workers=workers, backend=backend)
        runs.append((copied_epoch(loader), loader.stats()["substitutions"]))
    assert same_batches(runs[0][0], runs[1][0])
    assert sorted(int(entry["key"]) for entry in runs[0][1]) == sorted(bad + cut)
    for images, _, sizes, index in runs[0][0]:
        assert not set(bad + cut) & set(index.tolist())
        assert (sizes <= torch.tensor(images.shape[2:])).all()
    with pytest.raises(DecodeError, match="not an image"):
        copied_epoch(loader_of(shards, backend=backend))


@pytest.mark.parametrize("bad", [(5,), (5, 8)], ids=["alone", "all"])
def test_a_group_without_a_good_image_takes_substitutes_of_the_nearest(tmp_path: Path, bad: tuple[int, ...]) -> None:
    """The bad images are all that their aspect ratio has; they share a batch with larger ones, in which others fit."""
    sizes = [(20, 40) if i in bad else (20, 30) if i % 2 else (40, 20) for i in range(12)]
    shards = write_shards(tmp_path, 12, sizes=sizes, bad=bad)
    loader = loader_of(shards, sizes=PadToBatch(8, group_by_aspect=True), on_error="skip")
    batches = copied_epoch(loader)
    found = {int(each["key"]): each["substitute"] for each in loader.stats()["substitutions"]}
    assert sorted(found) == [*bad]
    assert {sizes[i] for i in found.values()} == {(20, 30)}
    assert len([i for *_, index in batches for i in index.tolist()]) == 12


def test_slots_are_of_the_padded_maximum(shards: Path) -> None:
    """Of images up to 24x36 or 36x24, and so of batches of both."""
    recipe = T.RandomShortestSize([24], max_size=36)
    slot_bytes = 4096 + 4 * 3 * 40 * 40 // 4096 * 4096 + 4096
    with pytest.raises(ArgumentError, match="images of 40x40"):
        next(
            iter(
                loader_of(
                    shards, recipe, num_workers=1, worker_options=WorkerOptions(memory_limit_bytes=2 * slot_bytes - 1)
                )
            )
        )
    assert (
        len(
            copied_epoch(
                loader_of(
                    shards, recipe, num_workers=1, worker_options=WorkerOptions(memory_limit_bytes=2 * slot_bytes)
                )
            )
        )
        == 15
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sizes": 32}, "must be a feeder.Buckets or a feeder.PadToBatch"),
        ({"sizes": PadToBatch(value=256)}, "no pixel of uint8 images"),
        ({"sizes": PadToBatch(value=0.5)}, "no pixel of uint8 images"),
        ({"collate_fn": list}, "collate_fn"),
        ({"mix": T.MixUp()}, "mix="),
        ({"device": ToDevice("cpu", static_buffers=True)}, "static_buffers=True"),
        ({"sizes": PadToBatch(group_by_aspect=True), "sampler": range(8), "shuffle": None}, "so does a sampler"),
    ],
)
def test_what_padding_does_not_go_with_is_refused_by_name(shards: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        loader_of(shards, **options)


@pytest.mark.parametrize(
    "arguments", [*({"multiple": each} for each in (0, 1.5, True)), {"value": "0"}, {"value": float("nan")}]
)
def test_padding_refuses_impossible_arguments(arguments: dict[str, Any]) -> None:
    with pytest.raises(ArgumentError, match=f"{next(iter(arguments))} must be"):
        PadToBatch(**arguments)


def test_a_batchs_sides_are_rounded_up() -> None:
    sizes = np.array([[30, 65], [64, 12]], np.int32)
    assert PadToBatch().size(sizes) == (64, 96)
    assert PadToBatch(multiple=1).size(sizes) == (64, 65)
    assert repr(PadToBatch(multiple=np.int64(48))) == repr(PadToBatch(multiple=48))


def test_a_folder_has_the_batches_of_its_shards(tmp_path: Path) -> None:
    shards = write_shards(tmp_path / "shards", 42, sizes=IMAGES, turned=(3,))
    folder = FolderDataset(write_tree(tmp_path / "tree", 42, sizes=IMAGES, turned=(3,)), RECIPE, fields=("index",))
    for pad in (PAD, PadToBatch(multiple=8, value=3, group_by_aspect=True)):
        for workers in (0, 1):
            found = DataLoader(folder, 4, shuffle=True, seed=5, sizes=pad, num_workers=workers)
            for (images, _, *rest), (expected, _, *others) in zip(found, loader_of(shards, sizes=pad), strict=True):
                assert torch.equal(images, expected)
                assert all(torch.equal(a, b) for a, b in zip(rest, others, strict=True))


@pytest.mark.parametrize("op", [T.Pad(2), T.RandomCrop(8)])
def test_dali_refuses_ops_that_change_images_of_different_sizes(shards: Path, op: T.Op) -> None:
    pytest.importorskip("nvidia.dali", reason="DALI is not installed")
    with pytest.raises(BackendError, match=f"can't run {type(op).__name__}: it gets images of different sizes"):
        loader_of(shards, T.Compose([RECIPE, op]), backend="dali")
