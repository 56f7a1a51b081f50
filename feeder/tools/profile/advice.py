"""Advice from a loader's times: what takes the time of a batch, what to do, and the gain to expect.

Note [Expected gains]
    A gain is a ratio of rates. It is computed from the means of the wait W for a batch, the step S, and the time F to
    make a batch. Without workers a batch takes W + S. With n workers it takes at least S, F / n, and all CPU time
    divided by the number of cores. If busy workers get more workers beside them, W + S shrinks in proportion, but not
    below S. A gain that can't be computed from the measurements is shown as "up to (W + S) / S" or, for mistakes in the
    script, as not measured.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from feeder.system.text import count
from feeder.tools.instrument.record import TRAINER_DECODE
from feeder.tools.profile.times import LoaderTimes, MachineLoad
from feeder.tools.thresholds import NOTICEABLE_GAIN, NOTICEABLE_WAIT

__all__ = ["Advice", "Bound", "advise", "stage_text"]

Bound = Literal["input", "compute"]

_WORKERS_BUSY = 0.7
_OVERBOOKED = 0.5
_MOSTLY = 0.5  # of the wait
_NO_BOUND = 100.0  # a gain that is possible only with an empty step
_MOST_A_CORE = 4  # workers per core that nearly always wait for storage; with more, the disk is likely the limit


@dataclass(frozen=True)
class Advice:
    """One thing to do.

    Args:
        title: The remedy.
        text: The reason, with the figures.
        gain: Expected factor of the training rate; None if it was not measured.
        is_bound: True if the gain is an upper bound.
    """

    title: str
    text: str
    gain: float | None = None
    is_bound: bool = False

    def expected(self) -> str:
        """Returns the gain in words."""
        if self.gain is None:
            return "not measured"
        if self.is_bound and self.gain >= _NO_BOUND:
            return "no bound: the step takes hardly any time"
        return ("up to " if self.is_bound else "") + f"{self.gain:.2f}x"


def advise(main: LoaderTimes, bound: Bound, load: MachineLoad, cores: int) -> list[Advice]:
    """Returns the advice for a run, by expected gain.

    Args:
        main: The loader that matters most, with batches that count.
        bound: The run's limit.
        load: The machine's load during the run.
        cores: Cores that the process may use.
    """
    record, n = main.record, main.batches
    wait, step = main.wait_s / n, main.step_s / n
    advice = []
    if record.path_reason is not None:
        text = f"The loader runs torch's path, without feeder's speed: {record.path_reason}."
        gain = _most(wait, step) if bound == "input" else None
        advice.append(Advice("feeder's fast path", text, gain, True))
    # Waits for workers to start have another remedy, below; with more workers they would be longer.
    starts_only = record.workers and not record.persistent and wait - main.epoch_start_s / n < NOTICEABLE_WAIT * step
    decoding = record.stage_ns.get(TRAINER_DECODE, 0) / 1e9
    if bound == "input" and decoding >= _MOSTLY * main.wait_s:
        advice.append(_cheaper_decoding(decoding / n, wait, step))
    elif bound == "input" and not starts_only:
        advice += _more_workers(main, wait, step, cores, load)
        if record.folder is not None:
            advice.append(_shards(record.folder, _most(wait, step)))
        elif not advice or (load.children_cores or 0) + (load.own_cores or 0) > 0.8 * cores:
            advice.append(_cheaper(main, _most(wait, step)))
    if main.epoch_start_s and record.workers and not record.persistent:
        gain = main.total_s / max(1e-6, main.total_s - main.epoch_start_s)
        if gain >= 1 + NOTICEABLE_GAIN:
            epochs = count(main.epochs, "epoch")
            text = f"Starting the workers again for each of {epochs} took {main.epoch_start_s:.1f} s."
            advice.append(Advice("persistent_workers=True", text, gain))
    if bound == "compute" and load.gpu_busy is not None and load.gpu_busy < 0.8:
        text = (
            f"The loader keeps up, yet the GPU is busy only {load.gpu_busy:.0%} of the time: the loop can't feed it. "
        )
        text += "Waits for results (.item(), printing) and many small kernels (torch.compile) are the usual causes."
        advice.append(Advice("Keep the GPU supplied from the training loop", text, 1 / max(0.01, load.gpu_busy), True))
    return sorted(advice, key=lambda each: -(each.gain or 0))


def stage_text(main: LoaderTimes) -> str:
    """Returns in words where the time to make a batch goes; "" if unknown."""
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
            text += f"; {_workers(record.workers)} busy {main.workers_busy:.0%} of the time"
        return text
    if record.stage_ns:
        total = sum(record.stage_ns.values())
        longest = sorted(record.stage_ns.items(), key=lambda item: -item[1])
        text = ", ".join(f"{name} {value / total:.0%}" for name, value in longest[:4])
        return f"{text} of the loader's own time" + (f"; its limit is {record.bottleneck}" if record.bottleneck else "")
    return ""


def _most(wait: float, step: float) -> float:
    """Returns the gain if nothing waited for data any more."""
    return (wait + step) / max(1e-6, step)


def _more_workers(main: LoaderTimes, wait: float, step: float, cores: int, load: MachineLoad) -> list[Advice]:
    record, most = main.record, _most(wait, step)
    if record.workers == 0:
        making = main.making_s if main.making_s is not None else wait
        # Workers that compute share the cores with the step; those that wait for storage need none.
        computing = making * (main.cpu_share + main.queued_share) if record.fetches else making
        storage = max(0.0, 1 - main.cpu_share - main.queued_share) if record.fetches else 0.0
        workers = int(max(1, cores - 1) / max(1 / _MOST_A_CORE, 1 - storage))
        # The process that both loads and trains will take as much CPU time as before.
        seen = (load.own_cores or 0) * (wait + step)
        after = max(step, making / workers, (computing + min(step, making)) / cores, seen / cores)
        needed = max(1, min(workers, math.ceil(making / max(after, 1e-6))))
        gain = (wait + step) / after
        if gain < 1 + NOTICEABLE_GAIN:
            return []
        text = f"The training loop makes each batch itself ({_ms(wait)}) and then computes the step ({_ms(step)})."
        text += " Workers would make batches during the step."
        return [Advice(f"num_workers={needed}", text, gain)]
    if main.queued_share > _OVERBOOKED:
        text = f"Workers wait for a core {main.queued_share:.0%} of their time in the data set: "
        text += f"this process may use {cores}, which other processes and threads use too."
        after = max(step, (wait + step) * (1 - main.queued_share))
        title = "More cores, or fewer processes and threads on them"
        return [Advice(title, text, (wait + step) / after, True)]
    busy = main.workers_busy
    if busy is None and load.children_cores is not None:
        busy = min(1.0, load.children_cores / record.workers)
    if busy is not None and busy < _WORKERS_BUSY:
        text = f"{_workers(record.workers)} busy only {busy:.0%} of the time, yet the loop waits: too few batches are "
        text += "made ahead, or their transfer (pinning, large samples, a slow sampler) is the limit."
        return [Advice("A larger prefetch_factor, or smaller batches to transfer", text, most, True)]
    storage = 1 - main.cpu_share - main.queued_share
    if record.fetches and storage > 0.5:
        workers = 2 * record.workers
        gain = (wait + step) / max(step, (wait + step) / 2)
        text = (
            f"Workers wait for storage {storage:.0%} of their time in the data set, and more of them can wait at the "
        )
        text += "same time. Shards (feeder shard) need fewer, longer reads; feeder doctor --data DIR measures the disk."
        return [Advice(f"num_workers={workers}", text, gain)]
    used = (load.own_cores or 0) + (load.children_cores or 0)
    free = cores - used
    if record.workers < cores and free > 0.5:
        workers = min(cores, record.workers + max(1, int(free)))
        gain = (wait + step) / max(step, (wait + step) * record.workers / workers)
        text = f"{_workers(record.workers)} always busy, and {free:.1f} of {cores} cores are free."
        return [Advice(f"num_workers={workers}", text, gain)] if gain >= 1 + NOTICEABLE_GAIN else []
    return []


def _cheaper_decoding(decoding: float, wait: float, step: float) -> Advice:
    gain = (wait + step) / max(1e-6, step, wait + step - decoding)
    text = f"The training process itself decodes for {_ms(decoding)} a batch, and the loop waits for it ({_ms(wait)})."
    text += " From seekable shards it decodes only what a crop needs; with backend='cpu' the workers decode."
    return Advice("Less to decode in the training process: seekable shards, or backend='cpu'", text, gain, True)


def _shards(folder: str, most: float) -> Advice:
    text = "Each image is a file, which is opened and decoded whole in each epoch. feeder.DataLoader reads shards in "
    text += f"long pieces and decodes only what a crop needs; `feeder bench {folder}` measures it."
    return Advice(f"feeder shard {folder}, and feeder.DataLoader on the shards", text, most, True)


def _cheaper(main: LoaderTimes, most: float) -> Advice:
    if main.record.kind == "feeder":
        title = "Make each image cheaper: seekable shards, fewer CPU transforms, backend='dali' on a GPU"
        return Advice(title, "The stages above show where feeder's time goes; feeder tune tries settings.", most, True)
    text = (
        "These cores can't make batches faster this way. feeder.DataLoader on seekable shards decodes only what a crop "
    )
    text += "needs; `feeder bench DIR` measures it on your images and this machine."
    return Advice("Make each image cheaper: feeder shard, feeder.DataLoader", text, most, True)


def _workers(number: int) -> str:
    return count(number, "worker is", "workers are")


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:,.0f} ms" if seconds >= 0.01 else f"{seconds * 1000:,.1f} ms"
