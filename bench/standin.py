"""A stand-in for a GPU that trains ResNet-50: busy for a fixed time per batch, at rates fixed from published figures.

Source of the rates: NVIDIA DeepLearningExamples, ResNet50 v1.5 for PyTorch, "Training performance: NVIDIA DGX A100
(8x A100 80GB)", one GPU: 938 images/s in TF32, 2,470 images/s in mixed precision, batch 256.
https://github.com/NVIDIA/DeepLearningExamples/blob/master/PyTorch/Classification/ConvNets/resnet50v1.5/README.md

Smaller batches: there is no table of training by batch size, so the curve of inference on the same GPU is used
(ResNet-50 v1.5 for MXNet, "Inference performance: NVIDIA DGX A100", mixed precision; for TF32, divided by its speedup),
each relative to batch 256.
https://github.com/NVIDIA/DeepLearningExamples/blob/master/MxNet/Classification/RN50v1.5/README.md

Scale: a p4d.24xlarge pairs 8 A100 with 96 vCPUs, two for each core of its Xeon 8275CL: 6 cores per GPU.
https://aws.amazon.com/blogs/compute/amazon-ec2-p4d-instances-deep-dive/
So a core must feed 938 / 6 = 156 images/s, or 2,470 / 6 = 412 in mixed precision; the stand-in takes that rate for each
core of this machine. Cores differ in speed, so rows of a table compare with each other, and not with that instance. The
kernel knows which CPUs are two threads of one core; on a virtual machine it knows only what the hypervisor reports. If
hyperthreads are reported as cores, the stand-in is up to twice as fast as it should be.

Its effect on the training loop is that of CUDA. Work is queued and the host continues. A copy that is not
``non_blocking``, and reading a value, wait until the queue is empty; the queue holds two steps. Steps sleep, because a
GPU takes no CPU from the workers. A blocking copy really copies the memory, as the driver does from pageable memory. A
non_blocking copy from pinned memory costs no CPU, and its time on the bus (some milliseconds per batch) is hidden by
the previous step.
"""

from __future__ import annotations

import bisect
import time
from collections import deque
from pathlib import Path

import torch

from feeder.system.cores import cores as given_cores

__all__ = ["StandIn", "physical_cores"]

NAME = "simulated accelerator"
LARGEST_BATCH = 256
GPU_CORES = 96 / 2 / 8
RATES = {"float32": 938.0, "amp": 2470.0}
_BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 192, 256)
_INFERENCE = (463, 880, 1668, 2522, 3704, 2964, 4547, 5530, 6198, 6120)
_SPEEDUP = (1.72, 1.62, 1.76, 1.75, 1.90, 1.51, 1.80, 1.94, 2.19, 2.19)
CURVES = {"amp": _INFERENCE, "float32": tuple(r / s for r, s in zip(_INFERENCE, _SPEEDUP, strict=True))}


def physical_cores() -> float:
    """Returns the cores that this process may use; two threads of one core, if the kernel knows them, count as one."""
    usable = given_cores().usable
    siblings = Path("/sys/devices/system/cpu/cpu0/topology/thread_siblings_list")
    threads = 1
    if siblings.exists():
        parts = siblings.read_text().strip().replace("-", ",").split(",")
        threads = max(1, len(parts))
    return usable / threads


class StandIn:
    """The device: a queue of steps, each busy for its time.

    Args:
        precision: "float32" (TF32) or "amp".
        cores: Number of cores that it is scaled to.
    """

    def __init__(self, precision: str = "float32", cores: float | None = None) -> None:
        self.precision = precision
        self.scale = (physical_cores() if cores is None else cores) / GPU_CORES
        self.busy_s = 0.0
        self._queue: deque[float] = deque()  # the time at which each queued step will be done
        self._staging = torch.empty(0)

    def images_per_s(self, batch_size: int) -> float:
        """Returns the rate at a batch size, interpolated between the published ones."""
        curve = CURVES[self.precision]
        right = min(bisect.bisect_left(_BATCHES, batch_size), len(_BATCHES) - 1)
        left = max(0, right - 1)
        width = _BATCHES[right] - _BATCHES[left]
        share = (batch_size - _BATCHES[left]) / width if width else 0.0
        value = curve[left] + min(1.0, share) * (curve[right] - curve[left])
        return self.scale * RATES[self.precision] * value / curve[-1]

    def copy(self, images: torch.Tensor, *, blocking: bool) -> None:
        """Copies a batch to the device."""
        if blocking:
            self.wait()
            if self._staging.shape != images.shape or self._staging.dtype != images.dtype:
                self._staging = torch.empty_like(images)
            self._staging.copy_(images)

    def step(self, batch_size: int) -> None:
        """Queues a training step; waits only while two are queued.

        Raises:
            torch.OutOfMemoryError: for more than the largest batch of the published figures.
        """
        if batch_size > LARGEST_BATCH:
            raise torch.OutOfMemoryError(f"{NAME}: out of memory, the published figures end at batch {LARGEST_BATCH}")
        if len(self._queue) >= 2:
            _sleep_until(self._queue.popleft())
        now = time.perf_counter()
        seconds = batch_size / self.images_per_s(batch_size)
        self._queue.append(max(now, self._queue[-1] if self._queue else now) + seconds)
        self.busy_s += seconds

    def wait(self) -> None:
        """Waits until the queue is empty."""
        if self._queue:
            _sleep_until(self._queue[-1])
            self._queue.clear()


def _sleep_until(moment: float) -> None:
    left = moment - time.perf_counter()
    if left > 0:
        time.sleep(left)
