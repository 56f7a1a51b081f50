"""Several images a sample: the further ones go through the same loader, with the same draws or their own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.utils.data

from feeder import transforms as T
from feeder.dataset.folders import FolderDataset
from feeder.dataset.shards import ShardDataset
from feeder.decoders.decoder import View
from feeder.decoders.registry import get_decoder
from feeder.errors import ArgumentError, DecodeError
from feeder.fields import Int
from feeder.loader.dataloader import DataLoader
from feeder.loader.fast.sample_maker import Work
from feeder.loader.options import ToDevice, WorkerOptions
from feeder.loader.slots.image_slots import Samples
from feeder.order.buckets import Buckets
from feeder.shard.source.target_sources import TargetSources
from feeder.shard.write.shard_options import ShardOptions
from feeder.shard.write.sharding import shard
from feeder.transforms.pad_to_batch import PadToBatch
from tests.support.documents import block
from tests.support.drawn_samples import drawn_samples
from tests.support.image_pairs import encoded_pixels, pair_pixels, write_pairs
from tests.support.loader_data import without_tables

SEED, COUNT = 5, 16
CUT = T.Compose([T.RandomResizedCrop((16, 20)), T.RandomHorizontalFlip()])
# Ops of every kind: warped, colors, noise.
ALL = T.Compose(
    [
        T.RandomResizedCrop((16, 20)),
        T.RandomRotation(20),
        T.ColorJitter(0.5, 0.5, 0.5, 0.2),
        T.RandomChoice([T.RandomInvert(1.0), T.GaussianBlur(3)]),
        T.TrivialAugmentWide(),
        T.ToDtype("float32", scale=True),
        T.RandomErasing(0.7, value="random"),
    ]
)
WAYS: list[dict[str, Any]] = [
    {},
    {"num_workers": 2},
    {"num_workers": 1, "device": "cpu", "memory_format": torch.channels_last},
    {"device": ToDevice("cpu", static_buffers=True)},
    {"backend": "pillow"},
    {"fidelity": "exact", "worker_options": WorkerOptions(threads=2), "num_workers": 1},
]
DALI: list[dict[str, Any]] = [{"backend": "dali"}, {"backend": "dali", "num_workers": 1}]


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_pairs(tmp_path_factory.mktemp("pairs"), COUNT)


@pytest.fixture(scope="module", params=["png", "jpg"])
def alike(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Shards whose pairs are two times the same image, and the right one's name."""
    folder = tmp_path_factory.mktemp("alike")
    return write_pairs(folder, COUNT, extension=request.param, alike=True), f"right.{request.param}"


def loader_of(path: Path, transform: Any, targets: Any, **options: Any) -> DataLoader[Any]:
    given: dict[str, Any] = {"batch_size": 6, "shuffle": True, "seed": SEED, **options}
    return DataLoader(ShardDataset(path, transform, ["index"], targets=targets), **given)


def right(**options: Any) -> dict[str, T.Image]:
    return {"right.png": T.Image(**options)}


def decoded(recipe: Any, ids: list[int], keys: list[int], epoch: int = 0, backend: str = "cpu") -> torch.Tensor:
    """Right images, drawn by keys and decoded alone."""
    recipe = T.Recipe.of(recipe)
    size = recipe.output_size
    assert size is not None
    draws = recipe.draw(SEED, epoch, keys, [(40, 56)] * len(ids))
    out = np.empty((len(ids), 3, *size), recipe.storage_dtype)
    buffers = [encoded_pixels(pair_pixels(1000 + i)) for i in ids]
    assert not any(get_decoder(backend).decode(buffers, np.ones(len(ids), np.uint8), [View(recipe, draws, out)]).errors)
    return torch.from_numpy(out)


@pytest.mark.pairwise
@pytest.mark.parametrize("transform", [CUT, ALL], ids=["cut", "all"])
@pytest.mark.parametrize("options", [*WAYS, *DALI], ids=str)
def test_the_same_draws_give_the_same_pixels(alike: tuple[Path, str], transform: Any, options: dict[str, Any]) -> None:
    if options.get("backend") == "dali":
        pytest.importorskip("nvidia.dali", reason="DALI is not installed")
    path, name = alike
    seen = set()
    for images, labels, others, index in loader_of(path, transform, {name: T.Image()}, **options):
        assert torch.equal(others, images)
        assert others.stride() == images.stride()
        assert labels.tolist() == [i % 5 for i in index.tolist()]
        seen |= set(index.tolist())
    assert seen == set(range(COUNT))


