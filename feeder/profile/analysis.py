"""From what was measured to a verdict, and to advice with the gain to be expected from it.

Note [Input-bound share]
    Of the time of the training loop, the part spent in ``next()`` is what waiting for data costs at most. GPU work
    runs on while the loop waits, so where NVML says how busy the GPU is, no more than its idle time can be won; the
    smaller of the two is the share. Loops over other loaders inside a step, evaluation as a rule, are not part of
    the step, and the first batch of the run, with its start-up, is not counted.

Note [Expected gains]
    Gains are ratios of rates, from the mean wait W, step S and making time F of a batch: without workers a batch takes
    W + S, with n of them no less than S, than F / n, and than what all of it takes of the cores; with more workers
    where those that there are have no time to spare, W + S shrinks in their proportion, but not below S. What can't be
    computed from the measurements is given as "at most (W + S) / S", or, for mistakes in the script, as not measured.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from feeder.profile.record import TRAINER_DECODE, Batch, GpuReading, LoaderRecord, ProcessRecord

__all__ = ["Advice", "Analysis", "LoaderTimes", "analyse"]

_INPUT_BOUND = 0.1
_WORKERS_BUSY = 0.7
_OVERBOOKED = 0.5
_WORTH_SAYING = 1.02
_MOSTLY = 0.5  # of the wait
_HARDLY = 0.05  # of the step: a wait that nobody notices
_NO_BOUND = 100.0  # a gain that only a step without work in it leaves room for
_MOST_A_CORE = 4  # workers that wait for storage nearly all the time; beyond that the disk is likely the limit


@dataclass(frozen=True)
class LoaderTimes:
    """What one loader took.

    Args:
        record: What was measured.
        trains: Whether its batches were trained on.
        batches: Batches that count: all but the first of the run.
        images: Samples in them.
        wait_s: Time in ``next()``.
        step_s: Time between, without other loaders' waits and loops.
        epochs: Iterations over it.
        epoch_start_s: What the starts of the epochs after the first took more than other batches.
        making_s: Mean time to make a batch, in one worker; None where that is not known.
        dataset_share: Of that, the data set's part, 0-1.
        cpu_share: Of the data set's part, what was spent on a processor, 0-1.
        queued_share: Of it, what was spent ready to run while others had the processors, 0-1.
        workers_busy: Share of the workers' time in which they made batches, 0-1; None where that is not known.
    """

    record: LoaderRecord
    trains: bool
    batches: int
    images: int
    wait_s: float
    step_s: float
    epochs: int
    epoch_start_s: float
    making_s: float | None = None
    dataset_share: float = 0.0
    cpu_share: float = 0.0
    queued_share: float = 0.0
    workers_busy: float | None = None

    @property
    def total_s(self) -> float:
        """Wait and step."""
        return self.wait_s + self.step_s

    @property
    def wait_share(self) -> float:
        """The wait's part of that, 0-1."""
        return self.wait_s / self.total_s if self.total_s else 0.0


@dataclass(frozen=True)
class Advice:
    """One thing to do.

    Args:
        title: What.
        text: Why, with the figures.
        gain: Expected factor of the training rate; None where it was not measured.
        is_bound: Whether that is an upper bound.
    """

    title: str
    text: str
    gain: float | None = None
    is_bound: bool = False

    def expected(self) -> str:
        """The gain for people."""
        if self.gain is None:
            return "not measured"
        if self.is_bound and self.gain >= _NO_BOUND:
            return "no bound: the step takes hardly any time"
        return ("up to " if self.is_bound else "") + f"{self.gain:.2f}x"


