"""Servers listen on private addresses unless they are told otherwise."""

from __future__ import annotations

from pathlib import Path

import pytest

from feeder.errors import ArgumentError
from feeder.service.server_options import ServerOptions, node_address
from tests.support.gil import need
from tests.support.service import ServiceServer

PRIVATE = ("127.0.0.1", "10.1.2.3", "172.16.0.1", "192.168.1.9", "169.254.7.7", "100.64.0.1", "::ffff:10.1.2.3")


@pytest.mark.parametrize("address", [*PRIVATE, "::1", "fe80::1", "fd00::1"])
def test_a_private_address_of_a_node_is_taken(address: str) -> None:
    assert node_address(address) == address


@pytest.mark.parametrize("address", ["8.8.8.8", "172.32.0.1", "100.128.0.1", "2600::1", "::ffff:8.8.8.8"])
def test_a_public_address_of_a_node_is_refused_by_name(address: str) -> None:
    with pytest.raises(ArgumentError, match=r"is public.*--node-ip-address.*--host") as caught:
        node_address(address)
    assert f"its address in the cluster, {address}, is public" in str(caught.value)
    assert "\n" not in str(caught.value)  # as a service tells the last line of what a node says


def test_a_server_with_a_file_listens_on_the_machine_alone(root: Path, tmp_path: Path) -> None:
    server = ServiceServer(tmp_path, root)
    server.close()
    assert server.place[0] == "127.0.0.1"


def test_a_node_with_a_public_address_has_no_server(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    need("ray")
    import ray

    from feeder.service.actors import NodeServer

    monkeypatch.setattr(ray.util, "get_node_ip_address", lambda: "8.8.8.8")
    options = ServerOptions((str(root),), 1, "token", host="")
    with pytest.raises(ArgumentError, match=r"8\.8\.8\.8, is public"):
        NodeServer("feeder", options, {})
