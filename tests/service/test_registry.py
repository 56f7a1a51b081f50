"""The registry of a service, on a cluster that is made up."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import pytest

from feeder.service.server_options import ServerOptions
from tests.support.clock import Clock
from tests.support.gil import need
from tests.support.processes import wait_until

NODE_ID = "ab" * 28
NODE = {"NodeID": NODE_ID, "NodeManagerAddress": "10.0.0.1", "Alive": True, "Resources": {"CPU": 1.0}}
OPTIONS = ServerOptions(("/data",), 1, "token")
PLACES: dict[str, Any] = {"nodes": None, "labels": {}, "resources": {}}
Addresses = dict[str, tuple[str, int]]


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
    """Also by a registry that has moved, and knows of the server by what another one tells."""
    from feeder.service.actors import Registry

    registry = Registry("name", OPTIONS, PLACES)
    registry.announce("other", "10.0.0.2", 1, {NODE_ID: ("10.0.0.1", 7)})
    wait_until(lambda: len(started) > 3)
    wait_until(lambda: registry.directory()["problems"])
    assert registry.directory()["problems"] == [{"address": "10.0.0.1", "problem": "there is no root folder"}]
    registry.stop()


def test_a_node_whose_server_has_failed_is_not_waited_for_while_it_is_tried_again(
    started: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else on a slow cluster some node would start again at any time, and nobody be told why none has a server."""
    from feeder.service.actors import Registry

    clock, looks = Clock(), []

    def wait(answers: list[object], timeout: float) -> tuple[list[object], list[object]]:
        looks.append(len(started))
        return (answers, []) if len(started) == 1 else ([], answers)

    monkeypatch.setattr("feeder.service.actors.ray.wait", wait)
    monkeypatch.setattr("feeder.service.actors.time", clock)
    registry = Registry("name", OPTIONS, PLACES)
    wait_until(lambda: registry.directory()["problems"])
    clock.now += 0.03  # until it is tried again
    wait_until(lambda: looks[-1] == 2)
    found = registry.directory()
    assert len(found["problems"]) == 1
    assert not found["starting"]
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
    wanted = {"nodes": most, "labels": {"pool": "cpu"}, "resources": {"memory": 50.0}}
    registry = Registry("name", dataclasses.replace(OPTIONS, cores=2), PLACES | wanted)
    wait_until(lambda: len(looks) > 5)
    cluster.append(good | {"NodeID": ids[3]})  # which joins
    ends = len(looks) + 5
    wait_until(lambda: len(looks) > ends)
    registry.stop()
    assert sorted(started) == [server_name("name", each) for each in ids[:4]][:most]


def test_what_servers_and_the_registry_tell_each_other_grows_as_the_number_of_nodes(started: list[str]) -> None:
    from feeder.service.actors import Registry

    addresses = []
    for count in (200, 400):
        registry = Registry("name", OPTIONS, PLACES)
        known: dict[str, Addresses] = {}
        for _ in range(2):
            for node in range(count):
                known[str(node)] = registry.announce(str(node), "10.0.0.2", node, known.get(str(node), {}))
        addresses.append(sum(map(len, known.values())))
        registry.stop()
    assert addresses[1] == 2 * addresses[0]


def test_a_registry_that_has_moved_learns_of_lost_servers_although_few_know_them(
    started: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The servers that knew them first are lost, too."""
    from feeder.service.actors import Registry

    clock = Clock()
    monkeypatch.setattr("feeder.service.actors.time", clock)
    before = Registry("name", OPTIONS, PLACES)
    nodes = [str(node) for node in range(40)]
    known: dict[str, Addresses] = {}

    def announce(registry: Registry, nodes: list[str]) -> None:
        for node in nodes:
            known[node] = registry.announce(node, "10.0.0.2", int(node), known.get(node, {}))

    announce(before, nodes)
    keepers = [node for node in nodes if known[node]]
    others = [node for node in nodes if node not in keepers]
    assert 1 < len(keepers) < len(others)
    clock.now += 10  # in which the first ones say nothing

    def is_known_again() -> bool:
        announce(before, others)
        return any(known[node] for node in others)

    wait_until(is_known_again)
    before.stop()
    after = Registry("name", OPTIONS, PLACES)
    announce(after, others)
    clock.now += 10
    lost = {f"10.0.0.2:{node}" for node in keepers}
    wait_until(lambda: lost <= {each["address"] for each in after.directory()["problems"]})
    after.stop()
