"""The verdict on a run, from its measurements.

Note [Input-bound share]
    Waiting for data costs at most the share of the training loop's time that is spent in ``next()``. The GPU may work
    while the loop waits, so waiting also costs at most the share of the time in which the GPU is idle, if NVML reports
    it. The smaller of the two is the input-bound share.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from feeder.tools.instrument.record import ProcessRecord
from feeder.tools.profile.advice import Advice, Bound, advise, fewer_threads, stage_text
from feeder.tools.profile.times import LoaderTimes, MachineLoad, machine_load, overlap, times_of
from feeder.tools.terminal import table, wrap

_INPUT_BOUND = 0.1
_CLEAR_GAIN = 1.1  # two short runs of one setting differ by less


@dataclass(frozen=True)
class Analysis:
    """The verdict on one process.

    Args:
        loaders: All of its loaders.
        main: The loader that matters most; None if no loader was used.
        bound: "input", "compute", or None if nothing was trained or measured.
        input_share: See Note [Input-bound share].
        load: The machine's load while the main loader ran.
        stage: Text on where the time to make a batch goes; "" if unknown.
        advice: Advice, by gain where it was measured, then by its bound.
    """

    loaders: list[LoaderTimes]
    main: LoaderTimes | None
    bound: Bound | None
    input_share: float
    load: MachineLoad
    stage: str
    advice: list[Advice]

    @property
    def images_s(self) -> float:
        """Samples per second of the main loader."""
        return self.main.images / self.main.total_s if self.main is not None and self.main.total_s else 0.0

    def headline(self) -> str:
        """Returns the verdict as a sentence."""
        if self.main is None:
            return (
                "No loader was iterated over in this process: nothing to measure. Start further processes by torchrun."
            )
        if self.main.batches == 0:
            return "No loader gave more than one batch: too little to tell what the run waits for."
        what = "training" if self.main.trains else self.main.evaluation
        rate = f"{self.images_s:,.0f} images/s in {what}"
        if self.bound == "input":
            return f"Input-bound: {rate}, waiting for data {self.input_share:.0%} of the time."
        return f"Compute-bound: {rate}, waiting for data only {self.input_share:.0%} of the time."


def analyse(process: ProcessRecord, cores: int) -> Analysis:
    """Judges one process.

    Args:
        process: The measurements.
        cores: Cores that this process may use.
    """
    loaders = [times_of(record, process.loaders) for record in process.loaders]
    used = [times for times in loaders if times.record.batches]
    main = max(used, key=lambda times: (times.trains, times.total_s), default=None)
    load = machine_load(process, main)
    if main is None:
        return Analysis(loaders, None, None, 0.0, load, "", [])

    trained = [times for times in used if times.trains] if main.trains else [main]
    wait = sum(times.wait_s for times in trained)
    # Loaders used in the same step share it; those used before or after have other steps.
    step = main.step_s + sum(times.step_s for times in trained if not overlap(times, main))
    share = min(wait / (wait + step) if wait + step else 0.0, 1 - (load.gpu_busy or 0.0))
    if not main.batches:
        return Analysis(loaders, main, None, share, load, stage_text(main), [])
    bound: Bound = "input" if share >= _INPUT_BOUND else "compute"
    advice = [*advise(main, bound, load, cores), *fewer_threads(process, cores)]
    return Analysis(loaders, main, bound, share, load, stage_text(main), advice)


def render(found: Analysis, gpu_absent: str | None, width: int = 80) -> str:
    """Returns the summary.

    Args:
        found: The verdict.
        gpu_absent: Reason for the lack of GPU figures; None if there are some.
        width: Columns.
    """
    lines = [*wrap(found.headline(), width), ""]
    if found.main is not None and found.main.batches:
        lines += [table(_loader_rows(found.loaders)), ""]
        if found.stage:
            lines += wrap(f"Making batches: {found.stage}.", width)
        if found.load.own_cores is not None:
            own = f"{found.load.own_cores:.1f} cores in the training process"
            lines += wrap(f"CPU: {own}, {found.load.children_cores:.1f} in its workers.", width)
        lines += wrap(f"GPU: {_gpu(found, gpu_absent)}.", width)

    helpful = [advice for advice in found.advice if advice.gain is None or advice.gain >= _CLEAR_GAIN]
    if helpful:
        lines += ["", "What to do:"]
    for number, advice in enumerate(helpful, 1):
        lines += wrap(f"{number}. {advice.title} ({advice.expected()})", width, indent="   ")
        lines += wrap(advice.text, width, first="   ", indent="   ")
    useless = [f"{advice.title} ({advice.expected()})" for advice in found.advice if advice not in helpful]
    if useless:
        lines += ["", *wrap(f"Tried without gain: {'; '.join(useless)}.", width)]
    return "\n".join(lines).rstrip()


def _loader_rows(loaders: Sequence[LoaderTimes]) -> list[list[str]]:
    """Returns a table of the loaders: the heading, then a row for each."""
    rows = [["loader", "used for", "workers", "batches", "wait ms", "step ms", "waits"]]
    for times in loaders:
        rows.append(
            [
                f"{times.record.kind}, {times.record.place}",
                "training" if times.trains else "evaluation",
                str(times.record.workers),
                f"{times.batches:,}",
                f"{1000 * times.wait_a_batch_s:,.1f}",
                f"{1000 * times.step_a_batch_s:,.1f}",
                f"{times.wait_share:.0%}",
            ]
        )
    return rows


def _gpu(found: Analysis, absent: str | None) -> str:
    if found.load.gpu_busy is None:
        return f"not measured: {absent}" if absent else "its utilisation can't be read"
    return f"busy {found.load.gpu_busy:.0%} of the time"
