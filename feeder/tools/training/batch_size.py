"""find_batch_size: the largest batch that a training step has memory for, or the fastest one if that is smaller."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from feeder.errors import ArgumentError
from feeder.system.memory import available_bytes
from feeder.system.process_usage import forget_peak, status_bytes
from feeder.tools.training.training_state import Snapshot

__all__ = ["BatchSizeResult", "BatchSizeTrial", "find_batch_size"]

# In lower case: messages of allocators (CUDA and its libraries, torch's CPU allocator, C++), and those of torch, cuDNN
# and oneDNN where no convolution algorithm finds memory for its workspace.
_OUT_OF_MEMORY = (
    *("out of memory", "can't allocate memory", "alloc_failed", "bad_alloc"),
    *("unable to find an engine", "unable to find a valid cudnn algorithm", "cudnn_status_not_supported"),
    *("could not create a primitive", "could not execute a primitive", "could not create a memory"),
)


@dataclass(frozen=True)
class BatchSizeTrial:
    """One batch size that was tried.

    Attributes:
        batch_size: Samples in the batch.
        fits: True if there was memory for it.
        images_per_s: Rate of its fastest step; None if it does not fit.
        memory_bytes: Peak memory beyond what was in use before the search: allocated by torch on a GPU, resident on the
            CPU. None if a step ran out of memory, or was not run.
        reason: Reason why it does not fit; empty if it does.
    """

    batch_size: int
    fits: bool
    images_per_s: float | None = None
    memory_bytes: int | None = None
    reason: str = ""


@dataclass(frozen=True)
class BatchSizeResult:
    """The result of a search.

    Attributes:
        batch_size: The size to use: the largest that is as fast as the fastest, within ``tolerance``.
        largest: The largest size that fits, within ``multiple_of``.
        trials: All sizes that were tried, in order.
    """

    batch_size: int
    largest: int
    trials: tuple[BatchSizeTrial, ...]


def find_batch_size(
    step: Callable[[int], object],
    *,
    restore: Sequence[Any] = (),
    start: int = 8,
    maximum: int = 65_536,
    multiple_of: int = 8,
    steps: int = 3,
    tolerance: float = 0.03,
    device: str | torch.device | None = None,
    memory_limit_bytes: int | None = None,
) -> BatchSizeResult:
    """Finds a batch size by doubling, then halving the gap, and undoes all effects of the trials.

    A trial runs ``step`` once to warm up and then ``steps`` times. If it runs out of memory, its memory is freed and
    the next smaller size is tried. After each trial everything in ``restore``, and the random generators of Python,
    numpy and torch, are restored. In a distributed job, search on each rank before wrapping the model, and use the
    smallest size found: a rank that runs out of memory in a collective operation would leave the others waiting.

    The result leaves no memory for anything that the trials do not allocate: batches that a loader keeps on the device,
    a decoder's memory there, an evaluation, an average of the model. Reserve it with a lower ``memory_limit_bytes``,
    such as ``int(0.8 * torch.cuda.mem_get_info()[0])``.

    Args:
        step: Trains one step on a batch of that many samples, forward, backward and optimizer included.
        restore: Objects that the step changes: modules, and objects with ``state_dict`` and ``load_state_dict``
            (optimizers, schedulers, scalers).
        start: The first size, 1 or more; halved until it fits.
        maximum: No size above it is tried.
        multiple_of: Larger sizes are rounded down to multiples of it, ``start`` and ``maximum`` included.
        steps: Timed steps of a trial; the fastest counts.
        tolerance: Share of the best images/s that a larger batch may lose and still be preferred, 0 to 1.
        device: Device of the memory: a GPU, or "cpu". None: the current GPU if there is one, else the CPU.
        memory_limit_bytes: Upper limit of a trial's ``memory_bytes``. None: no limit but the memory itself on a GPU,
            the memory available now on the CPU. On the CPU, a size that would exceed the available memory, judging by
            other sizes, is not run, because the system would kill the process.

    Returns:
        The size to use and everything tried.

    Raises:
        ArgumentError: if an argument is out of range, or not even a batch of one fits.
    """
    for name, value in (("start", start), ("maximum", maximum), ("multiple_of", multiple_of), ("steps", steps)):
        if value < 1:
            raise ArgumentError(f"{name} must be 1 or more, got {value}")
    if not 0 <= tolerance < 1:
        raise ArgumentError(f"tolerance must be in [0, 1), got {tolerance}")

    gauge = _gauge(device, memory_limit_bytes)
    snapshot = Snapshot(restore, gauge.device)
    trials: list[BatchSizeTrial] = []
    maximum = _on_grid(maximum, multiple_of)
    good = 0
    bad = maximum + 1
    size = min(_on_grid(start, multiple_of), maximum)
    while size:
        try:
            trials.append(_try(step, size, steps, gauge))
        finally:
            gauge.free(collect=not trials or not trials[-1].fits)  # first: the restore needs memory too
            snapshot.put_back()
        if trials[-1].fits:
            good = size
        else:
            bad = size
        size = _following(good, bad, maximum, multiple_of)
    if not good:
        raise ArgumentError(f"not even a batch of 1 fits: {trials[-1].reason}")

    rates = {trial.batch_size: trial.images_per_s or 0.0 for trial in trials if trial.fits}
    enough = (1 - tolerance) * max(rates.values())
    return BatchSizeResult(max(size for size, rate in rates.items() if rate >= enough), good, tuple(trials))


def _following(good: int, bad: int, maximum: int, multiple_of: int) -> int:
    """Returns the next size to try; 0 if there is none.

    Args:
        good: The largest size that fits; 0 if none is known.
        bad: The smallest size that does not; more than ``maximum`` if none is known.
        maximum: No size above it is tried.
        multiple_of: Sizes are multiples of it where they are larger.
    """
    if not good:
        return _on_grid(bad // 2, multiple_of)
    least = good + (1 if good < multiple_of else multiple_of)
    if least >= bad:
        return 0
    # Doubles until a size does not fit, then halves the gap.
    wanted = min(2 * good, maximum) if bad > maximum else (good + bad) // 2
    return max(least, _on_grid(wanted, multiple_of))


def _on_grid(size: int, multiple_of: int) -> int:
    """Returns a size rounded down to ``multiple_of``; smaller sizes stay as they are."""
    return size if size < multiple_of else size - size % multiple_of


def _try(step: Callable[[int], object], size: int, steps: int, gauge: _Gauge) -> BatchSizeTrial:
    refused = gauge.expect(size)
    if refused:
        return BatchSizeTrial(size, False, reason=refused)

    gauge.begin()
    best_s = float("inf")
    try:
        step(size)
        for _ in range(steps):
            gauge.wait()
            began = time.perf_counter()
            step(size)
            gauge.wait()
            best_s = min(best_s, time.perf_counter() - began)
    except (RuntimeError, MemoryError) as error:
        text = str(error)
        known = isinstance(error, (MemoryError, torch.OutOfMemoryError))
        if not known and not any(each in text.lower() for each in _OUT_OF_MEMORY):
            raise
        # Keeps only the text: the error's traceback holds the step's tensors.
        reason = f"out of memory ({text.splitlines()[0] if text else type(error).__name__})"
        return BatchSizeTrial(size, False, reason=reason)

    used = gauge.end(size)
    if used > gauge.limit_bytes:
        return BatchSizeTrial(size, False, None, used, f"takes {used:,} bytes, more than {gauge.limit_bytes:,}")
    return BatchSizeTrial(size, True, size / max(best_s, 1e-9), used)


class _Gauge:
    """Measures memory on a GPU by torch's own count of its allocations."""

    def __init__(self, device: torch.device, limit_bytes: int | None) -> None:
        self.device = device
        self.limit_bytes = (1 << 62) if limit_bytes is None else limit_bytes
        self._before = torch.cuda.memory_allocated(device)

    def expect(self, size: int) -> str:
        """Returns the reason why a size must not be tried; empty if it may."""
        return ""

    def begin(self) -> None:
        """Starts to measure the peak."""
        torch.cuda.reset_peak_memory_stats(self.device)

    def end(self, size: int) -> int:
        """Returns the peak since :meth:`begin`, bytes."""
        return max(0, torch.cuda.max_memory_allocated(self.device) - self._before)

    def wait(self) -> None:
        """Waits for the device."""
        torch.cuda.synchronize(self.device)

    def free(self, *, collect: bool) -> None:
        """Frees unused memory; with ``collect``, collects cycles first, which takes tenths of a second."""
        if collect:
            gc.collect()
        torch.cuda.empty_cache()


