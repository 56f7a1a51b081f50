"""The report of ``feeder --version -v``, for bug reports: the machine, its limits and GPUs, and the installed packages.

torch and DALI are looked up, not imported, so the report takes a fraction of a second.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import re
import sys
from pathlib import Path

from feeder.system.cores import cores, memory_limit
from feeder.system.nvml import Nvml, open_nvml
from feeder.system.processor import processor
from feeder.system.versions import PillowInfo, pillow_simd_command, versions
from feeder.tools.doctor.packages import driver_of
from feeder.tools.terminal import WIDTH, size, wrap

__all__ = ["report"]

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
    found = versions()
    rows = [
        ("feeder", f"{found['feeder']}, {_kernels()}"),
        ("Python", _python()),
        ("system", _system()),
        ("CPU", _cpu(root)),
        ("cores", cores(root).describe()),
        ("memory", _memory(root)),
        ("GPU", _gpu(root)),
        ("torch", _torch(found["torch"], found["torch_cuda"])),
        ("numpy", found["numpy"] or "absent"),
        *_pillow(None if found["pillow"] is None else PillowInfo(**found["pillow"])),
        ("DALI", f"{found['dali']} ({found['dali_package']})" if found["dali"] else "absent"),
        ("extras", _extras()),
    ]
    width = max(len(name) for name, _ in rows) + 2
    home = os.path.join(os.path.expanduser("~"), "")  # a bug report need not tell the user's name
    return "\n".join(
        line
        for name, value in rows
        for line in wrap(value.replace(home, "~/"), WIDTH, first=name.ljust(width), indent=" " * width)
    )


def _kernels() -> str:
    if importlib.util.find_spec("feeder._native") is None:
        return "without native kernels"
    try:
        from feeder import _native
    except ImportError as error:
        return f"with native kernels that do not load: {error}"
    turbo, simd = _native.libjpeg_turbo()
    return f"with native kernels at {_native.simd_level()}, libjpeg-turbo {turbo}{'' if simd else ' without SIMD'}"


def _python() -> str:
    has_gil = getattr(sys, "_is_gil_enabled", lambda: True)()
    return f"{platform.python_version()}{'' if has_gil else ' without the GIL'}, {sys.executable}"


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


def _memory(root: str) -> str:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = memory_limit(root)
    said = size(total)
    if limit is not None and limit.limit_bytes < total:
        said += f", limited to {size(limit.limit_bytes)} by the control group"
    return said


def _gpu(root: str) -> str:
    nvml = open_nvml()
    try:
        driver = driver_of(nvml, root)
        if driver.version is None:
            return "no NVIDIA driver"
        if isinstance(nvml, Nvml):
            names = [f"{gpu.name} ({size(gpu.memory_bytes)})" for gpu in nvml.gpus]
            cuda = f", CUDA up to {driver.cuda[0]}.{driver.cuda[1]}" if driver.cuda is not None else ""
        else:
            texts = (path.read_text() for path in sorted(Path(root).glob("proc/driver/nvidia/gpus/*/information")))
            names, cuda = [found[1] for text in texts if (found := re.search(r"Model:\s*(.+)", text))], ""
        return f"{', '.join(names) or 'none'}; driver {driver.version}{cuda}"
    finally:
        if isinstance(nvml, Nvml):
            nvml.close()


def _torch(version: str | None, cuda: str | None) -> str:
    return "absent" if version is None else f"{version} ({f'CUDA {cuda}' if cuda else 'CPU only'})"


def _pillow(pillow: PillowInfo | None) -> list[tuple[str, str]]:
    if pillow is None:
        return [("PIL", "absent, or it doesn't load")]
    kind = "a SIMD build" if pillow.simd else "not a SIMD build"
    where = pillow.libjpeg_path or "linked statically"
    rows = [
        ("PIL", f"{pillow.distribution} {pillow.version}, {kind}, in {pillow.folder}"),
        ("PIL's JPEG", f"{pillow.libjpeg} ({where})" if pillow.libjpeg else "absent"),
    ]
    if pillow.absent_codecs:
        rows.append(("PIL lacks", ", ".join(pillow.absent_codecs)))
    if pillow.mixed:
        command = pillow_simd_command(pillow.version)
        rows.append(
            (
                "warning",
                f"pillow-simd {pillow.version} is installed over pillow {pillow.overlaid}; install it over the same "
                f"version: {command}",
            )
        )
    return rows


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
            try:
                found[name[0]] = importlib.metadata.version(name[0])
            except importlib.metadata.PackageNotFoundError:
                continue
    return ", ".join(f"{name} {found[name]}" for name in sorted(found, key=str.lower)) or "none"
