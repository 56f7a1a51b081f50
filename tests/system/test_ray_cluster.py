"""A cluster's address is refused at once where nobody listens, and an error says why it can't be joined."""

from __future__ import annotations

import socket

import pytest

from feeder.system.ray_cluster import cant_join, check_ray_address
from tests.support.daemons import free_port


def test_an_address_where_nobody_listens_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()
    for address in (f"127.0.0.1:{port}", f"[::1]:{port}", "127.0.0.1:99999"):
        with pytest.raises(ConnectionError, match="nobody listens at"):
            check_ray_address(address)
    monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{port}")
    with pytest.raises(ConnectionError, match=f"nobody listens at 127.0.0.1:{port}"):
        check_ray_address("auto")


def test_other_addresses_are_left_to_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        for address in (f"127.0.0.1:{listener.getsockname()[1]}", "auto", "local", "ray://127.0.0.1:1", "nonsense"):
            check_ray_address(address)


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ("Could not find any running Ray instance. Please specify the one to connect to.", "none runs here"),
        ("Found multiple active Ray instances: {'10.0.0.1:6379'}. Please specify\none.", None),
        ("nobody listens at 10.0.0.1:6379: [Errno 111] Connection refused", None),
        (
            "Version mismatch:\n    Ray: 2.60.0\nThis process: 2.61.0.\n",
            "Version mismatch: Ray: 2.60.0 This process: 2.61.0",
        ),
    ],
)
def test_of_rays_reason_the_first_sentence_is_told(said: str, reason: str | None) -> None:
    reason = reason or said.partition(". ")[0]
    assert cant_join("auto", ConnectionError(said)) == f"can't join the Ray cluster 'auto': {reason}"