@dataclass(frozen=True)
class Analysis:
    """What a profile says.

    Args:
        process: The process that is spoken of.
        loaders: All of its loaders.
        main: The loader that matters most; None where no loader was used.
        bound: "input", "compute", or None where nothing was trained or measured.
        input_share: See Note [Input-bound share].
        gpu_busy: Mean share of the time that the busiest GPU worked; None without a GPU.
        own_cores: Cores that the training process kept busy.
        children_cores: Cores that the processes below it kept busy.
        stage: Where the time of making a batch goes, in words; "" where that is not known.
        advice: What to do, by expected gain.
        parts_s: Seconds of the run by what they were spent on.
    """

    process: ProcessRecord
    loaders: list[LoaderTimes]
    main: LoaderTimes | None
    bound: Literal["input", "compute"] | None
    input_share: float
    gpu_busy: float | None
    own_cores: float | None
    children_cores: float | None
    stage: str
    advice: list[Advice] = field(default_factory=list)
    parts_s: dict[str, float] = field(default_factory=dict)

    @property
    def images_s(self) -> float:
        """Samples a second through the main loader."""
        return self.main.images / self.main.total_s if self.main is not None and self.main.total_s else 0.0

    def headline(self) -> str:
        """The verdict in a sentence."""
        if self.main is None:
            return "No loader was iterated over: nothing to meter."
        if self.main.batches == 0:
            return "No loader gave more than one batch: too little to say what the run waits for."
        what = "training" if self.main.trains else "evaluation (no backward() was seen)"
        rate = f"{self.images_s:,.0f} images/s in {what}"
        if self.bound == "input":
            return f"Input-bound: {rate}, waiting for data {self.input_share:.0%} of the time."
        return f"Compute-bound: {rate}, waiting for data {self.input_share:.0%} of the time only."


def analyse(process: ProcessRecord, cores: int) -> Analysis:
    """The verdict on one process.

    Args:
        process: What was measured.
        cores: Cores that this process may use.
    """
    loaders = [_times(record, process.loaders) for record in process.loaders]
    used = [times for times in loaders if times.record.batches]
    main = max(used, key=lambda times: (times.trains, times.total_s), default=None)
    own, children, gpu = _machine(process, main)
    share = 0.0
    if main is not None:
        trained = [times for times in used if times.trains] if main.trains else [main]
        wait = sum(times.wait_s for times in trained)
        # Loaders that one step takes batches of share that step; those before or after have steps of their own.
        step = main.step_s + sum(times.step_s for times in trained if not _overlap(times, main))
        share = wait / (wait + step) if wait + step else 0.0
        if gpu is not None:
            share = min(share, 1 - gpu)
    bound: Literal["input", "compute"] | None = None
    if main is not None and main.batches:
        bound = "input" if share >= _INPUT_BOUND else "compute"
    found = Analysis(
        process=process,
        loaders=loaders,
        main=main,
        bound=bound,
        input_share=share,
        gpu_busy=gpu,
        own_cores=own,
        children_cores=children,
        stage=_stage(main) if main is not None else "",
        parts_s=_parts(process, loaders),
    )
    found.advice.extend(sorted(_advice(found, cores), key=lambda a: -(a.gain or 0)))
    return found


def _overlap(a: LoaderTimes, b: LoaderTimes) -> bool:
    """Whether two loaders were in use at one time."""
    first, second = a.record.batches, b.record.batches
    return first[0].asked_ns < second[-1].got_ns and second[0].asked_ns < first[-1].got_ns


