"""Samples and spans that a loader leaves out: the rest as it was, resumed, replayed and split by rank."""

from __future__ import annotations

import copy
import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Subset

import feeder
from feeder import transforms as T
from feeder.errors import ArgumentError
from feeder.loader.fast.sample_maker import Work
from feeder.loader.fast.work_json import work_from_json, work_to_json
from feeder.service.roots import Roots
from feeder.shard.write.shard_options import ShardOptions
from feeder.shard.write.sharding import shard
from tests.support.images import make_tree

RECIPE = T.Compose([T.RandomResizedCrop(8), T.RandomHorizontalFlip(), T.ToDtype("float32", scale=True)])
OUT = [3, 4, 17, 29]


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """30 images in shards of 4."""
    root = tmp_path_factory.mktemp("skip")
    make_tree(root / "tree")
    shard(str(root / "tree"), str(root / "set"), ShardOptions(samples_per_shard=4))
    return root / "set"


def loader(shards: Path, batch_size: int = 4, **options: Any) -> feeder.DataLoader:
    data = feeder.ShardDataset(shards, RECIPE, ["index"])
    return feeder.DataLoader(data, batch_size, **{"shuffle": True, "seed": 5, **options})


def resumed(run: feeder.DataLoader, shards: Path, batch_size: int = 4, **options: Any) -> feeder.DataLoader:
    other = loader(shards, batch_size, **options)
    other.load_state_dict(json.loads(json.dumps(run.state_dict())))
    return other


def taken(run: feeder.DataLoader) -> list[Any]:
    """All batches, which hold no slots of the loader."""
    return [tuple(each.clone() for each in batch) for batch in run]


def samples(batches: Any) -> list[tuple[int, torch.Tensor]]:
    return [pair for images, _, ids in batches for pair in zip(ids.tolist(), images.clone(), strict=True)]


def ids_of(batches: Any) -> list[int]:
    return [i for i, _ in samples(batches)]


@pytest.mark.parametrize("shuffle", [False, True, feeder.Window(7), feeder.Lanes(2, 5)], ids=repr)
@pytest.mark.parametrize("num_workers", [0, 1])
def test_the_rest_keeps_its_order_and_its_pixels(shards: Path, shuffle: Any, num_workers: int) -> None:
    whole = samples(loader(shards, shuffle=shuffle))
    run = loader(shards, shuffle=shuffle, skip=OUT, num_workers=num_workers)
    assert len(run) == 7
    batches = taken(run)
    assert [len(ids) for *_, ids in batches] == [4] * 6 + [2]
    rest = [(i, pixels) for i, pixels in whole if i not in OUT]
    found = samples(batches)
    assert [i for i, _ in found] == [i for i, _ in rest]
    assert all(torch.equal(a, b) for (_, a), (_, b) in zip(found, rest, strict=True))
    assert not {*OUT} & {*ids_of(run)}  # in the next epoch, too


def test_a_resumed_run_goes_on_alike_and_skips_what_the_state_says(shards: Path) -> None:
    whole = loader(shards, skip=OUT)
    first, second = ids_of(whole), ids_of(whole)
    for steps in range(7):
        run = loader(shards, skip=OUT)
        iterator = iter(run)
        begun = ids_of(next(iterator) for _ in range(steps)) if steps else []
        state = run.state_dict()
        again = resumed(run, shards, 3)
        assert again.skip == feeder.Skip(OUT)
        assert again.state_dict()["skip"] == state["skip"]
        assert begun + ids_of(again) == first
        assert ids_of(again) == second


def test_a_run_takes_up_and_gives_up_a_skip_in_the_middle_of_an_epoch(shards: Path) -> None:
    order = ids_of(loader(shards))
    run = loader(shards)
    iterator = iter(run)
    begun = ids_of(next(iterator) for _ in range(3))
    out = [begun[1], order[13], order[20]]
    skipping = resumed(run, shards, skip=out)
    iterator = iter(skipping)
    middle = ids_of(next(iterator) for _ in range(2))
    assert middle == [order[place] for place in (12, 14, 15, 16, 17, 18, 19, 21)]
    anew = resumed(skipping, shards, skip=[])
    assert anew.skip == feeder.Skip()
    assert ids_of(anew) == order[22:]
    assert sorted(ids_of(anew)) == [*range(30)]


