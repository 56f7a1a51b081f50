"""Samples of the machine, a few times per second: CPU and memory of the script's processes, and the GPUs."""

from __future__ import annotations

import contextlib
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
        self._interval_s = interval_s
        self._gpus = [(nvml, gpu) for gpu in nvml.visible()] if isinstance(nvml, Nvml) else []
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
        now_ns = time.monotonic_ns()
        busy: dict[int, int] = {}
        memory = 0
        for pid in [own, *_below(own)]:
            fields = stat_fields(pid)
            if fields is not None:
                busy[pid] = int(fields[11]) + int(fields[12])
                memory += int(fields[21]) * _PAGE

        elapsed_s = max(1e-6, (now_ns - self._last_ns) / 1e9)
        used = {pid: (ticks - self._busy.get(pid, 0)) * _TICK_S / elapsed_s for pid, ticks in busy.items()}
        own_cores = used.pop(own, 0.0)
        gpus = []
        for nvml, gpu in self._gpus:
            found = nvml.sample(gpu)
            gpus.append(
                GpuReading(gpu.index, found.busy, found.memory_bytes, found.received_bytes_s, found.sent_bytes_s)
            )
        self.samples.append(Sample(now_ns, own_cores, sum(used.values()), memory, tuple(gpus)))
        self._busy = busy
        self._last_ns = now_ns


def _below(pid: int) -> list[int]:
    """Returns all descendants of a process. Reads their lists of children only, not every process of the machine."""
    found = [pid]
    for parent in found:
        with contextlib.suppress(OSError):  # it has ended
            for task in os.listdir(f"/proc/{parent}/task"):
                with open(f"/proc/{parent}/task/{task}/children", encoding="ascii") as file:
                    found += map(int, file.read().split())
    return found[1:]
