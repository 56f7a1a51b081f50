"""Trials after a run: what the advice proposes is tried for seconds, on the dataset that the script has left.

Note [Trials]
    Batches are made between steps that take as long as the script's, and as much CPU time: the ratio of two rates is
    then a gain of the training's. Where a batch takes long, those of a trial are smaller, so that it has many. Samples
    are drawn at random, as the same ones again would come from memory. Nothing is written but shards of few images, in
    a temporary folder. Trials are no ranks of a job, and serve no metrics. If the script started no workers they are
    forked: others would run its file first, which may lack a main guard.
"""

from __future__ import annotations

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
from feeder.dataset.subset import as_feeder
from feeder.errors import ArgumentError
from feeder.loader.dataloader import DataLoader
from feeder.loader.generic.meters import batch_rows
from feeder.system.text import count
from feeder.tools.profile.advice import Advice, Proposal
from feeder.tools.profile.times import LoaderTimes
from feeder.tools.trial import run

TRIAL_S = 3.0
_SHARDED = 256  # images, at most
_DRAWN = 1 << 15
_BATCH_S = 0.1
_TIMEOUT_S = 30.0  # for a worker that hangs


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

    before = problem or (_rate(measure, now) if number else "")
    found = [each if each.proposal is None else _tried(each, each.proposal, before, measure) for each in advice]
    return sorted(found, key=lambda each: (each.gain is None, -(each.gain or each.most or 0)))


def _tried(advice: Advice, proposal: Proposal, before: float | str, measure: Callable[[Proposal], float]) -> Advice:
    """Returns the advice with its gain over the rate before, or with the reason why that can't be measured."""
    after = before if isinstance(before, str) else _rate(measure, proposal)
    if isinstance(before, str) or isinstance(after, str):
        return replace(advice, because=f"{advice.because}; not tried: {after}")
    rates = f"from {before:,.0f} to {after:,.0f} images/s with {count(proposal.num_workers, 'worker')}"
    return replace(advice, gain=after / before, because=rates)


def _rate(measure: Callable[[Proposal], float], proposal: Proposal) -> float | str:
    """Returns images/s of a setting, or the reason why it can't be measured."""
    try:
        return measure(proposal)
    except KeyboardInterrupt:
        return "interrupted"
    except Exception as error:  # of the script's own dataset, which may raise anything
        return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"


class Trials:
    """Tries settings of one loader; see Note [Trials].

    Args:
        arguments: The loader's arguments, as :meth:`LoaderHooks.arguments_of` gives them.
        times: The loader's times.
        own_cores: Cores that the script's process kept busy.
        folder: A folder for shards.
    """

    def __init__(self, arguments: Mapping[str, Any] | None, times: LoaderTimes, own_cores: float, folder: str) -> None:
        self._arguments = dict(arguments or {})
        self._times = times
        self._folder = folder
        self._images = times.images / times.batches
        self._batch_s = times.wait_a_batch_s + times.step_a_batch_s
        making_s = 0.0 if times.record.workers else times.making_s or times.wait_a_batch_s
        self._busy_s = own_cores * self._batch_s - making_s * (1 - times.dataset_share * (1 - times.cpu_share))
        # torch computes with several threads only on many numbers.
        self._numbers = torch.ones(1 << (18 if self._busy_s > 1.1 * times.step_a_batch_s else 12))

    def problem(self) -> str | None:
        """Returns the reason why nothing can be tried; None if it can."""
        dataset = self._arguments.get("dataset")
        image_s = self._batch_s / self._images
        reasons = {
            "its dataset is not there any more": dataset is None,
            "a stream can't be read again": isinstance(dataset, IterableDataset),
            "an input service makes its batches": self._arguments.get("service") is not None,
            f"an image takes {image_s:.1f} s": image_s > TRIAL_S / 4,
        }
        return next((why for why, holds in reasons.items() if holds), None)

    def measure(self, proposal: Proposal) -> float:
        """Returns images/s of a setting between steps like the script's. Raises whatever its dataset raises."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return run(DataLoader(**self._options(proposal)), TRIAL_S, self.step).images_per_s

    def step(self, batch: Any) -> None:
        """Takes as long as the script's step would for a batch, and as much CPU time."""
        share = batch_rows(batch) / self._images
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
            options |= {"persistent_workers": True, "timeout": _TIMEOUT_S} | context

        if as_feeder(dataset) is not None:
            options |= {"rank": 0, "world_size": 1, "seed": 0}
        if self._times.record.kind != "feeder":  # whose order and batches stay as they are
            options["sampler"] = torch.randint(len(dataset), (_DRAWN,)).tolist()
            options["batch_size"] = max(2, int(self._images * min(1.0, _BATCH_S / self._batch_s)))
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

        number = min(_SHARDED, max(16, int(TRIAL_S * self._images / self._batch_s)))
        folder = tempfile.mkdtemp(dir=self._folder)
        write_shards(Subset(dataset, torch.randperm(len(dataset))[:number].tolist()), folder)
        return ShardDataset(folder, native.recipe)
