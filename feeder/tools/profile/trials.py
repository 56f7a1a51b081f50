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
_OF_WORKERS = ("prefetch_factor", "persistent_workers", "timeout", "multiprocessing_context", "worker_init_fn")
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
    proposed = [each for each in advice if each.proposal is not None]
    if proposed and problem is None:
        note(f"trying {count(1 + len(proposed), 'setting')} for {TRIAL_S:g} s each; Ctrl-C skips one")
    before = problem or (_rate(measure, now) if proposed else "")

    found = []
    for each in advice:
        if each.proposal is not None:
            after = before if isinstance(before, str) else _rate(measure, each.proposal)
            if isinstance(before, str) or isinstance(after, str):
                each = replace(each, untried=str(after))
            else:
                each = replace(each, rates=(before, after))
        found.append(each)
    return sorted(found, key=lambda each: (each.gain is None, -(each.gain or each.most or 0)))


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
        folder: An empty folder for shards.
    """

    def __init__(self, arguments: Mapping[str, Any] | None, times: LoaderTimes, own_cores: float, folder: str) -> None:
        self._arguments = dict(arguments or {})
        self._times = times
        self._folder = folder
        self._images = times.images / times.batches
        self._batch_s = times.wait_a_batch_s + times.step_a_batch_s

        making_s = times.making_s or times.wait_a_batch_s
        made_s = 0.0 if times.record.workers else making_s * (1 - times.dataset_share * (1 - times.cpu_share))
        self._busy_s = own_cores * self._batch_s - made_s  # of the step
        # torch computes with several threads only on many numbers.
        self._numbers = torch.ones(1 << (18 if self._busy_s > 1.1 * times.step_a_batch_s else 12))

    def problem(self) -> str | None:
        """Returns the reason why nothing can be tried; None if it can."""
        if "dataset" not in self._arguments:
            return "its dataset is not there any more"
        if isinstance(self._arguments["dataset"], IterableDataset):
            return "a stream can't be read again"
        if self._arguments.get("service") is not None:
            return "an input service makes its batches"
        image_s = self._batch_s / self._images
        return f"an image takes {image_s:.1f} s" if image_s > TRIAL_S / 4 else None

    def measure(self, proposal: Proposal) -> float:
        """Returns images/s of a setting between steps like the script's. Raises whatever its dataset raises."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return run(DataLoader(**self._options(proposal)), TRIAL_S, self._step).images_per_s

    def _step(self, batch: Any) -> None:
        share = batch_rows(batch) / self._images
        began, busy = time.perf_counter(), time.process_time()
        while time.process_time() - busy < share * self._busy_s:
            self._numbers.exp()
        time.sleep(max(0.0, share * self._times.step_a_batch_s - (time.perf_counter() - began)))

    def _options(self, proposal: Proposal) -> dict[str, Any]:
        """Returns the arguments of a setting's loader."""
        unused = ("service", "metrics", "generator", *(() if proposal.num_workers else _OF_WORKERS))
        options = {name: value for name, value in self._arguments.items() if name not in unused}
        dataset, record = options["dataset"], self._times.record
        if proposal.source != "dataset":
            dataset = self._shards(dataset) if proposal.source == "shards" else converted(dataset)
        if proposal.num_workers:
            options["persistent_workers"] = True
            options["timeout"] = options.get("timeout") or _TIMEOUT_S
            if not record.workers:
                options["multiprocessing_context"] = "fork"

        if as_feeder(dataset) is not None:
            options |= {"rank": 0, "world_size": 1, "seed": 0}
        if record.kind != "feeder":  # whose order and batches stay as they are
            options["sampler"] = torch.randint(len(dataset), (_DRAWN,)).tolist()
            options["batch_size"] = max(2, int(self._images * min(1.0, _BATCH_S / self._batch_s)))
        return options | {"dataset": dataset, "num_workers": proposal.num_workers}

    def _shards(self, dataset: Any) -> ShardDataset:
        """Returns some of the images as a set of shards.

        Raises:
            ArgumentError: if samples are more than an image and its label.
        """
        native = converted(dataset)
        while isinstance(native, Subset):
            native = native.dataset
        if native.extras:
            raise ArgumentError("samples are more than an image and its label")

        number = min(_SHARDED, max(16, int(TRIAL_S * self._images / self._batch_s)))
        folder = tempfile.mkdtemp(dir=self._folder)
        write_shards(Subset(dataset, torch.randperm(len(dataset))[:number].tolist()), folder)
        return ShardDataset(folder, native.recipe, exif_orientation="apply" if native.reader.exif else "ignore")
