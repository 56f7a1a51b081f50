"""The shell of the how-to pages, as it stands there, on few and small images."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

import feeder
from bench.make_images import make_images
from feeder import transforms as T
from feeder.tools.cli import main
from tests.scenarios.test_task_examples import boxes, masks
from tests.scenarios.test_tutorials import images_by_class
from tests.support import PYTHON_PATH
from tests.support.documents import block, run_shell, smaller
from tests.support.loader_data import write_shards
from tests.support.ray_cluster import RayCluster
from tests.support.remote import Bucket
from tests.support.s3_server import S3Server

BENCH = "--workers 0 --image-size 32 --seconds 0.05 --repeats 1 --no-peers"
TUNE = "--image-size 32 --batch-size 4 --cpus 1 --backend cpu --seconds 1"

_SCRIPT = """
import sys
import feeder
from feeder import transforms as T

assert sys.argv[1:] in ([], ["--lr", "0.1"])
dataset = feeder.FolderDataset("train", T.Compose([T.RandomResizedCrop(32)]))
for images, labels in feeder.DataLoader(dataset, batch_size=4, shuffle=True):
    images.float().mean()
"""


def shards(source: Path, out: Path, *options: str) -> Path:
    assert main(["shard", str(source), "--out", str(out), "-q", *options]) == 0
    return out


def images(folder: Path) -> None:
    make_images(folder / "images", count=6, classes=2)


def validation_images(folder: Path) -> None:
    """ImageNet's as Kaggle has them: an image's label is the first word of its row's boxes."""
    make_images(folder / "images", count=2, classes=1)
    place = folder / "ILSVRC/Data/CLS-LOC/val"
    place.mkdir(parents=True)
    rows = ["ImageId,PredictionString"]
    for number, path in enumerate(sorted(folder.glob("images/*/*.jpg"))):
        name = f"ILSVRC2012_val_{number:08d}"
        path.rename(place / f"{name}.JPEG")
        rows.append(f"{name},n0144000{number} 1 2 30 40 n0144000{number} 5 6 7 8 ")
    (folder / "LOC_val_solution.csv").write_text("\n".join([*rows, ""]))


def targets(folder: Path) -> None:
    """COCO's, Pascal VOC's, YOLO's, ADE20K's and Cityscapes' trees."""
    found = boxes(folder / "coco")
    (found / "images").rename(folder / "train2017")
    (found / "instances.json").rename(folder / "instances_train2017.json")
    (folder / "Annotations").mkdir()
    make_images(folder / "voc", count=2, classes=1)
    (made,) = (folder / "voc").iterdir()
    made.rename(folder / "JPEGImages")
    box = "<bndbox><xmin>1</xmin><ymin>2</ymin><xmax>9</xmax><ymax>12</ymax></bndbox>"
    for image in (folder / "JPEGImages").iterdir():
        xml = f"<annotation><filename>{image.name}</filename><object><name>dog</name>{box}</object></annotation>"
        (folder / "Annotations" / f"{image.stem}.xml").write_text(xml)
    for tree in ("images", "annotations"):
        (folder / tree).mkdir()
    (folder / "leftImg8bit").mkdir()
    (folder / "gtFine").mkdir()
    found = masks(folder / "pairs")
    for image in sorted((found / "images").iterdir())[:4]:
        mask = found / "masks" / f"{image.stem}.png"
        shutil.copy(mask, folder / "gtFine" / f"{image.stem}_gtFine_labelIds.png")
        (folder / "leftImg8bit" / f"{image.stem}_leftImg8bit.png").write_bytes(image.read_bytes())
    (found / "images").rename(folder / "images/training")
    (found / "masks").rename(folder / "annotations/training")
    make_images(folder / "yolo", count=2, classes=1)
    (made,) = (folder / "yolo").iterdir()
    made.rename(folder / "images/train")
    (folder / "labels/train").mkdir(parents=True)
    for image in (folder / "images/train").iterdir():
        (folder / "labels/train" / f"{image.stem}.txt").write_text("0 0.5 0.5 0.25 0.25\n")
    (folder / "data.yaml").write_text("names: [dog]\n")


def tables_of_captions(folder: Path) -> None:
    images(folder)
    paths = [path.relative_to(folder).as_posix() for path in sorted((folder / "images").rglob("*.jpg"))]
    rows = [(path, number) for path in paths for number in range(2)]
    (folder / "captions.csv").write_text("image,caption\n" + "".join(f"{path},text {i}\n" for path, i in rows))
    lines = "".join(f"{path}| {i}| text {i}\n" for path, i in rows)
    (folder / "results.csv").write_text(f"image_name| comment_number| comment\n{lines}")


def a_set_and_more(folder: Path) -> None:
    images(folder)
    shards(folder / "images", folder / "images-shards")
    make_images(folder / "more-images", count=4, classes=2, seed=1)


def sets_to_inspect(folder: Path) -> None:
    images(folder)
    shards(folder / "images", folder / "DIR", "--encode", "packed")
    for tar in range(2):
        write_shards(folder / f"tars-{tar}", 2)
        (made,) = (folder / f"tars-{tar}").glob("*.tar")
        made.rename(folder / f"train-00{tar}.tar")


def a_run_of_eight_ranks(folder: Path) -> None:
    dataset = feeder.ShardDataset(write_shards(folder / "shards", 32), T.Compose([T.RandomResizedCrop(8)]))
    loader = feeder.DataLoader(dataset, batch_size=1, shuffle=True, seed=0, rank=5, world_size=8)
    next(iter(loader))
    torch.save({"loader": loader.state_dict()}, folder / "checkpoint.pt")


def a_script(folder: Path) -> None:
    images_by_class(folder)
    (folder / "train.py").write_text(_SCRIPT)


