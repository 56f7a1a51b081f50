"""feeder.Encoded in the samples of any dataset: the pixels of feeder's own datasets, in feeder's draws."""

from __future__ import annotations

import collections
import copy
import itertools
import json
import pickle
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import (
    ConcatDataset,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Subset,
    WeightedRandomSampler,
)

import feeder
from feeder import transforms as T
from feeder.decoders.registry import available_decoders
from feeder.errors import ArgumentError, DecodeError
from feeder.loader.options import ImageOptions
from tests.support.images import encode, pixels
from tests.support.loader_data import without_tables

CROPS = T.Compose([T.RandomResizedCrop(20), T.RandomHorizontalFlip()])
NORMALIZED = T.Compose([*CROPS.transforms, T.ToDtype(torch.float32, scale=True), T.Normalize((0.5,) * 3, (0.2,) * 3)])
BLURRED = T.Compose([T.Resize((18, 22)), T.RandomRotation(20), T.ColorJitter(0.4), T.ToDtype(torch.bfloat16)])
GRAY = T.Compose([*CROPS.transforms, T.Grayscale()])


def every_second(image: Any) -> Any:
    return image[:, ::2, ::2].astype(np.int32)


HALVED = T.Compose([*CROPS.transforms, T.Lambda(every_second, keeps_shape=False)])
GROWING = T.Compose([T.RandomResizedCrop(T.ByEpoch({0: 16, 1: 24}))])
COUNT = 24
Pair = collections.namedtuple("Pair", ["image", "number"])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images of all orientations and several formats, no two of one size."""
    found = tmp_path_factory.mktemp("images") / "a"
    found.mkdir()
    for i in range(COUNT):
        image = pixels(i, 60 + 3 * i, 90 - 2 * i)
        kind, options = ("PNG", {}) if i % 8 == 5 else ("JPEG", {"quality": 95, "orientation": 1 + i % 8})
        (found / f"{i:02d}.{kind.lower()}").write_bytes(encode(image, kind, **options))
    return found.parent


class Images(Dataset[Any]):
    """The files of a folder by a function of (path, index), which makes a sample."""

    def __init__(self, folder: Path, make: Callable[[str, int], Any]) -> None:
        self.paths = [str(path) for path in sorted((folder / "a").iterdir())]
        self.make = make

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, i: int) -> Any:
        return self.make(self.paths[i], i)


class Several(Images):
    """Samples that are made several at once; ``lost`` of them are not."""

    lost = 0

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        return [self[i] for i in indices[self.lost :]]


def plain(path: str, i: int) -> Any:
    return feeder.Encoded(path, CROPS), i


def normalized(path: str, i: int) -> Any:
    return feeder.Encoded(path, NORMALIZED), i


def blurred(path: str, i: int) -> Any:
    return feeder.Encoded(path, BLURRED), i


def gray(path: str, i: int) -> Any:
    return feeder.Encoded(path, GRAY), i


def halved(path: str, i: int) -> Any:
    return feeder.Encoded(path, HALVED), i


def growing(path: str, i: int) -> Any:
    return feeder.Encoded(path, GROWING), i


def as_bytes(path: str, i: int) -> Any:
    data = Path(path).read_bytes()
    kinds: list[Any] = [data, bytearray(data), memoryview(data), np.frombuffer(data, np.uint8)]
    return feeder.Encoded(kinds[i % 4], CROPS), i


def nested(path: str, i: int) -> Any:
    views = [feeder.Encoded(path, CROPS), feeder.Encoded(path, CROPS)]
    return {"views": views, "pair": Pair(feeder.Encoded(path, BLURRED), float(i)), "name": f"{i}"}


def uneven(path: str, i: int) -> Any:
    return feeder.Encoded(path, T.Resize(16)), i


def epochs(loader: Any, count: int = 1) -> list[list[tuple[torch.Tensor, list[int]]]]:
    return [[(images.clone(), ids.tolist()) for images, ids in loader] for _ in range(count)]


def same(a: Any, b: Any) -> bool:
    return len(a) == len(b) and all(i == j and torch.equal(x, y) for (x, i), (y, j) in zip(a, b, strict=True))


def by_index(batches: Any) -> dict[int, torch.Tensor]:
    return {i: image for images, ids in batches for image, i in zip(images, ids, strict=True)}


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("make", [plain, normalized, blurred, growing, gray, halved, as_bytes])
def test_pixels_are_those_of_feeders_own_datasets(folder: Path, make: Any, workers: int) -> None:
    recipes = {normalized: NORMALIZED, blurred: BLURRED, growing: GROWING, gray: GRAY, halved: HALVED}
    recipe = recipes.get(make, CROPS)
    own = feeder.FolderDataset(folder, recipe, fields=["index"])
    expected = feeder.DataLoader(own, batch_size=5, seed=7)
    loader = feeder.DataLoader(Images(folder, make), batch_size=5, seed=7, num_workers=workers)
    for _ in range(2):
        for (images, numbers), (others, _, ids) in zip(loader, expected, strict=True):
            assert (images.shape, images.dtype) == (others.shape, others.dtype)
            assert torch.equal(images, others)
            assert torch.equal(numbers, ids)


@pytest.mark.parametrize("backend", ["cpu", "pillow", "dali"])
def test_a_backend_is_the_one_that_was_asked_for(folder: Path, backend: str) -> None:
    if backend not in available_decoders():
        pytest.skip(f"backend {backend!r} is not installed")
    own = feeder.FolderDataset(folder, CROPS, fields=["index"])
    expected = feeder.DataLoader(own, batch_size=6, seed=7, backend=backend)
    loader = feeder.DataLoader(Images(folder, plain), batch_size=6, seed=7, num_workers=1, backend=backend)
    for (images, _), (others, _, _) in zip(loader, expected, strict=True):
        assert torch.equal(images, others)


def test_backends_on_a_gpu_are_refused_with_those_to_take() -> None:
    with pytest.raises(ArgumentError, match=r"'cuda' decodes on a GPU for feeder's own .* take backend='cpu'"):
        feeder.DataLoader([1], backend="cuda")
    for backend in ("dali", feeder.Dali(0.5)):
        ImageOptions(backend, "fast", 1, False, (), torch.device("cpu"))
        with pytest.raises(ArgumentError, match="'dali' without device='cuda'"):
            ImageOptions(backend, "fast", 1, False, (), torch.device("cuda"))
    with pytest.raises(ArgumentError, match="backend must be"):
        feeder.DataLoader([1], backend="magic")


def test_draws_do_not_depend_on_workers_batches_or_ranks(folder: Path) -> None:
    dataset = Images(folder, plain)
    first, second = map(by_index, epochs(feeder.DataLoader(dataset, batch_size=4, seed=3), 2))
    assert not any(torch.equal(first[i], second[i]) for i in range(COUNT))

    for workers, persistent in ((1, False), (3, True)):
        options: Any = {"num_workers": workers, "persistent_workers": persistent, "shuffle": True}
        found = epochs(feeder.DataLoader(dataset, batch_size=7, seed=3, **options), 2)
        assert all(torch.equal(by_index(found[0])[i], first[i]) for i in range(COUNT))
        assert all(torch.equal(by_index(found[1])[i], second[i]) for i in range(COUNT))

    for rank in range(2):
        sampler: Any = DistributedSampler(dataset, 2, rank)
        loader = feeder.DataLoader(dataset, batch_size=5, seed=3, sampler=sampler)
        loader.set_epoch(1)
        half = by_index(epochs(loader)[0])
        assert len(half) == COUNT // 2
        assert all(torch.equal(image, second[i]) for i, image in half.items())


def test_without_a_seed_draws_follow_torchs_random_state_and_leave_it_alone(folder: Path) -> None:
    def runs(cls: Any, make: Any) -> Any:
        torch.manual_seed(5)
        loaders = [cls(Images(folder, make), batch_size=8, shuffle=True) for _ in range(2)]
        return [epochs(loader)[0] for loader in loaders]

    one, again = (runs(feeder.DataLoader, plain) for _ in range(2))
    assert all(map(same, one, again))
    torchs = runs(torch.utils.data.DataLoader, lambda path, i: (torch.zeros(1), i))
    assert [[ids for _, ids in run] for run in one] == [[ids for _, ids in run] for run in torchs]
    assert not any(torch.equal(by_index(one[0])[i], by_index(one[1])[i]) for i in range(COUNT))


@pytest.mark.parametrize(("before", "after"), [(0, 2), (2, 0), (2, 3), (0, 0)])
@pytest.mark.parametrize("seed", [None, 4])
def test_a_resumed_epoch_has_the_same_crops(folder: Path, before: int, after: int, seed: int | None) -> None:
    options: Any = {"batch_size": 5, "shuffle": True, "seed": seed}
    loader = feeder.DataLoader(Images(folder, plain), num_workers=before, **options)
    epochs(loader)
    iterator = iter(loader)
    for _ in range(2):
        next(iterator)
    state = loader.state_dict()
    rest = [(images.clone(), ids.tolist()) for images, ids in iterator]
    at_end = loader.state_dict()
    following = epochs(loader)[0]

    resumed = feeder.DataLoader(Images(folder, plain), num_workers=after, **options)
    resumed.load_state_dict(state)
    assert same(epochs(resumed)[0], rest)
    assert same(epochs(resumed)[0], following)

    resumed.load_state_dict(at_end)
    assert same(epochs(resumed)[0], following)


def test_a_state_has_seed_and_epoch_as_numbers(folder: Path) -> None:
    loader = feeder.DataLoader(Images(folder, plain), batch_size=5, seed=9)
    loader.set_epoch(3)
    next(iter(loader))
    draws = loader.state_dict()["_snapshot"]["_main_snapshot"]["_draws"]
    assert json.loads(json.dumps(draws)) == {"seed": 9, "epoch": 3}


@pytest.mark.parametrize("kind", ["replacement", "weighted", "batches"])
def test_an_index_that_comes_again_gets_another_crop_and_resumes(folder: Path, kind: str) -> None:
    dataset = Subset(Images(folder, plain), [4])

    def loader(workers: int) -> Any:
        options: Any = {"seed": 2, "num_workers": workers}
        if kind == "batches":
            return feeder.DataLoader(dataset, batch_sampler=[[0, 0], [0], [0, 0, 0]], **options)
        sampler: Any = WeightedRandomSampler([1.0], 6) if kind == "weighted" else RandomSampler(dataset, True, 6)
        return feeder.DataLoader(dataset, batch_size=2, sampler=sampler, **options)

    run = loader(0)
    iterator = iter(run)
    crops = [next(iterator)[0].clone()]
    state = run.state_dict()
    crops += [images.clone() for images, _ in iterator]
    every = torch.cat(crops)
    assert len(every) == 6
    assert not any(torch.equal(a, b) for a, b in itertools.combinations(every, 2))

    resumed = loader(2)
    resumed.load_state_dict(state)
    assert torch.equal(torch.cat([images for images, _ in resumed]), torch.cat(crops[1:]))


@pytest.mark.parametrize("workers", [0, 1])
def test_images_of_a_sample_stay_in_their_places_and_draw_each_for_itself(folder: Path, workers: int) -> None:
    batch = next(iter(feeder.DataLoader(Images(folder, nested), batch_size=6, seed=1, num_workers=workers)))
    first, second = batch["views"]
    assert first.shape == second.shape == (6, 3, 20, 20)
    assert not any(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert type(batch["pair"]) is Pair
    assert batch["pair"].image.shape == (6, 3, 18, 22)
    assert batch["pair"].image.dtype == torch.bfloat16
    assert batch["pair"].number.tolist() == list(map(float, range(6)))
    assert batch["name"] == list("012345")

    single = next(iter(feeder.DataLoader(Images(folder, plain), batch_size=6, seed=1)))[0]
    assert torch.equal(first, single)


def test_whole_batches_are_decoded_where_the_loader_hands_them_out(folder: Path) -> None:
    loader = feeder.DataLoader(
        Images(folder, lambda path, i: (feeder.Encoded(path, T.Resize((90, 90))), i)),
        4,
        num_workers=1,
        prefetch_factor=1,
        multiprocessing_context="fork",
    )
    size = sum(images.nbytes for images, _ in loader)
    assert loader.stats()["stages"]["write"]["bytes"] < size / 2  # all but the first, for which there are no slots


def _listed(samples: list[Any]) -> Any:
    assert all(type(image) is torch.Tensor for image, _ in samples)
    return [image for image, _ in samples], [i for _, i in samples]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_collate_function_gets_tensors_also_of_different_sizes(folder: Path, workers: int) -> None:
    def first(samples: list[Any]) -> list[Any]:
        return [image for image, *_ in samples]

    for make, recipe in ((plain, CROPS), (uneven, T.Resize(16))):
        expected = feeder.DataLoader(feeder.FolderDataset(folder, recipe), batch_size=6, seed=7, collate_fn=first)
        options: Any = {"seed": 7, "num_workers": workers, "collate_fn": _listed}
        loader = feeder.DataLoader(Images(folder, make), batch_size=6, **options)
        for (images, _), others in zip(loader, expected, strict=True):
            assert all(map(torch.equal, images, others))


@pytest.mark.parametrize("workers", [0, 1])
def test_different_sizes_in_a_batch_are_an_error_that_names_both(folder: Path, workers: int) -> None:
    named = r"/02.jpeg has another size than .*/00.jpeg after the transform, \d+x16 and \d+x\d+ .*CenterCrop"
    for cls in (feeder.DataLoader, torch.utils.data.DataLoader):
        dataset = Subset(Images(folder, uneven), [0, 2])
        with pytest.raises(ArgumentError, match=named.replace(r"\d+x16", r"\d+x\d+")):
            next(iter(cls(dataset, batch_size=2, num_workers=workers)))


def test_single_samples_are_not_stacked(folder: Path) -> None:
    expected = by_index(epochs(feeder.DataLoader(Images(folder, plain), batch_size=8, seed=1))[0])
    for workers in (0, 2):
        loader = feeder.DataLoader(Images(folder, plain), batch_size=None, seed=1, num_workers=workers)
        assert all(torch.equal(image, expected[i]) for image, i in loader)


def test_datasets_that_make_several_samples_at_once(folder: Path) -> None:
    expected = epochs(feeder.DataLoader(Images(folder, plain), batch_size=8, seed=1))[0]
    dataset = Several(folder, plain)
    assert same(epochs(feeder.DataLoader(dataset, batch_size=8, seed=1))[0], expected)
    joined: Any = ConcatDataset([Subset(dataset, range(9)), Subset(dataset, range(9, COUNT))])
    assert same(epochs(feeder.DataLoader(joined, batch_size=8, seed=1))[0], expected)
    dataset.lost = 1
    with pytest.raises(ArgumentError, match="__getitems__ gave 7 samples for 8 indices"):
        next(iter(feeder.DataLoader(dataset, batch_size=8)))


def test_an_index_may_be_text(folder: Path) -> None:
    class Named(Images):
        def __getitem__(self, key: Any) -> Any:
            return super().__getitem__(int(key))

    keys: Any = [str(i) for i in range(4)]
    found = [epochs(feeder.DataLoader(Named(folder, plain), 2, sampler=keys, seed=1, num_workers=n)) for n in (0, 1)]
    assert same(found[0][0], found[1][0])


class Broken(Images):
    """Some files are lost, and some can't be decoded."""

    lost: tuple[int, ...] = (3, 9)
    damaged: tuple[int, ...] = (5,)

    def __getitem__(self, i: int) -> Any:
        path = self.paths[i]
        if i in self.lost:
            return feeder.Encoded(f"{path}.lost", CROPS), i
        data = Path(path).read_bytes()
        return feeder.Encoded(without_tables(data) if i in self.damaged else data, CROPS), i


