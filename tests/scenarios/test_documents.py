"""The code of the documents: every block is run as it stands there, by a test that is named here, or says why not."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import tarfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch.distributed

import feeder
from feeder import transforms as T
from feeder.tools.cli import main, make_parser
from tests.scenarios.test_shell_docs import CLUSTER, LOCAL, STORES
from tests.support import ROOT
from tests.support.documents import PAGES, Block, blocks, smaller
from tests.support.images import encode, pixels
from tests.support.shard_sets import write_tar
from tests.support.tokenizer_files import word_tokenizer

# What other tests run, by page and a sign of the block, or its language. The test's file has the sign, too.
ELSEWHERE = {
    ("README.md", "from_torch(train_loader)"): "scenarios/test_switch.py::test_the_code_of_the_page_trains",
    ("README.md", "optimizer.zero_grad()"): "project/test_ground.py::test_the_training_example_of_the_readme_runs",
    ("docs/cluster.md", "ray_train.py"): (
        "scenarios/test_ray_examples.py::test_training_goes_on_exactly_after_a_worker_is_killed"
    ),
    ("docs/cluster.md", "ray_tune.py"): (
        "scenarios/test_ray_examples.py::test_a_search_over_a_service_has_the_results_of_one_without"
    ),
    ("docs/frameworks.md", "wds.WebDataset"): "scenarios/test_pipelines.py::test_webdataset",
    ("docs/frameworks.md", "nodes.Batcher"): "scenarios/test_pipelines.py::test_torchdata",
    ("docs/frameworks.md", "with_transform"): "scenarios/test_pipelines.py::test_hugging_face_datasets",
    ("docs/frameworks.md", "map_batches"): "scenarios/test_pipelines.py::test_ray_data",
    ("docs/loading.md", "class Table"): "scenarios/test_loading_docs.py::test_a_dataset_class_of_ones_own",
    ("docs/loading.md", "class Scenes"): "scenarios/test_loading_docs.py::test_targets_of_a_dataset_class_of_ones_own",
    ("docs/image-sizes.md", "feeder.Buckets(pixels"): "scenarios/test_loading_docs.py::test_buckets",
    ("docs/image-sizes.md", "PadToBatch(multiple"): "scenarios/test_loading_docs.py::test_padded_batches",
    ("docs/image-sizes.md", "model.transform.resize"): (
        "scenarios/test_loading_docs.py::test_torchvisions_detectors_take_padded_batches_as_they_are"
    ),
    (
        "docs/migration.md",
        "diff",
    ): "scenarios/test_task_examples.py::test_the_lines_that_change_are_those_of_the_sections_example",
    ("docs/switching.md", "diff"): "scenarios/test_switch.py::test_the_changes_of_the_page_are_those_of_the_scripts",
    **{
        ("docs/switching.md", sign): "scenarios/test_switch.py::test_the_code_of_the_page_trains"
        for sign in (
            "wrap_dataset_for",
            "LightningDataModule",
            "accelerator",
            "transformers",
            "ClassificationTrainer",
            "random_split",
        )
    },
    ("docs/mixtures.md", "python"): "loader/test_mixture.py::test_the_examples_of_the_docs_run",
    ("docs/new-backend.md", "class ToyDecoder"): "decoders/test_new_backend.py::test_the_backend_of_the_page_conforms",
    ("docs/new-backend.md", "toml"): "decoders/test_new_backend.py::test_the_backend_of_the_page_conforms",
    ("docs/performance.md", "throughput"): (
        "project/test_ground.py::test_the_documented_bench_session_is_the_committed_one"
    ),
    ("docs/operations.md", "pillow-simd=="): "scenarios/test_pillow_simd.py::test_the_block_of_the_docs_installs_it",
    ("docs/remote.md", "hf://datasets"): "shard/test_hub.py::test_the_example_of_the_docs_runs",
    ("docs/transforms.md", "T.RandomIoUCrop"): "loader/test_targets.py::test_the_example_of_the_docs_runs",
    ("docs/transforms.md", "T.Image(draws"): "loader/test_image_pairs.py::test_the_example_of_the_docs_runs",
}
# Those of them that compare the block with something else; the others' files take code from the page.
COMPARED = {("docs/performance.md", "throughput")}  # with what the committed result looks like
# What .ci/run does, and scripts/bare.sh, which it runs.
IN_CI = {
    ("README.md", "pip install feeder-data"),
    ("README.md", "make demo"),
    ("README.md", "make wheel"),
    ("README.md", "apt-get install"),
    ("docs/operations.md", "decode_wheel"),
    ("docs/operations.md", "scripts/bare.sh"),
    ("docs/operations.md", "make test-slow"),
}
NOT_IN_CI = {
    "make env": "each of the others makes it",
    "make quick": "tests/project/test_quick.py",
    "make test-all": "more cases of what it runs",
    "pre-commit install": "what it calls is part of `make lint`",
    "make docs": "tests/project/test_site.py builds the site",
}
NOT_RUN = {
    ("bench/README.md", "docker run"): "needs Docker and a GPU",
    ("bench/README.md", "pip wheel"): "needs a GPU",
    ("bench/README.md", "--only data"): "needs a GPU",
    ("bench/README.md", "--dry-run"): "tests/bench/test_bench_gpu.py runs both with the fewest photos",
    ("docs/operations.md", "docker build"): "needs Docker; tests/project/test_container.py holds the Dockerfile",
    ("docs/operations.md", "FROM feeder"): "needs Docker",
    ("docs/sources.md", "img2dataset"): "downloads images; tests/shard/test_members.py takes what it writes",
}
# No code.
PICTURES = {
    ("docs/architecture.md", "once, offline"),
    ("docs/architecture.md", "fast/batch_queue"),
    ("docs/tutorials/first-training.md", "n01440764_18.JPEG"),
}


def has(block: Block, sign: str) -> bool:
    return sign in block.text or sign == block.language


def runs_here(block: Block) -> bool:
    """True for Python that is no tutorial's and no other test's."""
    if block.language != "python" or "tutorials" in block.page:
        return False
    return not any(block.page == page and has(block, sign) for page, sign in ELSEWHERE)


ALL = [block for page in PAGES for block in blocks(page)]
HERE = [block for block in ALL if runs_here(block)]


def test_every_block_is_run_by_one_test_or_says_why_not() -> None:
    tables = (ELSEWHERE, IN_CI, NOT_RUN, PICTURES, LOCAL, STORES, CLUSTER)
    entries = [entry for table in tables for entry in table]
    for block in ALL:
        runs = [entry for entry in entries if entry[0] == block.page and has(block, entry[1])]
        tutorial = "tutorials" in block.page and block.language in ("python", "sh")
        assert len(runs) + tutorial + (block in HERE) == 1, (runs, block)
    for page, sign in entries:
        found = [block for block in ALL if block.page == page and has(block, sign)]
        assert len(found) == 1 or {sign} == {block.language for block in found}, (page, sign)


def test_what_runs_elsewhere_does() -> None:
    assert ELSEWHERE.keys() >= COMPARED
    for (page, sign), test in ELSEWHERE.items():
        file, _, function = test.partition("::")
        text = (ROOT / "tests" / file).read_text()
        assert f"\ndef {function}(" in text, test
        assert sign in text, (sign, test)
        assert ((page, sign) in COMPARED) != (re.search(rf'\bblocks?\("{re.escape(page)}"', text) is not None), test


def test_what_ci_runs_is_there() -> None:
    """With all of a line's plain words; places are others there."""
    text = "".join((ROOT / name).read_text() for name in (".ci/run", "scripts/bare.sh"))
    run = [" ".join(line.split()) for line in text.replace("\\\n", " ").replace('"$python"', "python").splitlines()]
    for page, sign in IN_CI:
        (block,) = [block for block in blocks(page, "sh") if has(block, sign)]
        for line in block.text.replace("\\\n", " ").splitlines():
            words = re.sub(r"""'[^']*'|"[^"]*"|#.*""", "PLACE", line.removeprefix("sudo ")).split()
            if not words or words[0] == "PLACE":  # a comment alone
                continue
            plain = {word for word in words if re.fullmatch(r"[a-z0-9_.+-]+|scripts/.*", word)}
            command = " ".join(words[: 1 if "scripts/" in line else 2])
            there = re.compile(rf"([A-Z_]+=\S+ |timeout \S+ \S+ |step \S+ )*{re.escape(command)}(?!\S)")
            found = [each for each in run if there.match(each) and plain <= {*each.split()}]
            assert command in NOT_IN_CI or found, line


def calls_of_the_command() -> list[tuple[str, str]]:
    """Pages and calls of ``feeder`` in their code and text."""
    found = []
    for page in PAGES:
        lines = [line for block in blocks(page, "sh") for line in block.text.replace("\\\n", " ").splitlines()]
        found += [(page, line) for line in lines if line.startswith("feeder ")]
        calls = re.findall(r"`(feeder [^`\[]+)`", (ROOT / page).read_text())
        found += [(page, " ".join(call.split())) for call in calls]
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
        **{"is_first_stage": True, "first_stage": 0, "stages": None, "replica": 0, "replicas": 1},
        "data": next(data for name, data in members.items() if name.endswith(".fpk")),
        "codebooks": [data for name, data in members.items() if name.startswith("__codebook")],
    }
    torch.distributed.destroy_process_group()


@pytest.mark.parametrize("block", HERE, ids=[f"{block.page}:{i}" for i, block in enumerate(HERE)])
def test_code_of_the_how_to_pages(block: Block, names: dict[str, object]) -> None:
    if 'device="cuda"' in block.text and not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    code = smaller(block.text, {'"s3://my-bucket/train"': '"shards"'})
    exec(compile(code, block.page, "exec"), names)
