"""A loader's meters for Prometheus, by the ``prometheus_client`` package (extra ``metrics``).

Note [One server a port]
    Loaders of one process with the same address and port share a server. The label ``loader``, a running number, tells
    them apart. The registry is the server's own: nothing else of the process is exported, and nothing is left in the
    package's global registry. The server ends with the last of its loaders.

Note [Loaders that go]
    A garbage collection may end a loader anywhere in any thread, while that thread has the lock, or in the server's own
    thread. So the loader is only put in a queue, and the thread that has the lock, or gets it at once, removes it. A
    forked process has the sockets, but no thread that serves: it starts anew.
"""

from __future__ import annotations

import collections
import contextlib
import itertools
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from feeder.errors import ArgumentError
from feeder.loader.observe.metrics_server import HttpServer
from feeder.loader.observe.remote_counts import REMOTE_COUNTS
from feeder.loader.observe.stats import stage_histograms

__all__ = ["MetricsPage"]

_Words = npt.NDArray[np.int64]
_L = TypeVar("_L", bound="Metered")

_servers: dict[tuple[str, int], _Server] = {}
_lock = threading.Lock()
_leaving: collections.deque[tuple[_Server, int]] = collections.deque()


class Metered(Protocol):
    """The part of a loader that is served."""

    def stats(self) -> dict[str, Any]: ...


class MetricsPage:
    """One loader's place on a server.

    Args:
        loader: The loader; not kept alive.
        stage_words: Returns its meters: int64 [K, METER_WORDS], see :mod:`feeder.loader.observe.meter`.
        port: TCP port; 0 takes a free one, for a separate server.
        address: Address to listen on.

    Raises:
        ArgumentError: if ``prometheus_client`` is missing, or the address or port can't be had.
    """

    def __init__(self, loader: _L, stage_words: Callable[[_L], _Words], port: int, address: str) -> None:
        try:
            with _lock:
                server = _servers.get((address, port)) if port else None
                if server is None:
                    server = _Server(port, address)
                    _servers[address, server.port] = server
                self.url = server.url
                number = server.add(loader, stage_words)
        finally:
            _see_off()
        # The loader's end, or close(), whichever is first.
        self._leave = weakref.finalize(loader, _leave, server, number)
        self._leave.atexit = False

    def close(self) -> None:
        """Takes the loader off the server."""
        self._leave()


def _leave(server: _Server, number: int) -> None:
    _leaving.append((server, number))
    _see_off()


def _see_off() -> None:
    """Removes loaders that have gone, and ends servers without one; see Note [Loaders that go]."""
    while _leaving and _lock.acquire(blocking=False):
        ended = []
        try:
            while _leaving:
                server, number = _leaving.popleft()
                server.loaders.pop(number, None)
                if not server.loaders and _servers.get((server.address, server.port)) is server:
                    del _servers[server.address, server.port]
                    ended.append(server)
        finally:
            _lock.release()
        for server in ended:
            server.close()


def _begin_anew() -> None:
    global _lock
    _lock = threading.Lock()
    servers = list(_servers.values())
    _servers.clear()
    _leaving.clear()
    for server in servers:
        server.drop()


os.register_at_fork(after_in_child=_begin_anew)


class _Server:
    def __init__(self, port: int, address: str) -> None:
        try:
            import prometheus_client
        except ImportError:
            raise ArgumentError(
                "metrics= needs the prometheus_client package: pip install 'feeder-data[metrics]', or leave it out"
            ) from None
        self.loaders: dict[int, tuple[weakref.ref[Any], Callable[[Any], _Words]]] = {}
        self._numbers = itertools.count()
        registry = prometheus_client.CollectorRegistry(auto_describe=False)
        registry.register(_Collector(self))
        try:
            self._server = HttpServer(address, port)
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise ArgumentError(
                f"can't serve metrics on {address} port {port}: {reason}; take another port (each rank of a "
                "host needs its own: add the local rank), or 0 for a free one, or another address"
            ) from None
        self._server.set_app(prometheus_client.make_wsgi_app(registry))
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        self.address = address
        self.port = int(self._server.server_port)
        host = f"[{address}]" if ":" in address else address
        self.url = f"http://{host}:{self.port}/metrics"

    def add(self, loader: _L, stage_words: Callable[[_L], _Words]) -> int:
        number = next(self._numbers)
        self.loaders[number] = weakref.ref(loader), stage_words
        return number

    def close(self) -> None:
        if self._thread is threading.current_thread():
            threading.Thread(target=self.close, daemon=True).start()  # it would wait for itself
            return
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def drop(self) -> None:
        """Closes the sockets in a forked child, whose copies would keep the port taken and connections open."""
        for copy in (self._server.socket, *self._server.connections):
            with contextlib.suppress(OSError):
                copy.close()


