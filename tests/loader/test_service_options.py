"""Jobs have names of their own at an input service."""

from __future__ import annotations

import socket

import pytest

from feeder.loader.service_options import job_name


@pytest.fixture(autouse=True)
def torchrun(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("TORCHELASTIC_RUN_ID", "none"), ("MASTER_ADDR", "10.0.0.7"), ("MASTER_PORT", "29500")):
        monkeypatch.setenv(name, value)


def test_all_ranks_of_a_job_have_one_name() -> None:
    assert job_name() == "none:10.0.0.7:29500"


@pytest.mark.parametrize("address", ["localhost", "127.0.0.1", "127.0.1.1", "::1"])
def test_jobs_of_two_machines_are_two_though_each_is_local_to_itself(
    monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    monkeypatch.setenv("MASTER_ADDR", address)
    names = []
    for host in ("one", "two"):
        monkeypatch.setattr(socket, "gethostname", lambda host=host: host)
        names.append(job_name())
    assert names == ["none:one:29500", "none:two:29500"]
