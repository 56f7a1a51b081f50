"""Starts and ends input services in a Ray cluster."""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from feeder.errors import ArgumentError, ServiceError
from feeder.service.roots import Roots
from feeder.service.server_options import ServerOptions
from feeder.service.server_status import service_status
from feeder.system.checks import check_int
from feeder.system.ray_cluster import joined_cluster, quiet_ray

_START_S = 300.0
_LOOK_S = 0.2
_ANSWER_S = 10.0
_ORPHAN_S = 60.0
_OTHERWISE_SET = {"CPU": "cpus= (--cpus)", "GPU": "labels= (--label), as servers use no GPU"}


@contextlib.contextmanager
def joined(address: str) -> Iterator[Any]:
    """Joins a cluster, unless this process has done so, and leaves it in the end; gives the module ray.

    Raises:
        ArgumentError: if Ray is not installed.
        ServiceError: if the cluster can't be joined.
    """
    try:
        with quiet_ray():
            import ray
    except ModuleNotFoundError:
        raise ArgumentError("an input service needs the package ray: pip install 'feeder-data[ray]'") from None
    with joined_cluster(address, ServiceError):
        yield ray


def start(
    name: str = "feeder",
    *,
    roots: Sequence[str | os.PathLike[str]],
    cpus: int,
    nodes: int | None = None,
    address: str = "auto",
    host: str | None = None,
    window_bytes: int = 512 << 20,
    job_cores: int | None = None,
    cache_dir: str | None = None,
    metrics_port: int | None = None,
    allow_modules: Sequence[str] = (),
    tcp_only: bool = False,
    labels: Mapping[str, str] | None = None,
    resources: Mapping[str, float] | None = None,
) -> dict[str, Any]:
    """Starts an input service in a Ray cluster, on its nodes as they come and go, until :func:`stop`.

    Args:
        name: Its name, which ``feeder.DataLoader(..., service=name)`` takes.
        roots: Folders and URLs below which sets may be read, at the same place on every node. Nothing else is.
        cpus: Cores of each node that make parts; Ray counts them as taken.
        nodes: Largest number of nodes; None: all that have so many cores. One whose cores others use for four
            minutes is left out, and tried again later.
        address: The cluster, as ``ray.init`` takes it. A process that has joined one stays there.
        host: The address that servers listen on; None: the node's in the cluster, where that is no public one. With
            "0.0.0.0" they listen on all addresses of a node.
        window_bytes: Memory of each node for finished parts that other trials may want, too.
        job_cores: Most cores of a node that one job gets at a time; None: all that the others leave.
        cache_dir: Cache of remote sets on each node; None: the default.
        metrics_port: TCP port of each node for Prometheus; None: none.
        allow_modules: Names of the modules whose functions recipes and fields may call on the nodes, which have the
            same files of them; no others are called, and nothing else of these.
        tcp_only: True to send parts over TCP to jobs on the same node, too, which get a view of the server's memory
            otherwise.
        labels: Labels of Ray that a node must have, such as {"pool": "cpu"}.
        resources: Resources of Ray that each server takes from its node, beside the cores, such as {"memory": 8 << 30},
            bytes.

    Returns:
        ``servers``: [host, port] of those that have started so far, one at least.

    Raises:
        ArgumentError: for a bad argument, or without Ray.
        ServiceError: if the cluster can't be joined, there is such a service, or none of its nodes can start a server.
    """
    folders = _checked_roots(name, roots, allow_modules, resources or {})
    for what, value in (("cpus", cpus), ("nodes", nodes), ("job_cores", job_cores)):
        check_int(what, value, 1, or_none=what != "cpus")
    how: dict[str, Any] = {"window_bytes": window_bytes, "job_cores": job_cores, "cache_dir": cache_dir}
    how |= {"modules": tuple(allow_modules), "tcp_only": tcp_only}
    options = ServerOptions(folders, cpus, secrets.token_hex(32), host or "", **how)
    places: dict[str, Any] = {"nodes": nodes, "labels": dict(labels or {}), "resources": dict(resources or {})}
    places |= {"metrics_port": metrics_port, "orphan_s": _ORPHAN_S}

    with joined(address) as ray:
        return {"servers": _begin(ray, name, options, places)}


def _checked_roots(name: str, roots: Any, modules: Any, resources: Mapping[str, float]) -> tuple[str, ...]:
    """Returns the roots of a service, folders by their whole paths.

    Raises:
        ArgumentError: if there are none, for a bad name of the service, and for modules or resources that can't be.
    """
    if not name or "@" in name or name.startswith("file:"):
        raise ArgumentError(f"expected a name without '@' that does not begin with 'file:', got {name!r}")
    if not roots or isinstance(roots, (str, os.PathLike)):
        raise ArgumentError(f"roots must be a list of folders and URLs, got {roots!r}")
    if isinstance(modules, str):
        raise ArgumentError(f"allow_modules must be a list of modules' names, got {modules!r}")
    for each in resources.keys() & _OTHERWISE_SET.keys():
        raise ArgumentError(f"resources can't have {each}: give {_OTHERWISE_SET[each]}")

    places = [os.fspath(each) for each in roots]
    Roots([each for each in places if "://" in each] or ["/"])  # folders may be those of the nodes alone
    return tuple(each if "://" in each else os.path.abspath(each) for each in places)