_COUNTERS: dict[str, tuple[str, Callable[[dict[str, Any]], float]]] = {
    "batches": ("Batches handed out", lambda s: s["batches"]),
    "samples": ("Samples handed out", lambda s: s["samples"]),
    "skipped_samples": ("Bad samples that others took the place of", lambda s: s.get("skipped", 0)),
    "worker_respawns": ("Workers replaced", lambda s: s["respawns"]),
    "elapsed_seconds": ("From asking for an epoch to its last batch", lambda s: s["elapsed_ns"] / 1e9),
    "waited_seconds": ("Of that, waiting for workers", lambda s: s["waited_ns"] / 1e9),
    "busy_seconds": ("Of all workers at work, or of the caller without any", lambda s: s["busy_ns"] / 1e9),
}


class _Collector:
    """Collects the metrics of a scrape, in the server's thread."""

    def __init__(self, server: _Server) -> None:
        self._server = weakref.ref(server)

    def collect(self) -> Iterator[Any]:
        from prometheus_client import core

        families: dict[str, Any] = {
            name: core.CounterMetricFamily(f"feeder_{name}", text, labels=["loader"])
            for name, (text, _) in _COUNTERS.items()
        }
        slots = core.GaugeMetricFamily("feeder_slots", "Batches that slots are used for", labels=["loader", "state"])
        processes = core.GaugeMetricFamily("feeder_workers", "Worker processes", labels=["loader"])
        sizes = core.CounterMetricFamily("feeder_stage_bytes", "Bytes that a stage gave", labels=["loader", "stage"])
        spent: Any = core.HistogramMetricFamily("feeder_stage_seconds", "Runs of a stage", labels=["loader", "stage"])
        workers = core.CounterMetricFamily(
            "feeder_worker_stage_seconds", "Time of a worker in a stage", labels=["loader", "worker", "stage"]
        )
        remote = {
            name: core.CounterMetricFamily(
                f"feeder_remote_{name.replace('_ns', '_seconds')}", text.replace(", ns", ", s"), labels=["loader"]
            )
            for name, text in REMOTE_COUNTS.items()
        }
        server = self._server()
        for number, (reference, stage_words) in list(server.loaders.items()) if server is not None else []:
            loader = reference()
            if loader is None:
                continue
            label, stats = str(number), loader.stats()
            for name, (_, value) in _COUNTERS.items():
                families[name].add_metric([label], value(stats))
            processes.add_metric([label], len(stats["workers"]))
            for state, count in stats["slots"].items():
                slots.add_metric([label, state], count)
            for name, family in remote.items() if "remote" in stats else ():
                value_now = stats["remote"][name]
                family.add_metric([label], value_now / 1e9 if name.endswith("_ns") else value_now)
            for stage, row in stats["stages"].items():
                sizes.add_metric([label, stage], row["bytes"])
            for stage, (total_ns, ranks) in stage_histograms(stage_words(loader)).items():
                buckets = [("+Inf" if edge is None else repr(edge / 1e9), rank) for edge, rank in ranks]
                spent.add_metric([label, stage], buckets, total_ns / 1e9)
            for worker in stats["workers"]:
                for stage, row in worker["stages"].items():
                    workers.add_metric([label, str(worker["worker"]), stage], row["total_ns"] / 1e9)
            del loader
        yield from (
            *families.values(),
            *(each for each in remote.values() if each.samples),
            slots,
            processes,
            sizes,
            spent,
            workers,
        )
