"""Advice from a loader's times: what takes the time of a batch, what to do, and the gain to expect.

Note [Expected gains]
    A gain is a ratio of the training's rates. No formula predicts it: it is measured (:mod:`.trials`) or a bound, which
    is said with its reason. A batch takes a wait W and a step S. If nothing waited for data any more, it would take S,
    so no advice on loading gives more than (W + S) / S.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from feeder.system.text import count
from feeder.tools.instrument.record import TRAINER_DECODE, ProcessRecord
from feeder.tools.profile.times import LoaderTimes, MachineLoad
from feeder.tools.thresholds import NOTICEABLE_GAIN, NOTICEABLE_WAIT

Bound = Literal["input", "compute"]

EXITED = "the script's code called sys.exit"
_WORKERS_BUSY = 0.7
_OVERBOOKED = 0.5
_MOSTLY = 0.5  # a share of the wait that explains most of it
_NO_BOUND = 100.0  # a gain that is possible only with an empty step
_NO_STEP = "the step takes hardly any time"
_MOST_A_CORE = 4  # workers per core that nearly always wait for storage; with more, the disk is likely the limit


class Proposal(NamedTuple):
    """A setting of a loader that can be tried.

    Args:
        num_workers: Number of workers.
        source: The samples: "dataset" for the script's own dataset, "files" for feeder's of the same files, "shards"
            for shards of them.
    """

    num_workers: int
    source: Literal["dataset", "files", "shards"] = "dataset"


@dataclass(frozen=True)
class Advice:
    """One thing to do.

    Args:
        title: The remedy.
        text: The reason, with the figures.
        most: Upper bound of the factor of the training rate; None if there is none.
        because: The reason of that bound or of its absence, or the rates that were measured.
        proposal: What to try; None if it can't be tried.
        gain: Measured factor of the training rate; None if it was not tried.
    """

    title: str
    text: str
    most: float | None
    because: str
    proposal: Proposal | None = None
    gain: float | None = None

    def untried(self, why: str) -> Advice:
        """Returns the advice with the reason why what it proposes was not tried."""
        return self if self.proposal is None else replace(self, because=f"{self.because}; not tried: {why}")

    def expected(self) -> str:
        """Returns the gain in words."""
        if self.gain is not None:
            return f"measured: {self.gain:.2f}x, {self.because}"
        if self.most is None or self.most >= _NO_BOUND:
            return f"no bound: {self.because if self.most is None else _NO_STEP}"
        return f"at most {self.most:.2f}x: {self.because}"


def reason_of(error: BaseException) -> str:
    """Returns the reason why a setting can't be measured, from what the script's code raised."""
    ends: dict[type[BaseException], str] = {KeyboardInterrupt: "interrupted", SystemExit: EXITED}
    return ends.get(type(error)) or f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"


def advise(main: LoaderTimes, bound: Bound, load: MachineLoad, cores: int) -> list[Advice]:
    """Returns the advice for a run, by the bound of its gain.

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
        found.append(_by_step(main, "feeder's fast path", text))
    if bound == "input":
        found += _faster_batches(main, load, cores)
    elif load.gpu_busy is not None and load.gpu_busy < 0.8:
        text = (
            f"The loader keeps up, yet the GPU is busy only {load.gpu_busy:.0%} of the time: the loop can't feed it. "
            "Waits for results (.item(), printing) and many small kernels (torch.compile) are the usual causes."
        )
        title = "Keep the GPU supplied from the training loop"
        found.append(Advice(title, text, 1 / max(0.01, load.gpu_busy), f"the GPU is busy {load.gpu_busy:.0%} already"))

    if record.workers and not record.persistent:
        gain = main.total_s / max(1e-6, main.total_s - main.epoch_start_s)
        text = f"The workers are started again for each of {count(main.epochs, 'epoch')}."
        why = f"the starts took {main.epoch_start_s:.1f} of {main.total_s:.1f} s"
        found += [Advice("persistent_workers=True", text, gain, why)] * (gain >= 1 + NOTICEABLE_GAIN)
    return sorted(filter(None, found), key=lambda each: -(each.most or 0))


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
    title = f"OMP_NUM_THREADS={cores}, or torch.set_num_threads({cores})"
    return [Advice(title, text, None, "only the script itself shows what its step gains")]


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
    number = record.workers if workers is None or workers.proposal is None else workers.proposal.num_workers
    native = None if record.convertible is None else _native(main, record.convertible, number)
    if workers is not None and native is None and load.used_cores <= 0.8 * cores:
        return [workers]
    return [workers, native, _cheaper(main, number)]