def _begin(ray: Any, name: str, options: ServerOptions, places: Mapping[str, Any]) -> list[Any]:
    """Starts the registry of a service; returns the servers that it has started first, one at least."""
    from feeder.service.actors import NAMESPACE, Registry, registry_name

    settings = {"name": registry_name(name), "namespace": NAMESPACE, "lifetime": "detached", "num_cpus": 0}
    made = ray.remote(Registry).options(**settings, max_restarts=-1, max_concurrency=16)
    try:
        registry = made.remote(name, options, places)
    except ValueError:  # the name is taken
        raise ServiceError(
            f"service {name!r} runs already; end it with `feeder serve --stop`, or take another name"
        ) from None

    try:
        return _await_servers(ray, name, registry, options.cores)
    except BaseException:
        _end(ray, name)
        raise


def _await_servers(ray: Any, name: str, registry: Any, cpus: int) -> list[Any]:
    """Waits for the first servers of a service that was started; returns [host, port] of each.

    Raises:
        ServiceError: if none of its nodes can start one.
    """
    ends = time.monotonic() + _START_S
    while not (found := _directory(ray, name, registry, ends + _ANSWER_S - time.monotonic()))["servers"]:
        problems = [f"{each['address']}: {each['problem']}" for each in found["problems"]]
        if problems and not found["starting"]:
            raise ServiceError(f"no node can start a server: {'; '.join(problems[:2])}")
        if time.monotonic() > ends:
            raise ServiceError(
                f"no node has started a server in {_START_S:g} s: each needs {cpus} free cores, this version "
                "of feeder, and the folders below which sets may be read; Ray's logs say more"
            )
        time.sleep(_LOOK_S)
    servers: list[Any] = found["servers"]
    return servers


def status(name: str = "feeder", *, address: str = "auto") -> dict[str, Any]:
    """Returns the state of a service's servers.

    Args:
        name: Its name.
        address: The cluster.

    Returns:
        ``servers``: for each what :meth:`feeder.service.server.Server.status` returns with ``images_per_s`` and
        ``cpu_share`` (of its cores) over a second; or ``address`` and ``problem``.

    Raises:
        ServiceError: if there is none of that name.
    """
    return service_status(directory(name, address=address))


def stop(name: str = "feeder", *, address: str = "auto") -> None:
    """Ends a service.

    Args:
        name: Its name.
        address: The cluster.

    Raises:
        ServiceError: if there is none of that name.
    """
    with joined(address) as ray:
        if not _end(ray, name):
            _registry(ray, name)  # raises the error that there is none


def directory(name: str, *, address: str = "auto") -> dict[str, Any]:
    """Returns the servers of a service, and their token: not to be shown.

    Raises:
        ServiceError: if there is none of that name, or its registry does not answer.
    """
    with joined(address) as ray:
        return _directory(ray, name, _registry(ray, name), _ANSWER_S)


def _directory(ray: Any, name: str, registry: Any, answer_s: float) -> dict[str, Any]:
    """Asks a registry, and asks again if it moves to another node in the meantime."""
    ends = time.monotonic() + answer_s
    while True:
        try:
            found: dict[str, Any] = ray.get(registry.directory.remote(), timeout=max(0.0, ends - time.monotonic()))
            return found
        except ray.exceptions.RayError as error:
            if time.monotonic() < ends and isinstance(error, ray.exceptions.ActorUnavailableError):
                time.sleep(_LOOK_S)
                continue
            raise ServiceError(
                f"the registry of the service {name!r} does not answer ({type(error).__name__}); if its node was lost, "
                "it moves to another one: ask again in a moment"
            ) from None


def _registry(ray: Any, name: str) -> Any:
    from feeder.service.actors import NAMESPACE, registry_name

    try:
        return ray.get_actor(registry_name(name), NAMESPACE)
    except ValueError:
        raise ServiceError(f"there is no service {name!r} in this cluster; start it with `feeder serve`") from None


def _end(ray: Any, name: str) -> bool:
    """Ends the registry of a service and all of its servers, also those that it has lost; returns False if there are
    none."""
    from feeder.service.actors import NAMESPACE, registry_name, server_name

    found = False
    for each in (registry_name(name), *(server_name(name, node["NodeID"]) for node in ray.nodes())):
        try:
            actor = ray.get_actor(each, NAMESPACE)
        except ValueError:
            continue
        if not found and each == registry_name(name):
            with contextlib.suppress(ray.exceptions.RayError):
                ray.get(actor.stop.remote(), timeout=_ANSWER_S)
        ray.kill(actor)
        found = True
    return found
