"""The examples of tasks beyond one label, as feeder loads them and as torch and torchvision do, on generated data."""

from __future__ import annotations

import csv
import json
import re
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from feeder.tools import cli
from tests.support import ROOT
from tests.support.documents import blocks
from tests.support.images import encode, pixels
from tests.support.shard_sets import write_tar
from tests.support.tokenizer_files import WORDS, word_tokenizer
from tests.support.with_torchvision import run_with_torchvision

pytestmark = pytest.mark.usefixtures("one_torch_thread")

_PLAIN = """
import contextlib, json, runpy, sys
from pathlib import Path
import torch
torch.set_num_threads(1)
folder = Path(sys.argv[1])
for name, *arguments in json.loads((folder / "runs.json").read_text()):
    sys.argv = [name, *arguments]
    with (folder / f"{name}.out").open("w") as out, contextlib.redirect_stdout(out):
        runpy.run_path(f"examples/{name}", run_name="__main__")
"""


BUCKETS = ("--size", "32", "--step", "8", "--batch-size", "4", "--classes", "2")

MASKS = ("--size", "32", "--batch-size", "2", "--classes", "2")

BOXES = ("--size", "64", "--batch-size", "4", "--classes", "2", "--epochs", "6")


def table(folder: Path) -> Path:
    """Forty images in train.csv whose brightness and redness are the targets."""
    (folder / "images").mkdir(parents=True)
    rng = np.random.default_rng(0)
    with (folder / "train.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["id", "weight", "height"])
        for i in range(40):
            weight, height = rng.uniform(0, 1, 2).round(4)
            color = np.full((36, 48, 3), 200 * weight, np.uint8)
            color[..., 0] = 55 + 200 * height
            (folder / f"images/a{i}.jpg").write_bytes(encode(Image.fromarray(color)))
            rows.writerow([f"a{i}", weight, height])
    return folder


def photos(folder: Path) -> Path:
    """Two classes of smooth images: 12 wide, 12 high and 6 square ones."""
    sides = [(64, 36)] * 12 + [(36, 64)] * 12 + [(48, 48)] * 6
    for i, side in enumerate(sides):
        (folder / str(i % 2)).mkdir(parents=True, exist_ok=True)
        (folder / f"{i % 2}/{i}.jpg").write_bytes(encode(pixels(i, *side)))
    return folder


def masks(folder: Path) -> Path:
    """Sixteen noisy images with a bright square, and masks that give it class 1."""
    for name in ("images", "masks"):
        (folder / name).mkdir(parents=True)
    rng = np.random.default_rng(0)
    for i in range(16):
        classes = np.zeros((40, 40), np.uint8)
        top, left = rng.integers(4, 20, 2)
        classes[top : top + 16, left : left + 16] = 1
        color = rng.normal(60 + 120 * classes[..., None], 20, (40, 40, 3)).clip(0, 255)
        (folder / f"images/{i:02d}.jpg").write_bytes(encode(Image.fromarray(color.astype(np.uint8))))
        mask = Image.fromarray(classes)
        mask.putpalette([0, 0, 0, 255, 0, 0])
        mask.save(folder / f"masks/{i:02d}.png")
    return folder


def boxes(folder: Path) -> Path:
    """Twelve images with up to two bright squares, in COCO's JSON."""
    (folder / "images").mkdir(parents=True)
    rng = np.random.default_rng(0)
    coco: dict[str, list[Any]] = {"images": [], "annotations": [], "categories": []}
    coco["categories"] = [{"id": 3, "name": "red"}, {"id": 7, "name": "green"}]
    for i in range(12):
        height, width = (64, 96) if i % 2 else (96, 64)
        color = np.full((height, width, 3), 40, np.uint8)
        for number in range(i % 3):
            left, top = rng.integers(0, 40, 2).tolist()
            color[top : top + 24, left : left + 24, number] = 240
            box = {"id": 2 * i + number, "image_id": i, "category_id": (3, 7)[number], "bbox": [left, top, 24, 24]}
            coco["annotations"].append(box | {"area": 576, "iscrowd": 0})
        (folder / f"images/{i}.jpg").write_bytes(encode(Image.fromarray(color)))
        coco["images"].append({"id": i, "file_name": f"{i}.jpg", "width": width, "height": height})
    (folder / "instances.json").write_text(json.dumps(coco))
    return folder


def captions(folder: Path) -> list[str]:
    """A tar of nine colors with two captions each, and a tokenizer of words; returns arguments of the example."""
    members = []
    for i in range(9):
        image = encode(Image.new("RGB", (40, 40), (100 * (i // 3), 100 * (i % 3), 60)))
        text = f"a photo of {i // 3} {i % 3}\n{i // 3} {i % 3} dog\n"
        members += [(f"{i:04d}.jpg", image), (f"{i:04d}.txt", text.encode())]
    folder.mkdir()
    write_tar(folder / "set.tar", members)
    word_tokenizer(folder / "tokenizer.json")
    options = ("--size", "32", "--batch-size", "9", "--max-length", "12", "--vocabulary", str(len(WORDS)))
    return [str(folder), str(folder / "tokenizer.json"), *options, "--epochs", "30"]


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Runs an example in this process and returns what it prints."""

    def run(name: str, *arguments: object) -> str:
        monkeypatch.setattr(sys, "argv", [name, *map(str, arguments)])
        runpy.run_path(str(ROOT / "examples" / name), run_name="__main__")
        return capsys.readouterr().out

    return run


def shard(*arguments: object) -> None:
    assert cli.main(["shard", *map(str, arguments), "-q"]) == 0


def errors_of(out: str) -> list[list[float]]:
    found = re.findall(r"^epoch \d: root mean square error on 8 samples: weight (\S+), height (\S+)$", out, re.M)
    return [list(map(float, each)) for each in found]


def losses_of(out: str) -> list[float]:
    return [float(loss) for loss in re.findall(r"[,:] loss (\d+\.\d+)$", out, re.M)]


def test_targets_of_a_table_are_learnt(tmp_path: Path, example: Callable[..., str]) -> None:
    folder, out = table(tmp_path / "table"), tmp_path / "shards"
    columns = ("--suffix", ".jpg", "--target-column", "weight", "--target-column", "height")
    shard(folder / "train.csv", "--image-root", folder / "images", *columns, "--out", out)
    found = errors_of(example("csv_targets.py", out, "--size", 32, "--batch-size", 4, "--workers", 1, "--epochs", 6))
    assert len(found) == 6
    assert max(found[-1]) < 0.2  # a guess of the mean costs 0.29


def test_diffusion_trains_on_buckets(tmp_path: Path, example: Callable[..., str]) -> None:
    shard(photos(tmp_path / "images"), "--out", tmp_path / "shards")
    out = example("diffusion_buckets.py", tmp_path / "shards", *BUCKETS, "--workers", 1)
    assert re.findall(r"^epoch \d: (.*), loss", out, re.M) == ["8 batches of 3 sizes"] * 3
    losses = losses_of(out)
    assert losses[-1] < losses[0]


def shares_of(out: str) -> list[float]:
    return [float(share) for share in re.findall(r"^epoch \d: (\S+)% of pixels right", out, re.M)]


def test_segmentation_learns_masks_that_move_with_the_images(tmp_path: Path, example: Callable[..., str]) -> None:
    folder = masks(tmp_path / "pairs")
    shard("--pair", f"images={folder}/images", f"masks={folder}/masks", "--out", tmp_path / "shards")
    shares = shares_of(example("segmentation.py", tmp_path / "shards", *MASKS, "--workers", 1))
    assert len(shares) == 3
    assert shares[-1] > 90  # without the square, which covers a sixth to a third of a crop, it is at most 85


def test_clip_learns(tmp_path: Path, example: Callable[..., str]) -> None:
    folder, *options = captions(tmp_path / "captions")
    shard(Path(folder) / "set.tar", "--out", tmp_path / "shards")
    losses = losses_of(example("clip.py", tmp_path / "shards", *options, "--workers", 1))
    assert len(losses) == 30
    assert losses[-1] < 1.0 < 1.8 < losses[0]  # a guess costs log(9)


def boxes_of(out: str) -> list[list[float]]:
    found = re.findall(r"^epoch \d: (\d+) boxes, loss of classes (\S+), of boxes (\S+)$", out, re.M)
    return [list(map(float, each)) for each in found]


def test_detection_learns_boxes_in_padded_batches(tmp_path: Path, example: Callable[..., str]) -> None:
    folder = boxes(tmp_path / "coco")
    shard(folder / "images", "--annotations", folder / "instances.json", "--out", tmp_path / "shards")
    found = boxes_of(example("detection.py", tmp_path / "shards", *BOXES, "--workers", 1))
    assert [count for count, *_ in found] == [12] * 6
    assert all(last < 0.7 * first for first, last in zip(found[0][1:], found[-1][1:], strict=True))


@pytest.mark.slow
def test_plain_versions_learn_the_same(tmp_path: Path) -> None:
    folder = photos(tmp_path / "images")
    runs = [["diffusion_buckets.py", str(folder), *BUCKETS]]
    runs += [["segmentation.py", str(masks(tmp_path / "pairs")), *MASKS]]
    runs += [["detection.py", str(boxes(tmp_path / "coco")), *BOXES]]
    runs += [["clip.py", *captions(tmp_path / "captions")]]
    runs += [["dino_views.py", str(folder), "--size", "32", "--small-size", "16", "--batch-size", "10"]]
    runs += [["csv_targets.py", str(table(tmp_path / "table")), "--size", "32", "--batch-size", "4", "--epochs", "6"]]
    (tmp_path / "runs.json").write_text(json.dumps([[*each, "--plain", "--workers", "0"] for each in runs]))
    (tmp_path / "plain.py").write_text(_PLAIN)
    run_with_torchvision(tmp_path / "plain.py", tmp_path)
    out = {name: (tmp_path / f"{name}.out").read_text() for name, *_ in runs}
    assert max(errors_of(out["csv_targets.py"])[-1]) < 0.2
    assert [count for count, *_ in boxes_of(out["detection.py"])] == [12] * 6
    losses = losses_of(out["clip.py"])
    assert losses[-1] < 1.0 < losses[0]
    assert re.findall(r"^epoch \d: (\d+) steps, loss", out["dino_views.py"], re.M) == ["3"] * 3
    assert shares_of(out["segmentation.py"])[-1] > 90
    assert re.findall(r"^epoch \d: (.*), loss", out["diffusion_buckets.py"], re.M) == ["7 batches of 3 sizes"] * 3


def test_the_lines_that_change_are_those_of_the_sections_example() -> None:
    """The table of tasks links each section beside its example."""
    text = (ROOT / "docs/migration.md").read_text()
    examples = dict(re.findall(r"^\| \[[^]]*\]\(#([\w-]+)\) .*\]\(\.\./examples/(\w+\.py)\) \|$", text, re.MULTILINE))
    changes = dict(re.findall(r"^## (.+)\n(?:(?!## ).*\n)*?```diff\n((?:.*\n)*?)```$", text, re.MULTILINE))
    assert len(changes) == len(blocks("docs/migration.md", "diff")) == len(examples) > 3
    for section, change in changes.items():
        example = examples[re.sub(r"[^\w-]", "", section.lower().replace(" ", "-"))]
        lines = {line.strip() for line in (ROOT / "examples" / example).read_text().splitlines()}
        wrong = [line for line in change.splitlines() if line[0] not in "+-" or line[1:].strip() not in lines]
        assert wrong == [], example