@pytest.mark.parametrize("options", [*WAYS, *DALI], ids=str)
def test_own_draws_are_those_of_a_key_of_their_own(pairs: Path, options: dict[str, Any]) -> None:
    if options.get("backend") == "dali":
        pytest.importorskip("nvidia.dali", reason="DALI is not installed")
    small = [T.RandomResizedCrop((8, 10)), T.RandomVerticalFlip(), T.ColorJitter(0.9), T.ToDtype("bfloat16")]
    loader = loader_of(pairs, CUT, right(draws="own", transform=small), **options)
    bare = DataLoader(ShardDataset(pairs, CUT), 6, shuffle=True, seed=SEED, **options)
    for epoch in range(2):
        for (images, _, others, index), (expected, _) in zip(loader, bare, strict=True):
            assert torch.equal(images, expected)
            assert others.dtype == torch.bfloat16
            ids = index.tolist()
            backend = "pillow" if options.get("backend") == "pillow" else "cpu"
            own = decoded(small, ids, [i + COUNT for i in ids], epoch, backend).view(torch.bfloat16)
            if not options.keys() & {"device", "fidelity"} and "dali" not in options.values():
                assert torch.equal(others, own)
            assert (others - own).abs().mean() < 3


def test_a_smaller_size_of_the_same_draws_shows_the_same_window(pairs: Path) -> None:
    half = [T.RandomResizedCrop((8, 10)), T.RandomHorizontalFlip()]
    for _, _, others, index in loader_of(pairs, CUT, right(transform=half), num_workers=1):
        assert torch.equal(others, decoded(half, index.tolist(), index.tolist()))
    path_of_itself = {"left.png": T.Image(transform=half)}
    for images, _, small, _ in loader_of(pairs, CUT, path_of_itself):
        reduced = torch.nn.functional.avg_pool2d(images.float(), 2)
        assert (reduced - small.float()).abs().mean() < 12


SMALL = T.Compose([T.RandomResizedCrop((8, 10), scale=(0.1, 0.3)), T.ColorJitter(0.5), T.ToDtype("bfloat16")])
VIEWS = T.Views([CUT, CUT, SMALL])


@pytest.mark.parametrize("options", [*WAYS, *DALI], ids=str)
def test_views_of_further_images_are_lists_beside_those_of_the_image(
    alike: tuple[Path, str], options: dict[str, Any]
) -> None:
    if options.get("backend") == "dali":
        pytest.importorskip("nvidia.dali", reason="DALI is not installed")
    path, name = alike
    loader = loader_of(path, VIEWS, {name: T.Image()}, **options)
    for images, labels, others, index in loader:
        assert isinstance(others, list)
        assert [view.shape[1:] for view in others] == [(3, 16, 20), (3, 16, 20), (3, 8, 10)]
        assert all(torch.equal(view, other) for view, other in zip(images, others, strict=True))
        assert all(view.stride() == other.stride() for view, other in zip(images, others, strict=True))
        assert labels.tolist() == [i % 5 for i in index.tolist()]
    images, _, others, _ = loader.dataset[3]
    assert all(torch.equal(view, other) for view, other in zip(images, others, strict=True))


@pytest.mark.parametrize("options", [*WAYS, *DALI], ids=str)
def test_views_of_further_images_have_draws_of_their_own(pairs: Path, options: dict[str, Any]) -> None:
    if options.get("backend") == "dali":
        pytest.importorskip("nvidia.dali", reason="DALI is not installed")
    targets = {"left.png": T.Image("own", CUT), **right(draws="own", transform=T.Views([CUT, SMALL]))}
    loader = loader_of(pairs, T.Views([CUT, CUT]), targets, **options)
    plain = DataLoader(ShardDataset(pairs, T.Views([CUT, CUT])), 6, shuffle=True, seed=SEED, **options)
    for (images, _, again, (first, second), index), (expected, _) in zip(loader, plain, strict=True):
        assert all(torch.equal(view, other) for view, other in zip(images, expected, strict=True))
        assert not torch.equal(again, images[0])
        assert (again.shape, second.dtype) == (first.shape, torch.bfloat16)
        if not options.keys() & {"device", "fidelity"} and options.get("backend") != "dali":
            ids = index.tolist()
            backend = options.get("backend", "cpu")
            assert torch.equal(first, decoded(CUT, ids, [i + 3 * COUNT for i in ids], backend=backend))
            bits = decoded(SMALL, ids, [i + 4 * COUNT for i in ids], backend=backend)
            assert torch.equal(second, bits.view(torch.bfloat16))