@pytest.mark.parametrize("workers", [0, 2])
def test_a_bad_image_is_an_error_that_names_file_and_index(folder: Path, workers: int) -> None:
    dataset = Broken(folder, plain)
    dataset.damaged = (2,)
    for first, named in ((3, r"03\.jpeg\.lost.*can't be read: .*No such file.*dataset\[0\]"), (2, r"dataset\[0\]")):
        with pytest.raises(DecodeError, match=named):
            next(iter(feeder.DataLoader(Subset(dataset, [first]), num_workers=workers)))
        with pytest.raises(DecodeError, match="of the batch"):
            next(iter(torch.utils.data.DataLoader(Subset(dataset, [first]), num_workers=workers)))


def test_bad_samples_are_replaced_by_whole_others(folder: Path) -> None:
    dataset = Broken(folder, plain)
    dataset.damaged = (2, 10)
    expected = by_index(epochs(feeder.DataLoader(Images(folder, plain), batch_size=4, seed=6))[0])
    found = []
    for workers, size in ((0, 4), (2, 4), (1, 9)):
        loader = feeder.DataLoader(dataset, batch_size=size, seed=6, num_workers=workers, on_error="skip")
        with pytest.warns(UserWarning, match=r"4 samples of this epoch had a bad image, .* dataset\[2\]"):
            batches = epochs(loader)[0]
        found.append([i for _, ids in batches for i in ids])
        pairs = [pair for images, ids in batches for pair in zip(images, ids, strict=True)]
        assert all(torch.equal(image, expected[i]) for image, i in pairs)
        replaced = sorted(loader.stats()["substitutions"])
        assert loader.stats()["skipped"] == 4
        assert [(each.sample, each.substitute) for each in replaced] == [(i, found[0][i]) for i in (2, 3, 9, 10)]
        assert replaced[1].key == f"{dataset.paths[3]}.lost"
    assert found[0] == found[1] == found[2]
    assert [i for i in range(COUNT) if found[0][i] != i] == [2, 3, 9, 10]


