"""A cluster's address is refused at once where nobody listens."""

from __future__ import annotations

import socket

import pytest

from feeder.system.ray_address import check_ray_address


@pytest.fixture
def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def test_an_address_where_nobody_listens_is_refused(free_port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for address in (f"127.0.0.1:{free_port}", f"[::1]:{free_port}", "127.0.0.1:99999"):
        with pytest.raises(ConnectionError, match="nobody listens at"):
            check_ray_address(address)
    monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{free_port}")
    with pytest.raises(ConnectionError, match=f"nobody listens at 127.0.0.1:{free_port}"):
        check_ray_address("auto")


def test_other_addresses_are_left_to_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        for address in (f"127.0.0.1:{listener.getsockname()[1]}", "auto", "local", "ray://127.0.0.1:1", "nonsense"):
            check_ray_address(address)
