"""Ranks that load different orders get an error, and those that load one never do."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from torch import distributed

from feeder.errors import ArgumentError
from feeder.loader import rank_agreement
from feeder.loader.order_identity import order_identity
from feeder.loader.rank_agreement import Agreement, Connection
from feeder.order.lanes import Lanes
from feeder.order.sample_order import Order
from tests.support.loader_data import write_shards
from tests.support.ranks import run_ranks

_VALUES = {"seed": 0, "batch_size": 4, "epoch": 0}


class _Job:
    """Ranks in one process, on one store."""

    def __init__(self, ranks: int = 2) -> None:
        self.store: Any = distributed.HashStore()
        self.life = 1
        self.numbers: list[dict[tuple[str, int], int]] = [{} for _ in range(ranks)]

    def loader(self, rank: int, place: str = "train") -> Agreement:
        return Agreement(lambda r: Connection(self.store, self.life), place, self.numbers[rank])

    def loaders(self, place: str = "train") -> list[Agreement]:
        return [self.loader(rank, place) for rank in range(len(self.numbers))]


def _raises(match: str) -> Any:
    return pytest.raises(ArgumentError, match=match)


def test_ranks_that_agree_may_lag_by_any_number_of_epochs() -> None:
    first, second = _Job().loaders()
    for ahead, behind in ((first, 0), (second, 1)):
        for epoch in range(3):
            ahead.begin(behind, _VALUES | {"epoch": epoch})
            for steps in (1, 5):
                ahead.check(steps)
        ahead.close()


@pytest.mark.parametrize("slow", [0, 1])
@pytest.mark.parametrize("change", [{"seed": 1}, {"batch_size": 8}, {"epoch": 3}])
def test_the_rank_that_comes_later_raises_and_the_others_with_their_next_look(slow: int, change: Any) -> None:
    loaders = _Job(3).loaders()
    ((name, value),) = change.items()
    fast = 1 - slow
    loaders[fast].begin(fast, _VALUES)
    loaders[fast].check(1)
    message = f"rank {slow} does not load what rank {fast} does: {name} is {_VALUES[name]} there and {value} here"
    with _raises(message):
        loaders[slow].begin(slow, _VALUES | change)
    with _raises(message):
        loaders[fast].check(7)
    with _raises(message):
        loaders[2].begin(2, _VALUES)
    for loader in loaders:  # each has said so
        loader.close()


@pytest.mark.parametrize("slow", [0, 1])
def test_a_setting_that_one_rank_alone_has_raises_whichever_rank_comes_later(slow: int) -> None:
    loaders = _Job().loaders()
    values: list[dict[str, Any]] = [_VALUES | {"weights": [[20, {"a": 1}]]}, _VALUES]
    loaders[1 - slow].begin(1 - slow, values[1 - slow])
    with _raises(f"rank {slow} does not load what rank {1 - slow} does: weights is "):
        loaders[slow].begin(slow, values[slow])


def test_ranks_whose_lanes_have_other_blocks_raise() -> None:
    first, second = _Job().loaders()
    first.begin(0, order_identity(Order(10, 0, Lanes(block=5)), ""))
    with _raises("rank 1 .*: shuffle is {'lanes': 64, 'window': 2048, 'block': 5} there and .* 'block': 6} here"):
        second.begin(1, order_identity(Order(10, 0, Lanes(block=6)), ""))


def test_a_rank_that_is_through_with_its_epoch_raises_when_it_is_closed() -> None:
    first, second = _Job().loaders()
    first.begin(0, _VALUES)
    with _raises("seed"):
        second.begin(1, _VALUES | {"seed": 1})
    with _raises("rank 1"):
        first.close()
    first.close()


def test_another_loader_of_the_job_raises_too() -> None:
    job = _Job()
    (train, _), (first, second) = job.loaders("train"), job.loaders("val")
    train.begin(0, _VALUES)
    first.begin(0, _VALUES)
    with _raises("seed"):
        second.begin(1, _VALUES | {"seed": 1})
    with _raises("seed"):
        train.check(1)


def test_loaders_that_one_rank_alone_has_are_compared_with_none() -> None:
    job = _Job()
    job.loader(0, "look").begin(0, _VALUES | {"batch_size": 16})
    for rank, loader in enumerate(job.loaders()):
        loader.begin(rank, _VALUES)
    for _ in range(2):
        job.loader(0, "evaluate").begin(0, _VALUES | {"seed": 7})
    for rank, loader in enumerate(job.loaders()):  # others, made at the same place
        loader.begin(rank, _VALUES | {"seed": 9})


def test_loaders_of_one_place_are_counted_by_their_first_epoch() -> None:
    job = _Job()
    for rank in range(2):
        loaders = job.loaders()[rank], job.loaders()[rank]
        for values, loader in zip((_VALUES, _VALUES | {"seed": 1}), loaders if rank else loaders[::-1], strict=True):
            loader.begin(rank, values)


def test_a_look_at_the_loader_that_all_share_is_an_error_unless_the_epoch_is_set() -> None:
    first, second = _Job().loaders()
    first.begin(0, _VALUES)
    for loader in (first, second):
        loader.epoch_was_set()
    first.begin(0, _VALUES, left_after=1)
    second.begin(1, _VALUES)
    second.check(1)
    first, second = _Job().loaders()
    first.begin(0, _VALUES)
    second.begin(1, _VALUES)
    first.begin(0, _VALUES | {"epoch": 1}, left_after=1)
    with _raises("rank 0 left an epoch of this loader after 1 batch.*world_size=1"):
        second.check(1)
    with _raises("rank 0 left"):
        first.check(1)


def test_ranks_that_leave_an_epoch_together_go_on_to_the_next() -> None:
    first, second = _Job().loaders()
    first.begin(0, _VALUES)
    second.begin(1, _VALUES)
    second.check(1)
    first.begin(0, _VALUES | {"epoch": 1}, left_after=2)
    second.check(1)
    second.begin(1, _VALUES | {"epoch": 1}, left_after=2)


def test_what_a_group_before_left_in_the_store_does_not_count() -> None:
    job = _Job()
    first, second = job.loaders()
    first.begin(0, _VALUES)
    with _raises("seed"):
        second.begin(1, _VALUES | {"seed": 1})
    job.life = 2
    for loader, rank in ((second, 1), (first, 0)):
        loader.begin(rank, _VALUES | {"epoch": 5})
        loader.check(1)
        loader.close()


class _Dead:
    def compare_set(self, *_: Any) -> bytes:
        raise distributed.DistNetworkError("Connection reset by peer")

    set = get = check = compare_set


class _Silent:
    def __init__(self) -> None:
        self.asked = 0
        self.end = threading.Event()

    def compare_set(self, *_: Any) -> bytes:
        self.asked += 1
        self.end.wait()
        raise RuntimeError

    set = get = check = compare_set


def test_a_store_that_is_missing_dead_or_silent_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_agreement, "PATIENCE_S", 0.01)
    silent = _Silent()
    for store in (None, _Dead(), silent):
        job = _Job(1)
        job.store = store
        loader = Agreement(lambda rank, s=store: None if s is None else Connection(s, 1), "train", {})  # type: ignore[misc]
        for epoch in range(2):
            loader.begin(0, _VALUES | {"epoch": epoch})
            loader.check(1)
            loader.check(9)
    assert silent.asked == 2  # once in an epoch
    loader.close()
    silent.end.set()


def test_a_store_that_comes_to_life_again_is_asked_in_the_next_epoch() -> None:
    job = _Job()
    first, second = job.loaders()
    alive, job.store = job.store, _Dead()
    first.begin(0, _VALUES)
    second.begin(1, _VALUES | {"seed": 1})
    job.store = alive
    first.check(1)
    second.begin(1, _VALUES | {"seed": 1})
    with _raises("seed"):
        first.begin(0, _VALUES)


_RANK = """
import gc, json, sys, warnings
import torch.distributed.nn  # before the process group, which its default arguments would keep for ever
from torch import distributed
from feeder.dataset.mixture import Mixture
from feeder.dataset.shards import ShardDataset
from feeder.errors import ArgumentError
from feeder.loader.dataloader import DataLoader
from feeder.order.buckets import Buckets
from feeder.transforms import BUCKET, RandomResizedCrop
from tests.support.whole_exit import left

