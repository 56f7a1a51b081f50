"""The registry of a service, on a cluster that is made up."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.clock import Clock
from tests.support.gil import need
from tests.support.processes import wait_until

NODE_ID = "ab" * 28
NODE = {"NodeID": NODE_ID, "NodeManagerAddress": "10.0.0.1", "Alive": True, "Resources": {"CPU": 1.0}}
OPTIONS: dict[str, Any] = {"cores": 1, "nodes": None, "labels": {}, "resources": {}}


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the servers that are started, one after the other; all of them end at once."""
    need("ray")
    names: list[str] = []

    def get(answer: object) -> None:
        raise RuntimeError("there is no root folder")

    def remote(made: object) -> Any:
        def options(name: str, **options: Any) -> Any:
            names.append(name)
            return SimpleNamespace(remote=lambda *about: SimpleNamespace(status=SimpleNamespace(remote=object)))

        return SimpleNamespace(options=options)

    cluster = SimpleNamespace(
        nodes=lambda: [NODE],
        remote=remote,
        wait=lambda answers, timeout: (answers, []),
        get=get,
        kill=lambda actor: None,
    )
    monkeypatch.setattr("feeder.service.actors.ray", cluster)
    for name, seconds in (("ANNOUNCE", 0.005), ("START", 0.02), ("AGAIN", 0.02)):
        monkeypatch.setattr(f"feeder.service.actors._{name}_S", seconds)
    return names


def test_a_server_that_has_ended_for_good_is_started_again_and_again_with_its_reason(started: list[str]) -> None:
    from feeder.service.actors import Registry

    registry = Registry("name", "token", OPTIONS)
    wait_until(lambda: len(started) > 3)
    wait_until(lambda: registry.directory()["problems"])
    assert registry.directory()["problems"] == [{"address": "10.0.0.1", "problem": "there is no root folder"}]
    registry.stop()


@pytest.mark.parametrize("most", [None, 2, 1])
def test_servers_go_to_nodes_with_the_cores_the_labels_and_the_resources_and_to_no_more_than_were_asked_for(
    started: list[str], monkeypatch: pytest.MonkeyPatch, most: int | None
) -> None:
    from feeder.service.actors import Registry, server_name

    ids = [f"{number:056x}" for number in range(9)]
    good = NODE | {"Resources": {"CPU": 4.0, "memory": 100.0}, "Labels": {"pool": "cpu", "zone": "a"}}
    unsuitable: list[dict[str, Any]] = [
        {"Alive": False},
        {"Resources": {"CPU": 1.0, "memory": 100.0}},
        {"Resources": {"CPU": 4.0, "memory": 10.0}},
        {"Labels": {"pool": "gpu"}},
        {"Labels": {}},
    ]
    cluster = [good | {"NodeID": each} for each in ids[:3]]
    cluster += [good | {"NodeID": each} | lacks for each, lacks in zip(ids[4:], unsuitable, strict=True)]
    looks = []

    def nodes() -> list[dict[str, Any]]:
        looks.append(1)
        return cluster

    monkeypatch.setattr("feeder.service.actors.ray.nodes", nodes)
    monkeypatch.setattr("feeder.service.actors.ray.wait", lambda answers, timeout: ([], answers))  # they start still
    monkeypatch.setattr("feeder.service.actors.time", Clock())
    wanted = {"cores": 2, "nodes": most, "labels": {"pool": "cpu"}, "resources": {"memory": 50.0}}
    registry = Registry("name", "token", OPTIONS | wanted)
    wait_until(lambda: len(looks) > 5)
    cluster.append(good | {"NodeID": ids[3]})  # which joins
    ends = len(looks) + 5
    wait_until(lambda: len(looks) > ends)
    registry.stop()
    assert sorted(started) == [server_name("name", each) for each in ids[:4]][:most]