@pytest.mark.parametrize("options", [{}, {"num_workers": 2}, {"backend": "dali", "num_workers": 1}], ids=str)
def test_a_bad_image_replaces_all_views_of_both_images(tmp_path: Path, options: dict[str, Any]) -> None:
    if options.get("backend") == "dali":
        pytest.importorskip("nvidia.dali", reason="DALI is not installed")
    bad = without_tables(encoded_pixels(pair_pixels(7), "jpg"))
    path = write_pairs(tmp_path, COUNT, extension="jpg", right={7: bad}, alike=True)
    loader = loader_of(path, VIEWS, {"right.jpg": T.Image()}, on_error="skip", **options)
    for images, labels, others, index in loader:
        assert 7 not in index.tolist()
        assert all(torch.equal(view, other) for view, other in zip(images, others, strict=True))
        assert labels.tolist() == [i % 5 for i in index.tolist()]
    assert len(loader.stats()["substitutions"]) == 1


def test_a_collate_fn_gets_views_of_both_images(pairs: Path) -> None:
    loader = loader_of(pairs, VIEWS, right(), collate_fn=list, num_workers=1)
    for samples in loader:
        expected = drawn_samples(loader.dataset, SEED, 0, [sample[3] for sample in samples])
        for found, other in zip(samples, expected, strict=True):
            for k in (0, 2):
                assert all(torch.equal(view, same) for view, same in zip(found[k], other[k], strict=True))


def test_no_two_images_share_draws_of_their_own(pairs: Path) -> None:
    targets = {"right.png": T.Image("own"), "left.png": T.Image("own")}
    dataset = ShardDataset(pairs, CUT, targets=targets)
    ids, repeats = (each.reshape(-1) for each in np.meshgrid(np.arange(COUNT), np.arange(3)))
    samples = Samples(np.arange(len(ids)), ids, repeats)
    keys = Work(dataset.reader, dataset.recipe, "cpu", dataset.extras).keys(samples)
    assert len(np.unique(np.concatenate(keys))) == COUNT * 3 * 3
    image, _, _, itself = dataset[3]
    assert not torch.equal(image, itself)


def test_images_stand_in_the_slot_beside_each_other(pairs: Path) -> None:
    targets = {"right.png": T.Image("own", T.CenterCrop(8)), "left.png": T.Image()}
    dataset = ShardDataset(pairs, CUT, ["key"], targets=targets)
    layout = Work(dataset.reader, dataset.recipe, "cpu", dataset.extras).layout(4)
    assert [column.shape for column in layout.images] == [(3, 16, 20), (3, 8, 8), (3, 16, 20)]
    assert layout.further == ()


def test_images_come_in_the_order_of_targets_and_fields(pairs: Path) -> None:
    targets = {"right.png": T.Image(transform=T.Resize((4, 6))), "left.png": T.Image(transform=T.Resize((5, 7)))}
    loader = DataLoader(ShardDataset(pairs, CUT, {"key": None, "cls": Int()}, targets=targets), 4, num_workers=1)
    for images, labels, first, second, key, number in loader:
        assert (images.shape, first.shape, second.shape) == ((4, 3, 16, 20), (4, 3, 4, 6), (4, 3, 5, 7))
        assert (len(key), number.tolist()) == (4, labels.tolist())
    sample = loader.dataset[2]
    assert [tuple(value.shape) for value in (sample[0], *sample[2:4])] == [(3, 16, 20), (3, 4, 6), (3, 5, 7)]


@pytest.mark.parametrize("options", [{}, {"num_workers": 2}, {"backend": "dali", "num_workers": 1}], ids=str)
@pytest.mark.parametrize(
    ("given", "message"),
    [
        (None, "target 'right.png': the sample has no such member"),
        (b"no image", "target 'right.png': "),
        (encoded_pixels(pair_pixels(3))[:-60], "target 'right.png': "),
        (encoded_pixels(pair_pixels(3, (40, 48))), r"48x40 pixels \(width x height\), the sample's image 56x40.*'own'"),
    ],
    ids=["missing", "no image", "cut off", "another size"],
)
def test_a_bad_image_replaces_the_whole_sample_or_names_it(
    tmp_path: Path, given: bytes | None, message: str, options: dict[str, Any]
) -> None:
    if options.get("backend") == "dali":
        pytest.importorskip("nvidia.dali", reason="DALI is not installed")
    path = write_pairs(tmp_path, COUNT, right={7: given}, alike=True)
    loader = loader_of(path, CUT, right(), on_error="skip", **options)
    ids = []
    for images, labels, others, index in loader:
        assert torch.equal(images, others)
        assert labels.tolist() == [i % 5 for i in index.tolist()]
        ids += index.tolist()
    assert len(ids) == COUNT
    assert 7 not in ids
    assert len(loader.stats()["substitutions"]) == 1
    with pytest.raises(DecodeError, match=message) as caught:
        list(loader_of(path, CUT, right(), **options))
    assert caught.value.key == "0007"
    with pytest.raises(DecodeError, match=message) as caught:
        loader.dataset[7]
    assert caught.value.key == "0007"


