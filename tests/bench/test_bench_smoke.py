"""bench.smoke finds the benchmarks by itself and sees what is wrong with a result."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bench.smoke import ROOT, check, scripts
from feeder.tools.bench.result_file import machine, save, spread


def good() -> dict[str, Any]:
    return {"benchmark": "x", "machine": machine(), "images_per_s": {"feeder": spread([1.0, 3.0, 2.0])}}


def test_a_saved_result_is_well_formed(tmp_path: Path):
    path = save("x", {"images_per_s": spread([1, 2])}, str(tmp_path / "new" / "x.json"))
    assert check(json.loads(Path(path).read_text())) == []
    assert check({**good(), "skipped": "no GPU"}) == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"benchmark": None}, 'expected an object with "benchmark"'),
        ({"machine": {}}, "machine lacks 'processor'"),
        ({"images_per_s": {}}, "no figure with its repeats"),
        ({"images_per_s": spread([1.0, float("nan")])}, "not finite and positive"),
        ({"first_s": spread([-1.0])}, "not finite and positive"),
        ({"images_per_s": {"feeder": spread([0.0])}}, "a rate of 0"),
        ({"rows": [{"images_per_s": spread([0.0])}]}, "rows 0 images_per_s: a rate of 0"),
        ({"images_per_s": {"median": 1, "all": []}}, "no repeats"),
        ({"images_per_s": {**spread([1.0, 2.0]), "median": 3}}, "not those of the repeats"),
    ],
)
def test_what_is_wrong_with_a_result_is_named(change: dict[str, Any], message: str):
    assert any(message in what for what in check({**good(), **change}))


def test_a_difference_may_be_negative():
    assert check({**good(), "cpu_ms_above_local": {"http": spread([-0.1, 0.2])}}) == []
    assert check({**good(), "share_of_a_further_trial": {"late": spread([-0.1, 0.2])}}) == []


def test_scripts_that_know_the_flag_are_found(tmp_path: Path):
    (tmp_path / "one.py").write_text('parser.add_argument("--smoke")')
    (tmp_path / "two.py").write_text("from bench.smoke import arguments")
    (tmp_path / "three.py").write_text("")
    (tmp_path / "two_names.py").write_text("from bench.smoke import ROOT, arguments")
    assert scripts(tmp_path) == ["one", "two", "two_names"]
    assert {"remote", "remote_faults", "resume", "shard", "size"} <= set(scripts())


def test_a_benchmark_says_what_it_needs():
    command = [sys.executable, "-m", "bench.shard"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "expected --images" in done.stderr
