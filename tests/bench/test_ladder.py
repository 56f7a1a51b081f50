"""The ladder's stand-in for a GPU, and that no output hides it."""

from __future__ import annotations

import itertools
import json
import re
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from bench import ladder
from bench.standin import StandIn


class Time:
    """Time that passes by sleeping only."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr(time, "perf_counter", lambda: self.now)
        monkeypatch.setattr(time, "sleep", self.sleep)

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def test_rates_are_the_published_ones_scaled_to_the_cores() -> None:
    assert StandIn("float32", cores=6).images_per_s(256) == pytest.approx(938)
    assert StandIn("amp", cores=6).images_per_s(256) == pytest.approx(2470)
    assert StandIn("amp", cores=2).images_per_s(256) == pytest.approx(2470 / 3)
    assert StandIn("amp", cores=6).images_per_s(64) == pytest.approx(2470 * 4547 / 6120)
    assert StandIn("amp", cores=6).images_per_s(96) == pytest.approx(2470 * (4547 + 5530) / 2 / 6120)


def test_the_host_runs_ahead_of_queued_steps_but_only_by_two(monkeypatch: pytest.MonkeyPatch) -> None:
    time, device = Time(monkeypatch), StandIn("float32", cores=6)
    seconds = 256 / 938
    for _ in range(2):
        device.step(256)
    assert time.now == 100.0
    device.step(256)
    assert time.now == pytest.approx(100 + seconds)
    device.wait()
    assert time.now == pytest.approx(100 + 3 * seconds)
    assert device.busy_s == pytest.approx(3 * seconds)


@pytest.mark.parametrize("blocking", [True, False])
def test_only_a_blocking_copy_waits_for_the_device(blocking: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    time, device = Time(monkeypatch), StandIn("float32", cores=6)
    device.step(256)
    device.copy(torch.ones(2, 3), blocking=blocking)
    assert time.now == pytest.approx(100 + (256 / 938 if blocking else 0))


def test_an_idle_device_is_not_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    time, device = Time(monkeypatch), StandIn("float32", cores=6)
    device.step(256)
    time.sleep(10)
    device.step(256)
    device.wait()
    assert time.now == pytest.approx(110 + 256 / 938)
    assert device.busy_s == pytest.approx(2 * 256 / 938)


def test_batches_beyond_the_published_figures_do_not_fit() -> None:
    with pytest.raises(torch.OutOfMemoryError, match="simulated accelerator: out of memory"):
        StandIn().step(257)


def test_each_rung_changes_one_thing() -> None:
    rows = ladder.ladder(2, 64)
    for before, after in itertools.pairwise(rows[:-1]):
        changed = {k for k in vars(before) if getattr(before, k) != getattr(after, k)} - {"name"}
        assert len(changed) == 1, after.name
    assert {k for k in vars(rows[-1]) if getattr(rows[-1], k) != getattr(rows[-2], k)} == {"name", "native"}


@pytest.mark.parametrize("simulated", [True, False])
def test_tables_say_that_the_accelerator_is_simulated(simulated: bool) -> None:
    columns = ("images_per_s", "epoch_min", "utilisation", "cpu_cores", "wait_ms_per_step")
    row: dict[str, Any] = {"name": "naive loop", "batch_size": 64, **{c: {"median": 0.5} for c in columns}}
    result = {
        **({"simulated accelerator": {}} if simulated else {"gpu": {"name": "NVIDIA H200"}}),
        "machine": {"processor": "Intel(R) Xeon(R) Platinum 8275CL CPU @ 3.00GHz", "cores": 2},
        "rows": [row],
    }
    for markdown in (True, False):
        text = ladder.render(result, markdown=markdown)
        assert ("Simulated accelerator" in text, "NVIDIA H200" in text) == (simulated, not simulated)
        assert "8275CL CPU @ 3.00GHz, 2 cores" in text
        assert max(map(len, text.splitlines())) <= (150 if markdown else 80)


def test_a_row_does_not_count_what_workers_had_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    time = Time(monkeypatch)

    class Loader:
        prefetch_factor = 2

        def __iter__(self) -> Any:
            for number in itertools.count():
                # Each of 8 workers makes a batch in a second, and was two ahead when the first was done with.
                time.now = max(time.now, 101.0 + max(0, number // 8 - 2))
                yield (torch.zeros(1),)

    monkeypatch.setattr(ladder, "make_loader", lambda *_: Loader())
    monkeypatch.setattr(ladder, "make_device", lambda precision: StandIn(precision, cores=1e9))
    row = ladder.climb(ladder.Setup("8 workers", 8, waiting=False), 64, "", "", 0.5)
    assert row["images_per_s"] == pytest.approx(8 * 64, rel=1e-3)


@pytest.mark.usefixtures("one_machine")
def test_a_row_that_fails_leaves_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "ladder.json"
    columns = ("images_per_s", "epoch_min", "utilisation", "cpu_cores", "wait_ms_per_step")
    measured: list[int] = []

    def climb(setup: ladder.Setup, *_: Any) -> dict[str, float]:
        rows = json.loads(path.read_text()).get("rows", [])
        measured.append(sum(len(row["images_per_s"]["all"]) for row in rows if "images_per_s" in row))
        if setup.name == "right batch size":
            raise torch.OutOfMemoryError("CUDA out of memory")
        return dict.fromkeys(columns, 2.0)

    monkeypatch.setattr(ladder, "climb", climb)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(
        sys,
        "argv",
        [
            "ladder",
            "--images",
            "i",
            "--shards",
            "s",
            "--repeats",
            "2",
            "--right-batch-size",
            "128",
            "--json",
            str(path),
        ],
    )
    assert ladder.main() == 1
    # Each run was saved before the next; the row that failed had one.
    assert measured == [0, 1, 2, 3, 4, 5, 5, 6, 7, 8, 9, 10, 11, 12, 13]
    rows = {row["name"]: row for row in json.loads(path.read_text())["rows"]}
    assert rows.pop("right batch size")["error"] == "OutOfMemoryError: CUDA out of memory"
    assert all(row["images_per_s"]["all"] == [2.0, 2.0] and "error" not in row for row in rows.values())
    assert re.search(r"right batch size +128 +failed", capsys.readouterr().out)


def test_nvml_is_asked_for_before_anything_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "init", lambda: None)
    monkeypatch.setattr(ladder, "current_gpu_busy", lambda: lambda: None)
    monkeypatch.setattr(ladder, "climb", lambda *_: pytest.fail("measured"))
    monkeypatch.setattr(
        sys, "argv", ["ladder", "--images", "i", "--shards", "s", "--json", str(tmp_path / "ladder.json")]
    )
    with pytest.raises(SystemExit, match="pip install nvidia-ml-py"):
        ladder.main()
