"""A loader's meters for Prometheus, by the ``prometheus_client`` package (extra ``metrics``).

Note [One server a port]
    Loaders of one process with the same address and port share a server. The label ``loader``, a running number, tells
    them apart. The registry is the server's own: nothing else of the process is exported, and nothing is left in the
    package's global registry. The server ends with the last of its loaders.

Note [Loaders that go]
    A garbage collection may end a loader anywhere in any thread, also while that thread has the lock. So a loader is
    only taken out of a dict then, and the server's own thread ends the server that has none left, half a second later
    at most. A forked process has the sockets, but no thread that serves: it starts anew.
"""

from __future__ import annotations

import functools
import itertools
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from feeder.loader.observe.metrics_server import metrics_server
from feeder.loader.observe.stats import REMOTE_COUNTS

_L = TypeVar("_L")

_servers: dict[tuple[str, int], _Server] = {}
_lock = threading.Lock()
_LOOK_S = 0.5  # between two looks of a server whether there is a loader


class MetricsPage:
    """One loader's place on a server.

    Args:
        loader: The loader; not kept alive.
        port: TCP port; 0 takes a free one, for a separate server.
        address: Address to listen on.

    Raises:
        ArgumentError: if ``prometheus_client`` is missing, or the address or port can't be had.
    """

    def __init__(self, loader: Any, port: int, address: str) -> None:
        with _lock:
            server = _servers.get((address, port)) if port else None
            if server is None:
                server = _Server(port, address)
                _servers[address, server.port] = server
            self.url = server.url
            number = next(server.numbers)
            server.loaders[number] = weakref.ref(loader)
        # Runs when the loader ends, or in close(), whichever is first.
        self._leave = weakref.finalize(loader, server.loaders.pop, number, None)
        self._leave.atexit = False

    def close(self) -> None:
        """Takes the loader off the server."""
        self._leave()


def _begin_anew() -> None:
    global _lock
    _lock = threading.Lock()
    servers = list(_servers.values())
    _servers.clear()
    for server in servers:
        server._server.socket.close()  # the child's copy would keep the port taken


os.register_at_fork(after_in_child=_begin_anew)


class _Server:
    """A server and its thread, which begins to serve when the lock is free, and has a loader by then."""

    def __init__(self, port: int, address: str) -> None:
        self.loaders: dict[int, weakref.ref[Any]] = {}
        self.numbers = itertools.count()
        another = (
            "port (each rank of a host needs its own: add the local rank), or 0 for a free one, or another address"
        )
        self._server = metrics_server(
            functools.partial(_collect, weakref.ref(self)), address, port, "metrics=", another
        )
        self._server.timeout = _LOOK_S
        self.address = address
        self.port = int(self._server.server_port)
        host = f"[{address}]" if ":" in address else address
        self.url = f"http://{host}:{self.port}/metrics"
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while self._has_loaders():
            self._server.handle_request()

    def _has_loaders(self) -> bool:
        """Returns True if there are loaders; else ends the server."""
        with _lock:
            if not self.loaders:
                del _servers[self.address, self.port]
                self._server.server_close()
            return bool(self.loaders)


_COUNTERS: dict[str, tuple[str, Callable[[dict[str, Any]], float]]] = {
    "batches": ("Batches handed out", lambda s: s["batches"]),
    "samples": ("Samples handed out", lambda s: s["samples"]),
    "skipped_samples": ("Bad samples that others took the place of", lambda s: s.get("skipped", 0)),
    "worker_respawns": ("Workers replaced", lambda s: s["respawns"]),
    "elapsed_seconds": ("From asking for an epoch to its last batch", lambda s: s["elapsed_ns"] / 1e9),
    "waited_seconds": ("Of that, waiting for workers", lambda s: s["waited_ns"] / 1e9),
    "busy_seconds": ("Of all workers at work, or of the caller without any", lambda s: s["busy_ns"] / 1e9),
}


def _collect(reference: weakref.ref[_Server]) -> Iterator[Any]:
    """Yields the metrics of a scrape, in the server's thread."""
    from prometheus_client import core

    counter, gauge = core.CounterMetricFamily, core.GaugeMetricFamily
    families: dict[str, Any] = {}

    def family(kind: Any, name: str, text: str, *labels: str) -> Any:
        return families.setdefault(name, kind(f"feeder_{name}", text, labels=["loader", *labels]))

    server = reference()
    for number, loader_of in list(server.loaders.items()) if server is not None else []:
        loader = loader_of()
        if loader is None:
            continue

        label, stats = str(number), loader.stats()
        for name, (text, value) in _COUNTERS.items():
            family(counter, name, text).add_metric([label], value(stats))
        for name, text in REMOTE_COUNTS.items() if "remote" in stats else ():
            shown = family(counter, f"remote_{name.replace('_ns', '_seconds')}", text.replace(", ns", ", s"))
            shown.add_metric([label], stats["remote"][name] / (1e9 if name.endswith("_ns") else 1))
        for state, count in stats["slots"].items():
            family(gauge, "slots", "Batches that slots are used for", "state").add_metric([label, state], count)
        family(gauge, "workers", "Worker processes").add_metric([label], len(stats["workers"]))

        for stage, row in stats["stages"].items():
            for name, text, value_now in (
                ("stage_runs", "Runs of a stage", row["count"]),
                ("stage_seconds", "Time of a stage", row["total_ns"] / 1e9),
                ("stage_bytes", "Bytes that a stage gave", row["bytes"]),
            ):
                family(counter, name, text, "stage").add_metric([label, stage], value_now)
        for worker in stats["workers"]:
            for stage, row in worker["stages"].items():
                of_worker = family(counter, "worker_stage_seconds", "Time of a worker in a stage", "worker", "stage")
                of_worker.add_metric([label, str(worker["worker"]), stage], row["total_ns"] / 1e9)
        del loader
    yield from families.values()