class _CpuGauge(_Gauge):
    """Measures memory on the CPU by the kernel's peak of the resident memory.

    Memory that the allocator keeps from earlier trials counts too; with glibc that is some tens of MiB at most.
    """

    def __init__(self, limit_bytes: int | None) -> None:
        self._available = available_bytes()
        self.device = torch.device("cpu")
        self.limit_bytes = self._available if limit_bytes is None else limit_bytes
        self.free(collect=True)
        self._before = status_bytes("VmRSS")
        self._used = {0: 0}  # by batch size

    def expect(self, size: int) -> str:
        # A straight line through the two largest sizes that were measured.
        below, above = sorted(self._used)[-2:] if len(self._used) > 1 else (0, 1)
        slope = (self._used.get(above, 0) - self._used[below]) / (above - below)
        need = int(self._used.get(above, 0) + slope * (size - above))
        if need <= self._available:
            return ""
        return f"would take about {need:,} bytes, and {self._available:,} are available"

    def begin(self) -> None:
        # If the peak can't be reset, sizes below one that was too large seem too large as well, which errs on the safe
        # side.
        forget_peak()

    def end(self, size: int) -> int:
        used = max(0, status_bytes("VmHWM") - self._before)
        self._used[size] = used
        return used

    def wait(self) -> None:
        pass

    def free(self, *, collect: bool) -> None:
        if collect:
            gc.collect()
        with contextlib.suppress(AttributeError, OSError):  # a C library without it
            ctypes.CDLL(None).malloc_trim(0)


def _gauge(where: str | torch.device | None, limit_bytes: int | None) -> _Gauge:
    has_gpu = torch.cuda.is_available()
    device = torch.device(where if where is not None else "cuda" if has_gpu else "cpu")
    if limit_bytes is not None and limit_bytes < 1:
        raise ArgumentError(f"memory_limit_bytes must be 1 or more, got {limit_bytes}")
    if device.type == "cpu":
        return _CpuGauge(limit_bytes)
    if device.type != "cuda" or not has_gpu:
        raise ArgumentError(f"device must be 'cpu', or 'cuda' where torch finds a GPU, got {str(device)!r}")
    return _Gauge(device, limit_bytes)
