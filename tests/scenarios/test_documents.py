"""The code of the documents: tutorials run as they stand there, and each call of the command is one that it takes."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch.distributed

import feeder
from bench.make_images import make_images
from feeder import transforms as T
from feeder.tools.cli import main, make_parser
from tests.scenarios.test_task_examples import boxes, masks
from tests.support import ROOT
from tests.support.images import encode, pixels
from tests.support.shard_sets import write_tar
from tests.support.tokenizer_files import word_tokenizer

PAGES = [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md")), *sorted(ROOT.glob("*/README.md"))]
TUTORIALS = sorted(path.stem for path in ROOT.glob("docs/tutorials/*.md"))

# What is run elsewhere, by page; one test runs what has no page of its own here, below.
ELSEWHERE = {
    "README.md": "tests/project/test_ground.py",
    "docs/frameworks.md": "tests/scenarios/test_pipelines.py",
    "docs/new-backend.md": "tests/decoders/test_new_backend.py",
}
PARTLY_ELSEWHERE = {
    "feeder.Buckets(pixels": "tests/scenarios/test_loading_docs.py",
    "PadToBatch(multiple": "tests/scenarios/test_loading_docs.py",
    "model.transform.resize": "tests/scenarios/test_loading_docs.py",
    "T.RandomIoUCrop": "tests/loader/test_targets.py",
    "T.Image(draws": "tests/loader/test_image_pairs.py",
}


def blocks(path: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", path.read_text(), re.DOTALL)


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def images_by_class(folder: Path) -> None:
    make_images(folder / "train", count=12, classes=2)
    make_images(folder / "val", count=6, classes=2, seed=1)


def captions(folder: Path) -> None:
    for tar in range(2):
        members = []
        for i in range(6):
            text = json.dumps({"similarity": i / 10}).encode()
            image = encode(pixels(i, 40, 40))
            members += [(f"{tar}{i}.jpg", image), (f"{tar}{i}.txt", b"a cat\na dog\n"), (f"{tar}{i}.json", text)]
        write_tar(folder / f"pairs-00{tar}.tar", members)
    word_tokenizer(folder / "tokenizer.json")


def coco(folder: Path) -> None:
    found = boxes(folder / "coco")
    (found / "images").rename(folder / "train2017")
    (found / "instances.json").rename(folder / "instances_train2017.json")


DATA = {
    "first-training": images_by_class,
    "clip": captions,
    "segmentation": masks,
    "detection": coco,
    "views": images_by_class,
    "frameworks": images_by_class,
}
# For few cores and little data.
SMALLER = {
    "num_workers=8": "num_workers=1",
    "batch_size=256": "batch_size=4",
    "batch_size=64": "batch_size=4",
    "batch_size=16": "batch_size=4",
    "steps_between_checkpoints=1000": "steps_between_checkpoints=2",
    "[480, 544, 608, 672, 736, 800], max_size=1333": "[48, 54], max_size=133",
}
CHECKS = {
    "first-training": "assert images.dtype == torch.float32 and images.shape[1:] == (3, 224, 224)",
    "clip": "assert texts['input_ids'].shape[0] == len(weights) == 4",
    "segmentation": "assert masks.dtype == torch.uint8 and masks.shape == images[:, 0].shape",
    "detection": "assert len(boxes) == len(inside) == len(sizes)",
    "views": "assert [tuple(view.shape[2:]) for view in views] == [(224, 224)] * 2 + [(96, 96)] * 6",
    "frameworks": "assert trainer.global_step == 6",
}


@pytest.mark.slow
@pytest.mark.parametrize("tutorial", TUTORIALS)
def test_tutorial_runs_from_its_first_command_to_its_last_line(tutorial: str, tmp_path: Path) -> None:
    page = ROOT / f"docs/tutorials/{tutorial}.md"
    DATA[tutorial](tmp_path)
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    bin = tmp_path / "bin"
    bin.mkdir()
    for command, call in (("python", sys.executable), ("feeder", f"{sys.executable} -m feeder")):
        (bin / command).write_text(f'#!/bin/sh\nexec {call} "$@"\n')
        (bin / command).chmod(0o755)
    code = "\n".join(blocks(page, "python"))
    for large, small in SMALLER.items():
        code = code.replace(large, small)
    (tmp_path / "tutorial.py").write_text("import torch\n\ntorch.set_num_threads(1)\n" + code + "\n" + CHECKS[tutorial])
    shell = ["set -euo pipefail", *blocks(page, "sh"), "python tutorial.py"]
    done = subprocess.run(
        ["bash", "-c", "\n".join(shell)],
        cwd=tmp_path,
        env={**os.environ, "PATH": f"{bin}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def calls_of_the_command() -> list[tuple[str, str]]:
    """Pages and calls of ``feeder`` in their code and text."""
    found = []
    for path in PAGES:
        lines = [line for block in blocks(path, "sh") for line in block.replace("\\\n", " ").splitlines()]
        found += [(name(path), line) for line in lines if line.startswith("feeder ")]
        found += [(name(path), " ".join(call.split())) for call in re.findall(r"`(feeder [^`\[]+)`", path.read_text())]
    return sorted(set(found))


def test_the_command_takes_every_call_of_the_documents() -> None:
    parser, refused = make_parser(), []
    calls = calls_of_the_command()
    assert len(calls) > 50
    for page, call in calls:
        said = io.StringIO()
        try:
            with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
                parser.parse_args(shlex.split(call, comments=True)[1:])
        except SystemExit as end:
            # A text may name a command without its arguments.
            if end.code and "the following arguments are required" not in said.getvalue():
                refused.append((page, call, said.getvalue()))
    assert refused == []


def write_sets(folder: Path) -> None:
    """Writes the files that the how-to pages name: tars with captions and embeddings, packed shards, a tokenizer."""
    (folder / "shards").mkdir()
    members = []
    for i, size in enumerate([(300, 280), (40, 50)] * 4):
        array = io.BytesIO()
        np.save(array, np.zeros(512, np.float16))
        members += [(f"{i}.jpg", encode(pixels(i, *size))), (f"{i}.cls", b"1"), (f"{i}.txt", b"a cat")]
        members += [(f"{i}.json", b'{"similarity": 0.5}'), (f"{i}.emb.npy", array.getvalue())]
    write_tar(folder / "shards/a.tar", members)
    assert main(["index", str(folder / "shards/a.tar")]) == 0
    write_tar(folder / "b.tar", members)
    assert (
        main(["shard", str(folder / "b.tar"), "--encode", "packed", "--out", str(folder / "images-shards"), "-q"]) == 0
    )
    word_tokenizer(folder / "tokenizer.json")


@pytest.fixture
def names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, object]]:
    """Names that the blocks of the how-to pages take from their readers' scripts, in a folder with the sets."""
    wds = pytest.importorskip("webdataset")
    monkeypatch.chdir(tmp_path)
    write_sets(tmp_path)
    (tar,) = (tmp_path / "images-shards").glob("*.tar")
    with tarfile.open(tar) as file:
        members = {each.name: file.extractfile(each).read() for each in file}  # type: ignore[union-attr]
    transform = T.Compose([T.RandomResizedCrop(32), T.ToDtype("float32", scale=True)])
    model = torch.nn.Module()
    model.module = torch.nn.Sequential(torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(3, 2))
    model.forward = lambda pixel_values, input_ids, attention_mask: pixel_values.mean()
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    yield {
        **{"feeder": feeder, "T": T, "torch": torch, "wds": wds, "transform": transform, "recipe": transform},
        **{"dataset": feeder.ShardDataset("shards", transform), "device": "cpu", "rank": 0, "world_size": 1},
        **{"model": model, "train_step": lambda *views: None, "urls": [str(tar)]},
        **{"is_first_stage": False, "first_stage": 0, "stages": None, "replica": 0, "replicas": 1},
        "data": next(data for name, data in members.items() if name.endswith(".fpk")),
        "codebooks": [data for name, data in members.items() if name.startswith("__codebook")],
    }
    torch.distributed.destroy_process_group()


def _runs_here(path: Path, block: str) -> bool:
    page = name(path)
    return not (page in ELSEWHERE or "tutorials" in page or any(sign in block for sign in PARTLY_ELSEWHERE))


HERE = [(name(path), block) for path in PAGES for block in blocks(path, "python") if _runs_here(path, block)]


@pytest.mark.parametrize(("page", "block"), HERE, ids=[f"{page}:{i}" for i, (page, _) in enumerate(HERE)])
def test_code_of_the_how_to_pages(page: str, block: str, names: dict[str, object]) -> None:
    if 'device="cuda"' in block and not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    for large, small in {**SMALLER, '"s3://my-bucket/train"': '"shards"'}.items():
        block = block.replace(large, small)
    exec(compile(block, page, "exec"), names)


def test_what_runs_elsewhere_does() -> None:
    for page, test in ELSEWHERE.items():
        assert name(ROOT / page).rpartition("/")[2] in (ROOT / test).read_text()
    text = "\n".join(block for path in PAGES for block in blocks(path, "python"))
    for sign in PARTLY_ELSEWHERE:
        assert sign in text
