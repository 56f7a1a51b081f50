"""Findings on the system's limits (cores, memory, /dev/shm, open files) and on GPUs."""

from __future__ import annotations

import os
import re
import resource
from collections.abc import Iterator, Mapping
from pathlib import Path

from feeder.system.cores import cores, local_world_size, memory_limit
from feeder.system.nvml import Nvml
from feeder.tools.doctor.finding import Finding
from feeder.tools.terminal import size

_GIB = 1 << 30
_LITTLE_SHARED_BYTES = 2 * _GIB
_FEW_FILES, _TOO_FEW_FILES = 4096, 512


def check_cores(root: str = "/", environment: Mapping[str, str] = os.environ) -> Iterator[Finding]:
    """Compares the cores that this process may use with those of the machine."""
    found, ranks = cores(root, environment), local_world_size(environment)
    said = f"{found.usable} given, {found.machine} seen"
    if found.limited_by is not None:
        said += f" (by {found.limited_by})"
    if ranks > 1:
        said += f", shared by {ranks} ranks"

    each = found.usable // ranks
    if each < 2:
        yield Finding(
            "cores",
            "warning",
            said,
            "The training loop and the loader's workers take turns on one core.",
            "ask for more: SLURM --cpus-per-task, docker --cpus, Kubernetes resources.limits.cpu",
        )
    elif found.quota is not None and found.usable < found.affinity:
        yield Finding(
            "cores",
            "warning",
            said,
            "os.cpu_count() and sched_getaffinity() do not see a quota. As many workers and threads as they report use "
            "it up early in each period; then all of them stop until the next, the training loop too.",
            f"at most {each} for num_workers, OMP_NUM_THREADS and torch.set_num_threads(); or a larger quota",
        )
    elif found.usable < found.machine:
        why = "os.cpu_count() gives the machine's cores, not those that this process may use."
        remedy = f"take num_workers from len(os.sched_getaffinity(0)): at most {each}"
        yield Finding("cores", "note", said, why, remedy)
    else:
        yield Finding("cores", "ok", said)


def check_memory(root: str = "/") -> Iterator[Finding]:
    """Checks the memory limit of the control group."""
    limit = memory_limit(root)
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if limit is None or limit.limit_bytes >= total:
        yield Finding("memory", "ok", f"{size(total)}, no limit below that")
    elif limit.available_bytes < limit.limit_bytes // 10:
        yield Finding(
            "memory",
            "warning",
            f"{size(limit.available_bytes)} left of the control group's {size(limit.limit_bytes)}",
            "When it is used up, the kernel kills a process, often a worker.",
            "a larger limit, fewer workers, or a smaller prefetch_factor",
        )
    else:
        said = f"{size(limit.limit_bytes)} of the machine's {size(total)}, by the control group"
        why = "The page cache counts too: a data set larger than the limit is read from disk in every epoch."
        yield Finding("memory", "note", said, why)


def check_shared_memory(path: str = "/dev/shm") -> Iterator[Finding]:
    """Checks the size of /dev/shm."""
    remedy = "docker run --shm-size=8g (or --ipc=host); Kubernetes: an emptyDir of medium Memory at /dev/shm"
    try:
        found = os.statvfs(path)
    except OSError:
        why = "Workers of torch's DataLoader pass their batches through it. feeder's DataLoader does not need it."
        yield Finding("/dev/shm", "warning", "absent", why, remedy)
        return
    total, free = found.f_frsize * found.f_blocks, found.f_frsize * found.f_bavail
    said = f"{size(total)}, {size(free)} of it free"
    if free < _LITTLE_SHARED_BYTES:
        why = (
            "Workers of torch's DataLoader pass their batches through it, and die with a bus error when it is full. "
            "feeder's DataLoader does not need it."
        )
        if total >= _LITTLE_SHARED_BYTES:
            remedy = f"see what fills it (ls -l {path}); files that a crashed run left can be deleted"
        yield Finding("/dev/shm", "warning", said, why, remedy)
    else:
        yield Finding("/dev/shm", "ok", said)


def check_files() -> Iterator[Finding]:
    """Checks RLIMIT_NOFILE."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    said = f"{_limit(soft)} (ulimit -n)"
    if soft != resource.RLIM_INFINITY and soft < _FEW_FILES:
        can_rise = hard == resource.RLIM_INFINITY or hard > soft
        reach = f"ulimit -n {_limit(hard)}" if can_rise else "a higher hard limit"
        yield Finding(
            "open files",
            "problem" if soft < _TOO_FEW_FILES else "warning",
            said,
            "Workers of torch's DataLoader send every tensor as a file descriptor, and each open shard takes one: "
            'late in a run this may be "Too many open files".',
            f"{reach}; docker run --ulimit nofile=65536",
        )
    else:
        yield Finding("open files", "ok", said)


def check_gpus(nvml: Nvml | str, driver: str | None, root: str = "/") -> Iterator[Finding]:
    """Checks NVML and each GPU that this process may use."""
    if isinstance(nvml, str):
        if driver is None:
            yield Finding("GPU", "note", "no NVIDIA driver here", "Nothing can be said about GPUs.")
        else:
            why = "GPU utilisation, memory and PCIe traffic can't be measured."
            remedy = 'pip install "feeder-data[nvml]"; in a container, NVIDIA_DRIVER_CAPABILITIES must have "utility"'
            texts = [path.read_text() for path in sorted(Path(root).glob("proc/driver/nvidia/gpus/*/information"))]
            names = [found[1] for text in texts if (found := re.search(r"Model:\s*(.+)", text))]
            said = ", ".join([*names, f"driver {driver}, but {nvml}"])
            yield Finding("GPU", "warning", said, why, remedy)
        return
    gpus = nvml.visible()
    if not gpus:
        why = "CUDA_VISIBLE_DEVICES hides all of them from this process." if nvml.gpus else "There is only a driver."
        yield Finding("GPU", "warning", f"none of {len(nvml.gpus)} visible", why, "unset CUDA_VISIBLE_DEVICES")
    for gpu in gpus:
        said = f"{gpu.index}: {gpu.name}, {size(gpu.memory_bytes)}, driver {nvml.driver}"
        if gpu.pcie_width and gpu.pcie_width_max and gpu.pcie_width < gpu.pcie_width_max:
            yield Finding(
                "GPU",
                "warning",
                f"{said}; {gpu.pcie_width} of {gpu.pcie_width_max} PCIe lanes in use",
                "Batches reach it at a fraction of the rate.",
                "another slot, or seat the card again; a virtual machine may have no more lanes",
            )
        else:
            yield Finding("GPU", "ok", said)


def _limit(value: int) -> str:
    return "unlimited" if value == resource.RLIM_INFINITY else str(value)
