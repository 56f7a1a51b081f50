"""A store that fails again and again gives the right bytes, in the right order."""

from __future__ import annotations

from pathlib import Path

import pytest

from feeder.order.lanes import Lanes
from tests.support.fault_campaign import KINDS, run_campaign
from tests.support.fault_proxy import FaultProxy
from tests.support.remote import Bucket
from tests.support.remote_sets import end_fetchers, make_set


@pytest.mark.slow
def test_epochs_with_faults_of_every_kind_have_the_batches_of_a_local_copy(
    bucket: Bucket, fault_proxy: FaultProxy, tmp_path: Path
) -> None:
    shards = make_set(tmp_path, shards=40)
    size_bytes = bucket.upload(shards, "set")
    with end_fetchers(tmp_path):
        outcome = run_campaign(
            shards,
            f"{bucket.url}/set",
            fault_proxy,
            tmp_path / "cache",
            epochs=4,
            rate=0.05,
            seed=3,
            cache_bytes=size_bytes // 2,
            workers=2,
            batch_size=8,
            lanes=Lanes(2, window=8),
        )
    assert (outcome.batches, outcome.wrong) == (4 * 160 // 8, 0)
    print(outcome.faults)
    assert all(outcome.faults.get(kind, 0) >= 4 for kind in KINDS), outcome.faults
