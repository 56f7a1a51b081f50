"""Samples of the machine, a few times per second: CPU and memory of the script's processes, and the GPUs."""

from __future__ import annotations

import os
import threading
import time

from feeder.system.nvml import Nvml
from feeder.system.process_usage import stat_fields
from feeder.tools.instrument.record import GpuReading, Sample

__all__ = ["Sampler"]

_TICK_S = 1 / os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
_MOST = 4000


class Sampler:
    """A thread that takes samples until it is stopped.

    Args:
        nvml: NVIDIA's library, or the reason for its absence.
        interval_s: Seconds between two samples; doubled each time there are too many of them.
    """

    def __init__(self, nvml: Nvml | str, interval_s: float = 0.25) -> None:
        self.samples: list[Sample] = []
        self._nvml, self._interval_s = nvml, interval_s
        self._gpus = nvml.visible() if isinstance(nvml, Nvml) else []
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
            if len(self.samples) > _MOST:
                del self.samples[1::2]
                self._interval_s *= 2

    def _look(self) -> None:
        own = os.getpid()
        now, found, memory = time.monotonic_ns(), {}, 0
        for pid in [own, *_below(own)]:
            fields = stat_fields(pid)
            if fields is not None:
                found[pid] = int(fields[11]) + int(fields[12])
                memory += int(fields[21]) * _PAGE
        elapsed = max(1e-6, (now - self._last_ns) / 1e9)
        used = {pid: (ticks - self._busy.get(pid, 0)) * _TICK_S / elapsed for pid, ticks in found.items()}
        gpus = []
        for gpu in self._gpus:
            assert isinstance(self._nvml, Nvml)
            reading = self._nvml.sample(gpu)
            gpus.append(
                GpuReading(
                    gpu.index, reading.busy, reading.memory_bytes, reading.received_bytes_s, reading.sent_bytes_s
                )
            )
        children = sum(cores for pid, cores in used.items() if pid != own)
        self.samples.append(Sample(now, used.get(own, 0.0), children, memory, tuple(gpus)))
        self._busy, self._last_ns = found, now


def _below(pid: int) -> list[int]:
    """Returns all descendants of a process. Reads their lists of children only, not every process of the machine."""
    found: list[int] = []
    stack = [pid]
    while stack:
        parent = stack.pop()
        try:
            for task in os.listdir(f"/proc/{parent}/task"):
                with open(f"/proc/{parent}/task/{task}/children", encoding="ascii") as file:
                    children = [int(word) for word in file.read().split()]
                found += children
                stack += children
        except OSError:  # it has ended
            continue
    return found
