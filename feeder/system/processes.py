"""CPU time and memory of a process and of all below it, as ``/proc`` has them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from typing import NamedTuple

__all__ = ["Memory", "cpu_seconds", "forget_peak", "memory", "process_tree"]

_MIB = 1 << 20


class Memory(NamedTuple):
    """Memory of several processes together, MiB.

    Attributes:
        peak_rss: Sum of the most that each has had; what they share counts for each of them.
        pss: Now, with what they share counted once.
    """

    peak_rss: float
    pss: float


def process_tree(root: int | None = None) -> list[int]:
    """Process ids of a process (this one if None) and of all its descendants that run."""
    parents = {pid: int(fields[1]) for pid, fields in _stats(_pids())}
    found = [os.getpid() if root is None else root]
    for pid in found:
        found += [child for child, parent in parents.items() if parent == pid]
    return found


def cpu_seconds(root: int | None = None) -> float:
    """CPU time of a process tree: of those that run, and of those that have been waited for."""
    ticks = sum(sum(map(int, fields[11:15])) for _, fields in _stats(process_tree(root)))
    return ticks / os.sysconf("SC_CLK_TCK")


def memory(root: int | None = None) -> Memory:
    """Memory of a process tree. Reads every page table, so it takes milliseconds: not for inside a timed stretch."""
    peak_kib = pss_kib = 0
    for pid in process_tree(root):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            peak_kib += _field(f"/proc/{pid}/status", "VmHWM:")
            pss_kib += _field(f"/proc/{pid}/smaps_rollup", "Pss:")
    return Memory(peak_kib * 1024 / _MIB, pss_kib * 1024 / _MIB)


def forget_peak() -> None:
    """Lets this process's peak start anew from what it has now, where the kernel can."""
    with contextlib.suppress(OSError), open("/proc/self/clear_refs", "w") as file:
        file.write("5")


def _pids() -> Iterator[int]:
    return (int(entry) for entry in os.listdir("/proc") if entry.isdigit())


def _stats(pids: Iterable[int]) -> Iterator[tuple[int, list[str]]]:
    """The fields of /proc/PID/stat after the name, which may itself hold blanks and parentheses."""
    for pid in pids:
        try:
            with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
                yield pid, file.read().rpartition(")")[2].split()
        except OSError:
            continue


def _field(path: str, name: str) -> int:
    with open(path) as file:
        return next((int(line.split()[1]) for line in file if line.startswith(name)), 0)