rank, world_size, folder, shards, other = json.loads(sys.argv[1])
warnings.filterwarnings("ignore", "rank . of . gets its part")
found, kept = {}, {}

def in_a_group(scenario):
    name = scenario.__name__
    store = distributed.FileStore(f"{folder}/{name}", world_size)
    distributed.init_process_group("gloo", store=store, rank=rank, world_size=world_size)
    try:
        found[name] = scenario()
    except ArgumentError as error:
        found[name] = str(error)
    distributed.barrier()
    distributed.destroy_process_group()

def make(path=shards, size=8, **options):
    dataset = ShardDataset(path, RandomResizedCrop(size), fields=("index",))
    return DataLoader(dataset, **{"batch_size": 2, "shuffle": True, "seed": 0} | options)

def mixed(scale=(0.1, 1.0)):
    recipes = {shards: RandomResizedCrop(8), other: RandomResizedCrop(8, scale=scale)}
    a, b = (ShardDataset(path, recipe, fields=("index",)) for path, recipe in recipes.items())
    return DataLoader(Mixture({"a": a, "b": b}, samples=24), batch_size=2, shuffle=True, seed=0)

def together(loader):
    '''The ids of an epoch of up to six batches, all ranks at the same one.'''
    iterator, ids, error = iter(loader), [], None
    for _ in range(6):
        try:
            if error is None and (batch := next(iterator, None)) is not None:
                ids += batch[2].tolist()
        except ArgumentError as e:
            error = e
        distributed.barrier()
    if error is not None:
        raise error
    return ids