@pytest.mark.parametrize("options", [{}, {"num_workers": 1}, *DALI], ids=str)
def test_an_image_that_only_decoding_shows_to_be_bad_is_named(tmp_path: Path, options: dict[str, Any]) -> None:
    if options.get("backend") == "dali":
        pytest.importorskip("nvidia.dali", reason="DALI is not installed")
    bad = without_tables(encoded_pixels(pair_pixels(7), "jpg"))
    path = write_pairs(tmp_path, COUNT, extension="jpg", right={7: bad}, alike=True)
    targets = {"right.jpg": T.Image()}
    with pytest.raises(DecodeError, match=r"target 'right\.jpg': ") as caught:
        list(loader_of(path, CUT, targets, **options))
    assert caught.value.key == "0007"
    loader = loader_of(path, CUT, targets, on_error="skip", **options)
    for images, labels, others, index in loader:
        assert 7 not in index.tolist()
        assert torch.equal(images, others)
        assert labels.tolist() == [i % 5 for i in index.tolist()]
    assert len(loader.stats()["substitutions"]) == 1


def test_ops_that_do_not_look_at_the_size_draw_the_same_for_images_of_other_sizes(tmp_path: Path) -> None:
    """As torchvision v2: flips, colors and resizes do, crops are refused."""
    rest = [T.RandomHorizontalFlip(), T.RandomVerticalFlip(), T.RandomRotation(30), T.ColorJitter(0.5)]
    large = {i: encoded_pixels(pair_pixels(i).repeat(2, axis=0).repeat(2, axis=1)) for i in range(8)}
    path = write_pairs(tmp_path, 8, right=large)
    half = right(transform=[T.Resize((80, 112)), *rest])
    for recipe, targets in (([T.Resize((40, 56)), *rest], right()), ([T.Resize((80, 112)), *rest], half)):
        for options in ({}, {"num_workers": 1}):
            ((images, _, others, _),) = loader_of(path, recipe, targets, batch_size=8, **options)
            assert images.shape == others.shape
            assert (images.float() - others.float()).abs().mean() < 12  # one of them was resized
            dataset = ShardDataset(path, recipe, targets=targets)
            image, _, other = dataset[3]
            assert (image.float() - other.float()).abs().mean() < 12
    refused: dict[str, Any] = {"RandomResizedCrop": CUT}
    refused["RandomAffine"] = [T.Resize((8, 8)), T.RandomApply([T.RandomAffine(5)])]
    for name, transform in refused.items():
        with pytest.raises(
            DecodeError, match=f"'right.png': this image has 112x80 .* 56x40, and {name} draws the same"
        ):
            list(loader_of(path, transform, right()))


def test_an_image_of_another_size_has_own_draws(tmp_path: Path) -> None:
    path = write_pairs(tmp_path, 3, right={1: encoded_pixels(pair_pixels(9, (80, 24)))})
    ((_, _, others, _),) = loader_of(path, CUT, right(draws="own"))
    assert others.shape == (3, 3, 16, 20)


@pytest.mark.parametrize("exif", ["apply", "ignore"])
def test_each_image_is_turned_by_its_own_orientation(tmp_path: Path, exif: str) -> None:
    stored = pair_pixels(0)  # what the left image shows, on its side
    on_its_side = np.ascontiguousarray(np.rot90(stored))
    path = write_pairs(tmp_path, 1, right={0: encoded_pixels(on_its_side, orientation=6)})
    dataset = ShardDataset(path, None, exif_orientation=exif, targets=right(draws="own"))
    image, _, other = dataset[0]
    expected = image if exif == "apply" else torch.from_numpy(on_its_side.copy()).permute(2, 0, 1)
    assert torch.equal(other, expected)
    same = ShardDataset(path, None, exif_orientation=exif, targets=right())
    if exif == "apply":
        assert torch.equal(same[0][2], image)
    else:
        assert torch.equal(same[0][2], expected)
        with pytest.raises(DecodeError, match="of one size only, as in torchvision v2"):
            ShardDataset(path, CUT, exif_orientation=exif, targets=right())[0]


