"""Batches of a run made again by their epoch and step, also after resumes with another batch size or world size."""

from __future__ import annotations

import copy
import itertools
import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch

import feeder
from feeder import transforms as T
from feeder.errors import ArgumentError
from feeder.shard.write.shard_options import ShardOptions
from feeder.shard.write.sharding import shard
from tests.support.images import encode, make_tree, pixels

RECIPE = T.Compose([T.RandomResizedCrop(8), T.RandomHorizontalFlip(), T.ToDtype("float32", scale=True)])


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """30 images."""
    root = tmp_path_factory.mktemp("tree")
    make_tree(root)
    return root


def loader(tree: Path, batch_size: int = 4, **options: Any) -> feeder.DataLoader:
    data = feeder.FolderDataset(tree, RECIPE, ["key"])
    return feeder.DataLoader(data, batch_size, **{"shuffle": True, "seed": 5, **options})


def resumed(run: feeder.DataLoader, tree: Path, batch_size: int, **options: Any) -> feeder.DataLoader:
    other = loader(tree, batch_size, **options)
    other.load_state_dict(json.loads(json.dumps(run.state_dict())))
    return other


def check(run: feeder.DataLoader, epoch: int, batches: list[Any], **options: Any) -> None:
    """Checks that all batches of an epoch come again, and no others."""
    assert run.steps_of(epoch) == len(batches)
    for step, (images, labels, keys) in enumerate(batches):
        again = run.replay(epoch, step, **options)
        assert torch.equal(again.batch[0], images)
        assert torch.equal(again.batch[1], labels)
        assert again.samples.keys == again.batch[2] == keys
        assert run.samples_of(epoch, step, **options).keys == keys
    with pytest.raises(ArgumentError, match=rf"step must be 0 to {len(batches) - 1}, as epoch {epoch} has"):
        run.samples_of(epoch, len(batches))


def test_batches_of_a_run_come_again(tree: Path) -> None:
    run = loader(tree)
    epochs = [list(run) for _ in range(2)]
    for epoch, batches in enumerate(epochs):
        check(run, epoch, batches)


def test_batches_before_and_after_resumes_come_again(tree: Path) -> None:
    run = loader(tree)
    first = list(run)
    iterator = iter(run)
    second = [next(iterator) for _ in range(3)]
    run = resumed(run, tree, 5)
    iterator = iter(run)
    second += [next(iterator) for _ in range(2)]
    run = resumed(run, tree, 3)
    second += list(run)
    third = list(run)
    run = resumed(run, tree, 3)
    for epoch, batches in enumerate((first, second, third)):
        check(run, epoch, batches)


def test_batches_of_other_ranks_come_again(tree: Path) -> None:
    ranks = [loader(tree, rank=rank, world_size=2) for rank in range(2)]
    batches = [list(run) for run in ranks]
    check(ranks[0], 0, batches[1], rank=1)
    alone = resumed(ranks[1], tree, 4)
    check(alone, 0, batches[0], rank=0)
    check(alone, 0, batches[1], rank=1)
    with pytest.raises(ArgumentError, match="rank must be 0 to 1 at that step, got 2"):
        alone.replay(0, 0, rank=2)


def test_batches_in_buckets_come_again_after_a_resume(tree: Path, tmp_path: Path) -> None:
    recipe = T.Compose([T.RandomResizedCrop(T.BUCKET)])
    buckets = feeder.Buckets(sizes=[(8, 8), (8, 12), (12, 8)])
    shard(str(tree), str(tmp_path / "set"), ShardOptions(samples_per_shard=8))

    def make(batch_size: int) -> feeder.DataLoader:
        data = feeder.ShardDataset(tmp_path / "set", recipe, ["key"])
        return feeder.DataLoader(data, batch_size, shuffle=True, seed=2, sizes=buckets)

    run = make(4)
    iterator = iter(run)
    batches = [next(iterator) for _ in range(3)]
    other = make(3)
    other.load_state_dict(run.state_dict())
    batches += list(other)
    check(other, 0, batches)


BUCKETS = feeder.Buckets(sizes=[(8, 8), (8, 12), (12, 8)])
SKIPS = [[], [1, 2, 3], [7, 30]]
ORDERS: dict[str, dict[str, Any]] = {
    "full": {"shuffle": True},
    "stored": {"shuffle": False},
    "window": {"shuffle": feeder.Window(8)},
    "lanes": {"shuffle": feeder.Lanes()},
    "buckets": {"shuffle": True, "sizes": BUCKETS},
    "stored buckets": {"shuffle": False, "sizes": BUCKETS},
    "aspect": {"shuffle": True, "sizes": feeder.PadToBatch(group_by_aspect=True)},
}


