"""The actors of a service in a Ray cluster: the registry, and a server on each node.

Note [Actors]
    Both are named, so that whoever is restarted finds the others, and detached, so that they outlive who started them.
    The registry starts a server on each node that joins. Servers announce themselves every second; one that has not for
    a while is left out of the directory. A few of them are answered the addresses of all, and announce these, too, for
    a registry that has moved: with all of them 1,000 nodes would send 115 MB a second. A server that does not start, or
    has ended for good, is given up, and tried again later. A server whose registry is gone for long ends. The token is
    an argument of both, so that it stays when they are restarted.
"""

from __future__ import annotations

import dataclasses
import logging
import math
import os
import threading
import time
from collections.abc import Mapping
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from feeder.service.metrics import serve_metrics
from feeder.service.server import Server
from feeder.service.server_options import ServerOptions, is_any_address, node_address

_log = logging.getLogger("feeder")

NAMESPACE = "feeder"
_ANNOUNCE_S = 1.0
_SILENCE_S = 5.0
_COPIES = 8  # servers that each hold a copy of the addresses
_START_S, _AGAIN_S = 240.0, 30.0  # for a server to start on a busy machine, and until it is looked at or tried again
_FORGET_S = 600.0  # after which a node that is lost is not shown any more


def registry_name(name: str) -> str:
    """Returns the name of a service's registry."""
    return f"feeder-service:{name}"


def server_name(name: str, node: str) -> str:
    """Returns the name of a service's server on a node."""
    return f"{registry_name(name)}:{node}"


