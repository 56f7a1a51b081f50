"""One profile: runs the script under meters, then prints the findings."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import replace

from feeder.system.cores import cores, local_world_size
from feeder.system.nvml import Nvml, open_nvml
from feeder.system.process_usage import cpu_seconds_by_process, stat_fields
from feeder.system.text import say
from feeder.tools.commands.common import EXIT_INTERRUPTED
from feeder.tools.instrument.hooks import LoaderHooks, own_rank
from feeder.tools.instrument.record import Sample
from feeder.tools.instrument.script_file import read_source, run_script
from feeder.tools.profile.advice import Advice, Proposal, reason_of
from feeder.tools.profile.analysis import Analysis, analyse, render
from feeder.tools.terminal import columns

_MOST_SAMPLES = 4000
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def profile(script: str, arguments: Sequence[str]) -> int:
    """Runs a script in this process, and prints a summary on stderr.

    Args:
        script: The script.
        arguments: Its arguments.

    Returns:
        The script's exit code.

    Raises:
        SourceError: if there is no such script, or it is not Python.
    """
    read = read_source(script)

    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="feeder-profile-", ignore_cleanup_errors=True))
        nvml = open_nvml()
        if isinstance(nvml, Nvml):
            stack.callback(nvml.close)
        meter = LoaderHooks(folder)
        sampler = _Sampler(nvml)
        meter.install()
        sampler.start()

        code = run_script(read, arguments)
        record = meter.finish()
        record.samples = sampler.stop()
        record.torch_threads = getattr(sys.modules.get("torch"), "get_num_threads", int)()
        record.busy_threads = _busy_threads()
        found = analyse(record, max(1, cores().usable // local_world_size()))
        found = replace(found, advice=with_gains(found, meter, code, folder))

    rank = own_rank()
    head = "feeder profile" if rank is None else f"feeder profile, rank {rank}"
    say(f"\n{head}\n{render(found, nvml if isinstance(nvml, str) else None, columns())}", file=sys.stderr)
    return code


def with_gains(found: Analysis, meter: LoaderHooks, code: int, folder: str) -> list[Advice]:
    """Returns the advice with the gains that could be measured. Raises nothing, as the report must not be lost."""
    if found.main is None or not any(each.proposal for each in found.advice):
        return found.advice
    try:
        from feeder.tools.profile.trials import Trials, with_trials  # this needs torch

        trials = Trials(meter.arguments_of(found.main.record), found.main, found.load.own_cores or 0.0, folder)
        return with_trials(
            found.advice,
            Proposal(found.main.record.workers),
            trials.measure,
            trials.problem() if code in (0, EXIT_INTERRUPTED) else "the script failed",
            functools.partial(say, file=sys.stderr),
        )
    except (Exception, KeyboardInterrupt, SystemExit) as error:
        return [each.untried(reason_of(error)) for each in found.advice]


class _Sampler:
    """A thread that takes samples until it is stopped.

    Args:
        nvml: NVIDIA's library, or the reason for its absence.
    """

    def __init__(self, nvml: Nvml | str) -> None:
        self.samples: list[Sample] = []
        self._interval_s = 0.25  # between two samples; doubled each time there are too many of them
        self._gpus = [(nvml, gpu) for gpu in nvml.visible()] if isinstance(nvml, Nvml) else []
        self._end = threading.Event()
        self._busy: dict[int, float] = {}
        self._last_ns = time.monotonic_ns()
        self._thread = threading.Thread(target=self._run, name="feeder profile", daemon=True)

    def start(self) -> None:
        """Starts."""
        self._look()
        self._thread.start()

    def stop(self) -> list[Sample]:
        """Takes a last sample and stops.

        Returns:
            All samples but the first, which has no CPU time.
        """
        self._end.set()
        self._thread.join()
        self._look()
        return self.samples[1:]

    def _run(self) -> None:
        while not self._end.wait(self._interval_s):
            self._look()
            if len(self.samples) > _MOST_SAMPLES:
                del self.samples[1::2]
                self._interval_s *= 2

    def _look(self) -> None:
        now_ns = time.monotonic_ns()
        busy = cpu_seconds_by_process()
        elapsed_s = max(1e-6, (now_ns - self._last_ns) / 1e9)
        used = {pid: (spent_s - self._busy.get(pid, 0.0)) / elapsed_s for pid, spent_s in busy.items()}
        own_cores = used.pop(os.getpid(), 0.0)
        gpus = {gpu.index: nvml.busy(gpu) for nvml, gpu in self._gpus}
        self.samples.append(Sample(now_ns, own_cores, sum(used.values()), gpus))
        self._busy = busy
        self._last_ns = now_ns


def _busy_threads() -> int:
    """Returns how many threads of this process computed at least a tenth as long as the main one, which is included."""
    threads = [stat_fields(f"self/task/{thread}") for thread in os.listdir("/proc/self/task")]
    ticks = [int(fields[11]) + int(fields[12]) for fields in threads if fields is not None]
    least = time.thread_time() * _TICKS_PER_S / 10
    return sum(each > least for each in ticks)