def _times(record: LoaderRecord, others: Sequence[LoaderRecord]) -> LoaderTimes:
    steps = _steps(record, others)
    real = [batch for batch in record.batches if batch.images]
    counted = [(batch, step) for batch, step in zip(record.batches, steps, strict=True) if batch.images][1:]
    made = dict(enumerate(record.made_ns))
    starts = {b for b, before in zip(real[1:], real, strict=False) if b.epoch != before.epoch}
    # To begin an epoch, workers are started, which is a wait as well.
    begun = {batch: (made[batch.epoch][1] - made[batch.epoch][0]) / 1e9 for batch in starts}
    waits = [(batch.got_ns - batch.asked_ns) / 1e9 + begun.get(batch, 0.0) for batch, _ in counted]
    typical = statistics.median(waits) if waits else 0.0
    epoch_start = sum(max(0.0, w - typical) for (batch, _), w in zip(counted, waits, strict=True) if batch in starts)
    making = [(f.dataset_ns + f.collate_ns) / 1e9 for f in record.fetches]
    dataset = sum(f.dataset_ns for f in record.fetches)
    cpu = sum(f.dataset_cpu_ns for f in record.fetches)
    queued = sum(f.dataset_queued_ns for f in record.fetches)
    busy = None
    if record.workers and record.batches:
        first = record.made_ns[0][0] if record.made_ns else record.batches[0].asked_ns
        available = (record.batches[-1].got_ns - first) / 1e9 * record.workers
        workers_ns = sum(record.stage_ns.values()) - record.stage_ns.get(TRAINER_DECODE, 0)
        work_s = sum(making) if making else workers_ns / 1e9
        busy = min(1.0, work_s / available) if available and (making or record.stage_ns) else None
    return LoaderTimes(
        record=record,
        trains=sum(batch.trained for batch in record.batches) * 2 > len(real),
        batches=len(counted),
        images=sum(batch.images for batch, _ in counted),
        wait_s=sum(waits),
        step_s=sum(step for _, step in counted),
        epochs=len({batch.epoch for batch in record.batches}),
        epoch_start_s=epoch_start,
        making_s=statistics.fmean(making) if making else None,
        dataset_share=dataset / sum(f.dataset_ns + f.collate_ns for f in record.fetches) if making else 0.0,
        cpu_share=min(1.0, cpu / dataset) if dataset else 0.0,
        queued_share=max(0.0, min(1 - cpu / dataset, queued / dataset)) if dataset else 0.0,
        workers_busy=busy,
    )


def _steps(record: LoaderRecord, others: Sequence[LoaderRecord]) -> list[float]:
    """Seconds from each batch to the next call, 0 after an epoch's last call; see Note [Input-bound share]."""
    got, ends = _ends(record.batches)
    steps = np.maximum(0, ends - got)
    for other in others:
        if other is record or not other.batches:
            continue
        asked = np.array([batch.asked_ns for batch in other.batches], np.int64)
        their_got, their_ends = _ends(other.batches)
        at = np.searchsorted(got, asked, "right") - 1
        inside = (at >= 0) & (asked < ends[np.maximum(at, 0)])
        whole = their_ends <= ends[np.maximum(at, 0)]
        taken = np.where(whole, their_ends, their_got) - asked
        np.subtract.at(steps, at[inside], taken[inside])
    return [float(step) for step in np.maximum(0, steps) / 1e9]


def _ends(batches: Sequence[Batch]) -> tuple[Any, Any]:
    """When each call returned, and when the next call of the same epoch came."""
    got = np.array([batch.got_ns for batch in batches], np.int64)
    ends = got.copy()
    for at, (batch, after) in enumerate(itertools.pairwise(batches)):
        if after.epoch == batch.epoch and batch.images:
            ends[at] = after.asked_ns
    return got, ends


def _machine(process: ProcessRecord, main: LoaderTimes | None) -> tuple[float | None, float | None, float | None]:
    """Mean cores of the process and of those below it, and how busy its busiest GPU is, while the main loader runs."""
    batches = main.record.batches if main is not None else []
    first, last = (batches[0].got_ns, batches[-1].got_ns) if batches else (process.started_ns, process.ended_ns)
    samples = [s for s in process.samples if first < s.at_ns <= last] or process.samples
    if not samples:
        return None, None, None
    busy: dict[int, list[float]] = {}
    for sample in samples:
        for reading in map(GpuReading._make, sample.gpus):
            if reading.busy is not None:
                busy.setdefault(reading.gpu, []).append(reading.busy)
    gpu = max((statistics.fmean(values) for values in busy.values()), default=None)
    own, children = (statistics.fmean(v) for v in zip(*((s.own_cores, s.children_cores) for s in samples), strict=True))
    return own, children, gpu


