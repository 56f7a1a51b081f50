"""Targets on the loader's fast path: the values of ``dataset[i]``, whichever way the batch is made."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from feeder import transforms as T
from feeder.dataset.shards import ShardDataset
from feeder.errors import ArgumentError, DecodeError
from feeder.loader.dataloader import DataLoader
from feeder.loader.options import ToDevice, WorkerOptions
from feeder.order.buckets import Buckets
from feeder.transforms.pad_to_batch import PadToBatch
from tests.support.documents import block
from tests.support.drawn_samples import drawn_samples
from tests.support.target_data import SCALE, TARGETS, write_target_shards

SEED = 5
DETECTION = T.Compose(
    [
        T.RandomIoUCrop(),
        T.RandomHorizontalFlip(),
        T.Resize((20, 28)),
        T.SanitizeBoundingBoxes(),
        T.SanitizeKeyPoints(),
        T.ToDtype("float32", scale=True),
    ]
)
# All images have 24x32 pixels, so that nothing is resized.
WHOLE_PIXELS = T.Compose([T.Resize((24, 32)), T.RandomCrop((20, 28)), T.RandomHorizontalFlip(), T.ToDtype("float32")])
WARPED = T.Compose([T.RandomResizedCrop(16), T.ColorJitter(0.5), T.RandomRotation(30), T.RandomErasing(1.0)])
WAYS: list[dict[str, Any]] = [
    {},
    {"num_workers": 2},
    {"num_workers": 1, "device": "cpu"},
    {"backend": "pillow"},
    {"fidelity": "exact", "worker_options": WorkerOptions(threads=2), "num_workers": 1},
]


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_target_shards(tmp_path_factory.mktemp("shards"), 24)


def loader_of(path: Path, recipe: Any, **options: Any) -> DataLoader[Any]:
    given: dict[str, Any] = {"batch_size": 5, "shuffle": True, "seed": SEED, **options}
    return DataLoader(ShardDataset(path, recipe, ["index"], targets=TARGETS), **given)


def check_batches(loader: DataLoader[Any], epoch: int = 0) -> int:
    """Holds an epoch's targets against those of ``dataset[i]`` with the same draws; returns the number of samples."""
    assert loader.path == "fast"
    seen = 0
    for images, labels, masks, boxes, points, index in loader:
        assert len(images) == len(labels) == len(masks) == len(boxes) == len(points)
        expected = drawn_samples(loader.dataset, SEED, epoch, index.tolist())
        for row, (_, label, mask, own_boxes, own_points, _) in enumerate(expected):
            assert labels[row] == label
            torch.testing.assert_close(masks[row], mask, rtol=0, atol=0)
            same(boxes[row], own_boxes)
            same(points[row], own_points)
        seen += len(images)
    return seen


