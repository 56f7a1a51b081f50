"""Mixtures in the loader: shares, passes, exact resume, and the draws of each source."""

from __future__ import annotations

import json
import pickle
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, Subset

import feeder
from feeder import transforms as T
from feeder.dataset.folders import FolderDataset
from feeder.dataset.mixture import Mixture
from feeder.dataset.shards import ShardDataset
from feeder.errors import ArgumentError, DecodeError
from feeder.loader.dataloader import DataLoader
from feeder.order.lanes import Lanes
from feeder.order.mixture_order import MixtureOrder
from feeder.order.mixture_shares import source_seed
from feeder.order.sample_order import Window
from feeder.order.skip import Skip
from feeder.shard.write.set_append import append
from feeder.shard.write.shard_options import ShardOptions
from feeder.shard.write.sharding import shard
from feeder.tools.cli import main
from feeder.transforms.recipe_json import recipe_to_json
from tests.support.batches import check_same, copied_epoch, same_batches
from tests.support.documents import blocks, smaller
from tests.support.images import make_tree
from tests.support.loader_data import CROP_AND_FLIP, write_shards, write_tree

SIZES = {"a": 50, "b": 20, "c": 12}
WEIGHTS = {"a": 0.5, "b": 0.3, "c": 0.2}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("sources")
    write_shards(found / "a", SIZES["a"])
    write_shards(found / "b", SIZES["b"], jpegs=True)
    write_tree(found / "c", SIZES["c"])
    return found


def sources_of(folder: Path, recipe: Any = CROP_AND_FLIP) -> dict[str, Any]:
    return {
        "a": ShardDataset(folder / "a", recipe, fields=("key", "index")),
        "b": ShardDataset(folder / "b", recipe, fields=("key", "index")),
        "c": FolderDataset(folder / "c", recipe, fields=("key", "index")),
    }


def loader_of(folder: Path, weights: Any = WEIGHTS, *, options: Any = None, **given: Any) -> DataLoader:
    mixture = Mixture(sources_of(folder), weights, **given)
    return DataLoader(mixture, **{"batch_size": 8, "shuffle": True, "seed": 3, **(options or {})})


def taken(batches: list[Any]) -> list[tuple[int, int]]:
    """(source, index there) of each sample, in order."""
    return [pair for *_, index, source in batches for pair in zip(source.tolist(), index.tolist(), strict=True)]


def test_batches_mix_the_sources_by_weight_and_end_with_their_numbers(folder: Path) -> None:
    loader = loader_of(folder, stop="all_exhausted")
    assert loader.dataset.names == ("a", "b", "c")
    assert len(loader.dataset) == 100
    assert len(loader) == 13
    batches = copied_epoch(loader)
    assert [len(batch) for batch in batches] == [5] * 13
    images, labels, keys, index, source = batches[0]
    assert (images.shape, labels.dtype, source.dtype) == ((8, 3, 16, 16), torch.int64, torch.int64)
    assert (len(keys), len(index), source.shape) == (8, 8, (8,))
    counts = Counter(taken(batches))
    assert Counter(number for number, _ in taken(batches)) == {0: 50, 1: 30, 2: 20}
    assert all(counts[0, i] == 1 for i in range(50))
    assert {counts[1, i] for i in range(20)} == {1, 2}
    assert {counts[2, i] for i in range(12)} == {1, 2}
    assert loader.stats()["sources"] == {
        "a": {"samples": 50, "passes": 1},
        "b": {"samples": 30, "passes": 2},
        "c": {"samples": 20, "passes": 2},
    }
    loader.close()


def test_the_order_of_the_names_has_no_effect(folder: Path) -> None:
    given = sources_of(folder)
    again = dict(reversed(given.items()))
    one, other = (DataLoader(Mixture(each, WEIGHTS), batch_size=8, shuffle=True, seed=3) for each in (given, again))
    check_same(copied_epoch(one), copied_epoch(other))
    assert one.state_dict() == other.state_dict()


