"""The registry of a service, on a cluster that is made up."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.gil import need
from tests.support.processes import wait_until

NODE_ID = "ab" * 28
NODE = {"NodeID": NODE_ID, "NodeManagerAddress": "10.0.0.1", "Alive": True, "Resources": {"CPU": 1.0}}


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

    registry = Registry("name", "token", {"cores": 1, "nodes": None, "labels": {}, "resources": {}})
    registry.announce("other", "10.0.0.2", 1, {NODE_ID: ("10.0.0.1", 7)})
    wait_until(lambda: len(started) > 3)
    wait_until(lambda: registry.directory()["problems"])
    assert registry.directory()["problems"] == [{"address": "10.0.0.1", "problem": "there is no root folder"}]
    registry.stop()
