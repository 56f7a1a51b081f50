"""Trials of ``feeder profile``: what it tries after a run, and what it says where it can't."""

from __future__ import annotations

import gc
import os
import signal
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, SequentialSampler, Subset, TensorDataset

import feeder
from feeder.dataset.shard_reader import ShardReader
from feeder.loader.from_torch import options_of
from feeder.tools.instrument.hooks import LoaderHooks
from feeder.tools.instrument.record import LoaderRecord
from feeder.tools.profile import session, trials
from feeder.tools.profile.advice import Advice, Proposal
from feeder.tools.profile.analysis import Analysis, render
from feeder.tools.profile.times import LoaderTimes, MachineLoad
from feeder.tools.profile.trials import Trials, with_trials
from feeder.tools.trial import Trial
from tests.support.loader_data import CROP_AND_FLIP, write_shards, write_tree
from tests.support.with_torchvision import FOLDER
from tests.tools.test_profile import profile

NOW = Proposal(0)
BOUND = "the step alone takes 10 ms of 40 ms"
ADVICE = [
    Advice("Starts", "They take long.", 2.0, "the starts took 3 of 6 s"),
    Advice("num_workers=3", "There are cores.", 4.0, BOUND, Proposal(3)),
    Advice("feeder's", "It is native.", 4.0, BOUND, Proposal(3, "files")),
    Advice("shards", "Less is decoded.", 4.0, BOUND, Proposal(3, "shards")),
]


def times(wait_s: float = 0.03, step_s: float = 0.01, **options: Any) -> LoaderTimes:
    """Times of a loader of batches of 10 images."""
    record = LoaderRecord("train.py:9", "torch", options.pop("workers", 0), 10, False, False)
    return LoaderTimes(record, True, 20, 200, 20 * wait_s, 20 * step_s, 1, 0.0, **options)


def said(advice: list[Advice]) -> str:
    return render(Analysis([], None, None, 0.0, MachineLoad(None, None, None), "", advice), None, 200)


def test_what_is_proposed_is_tried_after_the_scripts_own_setting_and_sorted_by_gain() -> None:
    rates = {NOW: 61.4, Proposal(3): 240.0, Proposal(3, "files"): 480.0, Proposal(3, "shards"): 60.0}
    asked: list[Proposal] = []
    notes: list[str] = []

    def measure(proposal: Proposal) -> float:
        asked.append(proposal)
        return rates[proposal]

    found = with_trials(ADVICE, NOW, measure, None, notes.append)
    assert asked == list(rates)
    assert notes == ["feeder profile: trying 4 settings for 3 s each, with steps like the script's; Ctrl-C skips one"]
    assert [each.title for each in found] == ["feeder's", "num_workers=3", "shards", "Starts"]
    text = said(found)
    assert text[text.index("What to do") :].splitlines() == [
        "What to do:",
        "1. feeder's (measured: 7.82x, from 61 to 480 images/s with 3 workers)",
        "   It is native.",
        "2. num_workers=3 (measured: 3.91x, from 61 to 240 images/s with 3 workers)",
        "   There are cores.",
        "3. Starts (at most 2.00x: the starts took 3 of 6 s)",
        "   They take long.",
        "",
        "Tried without gain: shards (measured: 0.98x, from 61 to 60 images/s with 3 workers).",
    ]


def test_a_trial_that_fails_leaves_the_bound_and_says_why_in_a_line() -> None:
    problems = {Proposal(3): ValueError("no such file\nand more"), Proposal(3, "files"): KeyboardInterrupt()}

    def measure(proposal: Proposal) -> float:
        if proposal in problems:
            raise problems[proposal]
        return 100.0

    found = {each.title: each for each in with_trials(ADVICE, NOW, measure, None, print)}
    assert found["num_workers=3"].expected() == f"at most 4.00x: {BOUND}; not tried: ValueError: no such file"
    assert found["feeder's"].expected() == f"at most 4.00x: {BOUND}; not tried: interrupted"
    assert found["shards"].gain == 1.0


def test_a_trial_has_a_limit_that_takes_no_timer_or_handler_of_the_scripts() -> None:
    before = signal.getsignal(signal.SIGALRM), signal.getitimer(signal.ITIMER_REAL)[0] > 0

    def measure(proposal: Proposal) -> float:
        assert signal.getitimer(signal.ITIMER_REAL)[0] > 0
        signal.raise_signal(signal.SIGALRM)
        return 1.0

    found = with_trials(ADVICE[1:2], NOW, measure, None, print)
    assert found[0].because == f"{BOUND}; not tried: TimeoutError: took longer than 30 s"
    assert (signal.getsignal(signal.SIGALRM), signal.getitimer(signal.ITIMER_REAL)[0] > 0) == before