@pytest.fixture(scope="module")
def turned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A set of 41 images of three shapes."""
    root = tmp_path_factory.mktemp("turned")
    for number in range(41):
        image = encode(pixels(number, *[(8, 8), (8, 12), (12, 8)][number % 3]), "png")
        (root / f"images/{number % 2}").mkdir(parents=True, exist_ok=True)
        (root / f"images/{number % 2}/{number}.png").write_bytes(image)
    shard(str(root / "images"), str(root / "set"), ShardOptions(samples_per_shard=6))
    return root / "set"


class History:
    """A run of random segments, each from an earlier state on, with what each batch had.

    Attributes:
        seen: Of each epoch the rank and the samples of each batch, as the run has them now.
        whole: The epochs that have come to their end.
    """

    def __init__(self, folder: Path, kind: str, seed: int) -> None:
        self.chance, self.folder, self.kind = random.Random(seed), folder, kind
        self.seen: dict[int, list[tuple[int, list[int]]]] = {}
        self.whole: set[int] = set()
        self.run, self.states = self.make(None), list[Any]()

    def make(self, state: Any) -> feeder.DataLoader:
        chance, options = self.chance, dict(ORDERS[self.kind])
        world_size = chance.choice([1, 1, 2, 3])
        recipe = None if self.kind == "aspect" else T.RandomResizedCrop(T.BUCKET if "sizes" in options else 8)
        data = feeder.ShardDataset(self.folder, recipe, fields=["index"])
        options |= {"batch_size": chance.choice([1, 2, 4, 5]), "drop_last": chance.random() < 0.2}
        options |= {"skip": chance.choice([None, None, *SKIPS])}
        run = feeder.DataLoader(data, seed=3, rank=chance.randrange(world_size), world_size=world_size, **options)
        if state is not None:
            run.load_state_dict(json.loads(json.dumps(state)))
        return run

    def go_on(self) -> None:
        """Takes some of an epoch's batches, or all that are left, after what a script may do in between."""
        chance, run = self.chance, self.run
        if chance.random() < 0.2:
            run.set_epoch(chance.randrange(4))
        if chance.random() < 0.2:
            run.skip = chance.choice(SKIPS)
        if chance.random() < 0.2 and self.states:
            state, self.seen, self.whole = copy.deepcopy(chance.choice(self.states))
            run = self.run = self.make(state)
        state = run.state_dict()
        epoch, begins = state["epoch"], state["consumed"] == 0
        for later in [each for each in self.seen if each > epoch or (each == epoch and begins)]:
            del self.seen[later]
            self.whole.discard(later)
        batches = self.seen.setdefault(epoch, [])
        most = chance.choice([0, 1, 2, 3, 99, 99])
        iterator = iter(run)
        for batch in itertools.islice(iterator, most):
            batches.append((run.rank or 0, batch[-1].tolist()))
        if most == 99:
            self.whole.add(epoch)
        state = run.state_dict()
        self.states.append(copy.deepcopy((state, self.seen, self.whole)))
        if chance.random() < 0.7 or most != 99:
            self.run = self.make(state)

    def check(self) -> None:
        for epoch, batches in self.seen.items():
            if not batches:
                continue
            steps = self.run.steps_of(epoch)
            assert steps == len(batches) if epoch in self.whole else steps >= len(batches)
            for step, (rank, ids) in enumerate(batches):
                assert self.run.samples_of(epoch, step, rank=rank).ids.tolist() == ids, (epoch, step)


@pytest.mark.parametrize("kind", ORDERS)
def test_the_batches_of_any_history_are_known(turned: Path, kind: str) -> None:
    for seed in range(20):
        history = History(turned, kind, seed)
        for _ in range(8):
            history.go_on()
        history.check()


def test_a_replay_leaves_the_iteration_as_it_is(tree: Path) -> None:
    run, alone = loader(tree, num_workers=1), list(loader(tree))
    for step, (images, _, _) in enumerate(run):
        run.replay(0, 0)
        assert torch.equal(images, alone[step][0])
    assert run.state_dict()["epoch"] == 1


def test_substitutes_are_listed(tree: Path, tmp_path: Path) -> None:
    make_tree(tmp_path / "bad")
    next((tmp_path / "bad").rglob("*.jpg")).write_bytes(b"no image")
    run = loader(tmp_path / "bad", on_error="skip")
    with pytest.warns(UserWarning, match="were bad"):
        batches = list(run)
    found = [run.replay(0, step) for step in range(len(batches))]
    assert [again.batch[2] for again in found] == [keys for _, _, keys in batches]
    assert [each for again in found for each in again.substitutions] == run.stats()["substitutions"]
    assert len(run.stats()["substitutions"]) == 1


def test_what_is_not_known_is_refused(tree: Path) -> None:
    run = loader(tree)
    with pytest.raises(ArgumentError, match="epoch 0 are not known: no batch was taken yet"):
        run.samples_of(0, 0)
    next(iter(run))
    old = {name: value for name, value in run.state_dict().items() if name not in ("spans", "recipe")}
    other = loader(tree)
    other.load_state_dict(old)
    next(iter(other))
    with pytest.raises(ArgumentError, match="known from 4 samples into epoch 0 on"):
        other.replay(0, 0)
    sampled = loader(tree, shuffle=None, sampler=range(8))
    next(iter(sampled))
    with pytest.raises(ArgumentError, match="explicit sampler"):
        sampled.replay(0, 0)
    generic = feeder.DataLoader(torch.utils.data.TensorDataset(torch.zeros(4)))
    with pytest.raises(ArgumentError, match=r"replay\(\) is for the fast path"):
        generic.replay(0, 0)
    damaged = run.state_dict() | {"spans": [{"epoch": 0, "consumed": -1}]}
    with pytest.raises(ArgumentError, match="this state is damaged: its spans"):
        loader(tree).load_state_dict(damaged)
