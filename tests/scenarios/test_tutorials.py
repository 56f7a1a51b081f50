"""The tutorials run from their first command to their last line, as they stand there."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from bench.make_images import make_images
from tests.scenarios.test_task_examples import boxes, masks
from tests.shard.test_hub import TARS, parquet_files
from tests.support import PYTHON_PATH, ROOT
from tests.support.documents import blocks, run_shell, smaller
from tests.support.gil import need
from tests.support.hub_server import TOKEN, HubServer
from tests.support.images import encode, pixels
from tests.support.ray_cluster import RayCluster
from tests.support.remote import Bucket
from tests.support.shard_sets import write_tar
from tests.support.tls import write_certificates
from tests.support.tokenizer_files import word_tokenizer

TUTORIALS = sorted(path.stem for path in ROOT.glob("docs/tutorials/*.md"))


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
    shutil.copytree(folder / "train2017", folder / "val2017")
    shutil.copyfile(folder / "instances_train2017.json", folder / "instances_val2017.json")


def three_sets(folder: Path) -> None:
    for seed, name in enumerate(("web", "photos", "own")):
        make_images(folder / name, count=12, classes=2 + (name == "web"), seed=seed)


DATA: dict[str, Callable[[Path], object]] = {
    "bucket": images_by_class,
    "first-training": images_by_class,
    "clip": captions,
    "cluster": lambda folder: images_by_class(folder / "shared"),
    "segmentation": masks,
    "detection": coco,
    "views": images_by_class,
    "frameworks": images_by_class,
    "mixture": three_sets,
    "hub": lambda folder: write_certificates(folder, folder / "authority.pem"),
}
CHECKS = {
    "bucket": """
assert seen == 12 and downloaded > 100_000 and loader.stats()["remote"]["bytes"] == downloaded
loader.load_state_dict(state)
assert all(torch.equal(a, b) for a, b in zip(next(iter(loader)), next(iter(resumed))))
""",
    "first-training": "assert images.dtype == torch.float32 and images.shape[1:] == (3, 224, 224)",
    "clip": "assert texts['input_ids'].shape[0] == len(weights) == 4",
    "cluster": """
assert seen == 12
alone = feeder.DataLoader(dataset, batch_size=4, shuffle=True, seed=0)
only = feeder.DataLoader(dataset, batch_size=4, shuffle=True, seed=0, service=feeder.Service("feeder", only=True))
assert all(torch.equal(a, b) for one, other in zip(only, alone, strict=True) for a, b in zip(one, other))
""",
    "segmentation": "assert masks.dtype == torch.uint8 and masks.shape == images[:, 0].shape",
    "detection": "assert len(found) == 12 and evaluation.stats[0] > 0.999",
    "views": "assert [tuple(view.shape[2:]) for view in views] == [(224, 224)] * 2 + [(96, 96)] * 6",
    "frameworks": "assert trainer.global_step == 6",
    "mixture": """
assert len(mixture.classes) == 3
sources = resumed.stats()["sources"]
assert sum(each["samples"] for each in sources.values()) == 8 * 16
assert 0 < sources["own"]["samples"] < sources["photos"]["samples"] < sources["web"]["samples"]
assert loader.stats()["sources"]["own"]["samples"] == 0 < loader.stats()["sources"]["photos"]["samples"]
""",
    "hub": """
assert len(dataset) == 8 and "@" in dataset.reader.place
loader.load_state_dict(saved["loader"])
assert all(torch.equal(a, b) for a, b in zip(next(iter(loader)), next(iter(resumed))))
assert sorted(feeder.ShardDataset("train-shards").classes) == ["cat", "dog"]
""",
}


@pytest.mark.slow
@pytest.mark.parametrize("tutorial", TUTORIALS)
def test_tutorial_runs_from_its_first_command_to_its_last_line(
    tutorial: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if tutorial == "frameworks":
        need("accelerate")
    page = f"docs/tutorials/{tutorial}.md"
    DATA[tutorial](tmp_path)
    places: dict[str, str] = {}
    environment: dict[str, str] = {}
    if tutorial == "bucket":
        bucket: Bucket = request.getfixturevalue("bucket")  # the environment has its key
        places = {"s3://my-bucket": bucket.url, "export AWS_ACCESS_KEY_ID=...": ": ", "cache_bytes=500_000_000_000": ""}
    if tutorial == "mixture":
        places = {"1_000_000": "16", "2_000_000": "32", "6_000_000": "64"}
    if tutorial == "hub":
        hub = HubServer(tmp_path, "my-org/my-images")
        request.addfinalizer(hub.close)
        hub.refusal = "GatedRepo"
        hub.push({f"train/{k}.tar": TARS[f"data/train-00{k}.tar"] for k in range(2)} | parquet_files())
        places = {"hf_...": TOKEN, "python train.py": ""}
        environment = {"HF_ENDPOINT": hub.endpoint, "SSL_CERT_FILE": str(tmp_path / "authority.pem"), "NO_PROXY": "*"}
        environment |= {"XDG_CACHE_HOME": str(tmp_path / "cache"), "HF_HOME": str(tmp_path / "hf")}
    if tutorial == "cluster":
        cluster = RayCluster()
        request.addfinalizer(cluster.close)
        cluster.add_node({"PYTHONPATH": PYTHON_PATH}, cores=2)
        places, environment = {"/shared": str(tmp_path / "shared")}, {"RAY_ADDRESS": cluster.address}
    code = "\n".join([*(block.text for block in blocks(page, "python")), CHECKS[tutorial]])
    (tmp_path / "tutorial.py").write_text("import torch\n\ntorch.set_num_threads(1)\n" + smaller(code, places))
    shell = [block.text for block in blocks(page, "sh")]
    strict = "" if tutorial == "frameworks" else "-W error"  # Lightning warns about the model
    run_shell(smaller("\n".join([*shell, f"python {strict} tutorial.py"]), places), tmp_path, environment)