@pytest.mark.parametrize("draws", ["same", "own"])
def test_a_resumed_epoch_has_the_same_images(pairs: Path, draws: str) -> None:
    whole = list(loader_of(pairs, ALL, right(draws=draws)))
    loader = loader_of(pairs, ALL, right(draws=draws))
    iterator = iter(loader)
    next(iterator)
    state = json.loads(json.dumps(loader.state_dict()))
    resumed = loader_of(pairs, ALL, right(draws=draws), num_workers=1)
    resumed.load_state_dict(state)
    for found, expected in zip(resumed, whole[1:], strict=True):
        assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


def test_repeats_of_a_sample_are_drawn_anew_for_both_images(tmp_path: Path) -> None:
    path = write_pairs(tmp_path, 4, alike=True)
    for draws, is_same in (("same", True), ("own", False)):
        ((images, _, others, _),) = loader_of(path, CUT, right(draws=draws), shuffle=None, sampler=[2] * 6)
        assert torch.equal(images, others) is is_same
        assert len({image.numpy().tobytes() for image in others}) == 6


@pytest.mark.parametrize("backend", ["cpu", "dali"])
def test_sizes_follow_buckets_epochs_and_padding(tmp_path: Path, backend: str) -> None:
    if backend == "dali":
        pytest.importorskip("nvidia.dali", reason="DALI is not installed")
    one: dict[str, Any] = {"backend": backend, "num_workers": 1}
    path, name = write_pairs(tmp_path, COUNT, extension="jpg", alike=True), "right.jpg"
    bucket = [T.Resize(T.BUCKET, cover=True), T.RandomCrop(T.BUCKET)]
    two = Buckets(sizes=[(16, 24), (24, 16)])
    for images, _, others, _ in loader_of(path, bucket, {name: T.Image()}, sizes=two, backend=backend):
        assert torch.equal(images, others)
    fixed = {name: T.Image("own", T.Resize((5, 6)))}
    for images, _, others, _ in loader_of(path, bucket, fixed, sizes=Buckets(sizes=[(16, 24)]), **one):
        assert (images.shape[2:], others.shape[2:]) == ((16, 24), (5, 6))
    for images, _, sizes, others, _ in loader_of(
        path, T.RandomShortestSize([12, 18]), fixed, sizes=PadToBatch(8), **one
    ):
        assert (len(images), others.shape[2:]) == (len(sizes), (5, 6))
    repeated = {"shuffle": None, "sampler": [2] * 6, "sizes": PadToBatch(1), **one}
    for seed in range(4):
        shorter = T.RandomShortestSize([8, 16, 32, 64])
        ((images, _, sizes, *_),) = loader_of(path, shorter, fixed, **{**repeated, "seed": seed})
        assert images.shape[2:] == tuple(sizes.max(0).values.tolist())
    growing = T.RandomResizedCrop(T.ByEpoch({0: 8, 1: 12}))
    pairs = (growing, {name: T.Image()}), (CUT, {name: T.Image(transform=growing)})
    same, own = (loader_of(path, *each, **one) for each in pairs)
    for size in (8, 12):
        for (images, _, others, _), (_, _, alone, _) in zip(same, own, strict=True):
            assert others.shape[2:] == alone.shape[2:] == (size, size)
            assert torch.equal(images, others)
    assert own.state_dict()["sizes_by_epoch"] == [[[0, [8, 8]], [1, [12, 12]]]]


def test_a_collate_fn_gets_images_of_sizes_of_their_own(pairs: Path) -> None:
    for own in (T.Resize(20), None):
        collate: Any = lambda samples: samples  # noqa: E731
        loader = loader_of(pairs, T.RandomResizedCrop(9) if own else None, right(transform=own), collate_fn=collate)
        assert loader.path == "fast"
        for samples in loader:
            expected = drawn_samples(loader.dataset, SEED, 0, [sample[3] for sample in samples])
            for found, other in zip(samples, expected, strict=True):
                assert torch.equal(found[0], other[0])
                assert torch.equal(found[2], other[2])


