"""The report of ``feeder --version -v``, for bug reports: the machine, its limits and GPUs, and the installed packages.

It has what the doctor finds of the machine, without its advice.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import sys

import feeder
from feeder.system.processor import processor
from feeder.system.versions import distribution_version
from feeder.tools.doctor import check_machine
from feeder.tools.terminal import WIDTH, wrap

# Instruction sets that the kernels, libjpeg-turbo or Pillow use, as the kernel calls them.
_FEATURES = (
    "sse4_1",
    "sse4_2",
    "avx",
    "avx2",
    "fma",
    "bmi2",
    "avx512f",
    "avx512bw",
    "avx512vbmi",
    "asimd",
    "sve",
    "sve2",
)


def report(root: str = "/") -> str:
    """Returns the report, at most 80 columns wide where no path is longer.

    Args:
        root: Folder that holds the kernel's files (/proc, /sys).
    """
    gil = "" if getattr(sys, "_is_gil_enabled", lambda: True)() else " without the GIL"
    rows = [
        ("feeder", feeder.__version__),
        ("Python", f"{platform.python_version()}{gil}, {sys.executable}"),
        ("system", _system()),
        ("CPU", _cpu(root)),
        *((finding.name, finding.found) for finding in check_machine(root=root)),
        ("numpy", distribution_version("numpy") or "absent"),
        ("extras", _extras()),
    ]
    width = max(len(name) for name, _ in rows) + 2
    home = os.path.join(os.path.expanduser("~"), "")  # a bug report need not tell the user's name
    return "\n".join(
        line
        for name, value in rows
        for line in wrap(value.replace(home, "~/"), WIDTH, first=name.ljust(width), indent=" " * width)
    )


def _system() -> str:
    try:
        name = platform.freedesktop_os_release().get("PRETTY_NAME", "Linux")
    except OSError:
        name = "Linux of no known distribution"
    return f"{name}, {platform.release()}, {' '.join(platform.libc_ver()).strip() or 'no glibc'}, {platform.machine()}"


def _cpu(root: str) -> str:
    """Returns the first processor's model and instruction sets."""
    cpu = processor(root)
    if cpu.name is None:
        return "unknown"
    name = f"{cpu.name} ({cpu.microarchitecture})" if cpu.microarchitecture else cpu.name
    return f"{name}: {' '.join(flag for flag in _FEATURES if flag in cpu.flags) or 'no known instruction sets'}"


def _extras() -> str:
    """Returns the versions of the packages of feeder's extras that are installed."""
    try:
        required = importlib.metadata.requires("feeder-data") or []
    except importlib.metadata.PackageNotFoundError:
        return "unknown: feeder runs without being installed"
    found = {}
    for line in required:
        name, extra = re.match(r"[A-Za-z0-9._-]+", line), re.search(r"extra == ['\"]([^'\"]+)", line)
        if name is not None and extra is not None and extra[1] != "dev" and not extra[1].startswith("dali"):
            found[name[0]] = distribution_version(name[0])
    return ", ".join(f"{name} {found[name]}" for name in sorted(found, key=str.lower) if found[name]) or "none"
