"""A server's counts for Prometheus, by the ``prometheus_client`` package (extra ``metrics``)."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any

from feeder.loader.observe.metrics_server import metrics_server

_GAUGES = {
    "cores": "Processes that make parts",
    "busy": "Processes that make something",
    "queue": "Parts that wait",
    "connections": "Connections of clients",
}
_COUNTERS = {
    "lost": "Processes that died",
    "dropped": "Connections that broke the rules or stalled",
    "messages": "Messages of clients that gave the token",
    "shared": "Parts that another job had made",
    "cpu_s": "CPU time of the server and its processes",
}
_OF_JOBS = {"parts": "Parts given out", "images": "Images given out", "failed": "Parts that could not be made"}


def _collect(status: Callable[[], dict[str, Any]]) -> Iterator[Any]:
    from prometheus_client import core

    found = status()
    for name, text in _GAUGES.items():
        yield core.GaugeMetricFamily(f"feeder_service_{name}", text, value=found[name])
    for name, text in _COUNTERS.items():
        shown = name.replace("_s", "_seconds")
        yield core.CounterMetricFamily(f"feeder_service_{shown}", text, value=found[name])
    for name, text in _OF_JOBS.items():
        family = core.CounterMetricFamily(f"feeder_service_job_{name}", text, labels=["job"])
        for job, counts in found["jobs"].items():
            family.add_metric([job], counts[name])
        yield family


def serve_metrics(status: Callable[[], dict[str, Any]], host: str, port: int) -> str:
    """Serves a server's counts until the process ends; returns the URL.

    Args:
        status: :meth:`feeder.service.server.Server.status`.
        host: The address to listen on.
        port: TCP port; 0 for a free one.

    Raises:
        ArgumentError: if ``prometheus_client`` is missing, or the port can't be had.
    """
    server = metrics_server(functools.partial(_collect, status), host, port, "--metrics-port", "--metrics-port")
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"http://{host}:{server.server_port}/metrics"