def test_all_batches_come_again_from_the_state(shards: Path) -> None:
    run = loader(shards)
    iterator = iter(run)
    batches = [next(iterator) for _ in range(2)]
    run = resumed(run, shards, skip=OUT)
    iterator = iter(run)
    batches += [next(iterator) for _ in range(2)]
    run = resumed(run, shards, 3, skip=feeder.Skip([5], [(0, 18, 23)]))
    batches += list(run)
    run = resumed(run, shards)
    for step, (images, _, ids) in enumerate(batches):
        again = run.replay(0, step)
        assert again.samples.ids.tolist() == ids.tolist()
        assert torch.equal(again.batch[0], images)
    with pytest.raises(ArgumentError, match=f"epoch 0 has {len(batches)} steps"):
        run.samples_of(0, len(batches))


def test_a_span_is_left_out_of_its_epoch_only(shards: Path) -> None:
    run = loader(shards)
    epochs = [list(run) for _ in range(3)]
    span = run.span_of(1, 2, 4)
    assert span == (1, 8, 16)
    assert run.span_of(1, 6, 8) == (1, 24, 30)
    skipping = loader(shards, skip=feeder.Skip(spans=[span]))
    lengths = []
    for epoch in range(3):
        lengths.append(len(skipping))
        batches = epochs[epoch][:2] + epochs[epoch][4:] if epoch == 1 else epochs[epoch]
        assert ids_of(skipping) == ids_of(batches)
    assert lengths == [8, 6, 8]


def test_a_run_skips_the_spike_that_it_was_resumed_before(shards: Path) -> None:
    run = loader(shards)
    iterator = iter(run)
    checkpoint: dict[str, Any] = {}
    batches = []
    for step in range(7):
        batches.append(next(iterator))
        if step == 2:
            checkpoint = run.state_dict()
    again = loader(shards, skip=feeder.Skip(spans=[run.span_of(0, 4, 6)]))
    again.load_state_dict(checkpoint)
    found = list(again)
    assert ids_of(found[:2]) == ids_of([batches[3], batches[6]])


def test_ranks_share_what_is_left(shards: Path) -> None:
    alone = ids_of(loader(shards, 8, skip=OUT))
    ranks = [loader(shards, rank=rank, world_size=2, skip=OUT) for rank in range(2)]
    assert {len(run) for run in ranks} == {4}
    batches = [[*run] for run in ranks]
    joined = [i for pair in zip(*batches, strict=True) for batch in pair for i in batch[2].tolist()]
    assert joined == alone


def test_a_loader_may_skip_more_from_an_epoch_to_the_next(shards: Path) -> None:
    run = loader(shards, num_workers=1, persistent_workers=True)
    assert len(ids_of(run)) == 30
    run.skip = OUT
    assert run.skip == feeder.Skip(OUT)
    assert len(run) == 7
    second = ids_of(run)
    assert not {*OUT} & {*second}
    assert run.samples_of(1, 0).ids.tolist() == second[:4]
    assert run.samples_of(0, 7).ids.size == 2


def test_no_substitute_is_a_sample_that_is_skipped(shards: Path, tmp_path: Path) -> None:
    make_tree(tmp_path / "tree")
    bad = sorted((tmp_path / "tree").rglob("*.jpg"))[0]
    bad.write_bytes(b"no image")
    data = feeder.FolderDataset(tmp_path / "tree", RECIPE, ["index"])
    given: set[int] = set()
    out = [*range(1, 29)]
    run = feeder.DataLoader(data, 2, shuffle=True, on_error="skip", num_workers=1, persistent_workers=True)
    with pytest.warns(UserWarning, match="were bad"):
        taken(run)
    run.skip = out  # of a worker that has begun
    for _ in range(4):
        with pytest.warns(UserWarning, match="were bad"):
            given |= {*ids_of(run)}
    assert given == {29}
    assert {each["substitute"] for each in run.stats()["substitutions"][1:]} == {29}


