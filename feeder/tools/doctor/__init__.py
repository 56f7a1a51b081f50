"""``feeder doctor``: finds what keeps the GPU waiting, in a machine or a training script, and how to fix it."""

from __future__ import annotations

from feeder.system.nvml import Nvml, open_nvml
from feeder.tools.doctor import resources
from feeder.tools.doctor.finding import Finding, colored, counts, render, to_json
from feeder.tools.doctor.packages import check_packages, driver_of
from feeder.tools.doctor.script_check import check_script

__all__ = ["Finding", "check_machine", "check_script", "colored", "counts", "render", "to_json"]


def check_machine(root: str = "/") -> list[Finding]:
    """Checks cores, memory, limits, GPUs and packages.

    Args:
        root: Folder that holds the kernel's files (/proc, /sys, /dev).
    """
    nvml = open_nvml()
    driver = driver_of(nvml, root)
    try:
        return [
            *resources.check_gpus(nvml, driver.version, root),
            *resources.check_cores(root),
            *resources.check_memory(root),
            *resources.check_shared_memory(root.rstrip("/") + "/dev/shm"),
            *resources.check_files(),
            *check_packages(driver),
        ]
    finally:
        if isinstance(nvml, Nvml):
            nvml.close()
