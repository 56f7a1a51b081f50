"""Costs of a service on paper, from made figures that are easy to follow."""

from __future__ import annotations

from typing import Any

from bench.service_plan import HOSTS, RATE, markdown


def figures(server_ms: float, host_ms: float, local: float) -> dict[str, Any]:
    return {
        "server_cpu_ms": {"median": server_ms},
        "host_cpu_ms": {"median": host_ms},
        "images_per_s": {"2 local workers": {"median": local}, "service of 2 cores": {"median": 1.0}},
    }


def test_cores_nodes_and_network_follow_from_the_figures() -> None:
    result = figures(0.5, 0.05, 4000.0) | {"heavy": figures(8.0, 0.08, 250.0)}
    rows = {
        cells[1].strip(): [cell.strip() for cell in cells[2:4]]
        for cells in (
            line.split("|") for line in markdown(result | {"options": {"size": 224, "cores": 2}}).splitlines()
        )
    }
    assert (HOSTS, RATE) == (8, 30_000)
    assert rows["cores of the service for 8 hosts"] == ["120", "1,920"]
    assert rows["nodes of 64 cores"] == ["2", "30"]
    assert rows["cores of each host that receive"] == ["1.5", "2.4"]
    assert rows["of these, for each of 8 ranks"] == ["0.19", "0.30"]
    assert rows["network into each host"] == ["36 Gbit/s", "36 Gbit/s"]
    assert rows["network out of each node"] == ["145 Gbit/s", "10 Gbit/s"]
    assert rows["cores of each host for local workers alone"] == ["15", "240"]