def a_folder_to_bench(folder: Path) -> None:
    images(folder)
    shards(folder / "images", folder / "images-shards")


def upload(folder: Path, bucket: Bucket) -> None:
    """Writes the files of a folder and of those in it below its name."""
    for path in folder.rglob("*.jpg"):
        bucket.put(path.relative_to(folder.parent).as_posix(), path.read_bytes())


# By page and a sign of the block: what it needs in its folder, and what is said there of larger data.
LOCAL: dict[tuple[str, str], tuple[Callable[[Path], object], dict[str, str]]] = {
    ("README.md", "feeder shard ./images"): (images, {}),
    ("docs/cluster.md", "torchrun"): (images_by_class, {}),
    ("docs/order.md", "feeder replay"): (a_run_of_eight_ranks, {"--epoch 3 --step 1200": "--epoch 0 --step 1"}),
    ("docs/operations.md", "register-python-argcomplete"): (lambda folder: None, {}),
    ("docs/performance.md", "feeder bench images-shards"): (
        a_folder_to_bench,
        {"--json result.json": f"--json result.json {BENCH}"},
    ),
    ("docs/performance.md", "feeder tune"): (
        lambda folder: write_shards(folder / "DIR", 24),
        {"tune DIR": f"tune DIR {TUNE}", "--target 1900": "--target 1"},
    ),
    ("docs/performance.md", "feeder doctor"): (a_script, {}),
    ("docs/sharding.md", "# writes ./images-shards"): (images, {}),
    ("docs/sources.md", "instances_train2017.json"): (targets, {}),
    ("docs/sources.md", "--list-column"): (tables_of_captions, {}),
    ("docs/sources.md", "LOC_val_solution.csv"): (validation_images, {}),
    ("docs/shard-sets.md", "feeder append"): (a_set_and_more, {}),
}
STORES = {
    ("docs/remote.md", "feeder shard ./train"),
    ("docs/sources.md", "https://host/"),
    ("docs/shard-sets.md", "feeder takedown"),
    ("docs/shard-sets.md", "feeder inspect"),
}
CLUSTER = {
    ("docs/cluster.md", "ray start"),
    ("docs/cluster.md", "s3://bucket/images"),
    ("docs/cluster.md", "feeder serve --root /shared/sets --cpus 16"),
}


@pytest.mark.slow
@pytest.mark.parametrize(("page", "sign"), LOCAL, ids=map(" ".join, LOCAL))
def test_shell_on_the_local_disk(page: str, sign: str, tmp_path: Path) -> None:
    prepare, places = LOCAL[page, sign]
    prepare(tmp_path)
    said = run_shell(smaller(block(page, sign, "sh"), places), tmp_path)
    if sign == "LOC_val_solution.csv":
        assert feeder.ShardDataset(tmp_path / "val-shards").classes == ["n01440000", "n01440001"]
    if sign == "feeder shard ./images":
        assert (tmp_path / "runs/first/last.pt").exists()
        assert re.search(
            r"epoch 0: loss \d.*\n +\d+ images/s, .*\ntrained after 1 epoch\(s\): runs/first/last.pt\n$", said
        )
    if sign == "feeder replay":
        assert len(list((tmp_path / "batch").glob("*.png"))) == 1


@pytest.mark.slow
@pytest.mark.parametrize(("page", "sign"), sorted(STORES), ids=map(" ".join, sorted(STORES)))
def test_shell_on_a_store(page: str, sign: str, tmp_path: Path, bucket: Bucket) -> None:
    """All stores are the test's bucket; those of other protocols have tests of their own in tests/remote."""
    images_by_class(tmp_path)
    sets_to_inspect(tmp_path)
    upload(tmp_path / "images", bucket)
    for tar in tmp_path.glob("train-*.tar"):
        bucket.put(tar.name, tar.read_bytes())
    if sign in ("feeder inspect", "feeder takedown"):
        shards(tmp_path / "images", tmp_path / "images-shards")
        bucket.upload(tmp_path / "images-shards", "set")
    names = [path.relative_to(tmp_path / "images").as_posix() for path in (tmp_path / "images").rglob("*.jpg")]
    (tmp_path / "list.csv").write_text("image,label\n" + "".join(f"{each},{i}\n" for i, each in enumerate(names)))
    (tmp_path / "keys.txt").write_text("00000003\n")
    places = {
        "export AWS_ACCESS_KEY_ID=...": ": ",  # the bucket's are in the environment
        "s3://my-bucket": bucket.url,
        "s3://bucket": bucket.url,
        "gs://bucket": bucket.url,
        "az://container/set": f"{bucket.url}/set-of-a-list",
        "https://host": bucket.open_to_all(),
        "{000..009}": "{000..001}",
        "00001234 00040012": "00000001 00000002",
    }
    run_shell(smaller(block(page, sign, "sh"), places), tmp_path)


@pytest.fixture(scope="module")
def cluster(s3_server: S3Server) -> Iterator[RayCluster]:
    made = RayCluster()
    made.add_node({"PYTHONPATH": PYTHON_PATH, **s3_server.environment()}, cores=2)
    yield made
    made.close()


@pytest.mark.slow
@pytest.mark.parametrize(("page", "sign"), sorted(CLUSTER), ids=map(" ".join, sorted(CLUSTER)))
def test_shell_on_a_cluster(page: str, sign: str, tmp_path: Path, bucket: Bucket, cluster: RayCluster) -> None:
    images(tmp_path / "shared")
    (tmp_path / "shared/sets").mkdir()
    upload(tmp_path / "shared/images", bucket)
    script = smaller(block(page, sign, "sh"), {"/shared": str(tmp_path / "shared"), "s3://bucket": bucket.url})
    run_shell(script, tmp_path, {"RAY_ADDRESS": cluster.address})