def by_turns(order, loader=None, **options):
    '''Each rank takes its first batch in turn; then each rank another.'''
    loader, error = loader or make(**options), None
    iterator = iter(loader)
    for turn in [*order, *order]:
        if turn == rank and error is None:
            try:
                next(iterator)
            except ArgumentError as e:
                error = str(e)
        distributed.barrier()
    loader.close()
    return error

@in_a_group
def agree():
    loader = make(num_workers=rank % 2)
    return [together(loader), together(loader)]

@in_a_group
def seeds_that_are_drawn():
    torch.manual_seed(rank)
    loaders = [make(seed=None) for _ in range(2)]
    return [together(loader) for loader in loaders] + [[loader.seed for loader in loaders]]

@in_a_group
def first_rank_fast():
    return by_turns([0, 1, 2], seed=rank // 2)

@in_a_group
def first_rank_slow():
    return by_turns([2, 1, 0], batch_size=4 if rank == 0 else 2)

@in_a_group
def datasets_differ():
    return by_turns([0, 1, 2], path=other if rank == 1 else shards)

@in_a_group
def buckets_agree():
    loader = make(size=BUCKET, sizes=Buckets(sizes=[(8, 8), (6, 8)]))
    return together(loader)

@in_a_group
def buckets_differ():
    return by_turns([0, 1, 2], size=BUCKET, sizes=Buckets(sizes=[(8, 8), (6, 8 + rank // 2)]))

@in_a_group
def mixtures_agree():
    loader = mixed()
    loader.dataset.set_weights({"a": 1, "b": 3}, at_sample=30)
    return [len(together(loader)) for _ in range(2)]

@in_a_group
def recipes_of_a_source_differ():
    return by_turns([0, 1, 2], mixed(scale=(0.5, 1.0) if rank == 1 else (0.1, 1.0)))

@in_a_group
def weights_of_rank_0_alone():
    loader = mixed()
    batches = iter(loader)
    next(batches)
    if rank == 0:
        loader.dataset.set_weights({"a": 1, "b": 3}, at_sample=18)
    kept["batches"] = 1 + sum(1 for _ in batches)  # of 4: it is found when the next epoch begins
    distributed.barrier()
    return by_turns([0, 1, 2], loader)

@in_a_group
def rank_0_alone_before_and_after():
    if rank == 0:
        next(iter(make(batch_size=5)))
        sum(1 for _ in make(batch_size=3, seed=5))
    ids = together(make())
    if rank == 0:
        sum(1 for _ in make(batch_size=3, shuffle=False))
        sum(1 for _ in make(rank=0, world_size=1, seed=9))
    return ids + together(make(shuffle=False))

@in_a_group
def rank_0_takes_a_batch_of_the_loader_of_all():
    loader = make()
    if rank == 0:
        next(iter(loader))
    distributed.barrier()
    return together(loader)

@in_a_group
def rank_0_takes_a_batch_and_all_set_the_epoch():
    loader = make()
    if rank == 0:
        next(iter(loader))
    loader.set_epoch(0)
    return together(loader)

@in_a_group
def a_state_on_one_rank_alone():
    loader = make()
    if rank == 1:
        loader.load_state_dict(loader.state_dict() | {"epoch": 3})
    return together(loader)

@in_a_group
def explicit_samplers():
    sampler = torch.utils.data.DistributedSampler(range(24), world_size, rank, seed=3)
    return together(make(shuffle=None, sampler=sampler, seed=rank))

@in_a_group
def subgroups_with_explicit_ranks():
    group, number, of = (0, rank, 2) if rank < 2 else (1, 0, 1)
    return [group, [batch[2].tolist() for batch in make(rank=number, world_size=of, seed=group)]]

@in_a_group
def before_a_restart():
    loader = make()
    iterator = iter(loader)
    kept["seen"] = next(iterator)[2].tolist() + next(iterator)[2].tolist()
    kept["state"] = loader.state_dict()

@in_a_group
def after_a_restart():
    loader = make()
    loader.load_state_dict(kept["state"])
    return kept["seen"] + together(loader)

found["batches_before_weights_were_found"] = kept["batches"]
print(json.dumps(found))
gc.collect()
assert not left()
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """By rank, what came of each scenario in a real group of three: a result, or the error's text."""
    folder = tmp_path_factory.mktemp("agreement")
    shards, other = write_shards(folder / "shards", 24), write_shards(folder / "other", 23)
    (folder / "stores").mkdir()
    arguments = [[rank, 3, str(folder / "stores"), str(shards), str(other)] for rank in range(3)]
    return run_ranks(_RANK, arguments)


def _together(found: list[dict[str, Any]], name: str) -> list[int]:
    assert all(isinstance(rank[name], list) for rank in found), [rank[name] for rank in found]
    return sorted(i for rank in found for i in rank[name])


@pytest.mark.slow
def test_real_ranks_that_agree_see_each_sample_once(found: list[dict[str, Any]]) -> None:
    for epoch in range(2):
        assert sorted(i for rank in found for i in rank["agree"][epoch]) == list(range(24))
        assert sorted(i for rank in found for i in rank["seeds_that_are_drawn"][epoch]) == list(range(24))
    (seeds,) = {tuple(rank["seeds_that_are_drawn"][2]) for rank in found}
    assert seeds[0] != seeds[1]
    assert _together(found, "buckets_agree") == list(range(24))
    assert [rank["mixtures_agree"] for rank in found] == [[8, 8]] * 3
    assert _together(found, "rank_0_alone_before_and_after") == sorted([*range(24), *range(24)])
    assert _together(found, "rank_0_takes_a_batch_and_all_set_the_epoch") == list(range(24))
    assert _together(found, "explicit_samplers") == list(range(24))
    assert _together(found, "after_a_restart") == list(range(24))
    for group in range(2):
        batches = [rank["subgroups_with_explicit_ranks"] for rank in found]
        assert sorted(i for g, b in batches if g == group for ids in b for i in ids) == list(range(24))


@pytest.mark.slow
def test_real_ranks_that_differ_all_get_an_error(found: list[dict[str, Any]]) -> None:
    for name, said in [
        ("first_rank_fast", "rank 2 does not load what rank 0 does: seed is 0 there and 1 here"),
        ("first_rank_slow", "rank 0 does not load what rank 2 does: batch_size is 2 there and 4 here"),
        ("datasets_differ", "rank 1 does not load what rank 0 does: dataset is '24 samples"),
        ("buckets_differ", "rank 2 does not load what rank 0 does: buckets is [[6, 8], [8, 8]] there and [[6, 9], "),
        ("recipes_of_a_source_differ", "rank 1 does not load what rank 0 does: recipe of 'b' is '"),
        ("weights_of_rank_0_alone", "what rank 0 does: weights is [[18, {'a': 0.25, 'b': 0.75}]] there and None here"),
        ("a_state_on_one_rank_alone", "epoch is"),
        ("rank_0_takes_a_batch_of_the_loader_of_all", "rank 0 left an epoch"),
    ]:
        for rank in found:
            assert isinstance(rank[name], str), (name, rank[name])
            assert said in rank[name]
    assert [rank["batches_before_weights_were_found"] for rank in found] == [4, 4, 4]


def test_a_loaders_place_does_not_depend_on_the_lines_of_feeder_that_led_there() -> None:
    def place(module: str, line: int) -> str:
        names: dict[str, Any] = {"__name__": module, "calling_place": rank_agreement.calling_place}
        exec("\n" * line + "found = calling_place()", names)
        return str(names["found"])

    ours, theirs = ({place(module, line) for line in range(3)} for module in ("feeder.loader.any", "script"))
    assert (len(ours), len(theirs)) == (1, 3)
