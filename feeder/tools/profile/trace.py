"""A Chrome trace of the loaders' stages and of torch's profiler, on a common time axis.

Note [Time axis]
    feeder's times are of the monotonic clock; torch's profiler has another clock. A mark of known monotonic time at the
    start of the profile aligns feeder's events with torch's.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
import time
import warnings
from collections.abc import Iterable, Iterator
from typing import Any

from feeder.system.files import write_text
from feeder.system.text import count
from feeder.tools.instrument.record import ProcessRecord

__all__ = ["StepTrace"]

_MARKS = [f"feeder: mark {number}" for number in range(5)]
_SKIP = 3  # batches before torch's profiler starts: the first ones compile and allocate


class StepTrace:
    """Runs torch's profiler over some steps of a script.

    Args:
        steps: Number of batches.
    """

    def __init__(self, steps: int) -> None:
        self._steps = steps
        self._profiler: Any = None
        self._is_over = False
        self._mark = ""
        self._marked_ns = 0
        self._why_not = "too few batches"

    def on_batch(self, count: int) -> None:
        """Starts and stops the profiler at the right batch.

        Args:
            count: Batches so far.
        """
        if count == _SKIP and not self._is_over:
            self._start()
        elif count >= _SKIP + self._steps:
            self.stop()

    def stop(self) -> None:
        """Stops torch's profiler, if it runs."""
        if self._profiler is not None and not self._is_over:
            with contextlib.suppress(Exception):
                self._profiler.stop()
        self._is_over = True

    def write(self, path: str, processes: Iterable[ProcessRecord]) -> str:
        """Writes the trace.

        Args:
            path: The file.
            processes: The measurements.

        Returns:
            A short description of the trace's contents.
        """
        found: dict[str, Any] = {"traceEvents": []} if self._profiler is None else self._torchs()
        marks_us = [event["ts"] for event in found["traceEvents"] if event.get("name") == self._mark]
        offset_us = -min((process.started_ns for process in processes), default=0) / 1000
        said = f"loader only: {self._why_not}"
        if marks_us:
            offset_us = marks_us[0] - self._marked_ns / 1000
            said = f"{count(self._steps, 'batch', 'batches')} with torch's profiler"
        for process in processes:
            found["traceEvents"] += _events(process, offset_us)
        write_text(path, json.dumps(found))
        return said

    def _start(self) -> None:
        import torch

        activities = [torch.profiler.ProfilerActivity.CPU]
        if torch.cuda.is_available():
            activities.append(torch.profiler.ProfilerActivity.CUDA)
        profiler = torch.profiler.profile(activities=activities)
        try:
            with warnings.catch_warnings():
                # Some versions warn at every start that another start would lose the events; there is only one.
                warnings.filterwarnings("ignore", "Warning: Profiler clears events")
                profiler.start()
        except RuntimeError as error:  # the script runs torch's profiler itself
            self._why_not = str(error).splitlines()[0]
            self._is_over = True
            return

        self._profiler = profiler
        tries = []
        for name in _MARKS:
            start_ns = time.monotonic_ns()
            with torch.profiler.record_function(name):
                pass
            tries.append((time.monotonic_ns() - start_ns, start_ns, name))
        _, self._marked_ns, self._mark = min(tries)  # the fastest has the least error

    def _torchs(self) -> dict[str, Any]:
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "torch.json")
            self._profiler.export_chrome_trace(path)
            with open(path, encoding="utf-8") as file:
                found: dict[str, Any] = json.load(file)
                return found


def _events(process: ProcessRecord, offset_us: float) -> Iterator[dict[str, Any]]:
    """Yields the trace events of a process: a row for each loader and each worker, and counters."""

    def span(pid: str, row: int, name: str, start_ns: int, end_ns: int, **arguments: Any) -> dict[str, Any]:
        times = {"ts": start_ns / 1000 + offset_us, "dur": max(0, end_ns - start_ns) / 1000}
        return {"ph": "X", "cat": "feeder", "name": name, "pid": pid, "tid": row, **times, "args": arguments}

    def about(kind: str, pid: str, **arguments: Any) -> dict[str, Any]:
        return {"ph": "M", "name": kind, "pid": pid, "args": arguments}

    def counter(name: str, at_ns: int, **values: float) -> dict[str, Any]:
        return {"ph": "C", "name": name, "pid": ours, "ts": at_ns / 1000 + offset_us, "args": values}

    rank = "" if process.rank is None else f" of rank {process.rank}"
    ours = f"feeder {process.pid}"  # another group than torch's rows, which have the bare process id
    yield about("process_name", ours, name=f"feeder: loaders{rank} ({process.pid})")
    yield about("process_sort_index", ours, sort_index=-1)

    for row, loader in enumerate(process.loaders):
        name = f"{loader.place} ({loader.kind}, {count(loader.workers, 'worker')})"
        yield about("thread_name", ours, name=name) | {"tid": row}
        for asked, got in loader.made_ns:
            yield span(ours, row, "start of an epoch", asked, got)
        for batch, after in loader.steps():
            yield span(ours, row, "wait for batch", batch.asked_ns, batch.got_ns, images=batch.images)
            if after is not None:
                yield span(ours, row, "training step" if after.trained else "step", batch.got_ns, after.asked_ns)

        for fetch in loader.fetches:
            worker = f"feeder {fetch.pid}"
            middle = fetch.start_ns + fetch.dataset_ns
            cpu_ms = fetch.dataset_cpu_ns / 1e6
            queued_ms = fetch.dataset_queued_ns / 1e6
            yield span(worker, 1000 + row, "data set", fetch.start_ns, middle, processor_ms=cpu_ms, queued_ms=queued_ms)
            yield span(worker, 1000 + row, "collate", middle, middle + fetch.collate_ns)
        for pid in sorted({fetch.pid for fetch in loader.fetches} - {process.pid}):
            yield about("process_name", f"feeder {pid}", name=f"feeder: worker {pid} of {loader.place}")

    for sample in process.samples:
        values = {"training process": round(sample.own_cores, 2), "workers": round(sample.children_cores, 2)}
        yield counter("cores busy", sample.at_ns, **values)
        for gpu in sample.gpus:
            if gpu.busy is not None:
                yield counter(f"GPU {gpu.gpu} busy", sample.at_ns, share=gpu.busy)
