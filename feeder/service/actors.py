"""The actors of a service in a Ray cluster: the registry, and a server on each node.

Note [Actors]
    Both are named, so that whoever is restarted finds the others, and detached, so that they outlive who started them.
    The registry starts a server on each node that joins. Servers announce themselves every second; one that has not for
    a while is left out of the directory. The token is an argument of both, so that it stays when they are restarted.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from feeder.service.metrics import serve_metrics
from feeder.service.server import Server
from feeder.service.server_options import ServerOptions

__all__ = ["NAMESPACE", "Registry", "registry_name"]

_log = logging.getLogger("feeder")

NAMESPACE = "feeder"
_ANNOUNCE_S = 1.0
_SILENCE_S = 5.0


def registry_name(name: str) -> str:
    """Returns the name of a service's registry."""
    return f"feeder-service:{name}"


class Registry:
    """The directory of a service.

    Args:
        name: The service's name.
        token: Its token.
        options: Options of the servers: ``roots``, ``cores``, ``window_bytes``, ``job_cores``, ``cache_dir``, ``host``,
            ``metrics_port``, ``modules``, and ``nodes``, the largest number of nodes.
    """

    def __init__(self, name: str, token: str, options: dict[str, Any]) -> None:
        self._name, self._token, self._options = name, token, options
        self._heard: dict[str, tuple[str, int, float]] = {}
        self._actors: dict[str, Any] = {}
        self._is_stopped = threading.Event()
        threading.Thread(target=self._watch, daemon=True).start()

    def directory(self) -> dict[str, Any]:
        """Returns ``token`` and ``servers``, [host, port] of each that was heard of lately."""
        now = time.monotonic()
        found = [[host, port] for host, port, heard_s in list(self._heard.values()) if now - heard_s < _SILENCE_S]
        return {"token": self._token, "servers": sorted(found)}

    def announce(self, node: str, host: str, port: int) -> None:
        """Notes that a node's server is there."""
        self._heard[node] = host, port, time.monotonic()

    def stop(self) -> None:
        """Ends the servers."""
        self._is_stopped.set()
        for actor in self._actors.values():
            ray.kill(actor)
        self._actors, self._heard = {}, {}

    def _watch(self) -> None:
        while not self._is_stopped.wait(_ANNOUNCE_S):
            try:
                self._start_missing()
            except Exception as error:  # the cluster may be in any state; the next look tells
                _log.warning("service %r: %s", self._name, error)

    def _start_missing(self) -> None:
        """Starts a server on each node that has none, and forgets those of nodes that are gone."""
        alive = {
            node["NodeID"]
            for node in ray.nodes()
            if node["Alive"] and node["Resources"].get("CPU", 0.0) >= self._options["cores"]
        }
        for node in set(self._actors) - alive:
            del self._actors[node]
            self._heard.pop(node, None)
        most = self._options["nodes"]
        for node in sorted(alive - set(self._actors)):
            if self._is_stopped.is_set() or (most is not None and len(self._actors) >= most):
                return
            options = {
                "num_cpus": self._options["cores"],
                "name": f"{registry_name(self._name)}:{node}",
                "namespace": NAMESPACE,
                "lifetime": "detached",
                "get_if_exists": True,
                "max_restarts": -1,
                "max_concurrency": 4,
                "scheduling_strategy": NodeAffinitySchedulingStrategy(node, soft=False),
            }
            self._actors[node] = (
                ray.remote(NodeServer).options(**options).remote(self._name, self._token, self._options)
            )


class NodeServer:
    """The server of one node.

    Args:
        name, token, options: See :class:`Registry`.
    """

    def __init__(self, name: str, token: str, options: dict[str, Any]) -> None:
        host = options["host"] or ray.util.get_node_ip_address()
        fixed = {key: options[key] for key in ("cores", "window_bytes", "job_cores", "cache_dir", "tcp_only")}
        self._server = Server(
            ServerOptions(
                roots=tuple(options["roots"]), token=token, host=host, modules=tuple(options["modules"]), **fixed
            )
        )
        if options["metrics_port"] is not None:
            serve_metrics(self._server.status, host, options["metrics_port"])
        self._name = name
        for target in (self._run, self._announce):
            threading.Thread(target=target, daemon=True).start()

    def status(self) -> dict[str, Any]:
        """See :meth:`Server.status`."""
        return self._server.status()

    def _run(self) -> None:
        try:
            self._server.run()
        finally:
            os._exit(1)  # Ray starts another one

    def _announce(self) -> None:
        node = ray.get_runtime_context().get_node_id()
        while True:
            try:
                registry = ray.get_actor(registry_name(self._name), NAMESPACE)
                ray.get(registry.announce.remote(node, *self._server.address), timeout=_SILENCE_S)
            except Exception:
                pass
            time.sleep(_ANNOUNCE_S)
