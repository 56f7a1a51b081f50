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
from feeder.tools.instrument.record import TRAINER_DECODE, ProcessRecord
from feeder.tools.profile.times import LoaderTimes, MachineLoad
from feeder.tools.thresholds import NOTICEABLE_GAIN, NOTICEABLE_WAIT

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
    record = main.record
    found: list[Advice | None] = []
    if record.path_reason is not None:
        text = f"The loader runs torch's path, without feeder's speed: {record.path_reason}."
        found.append(Advice("feeder's fast path", text, main.most if bound == "input" else None, True))
    if bound == "input":
        found += _faster_batches(main, load, cores)
    elif load.gpu_busy is not None and load.gpu_busy < 0.8:
        text = (
            f"The loader keeps up, yet the GPU is busy only {load.gpu_busy:.0%} of the time: the loop can't feed it. "
            "Waits for results (.item(), printing) and many small kernels (torch.compile) are the usual causes."
        )
        title = "Keep the GPU supplied from the training loop"
        found.append(Advice(title, text, 1 / max(0.01, load.gpu_busy), True))

    if record.workers and not record.persistent:
        gain = main.total_s / max(1e-6, main.total_s - main.epoch_start_s)
        text = f"Starting the workers again for each of {count(main.epochs, 'epoch')} took {main.epoch_start_s:.1f} s."
        found += [Advice("persistent_workers=True", text, gain)] * (gain >= 1 + NOTICEABLE_GAIN)
    return sorted(filter(None, found), key=lambda each: -(each.gain or 0))


def fewer_threads(process: ProcessRecord, cores: int) -> list[Advice]:
    """Returns the advice for a process in which torch computes with more threads than there are cores.

    Most of torch's threads must have computed: those of the loader and of ``backward()`` on a GPU are few.

    Args:
        process: The measurements.
        cores: Cores that the process may use: its share of them where ranks share a machine.
    """
    threads, busy = process.torch_threads, process.busy_threads
    if threads <= cores or busy <= max(cores, threads / 2):
        return []
    text = (
        f"torch computes with {threads} threads on {count(cores, 'core')} ({busy} threads of this process were busy). "
        "Those that wait for one without a core spin, which keeps cores from it and from the workers."
    )
    return [Advice(f"OMP_NUM_THREADS={cores}, or torch.set_num_threads({cores})", text)]


def stage_text(main: LoaderTimes) -> str:
    """Returns in words where the time to make a batch goes; "" if unknown."""
    record = main.record
    if main.making_s is not None:
        dataset = main.dataset_share * main.making_s
        text = (
            f"a batch takes {_ms(main.making_s)} to make, {_ms(dataset)} of it in the data set ({main.cpu_share:.0%} "
            f"computing, {main.queued_share:.0%} waiting for a core, {main.storage_share:.0%} for storage) and "
            f"{_ms(main.making_s - dataset)} in collate"
        )
        if main.workers_busy is not None:
            text += f"; {_workers(record.workers)} busy {main.workers_busy:.0%} of the time"
        return text

    if not record.stage_ns:
        return ""
    total = sum(record.stage_ns.values())
    longest = sorted(record.stage_ns.items(), key=lambda item: -item[1])[:4]
    text = ", ".join(f"{name} {value / total:.0%}" for name, value in longest)
    return f"{text} of the loader's own time" + (f"; its limit is {record.bottleneck}" if record.bottleneck else "")


def _faster_batches(main: LoaderTimes, load: MachineLoad, cores: int) -> list[Advice | None]:
    """Returns the advice for a loop that waits for its batches."""
    record = main.record
    decoding = record.stage_ns.get(TRAINER_DECODE, 0) / 1e9
    if decoding >= _MOSTLY * main.wait_s:
        return [_cheaper_decoding(main, decoding / main.batches)]

    # Waits for workers to start have another remedy; with more workers they would be longer.
    wait_s = main.wait_a_batch_s - main.epoch_start_s / main.batches
    if record.workers and not record.persistent and wait_s < NOTICEABLE_WAIT * main.step_a_batch_s:
        return []

    workers = _more_workers(main, load, cores)
    native = None if record.convertible is None else _native(main, record.convertible)
    # Cheaper images are the remedy where there is no other, or hardly a core is free for another one.
    nothing_else = workers is None and native is None and record.path_reason is None
    cheaper = _cheaper(main) if nothing_else or load.used_cores > 0.8 * cores else None
    return [workers, native, cheaper]


