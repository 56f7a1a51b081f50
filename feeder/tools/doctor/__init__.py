"""``feeder doctor``: finds what keeps the GPU waiting, in a machine or a training script, and how to fix it."""

from __future__ import annotations

from feeder.tools.doctor.finding import Finding, counts, render, to_json
from feeder.tools.doctor.machine_check import check_machine
from feeder.tools.doctor.script_check import check_script

__all__ = ["Finding", "check_machine", "check_script", "counts", "render", "to_json"]
