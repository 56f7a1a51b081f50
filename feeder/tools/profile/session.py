"""One profile: runs the script under meters, then prints and writes the findings."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass

from feeder.errors import ArgumentError, FeederError
from feeder.system.cores import cores, local_world_size
from feeder.system.files import check_writable, write_text
from feeder.system.nvml import Nvml, open_nvml
from feeder.system.text import say
from feeder.tools.doctor.finding import Finding
from feeder.tools.instrument.children import meter_children, read_children
from feeder.tools.instrument.hooks import LoaderHooks, own_rank
from feeder.tools.instrument.launch import read_script, run_script, show
from feeder.tools.profile.analysis import Analysis, analyse
from feeder.tools.profile.sampler import Sampler
from feeder.tools.profile.trace import StepTrace
from feeder.tools.terminal import columns

__all__ = ["ProfileOptions", "profile"]


@dataclass(frozen=True)
class ProfileOptions:
    """Options of a profile.

    Args:
        out: The report's path; a rank other than 0 puts its number before the ending.
        trace: Path of a Chrome trace; None for none.
        trace_steps: Batches that torch's profiler records for the trace, 1 or more.
    """

    out: str = "feeder-profile.html"
    trace: str | None = None
    trace_steps: int = 20

    def __post_init__(self) -> None:
        if self.trace_steps < 1:
            raise ArgumentError(f"trace_steps must be 1 or more, got {self.trace_steps}")


def profile(script: str, arguments: Sequence[str], options: ProfileOptions) -> int:
    """Runs a script in this process, prints a summary on stderr and writes the report.

    Args:
        script: The script.
        arguments: Its arguments.
        options: Options of the profile.

    Returns:
        The script's exit code.

    Raises:
        SourceError: if there is no such script, or it is not Python.
        ArgumentError: if the report can't be written.
    """
    out = _of_rank(options.out)
    trace = None if options.trace is None else _of_rank(options.trace)
    for path in filter(None, (out, trace)):
        check_writable(path)
    read = read_script(script)

    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="feeder-profile-", ignore_cleanup_errors=True))
        nvml = open_nvml()
        if isinstance(nvml, Nvml):
            stack.callback(nvml.close)
        steps = StepTrace(options.trace_steps)
        meter = LoaderHooks(folder, steps.on_batch if trace is not None else None)
        sampler = Sampler(nvml)
        meter.install()
        meter_children(folder)
        sampler.start()

        code, error = run_script(read, arguments)
        steps.stop()
        sys.stdout.flush()
        if error is not None:
            show(error)
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
    if trace is not None:
        note = steps.write(trace, [found.process for found in analyses])
        say(f"trace: {trace} ({note}); open it at https://ui.perfetto.dev", file=sys.stderr)
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
