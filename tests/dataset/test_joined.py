"""Several feeder datasets as one: torch's ConcatDataset, and ShardDataset of several sets."""

from __future__ import annotations

import copy
import json
import pickle
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, Subset, random_split

from feeder.dataset.folders import FolderDataset
from feeder.dataset.shards import ShardDataset
from feeder.errors import ArgumentError, DecodeError
from feeder.loader.dataloader import DataLoader
from feeder.order.sample_order import Window
from feeder.shard.format.index_file import INDEX_NAME
from feeder.shard.write.sharding import shard
from feeder.transforms import Compose, RandomHorizontalFlip, RandomResizedCrop, Resize
from tests.support import jpegs
from tests.support.images import encode as encode_photo
from tests.support.loader_data import encode, write_shards
from tests.support.shard_sets import set_classes

RANDOM = Compose([RandomResizedCrop(16), RandomHorizontalFlip()])
PLAIN = Resize((8, 8))
FIELDS = ("key", "index")


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("sets")
    return write_shards(folder / "a", 20, 8), write_shards(folder / "b", 30, 8, jpegs=True)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "folder/x").mkdir(parents=True)
    for i in range(10):
        (tmp_path / f"folder/x/{i}.png").write_bytes(encode(200 + i, (10 + i, 12)))
    return tmp_path / "folder"


def _with_classes(source: Path, folder: Path, classes: list[str] | None) -> Path:
    shutil.copytree(source, folder)
    set_classes(folder / "index.bin", classes)
    return folder


def _rows(batches: Any) -> list[tuple[Any, ...]]:
    """(pixels, label, key, index) of each sample, in the order given."""
    return [
        row
        for images, labels, keys, index in batches
        for row in zip(images.tolist(), labels.tolist(), keys, index.tolist(), strict=True)
    ]


def _expected(dataset: Any) -> list[tuple[Any, ...]]:
    return [(image.tolist(), label, *fields) for image, label, *fields in (dataset[i] for i in range(len(dataset)))]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_concat_dataset_gives_its_samples_on_the_fast_path(
    sets: tuple[Path, Path], folder: Path, workers: int
) -> None:
    one, two, three = (
        ShardDataset(sets[0], PLAIN, FIELDS),
        ShardDataset(sets[1], Resize((8, 8)), FIELDS),
        FolderDataset(folder, PLAIN, FIELDS),
    )
    cases: list[Any] = [
        ConcatDataset([one, two, three]),
        ConcatDataset([one, Subset(two, [5, 2, 2]), one]),
        ConcatDataset([Subset(two, [7, 1]), ConcatDataset([three, Subset(one, [3])])]),
        Subset(ConcatDataset([one, two, three]), [55, 3, 21, 40, 3]),
        ConcatDataset([two]),
    ]
    for dataset in cases:
        loader = DataLoader(dataset, batch_size=7, num_workers=workers, backend="cpu")
        assert loader.path == "fast"
        assert _rows(loader) == _expected(dataset)


def test_samples_that_are_read_by_rows_are_those_of_whole_images(tmp_path: Path) -> None:
    (tmp_path / "photos/x").mkdir(parents=True)
    for i in range(6):
        (tmp_path / f"photos/x/{i}.jpg").write_bytes(encode_photo(jpegs.photo(i, 300, 400)))
    for name in ("a", "b"):
        shard(str(tmp_path / "photos"), str(tmp_path / name))
    joined = ShardDataset([tmp_path / "a", tmp_path / "b"], RandomResizedCrop(32, scale=(0.01, 0.05)), FIELDS)
    whole = DataLoader(joined, batch_size=12, seed=3, backend="pillow", fidelity="exact")
    by_rows = DataLoader(joined, batch_size=12, seed=3, backend="cpu", fidelity="exact")
    encoded = []
    read = joined.reader.read

    def noted(ids: Any, wanted: Any = None) -> Any:
        encoded.append(read(ids, wanted))
        return encoded[-1]

    joined.reader.read = noted  # type: ignore[method-assign]
    (exact,), (fast,) = list(whole), list(by_rows)
    assert (exact[0].int() - fast[0].int()).abs().max() <= 2
    assert encoded[-1].first_rows is not None
    assert (encoded[-1].first_rows.reshape(2, 6) >= 0).any(axis=1).all()  # of both sets


