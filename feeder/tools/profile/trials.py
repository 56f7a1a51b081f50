"""Trials after a run: what the advice proposes is tried for seconds, on the dataset that the script has left.

Note [Trials]
    Batches are made between steps that take as long as the script's, and as much CPU time: the ratio of two rates is
    then a gain of the training's. Where a batch takes long, those of a trial are smaller, so that it has many. Samples
    are drawn at random, as the same ones again would come from memory. Nothing is written but shards of few images, in
    a temporary folder. Trials are no ranks of a job, and serve no metrics. If the script started no workers they are
    forked: others would run its file first, which may lack a main guard.
"""

from __future__ import annotations

import contextlib
import signal
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.utils.data import IterableDataset, Subset

from feeder.dataset.converted import converted
from feeder.dataset.dataset_shards import write_shards
from feeder.dataset.shards import ShardDataset
from feeder.dataset.subset import as_feeder, readers_of, remote_of
from feeder.errors import ArgumentError
from feeder.loader.dataloader import DataLoader
from feeder.system.cores import local_world_size
from feeder.system.text import count
from feeder.tools.profile.advice import EXITED, Advice, Proposal, reason_of
from feeder.tools.profile.times import LoaderTimes
from feeder.tools.trial import run

TRIAL_S = 3.0
_SHARDED = 256  # images, at most
_DRAWN = 1 << 15
_BATCH_S = 0.1
_LIMIT_S = 30.0  # a trial's limit: a worker may hang, and so may writing


def with_trials(
    advice: Sequence[Advice],
    now: Proposal,
    measure: Callable[[Proposal], float],
    problem: str | None,
    note: Callable[[str], None],
) -> list[Advice]:
    """Returns the advice with the gains that were measured, by gain, then the rest by its bound.

    Args:
        advice: The advice.
        now: The script's own setting, which is tried first.
        measure: Returns images/s of a setting. If it fails, the advice says so and keeps its bound.
        problem: The reason why nothing can be tried; None if it can.
        note: Called with a line before the first trial.
    """
    number = sum(each.proposal is not None for each in advice)
    if number and problem is None:
        tries = f"trying {count(1 + number, 'setting')} for {TRIAL_S:g} s each, with steps like the script's"
        note(f"feeder profile: {tries}; Ctrl-C skips one")

    found = []
    before = problem or (_rate(measure, now) if number else "")
    for each in advice:
        after = before if isinstance(before, str) or each.proposal is None else _rate(measure, each.proposal)
        found.append(_tried(each, before, after))
        before = after if after == EXITED else before
    return sorted(found, key=lambda each: (each.gain is None, -(each.gain or each.most or 0)))


def _tried(advice: Advice, before: float | str, after: float | str) -> Advice:
    """Returns the advice with its gain over the rate before, or with the reason why that can't be measured."""
    if advice.proposal is None or isinstance(before, str) or isinstance(after, str):
        return advice.untried(str(after))
    rates = f"from {before:,.0f} to {after:,.0f} images/s with {count(advice.proposal.num_workers, 'worker')}"
    return replace(advice, gain=after / before, because=rates)


def _rate(measure: Callable[[Proposal], float], proposal: Proposal) -> float | str:
    """Returns images/s of a setting, or the reason why it can't be measured."""
    try:
        with contextlib.ExitStack() as stack:  # restores the script's handlers and timer
            for each, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGALRM, _end)):
                stack.callback(signal.signal, each, signal.signal(each, handler) or signal.SIG_DFL)
            stack.callback(signal.setitimer, signal.ITIMER_REAL, *signal.setitimer(signal.ITIMER_REAL, _LIMIT_S))
            return measure(proposal) or "no batch came"
    except (Exception, KeyboardInterrupt, SystemExit) as error:  # the script's own dataset may raise anything
        return reason_of(error)


def _end(number: int, frame: Any) -> None:
    raise TimeoutError(f"took longer than {_LIMIT_S:g} s")