def _more_workers(main: LoaderTimes, load: MachineLoad, cores: int) -> Advice | None:
    """Returns the advice on the number of workers; None if there is no core for another one."""
    record = main.record
    if record.workers == 0:
        return _first_workers(main, cores)
    if main.queued_share > _OVERBOOKED:
        text = (
            f"Workers wait for a core {main.queued_share:.0%} of their time in the data set: this process may use "
            f"{cores}, which other processes and threads use too."
        )
        return _by_step(main, "More cores, or fewer processes and threads on them", text)

    busy = main.workers_busy
    if busy is None and load.children_cores is not None:
        busy = min(1.0, load.children_cores / record.workers)
    if busy is not None and busy < _WORKERS_BUSY:
        text = (
            f"{_workers(record.workers)} busy only {busy:.0%} of the time, yet the loop waits: too few batches are "
            "made ahead, or their transfer (pinning, large samples, a slow sampler) is the limit."
        )
        return _by_step(main, "A larger prefetch_factor, or smaller batches to transfer", text)

    if record.fetches and main.storage_share > _MOSTLY:
        text = (
            f"Workers wait for storage {main.storage_share:.0%} of their time in the data set, and more of them can "
            "wait at the same time. Shards (feeder shard) need fewer, longer reads."
        )
        return _by_step(main, f"num_workers={2 * record.workers}", text, Proposal(2 * record.workers))

    free = cores - load.used_cores
    workers = min(cores, record.workers + max(1, int(free)))
    if free <= 0.5 or workers <= record.workers:
        return None
    text = f"{_workers(record.workers)} always busy, and {free:.1f} of {cores} cores are free."
    return _by_step(main, f"num_workers={workers}", text, Proposal(workers))


def _first_workers(main: LoaderTimes, cores: int) -> Advice | None:
    """Returns the advice for a loop that makes its batches itself; None on one core that workers would share with it.

    As many workers are proposed as make a batch in the time of a step.
    """
    making = main.making_s if main.making_s is not None else main.wait_a_batch_s
    # Workers that compute need cores; those that wait for storage need none.
    storage = main.storage_share if main.record.fetches else 0.0
    most = int(cores / max(1 / _MOST_A_CORE, 1 - storage))
    if most < 2:
        return None
    text = (
        f"The training loop makes each batch itself ({_ms(main.wait_a_batch_s)}) and then computes the step "
        f"({_ms(main.step_a_batch_s)}). Workers would make batches during the step."
    )
    workers = max(1, min(most, math.ceil(making / max(main.step_a_batch_s, 1e-6))))
    return _by_step(main, f"num_workers={workers}", text, Proposal(workers))


def _by_step(main: LoaderTimes, title: str, text: str, proposal: Proposal | None = None) -> Advice:
    """Returns advice whose gain the step limits; see Note [Expected gains]."""
    why = f"the step alone takes {_ms(main.step_a_batch_s)} of {_ms(main.wait_a_batch_s + main.step_a_batch_s)}"
    return Advice(title, text, main.most, why, proposal)


def _cheaper_decoding(main: LoaderTimes, decoding_s: float) -> Advice:
    text = (
        f"The training process itself decodes for {_ms(decoding_s)} a batch, and the loop waits for it "
        f"({_ms(main.wait_a_batch_s)}). From seekable shards it decodes only what a crop needs; with backend='cpu' the "
        "workers decode."
    )
    batch_s = main.wait_a_batch_s + main.step_a_batch_s
    title = "Less to decode in the training process: seekable shards, or backend='cpu'"
    return Advice(title, text, main.gain(batch_s - decoding_s), f"the rest takes {_ms(batch_s - decoding_s)} a batch")


def _native(main: LoaderTimes, kind: str, workers: int) -> Advice:
    text = (
        f"This {kind} reads, decodes and augments images in Python. feeder.from_torch makes it a dataset of the same "
        "samples and transform, whose images are made natively; `feeder.explain(dataset)` says what stays in Python."
    )
    return _by_step(main, "feeder.DataLoader(feeder.from_torch(dataset), ...)", text, Proposal(workers, "files"))


def _cheaper(main: LoaderTimes, workers: int) -> Advice:
    record = main.record
    if record.kind == "feeder":
        title = "Make each image cheaper: seekable shards, fewer CPU transforms, backend='dali' on a GPU"
        return _by_step(main, title, "The stages above show where feeder's time goes; feeder tune tries settings.")

    text = (
        "feeder.DataLoader on seekable shards decodes only what a crop needs; `feeder bench DIR` measures it on your "
        "images and this machine."
    )
    # Shards just written would be read from memory.
    proposal = None if record.fetches and main.storage_share > _MOSTLY else Proposal(workers, "shards")
    return _by_step(main, "Make each image cheaper: feeder shard, feeder.DataLoader", text, proposal)


def _workers(number: int) -> str:
    return count(number, "worker is", "workers are")


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:,.0f} ms" if seconds >= 0.01 else f"{seconds * 1000:,.1f} ms"
