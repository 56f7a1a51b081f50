"""``feeder replay``: the samples and images of a step, from a set and a saved state alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import feeder
from feeder import transforms as T
from feeder.shard.write.options import ShardOptions
from feeder.shard.write.sharding import shard
from feeder.tools.cli import main
from tests.support.images import make_tree


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("tree")
    make_tree(root)
    return root


def run_of(tree: Path, *ops: T.Op, **options: Any) -> feeder.DataLoader:
    data = feeder.FolderDataset(tree, T.Compose([T.RandomResizedCrop(8), *ops]), ["key"])
    return feeder.DataLoader(data, 4, seed=5, **{"shuffle": True, **options})


@pytest.mark.parametrize("ops", [(), (T.ToDtype("float32", scale=True), T.Normalize([0.4, 0.5, 0.6], 0.2))])
def test_images_are_written_as_the_run_saw_them(
    ops: tuple[T.Op, ...], tree: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, pixels = run_of(tree, *ops), list(run_of(tree))
    list(run)
    torch.save({"step": 8, "loader": run.state_dict()}, tmp_path / "checkpoint.pt")
    command = ["replay", str(tree), "--state", str(tmp_path / "checkpoint.pt"), "--epoch", "0", "--step", "2", "--json"]
    assert main([*command, "--out", str(tmp_path / "out")]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [each["key"] for each in found["samples"]] == pixels[2][2]
    for row in range(4):
        image = np.asarray(Image.open(tmp_path / f"out/{row:04d}.png")).transpose(2, 0, 1)
        assert np.array_equal(image, pixels[2][0][row])


@pytest.mark.parametrize("shuffle", [False, True, feeder.Window(9), feeder.Lanes(2, 8)])
def test_each_way_to_shuffle_is_taken_from_the_state(
    shuffle: Any, tree: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shard(str(tree), str(tmp_path / "set"), ShardOptions(samples_per_shard=8))
    data = feeder.ShardDataset(tmp_path / "set", T.RandomResizedCrop(8), ["key"])
    run = feeder.DataLoader(data, 4, seed=5, shuffle=shuffle, rank=1, world_size=2)
    expected = [keys for _, _, keys in run]
    (tmp_path / "state.json").write_text(json.dumps(run.state_dict()))
    command = ["replay", str(tmp_path / "set"), "--state", str(tmp_path / "state.json"), "--epoch", "0", "--rank", "1"]
    for step, keys in enumerate(expected):
        assert main([*command, "--step", str(step), "--json"]) == 0
        assert [each["key"] for each in json.loads(capsys.readouterr().out)["samples"]] == keys


@pytest.mark.parametrize(
    ("content", "key", "says"),
    [
        ({"loader": 3}, [], "has no state of feeder's loader; name it with --key"),
        ({"loader": 3}, ["--key", "data"], "has no 'data'; there are: loader"),
        ({"a": {}, "b": {}}, [], "has 2 states; name one with --key: a, b"),
        ({"recipe": None}, [], "calls a function"),
        ({"spans": [], "buckets": "8x8"}, [], "of a loader with buckets: make that loader, and call its replay"),
        ({"consumed": None}, [], "older version of feeder"),
    ],
)
def test_what_a_state_does_not_have_is_named(
    content: Any, key: list[str], says: str, tree: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state = run_of(tree).state_dict()
    if {"recipe", "spans", "consumed"} & set(content):
        content = {name: value for name, value in (state | content).items() if name != "consumed" or value is not None}
    else:
        content = {name: value if value == 3 else state for name, value in content.items()}
    (tmp_path / "state.json").write_text(json.dumps(content))
    assert main(["replay", str(tree), "--state", str(tmp_path / "state.json"), "--step", "0", *key]) == 2
    assert says in capsys.readouterr().err


def test_a_checkpoint_that_would_run_code_is_not_loaded(
    tree: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    class Evil:
        def __reduce__(self) -> tuple[Any, ...]:
            return (Path(tmp_path / "ran").touch, ())

    torch.save({"loader": Evil()}, tmp_path / "checkpoint.pt")
    assert main(["replay", str(tree), "--state", str(tmp_path / "checkpoint.pt"), "--step", "0"]) == 2
    assert "nor a checkpoint of torch" in capsys.readouterr().err
    assert not (tmp_path / "ran").exists()