class Trials:
    """Tries settings of one loader; see Note [Trials].

    Args:
        arguments: The loader's arguments, as :meth:`LoaderHooks.arguments_of` gives them.
        times: The loader's times.
        own_cores: Cores that the script's process kept busy.
        folder: A folder for shards.

    Attributes:
        batch_size: Samples of the script's batches.
        tried_size: Samples of a trial's.
    """

    def __init__(self, arguments: Mapping[str, Any] | None, times: LoaderTimes, own_cores: float, folder: str) -> None:
        self._arguments = dict(arguments or {})
        self._times = times
        self._folder = folder
        self.batch_size = times.record.batch_size or 1
        self._batch_s = times.wait_a_batch_s + times.step_a_batch_s
        self.tried_size = self.batch_size
        if times.record.kind != "feeder":  # trials keep the order and batches of feeder's loaders
            self.tried_size = min(self.tried_size, max(2, int(self.tried_size * _BATCH_S / max(1e-6, self._batch_s))))
        making_s = 0.0 if times.record.workers else times.making_s or times.wait_a_batch_s
        self._busy_s = own_cores * self._batch_s - making_s * (1 - times.dataset_share * (1 - times.cpu_share))
        # torch computes with several threads only on many numbers.
        self._numbers = torch.ones(1 << (18 if self._busy_s > 1.1 * times.step_a_batch_s else 12), device="cpu")

    def problem(self) -> str | None:
        """Returns the reason why nothing can be tried; None if it can."""
        dataset = self._arguments.get("dataset")
        image_s = self._batch_s / self.batch_size
        reasons = {
            "its dataset is not there any more": dataset is None,
            "a stream can't be read again": isinstance(dataset, IterableDataset),
            "an input service makes its batches": self._arguments.get("service") is not None,
            "its batches are made by the dataset or a batch sampler": self._times.record.batch_size is None,
            "its set is in a store": remote_of(readers_of(dataset)) != [],
            "other ranks run on this machine": local_world_size() > 1,
            f"an image takes {image_s:.1f} s": image_s > TRIAL_S / 4,
        }
        return next((why for why, holds in reasons.items() if holds), None)

    def measure(self, proposal: Proposal) -> float:
        """Returns images/s of a setting between steps like the script's. Raises whatever its dataset raises."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return self.tried_size * run(DataLoader(**self._options(proposal)), TRIAL_S, self.step).batches_per_s

    def step(self, batch: Any) -> None:
        """Takes as long as the script's step would for a trial's batch, and as much CPU time."""
        share = self.tried_size / self.batch_size
        began = time.perf_counter()
        busy = time.process_time()
        while time.process_time() - busy < share * self._busy_s:
            self._numbers.exp()
        time.sleep(max(0.0, share * self._times.step_a_batch_s - (time.perf_counter() - began)))

    def _options(self, proposal: Proposal) -> dict[str, Any]:
        """Returns the arguments of a setting's loader."""
        dataset = self._arguments["dataset"]
        if proposal.source != "dataset":
            dataset = self._shards(dataset) if proposal.source == "shards" else converted(dataset)
        options = self._arguments | {"dataset": dataset, "num_workers": proposal.num_workers, "metrics": None}
        if proposal.num_workers:
            context = {} if self._times.record.workers else {"multiprocessing_context": "fork"}
            options |= {"persistent_workers": True} | context

        if as_feeder(dataset) is not None:
            options |= {"rank": 0, "world_size": 1, "seed": 0}
        if self._times.record.kind != "feeder":
            options["sampler"] = torch.randint(len(dataset), (_DRAWN,), device="cpu").tolist()
            options["batch_size"] = self.tried_size
        return options

    def _shards(self, dataset: Any) -> ShardDataset:
        """Returns some of the images as a set of shards.

        Raises:
            ArgumentError: if samples are more than an image and its label.
            TypeError: if samples would have to be guessed.
        """
        native = as_feeder(converted(dataset))
        if native is None or native.extras:
            raise ArgumentError("samples are more than an image and its label")

        number = min(_SHARDED, max(16, int(TRIAL_S * self.batch_size / self._batch_s)))
        folder = tempfile.mkdtemp(dir=self._folder)
        write_shards(Subset(dataset, torch.randperm(len(dataset), device="cpu")[:number].tolist()), folder)
        return ShardDataset(folder, native.recipe)