def test_samples_without_a_substitute_are_an_error(folder: Path) -> None:
    dataset = Broken(folder, plain)
    dataset.lost = tuple(range(COUNT))
    with pytest.raises(DecodeError, match="none of its 16 substitutes can be decoded"):
        next(iter(feeder.DataLoader(dataset, on_error="skip")))


@pytest.mark.parametrize("workers", [0, 1])
def test_torchs_loader_decodes_too_by_its_random_state(folder: Path, workers: int) -> None:
    loader: Any = torch.utils.data.DataLoader(Images(folder, plain), batch_size=8, num_workers=workers)
    runs = epochs(loader, 2)
    assert runs[0][0][0].shape == (8, 3, 20, 20)
    assert not torch.equal(runs[0][0][0], runs[1][0][0])
    torch.manual_seed(1)
    first = epochs(loader)[0]
    torch.manual_seed(1)
    assert same(epochs(loader)[0], first)


class Stream(IterableDataset[Any]):
    def __init__(self, folder: Path) -> None:
        self.images = Images(folder, plain)

    def __iter__(self) -> Iterator[Any]:
        return (self.images[i] for i in range(8))


def test_iterable_datasets_draw_by_torchs_random_state(folder: Path) -> None:
    runs = epochs(feeder.DataLoader(Stream(folder), batch_size=4, num_workers=1), 2)
    assert runs[0][0][0].shape == (4, 3, 20, 20)
    assert not torch.equal(runs[0][0][0], runs[1][0][0])


