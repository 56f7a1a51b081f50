"""A Ray cluster in one machine: a head without cores, and nodes that are added and killed one by one.

It runs in a process of its own, as a process that has used Ray must not fork. Whatever ends the tests ends that
process, and its nodes with it.

    python -m tests.support.ray_cluster FOLDER [agents]
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.support import ROOT
from tests.support.gil import need

__all__ = ["RayCluster"]

_STORE_BYTES = 100 << 20
_STATUS = """
import json, sys
from feeder.errors import ServiceError
from feeder.service.cluster import joined, status
with joined(sys.argv[1]):
    for _ in sys.stdin:
        try:
            answer = status(address=sys.argv[1])
        except ServiceError as error:
            answer = str(error)
        print(json.dumps(answer), flush=True)
"""
_SYSTEM = {
    "worker_niceness": 0,  # Ray's 15 would have them wait for all other tests
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 500,
    "health_check_timeout_ms": 60_000,  # a machine may be busy; of a node that was killed no check needs any time
    "health_check_failure_threshold": 5,
}


class RayCluster:
    """A cluster without nodes yet.

    Args:
        environment: Further variables of its nodes' processes.
        has_agents: False for nodes without Ray's dashboard and environments of jobs, which take a second of CPU each.

    Attributes:
        address: Its address.
        folder: Its folder, with all logs.
        nodes: Ids of the nodes that were added and not killed.
    """

    def __init__(self, environment: Mapping[str, str] | None = None, *, has_agents: bool = False) -> None:
        need("ray")
        self._environment = environment or {}
        self.folder = tempfile.mkdtemp(prefix="feeder-ray-", dir="/tmp")  # paths of sockets must be short
        with open(os.path.join(self.folder, "log"), "wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.support.ray_cluster", self.folder, *(["agents"] if has_agents else [])],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd=ROOT,
            )
        self.address = str(self._answer())
        self.nodes: list[str] = []
        self._status: subprocess.Popen[str] | None = None

    def add_node(self, environment: Mapping[str, str] | None = None, *, cores: int = 1) -> str:
        """Adds a node.

        Args:
            environment: Further variables of its processes, in place of the cluster's.
            cores: Number of its cores.

        Returns:
            Its id.
        """
        node = str(self._ask("add", cores, self._environment if environment is None else environment))
        self.nodes.append(node)
        return node

    def kill_node(self, node: str) -> None:
        """Kills a node and all that runs on it, at once."""
        self._ask("kill", node)
        self.nodes.remove(node)

    def kill_nodes(self) -> None:
        """Kills all nodes."""
        for node in list(self.nodes):
            self.kill_node(node)

    def wait_for_nodes(self) -> None:
        """Returns once the cluster knows which nodes were killed."""
        self._ask("wait")

    def kill_head(self) -> None:
        """Kills the head, at once; the nodes are left alone."""
        self._ask("kill head")

    def helpers(self) -> set[int]:
        """Returns the helper processes that ask the cluster for a service's servers."""
        found = set()
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):
                command = path.read_bytes()
                if b"feeder.service.finder" in command and self.address.encode() in command.split(b"\0"):
                    found.add(int(path.parts[2]))
        return found

    def service_status(self) -> list[dict[str, Any]]:
        """Returns the servers of the service, as ``feeder serve --status`` does, from a process that stays joined."""
        if self._status is None:
            self._status = subprocess.Popen(
                [sys.executable, "-c", _STATUS, self.address],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                cwd=ROOT,
            )
        assert self._status.stdin is not None
        assert self._status.stdout is not None
        while True:
            print(file=self._status.stdin, flush=True)
            answer = json.loads(self._status.stdout.readline())
            if isinstance(answer, dict):
                return list(answer["servers"])
            assert "ask again in a moment" in answer, answer

    def close(self) -> None:
        """Ends the cluster."""
        if self._status is not None:
            self._status.communicate()
            self._status = None
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _ask(self, *command: Any) -> Any:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            with open(os.path.join(self.folder, "log"), errors="replace") as log:
                raise RuntimeError(f"the cluster has ended: {log.read()[-4000:]}")
        return json.loads(line)


def _leave_out_agents() -> None:
    """Has nodes start without the agents that Ray's raylets start beside them."""
    from ray._private import services

    _raylet: Any = importlib.import_module("ray._raylet")
    start = services.start_ray_process
    ports = {name: getattr(_raylet, name) for name in dir(_raylet) if name.endswith("_PORT_NAME")}
    agents = ("METRICS_AGENT", "METRICS_EXPORT", "DASHBOARD_AGENT_LISTEN", "RUNTIME_ENV_AGENT")
    nothing = "setpriv --pdeathsig KILL sleep infinity"

    def started(command: list[str], *arguments: Any, **options: Any) -> Any:
        given = dict(each.removeprefix("--").split("=", 1) for each in command if "=" in each)
        if "runtime_env_agent_command" in given:
            for agent in agents:
                _raylet.persist_port(given["session_dir"], given["node_id"], ports[f"{agent}_PORT_NAME"], -1)
            command = [
                f"{each.partition('=')[0]}={nothing}" if "_agent_command=" in each.partition(" ")[0] else each
                for each in command
            ]
        return start(command, *arguments, **options)

    services.start_ray_process = started


def _serve(folder: str, *, has_agents: bool) -> None:
    """Starts a cluster, and adds and kills nodes as standard input says, until it is closed."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # Ray prints
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    from ray._common.utils import get_ray_address_file
    from ray.cluster_utils import Cluster

    if not has_agents:
        _leave_out_agents()
    # Ray notes the address of every cluster here, and makes the folder for those in it only.
    os.makedirs(os.path.dirname(get_ray_address_file(None)), exist_ok=True)
    head: dict[str, Any] = {"num_cpus": 0, "include_dashboard": False, "include_log_monitor": False}
    cluster = Cluster(
        True, head_node_args=head | {"object_store_memory": _STORE_BYTES, "temp_dir": folder, "_system_config": _SYSTEM}
    )
    nodes: dict[str, Any] = {}
    print(json.dumps(cluster.address), file=answers, flush=True)
    try:
        for line in sys.stdin:
            command, *arguments = json.loads(line)
            answer = None
            if command == "add":
                cores, environment = arguments
                before = dict(os.environ)
                os.environ.update(environment)
                node = cluster.add_node(num_cpus=cores, object_store_memory=_STORE_BYTES, include_log_monitor=False)
                os.environ.clear()
                os.environ.update(before)
                answer = node.node_id
                nodes[answer] = node
            elif command == "wait":
                cluster.wait_for_nodes()
            elif command == "kill head":
                head_node: Any = cluster.head_node
                cluster.remove_node(head_node, allow_graceful=False)
            else:
                cluster.remove_node(nodes.pop(arguments[0]), allow_graceful=False)
            print(json.dumps(answer), file=answers, flush=True)
    finally:
        cluster.shutdown()


if __name__ == "__main__":
    _serve(sys.argv[1], has_agents="agents" in sys.argv[2:])