def _parts(process: ProcessRecord, loaders: Sequence[LoaderTimes]) -> dict[str, float]:
    """What the run's seconds were spent on."""
    total = (process.ended_ns - process.started_ns) / 1e9
    parts = {"wait for data": 0.0, "training step": 0.0, "evaluation": 0.0, "first batch and start of workers": 0.0}
    for times in loaders:
        name = "training step" if times.trains else "evaluation"
        real = [batch for batch in times.record.batches if batch.images]
        first = (real[0].got_ns - real[0].asked_ns) / 1e9 if real else 0.0
        begun = sum(got - asked for asked, got in times.record.made_ns[:1]) / 1e9
        parts["first batch and start of workers"] += first + begun
        parts["wait for data" if times.trains else "evaluation"] += times.wait_s
        parts[name] += times.step_s
    parts["everything else"] = max(0.0, total - sum(parts.values()))
    return parts


def _stage(main: LoaderTimes) -> str:
    record = main.record
    if main.making_s is not None:
        dataset = main.dataset_share * main.making_s
        storage = max(0.0, 1 - main.cpu_share - main.queued_share)
        text = f"a batch takes {_ms(main.making_s)} to make, {_ms(dataset)} of it in the data set"
        text += (
            f" ({main.cpu_share:.0%} computing, {main.queued_share:.0%} waiting for a core, {storage:.0%} for storage)"
        )
        text += f" and {_ms(main.making_s - dataset)} in collate"
        if main.workers_busy is not None:
            text += f"; {_workers(record.workers)} at it {main.workers_busy:.0%} of the time"
        return text
    if record.stage_ns:
        total = sum(record.stage_ns.values())
        longest = sorted(record.stage_ns.items(), key=lambda item: -item[1])
        text = ", ".join(f"{name} {value / total:.0%}" for name, value in longest[:4])
        return f"of the loader's own time: {text}" + (
            f"; it names {record.bottleneck} as the limit" if record.bottleneck else ""
        )
    return ""


def _advice(found: Analysis, cores: int) -> list[Advice]:
    main = found.main
    if main is None or not main.batches:
        return []
    record, n = main.record, main.batches
    wait, step = main.wait_s / n, main.step_s / n
    advice = []
    # Waits for workers to start have a remedy of their own, below; more workers would make them longer.
    starts_only = record.workers and not record.persistent and wait - main.epoch_start_s / n < _HARDLY * step
    decoding = record.stage_ns.get(TRAINER_DECODE, 0) / 1e9
    if found.bound == "input" and decoding >= _MOSTLY * main.wait_s:
        advice.append(_cheaper_decoding(decoding / n, wait, step))
    elif found.bound == "input" and not starts_only:
        advice += _more_workers(main, wait, step, cores, found)
        if not advice or (found.children_cores or 0) + (found.own_cores or 0) > 0.8 * cores:
            advice.append(_cheaper(main, _most(wait, step)))
    if main.epoch_start_s and record.workers and not record.persistent:
        gain = main.total_s / max(1e-6, main.total_s - main.epoch_start_s)
        if gain >= _WORTH_SAYING:
            text = f"Workers are started again in each of {main.epochs} epochs, which took {main.epoch_start_s:.1f} s."
            advice.append(Advice("persistent_workers=True", text, gain))
    if found.bound == "compute" and found.gpu_busy is not None and found.gpu_busy < 0.8:
        text = f"The loader keeps up, yet the GPU works {found.gpu_busy:.0%} of the time: the loop can't keep it busy. "
        text += "Waits for results (.item(), printing) and many small kernels (torch.compile) are the usual causes."
        advice.append(Advice("Keep the GPU supplied from the training loop", text, 1 / max(0.01, found.gpu_busy), True))
    return advice


def _most(wait: float, step: float) -> float:
    """The gain where nothing waits for data any more."""
    return (wait + step) / max(1e-6, step)


