"""Cores and memory that this process may use: affinity, control groups (versions 1 and 2), SLURM."""

from __future__ import annotations

import contextlib
import mmap
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from feeder.system.process_usage import field_bytes
from feeder.system.text import count

_NO_LIMIT_BYTES = 1 << 60  # version 1 has a number near 2**63 for "no limit"


@dataclass(frozen=True)
class Cores:
    """The cores of the machine, and the limits on their use.

    Attributes:
        machine: Cores of the machine that are online.
        affinity: Cores that the process may run on.
        quota: CPU time that its control groups allow, in cores; None for no limit.
        slurm: Cores that SLURM allocated to this task, else to the job on this machine; None outside SLURM.
    """

    machine: int
    affinity: int
    quota: float | None = None
    slurm: int | None = None

    @property
    def usable(self) -> int:
        """Whole cores that the process can rely on, at least 1."""
        quota = self.machine if self.quota is None else max(1, int(self.quota))
        return max(1, min(self.machine, self.affinity, quota, self.slurm or self.machine))

    @property
    def limited_by(self) -> str | None:
        """The tightest limit; None if all cores of the machine are usable."""
        if self.usable >= self.machine:
            return None
        if self.usable == self.affinity:
            return "affinity"
        return "SLURM" if self.usable == self.slurm else "control group quota"

    def describe(self) -> str:
        """Returns a text such as "4 of 64 cores (affinity)"."""
        if self.limited_by is None:
            return count(self.usable, "core")
        return f"{self.usable} of {self.machine} cores ({self.limited_by})"


@dataclass(frozen=True)
class MemoryLimit:
    """The memory limit of the control groups.

    Attributes:
        limit_bytes: The limit of the group with the least memory left.
        used_bytes: Memory in use in that group, without the page cache, which the kernel can reclaim.
    """

    limit_bytes: int
    used_bytes: int

    @property
    def available_bytes(self) -> int:
        """Memory left in the group."""
        return max(0, self.limit_bytes - self.used_bytes)


def cores(root: str = "/", environment: Mapping[str, str] = os.environ) -> Cores:
    """Returns the cores of this process.

    Args:
        root: The folder that ``proc`` and the control groups are mounted below.
        environment: Variables, SLURM's among them.
    """
    affinity = len(os.sched_getaffinity(0))
    quotas = [quota for folder in _groups("cpu", Path(root)) if (quota := _quota(folder)) is not None]
    slurm = None
    if "SLURM_JOB_ID" in environment:
        slurm = _number(environment, "SLURM_CPUS_PER_TASK") or _number(environment, "SLURM_CPUS_ON_NODE")
    return Cores(max(os.cpu_count() or 1, affinity), affinity, min(quotas, default=None), slurm)


def memory_limit(root: str = "/") -> MemoryLimit | None:
    """Returns the tightest memory limit of this process's control groups; None if there is none.

    Args:
        root: The folder that ``proc`` and the control groups are mounted below.
    """
    limits = [limit for folder in _groups("memory", Path(root)) if (limit := _memory(folder)) is not None]
    return min(limits, key=lambda limit: limit.available_bytes, default=None)


def local_world_size(environment: Mapping[str, str] = os.environ) -> int:
    """Returns how many ranks of the job share this process's cores, from the launcher's variables; 1 without them.

    A SLURM task with its own cores does not share them, unless a launcher inside it says so.
    """
    local = _number(environment, "LOCAL_WORLD_SIZE")  # torchrun
    if local is None and "SLURM_JOB_ID" in environment and "SLURM_PROCID" in environment:
        alone = _number(environment, "SLURM_CPUS_PER_TASK") is not None
        local = 1 if alone else _number(environment, "SLURM_NTASKS_PER_NODE")
    return local or 1


def _number(environment: Mapping[str, str], name: str) -> int | None:
    text = environment.get(name, "").strip()
    return int(text) if text.isdecimal() and int(text) > 0 else None


def _groups(controller: str, root: Path) -> Iterator[Path]:
    """Yields the folders of the process's control group and of all its visible parents."""
    try:
        groups = (root / "proc/self/cgroup").read_text().splitlines()
        mounts = (root / "proc/self/mountinfo").read_text().splitlines()
    except OSError:
        return
    paths: dict[str, str] = {}
    for line in groups:
        _, controllers, group = line.split(":", 2)
        paths[controllers] = group
    for line in mounts:
        fields, _, tail = line.partition(" - ")
        kind, _, options = tail.split(" ", 2)
        mounted, mount_point = fields.split()[3:5]
        path: str | None = None
        if kind == "cgroup2":
            path = paths.get("")
        elif kind == "cgroup" and controller in options.split()[-1].split(","):
            path = next((p for names, p in paths.items() if controller in names.split(",")), None)
        if path is None:
            continue
        # A container sees its own group as the mount's root, while the path may still start at the host's root.
        inside = os.path.relpath(path, mounted)
        parts = [] if inside.startswith("..") or inside == "." else inside.split("/")
        top = root / mount_point.lstrip("/")
        yield from (top.joinpath(*parts[:depth]) for depth in range(len(parts), -1, -1))


def _read(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:
        return None


def _quota(folder: Path) -> float | None:
    """Returns the folder's quota in cores."""
    version_2 = _read(folder / "cpu.max")
    if version_2 is not None:
        limit, _, period = version_2.partition(" ")
    else:
        limit, period = _read(folder / "cpu.cfs_quota_us") or "", _read(folder / "cpu.cfs_period_us") or ""
    if not limit.isdecimal() or not period.isdecimal() or int(period) == 0:  # "max", "-1", or no such file
        return None
    return int(limit) / int(period)


def _memory(folder: Path) -> MemoryLimit | None:
    """Returns the folder's limit and use."""
    names = ("memory.max", "memory.current") if (folder / "memory.max").exists() else _VERSION_1_MEMORY
    limit, used = (_read(folder / name) or "" for name in names)
    if not limit.isdecimal() or not used.isdecimal() or int(limit) >= _NO_LIMIT_BYTES:
        return None
    cache = 0
    for line in (_read(folder / "memory.stat") or "").splitlines():
        name, _, value = line.partition(" ")
        # Version 1 has separate names for the sums that include child groups.
        if name in (_V1_CACHE if names is _VERSION_1_MEMORY else _V2_CACHE) and value.isdecimal():
            cache += int(value)
    return MemoryLimit(int(limit), max(0, int(used) - cache))


_VERSION_1_MEMORY = ("memory.limit_in_bytes", "memory.usage_in_bytes")
_V1_CACHE = ("total_inactive_file", "total_active_file")
_V2_CACHE = ("inactive_file", "active_file")


def available_bytes() -> int:
    """Returns the memory available now: the system's, or what the container's limit leaves if that is less."""
    available = os.sysconf("SC_AVPHYS_PAGES") * mmap.PAGESIZE  # without the page cache, that /proc counts
    with contextlib.suppress(OSError):
        available = field_bytes("/proc/meminfo", "MemAvailable") or available
    limit = memory_limit()
    if limit is not None:
        available = min(available, limit.available_bytes)
    return available