class Registry:
    """The directory of a service.

    Args:
        name: The service's name.
        options: Options of the servers.
        places: ``nodes``, the largest number of nodes; ``labels`` and ``resources`` that they must have;
            ``metrics_port``; ``orphan_s``: a server ends once its registry has been gone for so long.
    """

    def __init__(self, name: str, options: ServerOptions, places: Mapping[str, Any]) -> None:
        self._name = name
        self._options = options
        self._places = places
        self._heard: dict[str, tuple[str, int, float]] = {}
        self._actors: dict[str, tuple[Any, Any, float]] = {}  # with the answer that tells of its start, and since when
        self._problems: dict[str, tuple[str, str, float]] = {}  # address, reason, time
        self._keepers: set[str] = set()  # nodes whose servers have a copy of the addresses
        self._lock = threading.Lock()
        self._is_stopped = threading.Event()
        self._began_s = time.monotonic()
        threading.Thread(target=self._watch, daemon=True).start()

    def directory(self) -> dict[str, Any]:
        """Returns ``token``; ``servers``, [host, port] of each that was heard of lately; ``problems``, address and
        problem of each that is lost or has not started; ``starting``, the number of those that start for the first
        time."""
        now = time.monotonic()
        heard = dict(self._heard)
        servers = [[host, port] for host, port, heard_s in heard.values() if now - heard_s < _SILENCE_S]
        failed = dict(self._problems)
        problems = [
            {"address": f"{host}:{port}", "problem": "it is lost"}
            for node, (host, port, heard_s) in heard.items()
            if now - heard_s >= _SILENCE_S and [host, port] not in servers and node not in failed
        ]
        problems += [{"address": address, "problem": reason} for address, reason, _ in failed.values()]
        starting = len(set(self._actors) - set(heard) - set(failed))
        return {"token": self._options.token, "servers": sorted(servers), "problems": problems, "starting": starting}

    def announce(
        self, node: str, host: str, port: int, known: dict[str, tuple[str, int]]
    ) -> dict[str, tuple[str, int]]:
        """Notes that a node's server is there; returns the addresses of all servers, also of those that are lost, if it
        is one of the few that keep them, and else nothing.

        Args:
            node: Id of the node.
            host, port: The server's address.
            known: What the server was answered last: a registry that has just started learns which were there.
        """
        now = time.monotonic()
        if now - self._began_s < _SILENCE_S:
            for other, place in known.items():
                self._heard.setdefault(other, (*place, now))
        self._heard[node] = host, port, now
        self._problems.pop(node, None)
        if len(self._keepers) < _COPIES:
            self._keepers.add(node)
        if node not in self._keepers:
            return {}
        return {other: (host, port) for other, (host, port, _) in list(self._heard.items())}

    def stop(self) -> None:
        """Starts no more servers."""
        self._is_stopped.set()
        with self._lock:
            pass

    def _watch(self) -> None:
        while not self._is_stopped.wait(_ANNOUNCE_S):
            try:
                with self._lock:
                    self._look()
            except Exception as error:  # the cluster may be in any state; the next look tells
                _log.warning("service %r: %s", self._name, error)

    def _look(self) -> None:
        """Starts a server on each node that has none, and forgets those of nodes that are gone."""
        now = time.monotonic()
        suitable = {node["NodeID"]: node["NodeManagerAddress"] for node in ray.nodes() if self._suits(node)}

        for node in set(self._actors) - set(suitable):
            del self._actors[node]
        heard = {node: heard_s for node, (_, _, heard_s) in list(self._heard.items())}
        self._keepers -= {node for node, heard_s in heard.items() if now - heard_s >= _SILENCE_S}
        for node in [node for node, heard_s in heard.items() if now - heard_s > _FORGET_S]:
            del self._heard[node]
        for node in [node for node in self._problems if node not in suitable]:
            del self._problems[node]

        for node, (actor, started, since_s) in list(self._actors.items()):
            heard_s = heard.get(node, -math.inf)
            if now - heard_s < _AGAIN_S:
                continue
            if since_s < heard_s:  # it was there, and may have ended for good
                self._actors[node] = actor, actor.status.remote(), now
                continue
            reason = self._failure(started, now - since_s)
            if reason is not None:
                self._problems[node] = suitable[node], reason, now
                del self._actors[node]
                ray.kill(actor)

        most = self._places["nodes"]
        for node in sorted(set(suitable) - set(self._actors)):
            if self._is_stopped.is_set() or (most is not None and len(self._actors) >= most):
                return
            if node not in self._problems or now - self._problems[node][2] > _AGAIN_S:
                self._start(node)

    def _suits(self, node: dict[str, Any]) -> bool:
        needed = {"CPU": self._options.cores, **self._places["resources"]}
        labels = node.get("Labels", {})
        return (
            node["Alive"]
            and all(node["Resources"].get(name, 0.0) >= value for name, value in needed.items())
            and all(labels.get(name) == value for name, value in self._places["labels"].items())
        )

    def _failure(self, started: Any, waited_s: float) -> str | None:
        """Returns the reason for which a server has not started; None if it may still do."""
        if ray.wait([started], timeout=0)[0]:
            try:
                ray.get(started)
            except Exception as error:
                return str(error).strip().rpartition("\n")[2][:500]
        return f"its cores or resources are in use for {_START_S:g} s" if waited_s > _START_S else None

    def _start(self, node: str) -> None:
        resources = dict(self._places["resources"])
        options = {
            "num_cpus": self._options.cores,
            "memory": resources.pop("memory", None),
            "resources": resources,
            "name": server_name(self._name, node),
            "namespace": NAMESPACE,
            "lifetime": "detached",
            "get_if_exists": True,
            "max_restarts": -1,
            "max_concurrency": 4,
            "scheduling_strategy": NodeAffinitySchedulingStrategy(node, soft=False),
        }
        made: Any = ray.remote(NodeServer)
        actor = made.options(**options).remote(self._name, self._options, self._places)
        self._actors[node] = actor, actor.status.remote(), time.monotonic()


class NodeServer:
    """The server of one node.

    Args:
        name, options, places: See :class:`Registry`; without a host the server listens on the node's own address.
    """

    def __init__(self, name: str, options: ServerOptions, places: Mapping[str, Any]) -> None:
        node_host = ray.util.get_node_ip_address()
        options = dataclasses.replace(options, host=options.host or node_address(node_host))
        self._server = Server(options)
        bound, port = self._server.address
        self._place = node_host if is_any_address(bound) else bound, port
        if places["metrics_port"] is not None:
            serve_metrics(self._server.status, options.host, places["metrics_port"])
        self._name = name
        self._orphan_s = places["orphan_s"]
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
        alone_since_s = 0.0
        known: Any = {}
        while True:
            now = time.monotonic()
            try:
                registry = ray.get_actor(registry_name(self._name), NAMESPACE)
                alone_since_s = 0.0
                known = ray.get(registry.announce.remote(node, *self._place, known), timeout=_SILENCE_S)
            except ValueError:  # the head is there, and knows none
                alone_since_s = alone_since_s or now
                if now - alone_since_s > self._orphan_s:
                    ray.kill(ray.get_actor(server_name(self._name, node), NAMESPACE))
            except Exception:
                pass
            time.sleep(_ANNOUNCE_S)