def _more_workers(main: LoaderTimes, wait: float, step: float, cores: int, found: Analysis) -> list[Advice]:
    record, most = main.record, _most(wait, step)
    if record.workers == 0:
        making = main.making_s if main.making_s is not None else wait
        # Workers that compute share the cores with the step; those that wait for storage need none.
        computing = making * (main.cpu_share + main.queued_share) if record.fetches else making
        storage = max(0.0, 1 - main.cpu_share - main.queued_share) if record.fetches else 0.0
        workers = int(max(1, cores - 1) / max(1 / _MOST_A_CORE, 1 - storage))
        # What the process, loop and loader in one, was seen to take of the cores it takes afterwards too.
        seen = (found.own_cores or 0) * (wait + step)
        after = max(step, making / workers, (computing + min(step, making)) / cores, seen / cores)
        needed = max(1, min(workers, math.ceil(making / max(after, 1e-6))))
        gain = (wait + step) / after
        if gain < _WORTH_SAYING:
            return []
        text = f"The training loop makes each batch itself ({_ms(wait)}) and then computes the step ({_ms(step)})."
        text += " Workers would make batches meanwhile."
        return [Advice(f"num_workers={needed}", text, gain)]
    if main.queued_share > _OVERBOOKED:
        text = (
            f"Workers are ready to compute, yet wait for a core {main.queued_share:.0%} of their time in the data set: "
        )
        text += f"this process may use {cores}, and other processes and threads take their part of them."
        after = max(step, (wait + step) * (1 - main.queued_share))
        title = "More cores, or fewer processes and threads on them"
        return [Advice(title, text, (wait + step) / after, True)]
    busy = main.workers_busy
    if busy is None and found.children_cores is not None:
        busy = min(1.0, found.children_cores / record.workers)
    if busy is not None and busy < _WORKERS_BUSY:
        text = f"{_workers(record.workers)} at it only {busy:.0%} of the time, and the loop waits all the same: few "
        text += "batches are made ahead, or handing them over (pinning, large samples, a slow sampler) is the limit."
        return [Advice("A larger prefetch_factor, or smaller batches to hand over", text, most, True)]
    storage = 1 - main.cpu_share - main.queued_share
    if record.fetches and storage > 0.5:
        workers = 2 * record.workers
        gain = (wait + step) / max(step, (wait + step) / 2)
        text = f"Workers wait for storage {storage:.0%} of their time in the data set: more of them wait at "
        text += "once. Shards (feeder shard) are read in longer runs; feeder doctor --data DIR measures the disk."
        return [Advice(f"num_workers={workers}", text, gain)]
    used = (found.own_cores or 0) + (found.children_cores or 0)
    free = cores - used
    if record.workers < cores and free > 0.5:
        workers = min(cores, record.workers + max(1, int(free)))
        gain = (wait + step) / max(step, (wait + step) * record.workers / workers)
        text = f"{_workers(record.workers)} at it all the time, and {free:.1f} of {cores} cores are free."
        return [Advice(f"num_workers={workers}", text, gain)] if gain >= _WORTH_SAYING else []
    return []


def _cheaper_decoding(decoding: float, wait: float, step: float) -> Advice:
    gain = (wait + step) / max(1e-6, step, wait + step - decoding)
    text = f"The training process itself decodes, for {_ms(decoding)} a batch, and the loop waits for it ({_ms(wait)})."
    text += " Images of seekable shards are cut to what a crop needs before; workers decode with backend='cpu'."
    return Advice("Less to decode in the training process: seekable shards, or backend='cpu'", text, gain, True)


def _cheaper(main: LoaderTimes, most: float) -> Advice:
    if main.record.kind == "feeder":
        title = "Make each image cheaper: seekable shards, fewer CPU transforms, backend='dali' on a GPU"
        return Advice(title, "feeder's stages above say where its time goes; feeder tune tries settings.", most, True)
    text = "The cores that there are can't make batches faster this way. feeder.DataLoader on seekable shards decodes "
    text += "only what a crop needs; `feeder bench DIR` measures it on your images and this machine."
    return Advice("Make each image cheaper: feeder shard, feeder.DataLoader", text, most, True)


def _workers(count: int) -> str:
    return f"{count} workers are" if count != 1 else "1 worker is"


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:,.0f} ms" if seconds >= 0.01 else f"{seconds * 1000:,.1f} ms"