@pytest.mark.filterwarnings("ignore:this loader runs torch's path")
def test_torchs_loader_and_single_samples_have_both_images(tmp_path: Path) -> None:
    dataset = ShardDataset(write_pairs(tmp_path, 8, alike=True), CUT, targets=right())
    for batch in torch.utils.data.DataLoader(dataset, batch_size=4):
        assert torch.equal(batch[0], batch[2])
    for image, _, other in DataLoader(dataset, batch_size=None):
        assert torch.equal(image, other)
    image, _, other = dataset[3]
    assert torch.equal(image, other)
    assert dataset.column("right.png")[2] == encoded_pixels(pair_pixels(2))
    assert "targets={'right.png': Image(draws='same')}" in repr(dataset)


def test_what_further_images_do_not_go_with_is_refused_by_name(pairs: Path) -> None:
    for transform, targets, options, message in (
        (T.Views([CUT] * 2), right(transform=CUT), {}, "makes 1 view, and the dataset's 2 views"),
        (CUT, right(transform=T.Views([CUT] * 2)), {}, "makes 2 views, and the dataset's 1 view"),
        (T.Views([CUT]), right(), {"mix": T.MixUp()}, "not the target 'right.png'"),
        (CUT, right(), {"mix": T.MixUp()}, "not the target 'right.png'"),
        (CUT, right(transform=[T.RandomResizedCrop(T.BUCKET)]), {}, "'right.png' has T.BUCKET"),
        (CUT, {"boxes.json": T.BoundingBoxes(), **right(transform=[T.RandomIoUCrop()])}, {}, "RandomIoUCrop"),
        (CUT, right(transform=[CUT, T.SanitizeBoundingBoxes()]), {}, "SanitizeBoundingBoxes is in the recipe"),
        (CUT, {"down.png": T.Image()}, {}, "'down.png' is in no sample"),
        (CUT, right(transform=T.Resize(9)), {"on_error": "skip"}, "images of target 'right.png' have sizes of their"),
        (T.Resize(9), right(), {"sizes": PadToBatch(8)}, "images of target 'right.png' have sizes of their own"),
        (
            [T.RandomResizedCrop(T.BUCKET)],
            right(transform=[T.Resize(T.BUCKET), T.Pad(1)]),
            {"sizes": Buckets(sizes=[(8, 8)])},
            r"the transform of a T.Image makes \(10, 10\)",
        ),
    ):
        with pytest.raises(ArgumentError, match=message):
            loader_of(pairs, transform, targets, **options)
    with pytest.raises(ArgumentError, match="draws must be one of same, own, got 'both'"):
        T.Image("both")
    with pytest.raises(ArgumentError, match="Views stands"):
        T.Image(transform=[T.Views([CUT])])


def test_the_example_of_the_docs_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_pairs(tmp_path / "shards", 20)
    monkeypatch.chdir(tmp_path)
    exec(block("docs/transforms.md", "T.Image(draws"), {})


def test_a_folder_has_pairs_beside_each_other(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    for i in range(3):
        (tmp_path / "a" / f"{i}.jpg").write_bytes(encoded_pixels(pair_pixels(i), "jpg"))
        (tmp_path / "a" / f"{i}.right.jpg").write_bytes(encoded_pixels(pair_pixels(i), "jpg"))
    dataset = FolderDataset(tmp_path, CUT, ["key"], targets={"right.jpg": T.Image()})
    assert [dataset[i][3] for i in range(len(dataset))] == ["a/0.jpg", "a/1.jpg", "a/2.jpg"]
    ((images, _, others, _),) = DataLoader(dataset, 3)
    assert torch.equal(images, others)


def test_trees_of_pairs_are_sharded_and_cut_alike(tmp_path: Path) -> None:
    for folder in ("left", "right"):
        (tmp_path / folder).mkdir()
        for i in range(3):
            data = encoded_pixels(pair_pixels(i, (120, 160)), "jpg")
            (tmp_path / folder / f"{i}.jpg").write_bytes(data)
    source = TargetSources(pairs=(("right", str(tmp_path / "right")),))
    shard(str(tmp_path / "left"), str(tmp_path / "out"), ShardOptions(targets=source))
    # Of the left images only some rows are read, of the right ones all.
    dataset = ShardDataset(tmp_path / "out", T.RandomCrop((24, 30)), targets={"right.jpg": T.Image()})
    ((images, _, others),) = DataLoader(dataset, 3)
    assert torch.equal(images, others)
