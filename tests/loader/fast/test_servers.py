"""A service without servers is no silent one."""

from __future__ import annotations

from pathlib import Path

import pytest

from feeder.loader.fast import servers
from feeder.loader.fast.servers import Servers
from feeder.loader.fast.service_options import ServiceOptions
from tests.support.clock import Clock


def test_the_lack_of_servers_is_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = Clock()
    monkeypatch.setattr(servers, "time", clock)
    one: Servers[None] = Servers(ServiceOptions(f"file:{tmp_path}/mistyped"), b"", lambda owner, message: [])
    said = []
    for _ in range(20):
        one.look({}, is_due=True)
        said.append(capsys.readouterr().err)
        clock.now += 1.0
    assert [number for number, text in enumerate(said) if text] == [11]
    assert said[11].startswith(f"feeder: service 'file:{tmp_path}/mistyped': no server makes parts for this job yet: ")
    assert f"{tmp_path}/mistyped: No such file or directory" in said[11]
