from __future__ import annotations

import json
from pathlib import Path

import pytest

from feeder.bench import BenchOptions, render, throughput
from feeder.errors import ArgumentError
from feeder.measure import interleave, table
from feeder.shard import shard
from tests.images import make_tree
from tests.test_cli import run


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tree(tmp_path_factory.mktemp("bench") / "images", 2, 16)


QUICK = {"image_size": 32, "batch_size": 8, "workers": 0, "seconds": 0.05, "repeats": 2}


@pytest.mark.parametrize("preset", ["train", "val"])
@pytest.mark.parametrize("dtype", ["float32", "uint8"])
def test_both_rivals_are_measured_on_a_folder(tree: Path, preset: str, dtype: str) -> None:
    result = throughput(str(tree), BenchOptions(preset=preset, dtype=dtype, **QUICK), note=lambda line: None)
    assert result["images"] == 32
    rival = next(name for name in result["images_per_s"] if name != "feeder")
    assert rival in ("torch+pillow", "torch+pillow-simd", "torch+unknown")
    for name in ("feeder", rival):
        assert len(result["images_per_s"][name]["all"]) == 2
        assert min(result["images_per_s"][name]["all"]) > 0
        assert result["first_batch_s"][name]["median"] > 0
    assert result["ratio"][rival]["all"] == [1, 1]
    text = render(result)
    assert max(map(len, text.splitlines())) <= 80


def test_the_command_measures_shards_beside_the_files_they_came_from(tree: Path, tmp_path: Path) -> None:
    shard(str(tree), str(tmp_path / "shards"))
    done = run(
        *("bench", tmp_path / "shards", "--folder", tree, "--image-size", "32", "--batch-size", "8", "--workers", "2"),
        *("--seconds", "0.2", "--repeats", "1", "--json", tmp_path / "result.json"),
    )
    assert "torch+" in done.stdout
    saved = json.loads((tmp_path / "result.json").read_text())
    assert saved["benchmark"] == "throughput"
    assert saved["machine"]["cores"] >= 1
    assert saved["machine"]["versions"]
    assert saved["options"]["workers"] == 2
    assert saved["images_per_s"]["feeder"]["median"] > 0


def test_too_few_images_for_a_batch_are_an_error(tree: Path) -> None:
    with pytest.raises(ArgumentError, match="holds 32 images, fewer than a batch of 64"):
        throughput(str(tree), BenchOptions())


@pytest.mark.parametrize(
    "options",
    [{"preset": "x"}, {"dtype": "int4"}, {"batch_size": 0}, {"workers": -1}, {"seconds": 0.0}, {"repeats": 0}],
)
def test_options_out_of_range_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(ArgumentError, match=f"{next(iter(options))} must be"):
        BenchOptions(**options)  # type: ignore[arg-type]


def test_rivals_take_turns() -> None:
    calls: list[str] = []

    def rival(name: str) -> float:
        calls.append(name)
        return float(len(calls))

    found = interleave({"a": lambda: rival("a"), "b": lambda: rival("b")}, 3, lambda line: None)
    assert calls == ["a", "b"] * 3
    assert found == {"a": [1.0, 3.0, 5.0], "b": [2.0, 4.0, 6.0]}


def test_tables_line_up() -> None:
    assert table([["", "n"], ["long name", "1"], ["x", "1,000"]]).splitlines() == [
        "               n",
        "----------------",
        "long name      1",
        "x          1,000",
    ]
