"""NUMA nodes: which CPUs are near which memory, and near a GPU."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from feeder.errors import ArgumentError
from feeder.system.nvml import gpu_of


def numa_nodes(root: str = "/") -> dict[int, frozenset[int]]:
    """Returns the CPUs of each NUMA node of the host that has any; empty if the system does not tell.

    Args:
        root: The folder that ``sys`` is mounted below.
    """
    nodes = {}
    for folder in Path(root, "sys/devices/system/node").glob("node[0-9]*"):
        with contextlib.suppress(OSError, ValueError):
            if cpus := _cpu_list((folder / "cpulist").read_text()):
                nodes[int(folder.name.removeprefix("node"))] = cpus
    return dict(sorted(nodes.items()))


def gpu_cpus(torch: Any, number: int, root: str = "/") -> frozenset[int] | None:
    """Returns the CPUs that are nearest to a GPU, as NVML tells them, else the kernel; None if neither does.

    Args:
        torch: The module; CUDA is initialized.
        number: CUDA's number of the GPU.
        root: As for :func:`numa_nodes`.
    """
    found = gpu_of(torch, number)
    if found is not None and (cpus := found[0].near_cpus(found[1])) is not None:
        return cpus
    properties = torch.cuda.get_device_properties(number)
    place = [getattr(properties, f"pci_{name}_id", None) for name in ("domain", "bus", "device")]
    if None in place:  # an older torch
        return None
    domain, bus, device = place
    file = Path(root, "sys/bus/pci/devices", f"{domain:04x}:{bus:02x}:{device:02x}.0", "local_cpulist")
    with contextlib.suppress(OSError, ValueError):
        return _cpu_list(file.read_text()) or None
    return None


def cpus_near(
    node: int | None, near_gpu: Collection[int] | None, allowed: Collection[int], root: str = "/"
) -> frozenset[int] | None:
    """Returns the CPUs to stay on; None if it makes no difference.

    Args:
        node: The node to stay on; None: that of the GPU.
        near_gpu: The CPUs near the GPU, see :func:`gpu_cpus`; None if there is no GPU, or they are unknown.
        allowed: The CPUs that this process may run on: what it was bound to before holds.
        root: As for :func:`numa_nodes`.

    Raises:
        ArgumentError: if there is no such node.
    """
    nodes = numa_nodes(root)
    if node is not None and node not in nodes:
        known = ", ".join(map(str, nodes)) or "none that the system tells of"
        raise ArgumentError(f"numa_node must be 'auto', None or a node of this host ({known}), got {node}")
    wanted = near_gpu if node is None else nodes[node]
    if len(nodes) < 2 or wanted is None:
        return None
    near = frozenset(wanted).intersection(allowed)
    return near if near and near != frozenset(allowed) else None


@contextlib.contextmanager
def running_on(cpus: Collection[int] | None) -> Iterator[None]:
    """Keeps the calling thread on these CPUs for a while, so that memory that it touches first is near them; None: on
    any."""
    if cpus is None:
        yield
        return
    before = os.sched_getaffinity(0)
    with contextlib.suppress(OSError):  # they were taken from this process meanwhile
        os.sched_setaffinity(0, cpus)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, before)


def _cpu_list(text: str) -> frozenset[int]:
    """Returns the numbers in a list such as "0-3,8-11"."""
    cpus: set[int] = set()
    for span in filter(None, text.strip().split(",")):
        first, _, last = span.partition("-")
        cpus.update(range(int(first), int(last or first) + 1))
    return frozenset(cpus)
