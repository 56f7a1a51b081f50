"""Aspect-ratio buckets in the loader: sizes, order, resume on other ranks, and what models condition on."""

from __future__ import annotations

import hashlib
import io
import json
import pickle
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.utils.data
from PIL import Image

from feeder import transforms as T
from feeder.dataset.folder_reader import FolderReader
from feeder.dataset.folders import FolderDataset
from feeder.dataset.shards import ShardDataset
from feeder.errors import ArgumentError, DecodeError
from feeder.loader.dataloader import DataLoader
from feeder.loader.fast.batch_sizes import BatchSizes
from feeder.loader.options import ToDevice, WorkerOptions
from feeder.order.buckets import Buckets
from feeder.order.lanes import Lanes
from feeder.order.sample_order import Window
from feeder.transforms import Recipe
from tests.support.batches import copied_epoch, same_batches
from tests.support.loader_data import encode, write_shards, write_tree

SAMPLES = 93
IMAGES = [(24, 24), (20, 41), (44, 22), (30, 31), (18, 40), (25, 50), (33, 30)]
TURNED = (2, 5, 40)
BUCKETS = Buckets(sizes=[(16, 16), (12, 24), (24, 12)])
RECIPE = T.Compose([T.RandomResizedCrop(T.BUCKET), T.RandomHorizontalFlip()])


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_shards(tmp_path_factory.mktemp("shards"), SAMPLES, sizes=IMAGES, turned=TURNED)


def loader_of(shards: Path, recipe: Any = RECIPE, fields: Any = ("index",), **options: Any) -> DataLoader:
    given: dict[str, Any] = {"batch_size": 4, "shuffle": True, "seed": 5, "sizes": BUCKETS, **options}
    return DataLoader(ShardDataset(shards, recipe, fields=fields), **given)


def needs_dali(options: dict[str, Any]) -> None:
    if options.get("backend") == "dali":
        pytest.importorskip("nvidia.dali", reason="DALI is not installed")