def same(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert list(found) == list(expected)
    for name, value in expected.items():
        if isinstance(value, torch.Tensor):
            torch.testing.assert_close(found[name], value, rtol=0, atol=0)
        else:
            assert found[name] == value


@pytest.mark.parametrize("recipe", [DETECTION, WARPED], ids=["detection", "warped"])
@pytest.mark.parametrize("options", WAYS, ids=str)
def test_batches_have_the_targets_of_the_dataset(shards: Path, recipe: T.Compose, options: dict[str, Any]) -> None:
    assert check_batches(loader_of(shards, recipe, **options)) == 24


@pytest.mark.parametrize("options", [*WAYS, {"backend": "dali"}, {"backend": "dali", "num_workers": 1}], ids=str)
def test_images_and_masks_are_cut_alike(shards: Path, options: dict[str, Any]) -> None:
    if options.get("backend") == "dali":
        pytest.importorskip("nvidia.dali", reason="DALI is not installed")
    for images, _, masks, *_ in loader_of(shards, WHOLE_PIXELS, **options):
        torch.testing.assert_close(images, (masks * SCALE).float()[:, None].expand(-1, 3, -1, -1), rtol=0, atol=0)


@pytest.mark.parametrize("workers", [0, 1])
def test_dali_leaves_targets_as_they_are(shards: Path, workers: int) -> None:
    pytest.importorskip("nvidia.dali", reason="DALI is not installed")
    assert check_batches(loader_of(shards, DETECTION, backend="dali", num_workers=workers)) == 24


def test_a_batch_has_masks_in_a_tensor_and_boxes_in_a_list_of_dicts(shards: Path) -> None:
    images, _, masks, boxes, points, index = next(iter(loader_of(shards, DETECTION)))
    assert (images.shape, masks.shape, masks.dtype) == ((5, 3, 20, 28), (5, 20, 28), torch.uint8)
    assert all(each["boxes"].shape == (len(each["labels"]), 4) for each in boxes)
    assert all(each["keypoints"].shape == (len(each["labels"]), 2) for each in points)
    assert index.dtype == torch.int64


def test_masks_of_int32_have_their_dtype(shards: Path) -> None:
    dataset = ShardDataset(shards, T.CenterCrop(40), targets={"seg.png": T.Mask(2**20, torch.int32)})
    _, _, masks = next(iter(DataLoader(dataset, 4)))
    assert (masks.dtype, masks.shape) == (torch.int32, (4, 40, 40))
    assert masks[:, 0, 0].tolist() == [2**20] * 4


def test_a_collate_fn_gets_the_targets_of_each_sample(shards: Path) -> None:
    collate: Any = lambda samples: samples  # noqa: E731
    for samples in loader_of(shards, DETECTION, collate_fn=collate):
        expected = drawn_samples(ShardDataset(shards, DETECTION, targets=TARGETS), SEED, 0, [s[5] for s in samples])
        for found, own in zip(samples, expected, strict=True):
            torch.testing.assert_close(found[2], own[2], rtol=0, atol=0)
            same(found[3], own[3])


@pytest.mark.parametrize("name", list(TARGETS))
@pytest.mark.parametrize("options", [{}, {"num_workers": 2}, {"backend": "dali", "num_workers": 1}], ids=str)
def test_a_bad_target_replaces_the_whole_sample_or_names_it(tmp_path: Path, name: str, options: dict[str, Any]) -> None:
    if options.get("backend") == "dali":
        pytest.importorskip("nvidia.dali", reason="DALI is not installed")
    path = write_target_shards(tmp_path, 12, replaced={(7, name): b"no target"})
    loader = loader_of(path, WHOLE_PIXELS, on_error="skip", **options)
    found = list(loader)
    ids = [i for *_, index in found for i in index.tolist()]
    assert len(ids) == 12
    assert 7 not in ids
    for images, _, masks, boxes, _, index in found:
        torch.testing.assert_close(images[:, 0], (masks * SCALE).float(), rtol=0, atol=0)
        assert [each["id"] for each in boxes] == index.tolist()
    with pytest.raises(DecodeError, match=f"target '{name}'") as caught:
        list(loader_of(path, WHOLE_PIXELS, **options))
    assert caught.value.key == "0007"


@pytest.mark.parametrize("mix", [T.MixUp(), T.CutMix(num_classes=7), [T.MixUp(), T.CutMix()]], ids=str)
def test_mixing_is_refused_by_name(shards: Path, mix: Any) -> None:
    with pytest.raises(ArgumentError, match=r"(MixUp|CutMix) mixes images and labels, but not the target 'seg\.png'"):
        loader_of(shards, WHOLE_PIXELS, mix=mix)


def test_a_resumed_epoch_has_the_same_targets(shards: Path) -> None:
    whole = [batch[3] for batch in loader_of(shards, DETECTION)]
    first = loader_of(shards, DETECTION)
    iterator = iter(first)
    next(iterator), next(iterator)
    state = first.state_dict()
    second = loader_of(shards, DETECTION, num_workers=1)
    second.load_state_dict(state)
    for batch, expected in zip(second, whole[2:], strict=True):
        for found, own in zip(batch[3], expected, strict=True):
            same(found, own)


def test_a_repeated_sample_has_targets_of_its_own_draws(shards: Path) -> None:
    for images, _, masks, *_ in loader_of(shards, WHOLE_PIXELS, shuffle=None, sampler=[3] * 5):
        torch.testing.assert_close(images[:, 0], (masks * SCALE).float(), rtol=0, atol=0)
        assert len({tuple(mask.flatten().tolist()) for mask in masks}) > 1


def bucketed(size: Any) -> T.Compose:
    return T.Compose([T.Resize(size, cover=True), T.RandomCrop(size), T.RandomHorizontalFlip()])


@pytest.mark.parametrize("options", [*WAYS, {"backend": "dali", "num_workers": 1}], ids=str)
def test_masks_of_a_bucket_are_those_of_its_size(shards: Path, options: dict[str, Any]) -> None:
    if options.get("backend") == "dali":
        pytest.importorskip("nvidia.dali", reason="DALI is not installed")
    fixed = ShardDataset(shards, bucketed((16, 24)), targets=TARGETS)
    seen: list[int] = []
    # No image has the aspect ratio of the largest bucket, which slots are made for.
    loader = loader_of(shards, bucketed(T.BUCKET), sizes=Buckets(sizes=[(16, 24), (48, 16)]), **options)
    for images, _, masks, _, _, index in loader:
        assert (images.shape[2:], masks.shape) == ((16, 24), (len(images), 16, 24))
        for mask, (_, _, expected, *_) in zip(masks, drawn_samples(fixed, SEED, 0, index.tolist()), strict=True):
            assert torch.equal(mask, expected)
        seen += index.tolist()
    assert sorted(seen[:24]) == list(range(24))


PADDED = T.RandomShortestSize([12, 18])


@pytest.mark.parametrize("options", [*WAYS, {"backend": "dali", "num_workers": 1}], ids=str)
def test_masks_of_a_padded_batch_have_fill_where_images_are_padded(tmp_path: Path, options: dict[str, Any]) -> None:
    if options.get("backend") == "dali":
        pytest.importorskip("nvidia.dali", reason="DALI is not installed")
    path = write_target_shards(tmp_path, 24, replaced={(5, "seg.png"): b"none"})
    dataset = ShardDataset(path, PADDED, ["index"], targets={"seg.png": T.Mask(fill=9)})
    loader = DataLoader(dataset, 5, shuffle=True, seed=SEED, sizes=PadToBatch(8), on_error="skip", **options)
    padded = 0
    for images, _, sizes, masks, index in loader:
        assert masks.shape == (len(images), *images.shape[2:])
        expected = [mask for _, _, mask, _ in drawn_samples(dataset, SEED, 0, index.tolist())]
        for mask, (height, width), own in zip(masks, sizes.tolist(), expected, strict=True):
            assert torch.equal(mask[:height, :width], own)
            assert (mask[height:] == 9).all()
            assert (mask[:height, width:] == 9).all()
            padded += mask.numel() - own.numel()
    assert padded


@pytest.mark.parametrize("recipe", [DETECTION, T.Views([WHOLE_PIXELS] * 2)], ids=["image", "views"])
def test_boxes_have_no_place_in_static_buffers(shards: Path, recipe: Any) -> None:
    with pytest.raises(ArgumentError, match=r"static_buffers=True .* each sample has 'boxes\.json' of another"):
        loader_of(shards, recipe, device=ToDevice("cpu", static_buffers=True))
    dataset = ShardDataset(
        shards, recipe if isinstance(recipe, T.Views) else WHOLE_PIXELS, targets={"seg.png": T.Mask()}
    )
    masks = [
        batch[2][0] if isinstance(recipe, T.Views) else batch[2]
        for batch in DataLoader(dataset, 6, device=ToDevice("cpu", static_buffers=True))
    ]
    assert len({each.data_ptr() for each in masks}) == 1


def test_padding_needs_sizes_that_no_boxes_decide(shards: Path) -> None:
    with pytest.raises(ArgumentError, match=r"PadToBatch needs each image's size .*RandomIoUCrop"):
        loader_of(shards, T.RandomIoUCrop(), sizes=PadToBatch(8))


def test_masks_have_the_size_of_the_epoch(shards: Path) -> None:
    loader = loader_of(shards, T.RandomResizedCrop(T.ByEpoch({0: (24, 10), 1: 20, 2: (10, 24)})), num_workers=1)
    for epoch, size in enumerate([(24, 10), (20, 20), (10, 24)]):
        fixed = ShardDataset(shards, T.RandomResizedCrop(size), targets=TARGETS)
        for _, _, masks, _, _, index in loader:
            expected = [mask for _, _, mask, *_ in drawn_samples(fixed, SEED, epoch, index.tolist())]
            assert torch.equal(masks, torch.stack(expected))


def test_a_collate_fn_gets_masks_of_the_epochs_size(shards: Path) -> None:
    collate: Any = lambda samples: [tuple(sample[2].shape) for sample in samples]  # noqa: E731
    loader = loader_of(shards, T.RandomResizedCrop(T.ByEpoch({0: 12, 1: 20})), collate_fn=collate)
    assert [{shape for shapes in loader for shape in shapes} for _ in range(2)] == [{(12, 12)}, {(20, 20)}]


VARIABLE: list[tuple[Any, dict[str, Any]]] = [
    (bucketed(T.BUCKET), {"sizes": Buckets(sizes=[(16, 24), (24, 16)])}),
    (T.RandomResizedCrop(T.ByEpoch({0: 12, 1: 20})), {}),
    (T.Views([T.RandomResizedCrop(T.ByEpoch({0: 12, 1: 20})), T.CenterCrop(8)]), {}),
    (PADDED, {"sizes": PadToBatch(8)}),
]


@pytest.mark.parametrize(("recipe", "options"), VARIABLE, ids=["buckets", "epochs", "views", "padded"])
def test_masks_of_any_size_lie_in_the_slot(shards: Path, recipe: Any, options: dict[str, Any]) -> None:
    """A mask that came in a message would hold no slot."""
    iterator = iter(loader_of(shards, recipe, num_workers=1, prefetch_factor=2, **options))
    for _ in range(2):
        batch = next(iterator)
        masks = batch[3] if isinstance(options.get("sizes"), PadToBatch) else batch[2]
        del batch
        assert iterator.slots()["held"] == 1
        del masks
        assert iterator.slots()["held"] == 0


@pytest.mark.parametrize(("recipe", "options"), VARIABLE, ids=["buckets", "epochs", "views", "padded"])
def test_masks_count_against_the_memory_limit(shards: Path, recipe: Any, options: dict[str, Any]) -> None:
    given: dict[str, Any] = {
        "batch_size": 24,
        "num_workers": 1,
        "worker_options": WorkerOptions(memory_limit_bytes=100_000),
        **options,
    }
    assert len(list(DataLoader(ShardDataset(shards, recipe), **given))) == 1
    dataset = ShardDataset(shards, recipe, targets={"seg.png": T.Mask(dtype="int32")})
    with pytest.raises(ArgumentError, match=r"two batches of 24 images .* memory_limit_bytes is 100000"):
        list(DataLoader(dataset, **given))


VIEWS = T.Views(
    [WHOLE_PIXELS, T.Compose([T.RandomIoUCrop(), T.Resize((10, 12)), T.SanitizeBoundingBoxes()]), WHOLE_PIXELS]
)


@pytest.mark.parametrize("options", [*WAYS, {"backend": "dali", "num_workers": 1}], ids=str)
def test_each_view_has_targets_of_its_own_draws(shards: Path, options: dict[str, Any]) -> None:
    if options.get("backend") == "dali":
        pytest.importorskip("nvidia.dali", reason="DALI is not installed")
    loader = loader_of(shards, VIEWS, **options)
    for images, _, masks, boxes, points, index in loader:
        assert [mask.shape[1:] for mask in masks] == [(20, 28), (10, 12), (20, 28)]
        for view in (0, 2):
            expected = (masks[view] * SCALE).float()[:, None].expand(-1, 3, -1, -1)
            torch.testing.assert_close(images[view], expected, rtol=0, atol=0)
        assert not torch.equal(masks[0], masks[2])
        samples = drawn_samples(loader.dataset, SEED, 0, index.tolist())
        for row, (_, _, own_masks, own_boxes, own_points, _) in enumerate(samples):
            for view in range(3):
                assert torch.equal(masks[view][row], own_masks[view])
                same(boxes[view][row], own_boxes[view])
                same(points[view][row], own_points[view])
            assert own_boxes[0]["id"] == own_boxes[1]["id"] == int(index[row])


def test_views_of_changing_sizes_have_masks_of_these(shards: Path) -> None:
    growing = T.RandomResizedCrop(T.ByEpoch({0: 8, 1: 12}))
    loader = loader_of(shards, T.Views([growing, T.CenterCrop(6)]), num_workers=1)
    for size in (8, 12):
        for _, _, masks, *_ in loader:
            assert [mask.shape[1:] for mask in masks] == [(size, size), (6, 6)]


def test_a_collate_fn_gets_the_targets_of_each_view(shards: Path) -> None:
    collate: Any = lambda samples: samples  # noqa: E731
    for samples in loader_of(shards, VIEWS, collate_fn=collate, num_workers=1):
        for found, own in zip(
            samples, drawn_samples(loader_of(shards, VIEWS).dataset, SEED, 0, [s[5] for s in samples]), strict=True
        ):
            for view in range(3):
                assert torch.equal(found[2][view], own[2][view])
                same(found[3][view], own[3][view])


def test_targets_do_not_change_the_draws_of_the_image(shards: Path) -> None:
    recipe = T.Compose([T.RandomResizedCrop(16), T.RandomHorizontalFlip()])
    bare = DataLoader(ShardDataset(shards, recipe), 5, shuffle=True, seed=SEED)
    for with_targets, without in zip(loader_of(shards, recipe), bare, strict=True):
        np.testing.assert_array_equal(with_targets[0], without[0])


def test_the_example_of_the_docs_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_target_shards(tmp_path / "shards", 20)
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(block("docs/transforms.md", "T.RandomIoUCrop"), names)
    assert sum(map(len, (images for images, *_ in names["loader"]))) == 20