def test_nothing_is_tried_after_an_exit() -> None:
    asked: list[Proposal] = []

    def measure(proposal: Proposal) -> float:
        asked.append(proposal)
        if proposal.source == "files":
            raise SystemExit(3)
        return 2.0 * len(asked)

    found = {each.title: each for each in with_trials(ADVICE, NOW, measure, None, print)}
    assert asked == [NOW, Proposal(3), Proposal(3, "files")]
    assert found["num_workers=3"].gain == 2.0
    for title in ("feeder's", "shards"):
        assert found[title].because == f"{BOUND}; not tried: the script's code called sys.exit"


def test_ctrl_c_skips_a_trial_of_a_script_with_a_handler_of_its_own() -> None:
    def ignored(number: int, frame: Any) -> None:
        pass

    def measure(proposal: Proposal) -> float:
        if proposal.source == "files":
            signal.raise_signal(signal.SIGINT)
        return 1.0

    before = signal.signal(signal.SIGINT, ignored)
    try:
        found = {each.title: each for each in with_trials(ADVICE, NOW, measure, None, print)}
        assert signal.getsignal(signal.SIGINT) is ignored
    finally:
        signal.signal(signal.SIGINT, before)
    assert found["feeder's"].because == f"{BOUND}; not tried: interrupted"
    assert found["shards"].gain == 1.0


def test_a_setting_that_gives_nothing_leaves_the_bounds() -> None:
    found = with_trials(ADVICE[1:2], NOW, lambda proposal: 0.0, None, print)
    assert found[0].because == f"{BOUND}; not tried: no batch came"


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (KeyboardInterrupt(), "interrupted"),
        (SystemExit(2), "the script's code called sys.exit"),
        (RuntimeError("no device"), "RuntimeError: no device"),
    ],
)
def test_what_fails_around_the_trials_leaves_the_bounds_and_says_why(
    error: BaseException, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Any] = []

    def fail(*arguments: Any) -> None:
        made.append(arguments)
        raise error

    monkeypatch.setattr(trials, "Trials", fail)
    meter = LoaderHooks(str(tmp_path))
    load = MachineLoad(None, None, None)
    given = Analysis([], times(), "input", 0.5, load, "", ADVICE)
    found = session.with_gains(given, meter, 0, str(tmp_path))
    assert [each.because.partition("; not tried: ")[2] for each in found] == ["", why, why, why]
    assert len(made) == 1
    without = Analysis([], times(), "input", 0.5, load, "", ADVICE[:1])
    assert session.with_gains(without, meter, 0, str(tmp_path)) == ADVICE[:1]
    assert len(made) == 1


@pytest.mark.parametrize("problem", [None, "the script failed"])
def test_without_the_scripts_own_setting_nothing_is_tried(problem: str | None) -> None:
    asked: list[Proposal] = []

    def measure(proposal: Proposal) -> float:
        asked.append(proposal)
        raise OSError("gone")

    found = with_trials(ADVICE, NOW, measure, problem, print)
    assert asked == ([NOW] if problem is None else [])
    assert [each.because.partition("; not tried: ")[2] for each in found] == [problem or "OSError: gone"] * 3 + [""]
    assert with_trials(ADVICE[:1], NOW, measure, None, print) == ADVICE[:1]


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(3))


@pytest.mark.parametrize(
    ("arguments", "wait_s", "problem"),
    [
        ({"dataset": []}, 0.03, None),
        ({"dataset": []}, 12.0, "an image takes 1.2 s"),
        ({"dataset": Stream()}, 0.03, "a stream can't be read again"),
        ({"dataset": [], "service": "name"}, 0.03, "an input service makes its batches"),
        (None, 0.03, "its dataset is not there any more"),
    ],
)
def test_what_can_not_be_tried(
    arguments: dict[str, Any] | None, wait_s: float, problem: str | None, tmp_path: Path
) -> None:
    assert Trials(arguments, times(wait_s, 0.0), 1.0, str(tmp_path)).problem() == problem