def test_samples_that_differ_in_kind_are_refused(folder: Path) -> None:
    def mixed(path: str, i: int) -> Any:
        return (feeder.Encoded(path, CROPS) if i % 2 == 0 else torch.zeros(3, 20, 20)), i

    for cls in (feeder.DataLoader, torch.utils.data.DataLoader):
        with pytest.raises(ArgumentError, match=r"one has a feeder\.Encoded where another has a Tensor"):
            next(iter(cls(Images(folder, mixed), batch_size=2)))


def test_a_derived_class_of_feeders_datasets_draws_as_any_other_dataset(folder: Path) -> None:
    class Own(feeder.FolderDataset):
        def __getitem__(self, i: Any) -> Any:
            return feeder.Encoded(str(sorted((folder / "a").iterdir())[i]), CROPS), i

    expected = epochs(feeder.DataLoader(Images(folder, plain), batch_size=8, seed=1))[0]
    with pytest.warns(UserWarning, match="torch's path"):
        loader = feeder.DataLoader(Own(folder, CROPS), batch_size=8, shuffle=False, seed=1)
    assert same(epochs(loader)[0], expected)


def test_a_copied_loader_has_epochs_of_its_own(folder: Path) -> None:
    loader = feeder.DataLoader(Images(folder, plain), batch_size=8, seed=1)
    first, second = epochs(loader, 2)
    copied = pickle.loads(pickle.dumps(feeder.DataLoader(Images(folder, plain), batch_size=8, seed=1)))
    assert same(epochs(copied)[0], first)
    assert same(epochs(copied)[0], second)


