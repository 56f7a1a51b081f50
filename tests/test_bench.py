from __future__ import annotations

import json
from pathlib import Path

import pytest

from feeder.bench import BenchOptions, run
from feeder.errors import ArgumentError
from tests.loader_data import encode, write_shards


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("dtype", ["uint8", "float32"])
def test_bench_reports_both_loaders_as_table_and_json(tmp_path: Path, workers: int, dtype: str) -> None:
    options = BenchOptions(batch_size=4, num_workers=workers, size=8, repeats=2, seconds=0.01, dtype=dtype)
    notes: list[str] = []
    report = run(write_shards(tmp_path, 12), options, notes.append)
    assert report.samples == 12
    table = report.table()
    assert "feeder (" in table
    assert "torch DataLoader + Pillow" in table
    assert max(map(len, table.splitlines())) <= 80
    data = json.loads(report.to_json())
    assert [len(runs) for runs in data["images_per_s"].values()] == [2, 2]
    assert all(value > 0 for runs in data["images_per_s"].values() for value in runs)
    assert {"processor", "cores", "versions", "commit"} <= set(data["machine"])
    assert data["options"]["num_workers"] == workers
    assert len(notes) == 6


def test_bench_takes_a_folder_and_a_part_of_it(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    for i in range(5):
        (tmp_path / f"a/{i}.png").write_bytes(encode(i))
    options = BenchOptions(batch_size=2, num_workers=0, size=8, repeats=1, seconds=0, max_samples=3)
    assert run(tmp_path, options).samples == 3


def test_bad_options_are_refused() -> None:
    for bad in ({"batch_size": 0}, {"dtype": "int8"}, {"num_workers": -1}):
        with pytest.raises(ArgumentError):
            BenchOptions(**bad)  # type: ignore[arg-type]
