"""The number of nodes of an input service that pay, from measured rates."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable
from dataclasses import dataclass

from feeder.errors import ServiceError
from feeder.loader.fast.service_directory import Directory
from feeder.loader.service_options import Service
from feeder.service.server_status import server_status
from feeder.system.text import count
from feeder.tools.trial import Trial

__all__ = ["NodeAdvice", "ServiceRates", "measure_service", "nodes_that_pay"]

_BUSY = 0.7  # share of their cores below which nodes wait for something else
_LOOK_S = 0.1


@dataclass(frozen=True)
class ServiceRates:
    """The measured rates of a service.

    Attributes:
        nodes: Number of its nodes.
        images_per_s: Images/s that they make together, with nothing made locally.
        host_ms: CPU time of this machine for an image that they make, milliseconds.
        busy_share: Share of the CPU time of their cores that this took, 0-1.
    """

    nodes: int
    images_per_s: float
    host_ms: float
    busy_share: float


@dataclass(frozen=True)
class NodeAdvice:
    """The advice on a service's nodes.

    Attributes:
        nodes: Number of nodes that pay; None if no goal is known.
        reason: The reason, as a sentence.
    """

    nodes: int | None
    reason: str


def nodes_that_pay(
    local_images_per_s: float, local_cores: int, idle_cores: int, goal: float | None, service: ServiceRates
) -> NodeAdvice:
    """Returns the smallest number of nodes that reach a goal beside local workers.

    A node adds its images/s, less what local workers lose: receiving an image takes this machine's CPU time, too.

    Args:
        local_images_per_s: Images/s of local workers alone.
        local_cores: Cores that they keep busy, 1 or more.
        idle_cores: Cores of this machine that they leave idle.
        goal: Images/s that the consumer takes; None: unknown.
        service: The service's measured rates.
    """
    per_node = service.images_per_s / service.nodes
    there = count(service.nodes, "node")
    made = f"{there} of the service make {service.images_per_s:,.0f} images/s"
    if goal is None:
        return NodeAdvice(
            None,
            f"{made}, local workers {local_images_per_s:,.0f}; give a target, or the step in Python, to learn how many "
            "nodes pay",
        )
    if local_images_per_s >= goal:
        return NodeAdvice(0, f"no node pays: local workers reach the {goal:,.0f} images/s that are wanted")

    lost = 0.0 if idle_cores else local_images_per_s / local_cores * service.host_ms / 1000
    if lost >= 1:
        return NodeAdvice(
            0,
            f"no node pays: to receive an image costs {service.host_ms:.2f} ms here, and local workers take "
            f"{1000 * local_cores / local_images_per_s:.2f} ms to make one",
        )

    missing = (goal - local_images_per_s) / (1 - lost)
    most = 1000 / service.host_ms if service.host_ms else math.inf
    if missing > most:
        return NodeAdvice(
            max(1, math.floor(most / per_node)),
            f"{goal:,.0f} images/s are out of reach: this process receives {most:,.0f} images/s at most, at "
            f"{service.host_ms:.2f} ms of CPU time each; more ranks receive more",
        )

    nodes = max(1, math.ceil(missing / per_node - 1e-9))
    if nodes > service.nodes and service.busy_share < _BUSY:
        return NodeAdvice(
            service.nodes,
            f"no further node pays: {made} and are busy {service.busy_share:.0%} of the time; the network or this "
            "machine is the limit",
        )
    return NodeAdvice(
        nodes,
        f"{count(nodes, 'node pays', 'nodes pay')}: local workers make {local_images_per_s:,.0f} of the {goal:,.0f} "
        f"images/s that are wanted, and each node adds {per_node * (1 - lost):,.0f}"
        + (f"; the service has {there}" if nodes > service.nodes else ""),
    )


def measure_service(place: str, run: Callable[[], Trial], *, patience_s: float = 20.0) -> ServiceRates:
    """Measures a service by a loader that has everything made there.

    Args:
        place: The service, as the loader takes it.
        run: Makes and runs that loader.
        patience_s: Longest wait for the service to be found.

    Raises:
        ServiceError: if no server is there.
    """
    with contextlib.closing(Directory(Service(place))) as directory:
        ends = time.monotonic() + patience_s
        while not directory.servers:
            if time.monotonic() > ends:
                raise ServiceError(f"no server of the service {place!r} was found: {directory.problem}")
            directory.look()
            time.sleep(_LOOK_S)
        servers = [(address, directory.token) for address in directory.servers]

    before = [server_status(*each) for each in servers]
    began = time.monotonic()
    trial = run()
    span_s = time.monotonic() - began
    after = [server_status(*each) for each in servers]

    cpu_s = sum(float(now["cpu_s"]) - float(then["cpu_s"]) for now, then in zip(after, before, strict=True))
    busy_share = min(1.0, cpu_s / span_s / sum(each["cores"] for each in after))
    return ServiceRates(len(servers), trial.images_per_s, trial.cpu_ms, busy_share)
