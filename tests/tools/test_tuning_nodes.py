"""``feeder tune --service`` says how many nodes pay, and whether any do."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from feeder.errors import ServiceError
from feeder.tools import cli
from feeder.tools.tune.nodes import ServiceRates, measure_service, nodes_that_pay
from tests.support.loader_data import write_shards
from tests.support.service import ServiceServer

RATES = ServiceRates(nodes=2, images_per_s=2000.0, host_ms=0.1, busy_share=0.95)


def test_no_node_pays_where_local_workers_keep_up() -> None:
    found = nodes_that_pay(1000, 2, 0, 1000, RATES)
    assert (found.nodes, "local workers reach" in found.reason) == (0, True)


@pytest.mark.parametrize(
    ("local_cores", "idle_cores", "goal", "nodes"),
    [(2, 1, 2000, 1), (2, 1, 2001, 2), (2, 1, 5000, 4), (2, 0, 2000, 2), (8, 0, 1900, 1)],
)
def test_as_many_nodes_pay_as_reach_the_goal(local_cores: int, idle_cores: int, goal: float, nodes: int) -> None:
    # A node makes 1,000 images/s; of two busy local cores, that make 1,000, receiving them takes 0.1 core: 50 images/s.
    found = nodes_that_pay(1000, local_cores, idle_cores, goal, RATES)
    assert found.nodes == nodes
    assert ("the service has 2 nodes" in found.reason) is (nodes > 2)


def test_no_node_pays_where_receiving_costs_as_much_as_making() -> None:
    found = nodes_that_pay(10_000, 1, 0, 20_000, RATES)
    assert (found.nodes, "to receive an image costs 0.10 ms" in found.reason) == (0, True)


def test_no_further_node_pays_where_those_that_are_there_wait() -> None:
    waiting = ServiceRates(nodes=2, images_per_s=2000.0, host_ms=0.1, busy_share=0.3)
    found = nodes_that_pay(1000, 2, 1, 5000, waiting)
    assert (found.nodes, "no further node pays" in found.reason) == (2, True)


def test_more_than_one_process_receives_is_out_of_reach() -> None:
    found = nodes_that_pay(1000, 2, 1, 20_000, RATES)
    assert (found.nodes, "10,000 images/s at most" in found.reason) == (10, True)


def test_without_a_goal_the_rates_are_told() -> None:
    found = nodes_that_pay(1000, 2, 1, None, RATES)
    assert (found.nodes, "2 nodes of the service make 2,000" in found.reason) == (None, True)


def test_the_command_measures_the_service(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_shards(tmp_path / "root" / "set", 64)
    server = ServiceServer(tmp_path, tmp_path / "root")
    work = ["--image-size", "16", "--batch-size", "8", "--seconds", "2", "-q"]
    try:
        assert cli.main(["tune", str(path), *work, "--service", server.service, "--target", "1"]) == 0
        assert "no node pays: local workers reach the 1 images/s" in " ".join(capsys.readouterr().out.split())
        assert server.parts() > 0
        work[-1] = "--json"
        cli.main(["tune", str(path), *work, "--service", server.service, "--target", "1000000"])
        found = json.loads(capsys.readouterr().out)
        assert found["nodes"]["nodes"] >= 0
        assert found["nodes"]["reason"] in found["verdict"]
        assert "service" not in found["call"]
    finally:
        server.close()


def test_a_service_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ServiceError, match=r"no server of the service 'file:.*none\.json' was found: .*none\.json"):
        measure_service(f"file:{tmp_path}/none.json", lambda: pytest.fail("run"), patience_s=0.5)
