"""One profile: runs the script under meters, then prints and writes the findings."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
import threading
import time
from collections.abc import Sequence

from feeder.errors import FeederError
from feeder.system.cores import cores, local_world_size
from feeder.system.files import check_writable, write_text
from feeder.system.nvml import Nvml, open_nvml
from feeder.system.process_usage import stat_fields
from feeder.system.text import say
from feeder.tools.doctor.finding import Finding
from feeder.tools.instrument.children import meter_children, read_children
from feeder.tools.instrument.hooks import LoaderHooks, own_rank
from feeder.tools.instrument.launch import read_script, run_script
from feeder.tools.instrument.record import Sample
from feeder.tools.profile.analysis import Analysis, analyse
from feeder.tools.terminal import columns

__all__ = ["profile"]

_TICK_S = 1 / os.sysconf("SC_CLK_TCK")
_MOST_SAMPLES = 4000


def profile(script: str, arguments: Sequence[str], out: str) -> int:
    """Runs a script in this process, prints a summary on stderr and writes the report.

    Args:
        script: The script.
        arguments: Its arguments.
        out: The report's path; a rank other than 0 puts its number before the ending.

    Returns:
        The script's exit code.

    Raises:
        SourceError: if there is no such script, or it is not Python.
        ArgumentError: if the report can't be written.
    """
    out = _of_rank(out)
    check_writable(out)
    read = read_script(script)

    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="feeder-profile-", ignore_cleanup_errors=True))
        nvml = open_nvml()
        if isinstance(nvml, Nvml):
            stack.callback(nvml.close)
        meter = LoaderHooks(folder)
        sampler = _Sampler(nvml)
        meter.install()
        meter_children(folder)
        sampler.start()

        code = run_script(read, arguments)
        record = meter.finish()
        record.samples = sampler.stop()
        children = list(read_children(folder))

    # If only the children train, the samples of the machine are theirs.
    usable = max(1, cores().usable // local_world_size())
    analyses = [analyse(record, usable)]
    for child in children:
        if analyses[0].main is None:
            child.samples = record.samples
        analyses.append(analyse(child, usable))
    _tell(script, arguments, analyses, nvml if isinstance(nvml, str) else None, out, code)
    return code


def _of_rank(path: str) -> str:
    """Returns the path, with the rank before its extension for all ranks but the first."""
    rank = own_rank()
    root, extension = os.path.splitext(path)
    return f"{root}.rank{rank}{extension}" if rank else path


def _tell(
    script: str, arguments: Sequence[str], analyses: list[Analysis], gpu_absent: str | None, out: str, code: int
) -> None:
    from feeder.tools.profile.html_report import render_page
    from feeder.tools.profile.text_report import render

    used = [found for found in analyses if found.main is not None]
    best = max(used, key=lambda a: (a.main is not None and a.main.trains, -(a.process.rank or 0)), default=analyses[0])
    others = [found for found in used if found is not best]
    findings: list[Finding] = []
    try:
        from feeder.tools.doctor import check_script

        findings = [finding for finding in check_script(script) if finding.level != "ok"]
    except FeederError as error:
        say(f"feeder: {error}", file=sys.stderr)

    say(f"\nfeeder profile\n{render(best, findings, others, gpu_absent, columns())}", file=sys.stderr)
    command = " ".join([os.path.basename(script), *arguments])
    write_text(out, render_page(command, best, findings, others, gpu_absent, code))
    say(f"\nreport: {out}", file=sys.stderr)


class _Sampler:
    """A thread that takes samples until it is stopped.

    Args:
        nvml: NVIDIA's library, or the reason for its absence.
        interval_s: Seconds between two samples; doubled each time there are too many of them.
    """

    def __init__(self, nvml: Nvml | str, interval_s: float = 0.25) -> None:
        self.samples: list[Sample] = []
        self._interval_s = interval_s
        self._gpus = [(nvml, gpu) for gpu in nvml.visible()] if isinstance(nvml, Nvml) else []
        self._end = threading.Event()
        self._busy: dict[int, int] = {}
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
        own = os.getpid()
        now_ns = time.monotonic_ns()
        busy: dict[int, int] = {}
        for pid in [own, *_below(own)]:
            fields = stat_fields(pid)
            if fields is not None:
                busy[pid] = int(fields[11]) + int(fields[12])

        elapsed_s = max(1e-6, (now_ns - self._last_ns) / 1e9)
        used = {pid: (ticks - self._busy.get(pid, 0)) * _TICK_S / elapsed_s for pid, ticks in busy.items()}
        own_cores = used.pop(own, 0.0)
        gpus = {gpu.index: nvml.sample(gpu) for nvml, gpu in self._gpus}
        self.samples.append(Sample(now_ns, own_cores, sum(used.values()), gpus))
        self._busy = busy
        self._last_ns = now_ns


def _below(pid: int) -> list[int]:
    """Returns all descendants of a process. Reads their lists of children only, not every process of the machine."""
    found = [pid]
    for parent in found:
        with contextlib.suppress(OSError):  # it has ended
            for task in os.listdir(f"/proc/{parent}/task"):
                with open(f"/proc/{parent}/task/{task}/children", encoding="ascii") as file:
                    found += map(int, file.read().split())
    return found[1:]