@pytest.mark.parametrize("shuffle", [True, False, Window(8)], ids=str)
def test_a_pass_has_the_samples_and_the_images_of_an_epoch_of_the_source_alone(folder: Path, shuffle: Any) -> None:
    loader = loader_of(folder, {"a": 1, "b": 2, "c": 1}, stop="all_exhausted", options={"shuffle": shuffle})
    made: dict[int, list[Any]] = {0: [], 1: [], 2: []}
    for _ in range(2):
        for images, labels, keys, index, source in copied_epoch(loader):
            for row, number in enumerate(source.tolist()):
                made[number].append((images[row], labels[row], keys[row], index[row]))
    for number, (name, dataset) in enumerate(sources_of(folder).items()):
        count, size = int(loader.dataset.shares.turn(0)[0].counts[number]), SIZES[name]
        passes = -(-count // size)  # that an epoch begins
        alone = DataLoader(dataset, batch_size=7, shuffle=shuffle, seed=source_seed(3, name))
        for epoch in range(2):
            expected = []
            for begun in range(epoch * passes, (epoch + 1) * passes):
                alone.set_epoch(begun)
                expected += [sample for batch in copied_epoch(alone) for sample in zip(*batch, strict=True)]
            had = made[number][epoch * count : (epoch + 1) * count]
            assert len(had) == count
            assert all(torch.equal(a[0], b[0]) and a[1:] == b[1:] for a, b in zip(had, expected, strict=False))


def test_a_source_gives_the_same_whatever_is_mixed_with_it(folder: Path) -> None:
    given = sources_of(folder)
    both = [Mixture({"a": given["a"], "b": given["b"]}, {"a": 1, "b": 1}), Mixture(given, {"a": 2, "b": 1, "c": 1})]
    seen = []
    for mixture in both:
        found = {}
        for images, _, _, index, source in DataLoader(mixture, batch_size=5, shuffle=True, seed=3):
            for row in np.flatnonzero(source.numpy() == 0).tolist():
                found[int(index[row])] = images[row].clone()
        seen.append(found)
    few, many = sorted(seen, key=len)
    assert set(few) < set(many)
    assert all(torch.equal(image, many[i]) for i, image in few.items())


@pytest.mark.parametrize("given", [{"stop": "all_exhausted"}, {"samples": 70}], ids=str)
def test_a_run_resumes_exactly_with_other_ranks_workers_and_batch_sizes(folder: Path, given: Any) -> None:
    whole = loader_of(folder, **given)
    expected = [pair for _ in range(3) for pair in taken(copied_epoch(whole))]
    length = len(whole.dataset)

    first = loader_of(folder, **given, options={"num_workers": 2})
    copied_epoch(first)
    batches = iter(first)
    kept = [next(batches) for _ in range(3)]
    state = json.loads(json.dumps(first.state_dict()))
    assert taken(kept) == expected[length : length + 24]
    first.close()

    ranks = [
        loader_of(folder, **given, options={"batch_size": 3, "rank": rank, "world_size": 2, "num_workers": rank})
        for rank in range(2)
    ]
    parts = []
    for rank in ranks:
        rank.load_state_dict(state)
        parts.append([taken([batch]) for batch in copied_epoch(rank)])
        rank.close()
    rest = [pair for both in zip(*parts, strict=True) for part in both for pair in part]
    assert rest[: length - 24] == expected[length + 24 : 2 * length]
    assert ranks[0].state_dict()["epoch"] == 2


LANES = Lanes(4, window=4)


@pytest.mark.parametrize("given", [{}, {"samples": 70}, {"samples": 72, "batching": "per_source"}], ids=str)
def test_a_run_in_lanes_resumes_exactly_and_each_rank_reads_from_its_share(folder: Path, given: Any) -> None:
    def loader(batch_size: int, rank: int, world_size: int, workers: int = 0) -> DataLoader:
        options = {"batch_size": batch_size, "shuffle": LANES, "rank": rank, "world_size": world_size}
        return loader_of(folder, {"a": 5, "b": 2, "c": 1}, **given, options={**options, "num_workers": workers})

    def run(loaders: list[DataLoader]) -> list[tuple[int, int]]:
        parts = [[taken([batch]) for batch in copied_epoch(each)] for each in loaders]
        return [pair for step in zip(*parts, strict=True) for part in step for pair in part]

    both = [loader(4, rank, 2, rank) for rank in range(2)]
    read: list[set[tuple[int, int]]] = [set(), set()]
    epochs = []
    for _ in range(4):
        epochs.append(run(both))
        for at in range(0, len(epochs[-1]) - len(epochs[-1]) % 32, 4):  # in whole rounds of the lanes
            read[at // 4 % 2] |= {pair for pair in epochs[-1][at : at + 4] if pair[0] == 0}
    assert epochs[0] != epochs[1]
    assert len(read[0] & read[1]) <= 12  # at the ends of sections
    for each in both:
        each.close()

    begun = [loader(4, rank, 2) for rank in range(2)]
    iterators = [iter(each) for each in begun]
    had = [pair for _ in range(2) for each in iterators for pair in taken([next(each)])]
    assert had == epochs[0][:16]
    state = json.loads(json.dumps(begun[0].state_dict()))
    assert state["shuffle"] == {"lanes": 4, "window": 4, "block": 4}
    others = [loader(8, 0, 1, 1)] if "batching" in given else [loader(3, rank, 3) for rank in range(3)]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "rank . of . reads from about")
        for each in others:
            each.load_state_dict(state)
        found = [run(others), run(others)]
    assert found[0][: len(epochs[0]) - 16] == epochs[0][16:]
    assert found[1][: len(epochs[1])] == epochs[1]
    others[0].close()


def test_weights_skips_and_replays_in_lanes(folder: Path) -> None:
    options = {"batch_size": 4, "shuffle": LANES}
    whole = loader_of(folder, {0: WEIGHTS, 40: LATER}, samples=60, options=options)
    expected = taken(copied_epoch(whole)) + taken(copied_epoch(whole))
    loader = loader_of(folder, samples=60, options=options)
    loader.dataset.set_weights(LATER, at_sample=40)
    assert taken(copied_epoch(loader)) + taken(copied_epoch(loader)) == expected
    check_same([loader.replay(0, 3).batch], copied_epoch(loader_of(folder, samples=60, options=options))[3:4])

    source, own = expected[0]
    gone = loader.dataset.ids("abc"[source], [own])
    left = loader_of(folder, {0: WEIGHTS, 40: LATER}, samples=60, options={**options, "skip": gone})
    assert taken(copied_epoch(left)) == [pair for pair in expected[:60] if pair != expected[0]]

    by_rule = loader_of(folder, options=options)
    with pytest.raises(ArgumentError, match=r"set_weights can't change a Mixture in Lanes with stop="):
        by_rule.dataset.set_weights(LATER, at_sample=40)
    assert not by_rule.dataset.shares.changes


def test_sources_go_on_where_they_stood_with_a_number_of_samples(folder: Path) -> None:
    loader = loader_of(folder, samples=30)
    assert len(loader) == 4
    run = [pair for _ in range(5) for pair in taken(copied_epoch(loader))]
    for number, (name, size) in enumerate(SIZES.items()):
        own = [i for source, i in run if source == number]
        assert abs(len(own) - 150 * WEIGHTS[name]) <= 1
        for first in range(0, len(own) - size + 1, size):  # no sample comes again before all others
            assert len(set(own[first : first + size])) == size
    sums = loader.stats()["sources"]
    assert sums["a"] == {"samples": 75, "passes": 2}
    assert sum(each["samples"] for each in sums.values()) == 150


LATER = {"a": 0.1, "b": 0.9, "c": 0.0}
RULES: list[Any] = [
    {"stop": "first_exhausted"},
    {"stop": "all_exhausted"},
    {"stop": "all_exhausted_without_replacement"},
    {"samples": 70},
]


@pytest.mark.parametrize("given", RULES, ids=str)
@pytest.mark.parametrize("workers", [0, 2])
def test_weights_that_are_set_midway_are_those_of_a_schedule_and_resume_exactly(
    folder: Path, given: Any, workers: int
) -> None:
    """Before and after the change, for other ranks and batch sizes, also in a loader that does not know of it."""
    whole = loader_of(folder, {0: WEIGHTS, 53: LATER}, **given)
    lengths = [whole.dataset.samples_in(epoch) for epoch in range(3)]
    expected = [pair for _ in range(3) for pair in taken(copied_epoch(whole))]
    assert len(expected) == sum(lengths)

    loader = loader_of(folder, **given, options={"batch_size": 4, "num_workers": workers})
    before = len(loader)
    batches = iter(loader)
    had = taken([next(batches)])
    early = json.loads(json.dumps(loader.state_dict()))
    loader.dataset.set_weights(LATER, at_sample=53)
    assert len(loader) == -(-lengths[0] // 4)
    assert len(batches) == len(loader) - 1
    for batch in batches:
        had += taken([batch])
        if len(had) == 16:
            midway = json.loads(json.dumps(loader.state_dict()))
    assert had == expected[: lengths[0]]
    assert taken(copied_epoch(loader)) == expected[lengths[0] : lengths[0] + lengths[1]]
    late = json.loads(json.dumps(loader.state_dict()))
    assert loader.samples_of(1, 0).sources is not None
    check_same([loader.replay(1, 0).batch], copied_epoch_at(loader, 1)[:1])
    loader.close()

    for state, start in ((midway, 16), (late, lengths[0] + lengths[1])):
        parts = []
        for rank in range(2):
            again = loader_of(folder, **given, options={"batch_size": 3, "rank": rank, "world_size": 2})
            again.load_state_dict(state)
            assert again.state_dict()["weights"] == [[53, {"a": 0.1, "b": 0.9, "c": 0.0}]]
            parts.append([taken([batch]) for batch in copied_epoch(again)])
        rest = [pair for both in zip(*parts, strict=True) for part in both for pair in part]
        end = lengths[0] if start == 16 else sum(lengths)
        assert rest[: end - start] == expected[start:end]

    again = loader_of(folder, **given)
    again.load_state_dict(early)
    assert len(again) * 8 >= before * 4
    again.dataset.set_weights(LATER, at_sample=53)
    assert taken(copied_epoch(again)) == expected[4 : lengths[0]]


def copied_epoch_at(loader: DataLoader, epoch: int) -> list[Any]:
    loader.set_epoch(epoch)
    return copied_epoch(loader)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_change_of_what_is_over_or_ordered_ahead_is_refused_with_the_first_sample_that_can_be(
    folder: Path, workers: int
) -> None:
    loader = loader_of(
        folder, samples=70, options={"batch_size": 5, "num_workers": workers, "world_size": 2, "rank": 1}
    )
    batches = iter(loader)
    taken([next(batches)])
    with pytest.raises(ArgumentError, match=r"sample 9 of the run can't change.*give at_sample=(\d+) or") as no:
        loader.dataset.set_weights(LATER, at_sample=9)
    first = int(str(no.value).partition("give at_sample=")[2].partition(" ")[0])
    assert first == (10 if not workers else first)
    assert first % 10 == 0
    with pytest.raises(ArgumentError, match=f"sample {first - 1} of the run"):
        loader.dataset.set_weights(LATER, at_sample=first - 1)
    state = loader.state_dict()
    assert "weights" not in state
    loader.dataset.set_weights(LATER, at_sample=first)
    for _ in batches:
        pass
    with pytest.raises(ArgumentError, match=r"give at_sample=70 or more"):
        loader.dataset.set_weights(WEIGHTS, at_sample=69)
    loader.dataset.set_weights(WEIGHTS, at_sample=70)
    loader.close()
    for weights, message in [
        ({"a": 1, "b": 2}, "weights must have a number for each source"),
        ({"a": 0, "b": 0, "c": 0}, "not all 0"),
    ]:
        with pytest.raises(ArgumentError, match=message):
            loader.dataset.set_weights(weights, at_sample=700)
    with pytest.raises(ArgumentError, match=r"at_sample must be an integer of 0 or more, got 7\.5"):
        loader.dataset.set_weights(LATER, at_sample=7.5)
    again = loader_of(folder, samples=70, options={"batch_size": 5})
    again.load_state_dict(loader.state_dict())
    with pytest.raises(ArgumentError, match=r"give at_sample=70 or more"):
        again.dataset.set_weights(WEIGHTS, at_sample=69)


def test_all_loaders_of_a_mixture_go_on_by_weights_that_are_set(folder: Path) -> None:
    mixture = Mixture(sources_of(folder), WEIGHTS, samples=70)
    one, other = (DataLoader(mixture, batch_size=5, shuffle=True, seed=3) for _ in range(2))
    batches = iter(one)
    next(batches)
    mixture.set_weights({"a": 0, "b": 1, "c": 0}, at_sample=20)
    assert {source for source, _ in taken(copied_epoch(other))[20:]} == {1}
    assert {source for source, _ in taken([*batches])[15:]} == {1}
    copied = pickle.loads(pickle.dumps(mixture))
    assert {source for source, _ in taken(copied_epoch(DataLoader(copied, batch_size=5)))[20:]} == {1}


def test_later_entries_of_a_schedule_take_over_again_and_a_change_is_replaced_at_its_own_sample(folder: Path) -> None:
    own = {"a": 0, "b": 0, "c": 1}
    loader = loader_of(folder, {0: WEIGHTS, 40: LATER}, samples=70)
    for weights, at_sample in ((LATER, 16), (WEIGHTS, 24), (own, 16)):
        loader.dataset.set_weights(weights, at_sample=at_sample)
    found = taken(copied_epoch(loader))
    assert {source for source, _ in found[16:24]} == {2}
    assert found == taken(copied_epoch(loader_of(folder, {0: WEIGHTS, 16: own, 24: WEIGHTS, 40: LATER}, samples=70)))
    again = loader_of(folder, {0: WEIGHTS, 40: LATER}, samples=70)
    again.dataset.set_weights(own, at_sample=40)
    assert {source for source, _ in taken(copied_epoch(again))[40:]} == {2}


@pytest.mark.parametrize("given", RULES, ids=str)
def test_batches_of_one_source_come_in_exact_shares_and_resume_for_the_same_global_batch(
    folder: Path, given: Any
) -> None:
    given = {**given, "batching": "per_source"}
    whole = loader_of(folder, {0: WEIGHTS, 21: {"a": 1, "b": 1, "c": 0}}, **given, options={"batch_size": 4})
    epochs = [copied_epoch(whole) for _ in range(3)]
    found = [batch[-1].tolist() for batches in epochs for batch in batches]
    assert all(len(batch) == 4 and len(set(batch)) == 1 for batch in found)
    order = MixtureOrder(whole.dataset.shares.in_batches(4), 3, True)
    for epoch, batches in enumerate(epochs):
        ids = np.concatenate([order.ids(epoch, np.arange(order.samples_in(epoch)))])
        assert [i for _, i in taken(batches)] == (ids - np.array([0, 50, 70])[order.source_of(ids)]).tolist()
        if given.get("stop") in ("first_exhausted", "all_exhausted_without_replacement"):
            assert max(Counter(taken(batches)).values()) == 1
        elif given.get("stop") == "all_exhausted":
            seen = Counter(source for source, _ in {*taken(batches)})
            assert {0: 50, 1: 20}.items() <= seen.items()

    first = loader_of(folder, **given, options={"batch_size": 4})
    batches = iter(first)
    had = taken([next(batches), next(batches)])
    first.dataset.set_weights({"a": 1, "b": 1, "c": 0}, at_sample=21)  # with the next batch, from sample 24 on
    state = json.loads(json.dumps(first.state_dict()))
    parts = []
    for rank in range(2):
        again = loader_of(
            folder, **given, options={"batch_size": 2, "rank": rank, "world_size": 2, "num_workers": rank}
        )
        again.load_state_dict(state)
        parts.append([taken([batch]) for batch in copied_epoch(again)])
        again.close()
    had += [pair for both in zip(*parts, strict=True) for part in both for pair in part]
    assert had == taken(epochs[0])
    for options, message in [({"batch_size": 3}, "in batches of 4, and this loader has batches of 3, of all ranks")]:
        with pytest.raises(ArgumentError, match=message):
            loader_of(folder, **given, options=options).load_state_dict(state)
    with pytest.raises(ArgumentError, match="in batches of 4, and this loader has mixed batches"):
        loader_of(folder, stop=given.get("stop"), samples=given.get("samples")).load_state_dict(state)
    with pytest.raises(ArgumentError, match="batching='per_source' can't skip samples"):
        first.skip = [1]


def test_batches_of_one_source_that_a_source_can_not_fill_are_refused(folder: Path) -> None:
    for stop in ("first_exhausted", "all_exhausted_without_replacement"):
        with pytest.raises(ArgumentError, match=r"an epoch has 12 samples of source 'c', and a batch .* takes 16"):
            loader_of(folder, stop=stop, batching="per_source", options={"batch_size": 8, "rank": 1, "world_size": 2})
        paused = {"a": 2, "b": 1, "c": 0}
        loader = loader_of(folder, paused, stop=stop, batching="per_source", options={"batch_size": 16})
        assert {batch[-1][0].item() for batch in copied_epoch(loader)} == {0, 1}
        with pytest.raises(ArgumentError, match=r"12 samples of source 'c', and a batch .* takes 16"):
            loader.dataset.set_weights(WEIGHTS, at_sample=160)
        with pytest.raises(ArgumentError, match=r"12 samples of source 'c', and a batch .* takes 16"):
            loader_of(folder, {0: paused, 160: WEIGHTS}, stop=stop, batching="per_source", options={"batch_size": 16})
    with pytest.raises(ArgumentError, match="samples=7 is less than a batch of all ranks, 8"):
        loader_of(folder, samples=7, batching="per_source")
    with pytest.raises(ArgumentError, match="batching must be one of mixed, per_source"):
        loader_of(folder, batching="single")
    passes = Mixture(sources_of(folder), repeats={"c": 2}, batching="per_source")
    loader = DataLoader(passes, batch_size=8, shuffle=True)
    assert len(loader) == 50 // 8 + 20 // 8 + 24 // 8
    assert Counter(batch[-1][0].item() for batch in copied_epoch(loader)) == {0: 6, 1: 2, 2: 3}


def test_groups_of_one_dataset_have_equal_shares_and_resume_exactly(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = ShardDataset(folder / "a", CROP_AND_FLIP, fields=("key", "index"))
    whole = Subset(dataset, range(45))  # 7 classes, of which three have a sample more
    loader = DataLoader(Mixture.by(whole, "label"), batch_size=5, shuffle=True, seed=3)
    assert len(loader.dataset) == 45
    names = loader.dataset.names
    assert names == tuple(map(str, dataset.classes or range(7)))
    expected = [copied_epoch(loader) for _ in range(2)]
    for _, labels, _, index, source in expected[0] + expected[1]:
        assert torch.equal(labels, index % 7)
        assert [names[number][-1] for number in source.tolist()] == [str(label) for label in labels.tolist()]
    counts = Counter(number for number, _ in taken(expected[0] + expected[1]))
    assert all(abs(counts[number] - 90 / 7) < 3 for number in range(7))
    for group in range(7):  # a group's samples come again after all others
        own = [i for number, i in taken(expected[0] + expected[1]) if number == group]
        size = len(range(group, 45, 7))
        assert len(set(own[:size])) == size

    first = DataLoader(Mixture.by(whole, "label"), batch_size=3, shuffle=True, seed=3, num_workers=1)
    had = taken(copied_epoch(first))
    again = DataLoader(Mixture.by(whole, "label"), batch_size=9, shuffle=True, seed=3)
    again.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert had + taken(copied_epoch(again)) == taken(expected[0] + expected[1])
    first.close()

    by_width = Mixture.by(dataset, "width", stop="all_exhausted_without_replacement")
    assert by_width.names == tuple(sorted({str(width) for width in dataset.column("width")}))
    assert len(by_width) == 50
    with pytest.raises(ArgumentError, match="weights must have a number for each source"):
        Mixture.by(whole, "label", {"none": 1})

    monkeypatch.setattr(type(dataset), "classes", [*map(str, range(6)), "last"], raising=False)
    monkeypatch.setattr(dataset.reader, "labels", lambda: np.arange(50) % 8 - 1, raising=False)
    unlabelled = Mixture.by(dataset, "label")
    assert unlabelled.names == ("-1", "0", "1", "2", "3", "4", "5", "last")
    assert sum(map(len, unlabelled.sources)) == 50
    monkeypatch.setattr(type(dataset), "classes", [*map(str, range(6)), "5"], raising=False)
    with pytest.raises(ArgumentError, match="2 groups of 'label' have the name '5'"):
        Mixture.by(dataset, "label")
    monkeypatch.setattr(dataset.reader, "labels", lambda: np.zeros(50, np.float32), raising=False)
    with pytest.raises(ArgumentError, match="by whole numbers or text, and 'label' has others"):
        Mixture.by(dataset, "label")


def test_groups_of_joined_sets_have_the_samples_of_all_of_them(folder: Path) -> None:
    a, b, _ = sources_of(folder).values()
    joined: Any = ConcatDataset([a, b])
    mixture = Mixture.by(joined, "label", stop="all_exhausted_without_replacement")
    assert [len(source) for source in mixture.sources] == [11, 10, 10, 10, 10, 10, 9]
    seen: list[tuple[str, int]] = []
    for _, labels, keys, _, source in DataLoader(mixture, batch_size=8, shuffle=True, seed=3):
        assert [mixture.names[number][-1] for number in source.tolist()] == [str(label) for label in labels.tolist()]
        seen += zip(keys, labels.tolist(), strict=True)
    expected = [(dataset[i][2], dataset[i][1]) for dataset in (a, b) for i in range(len(dataset))]
    assert sorted(seen) == sorted(expected)
    assert len(Mixture.by(joined, "width")) == 70


def test_a_state_of_another_schedule_is_refused_and_one_with_damaged_weights(folder: Path) -> None:
    state = loader_of(folder, {0: WEIGHTS, 53: LATER}).state_dict()
    with pytest.raises(ArgumentError, match="its mixture is"):
        loader_of(folder).load_state_dict(state)
    for weights in ([[1]], [[1, {"a": 1}]], 5, {"a": 1}):
        with pytest.raises(ArgumentError, match="this state is damaged: its weights are"):
            loader_of(folder).load_state_dict({**loader_of(folder).state_dict(), "weights": weights})


def test_recipes_may_differ_in_all_but_the_output(folder: Path) -> None:
    given = sources_of(folder)
    given["b"] = ShardDataset(folder / "b", T.Compose([T.Resize((16, 16))]), fields=("key", "index"))
    batches = copied_epoch(DataLoader(Mixture(given), batch_size=8, shuffle=True, seed=3))
    alone = next(iter(DataLoader(given["b"], batch_size=20)))
    seen = 0
    for images, _, _, index, source in batches:
        for row in np.flatnonzero(source.numpy() == 1).tolist():
            assert torch.equal(images[row], alone[0][index[row]])
            seen += 1
    assert seen == 20
    assert DataLoader(Mixture(sources_of(folder))).state_dict()["recipe"] == recipe_to_json(given["a"].recipe)
    state = DataLoader(Mixture(given)).state_dict()
    assert "recipe" not in state
    assert state["recipes"] == {name: recipe_to_json(each.recipe) for name, each in given.items()}

    given["b"] = ShardDataset(folder / "b", T.Compose([T.Resize((16, 8))]), fields=("key", "index"))
    with pytest.raises(ArgumentError, match=r"sources 'a' and 'b' make other images"):
        Mixture(given)


def _darker(image: Any) -> Any:
    return image // 2


@pytest.mark.parametrize(
    ("ops", "options"),
    [
        ([T.ColorJitter(0.5), T.RandomErasing(1.0, value=7)], {}),
        ([T.Lambda(_darker, on="array"), T.RandomVerticalFlip()], {}),
        ([T.Lambda(_darker, on="tensor"), T.Normalize([0.5] * 3, [0.2] * 3)], {}),
        ([T.Normalize([0.5] * 3, [0.2] * 3)], {"memory_format": torch.channels_last}),
        ([T.RandomSolarize(99, p=1.0)], {"backend": "pillow"}),
    ],
    ids=["programs", "function between", "function before floats", "by pixel", "pillow"],
)
@pytest.mark.parametrize("workers", [0, 2])
def test_whatever_makes_a_sample_fills_its_row_and_no_other(folder: Path, ops: Any, options: Any, workers: int) -> None:
    given = sources_of(folder, T.Compose([T.RandomResizedCrop(16), *ops]))
    loader = DataLoader(Mixture(given), batch_size=8, shuffle=True, seed=3, num_workers=workers, **options)
    made = {
        (number, int(i)): (image, label)
        for images, labels, _, index, source in copied_epoch(loader)
        for image, label, i, number in zip(images, labels, index, source.tolist(), strict=True)
    }
    loader.close()
    for number, (name, dataset) in enumerate(given.items()):
        alone = DataLoader(dataset, batch_size=7, seed=source_seed(3, name), **options)
        for images, labels, _, index in alone:
            for image, label, i in zip(images, labels, index.tolist(), strict=True):
                found = made.pop((number, i))
                assert torch.equal(found[0], image)
                assert found[1] == label
    assert not made


def test_subsets_and_concatenations_are_sources(folder: Path) -> None:
    a, b, c = sources_of(folder).values()
    mixture = Mixture({"part": Subset(a, range(7)), "both": ConcatDataset([b, c])}, {"part": 1, "both": 1})
    found = taken(copied_epoch(DataLoader(mixture, batch_size=4, shuffle=True, seed=1)))
    assert sorted(i for source, i in found if source == 1) == list(range(7))
    assert sum(source == 0 for source, _ in found) == 7


def test_a_set_is_a_source_with_what_was_appended_and_its_earlier_version_resumes(tmp_path: Path, folder: Path) -> None:
    shard(str(make_tree(tmp_path / "tree", 2, 4)), str(tmp_path / "set"))

    def loader(**given: Any) -> DataLoader:
        own = ShardDataset(tmp_path / "set", CROP_AND_FLIP, fields=("key", "index"), **given)
        sources = {"own": own, "b": sources_of(folder)["b"]}
        return DataLoader(Mixture(sources, stop="all_exhausted"), batch_size=7, shuffle=True, seed=3)

    whole = taken(copied_epoch(loader()))
    first = loader()
    had = taken([next(iter(first))])
    state = json.loads(json.dumps(first.state_dict()))
    append(str(tmp_path / "set"), str(make_tree(tmp_path / "more", 3, 2, first_seed=50)), ShardOptions())
    found = Counter(taken(copied_epoch(loader())))
    assert sum(source == 1 for source, _ in found) == 8 + 6
    with pytest.raises(ArgumentError, match=r"the state has 8 samples of it .*, this loader has 14 samples of it"):
        loader().load_state_dict(state)
    again = loader(version=1)
    again.load_state_dict(state)
    assert had + taken(copied_epoch(again)) == whole


@pytest.mark.parametrize("num_workers", [0, 2])
def test_bad_samples_are_replaced_from_their_own_source(tmp_path: Path, folder: Path, num_workers: int) -> None:
    given = sources_of(folder)
    given["b"] = ShardDataset(write_shards(tmp_path, 20, bad=(2, 11)), CROP_AND_FLIP, fields=("key", "index"))
    options: dict[str, Any] = {"batch_size": 8, "shuffle": True, "seed": 3, "num_workers": num_workers}
    with pytest.raises(DecodeError, match=r"00000002|00000011"):
        copied_epoch(DataLoader(Mixture(given), **options))
    loader = DataLoader(Mixture(given), **options, on_error="skip")
    with pytest.warns(UserWarning, match="2 of 82 samples"):
        batches = copied_epoch(loader)
    assert Counter(source for source, _ in taken(batches)) == {0: 50, 1: 20, 2: 12}
    substitutions = loader.stats()["substitutions"]
    assert sorted(each["key"] for each in substitutions) == ["00000002", "00000011"]
    named = loader.dataset.named([each["substitute"] for each in substitutions])
    assert {name for name, _ in named} == {"b"}
    assert not {2, 11} & {i for _, i in named}
    loader.close()


def test_skipped_samples_and_batches_of_the_run_are_named_by_source(folder: Path) -> None:
    loader = loader_of(folder, stop="all_exhausted")
    batches = copied_epoch(loader)
    samples = loader.samples_of(0, 4)
    assert samples.sources == [(("a", "b", "c")[number], i) for number, i in taken([batches[4]])]
    assert loader.dataset.named(samples.ids) == samples.sources
    check_same([loader.replay(0, 4).batch], [batches[4]])

    gone = loader.dataset.ids("b", [3, 17])
    again = loader_of(folder, stop="all_exhausted", options={"skip": gone})
    expected = [pair for pair in taken(batches) if pair not in {(1, 3), (1, 17)}]
    assert taken(copied_epoch(again)) == expected
    assert again.state_dict()["skip"]["ids"] == gone.tolist()
    again.skip = Skip(spans=[loader.span_of(1, 0, 2)])
    assert taken(copied_epoch(again)) == taken(copied_epoch(loader))[16:]

    part = Mixture({"a": Subset(sources_of(folder)["a"], [40, 5, 9]), "b": sources_of(folder)["b"]})
    assert part.named(part.ids("a", [9, 40])) == [("a", 40), ("a", 9)]
    with pytest.raises(ArgumentError, match="no source 'z'; it has 'a', 'b'"):
        part.ids("z", [0])
    with pytest.raises(ArgumentError, match="source 'b' has samples 0 to 19, got 20 to 20"):
        part.ids("b", 20)


def test_samples_that_were_taken_down_are_named_by_their_source(tmp_path: Path) -> None:
    shard(str(make_tree(tmp_path / "tree")), str(tmp_path / "set"), ShardOptions(shuffle=False))
    key = ShardDataset(tmp_path / "set").reader.field(6, "key")
    assert main(["takedown", str(tmp_path / "set"), key, "-q"]) == 0
    whole = ShardDataset(tmp_path / "set", T.RandomResizedCrop(8))
    loader = DataLoader(Mixture({"a": whole, "b": Subset(whole, [0, 6])}), batch_size=len(whole) + 2)
    next(iter(loader))
    samples = loader.samples_of(0, 0)
    assert samples.sources is not None
    gone = {samples.sources[samples.ids.tolist().index(i)]: other for i, other in samples.taken_down.items()}
    assert gone.keys() == {("a", 6), ("b", 6)}
    assert {whole.reader.field(int(other), "key") for other in gone.values() if other is not None} == {
        samples.keys[samples.sources.index(("a", 6))]
    }
    loader.close()


def test_a_state_of_other_sources_is_refused_by_name(folder: Path) -> None:
    state = loader_of(folder).state_dict()
    with pytest.raises(ArgumentError, match=r"source 'a' of the Mixture differs: .* share of 0\.5, .* share of 0\.25"):
        loader_of(folder, {"a": 1, "b": 2, "c": 1}).load_state_dict(state)
    given = sources_of(folder)
    given["d"] = given["c"]
    more = DataLoader(Mixture(given, {**WEIGHTS, "d": 0.0001}), batch_size=8, shuffle=True, seed=3)
    with pytest.raises(ArgumentError, match="source 'd' was added, so the Mixture differs"):
        more.load_state_dict(state)
    with pytest.raises(ArgumentError, match="source 'd' was removed, so the Mixture differs"):
        loader_of(folder).load_state_dict(more.state_dict())
    more = DataLoader(Mixture(given, repeats={"d": 2}), batch_size=8, shuffle=True, seed=3)
    with pytest.raises(ArgumentError, match="Mixture differs"):
        more.load_state_dict(loader_of(folder, None).state_dict())
    with pytest.raises(ArgumentError, match="its mixture is"):
        loader_of(folder, stop="all_exhausted").load_state_dict(state)
    with pytest.raises(ArgumentError, match="this state is of a Mixture"):
        DataLoader(given["a"], shuffle=True, seed=3).load_state_dict(state)


def test_states_do_not_go_from_a_mixture_to_another_dataset_or_back(folder: Path) -> None:
    """Both have the same samples, and a place in one order is none in the other."""
    names = {name: source for name, source in sources_of(folder).items() if name != "c"}
    mixed = DataLoader(Mixture(names, samples=70), batch_size=8, shuffle=True, seed=3)
    joined = DataLoader(ConcatDataset([*names.values()]), batch_size=8, shuffle=True, seed=3)
    states = []
    for loader in (mixed, joined):
        next(iter(loader))
        states.append(loader.state_dict())
    with pytest.raises(ArgumentError, match="this state is of a Mixture, and this loader's dataset is no Mixture"):
        joined.load_state_dict(states[0])
    with pytest.raises(ArgumentError, match="this state is of no Mixture, and this loader's dataset is a Mixture"):
        mixed.load_state_dict(states[1])
    with pytest.raises(ArgumentError, match="does not fit"):
        mixed.load_state_dict({**states[0], "mixture": {}})
    with pytest.raises(AttributeError, match="make another Mixture of sources with other recipes"):
        mixed.dataset.transform = CROP_AND_FLIP
    with pytest.raises(ArgumentError, match=r"at most 2\*\*50 samples.*differ less"):
        Mixture(names, {"a": 1e-16, "b": 1.0}, stop="all_exhausted")


def test_classes_are_kept_or_merged_by_name(folder: Path, tmp_path: Path) -> None:
    given = sources_of(folder)
    assert given["c"].classes == ["class"]
    merged = Mixture(given, labels="merge")
    assert merged.classes == [*(f"class{k}" for k in range(7)), "class"]
    for mixture, other in ((Mixture(given), 0), (merged, 7)):
        for _, labels, _, index, source in DataLoader(mixture, batch_size=8):
            expected = torch.where(source == 2, other, index % 7)
            assert torch.equal(labels, expected)
    assert given["c"].classes == ["class"]
    assert given["c"].targets == [0] * 12


def test_classes_without_names_and_joined_sets_are_not_merged(folder: Path) -> None:
    given = sources_of(folder)
    unnamed = ShardDataset(folder / "b", CROP_AND_FLIP, fields=("key", "index"), labels=False)
    for source in (unnamed, Subset(unnamed, [1, 2])):
        with pytest.raises(
            ArgumentError, match=r"^labels='merge' needs class names, and those of .*/b/index\.bin are not"
        ):
            Mixture({"a": given["a"], "b": source}, labels="merge")
    joined: Any = ConcatDataset([given["b"], given["c"]])
    with pytest.raises(ArgumentError, match="labels='merge' is for single sets and folders, and Subset of them; not"):
        Mixture({"a": given["a"], "b": joined}, labels="merge")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"collate_fn": list}, "leave out sampler, collate_fn and sizes="),
        ({"sampler": [0, 1]}, "leave out sampler, collate_fn and sizes="),
        ({"sizes": feeder.PadToBatch()}, "leave out sampler, collate_fn and sizes="),
        ({"batch_size": None}, r"and sizes=\. Here batch_size is None"),
    ],
    ids=str,
)
def test_what_a_mixture_does_not_have_is_refused(folder: Path, options: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        loader_of(folder, options=options)


def test_sources_that_do_not_go_together_are_refused(folder: Path) -> None:
    given = sources_of(folder)
    for sources, message in [
        ({}, "one or more sources"),
        ([given["a"]], "mapping of names"),
        ({"a": given["a"], "x": [1]}, "source 'x' of the Mixture is a list"),
        ({"a": given["a"], "x": Mixture(given)}, "source 'x' of the Mixture is a Mixture"),
        ({"a": given["a"], "x": Subset(given["a"], [])}, "source 'x' has no samples"),
        ({"a": given["a"], "x": ShardDataset(folder / "a", CROP_AND_FLIP)}, "differ in targets or fields"),
        ({"a": ShardDataset(folder / "a", T.RandomResizedCrop(T.BUCKET))}, "sizes by bucket or by epoch"),
    ]:
        with pytest.raises(ArgumentError, match=message):
            Mixture(sources)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="labels must be one of keep, merge"):
        Mixture(given, labels="both")  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="images have sizes of their own"):
        DataLoader(Mixture(sources_of(folder, None)), batch_size=2)
    mixture = Mixture(given)
    with pytest.raises(ArgumentError, match=r"Mixture\.by takes one dataset, not a Mixture: give it one of"):
        Mixture.by(mixture, "label")
    wrapped: list[Any] = [Subset(mixture, [0]), ConcatDataset([mixture, given["a"]])]
    for dataset in wrapped:
        with pytest.raises(ArgumentError, match="can't be part of a Subset or ConcatDataset"):
            DataLoader(dataset, batch_size=2)
    with pytest.raises(TypeError, match=r"give it to feeder\.DataLoader"):
        mixture[0]