def _more_workers(main: LoaderTimes, load: MachineLoad, cores: int) -> Advice | None:
    """Returns the advice on the number of workers, or why another one would not help."""
    record = main.record
    batch_s = main.wait_a_batch_s + main.step_a_batch_s
    if record.workers == 0:
        return _first_workers(main, load, cores)
    if main.queued_share > _OVERBOOKED:
        text = (
            f"Workers wait for a core {main.queued_share:.0%} of their time in the data set: this process may use "
            f"{cores}, which other processes and threads use too."
        )
        gain = main.gain(batch_s * (1 - main.queued_share))
        return Advice("More cores, or fewer processes and threads on them", text, gain, True)

    busy = main.workers_busy
    if busy is None and load.children_cores is not None:
        busy = min(1.0, load.children_cores / record.workers)
    if busy is not None and busy < _WORKERS_BUSY:
        text = (
            f"{_workers(record.workers)} busy only {busy:.0%} of the time, yet the loop waits: too few batches are "
            "made ahead, or their transfer (pinning, large samples, a slow sampler) is the limit."
        )
        return Advice("A larger prefetch_factor, or smaller batches to transfer", text, main.most, True)

    if record.fetches and main.storage_share > 0.5:
        text = (
            f"Workers wait for storage {main.storage_share:.0%} of their time in the data set, and more of them can "
            "wait at the same time. Shards (feeder shard) need fewer, longer reads."
        )
        return Advice(f"num_workers={2 * record.workers}", text, main.gain(batch_s / 2))

    free = cores - load.used_cores
    workers = min(cores, record.workers + max(1, int(free)))
    gain = main.gain(batch_s * record.workers / workers)
    if free <= 0.5 or gain < 1 + NOTICEABLE_GAIN:
        return None
    text = f"{_workers(record.workers)} always busy, and {free:.1f} of {cores} cores are free."
    return Advice(f"num_workers={workers}", text, gain)


def _first_workers(main: LoaderTimes, load: MachineLoad, cores: int) -> Advice | None:
    """Returns the advice for a loop that makes its batches itself; None if workers would not help."""
    wait = main.wait_a_batch_s
    step = main.step_a_batch_s
    making = main.making_s if main.making_s is not None else wait
    # Workers that compute share the cores with the step; those that wait for storage need none.
    storage = main.storage_share if main.record.fetches else 0.0
    workers = int(max(1, cores - 1) / max(1 / _MOST_A_CORE, 1 - storage))
    # The process that both loads and trains will take as much CPU time as before.
    cpu_before = (load.own_cores or 0) * (wait + step)
    computing = making * (1 - storage) + min(step, making)
    # Seconds of a batch with workers; see Note [Expected gains].
    after = max(step, making / workers, computing / cores, cpu_before / cores)

    gain = main.gain(after)
    if gain < 1 + NOTICEABLE_GAIN:
        return None
    text = (
        f"The training loop makes each batch itself ({_ms(wait)}) and then computes the step ({_ms(step)}). Workers "
        "would make batches during the step."
    )
    needed = max(1, min(workers, math.ceil(making / max(after, 1e-6))))
    return Advice(f"num_workers={needed}", text, gain)


def _cheaper_decoding(main: LoaderTimes, decoding_s: float) -> Advice:
    text = (
        f"The training process itself decodes for {_ms(decoding_s)} a batch, and the loop waits for it "
        f"({_ms(main.wait_a_batch_s)}). From seekable shards it decodes only what a crop needs; with backend='cpu' the "
        "workers decode."
    )
    gain = main.gain(main.wait_a_batch_s + main.step_a_batch_s - decoding_s)
    return Advice("Less to decode in the training process: seekable shards, or backend='cpu'", text, gain, True)


def _native(main: LoaderTimes, kind: str) -> Advice:
    text = (
        f"This {kind} reads, decodes and augments images in Python. feeder.from_torch makes it a dataset of the same "
        "samples and transform, whose images are made natively; `feeder.explain(dataset)` says what stays in Python."
    )
    return Advice("feeder.DataLoader(feeder.from_torch(dataset), ...)", text, main.most, True)


def _cheaper(main: LoaderTimes) -> Advice:
    if main.record.kind == "feeder":
        title = "Make each image cheaper: seekable shards, fewer CPU transforms, backend='dali' on a GPU"
        text = "The stages above show where feeder's time goes; feeder tune tries settings."
    else:
        title = "Make each image cheaper: feeder shard, feeder.DataLoader"
        text = (
            "These cores can't make batches faster this way. feeder.DataLoader on seekable shards decodes only what a "
            "crop needs; `feeder bench DIR` measures it on your images and this machine."
        )
    return Advice(title, text, main.most, True)


def _workers(number: int) -> str:
    return count(number, "worker is", "workers are")


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:,.0f} ms" if seconds >= 0.01 else f"{seconds * 1000:,.1f} ms"
