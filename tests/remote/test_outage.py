"""A network that is gone for a while: every way to load goes on with the right batches, and no worker is taken for one
that hangs."""

from __future__ import annotations

from pathlib import Path

import pytest

from feeder.loader.options import WorkerOptions
from tests.support.fault_proxy import FaultProxy
from tests.support.outage import Survived, run_outage
from tests.support.remote import Bucket
from tests.support.remote_sets import end_fetchers, make_set, upload

_OUTAGE_S = 12.0  # and a worker that is silent for a third of it is taken for one that hangs
_LONG_OUTAGE_S = 120.0


def check_survived(outcomes: dict[str, Survived]) -> None:
    """Checks that each way to load has given all batches, and replaced no worker."""
    assert len(outcomes) == 4
    for name, outcome in outcomes.items():
        assert (outcome.batches, outcome.wrong, outcome.replaced_workers) == (8, 0, 0), name
        assert outcome.retries > 0, name


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:this loader runs torch's path")
def test_an_outage_is_survived_by_every_way_to_load(bucket: Bucket, fault_proxy: FaultProxy, tmp_path: Path) -> None:
    local = make_set(tmp_path)
    url = upload(bucket, local)
    with end_fetchers(tmp_path):
        outcomes = run_outage(
            local,
            url,
            fault_proxy,
            tmp_path / "cache",
            seconds=_OUTAGE_S,
            worker_options=WorkerOptions(hang_timeout_s=_OUTAGE_S / 3),
        )
    check_survived(outcomes)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:this loader runs torch's path")
def test_two_minutes_without_network_are_survived_with_the_defaults(
    bucket: Bucket, fault_proxy: FaultProxy, tmp_path: Path
) -> None:
    local = make_set(tmp_path)
    url = upload(bucket, local)
    with end_fetchers(tmp_path):
        outcomes = run_outage(local, url, fault_proxy, tmp_path / "cache", seconds=_LONG_OUTAGE_S)
    check_survived(outcomes)
    # Nothing of them was there before: each waited for the network.
    assert min(outcome.longest_wait_s for outcome in outcomes.values()) > _LONG_OUTAGE_S / 2
