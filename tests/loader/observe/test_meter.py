from __future__ import annotations

import numpy as np
import pytest

from feeder.loader.observe.meter import METER_WORDS, STAGES, Meter, bucket_ns, bucket_of
from feeder.loader.observe.stats import stage_table


def test_buckets_follow_each_other_and_their_middles_are_within_an_eighth() -> None:
    middles = bucket_ns()
    times = np.unique(np.geomspace(1, 2**40, 5000).astype(np.int64))
    buckets = [bucket_of(t) for t in times.tolist()]
    assert buckets == sorted(buckets)
    assert set(buckets) == set(range(len(middles)))
    inside = (times >= 1 << 10) & (times < 1 << 38)
    assert np.abs(middles[buckets] / times - 1)[inside].max() <= 0.125


def test_percentiles_are_those_of_the_times() -> None:
    meter = Meter()
    times = np.random.default_rng(0).lognormal(14, 1.5, 4000).astype(np.int64)
    meter.add_each("decode", times, 12345)
    found = stage_table(meter.words)["decode"]
    assert (found["count"], found["total_ns"], found["bytes"]) == (4000, times.sum(), 12345)
    assert found["max_ns"] == times.max()
    for percent in (50, 90, 99):
        assert found[f"p{percent}_ns"] == pytest.approx(np.percentile(times, percent), rel=0.15)


def test_meters_add_up_and_stages_that_never_ran_are_absent() -> None:
    first, second = Meter(), Meter(np.zeros(METER_WORDS, np.int64))
    first.add("read", 1000, 10)
    second.add("read", 3000, 20)
    second.add(STAGES[-1], 0)
    table = stage_table(np.stack([first.words, second.words]))
    assert list(table) == ["read", STAGES[-1]]
    assert (table["read"]["count"], table["read"]["mean_ns"], table["read"]["bytes"]) == (2, 2000, 30)


def test_images_of_a_decoder_that_says_nothing_share_its_time() -> None:
    meter = Meter()
    meter.add_images(9000, 3, 300, None)
    table = stage_table(meter.words)
    assert list(table) == ["decode"]
    assert (table["decode"]["count"], table["decode"]["total_ns"], table["decode"]["bytes"]) == (3, 9000, 300)


def test_pixels_count_for_the_stage_that_wrote_them() -> None:
    meter = Meter()
    meter.add_images(1500, 2, 64, np.array([[500, 200, 0], [700, 0, 0]]))
    table = stage_table(meter.words)
    assert {name: (row["count"], row["bytes"]) for name, row in table.items()} == {
        "decode": (2, 0),
        "transform": (1, 64),
    }