def test_epochs_states_ranks_and_windows_are_of_the_whole(sets: tuple[Path, Path]) -> None:
    joined = ShardDataset(list(sets), RANDOM, FIELDS)
    assert len(joined) == 50
    assert joined.targets == [i % 7 for i in (*range(20), *range(30))]
    assert joined.classes == [f"class{k}" for k in range(7)]
    assert [joined[i][3] for i in (0, 19, 20, 49)] == [0, 19, 20, 49]
    whole = _rows(DataLoader(joined, 8, shuffle=True, seed=3))
    assert sorted(row[3] for row in whole) == list(range(50))
    half = DataLoader(joined, 8, shuffle=True, seed=3, num_workers=1)
    batches = iter(half)
    begun = _rows([next(batches), next(batches)])
    state = json.loads(json.dumps(half.state_dict()))
    del batches
    resumed = DataLoader(joined, 8, shuffle=True, seed=3)
    resumed.load_state_dict(state)
    assert begun + _rows(resumed) == whole
    swapped = DataLoader(ShardDataset(sets[::-1], RANDOM, FIELDS), 8, shuffle=True, seed=3)
    with pytest.raises(ArgumentError, match="its fingerprint is"):
        swapped.load_state_dict(state)
    ranks = [_rows(DataLoader(joined, 5, shuffle=True, rank=rank, world_size=2, seed=0)) for rank in range(2)]
    assert sorted(row[3] for rows in ranks for row in rows) == list(range(50))
    windowed = [row[3] for row in _rows(DataLoader(joined, 5, shuffle=Window(4), seed=1))]
    assert sorted(windowed) == list(range(50))
    shards = [i // 8 if i < 20 else 3 + (i - 20) // 8 for i in windowed]
    assert len({tuple(shards[i : i + 4]) for i in range(0, 50, 4)}) > 3
    assert all(len(set(shards[i : i + 4])) <= 2 for i in range(0, 50, 4))  # not a shuffle of the whole


def test_splits_of_several_sets(sets: tuple[Path, Path]) -> None:
    both: tuple[Any, ...] = (
        ShardDataset(list(sets), RANDOM, FIELDS),
        ConcatDataset([ShardDataset(s, RANDOM) for s in sets]),
    )
    for dataset in both:
        parts: Any = random_split(dataset, [40, 10], torch.Generator().manual_seed(1))
        for part in parts:
            loader = DataLoader(part, 4, shuffle=True)
            assert loader.path == "fast"
            assert sum(len(labels) for _, labels, *_ in loader) == len(part)
            windowed = DataLoader(part, 4, shuffle=Window(4))
            assert sum(len(labels) for _, labels, *_ in windowed) == len(part)
    joined = ShardDataset(list(sets), RANDOM, FIELDS)
    chosen = [49, 3, 20]
    assert sorted(row[3] for row in _rows(DataLoader(Subset(joined, chosen), 2, shuffle=Window(2)))) == sorted(chosen)


def test_bad_samples_of_several_sets_are_named_and_replaced(sets: tuple[Path, Path], tmp_path: Path) -> None:
    bad = write_shards(tmp_path / "bad", 10, bad=(4,))
    dataset: Any = ConcatDataset([ShardDataset(sets[0], PLAIN, FIELDS), ShardDataset(bad, PLAIN, FIELDS)])
    with pytest.raises(DecodeError, match=r"00000004.*shard-000000.tar"):
        list(DataLoader(dataset, 30, backend="cpu"))
    skipping = DataLoader(dataset, 30, on_error="skip", num_workers=1)
    (batch,) = skipping
    (substitution,) = skipping.stats()["substitutions"]
    assert (substitution["position"], substitution["key"]) == (24, "00000004")
    assert _rows([batch])[24] == dataset_row(dataset, substitution["substitute"])


def dataset_row(dataset: Any, i: int) -> tuple[Any, ...]:
    image, label, *fields = dataset[i]
    return (image.tolist(), label, *fields)


def test_classes_of_several_sets_are_the_same_or_merged_by_name(sets: tuple[Path, Path], tmp_path: Path) -> None:
    names = [f"class{k}" for k in range(7)]
    other = _with_classes(sets[1], tmp_path / "other", ["class2", "new", *names[3:], "class0"])
    shorter = _with_classes(sets[1], tmp_path / "shorter", names[:6])
    unnamed = _with_classes(sets[1], tmp_path / "unnamed", None)
    for second, message in (
        (other, r"class 0 is 'class0' in .*/a/index.bin and 'class2' in .*/other/index.bin; classes='merge'"),
        (shorter, r"class 6 is 'class6' in .*/a/index.bin and missing in .*/shorter/index.bin"),
        (unnamed, r"the class names of .*/a/index.bin are known, those of .*/unnamed/index.bin are not"),
    ):
        with pytest.raises(ArgumentError, match=message):
            ShardDataset([sets[0], second])
    with pytest.raises(ArgumentError, match=r"classes='merge' needs class names, and those of .*/unnamed/index.bin"):
        ShardDataset([sets[0], unnamed], classes="merge")
    with pytest.raises(ArgumentError, match="got an empty list"):
        ShardDataset([])
    with pytest.raises(ArgumentError, match=r"field 'png' is in no sample of .*/c/index.bin"):
        ShardDataset([sets[0], _with_jpegs(tmp_path / "c")], fields=["png"], classes="merge")
    merged = ShardDataset([sets[0], other], PLAIN, FIELDS, classes="merge")
    assert merged.classes == [*names, "new"]
    its_names = ["class2", "new", *names[3:], "class0"]
    expected = [names[i % 7] for i in range(20)] + [its_names[i % 7] for i in range(30)]
    assert [merged.classes[label] for label in merged.targets] == expected
    assert [merged.classes[row[1]] for row in _rows(DataLoader(merged, 8, num_workers=1))] == expected
    assert [merged[i][1] for i in range(50)] == merged.targets
    same = ShardDataset(list(sets), PLAIN, FIELDS, classes="merge")
    assert (same.classes, same.targets) == (names, ShardDataset(list(sets)).targets)
    plain = DataLoader(ShardDataset([sets[0], unnamed_as(names, sets[1], tmp_path)], PLAIN, FIELDS))
    assert plain.state_dict()["fingerprint"] != DataLoader(merged).state_dict()["fingerprint"]


def _with_jpegs(folder: Path) -> Path:
    images = folder.parent / "images"
    (images / "x").mkdir(parents=True)
    (images / "x/0.jpg").write_bytes(encode(0, extension="jpg"))
    shard(str(images), str(folder))
    return folder


def unnamed_as(names: list[str], source: Path, folder: Path) -> Path:
    return _with_classes(source, folder / "named", names)


def test_labels_of_several_sets_are_of_one_kind_and_options_hold_for_each(sets: tuple[Path, Path]) -> None:
    joined = ShardDataset(list(sets), PLAIN, FIELDS, labels="i", target_transform=lambda label: label * 0.5)
    (batch,) = DataLoader(joined, 50)
    assert batch[1].dtype == torch.float32
    assert batch[1].tolist() == joined.targets == [i / 2 for i in (*range(20), *range(30))]
    assert joined.column("index").tolist() == list(range(50))  # type: ignore[union-attr]
    assert joined.column("key") == [f"{i:08d}" for i in (*range(20), *range(30))]
    numbers, floats = ShardDataset(sets[0], PLAIN), ShardDataset(sets[1], PLAIN, target_transform=float)
    with pytest.warns(UserWarning, match="of which dataset 1 differs from the first in its kind of labels"):
        DataLoader(ConcatDataset([numbers, floats]))
    named = ShardDataset(list(sets), classes=[f"class{k}" for k in range(7)][::-1])
    assert named.targets == [6 - i % 7 for i in (*range(20), *range(30))]
    with pytest.raises(ArgumentError, match="must be a sequence of names"):
        ShardDataset(list(sets), classes="merged")
    assert repr(joined).startswith("ShardDataset(")


def test_a_concat_dataset_leaves_labels_as_they_are(sets: tuple[Path, Path], tmp_path: Path) -> None:
    other = _with_classes(sets[1], tmp_path / "other", ["x", "y"])
    dataset: Any = ConcatDataset([ShardDataset(sets[0], PLAIN), ShardDataset(other, PLAIN)])
    loader = DataLoader(dataset, 50)
    assert next(iter(loader))[1].tolist() == [dataset[i][1] for i in range(50)]


class _Doubling(ConcatDataset[Any]):
    def __getitem__(self, i: int) -> Any:
        return super().__getitem__(i)[1] * 2


def test_why_a_concat_dataset_goes_without_the_fast_path_is_said(sets: tuple[Path, Path]) -> None:
    one = ShardDataset(sets[0], PLAIN)
    for datasets, message in (
        (
            [one, ShardDataset(sets[1], Resize((8, 9)))],
            "of which dataset 1 differs from the first in its transform: give",
        ),
        (
            [one, one, ShardDataset(sets[1], PLAIN, ["key"])],
            "of which dataset 2 differs from the first in its fields: give",
        ),
        ([one, torch.utils.data.TensorDataset(torch.zeros(3))], "of which dataset 1 is a TensorDataset: join feeder"),
    ):
        with pytest.warns(UserWarning, match=message):
            loader = DataLoader(ConcatDataset(datasets))
        assert loader.path == "generic"
    with pytest.warns(UserWarning, match="the dataset is a _Doubling around a ShardDataset"):
        assert [int(x) for x in DataLoader(_Doubling([one]))] == [2 * label for label in one.targets]


def test_datasets_that_change_later_are_refused(sets: tuple[Path, Path]) -> None:
    one, two = (ShardDataset(each, PLAIN) for each in sets)
    dataset: Any = ConcatDataset([one, two])
    loader = DataLoader(dataset, batch_size=50)
    for made in (loader, copy.copy(loader), copy.deepcopy(loader), pickle.loads(pickle.dumps(loader))):
        assert len(list(made)) == 1
    dataset.datasets[1] = ShardDataset(sets[1], PLAIN)
    with pytest.raises(ArgumentError, match="the datasets of the ConcatDataset were changed"):
        iter(loader)
    dataset.datasets[1] = Subset(two, list(range(30))[::-1])
    with pytest.raises(ArgumentError, match="the indices of the ConcatDataset were changed"):
        iter(loader)
    dataset.datasets[1] = [1, 2]
    with pytest.raises(ArgumentError, match="the samples of the ConcatDataset were changed"):
        iter(loader)


def test_a_joined_dataset_is_pickled_without_its_samples(sets: tuple[Path, Path]) -> None:
    joined = ShardDataset([sets[0] / INDEX_NAME, str(sets[1])], PLAIN, FIELDS)
    data = pickle.dumps(joined)
    assert len(data) < 4000
    again = pickle.loads(data)
    assert again.reader.fingerprint() == joined.reader.fingerprint()
    assert np.array_equal(again.reader.labels(), joined.reader.labels())
