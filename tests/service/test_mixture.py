"""Mixtures by an input service: batches are those of local workers, and damaged work is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, Subset

import feeder
from feeder import transforms as T
from feeder.dataset.subset_reader import SubsetReader
from feeder.errors import ArgumentError
from feeder.loader.fast.mixed_work import MixedWork
from feeder.loader.fast.sample_maker import Work
from feeder.loader.fast.work_json import check_work, sent_divided, work_data, work_from_json, work_to_json
from feeder.loader.slots.image_slots import Samples, SlotView
from feeder.service.roots import Roots
from feeder.transforms.recipe_json import recipe_to_json
from tests.support.batches import check_same, copied_epoch
from tests.support.loader_data import CROP_AND_FLIP, write_tree
from tests.support.service import ServiceServer

WEIGHTS = {"a": 0.5, "b": 0.3, "c": 0.2}
NORMALIZE = T.Normalize((0.5, 0.4, 0.3), (0.2, 0.3, 0.4))
SMALL = [T.RandomResizedCrop(16), T.RandomHorizontalFlip()]
FLOAT = T.Compose([*SMALL, T.ToDtype(torch.float32, scale=True), NORMALIZE])
OTHER = T.Compose([T.Resize((16, 16)), NORMALIZE])


def sources_of(
    root: Path, recipes: tuple[Any, Any, Any] = (CROP_AND_FLIP,) * 3, bad: str = "set", **fields: Any
) -> dict[str, Any]:
    if not (root / "mixed").exists():
        write_tree(root / "mixed", 21)
    fields = fields or {"fields": ["key", "index"]}
    whole = feeder.ShardDataset(root / bad, recipes[1], **fields)
    both: Any = ConcatDataset([Subset(whole, range(30)), feeder.ShardDataset(root / "set", recipes[1], **fields)])
    return {
        "a": feeder.ShardDataset(root / bad, recipes[0], **fields),
        "b": Subset(both, range(40, 3, -1)),
        "c": feeder.FolderDataset(root / "mixed", recipes[2], **fields),
    }


def mixture_of(root: Path, weights: Any = WEIGHTS, stop: Any = "all_exhausted", **given: Any) -> feeder.Mixture:
    return feeder.Mixture(sources_of(root), weights, stop=stop, **given)


def loader(mixture: feeder.Mixture, **options: Any) -> feeder.DataLoader:
    return feeder.DataLoader(mixture, **{"batch_size": 12, "shuffle": True, "seed": 5, **options})


def only(server: ServiceServer) -> feeder.Service:
    return feeder.Service(server.service, only=True)


def flat(batches: Any) -> Iterator[tuple[Any, ...]]:
    """Batches with views beside the other values."""
    return ((*(batch[0] if isinstance(batch[0], list) else batch[:1]), *batch[1:]) for batch in batches)


def check_equal(server: ServiceServer, mixture: feeder.Mixture, **options: Any) -> None:
    """Fails unless two epochs by the service alone, and their counts, are those of a local worker."""
    local, served = loader(mixture, **options), loader(mixture, service=only(server), **options)
    before = server.parts()
    for _ in range(2):
        made = [copied_epoch(flat(one)) for one in (served, local)]
        assert {number for *_, source in made[1] for number in source.tolist()} == set(range(len(mixture.names)))
        check_same(*made)
        assert served.state_dict() == local.state_dict()
    assert server.parts() - before >= local.stats()["parts"] > 0
    for name in ("samples", "parts", "encoded_bytes", "skipped", "substitutions", "sources"):
        assert served.stats()[name] == local.stats()[name]
    for one in (local, served):
        one.close()


@pytest.mark.parametrize(
    "recipes",
    [
        (CROP_AND_FLIP,) * 3,
        (FLOAT, OTHER, FLOAT),
        (FLOAT, T.Compose([T.Resize((16, 16)), T.Normalize([0.5], [0.5])]), FLOAT),
        (FLOAT, T.Compose([*SMALL, T.ColorJitter(0.3), NORMALIZE]), OTHER),
        (
            T.Views([FLOAT, T.RandomResizedCrop(8)]),
            T.Views([OTHER, T.Resize((8, 8))]),
            T.Views([FLOAT, T.Resize((8, 8))]),
        ),
    ],
    ids=["bytes", "one map", "maps", "ops between", "views"],
)
def test_recipes(root: Path, server: ServiceServer, recipes: Any) -> None:
    check_equal(server, feeder.Mixture(sources_of(root, recipes), WEIGHTS, stop="all_exhausted"))


@pytest.mark.parametrize(
    ("recipes", "is_small"),
    [
        ((FLOAT, OTHER, FLOAT), True),
        ((FLOAT, FLOAT, T.Compose([*SMALL, T.Normalize([0.5], [0.5])])), False),
        ((FLOAT, T.Compose([*SMALL, T.ColorJitter(0.3), NORMALIZE]), FLOAT), False),
    ],
)
def test_pixels_travel_as_bytes_where_all_sources_end_with_one_map(root: Path, recipes: Any, is_small: bool) -> None:
    work = work_of(feeder.Mixture(sources_of(root, recipes), WEIGHTS))
    assert [each is not None for each in sent_divided(work)] == [is_small]


def test_options_of_a_mixture(root: Path, server: ServiceServer) -> None:
    sources = sources_of(root)
    parts = {"a": Subset(sources["a"], range(9)), "b": sources["a"], "c": sources["c"]}
    later: dict[int, Any] = {0: WEIGHTS, 50: {"a": 1, "b": 1, "c": 3}}
    merged = feeder.Mixture(parts, later, labels="merge", samples=90)
    check_equal(server, merged, device="cpu", backend="pillow")
    check_equal(server, mixture_of(root, batching="per_source"), shuffle=feeder.Window(8))


def test_bad_samples_are_replaced_from_their_own_source(root: Path, server: ServiceServer) -> None:
    mixture = feeder.Mixture(sources_of(root, bad="bad"), stop="all_exhausted_without_replacement")
    with pytest.warns(UserWarning, match="2 of 119 samples"):
        check_equal(server, mixture, on_error="skip", skip=mixture.ids("a", [5, 30, 31]))
    errors = []
    for options in ({}, {"service": only(server)}):
        with pytest.raises(feeder.DecodeError) as caught:
            list(loader(mixture, **options))
        errors.append((str(caught.value), caught.value.key, caught.value.shard))
    assert errors[0] == errors[1]


def test_a_run_is_resumed_with_and_without_the_service(root: Path, server: ServiceServer) -> None:
    expected = copied_epoch(loader(mixture_of(root)))
    states = []
    for options in ({}, {"service": only(server)}):
        one = loader(mixture_of(root), **options)
        iterator = iter(one)
        check_same([next(iterator), next(iterator)], expected[:2])
        states.append(one.state_dict())
        del iterator
        one.close()
    assert states[0] == states[1]
    for options in ({}, {"service": only(server)}):
        one = loader(mixture_of(root), **options, batch_size=12)
        one.load_state_dict(states[1])
        check_same(copied_epoch(one), expected[2:])
        one.close()


def test_weights_change_while_the_service_makes_parts(root: Path, server: ServiceServer) -> None:
    made = []
    for options in ({}, {"service": only(server), "prefetch_factor": 1, "num_workers": 1}):
        mixture = feeder.Mixture(sources_of(root), WEIGHTS, samples=360)
        one = loader(mixture, **options)
        batches = []
        for step, batch in enumerate(one):
            batches.append(tuple(x.clone() if isinstance(x, torch.Tensor) else x for x in batch))
            if step == 1:
                mixture.set_weights({"a": 0, "b": 0, "c": 1}, at_sample=240)
        made.append(batches)
        one.close()
    check_same(made[1], made[0])
    assert len(made[1]) == 30
    assert {number for *_, source in made[1][20:] for number in source.tolist()} == {2}


@pytest.mark.parametrize("workers", [0, 2])
def test_local_workers_go_on_beside_the_service(root: Path, server: ServiceServer, workers: int) -> None:
    expected = loader(mixture_of(root))
    one = loader(mixture_of(root), num_workers=workers, service=server.service)
    parts = server.parts()
    while server.parts() == parts:
        check_same(copied_epoch(one), copied_epoch(expected))
    check_same(copied_epoch(one), copied_epoch(expected))
    assert one.stats()["respawns"] == 0
    check_same([one.replay(1, 2).batch], [expected.replay(1, 2).batch])
    one.close()


def work_of(mixture: feeder.Mixture) -> MixedWork:
    works = tuple(Work(part.reader, part.recipe, "cpu", part.extras) for part in mixture.sources)
    return MixedWork(mixture.reader, mixture.recipe, "cpu", mixture.extras, names=mixture.names, works=works)


def sent(work: MixedWork) -> dict[str, Any]:
    """Its JSON as it comes to a server."""
    data = json.dumps(work_to_json(work)).encode()
    check_work(data)
    found: dict[str, Any] = json.loads(data)
    return found


def test_groups_of_one_set_open_it_once(root: Path) -> None:
    whole = feeder.ShardDataset(root / "set", CROP_AND_FLIP, fields=["index"])
    mixture = feeder.Mixture({f"group {i}": Subset(whole, [i % 64, i // 64]) for i in range(300)})
    work = work_of(mixture)
    found = work_from_json(sent(work), Roots([str(root)]))
    assert isinstance(found, MixedWork)
    assert found.names == work.names
    assert len({id(each.reader.whole) for each in found.by_source if isinstance(each.reader, SubsetReader)}) == 1
    assert len(found.by_source) == 300
    samples = Samples(np.arange(40), np.arange(560, 600), np.arange(40) % 3)
    views = [SlotView.new(each.layout(40), samples) for each in (work, found)]
    for each, view in zip((work, found), views, strict=True):
        each.run(0, view)
    for one, other in zip((*views[0].images, *views[0].further), (*views[1].images, *views[1].further), strict=True):
        assert one.tobytes() == other.tobytes()


def test_mixtures_of_too_many_sources_are_refused_by_the_client(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("feeder.loader.fast.work_json.MOST_SETS", 2)
    with pytest.raises(ArgumentError, match=r"service= can't have this made.*mixture of 3 sources, 2 are allowed"):
        work_data(work_of(mixture_of(root)))


def test_subsets_of_too_many_samples_in_all_are_refused(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = feeder.ShardDataset(root / "set", CROP_AND_FLIP)
    told = sent(work_of(feeder.Mixture({name: Subset(whole, [*range(60)]) for name in "abc"})))
    monkeypatch.setattr("feeder.loader.fast.work_json.MOST_IDS", 180)
    work_from_json(told, Roots([str(root)]))
    monkeypatch.setattr("feeder.loader.fast.work_json.MOST_IDS", 179)
    with pytest.raises(ArgumentError, match="subsets have more than 179 samples"):
        work_from_json(told, Roots([str(root)]))


def told(own: Any) -> dict[str, Any]:
    """Sources of which the last has a recipe of its own."""
    return {"sources": [["a", None], ["b", None], ["c", own]]}


def recipe_of(*ops: Any) -> Any:
    return recipe_to_json(T.Recipe.of(T.Compose(ops)))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sources": [["a", None]]}, "no sources of a mixture"),
        ({"sources": [["a", None], ["b", None], [3, None]]}, "no sources of a mixture"),
        (told(recipe_of(T.RandomResizedCrop(64))), "images of different sizes"),
        (told({"Views": [recipe_of(T.RandomResizedCrop(16))] * 2}), "images of different sizes"),
        (told(recipe_of(T.Resize(16))), "images of different sizes"),
        (told(recipe_of(T.RandomResizedCrop(T.ByEpoch({0: 16, 1: 64})))), "images of different sizes"),
        (told(recipe_of(T.RandomResizedCrop(16), NORMALIZE)), "make other images"),
        (told([["RandomResizedCrop"]]), "expected an op"),
        ({"pad": {"multiple": 4, "value": 0, "group_by_aspect": False}, "largest": [16, 16]}, "sizes"),
        ({"sources": {}}, "no sources of a mixture"),
        ({"sources": 5}, "no sources of a mixture"),
    ],
)
def test_damaged_sources_are_refused(root: Path, change: Mapping[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        work_from_json({**sent(work_of(mixture_of(root))), **change}, Roots([str(root)]))


def test_samples_of_no_source_fail(root: Path) -> None:
    work = work_of(mixture_of(root))
    found = work_from_json(sent(work), Roots([str(root)]))
    for i in (-1, len(work.reader), 1 << 62, -(1 << 63)):
        samples = Samples.of(np.zeros(1, np.int64), np.array([i]))
        with pytest.raises((IndexError, ArgumentError, OverflowError, ValueError)):
            found.run(0, SlotView.new(found.layout(1), samples))
