"""``feeder doctor``: finds what keeps the GPU waiting, in a machine or a training script, and how to mend it."""

from __future__ import annotations

from feeder.tools.doctor.check import check_script
from feeder.tools.doctor.finding import Finding, counts, render, to_json
from feeder.tools.doctor.machine import check_machine

__all__ = ["Finding", "check_machine", "check_script", "counts", "render", "to_json"]