def test_an_encoded_image_is_a_small_value(folder: Path) -> None:
    path = folder / "a" / "00.jpeg"
    image = feeder.Encoded(path, [T.Resize((8, 8))])
    assert not hasattr(image, "__dict__")
    copied = pickle.loads(pickle.dumps(image))
    assert (copied.data, copied.recipe) == (image.data, image.recipe) == (str(path), T.Recipe.of(T.Resize((8, 8))))
    assert torch.equal(image.decode(), copied.decode())
    assert feeder.Encoded(path).decode().shape == (3, 90, 60)
    assert repr(feeder.Encoded(b"12", CROPS)) == f"Encoded(<2 bytes>, {T.Recipe.of(CROPS)!r})"


def test_a_recipe_is_checked_once_and_a_changed_list_again() -> None:
    assert feeder.Encoded(b"", CROPS).recipe is feeder.Encoded(b"", CROPS).recipe
    ops: list[Any] = [T.Resize(8)]
    first = feeder.Encoded(b"", ops).recipe
    assert feeder.Encoded(b"", ops).recipe is first
    ops.append(T.CenterCrop(8))
    assert feeder.Encoded(b"", ops).recipe.output_size == (8, 8)


def test_what_is_done_to_an_image_in_place_of_its_transform_says_the_way_out() -> None:
    image: Any = feeder.Encoded(b"", CROPS)
    assert not hasattr(image, "shape")
    with pytest.raises(AttributeError, match=r"no 'convert', as the loader decodes it later: .* as transform="):
        image.convert("RGB")
    assert copy.copy(image).recipe is image.recipe
    assert pickle.loads(pickle.dumps(image)).data == b""


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ((pixels(1),), "takes the path of an image's file, or its bytes, got Image"),
        ((3,), "got int"),
        ((np.zeros((4, 4, 3), np.uint8),), "got ndarray"),
        ((b"", T.Views([CROPS, CROPS])), "Views"),
        ((b"", [T.Normalize((0.5,) * 3, (0.5,) * 3), CROPS]), "works on uint8 images"),
        ((b"", T.RandomIoUCrop()), "draws from a sample's boxes"),
    ],
)
def test_what_is_no_encoded_image_is_refused(arguments: Any, named: str) -> None:
    with pytest.raises(ArgumentError, match=named):
        feeder.Encoded(*arguments)