def test_a_server_on_another_node_takes_no_skipped_substitute(shards: Path) -> None:
    data = feeder.ShardDataset(shards, RECIPE)
    work = Work(data.reader, data.recipe, "cpu", skip=True, left_out=np.array(OUT))
    sent = json.loads(json.dumps(work_to_json(work)))
    here = Roots([shards])
    there = work_from_json(sent, here)
    drawn = [other for position in range(30) for other in there.substitutes(0, position)]
    assert drawn == [other for position in range(30) for other in work.substitutes(0, position)]
    assert not {*OUT} & {*drawn}
    with pytest.raises(ArgumentError, match="no work of this version"):
        work_from_json(sent | {"left_out": ["3"]}, here)


def test_a_subset_skips_by_the_ids_of_the_whole_dataset(shards: Path) -> None:
    data = feeder.ShardDataset(shards, RECIPE, ["index"])
    part = Subset(data, [9, 4, 3, 4, 20])
    assert ids_of(feeder.DataLoader(part, 2, skip=[4, 5])) == [9, 3, 20]
    with pytest.raises(ArgumentError, match="skip has sample 30, and the dataset has samples 0 to 29"):
        feeder.DataLoader(part, 2, skip=[30])


def test_a_loader_that_skips_everything_has_no_batch(shards: Path) -> None:
    run = loader(shards, skip=range(30))
    assert len(run) == 0
    assert list(run) == []


def test_buckets_skip_by_ids(shards: Path) -> None:
    recipe = T.Compose([T.RandomResizedCrop(T.BUCKET)])
    data = feeder.ShardDataset(shards, recipe, ["index"])
    options: dict[str, Any] = {"shuffle": True, "seed": 2, "sizes": feeder.Buckets(sizes=[(8, 8), (8, 12), (12, 8)])}
    run = feeder.DataLoader(data, 4, skip=OUT, **options)
    batches = list(run)
    assert len(batches) == len(run) == 7
    assert sorted(i for *_, ids in batches for i in ids.tolist()) == [i for i in range(30) if i not in OUT]
    assert run.replay(0, 3).samples.ids.tolist() == batches[3][2].tolist()
    with pytest.raises(ArgumentError, match=r"skip samples by their ids, which loader.samples_of"):
        run.skip = feeder.Skip(spans=[(0, 0, 4)])
    with pytest.raises(ArgumentError, match="skip samples by their ids"):
        run.span_of(0, 0, 2)


def test_a_loader_with_a_sampler_refuses_to_skip(shards: Path) -> None:
    data = feeder.ShardDataset(shards, RECIPE)
    with pytest.raises(ArgumentError, match="has a sampler: leave them out there"):
        feeder.DataLoader(data, 4, sampler=[1, 2, 3], skip=[2])


def test_accelerate_is_refused_as_it_would_bring_samples_back(shards: Path) -> None:
    accelerate = pytest.importorskip("accelerate")
    with pytest.raises(ArgumentError, match="would bring back what skip= leaves out"):
        accelerate.Accelerator(cpu=True).prepare(loader(shards, skip=OUT))


def test_copied_loaders_skip_the_same(shards: Path) -> None:
    run = loader(shards, skip=OUT)
    expected = ids_of(loader(shards, skip=OUT))
    assert ids_of(copy.copy(run)) == expected
    assert ids_of(pickle.loads(pickle.dumps(run))) == expected


def test_a_damaged_state_is_refused(shards: Path) -> None:
    run = loader(shards, skip=OUT)
    next(iter(run))
    state = run.state_dict()
    for broken in (state | {"skip": {"ids": [-1], "spans": []}}, state | {"spans": [state["spans"][0] | {"skip": 3}]}):
        with pytest.raises(ArgumentError, match="this state is damaged"):
            loader(shards).load_state_dict(broken)