def test_workers_take_over_views_and_options_that_a_loader_has(folder: Path) -> None:
    recipe = T.Views([CROP_AND_FLIP, T.Compose([T.RandomResizedCrop(8)])])
    given = {name: type(each)(folder / name, recipe, fields=["index"]) for name, each in sources_of(folder).items()}
    options: dict[str, Any] = {"batch_size": 8, "shuffle": True, "seed": 3, "mix": T.MixUp(num_classes=7)}
    epochs = []
    for workers in (0, 2):
        loader = DataLoader(Mixture(given, WEIGHTS), num_workers=workers, **options)
        epochs.append([(*views, *rest) for views, *rest in copied_epoch(loader)])
        loader.close()
    assert same_batches(*epochs)
    assert epochs[0][0][1].shape == (8, 3, 8, 8)
    again = pickle.loads(pickle.dumps(DataLoader(Mixture(given, WEIGHTS), **options)))
    assert same_batches([(*views, *rest) for views, *rest in copied_epoch(again)], epochs[0])


def test_the_loaders_order_is_that_of_the_mixture(folder: Path) -> None:
    loader = loader_of(folder, repeats={"c": 3}, weights=None)
    assert len(loader.dataset) == 50 + 20 + 36
    order = MixtureOrder(loader.dataset.shares, 3, True)
    sampler = iter(loader.sampler)
    assert [next(sampler) for _ in range(40)] == order.ids(0, np.arange(40)).tolist()
    assert Counter(taken(copied_epoch(loader))) == Counter(
        [(0, i) for i in range(50)] + [(1, i) for i in range(20)] + [(2, i) for i in range(12)] * 3
    )


def test_the_examples_of_the_docs_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_shards(tmp_path / "web-shards", 40)
    write_shards(tmp_path / "photos-shards", 30, jpegs=True)
    write_tree(tmp_path / "own", 20)
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for block in blocks("docs/mixtures.md", "python"):
        fewer = {"100_000": "400", "200_000": "80", "500_000": "160", "200 * 64": "200"}
        exec(smaller(block.text, fewer), names)
    names["loader"].close()
    assert len(names["oversampled"]) == 40 + 30 + 5 * 20
