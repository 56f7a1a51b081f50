"""CPU time and memory of a process and of its descendants, from ``/proc``."""

from __future__ import annotations

import contextlib
import glob
import os
from collections.abc import Iterable
from typing import NamedTuple

_MIB = 1 << 20
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class MemoryUse(NamedTuple):
    """Memory of several processes together, MiB.

    Attributes:
        peak_rss: Sum of each process's peak; shared memory counts once for each of them.
        pss: Current memory, with shared memory counted once.
    """

    peak_rss: float
    pss: float


def process_tree(root: int | None = None) -> list[int]:
    """Returns the process ids of a process (this one if None) and of all its running descendants."""
    return list(_family(root))


def cpu_seconds(root: int | None = None) -> float:
    """Returns the CPU time of a process tree, with that of ended children that have been waited for."""
    return sum(sum(map(int, fields[11:15])) for fields in _family(root).values()) / _TICKS_PER_S


def cpu_seconds_by_process(root: int | None = None) -> dict[int, float]:
    """Returns the CPU time of each running process of a tree, by process id, without its ended children."""
    return {pid: sum(map(int, fields[11:13])) / _TICKS_PER_S for pid, fields in _family(root).items()}


def cpu_seconds_of(pids: Iterable[int]) -> float:
    """Returns the CPU time of processes that are known, with that of their ended children that have been waited for."""
    found = (fields for pid in pids if (fields := stat_fields(pid)))
    return sum(sum(map(int, fields[11:15])) for fields in found) / _TICKS_PER_S


def memory(root: int | None = None) -> MemoryUse:
    """Returns the memory of a process tree. Reads every page table: milliseconds, too slow for a timed section."""
    peak = pss = 0
    for pid in process_tree(root):
        with contextlib.suppress(OSError):  # the process has just ended
            peak += status_bytes("VmHWM", pid)
            pss += pss_bytes(pid)
    return MemoryUse(peak / _MIB, pss / _MIB)


def pss_bytes(pid: int) -> int:
    """Returns a process's memory, each shared page divided by the processes that share it; 0 if it can't be read."""
    try:
        return field_bytes(f"/proc/{pid}/smaps_rollup", "Pss")
    except OSError:
        return 0


def status_bytes(name: str, pid: int | None = None) -> int:
    """Returns a size from ``/proc/PID/status``; 0 if the field is absent.

    Args:
        name: The field, such as "VmRSS" or "VmHWM".
        pid: The process; None for this one.

    Raises:
        OSError: if the process has ended.
    """
    return field_bytes(f"/proc/{'self' if pid is None else pid}/status", name)


def stat_fields(pid: int | str) -> list[str] | None:
    """Returns the fields of ``/proc/PID/stat`` after the name, which may hold blanks; None if the process has ended.

    Args:
        pid: The process, or a thread, such as "self/task/ID".
    """
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split()
    except OSError:
        return None


def _family(root: int | None) -> dict[int, list[str]]:
    """Returns :func:`stat_fields` of a process and of its descendants by process id."""
    found = [os.getpid() if root is None else root]
    for parent in found:  # by its threads' lists of children: a machine may have thousands of other processes
        for path in glob.glob(f"/proc/{parent}/task/*/children"):
            with contextlib.suppress(OSError), open(path, encoding="ascii") as file:  # the thread has ended
                found += map(int, file.read().split())
    return {pid: fields for pid in found if (fields := stat_fields(pid))}


def field_bytes(path: str, name: str) -> int:
    """Returns a size in a file of the kernel's, such as ``/proc/meminfo``; 0 if the field is absent."""
    with open(path) as file:
        return next((int(line.split()[1]) << 10 for line in file if line.startswith(f"{name}:")), 0)