def size_of(i: int) -> tuple[int, int]:
    """The bucket of a sample's image as it stands upright."""
    height, width = IMAGES[i % len(IMAGES)]
    return min(BUCKETS.sizes, key=lambda size: abs(np.log(size[0] / size[1] / (height / width))))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"num_workers": 2},
        {"num_workers": 2, "device": "cpu", "memory_format": torch.channels_last},
        {"backend": "pillow", "device": "cpu"},
        {"backend": "dali"},
        {"backend": "dali", "num_workers": 2, "memory_format": torch.channels_last},
    ],
    ids=str,
)
def test_batches_have_the_size_of_their_images_bucket(shards: Path, options: dict[str, Any]) -> None:
    needs_dali(options)
    loader = loader_of(shards, **options)
    for _ in range(2):  # slots are used again for batches of other sizes
        batches = copied_epoch(loader)
        assert sorted(i for _, _, index in batches for i in index.tolist()) == list(range(SAMPLES))
        full = sum(sum(size_of(i) == size for i in range(SAMPLES)) // 4 for size in BUCKETS.sizes)
        for _, labels, index in batches:
            assert labels.tolist() == [i % 7 for i in index.tolist()]
        for images, _, index in batches[:full]:
            assert {size_of(i) for i in index.tolist()} == {tuple(images.shape[2:])}
        assert {tuple(images.shape[2:]) for images, _, _ in batches[:full]} == set(BUCKETS.sizes)
    if "memory_format" in options:
        assert batches[0][0].is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize(
    "options",
    [{"num_workers": 2}, {"device": "cpu"}, {"device": "cpu", "num_workers": 1}, {"backend": "dali", "num_workers": 1}],
    ids=str,
)
@pytest.mark.parametrize(
    "rest",
    [
        [T.ToDtype(torch.float32, scale=True), T.Normalize([0.5] * 3, [0.2] * 3)],
        [T.RandomHorizontalFlip(), T.ColorJitter(0.4), T.ToDtype(torch.bfloat16), T.RandomErasing(1.0, value=1.0)],
        [T.ColorJitter(hue=0.3), T.ToDtype(torch.float16)],
    ],
)
def test_pixels_are_those_of_a_loader_with_that_fixed_size(shards: Path, rest: Any, options: dict[str, Any]) -> None:
    needs_dali(options)
    expected: dict[Any, torch.Tensor] = {}
    for size in BUCKETS.sizes:
        fixed = loader_of(shards, [T.RandomResizedCrop(size), *rest], batch_size=31, sizes=None, **options)
        for images, _, index in fixed:
            expected |= {(size, i): image.clone() for i, image in zip(index.tolist(), images, strict=True)}
    for images, _, index in loader_of(shards, [T.RandomResizedCrop(T.BUCKET), *rest], **options):
        for image, i in zip(images, index.tolist(), strict=True):
            assert torch.equal(image, expected[tuple(images.shape[2:]), i])


def test_workers_leave_floats_to_the_device(shards: Path) -> None:
    recipe = [T.RandomResizedCrop(T.BUCKET), T.ToDtype(torch.float32)]
    slot_bytes = 4096 + 4096
    loader = loader_of(
        shards, recipe, device="cpu", num_workers=1, worker_options=WorkerOptions(memory_limit_bytes=2 * slot_bytes)
    )
    assert {batch[0].dtype for batch in loader} == {torch.float32}
    with pytest.raises(ArgumentError, match="memory_limit_bytes"):  # four bytes a number
        next(
            iter(
                loader_of(
                    shards, recipe, num_workers=1, worker_options=WorkerOptions(memory_limit_bytes=2 * slot_bytes)
                )
            )
        )


def global_epoch(
    shards: Path, world_size: int, batch_size: int, state: Any = None, steps: int = 1000, **options: Any
) -> tuple[list[tuple[Any, ...]], list[dict[str, Any]], list[int]]:
    """The batches of all ranks side by side, their states after them, and what is padded."""
    loaders = [
        loader_of(shards, rank=rank, world_size=world_size, batch_size=batch_size, **options)
        for rank in range(world_size)
    ]
    iterators = []
    for loader in loaders:
        if state is not None:
            loader.load_state_dict(json.loads(json.dumps(state)))
        iterators.append(iter(loader))
    batches = []
    for _ in range(min(steps, len(iterators[0]))):
        parts = [next(iterator) for iterator in iterators]
        assert len({part[0].shape for part in parts}) == 1
        batches.append(tuple(torch.cat(columns) for columns in zip(*parts, strict=True)))
    padded = [i for loader in loaders for i in loader.stats()["padded"]]
    return batches, [loader.state_dict() for loader in loaders], padded


@pytest.mark.parametrize("options", [{}, {"num_workers": 2}, {"backend": "dali"}], ids=str)
def test_two_ranks_go_on_as_four_with_the_same_global_batch(shards: Path, options: dict[str, Any]) -> None:
    needs_dali(options)
    backend = options.get("backend", "cpu")
    unbroken, _, padded = global_epoch(shards, 2, 4, backend=backend)
    assert len(padded) == 1  # 93 samples, on two ranks
    for steps in (3, 9):
        before, states, _ = global_epoch(shards, 2, 4, steps=steps, backend=backend)
        assert states[0] == states[1]
        after, _, _ = global_epoch(shards, 4, 2, states[0], **{"backend": backend, **options})
        assert same_batches([*before, *after[:-1]], unbroken[:-1])
        assert set(after[-1][2].tolist()) == set(unbroken[-1][2].tolist())
        assert after[-1][0].shape[2:] == unbroken[-1][0].shape[2:]


def test_with_another_global_batch_each_remaining_sample_comes_once(shards: Path) -> None:
    before, states, _ = global_epoch(shards, 2, 4, steps=5)
    between, states, _ = global_epoch(shards, 1, 3, states[0], steps=6)
    after, _, padded = global_epoch(shards, 3, 2, states[0])
    seen = [i for batch in [*before, *between, *after] for i in batch[2].tolist()]
    assert sorted(seen) == sorted([*range(SAMPLES), *padded])
    assert len(padded) < 3


def test_state_says_what_was_consumed_of_each_bucket(shards: Path) -> None:
    loader = loader_of(shards)
    counts = [0, 0, 0]
    for step, (images, _, index) in enumerate(loader):
        counts[BUCKETS.sizes.index(tuple(images.shape[2:]))] += len(index)
        state = loader.state_dict()
        assert state["consumed"] == sum(counts)
        assert state["consumed_by_bucket"] == counts
        assert state["buckets"] == [[12, 24], [16, 16], [24, 12]]
        if step == 8:
            break
    fresh = loader_of(shards)
    fresh.set_epoch(3)
    assert fresh.state_dict()["consumed_by_bucket"] == [0, 0, 0]


def test_states_of_other_buckets_are_refused(shards: Path) -> None:
    loader = loader_of(shards)
    next(iter(loader))
    state = loader.state_dict()
    others = loader_of(shards, sizes=Buckets(sizes=[(16, 16), (12, 24)]))
    fixed = loader_of(shards, T.RandomResizedCrop(16), sizes=None)
    for other in (others, fixed):
        with pytest.raises(ArgumentError, match="its buckets is"):
            other.load_state_dict(state)
    with pytest.raises(ArgumentError, match="its buckets is None"):
        loader.load_state_dict(fixed.state_dict())
    for damaged in ([4, 0], [1, 1, 1], [-1, 5, 0], None, [4.0, 0, 0]):
        with pytest.raises(ArgumentError, match=r"damaged|consumed must"):
            loader.load_state_dict({**state, "consumed_by_bucket": damaged, "consumed": 4})
    with pytest.raises(ArgumentError, match="consumed must"):
        loader.load_state_dict({**state, "consumed_by_bucket": [0, 0, 60], "consumed": 60})


@pytest.mark.parametrize("backend", ["cpu", "dali"])
def test_substitutes_come_from_the_same_bucket(tmp_path: Path, backend: str) -> None:
    """With DALI also in place of images that only it finds to be bad."""
    needs_dali({"backend": backend})
    bad, cut = (1, 4, 8, 12, 21, 30), (11, 29)
    shards = write_shards(tmp_path, 60, sizes=IMAGES, bad=bad, cut=cut, jpegs=True)
    runs = []
    for workers in (0, 2):
        loader = loader_of(shards, batch_size=6, on_error="skip", num_workers=workers, backend=backend)
        runs.append((copied_epoch(loader), loader.stats()["substitutions"]))
    assert same_batches(runs[0][0], runs[1][0])
    found = {int(entry["key"]): entry["substitute"] for entry in runs[0][1]}
    assert sorted(found) == sorted(bad + cut)
    for i, substitute in found.items():
        assert size_of(i) == size_of(substitute)
    assert not {i for *_, index in runs[0][0] for i in index.tolist()} & set(bad + cut)


@pytest.mark.parametrize("options", [{}, {"num_workers": 2}, {"skip": [4]}], ids=str)
@pytest.mark.parametrize("bad", [(5,), (5, 8)], ids=["alone", "all"])
def test_a_bucket_without_a_good_image_takes_substitutes_of_the_nearest(
    tmp_path: Path, bad: tuple[int, ...], options: dict[str, Any]
) -> None:
    """The bad images are all that their bucket has; wide ones are nearer to it in aspect than tall ones."""
    buckets = Buckets(sizes=[(8, 16), (16, 20), (24, 12)])
    sizes = [(20, 40) if i in bad else (20, 26) if i % 3 else (40, 20) for i in range(12)]
    shards = write_shards(tmp_path, 12, sizes=sizes, bad=bad)
    loader = loader_of(shards, sizes=buckets, batch_size=2, on_error="skip", **options)
    batches = copied_epoch(loader)
    found = {int(each["key"]): each["substitute"] for each in loader.stats()["substitutions"]}
    assert sorted(found) == [*bad]
    left = [i for i in range(12) if i not in (*bad, *options.get("skip", ()))]
    assert {sizes[i] for i in found.values()} == {(20, 26)}
    assert sorted(i for *_, index in batches for i in index.tolist()) == sorted([*left, *found.values()])
    again = loader_of(shards, sizes=buckets, batch_size=2, on_error="skip", **options)
    assert same_batches(batches, copied_epoch(again))


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@pytest.mark.parametrize("flips_first", [False, True])
def test_crop_box_and_original_size_say_where_the_pixels_are_from(
    shards: Path, interpolation: str, flips_first: bool
) -> None:
    flip = T.RandomHorizontalFlip(1.0)
    resize, crop = T.Resize(T.BUCKET, interpolation, cover=True), T.RandomCrop(T.BUCKET)
    recipe = [resize, flip, crop] if flips_first else [resize, crop, flip]
    fields, options = ("index", "original_size", "crop_box"), {"fidelity": "exact", "num_workers": 1}
    loader = loader_of(shards, recipe, fields, sizes=Buckets(sizes=[(16, 16)]), **options)
    boxes = set()
    for images, _, index, original, box in loader:
        assert original.dtype == box.dtype == torch.int64
        for row, i in enumerate(index.tolist()):
            height, width = IMAGES[i % len(IMAGES)]
            assert original[row].tolist() == [height, width]
            top, left, box_height, box_width = box[row].tolist()
            assert (box_height, box_width) == tuple(images.shape[2:])
            scale = max(box_height / height, box_width / width)
            image: Image.Image = Image.open(io.BytesIO(encode(i, (height, width))))
            if i in TURNED:  # stored on its side: its gradient runs downwards
                stored = Image.open(io.BytesIO(encode(i, (width, height))))
                image = stored.transpose(Image.Transpose.ROTATE_270)
            kind = Image.Resampling[interpolation.upper()]
            whole = image.resize((int(width * scale + 1e-9), int(height * scale + 1e-9)), kind)
            window = np.asarray(whole.crop((left, top, left + box_width, top + box_height)))[:, ::-1]
            np.testing.assert_allclose(images[row].permute(1, 2, 0).numpy(), window, atol=2)
            boxes.add((top, left))
    assert len(boxes) > 12


def test_crop_box_of_a_resized_crop_is_in_pixels_of_the_resized_image(shards: Path) -> None:
    for images, _, index, box in loader_of(shards, RECIPE, ("index", "crop_box")):
        height, width = images.shape[2:]
        upright = np.array([IMAGES[i % len(IMAGES)] for i in index.tolist()])
        drawn = Recipe.of(RECIPE).at((height, width), 0).draw(5, 0, index.numpy(), upright)
        left, top, right, bottom = drawn.source_box.T
        expected = np.stack([top * height / (bottom - top), left * width / (right - left)], axis=1)
        np.testing.assert_allclose(box[:, :2].numpy(), expected, atol=0.5 + 1e-6)
        assert box[:, 2:].tolist() == [[height, width]] * len(index)


def test_fields_of_the_crop_are_there_without_buckets_too(shards: Path) -> None:
    dataset = ShardDataset(shards, T.CenterCrop(16), fields=("crop_box", "original_size"))
    image, _, box, size = dataset[2]  # 44x22, stored on its side
    assert image.shape == (3, 16, 16)
    assert box.tolist() == [14, 3, 16, 16]
    assert size.tolist() == [44, 22]
    with pytest.raises(ArgumentError, match="in no sample"):
        dataset.column("crop_box")


@pytest.mark.parametrize(
    "op",
    [
        T.RandomRotation(10),
        T.RandomAffine(10),
        T.RandomPerspective(),
        T.RandomApply([T.ColorJitter(0.1), T.RandomRotation(10)]),
        T.RandomChoice([T.RandomAffine(10), T.RandomGrayscale()]),
        T.RandAugment(),
        T.TrivialAugmentWide(),
        T.AutoAugment(),
        T.AugMix(),
    ],
    ids=lambda op: type(op).__name__,
)
def test_a_crop_box_is_refused_where_an_op_warps_the_image(shards: Path, op: T.Op) -> None:
    with pytest.raises(ArgumentError, match=r"'crop_box' is a window .*(Rotation|Affine|Perspective|Aug)"):
        ShardDataset(shards, [op, T.CenterCrop(16)], fields=("crop_box",))
    ShardDataset(shards, [op, T.CenterCrop(16)], fields=("original_size",))


def test_a_crop_box_is_refused_where_flips_are_drawn_by_another_op(shards: Path) -> None:
    op = T.RandomApply([T.RandomHorizontalFlip(), T.ColorJitter(0.1)])
    with pytest.raises(ArgumentError, match=r"what RandomApply draws: take RandomHorizontalFlip out of it"):
        ShardDataset(shards, [op, T.CenterCrop(16)], fields=("crop_box",))


def test_a_box_of_a_padded_crop_reaches_outside_of_the_image(shards: Path) -> None:
    dataset = ShardDataset(shards, T.RandomCrop(60, pad_if_needed=True), fields=("crop_box",))
    image, _, box = dataset[0]  # 24x24
    top, left, height, width = box.tolist()
    assert (height, width) == (60, 60)
    assert -36 <= top <= 0
    assert -36 <= left <= 0
    inside = np.asarray(Image.open(io.BytesIO(encode(0, (24, 24)))))
    window = image.permute(1, 2, 0).numpy()[-top : 24 - top, -left : 24 - left]
    np.testing.assert_array_equal(window, inside)


@pytest.mark.parametrize(
    ("recipe", "box"),
    [
        ([T.Pad(10)], (-10, -10, 44, 42)),
        ([T.Pad((1, 2, 3, 4))], (-2, -1, 30, 26)),
        ([T.Pad((1, 2, 3, 4)), T.CenterCrop(20)], (3, 2, 20, 20)),
        ([T.Pad((1, 2, 3, 4)), T.RandomHorizontalFlip(1.0), T.CenterCrop((20, 16))], (3, 4, 20, 16)),
        ([T.RandomHorizontalFlip(1.0), T.Pad((1, 2, 3, 4)), T.CenterCrop(20)], (3, 0, 20, 20)),
        ([T.RandomVerticalFlip(1.0), T.Pad((1, 2, 3, 4)), T.CenterCrop(20)], (1, 2, 20, 20)),
    ],
)
def test_a_box_is_counted_from_the_corner_of_the_image_without_its_padding(
    tmp_path: Path, recipe: list[T.Op], box: tuple[int, ...]
) -> None:
    path = write_shards(tmp_path, 1, sizes=[(24, 22)])
    _, _, found = ShardDataset(path, recipe, fields=("crop_box",))[0]
    assert tuple(found.tolist()) == box


@pytest.mark.parametrize("backend", ["cpu", "dali"])
def test_images_of_a_bucket_are_mixed(shards: Path, backend: str) -> None:
    recipe = T.Compose([T.RandomResizedCrop(T.BUCKET), T.ToDtype(torch.float32, scale=True)])
    needs_dali({"backend": backend})
    plain = copied_epoch(loader_of(shards, recipe, backend=backend))
    for op in (T.MixUp(), T.CutMix()):
        mixed = loader_of(shards, recipe, mix=op, num_workers=1, backend=backend)
        for (images, _, index), (found, (_, partners, share), same) in zip(plain, mixed, strict=True):
            assert index.tolist() == same.tolist()
            assert partners.tolist() == [i % 7 for i in index.roll(1).tolist()]
            if isinstance(op, T.MixUp):
                torch.testing.assert_close(found, share * images + (1 - share) * images.roll(1, 0))
            else:
                kept = (found == images).all(dim=1)
                assert ((found == images) | (found == images.roll(1, 0))).all()
                assert kept.float().mean() >= share - 1e-6


def test_slots_are_those_of_the_largest_bucket(shards: Path) -> None:
    slot = 4096 + 4 * 3 * 24 * 12 // 4096 * 4096 + 4096
    with pytest.raises(ArgumentError, match="images of 24x12"):
        next(iter(loader_of(shards, num_workers=1, worker_options=WorkerOptions(memory_limit_bytes=slot))))
    batches = copied_epoch(loader_of(shards, num_workers=1, worker_options=WorkerOptions(memory_limit_bytes=2 * slot)))
    assert sum(len(batch[0]) for batch in batches) == SAMPLES


def test_an_epoch_begins_anew_with_another_sequence_of_sizes(shards: Path) -> None:
    loader = loader_of(shards)
    sizes = [[tuple(batch[0].shape[2:]) for batch in loader] for _ in range(2)]
    assert sizes[0] != sizes[1]
    assert len(loader) == len(sizes[0]) == 24
    assert len(loader_of(shards, drop_last=True)) == 23


@pytest.mark.parametrize(
    ("recipe", "options", "message"),
    [
        (T.RandomResizedCrop(16), {}, "give T.BUCKET"),
        (RECIPE, {"sizes": None}, "sizes=feeder.Buckets"),
        (RECIPE, {"sizes": None, "collate_fn": list}, "sizes=feeder.Buckets"),
        (RECIPE, {"sizes": [(16, 16)]}, "must be a feeder.Buckets or a feeder.PadToBatch"),
        (T.Resize(T.BUCKET, cover=True), {}, "images of different sizes"),
        (T.Compose([T.RandomResizedCrop(T.BUCKET), T.Pad(1)]), {}, r"makes \(14, 26\) of bucket \(12, 24\)"),
        (RECIPE, {"collate_fn": list}, "collate_fn"),
        (RECIPE, {"shuffle": Window(8)}, "in place of Window"),
        (RECIPE, {"shuffle": Lanes()}, "in place of Lanes"),
        (RECIPE, {"sampler": range(8), "shuffle": None}, "so does a sampler"),
        (RECIPE, {"device": ToDevice("cpu", static_buffers=True)}, "static_buffers=True"),
        (RECIPE, {"batch_size": None, "shuffle": False}, "batch_size is None"),
    ],
)
def test_what_buckets_do_not_go_with_is_refused_by_name(
    shards: Path, recipe: Any, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ArgumentError, match=message):
        loader_of(shards, recipe, **options)


def test_a_bucket_is_no_size_outside_of_a_loader(shards: Path) -> None:
    dataset = ShardDataset(shards, RECIPE)
    with pytest.raises(ArgumentError, match="Buckets"):
        dataset[0]
    with pytest.raises(ArgumentError, match="Buckets"):
        next(iter(torch.utils.data.DataLoader(dataset, batch_size=4)))
    with pytest.raises(ArgumentError, match="sizes is for feeder's datasets"):
        DataLoader(torch.utils.data.TensorDataset(torch.zeros(4)), 2, sizes=BUCKETS)


def test_buckets_stay_those_that_the_loader_was_made_with(shards: Path) -> None:
    loader = loader_of(shards)
    with pytest.raises(ArgumentError, match="sizes can't be changed"):
        loader.sizes = None


@pytest.mark.parametrize("options", [{}, {"num_workers": 2, "on_error": "skip"}], ids=str)
def test_a_folder_has_the_batches_of_its_shards(tmp_path: Path, options: dict[str, Any]) -> None:
    """Its files are listed as the shards' samples are; two of them are no images."""
    bad = (4, 30) if options else ()
    shards = write_shards(tmp_path / "shards", 42, sizes=IMAGES, turned=TURNED, bad=bad)
    tree = write_tree(tmp_path / "tree", 42, sizes=IMAGES, turned=TURNED, bad=bad)
    found = DataLoader(FolderDataset(tree, RECIPE), 4, shuffle=True, seed=5, sizes=BUCKETS, **options)
    epochs = [copied_epoch(found) for _ in range(2)]
    plain = loader_of(shards, fields=(), **options)
    if bad:  # shards know the sizes of files that are damaged
        assert sorted(map(len, (batch[0] for batch in epochs[0]))) == [2, *[4] * 10]
        assert len(found.stats()["substitutions"]) == 2 * len(bad)
    else:
        for batch, expected in zip([*epochs[0], *epochs[1]], [*copied_epoch(plain), *copied_epoch(plain)], strict=True):
            assert torch.equal(batch[0], expected[0])
    part = torch.utils.data.Subset(FolderDataset(tree, RECIPE, exif_orientation="ignore"), range(0, 42, 2))
    for images, _ in DataLoader(part, 1, sizes=BUCKETS, **options):
        red = int(images[0, 0].float().mean().round())
        height, width = IMAGES[red % len(IMAGES)][:: -1 if red in TURNED else 1]
        assert tuple(images.shape[2:]) == BUCKETS.sizes[int(BUCKETS.nearest(np.array([[height, width]]))[0])]


def test_sizes_of_a_folder_are_read_once_and_must_stay(tmp_path: Path) -> None:
    tree = write_tree(tmp_path / "tree", 21, sizes=IMAGES)
    dataset = FolderDataset(tree, RECIPE, fields=["path"])
    loader = DataLoader(dataset, 3, sizes=BUCKETS)
    assert len(copied_epoch(loader)) == 7
    tree.rename(tmp_path / "away")
    assert len(DataLoader(dataset, 3, sizes=BUCKETS)) == 7
    (tmp_path / "away").rename(tree)
    Path(dataset.reader.field(5, "path")).write_bytes(encode(5, (90, 10)))
    state = loader.state_dict()
    with pytest.raises(DecodeError, match=r"has 10x90 pixels \(width x height\), and had .* when all sizes were read"):
        copied_epoch(loader)
    DataLoader(dataset, 3, sizes=BUCKETS).load_state_dict(state)
    with pytest.raises(ArgumentError, match="its image_sizes is"):  # the buckets are others
        DataLoader(FolderDataset(tree, RECIPE), 3, sizes=BUCKETS).load_state_dict(state)


def test_sizes_of_a_folder_take_five_bytes_a_sample(tmp_path: Path) -> None:
    """The files are missing: they count as 1x1."""
    samples = 1 << 16
    paths, starts = np.full(samples, ord("a"), np.uint8), np.arange(samples + 1, dtype=np.uint64)
    reader = FolderReader(str(tmp_path), paths, starts, np.zeros(samples, np.int64))
    empty = len(pickle.dumps(reader))
    reader.measure()
    assert len(pickle.dumps(reader)) - empty < 5.1 * samples
    tracemalloc.start()
    try:
        reader.measure()
        assert tracemalloc.get_traced_memory()[1] < 6 * samples
    finally:
        tracemalloc.stop()


def test_images_with_a_side_above_65535_keep_their_sizes(tmp_path: Path) -> None:
    tree = tmp_path / "tree/c"
    tree.mkdir(parents=True)
    shapes = [(3, 5), (2, 65_535), (70_000, 1), (7, 4)]
    for i, shape in enumerate(shapes):
        Image.fromarray(np.zeros(shape, np.uint8)).save(tree / f"{i}.png")
    reader = FolderDataset(tmp_path / "tree").reader
    for ids in ([0, 1], [2], [3]):
        reader.measure(np.array(ids))
    known = reader.stored(np.arange(4))
    assert known is not None
    assert known[1].tolist() == [*map(list, shapes)]
    assert known[1].dtype == np.int32
    assert reader.read(np.arange(4)).errors == [None] * 4


class SyntheticSizes:
    """A reader of images that are nowhere."""

    def __init__(self, samples: int) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return self.samples

    def measure(self, ids: Any = None) -> None:
        """All are known."""

    def stored(self, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return np.ones(len(ids), np.uint8), np.stack([1 + ids % 37, 1 + ids % 41], axis=1).astype(np.int32)

    def shard_sizes(self) -> np.ndarray:
        return np.zeros(0, np.int64)


def test_a_table_and_the_identity_of_its_sizes_take_four_bytes_a_sample() -> None:
    reader: Any = SyntheticSizes(1 << 20)
    tracemalloc.start()
    try:
        sizes = BatchSizes(reader, Recipe.of(RECIPE), 0, BUCKETS)
        table, identity = sizes.table(), sizes.identity()
        assert tracemalloc.get_traced_memory()[1] < (4 << 20) + (8 << 20)
    finally:
        tracemalloc.stop()
    assert table is not None
    assert len(table) == len(reader)
    whole = reader.stored(np.arange(len(reader)))[1]
    assert identity["image_sizes"] == hashlib.blake2b(whole.data, digest_size=8).hexdigest()
