"""Mixtures whose images are decoded in this process: the images of each source alone, and of the CPU backend."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import feeder
from feeder import DataLoader, Mixture
from feeder import transforms as T
from feeder.errors import ArgumentError, DecodeError
from feeder.loader.fast.mixed_work import MixedWork
from feeder.loader.fast.sample_maker import Work
from feeder.loader.slots.image_slots import Samples
from feeder.order.mixture_shares import source_seed
from feeder.shard.write.shard_options import ShardOptions
from feeder.shard.write.sharding import shard
from tests.support import cuda_driver
from tests.support.batches import check_same, copied_epoch
from tests.support.loader_data import write_shards, write_tree

CROP = [T.RandomResizedCrop(32, scale=(0.3, 1.0)), T.RandomHorizontalFlip()]
WHOLE = [T.Resize((32, 32))]
FLOAT = [T.ToDtype(torch.float32, scale=True), T.Normalize((0.5, 0.4, 0.3), (0.2, 0.3, 0.4))]
COLOR = [T.ColorJitter(0.4, 0.4), T.RandomVerticalFlip(), *FLOAT, T.RandomErasing(0.5)]
OPTIONS: dict[str, Any] = {"batch_size": 8, "shuffle": True, "seed": 3}
SIZES = [(90, 120), (100, 80), (70, 140)]
BACKENDS = ["cuda", "dali"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("sources")
    write_shards(found / "a", 30, jpegs=True, sizes=SIZES)
    shard(str(write_tree(found / "tree", 11, extension="jpg")), str(found / "b"), ShardOptions())
    write_tree(found / "c", 7, extension="jpg")
    return found


@pytest.fixture(autouse=True)
def _driver(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("nvidia.dali")
    cuda_driver.install(monkeypatch, tmp_path)


def sources_of(folder: Path, ops: Any, names: str = "abc") -> dict[str, Any]:
    recipes = {name: ops if isinstance(ops, T.Views) else T.Compose([*CROP, *ops]) for name in names}
    if not isinstance(ops, T.Views):
        recipes["b"] = T.Compose([*WHOLE, *ops])
    kinds: dict[str, Any] = {"c": feeder.FolderDataset}
    return {
        name: kinds.get(name, feeder.ShardDataset)(folder / name, recipes[name], fields=["index"]) for name in names
    }


def flat(batch: Any) -> tuple[Any, ...]:
    """A batch in memory of its own, with views beside the other values."""
    images = batch[0] if isinstance(batch[0], list) else [batch[0]]
    return tuple(each.clone() for each in (*images, *batch[1:]))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    "ops", [FLOAT, COLOR, T.Views([CROP, [T.RandomResizedCrop(24), *COLOR]])], ids=["floats", "colors", "views"]
)
def test_the_images_are_those_of_each_source_alone(folder: Path, backend: str, workers: int, ops: Any) -> None:
    given = sources_of(folder, ops)
    mixture = Mixture(given, {"a": 2, "b": 1, "c": 1}, stop="all_exhausted")
    loader = DataLoader(mixture, backend=backend, num_workers=workers, **OPTIONS)
    had: dict[int, list[Any]] = {0: [], 1: [], 2: []}
    for batch in map(flat, loader):
        *values, source = batch
        for row, number in enumerate(source.tolist()):
            had[number].append([each[row] for each in values])
    assert loader.stats()[f"{backend}_images"] > 0
    loader.close()

    for number, (name, dataset) in enumerate(given.items()):
        alone = DataLoader(dataset, backend=backend, **OPTIONS | {"seed": source_seed(3, name)})
        samples = [sample for _ in range(3) for batch in map(flat, alone) for sample in zip(*batch, strict=True)]
        alone.close()
        assert len(had[number]) > len(dataset) or number == 0
        for found, expected in zip(had[number], samples, strict=False):
            assert all(map(torch.equal, found, expected))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("workers", [0, 2])
def test_bad_samples_are_replaced_in_the_pass_of_their_source(
    folder: Path, tmp_path: Path, backend: str, workers: int
) -> None:
    write_shards(tmp_path / "a", 30, jpegs=True, bad=(9,), cut=(4, 10), sizes=SIZES)
    turned = [T.RandomVerticalFlip(), *FLOAT]
    given = sources_of(folder, turned) | {"a": sources_of(tmp_path, turned, "a")["a"]}
    mixture = Mixture(given, {"a": 2, "b": 1, "c": 1}, samples=160)
    options = OPTIONS | {"skip": mixture.ids("a", [0, 1, 2])}
    made, substitutions = [], []
    for name in (backend, "cpu"):
        loader = DataLoader(mixture, backend=name, num_workers=workers, on_error="skip", **options)
        with pytest.warns(UserWarning, match="were bad"):
            made.append(copied_epoch(loader))
        substitutions.append(loader.stats()["substitutions"])
        loader.close()
    assert [each["key"] for each in substitutions[1]].count("00000004") > 1
    # A substitute that only the decoder finds to be bad is replaced again.
    places = [{each["position"] for each in found} for found in substitutions]
    assert places[0] == places[1]
    check_same([batch[1:] for batch in made[0]], [batch[1:] for batch in made[1]])
    differences = [(a[0] - b[0]).abs().mean((1, 2, 3)).max() for a, b in zip(*made, strict=True)]
    assert max(differences) < (1e-5 if backend == "cuda" else 0.2)  # other draws make ten times that
    with pytest.raises(DecodeError, match=r"0000000[49]|00000010"):
        copied_epoch(DataLoader(mixture, backend=backend, num_workers=workers, **OPTIONS))


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_run_resumes_at_the_next_batch(folder: Path, backend: str) -> None:
    mixture = Mixture(sources_of(folder, COLOR), {"a": 2, "b": 1, "c": 1}, samples=60)
    running = DataLoader(mixture, backend=backend, num_workers=1, **OPTIONS)
    iterator = iter(running)
    next(iterator)
    state = running.state_dict()
    rest = copied_epoch(iterator)
    resumed = DataLoader(mixture, backend=backend, **OPTIONS)
    resumed.load_state_dict(state)
    check_same(copied_epoch(resumed), rest)
    running.close()
    resumed.close()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "ops", [[T.ColorJitter(0.4), *FLOAT], [FLOAT[0], T.Normalize((0.5,) * 3, (0.2,) * 3)]], ids=["ops", "map"]
)
def test_sources_that_end_in_other_ways_are_refused_by_name(folder: Path, backend: str, ops: Any) -> None:
    given = sources_of(folder, FLOAT) | {"c": sources_of(folder, ops, "c")["c"]}
    with pytest.raises(ArgumentError, match=f"backend='{backend}' finishes .* those of 'a' and 'c' have other ops"):
        DataLoader(Mixture(given), backend=backend, **OPTIONS)
    next(iter(DataLoader(Mixture(given), backend="cpu", **OPTIONS)))


def test_a_sample_that_only_the_decoder_finds_bad_is_replaced_from_its_source_and_pass(folder: Path) -> None:
    given = sources_of(folder, FLOAT)
    mixture = Mixture(given)
    works = tuple(Work(part.reader, part.recipe, "cpu", part.extras) for part in mixture.sources)
    mixed = MixedWork(mixture.reader, mixture.recipe, "cpu", mixture.extras, 3, names=mixture.names, works=works)
    mixed.left_out = mixture.ids("b", [0, 5])
    bad = Samples(np.array([17]), mixture.ids("b", 7), np.array([2]))
    found = list(mixed.substitute_samples(bad, 0))
    alone = Work(given["b"].reader, given["b"].recipe, "cpu", seed=source_seed(3, "b"), left_out=np.array([0, 5]))
    assert mixture.named([int(each.ids[0]) for each in found]) == [("b", i) for i in alone.substitutes(2, 17)]
    assert {(*each.positions.tolist(), *each.repeats.tolist()) for each in found} == {(17, 2)}
