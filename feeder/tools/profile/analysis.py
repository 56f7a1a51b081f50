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
from feeder.tools.profile.advice import Advice, Bound, advise, stage_text
from feeder.tools.profile.times import LoaderTimes, MachineLoad, machine_load, overlap, times_of

__all__ = ["Analysis", "analyse"]

_INPUT_BOUND = 0.1


@dataclass(frozen=True)
class Analysis:
    """The verdict on one process.

    Args:
        process: The measurements.
        loaders: All of its loaders.
        main: The loader that matters most; None if no loader was used.
        bound: "input", "compute", or None if nothing was trained or measured.
        input_share: See Note [Input-bound share].
        load: The machine's load while the main loader ran.
        stage: Text on where the time to make a batch goes; "" if unknown.
        advice: Advice by expected gain.
        parts_s: The run's seconds by activity.
    """

    process: ProcessRecord
    loaders: list[LoaderTimes]
    main: LoaderTimes | None
    bound: Bound | None
    input_share: float
    load: MachineLoad
    stage: str
    advice: list[Advice]
    parts_s: dict[str, float]

    @property
    def images_s(self) -> float:
        """Samples per second of the main loader."""
        return self.main.images / self.main.total_s if self.main is not None and self.main.total_s else 0.0

    def headline(self) -> str:
        """Returns the verdict as a sentence."""
        if self.main is None:
            return "No loader was iterated over: there is nothing to measure."
        if self.main.batches == 0:
            return "No loader gave more than one batch: too little to tell what the run waits for."
        what = "training" if self.main.trains else "evaluation (no backward() was seen)"
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
    parts = _parts(process, loaders)
    if main is None:
        return Analysis(process, loaders, None, None, 0.0, load, "", [], parts)

    trained = [times for times in used if times.trains] if main.trains else [main]
    wait = sum(times.wait_s for times in trained)
    # Loaders used in the same step share it; those used before or after have other steps.
    step = main.step_s + sum(times.step_s for times in trained if not overlap(times, main))
    share = min(wait / (wait + step) if wait + step else 0.0, 1 - (load.gpu_busy or 0.0))
    if not main.batches:
        return Analysis(process, loaders, main, None, share, load, stage_text(main), [], parts)
    bound: Bound = "input" if share >= _INPUT_BOUND else "compute"
    advice = advise(main, bound, load, cores)
    return Analysis(process, loaders, main, bound, share, load, stage_text(main), advice, parts)


def _parts(process: ProcessRecord, loaders: Sequence[LoaderTimes]) -> dict[str, float]:
    """Returns the run's seconds by activity."""
    parts = {"wait for data": 0.0, "training step": 0.0, "evaluation": 0.0, "first batch and start of workers": 0.0}
    for times in loaders:
        real = [batch for batch in times.record.batches if batch.images]
        first = (real[0].got_ns - real[0].asked_ns) / 1e9 if real else 0.0
        begun = sum(got - asked for asked, got in times.record.made_ns[:1]) / 1e9
        parts["first batch and start of workers"] += first + begun
        parts["wait for data" if times.trains else "evaluation"] += times.wait_s
        parts["training step" if times.trains else "evaluation"] += times.step_s

    total = (process.ended_ns - process.started_ns) / 1e9
    parts["everything else"] = max(0.0, total - sum(parts.values()))
    return parts