def test_batches_of_the_dataset_sets_in_a_store_and_ranks_beside_others_are_not_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def problem(dataset: Any, loader: LoaderTimes) -> str | None:
        return Trials({"dataset": dataset}, loader, 1.0, str(tmp_path)).problem()

    by_dataset = times()
    by_dataset.record.batch_size = None
    assert problem([], by_dataset) == "its batches are made by the dataset or a batch sampler"
    dataset = feeder.ShardDataset(write_shards(tmp_path / "set", 4), CROP_AND_FLIP)
    assert problem(Subset(dataset, [0]), times()) is None
    monkeypatch.setattr(ShardReader, "is_remote", True)
    assert problem(Subset(dataset, [0]), times()) == "its set is in a store"
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert problem([], times()) == "other ranks run on this machine"


class Loaders(list[Any]):
    """Stands for the run of a trial: takes a batch of each loader."""

    share = 0.0  # of the script's batch in the last one

    def __call__(self, loader: Any, seconds: float, step: Any) -> Trial:
        self.append((loader, next(iter(loader))))
        self.share = step.__self__.tried_size / step.__self__.batch_size
        loader.close()
        return Trial(1.0, 1.0, 0, batches_per_s=12.0)


@pytest.mark.parametrize(("wait_s", "batch_size"), [(0.03, 10), (0.39, 2), (0.19, 5)])
@pytest.mark.parametrize("workers", [0, 1])
def test_a_trial_takes_the_loaders_dataset_and_collate_in_batches_of_a_tenth_of_a_second(
    wait_s: float, batch_size: int, workers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = Loaders()
    monkeypatch.setattr(trials, "run", seen)
    theirs = DataLoader(TensorDataset(torch.arange(50)), 10, collate_fn=lambda rows: ("mine", len(rows), os.getpid()))
    arguments = options_of(theirs) | {"dataset": theirs.dataset}
    assert Trials(arguments, times(wait_s), 1.0, str(tmp_path)).measure(Proposal(workers)) == 12.0 * batch_size
    ((loader, batch),) = seen
    assert (loader.dataset, loader.num_workers, loader.path) == (theirs.dataset, workers, "generic")
    assert batch[:2] == ("mine", batch_size)
    assert (batch[2] == os.getpid()) == (not workers)
    assert seen.share == batch_size / 10


def test_a_trial_has_no_larger_batches_than_the_script_and_counts_what_its_collate_gives_by_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = Loaders()
    monkeypatch.setattr(trials, "run", seen)
    given = times()
    given.record.batch_size = 1
    crops = DataLoader(TensorDataset(torch.ones(5, 64)), 1, collate_fn=lambda rows: torch.stack([*rows[0]])[0])
    arguments = options_of(crops) | {"dataset": crops.dataset}
    assert Trials(arguments, given, 1.0, str(tmp_path)).measure(Proposal(0)) == 12.0
    ((loader, batch),) = seen
    assert (loader.batch_size, len(batch), seen.share) == (1, 64, 1.0)


@pytest.mark.parametrize("workers", [0, 1])
def test_feeders_loaders_are_tried_in_their_own_order_and_as_no_rank_of_a_job(
    workers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = Loaders()
    monkeypatch.setattr(trials, "run", seen)
    dataset = feeder.ShardDataset(write_shards(tmp_path / "set", 32), CROP_AND_FLIP)
    theirs = feeder.DataLoader(dataset, 4, shuffle=True, seed=3, rank=1, world_size=2, num_workers=1)
    given = times()
    given.record.kind = "feeder"
    given.record.batch_size = 4
    meter = LoaderHooks(str(tmp_path))
    meter.keep(given.record, theirs)
    Trials(meter.arguments_of(given.record), given, 1.0, str(tmp_path)).measure(Proposal(workers))
    ((loader, batch),) = seen
    assert (loader.path, loader.num_workers, len(loader), len(batch[0])) == ("fast", workers, 8, 4)
    assert seen.share == 1.0


def test_a_batch_has_as_many_samples_as_its_batch_sampler_says(tmp_path: Path) -> None:
    dataset = TensorDataset(torch.arange(9))
    by_sampler = DataLoader(dataset, batch_sampler=BatchSampler(SequentialSampler(dataset), 3, drop_last=False))
    loaders = [by_sampler, DataLoader(dataset, 4), DataLoader(dataset, None)]
    meter = LoaderHooks(str(tmp_path))
    assert [meter.record_of(each, None).batch_size for each in loaders] == [3, 4, None]


class Counted:
    """Stands for a user's loader that ends its workers when it goes."""

    ended = 0


class Own(DataLoader[Any]):
    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.counted = Counted()

    def __del__(self) -> None:
        self.counted.ended += 1


def test_only_the_arguments_of_the_loader_that_matters_most_are_kept_and_no_loader(tmp_path: Path) -> None:
    meter = LoaderHooks(str(tmp_path))
    loaders = [Own(TensorDataset(torch.arange(n)), n, num_workers=1, prefetch_factor=5) for n in range(1, 5)]
    records = [times().record for _ in loaders]
    for record, loader, matters in zip(records, loaders, [(False, 9), (True, 5), (True, 5), (False, 99)], strict=True):
        record.matters = matters
        meter.keep(record, loader)
    assert [meter.arguments_of(record) is None for record in records] == [True, False, True, True]
    arguments = meter.arguments_of(records[1])
    assert arguments is not None
    assert (arguments["dataset"], arguments["prefetch_factor"]) == (loaders[1].dataset, 5)

    counted = [loader.counted for loader in loaders]
    gc.collect()
    assert [each.ended for each in counted] == [0] * 4
    held, datasets = [weakref.ref(each) for each in loaders], [weakref.ref(each.dataset) for each in loaders]
    del loaders, loader, arguments
    gc.collect()
    assert [each() for each in held] == [None] * 4
    assert [each() is None for each in datasets] == [True, False, True, True]


def test_the_loader_that_is_trained_on_replaces_one_that_came_before_it(tmp_path: Path) -> None:
    done = profile(tmp_path, TRAINED_LAST)
    assert done.returncode == 0, done.stderr
    said = " ".join(done.stderr.split())
    assert "tried: OSError: of the second" in said, done.stderr


TRAINED_LAST = """
import time

import torch
from torch.utils.data import DataLoader, Dataset


class Numbers(Dataset):
    def __init__(self, name):
        self.name = name

    def __len__(self):
        return 8

    def __getitem__(self, index):
        if done:
            raise OSError(f"of the {self.name}")
        begun = time.process_time()
        while time.process_time() < begun + 0.002:
            pass
        return torch.ones(1)


done = False
for x in DataLoader(Numbers("first")):
    pass
model = torch.nn.Linear(1, 1)
loader = DataLoader(Numbers("second"))
for x in loader:
    model(x).sum().backward()
done = True
"""


def test_steps_take_the_time_and_the_processor_that_the_scripts_did(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Clock:
        wall = 0.0
        busy = 0.0

        def perf_counter(self) -> float:
            return self.wall

        def process_time(self) -> float:
            return self.busy

        def sleep(self, seconds: float) -> None:
            self.wall += seconds

        def exp(self) -> None:
            self.wall += 0.001
            self.busy += 0.002

    clock = Clock()
    monkeypatch.setattr(trials, "time", clock)
    monkeypatch.setattr(torch, "ones", lambda numbers, device: clock)
    # 40 ms of a batch are 48 ms of CPU time, of which 27 ms were spent on making it.
    of_loader = times(making_s=0.03, dataset_share=0.9, cpu_share=1 - 1 / 9)
    tried = Trials({"dataset": []}, of_loader, 1.2, str(tmp_path))
    tried.tried_size = 5
    tried.step(None)
    assert clock.busy == pytest.approx(0.0105, abs=0.002)
    assert clock.wall == pytest.approx(0.0055, abs=0.001)
    Trials({"dataset": []}, of_loader, 0.0, str(tmp_path)).step(None)
    assert clock.wall == pytest.approx(0.0155, abs=0.001)


FILES = """
import sys

from tests.support.with_torchvision import add_torchvision

add_torchvision()
from torchvision import transforms
from torchvision.datasets import ImageFolder
import torch

from feeder.tools.profile import trials

trials.TRIAL_S = 0.1  # seconds, so that a test takes few
recipe = transforms.Compose([transforms.RandomResizedCrop(16), transforms.ToTensor()])
loader = torch.utils.data.DataLoader(ImageFolder(sys.argv[1], recipe), batch_size=4)
model = torch.nn.Linear(768, 1)
for images, labels in loader:
    model(images.flatten(1)).sum().backward()
"""


@pytest.mark.skipif(not FOLDER.exists(), reason="torchvision is not installed")
def test_files_are_read_natively_and_from_shards_that_nothing_is_left_of(tmp_path: Path) -> None:
    write_tree(tmp_path / "images", 40, extension="jpg")
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    done = profile(tmp_path, FILES, "images", TMPDIR=str(scratch))
    assert done.returncode == 0, done.stderr
    text = " ".join(done.stderr.split())
    assert "feeder profile: trying" in text
    assert "feeder.from_torch(dataset" in text
    assert text.count("(measured: ") >= 2
    assert "not tried" not in text
    assert sorted(os.listdir(tmp_path)) == ["images", "scratch", "train.py"]
    assert os.listdir(scratch) == []
