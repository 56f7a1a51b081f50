"""The layouts in which folders of images come: what is clear is read, and what is not is asked for with commands."""

from __future__ import annotations

import io
import json
import shlex
import shutil
import tarfile
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from PIL import Image

import feeder
from feeder import transforms as T
from feeder.shard.format.manifest import is_shard_set
from feeder.shard.write.sharding import shard
from feeder.tools.cli import main
from tests.support.images import encode, pixels
from tests.support.shard_sets import member, rejected, samples_of


def bad(out: Path) -> dict[str, str]:
    """Reason by path, of the inputs that count as bad."""
    listed = (json.loads(line) for line in (out / "rejected.jsonl").read_text().splitlines())
    reasons = rejected(out)
    return {row["path"]: reasons[row["path"]] for row in listed if row["bad"]}


Make = Callable[[Path], object]
XML = (
    "<annotation><object><name>cat</name><bndbox><xmin>1</xmin><ymin>1</ymin><xmax>9</xmax><ymax>9</ymax></bndbox>"
    "</object></annotation>"
)


def put(path: Path, data: bytes | str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data.encode() if isinstance(data, str) else data)


def photos(folder: Path, names: Iterable[str] = ("a.jpg", "b.jpg", "c.jpg")) -> None:
    for number, name in enumerate(names):
        put(folder / name, encode(pixels(number, 24, 16), "PNG" if name.endswith("png") else "JPEG"))


def masks(folder: Path, names: Iterable[str] = ("a.png", "b.png", "c.png")) -> None:
    for number, name in enumerate(names):
        put(folder / name, encode(pixels(number, 24, 16).convert("L"), "PNG"))


def coco(path: Path, names: Iterable[str] = ("a.jpg", "b.jpg", "c.jpg")) -> None:
    images = [{"id": k, "file_name": name, "width": 24, "height": 16} for k, name in enumerate(names)]
    rows = [{"id": k, "image_id": k, "category_id": 7, "bbox": [1, 2, 3, 4]} for k in range(len(images))]
    data = {"info": {}, "images": images, "annotations": rows, "categories": [{"id": 7, "name": "cat"}]}
    put(path, json.dumps(data))


def labels(folder: Path, names: Iterable[str] = ("a.txt", "b.txt")) -> None:
    for name in names:
        put(folder / name, "1 0.5 0.5 0.25 0.5\n")


def table(path: Path, rows: list[dict[str, object]], image: bool = False) -> None:
    """A Parquet file as Hugging Face's datasets write it."""
    pyarrow = pytest.importorskip("pyarrow")
    import pyarrow.parquet as parquet

    features = {"image": {"_type": "Image"}, "label": {"names": ["cat", "dog"], "_type": "ClassLabel"}}
    metadata = {"huggingface": json.dumps({"info": {"features": features}})}
    path.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(pyarrow.Table.from_pylist(rows).replace_schema_metadata(metadata), path)


def rows(count: int) -> list[dict[str, object]]:
    return [
        {"image": {"bytes": encode(pixels(k)), "path": f"{k}.jpg"}, "label": k % 2, "caption": "a"}
        for k in range(count)
    ]


def tar(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as file:
        info = tarfile.TarInfo("a.jpg")
        data = encode(pixels(0))
        info.size = len(data)
        file.addfile(info, io.BytesIO(data))


def coco_in_one(root: Path) -> None:
    photos(root / "images")
    coco(root / "annotations.json")


def coco_by_version(root: Path) -> None:
    photos(root / "images")
    coco(root / "annotations.json")
    text = (root / "annotations.json").read_text()
    put(root / "annotations.json", '{"version": "1.0", "source": {"year": 2020}, ' + text[1:])


def coco_beside(root: Path) -> None:
    photos(root)
    coco(root / "_annotations.coco.json")


def yolo(root: Path) -> None:
    photos(root / "images")
    labels(root / "labels")
    put(root / "labels/classes.txt", "cat\ndog\n")


def voc(root: Path) -> None:
    photos(root / "JPEGImages")
    for name in "abc":
        put(root / f"Annotations/{name}.xml", XML)


def voc_beside(root: Path) -> None:
    photos(root)
    for name in "abc":
        put(root / f"{name}.xml", XML)


def pairs(root: Path) -> None:
    photos(root / "images")
    masks(root / "masks")


def pairs_by_suffix(root: Path) -> None:
    photos(root / "imgs")
    masks(root / "masks", [f"{name}_mask.png" for name in "abc"])


def only_train(root: Path) -> None:
    photos(root / "train/cat")
    photos(root / "train/dog")


def only_images(root: Path) -> None:
    photos(root / "images")


def metadata(root: Path) -> None:
    photos(root)
    put(root / "metadata.csv", "file_name,text\n" + "".join(f'{name}.jpg,"one, {name}"\n' for name in "abc"))


def metadata_lines(root: Path) -> None:
    photos(root)
    put(root / "metadata.jsonl", "".join(json.dumps({"file_name": f"{k}.jpg", "text": k}) + "\n" for k in "abc"))


def tables_of_one_split(root: Path) -> None:
    for number in range(3):
        table(root / f"data/train-{number:05d}-of-00003.parquet", rows(number + 1))
    put(root / "data/._train-00000-of-00003.parquet", b"\0\5\x16\7")


def kaggle(root: Path) -> None:
    photos(root / "train_images")
    put(root / "train.csv", "nr,image_id,label\n" + "".join(f"{k},{name},{k}\n" for k, name in enumerate("abc")))


def images_and_lists(root: Path) -> None:
    for name in ("cat", "dog"):
        photos(root / "images" / name)
    put(root / "meta/train.txt", "a\nb\n")
    put(root / "attributes/certainty.txt", "1 guessing\n")


def ilsvrc_of_one_split(root: Path) -> None:
    for name in ("n01440764", "n01443537"):
        photos(root / "ILSVRC/Data/CLS-LOC/train" / name)
        put(root / f"ILSVRC/Annotations/CLS-LOC/train/{name}/a.xml", XML)
    put(root / "ILSVRC/ImageSets/CLS-LOC/train_cls.txt", "n01440764/a 1\n")
    put(root / "LOC_synset_mapping.txt", "n01440764 tench\n")


def coco_below(root: Path) -> None:
    photos(root / "train")
    photos(root / "images")
    coco(root / "annotations/instances.json", [f"train/{name}.jpg" for name in "abc"])


def darknet(root: Path) -> None:
    photos(root / "obj")
    put(root / "obj/a.txt", "")
    put(root / "obj/b.txt", "1 0.5 0.5 0.25 0.5\n")
    put(root / "obj.names", "cat\ndog\n")
    put(root / "obj.data", "classes = 2\n")


CLEAR: dict[str, tuple[Make, str, int, str]] = {
    "COCO in one": (coco_in_one, "{root}/images --annotations {root}/annotations.json", 3, "boxes.json"),
    "COCO by version": (coco_by_version, "{root}/images --annotations {root}/annotations.json", 3, "boxes.json"),
    "COCO beside": (coco_beside, "{root} --annotations {root}/_annotations.coco.json", 3, "boxes.json"),
    "YOLO": (yolo, "{root}/images --annotations {root}/labels", 3, "boxes.json"),
    "VOC": (voc, "{root}/JPEGImages --annotations {root}/Annotations", 3, "boxes.json"),
    "VOC beside": (voc_beside, "{root} --annotations {root}", 3, "boxes.json"),
    "masks": (pairs, "--pair images={root}/images masks={root}/masks", 3, "masks.png"),
    "masks by suffix": (
        pairs_by_suffix,
        "--pair 'images={root}/imgs/*.jpg' 'masks={root}/masks/*_mask.png'",
        3,
        "masks.png",
    ),
    "a split": (only_train, "{root}/train", 6, ""),
    "images": (only_images, "{root}/images", 3, ""),
    "metadata.csv": (metadata, "{root}/metadata.csv", 3, "json"),
    "metadata.jsonl": (metadata_lines, "{root}/metadata.jsonl", 3, "json"),
    "Parquet": (tables_of_one_split, "'{root}/data/train-*.parquet'", 6, "json"),
    "Kaggle": (kaggle, "{root}/train.csv", 3, "json"),
    "images and lists": (images_and_lists, "{root}/images", 6, ""),
    "ILSVRC": (ilsvrc_of_one_split, "{root}/ILSVRC/Data/CLS-LOC/train", 6, ""),
    "COCO below": (coco_below, "{root} --annotations {root}/annotations/instances.json", 3, "boxes.json"),
    "darknet": (darknet, "{root}/obj --annotations {root}/obj", 3, "boxes.json"),
}


@pytest.mark.parametrize("layout", list(CLEAR))
def test_a_clear_layout_is_read_and_said_in_a_line(
    layout: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make, options, samples, field = CLEAR[layout]
    root = tmp_path / "set"
    make(root)
    out = tmp_path / "set-shards"
    assert main(["shard", str(root)]) == 0
    first = capsys.readouterr().err.splitlines()[0]
    assert first.startswith(f"{root}: ")
    assert first.endswith(f", as by: feeder shard {options.format(root=root)}")

    found = samples_of(out)
    assert len(found) == samples
    assert bad(out) == {}
    if field:
        assert all(member(out, path, field) for path, *_ in found)
    command = shlex.split(first.rpartition("feeder ")[2])
    assert main([*command, "--out", str(tmp_path / "same")]) == 0
    assert samples_of(tmp_path / "same") == found


def coco_splits(root: Path) -> None:
    for split in ("train2017", "val2017"):
        photos(root / split)
        coco(root / f"annotations/instances_{split}.json")
        put(root / f"annotations/panoptic_{split}.json", '{"images": [], "annotations": []}')


def coco_by_split(root: Path) -> None:
    for split, names in (("train", ["a.jpg"]), ("val", ["b.jpg"])):
        photos(root / f"images/{split}", names)
        coco(root / f"annotations/{split}.json", names)


def yolo_splits(root: Path) -> None:
    for split in ("train", "val"):
        photos(root / f"images/{split}")
        labels(root / f"labels/{split}")
    put(root / "data.yaml", "path: .\nnames:\n  0: cat\n  1: dog\n")


def yolo_in_splits(root: Path) -> None:
    for split in ("train", "valid"):
        photos(root / f"{split}/images")
        labels(root / f"{split}/labels")
    put(root / "data.yaml", "names: ['cat', \"dog\"]\nnc: 2\n")


def mask_splits(root: Path) -> None:
    for split in ("train", "val"):
        photos(root / f"images/{split}")
        masks(root / f"annotations/{split}")


def two_kinds(root: Path) -> None:
    voc(root)
    masks(root / "SegmentationClass")


def class_splits(root: Path) -> None:
    for split in ("train", "val"):
        photos(root / split / "cat")
        photos(root / split / "dog")


def rarer_splits(root: Path) -> None:
    for split in ("trainval", "test", "unlabeled"):
        photos(root / split)


def splits_by_words(root: Path) -> None:
    photos(root / "train_images")
    photos(root / "test-images")


def metadata_splits(root: Path) -> None:
    metadata(root / "train")
    metadata(root / "test")


def table_splits(root: Path) -> None:
    for split in ("train", "test"):
        for number in range(2):
            table(root / f"data/{split}-{number:05d}-of-00002.parquet", rows(2))
    put(root / "README.md", "---\n")


def tar_splits(root: Path) -> None:
    for name in ("train-0.tar", "train-1.tar", "val-0.tar"):
        tar(root / name)


def kaggle_with_test(root: Path) -> None:
    kaggle(root)
    photos(root / "test_images", ("x.jpg", "y.jpg"))
    put(root / "sample_submission.csv", "image_id,label\nx,0\ny,0\n")


def classes_and_a_table(root: Path) -> None:
    photos(root / "cat")
    photos(root / "dog")
    put(root / "list.csv", "path,text\ncat/a.jpg,one\ndog/b.jpg,two\n")


def masks_elsewhere(root: Path) -> None:
    photos(root / "images")
    masks(root / "masks", ("x.png", "y.png"))


def masks_by_another_name(root: Path) -> None:
    photos(root / "img")
    masks(root / "truth", [f"{name}_t.png" for name in "abc"])


def masks_of_mmsegmentation(root: Path) -> None:
    for split in ("train", "val"):
        photos(root / f"img_dir/{split}")
        masks(root / f"ann_dir/{split}")


def two_kinds_of_masks(root: Path) -> None:
    photos(root / "images")
    masks(root / "masks", [f"{name}_{kind}.png" for name in "abc" for kind in ("color", "labels")])


def two_folders_of_images(root: Path) -> None:
    photos(root / "image")
    photos(root / "images", ("d.jpg",))
    masks(root / "label")


def cityscapes(root: Path) -> None:
    for split, city in (("train", "aachen"), ("val", "lindau")):
        photos(root / f"leftImg8bit/{split}/{city}", [f"{city}_{k}_leftImg8bit.png" for k in range(3)])
        masks(
            root / f"gtFine/{split}/{city}",
            [f"{city}_{k}_gtFine_{kind}.png" for k in range(3) for kind in ("color", "instanceIds", "labelIds")],
        )
        put(root / f"gtFine/{split}/{city}/{city}_0_gtFine_polygons.json", "{}")


def voc_devkit(root: Path) -> None:
    voc(root / "VOCdevkit/VOC2007")
    two_kinds(root / "VOCdevkit/VOC2012")
    put(root / "VOCdevkit/VOC2012/ImageSets/Main/train.txt", "a\nb\n")
    put(root / "VOCdevkit/VOC2012/ImageSets/Main/cat_train.txt", "a -1\nb 1\n")
    for split in ("train", "val"):
        put(root / f"VOCdevkit/VOC2012/ImageSets/Segmentation/{split}.txt", "c\n")


def ilsvrc(root: Path) -> None:
    ilsvrc_of_one_split(root)
    photos(root / "ILSVRC/Data/CLS-LOC/val", ("ILSVRC2012_val_00000001.jpg",))
    put(root / "LOC_val_solution.csv", "ImageId,PredictionString\nILSVRC2012_val_00000001,n01440764 1 2 3 4\n")


def classes_and_validation(root: Path) -> None:
    photos(root / "train2/cat")
    photos(root / "train2/dog")
    photos(root / "val2")


def coco_without_its_files(root: Path) -> None:
    photos(root / "images", ("x.jpg",))
    coco(root / "annotations.json")


_VOC = "{{root}}/VOCdevkit/VOC{0}/JPEGImages --annotations {{root}}/VOCdevkit/VOC{0}/Annotations"
_VOC_MASKS = "--pair images={root}/VOCdevkit/VOC2012/JPEGImages masks={root}/VOCdevkit/VOC2012/SegmentationClass"
AMBIGUOUS: dict[str, tuple[Make, list[str]]] = {
    "COCO": (
        coco_splits,
        [f"{{root}}/{s} --annotations {{root}}/annotations/instances_{s}.json" for s in ("train2017", "val2017")],
    ),
    "COCO by split": (
        coco_by_split,
        [f"{{root}}/images/{s} --annotations {{root}}/annotations/{s}.json" for s in ("train", "val")],
    ),
    "YOLO": (
        yolo_splits,
        [f"{{root}}/images/{split} --annotations {{root}}/labels/{split}" for split in ("train", "val")],
    ),
    "YOLO in splits": (
        yolo_in_splits,
        [f"{{root}}/{split}/images --annotations {{root}}/{split}/labels" for split in ("train", "valid")],
    ),
    "masks": (
        mask_splits,
        [f"--pair images={{root}}/images/{s} masks={{root}}/annotations/{s}" for s in ("train", "val")],
    ),
    "VOC": (
        two_kinds,
        [
            "{root}/JPEGImages --annotations {root}/Annotations",
            "--pair images={root}/JPEGImages masks={root}/SegmentationClass",
        ],
    ),
    "splits": (class_splits, ["{root}/train", "{root}/val"]),
    "rarer splits": (rarer_splits, ["{root}/trainval", "{root}/test", "{root}/unlabeled"]),
    "splits by words": (splits_by_words, ["{root}/train_images", "{root}/test-images"]),
    "metadata": (metadata_splits, ["{root}/train/metadata.csv", "{root}/test/metadata.csv"]),
    "Parquet": (table_splits, ["'{root}/data/train-*.parquet'", "'{root}/data/test-*.parquet'"]),
    "tars": (tar_splits, ["'{root}/train-*.tar'", "{root}/val-0.tar"]),
    "Kaggle": (kaggle_with_test, ["{root}/train.csv", "{root}/sample_submission.csv"]),
    "classes and a table": (classes_and_a_table, ["{root}/list.csv", "{root} --class-folders"]),
    "masks by another name": (
        masks_by_another_name,
        ["{root}/img", "--pair 'images={root}/img/*.jpg' 'masks={root}/truth/*_t.png'"],
    ),
    "masks of MMSegmentation": (
        masks_of_mmsegmentation,
        [f"--pair images={{root}}/img_dir/{s} masks={{root}}/ann_dir/{s}" for s in ("train", "val")],
    ),
    "two kinds of masks": (
        two_kinds_of_masks,
        [f"--pair 'images={{root}}/images/*.jpg' 'masks={{root}}/masks/*_{s}.png'" for s in ("color", "labels")],
    ),
    "two folders of images": (
        two_folders_of_images,
        [
            "{root}/image",
            "{root}/images",
            "--pair images={root}/image masks={root}/label",
            "--pair images={root}/images masks={root}/label",
        ],
    ),
    "Cityscapes": (
        cityscapes,
        [
            f"--pair 'images={{root}}/leftImg8bit/{s}/*_leftImg8bit.png' "
            f"'masks={{root}}/gtFine/{s}/*_gtFine_labelIds.png'"
            for s in ("train", "val")
        ],
    ),
    "VOCdevkit": (
        voc_devkit,
        [
            f"{_VOC.format(2012)} --names {{root}}/VOCdevkit/VOC2012/ImageSets/Main/train.txt",
            f"{_VOC_MASKS} --names {{root}}/VOCdevkit/VOC2012/ImageSets/Segmentation/train.txt",
            _VOC.format(2007),
            _VOC.format(2012),
            f"{_VOC_MASKS} --names {{root}}/VOCdevkit/VOC2012/ImageSets/Segmentation/val.txt",
        ],
    ),
    "ILSVRC": (ilsvrc, ["{root}/ILSVRC/Data/CLS-LOC/train", "{root}/ILSVRC/Data/CLS-LOC/val --no-labels"]),
    "classes and validation": (classes_and_validation, ["{root}/train2", "{root}/val2 --no-labels"]),
    "COCO without its files": (
        coco_without_its_files,
        ["{root}/images", "{root}/images --annotations {root}/annotations.json"],
    ),
    "masks elsewhere": (masks_elsewhere, ["{root}/images", "--pair images={root}/images masks={root}/masks"]),
}


@pytest.mark.parametrize("layout", list(AMBIGUOUS))
def test_another_layout_ends_with_the_commands_to_choose_from(
    layout: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make, options = AMBIGUOUS[layout]
    root = tmp_path / "set"
    make(root)
    before = sorted(tmp_path.rglob("*"))
    assert main(["shard", str(root)]) == 1
    first, *lines = capsys.readouterr().err.splitlines()
    assert first.startswith(f"feeder: {root}: may be read in several ways (")
    assert sorted(tmp_path.rglob("*")) == before

    commands = [line.strip() for line in lines if not line.endswith(f"feeder shard {root} --class-folders")]
    assert [command.partition(" --out ")[0] for command in commands] == [
        f"feeder shard {each.format(root=root)}" for each in options
    ]
    expected_bad = layout in ("masks elsewhere", "two folders of images", "COCO without its files")
    outs = []
    for command in commands:
        program, *arguments = shlex.split(command)
        assert program == "feeder"
        outs.append(Path(arguments[-1]))
        assert main(arguments) in ((0, 1, 3) if expected_bad else (0,))
    assert len(set(outs)) == len(outs)
    assert [out.parent for out in outs] == [tmp_path] * len(outs)  # not in the source, which would find it again


_CITIES = "--pair 'images={root}/leftImg8bit/train/*_leftImg8bit.png' 'masks={root}/gtFine/train/*_gtFine_labelIds.png'"


@pytest.mark.parametrize(
    ("make", "part", "options"),
    [
        (cityscapes, "leftImg8bit/train", [_CITIES, "{root}/leftImg8bit/train --no-labels"]),
        (cityscapes, "leftImg8bit", [_CITIES, _CITIES.replace("/train/", "/val/")]),
        (cityscapes, "gtFine", [_CITIES, _CITIES.replace("/train/", "/val/")]),
        (ilsvrc, "ILSVRC/Data/CLS-LOC/val", ["{root}/ILSVRC/Data/CLS-LOC/val --no-labels"]),
        (classes_and_validation, "val2", ["{root}/val2 --no-labels"]),
    ],
)
def test_a_part_whose_labels_or_masks_lie_elsewhere_ends_with_the_commands(
    make: Make, part: str, options: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "set"
    make(root)
    for name in ("train", "val"):
        if make is cityscapes:
            photos(root / f"leftImg8bit/{name}/ulm", ["ulm_leftImg8bit.png"])
            masks(root / f"gtFine/{name}/ulm", ["ulm_gtFine_labelIds.png"])
    assert main(["shard", str(root / part)]) == 1

    first, *lines = capsys.readouterr().err.splitlines()
    assert first.startswith(f"feeder: {root / part}: ")
    commands = [line.strip() for line in lines if not line.endswith(" --class-folders")]
    assert [command.partition(" --out ")[0] for command in commands] == [
        f"feeder shard {each.format(root=root)}" for each in options
    ]
    assert len({shlex.split(command)[-1] for command in commands}) == len(commands)
    for command in commands:
        assert main(shlex.split(command)[1:]) == 0
        assert all(label == -1 for *_, label in samples_of(Path(shlex.split(command)[-1])))


def test_validation_images_one_folder_down_may_go_without_labels(tmp_path: Path) -> None:
    photos(tmp_path / "set/val", ("ILSVRC2012_val_00000001.jpg",))
    assert main(["shard", str(tmp_path / "set")]) == 1
    assert main(["shard", str(tmp_path / "set"), "--no-labels"]) == 0
    assert [label for _, _, label in samples_of(tmp_path / "set-shards")] == [-1]


def test_masks_of_cityscapes_are_no_images(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = tmp_path / "set"
    cityscapes(root)
    assert main(["shard", str(root / "gtFine/train"), "--out", str(tmp_path / "out")]) == 0
    assert capsys.readouterr().err.splitlines()[0].endswith(f"as by: feeder shard {_CITIES.format(root=root)}")
    assert len(samples_of(tmp_path / "out")) == 3


def test_a_folder_without_labels_has_all_images_below_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    photos(tmp_path / "set", ("a.jpg",))
    photos(tmp_path / "set/train/cat", ("b.jpg",))
    put(tmp_path / "set/train/cat/b.txt", "a cat")
    photos(tmp_path / "set/val", ("c.jpg",))
    assert main(["shard", str(tmp_path / "set/val"), "--no-labels", "--out", str(tmp_path / "val")]) == 0
    assert main(["shard", str(tmp_path / "set"), "--no-labels", "--class-folders"]) == 0
    assert "3 samples (flat folder, no labels)" in capsys.readouterr().out
    out = tmp_path / "set-shards"
    assert sorted((path, label) for path, _, label in samples_of(out)) == [
        ("a.jpg", -1),
        ("train/cat/b.jpg", -1),
        ("val/c.jpg", -1),
    ]
    assert feeder.ShardDataset(out).classes is None
    assert member(out, "train/cat/b.jpg", "txt") == b"a cat"
    assert bad(out) == {}


def test_the_choice_for_an_append_is_of_commands_that_append(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    photos(tmp_path / "first/cat")
    out = tmp_path / "the set"
    assert main(["shard", str(tmp_path / "first"), "--out", str(out)]) == 0
    class_splits(tmp_path / "more")
    photos(tmp_path / "table/x")
    photos(tmp_path / "table/y")
    put(tmp_path / "table/list.csv", "image\na.jpg\nb.jpg\n")

    for source in (tmp_path / "table/list.csv", tmp_path / "more"):
        capsys.readouterr()
        assert main(["append", str(out), str(source)]) == 1
        _, *commands = capsys.readouterr().err.splitlines()
        assert len(commands) >= 2
        for command in commands:
            program, verb, place, *_ = shlex.split(command, comments=False)
            assert (program, verb, place) == ("feeder", "append", str(out))
            assert "--out" not in command
            assert "#" not in command
    program, *arguments = shlex.split(commands[0])
    assert main(arguments) == 0


def test_a_dry_run_says_how_a_folder_would_be_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    yolo(tmp_path / "set")
    assert main(["shard", str(tmp_path / "set"), "--dry-run"]) == 0
    dry = capsys.readouterr()
    assert f": images and YOLO's boxes, as by: feeder shard {tmp_path}/set/images" in dry.err
    assert main(["shard", str(tmp_path / "set")]) == 0
    assert capsys.readouterr().err.startswith(dry.err)
    assert main(["shard", str(tmp_path / "set"), "--dry-run", "--quiet", "--out", str(tmp_path / "out")]) == 0
    assert capsys.readouterr().err == ""


def test_folders_of_any_name_may_be_classes(tmp_path: Path) -> None:
    for make in (class_splits, pairs, coco_splits):
        root = tmp_path / make.__name__
        make(root)
        assert main(["shard", str(root), "--class-folders"]) == 0
        assert feeder.ShardDataset(f"{root}-shards").classes == sorted(path.name for path in root.iterdir())
    photos(tmp_path / "vehicles/train")
    photos(tmp_path / "vehicles/car")
    assert main(["shard", str(tmp_path / "vehicles")]) == 0
    assert feeder.ShardDataset(tmp_path / "vehicles-shards").classes == ["car", "train"]


def test_sets_in_a_folder_are_no_part_of_it(tmp_path: Path) -> None:
    root = tmp_path / "set"
    tar(root / "a.tar")
    class_splits(root / "splits")
    assert main(["shard", str(root / "a.tar")]) == 0
    assert is_shard_set(str(root / "a-shards"))
    for split in ("train", "val"):
        assert main(["shard", str(root / "splits" / split)]) == 0
    with pytest.raises(feeder.SourceError) as caught:
        shard(str(root / "splits"))
    assert "train-shards/" not in str(caught.value)
    shutil.rmtree(root / "splits")
    assert main(["shard", str(root)]) == 0
    assert len(samples_of(tmp_path / "set-shards")) == 1


def test_yolos_boxes_are_pixels_of_the_upright_image(tmp_path: Path) -> None:
    yolo(tmp_path / "set")
    exif = Image.Exif()
    exif[0x0112] = 6
    put(tmp_path / "set/images/b.jpg", encode(pixels(1, 24, 16), "JPEG", exif=exif))
    assert main(["shard", str(tmp_path / "set")]) == 0
    out = tmp_path / "set-shards"
    found = {path: json.loads(member(out, path, "boxes.json") or b"") for path, *_ in samples_of(out)}
    assert found == {
        "a.jpg": {"boxes": [[9.0, 4.0, 15.0, 12.0]], "labels": [1]},
        "b.jpg": {"boxes": [[6.0, 6.0, 10.0, 18.0]], "labels": [1]},
        "c.jpg": {"boxes": [], "labels": []},
    }
    assert feeder.ShardDataset(out).classes == ["cat", "dog"]
    targets = {"boxes.json": T.BoundingBoxes(canvas="upright")}
    _, _, boxes = feeder.ShardDataset(out, T.Resize((8, 8)), targets=targets)[0]
    assert set(boxes) == {"boxes", "labels"}


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("2 0.5 0.5 0.2 0.2", "a.txt, line 2: class 2, of 2 classes"),
        (
            "0 0.1 0.1 0.5 0.1 0.5 0.5",
            "a.txt, line 2: 7 values, of a polygon or key points: only boxes are read, of 5 values",
        ),
        ("0 12 8 4 4", "a.txt, line 2: expected class x y width height, all but the class from 0 to 1, got 0 12 8 4 4"),
        (
            "cat 0.5 0.5 0.2 0.2",
            "a.txt, line 2: expected class x y width height, all but the class from 0 to 1, got cat 0.5 0.5 0.2 0.2",
        ),
        (
            "0 nan 0.5 0.2 0.2",
            "a.txt, line 2: expected class x y width height, all but the class from 0 to 1, got 0 nan 0.5 0.2 0.2",
        ),
    ],
)
def test_a_line_that_is_no_box_of_yolo_rejects_its_image(line: str, reason: str, tmp_path: Path) -> None:
    yolo(tmp_path / "set")
    put(tmp_path / "set/labels/a.txt", f"0 0.5 0.5 0.5 0.5\n{line}\n")
    assert main(["shard", str(tmp_path / "set"), "--max-bad", "1"]) == 0
    assert bad(tmp_path / "set-shards") == {"a.jpg": reason}


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("names: [cat, 'a dog', \"it's\"]  # three", ["cat", "a dog", "it's"]),
        ("nc: 2\nnames:\n- cat\n- a dog # two\ntrain: x", ["cat", "a dog"]),
        ("names:  # by number\n  0: cat\n  # more\n  1: 'b: c'\n", ["cat", "b: c"]),
        ("names: {0: cat, 1: dog}", ["cat", "dog"]),
        ("train: names", None),
        ("names: ['a, b', c]", "quote it"),
        ("names:\n  1: cat\n  2: dog\n", "number them from 0 on"),
    ],
)
def test_the_names_of_yolos_classes_come_from_data_yaml(
    text: str, names: list[str] | str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    yolo(tmp_path / "set")
    (tmp_path / "set/labels/classes.txt").unlink()
    put(tmp_path / "set/labels/a.txt", "")
    put(tmp_path / "set/labels/b.txt", "0 0.5 0.5 0.5 0.5\n")
    put(tmp_path / "set/data.yaml", text)
    code = main(["shard", str(tmp_path / "set")])
    if isinstance(names, str):
        assert code == 1
        assert names in capsys.readouterr().err
    else:
        assert code == 0
        assert feeder.ShardDataset(tmp_path / "set-shards").classes == names


@pytest.mark.parametrize("place", ["obj.names", "coco.names", "obj/_darknet.labels", "obj/classes.txt"])
def test_the_names_of_yolos_classes_come_from_a_list(place: str, tmp_path: Path) -> None:
    darknet(tmp_path / "set")
    (tmp_path / "set/obj.names").rename(tmp_path / "set" / place)
    assert main(["shard", str(tmp_path / "set")]) == 0
    assert feeder.ShardDataset(tmp_path / "set-shards").classes == ["cat", "dog"]
    assert bad(tmp_path / "set-shards") == {}


def test_text_beside_images_that_has_no_boxes_is_their_caption(tmp_path: Path) -> None:
    photos(tmp_path / "set")
    for name in "abc":
        put(tmp_path / f"set/{name}.txt", "3 cats on 1 mat\n")
    assert main(["shard", str(tmp_path / "set")]) == 0
    assert {member(tmp_path / "set-shards", f"{name}.jpg", "txt") for name in "abc"} == {b"3 cats on 1 mat\n"}


def test_classes_of_hugging_face_have_their_names(tmp_path: Path) -> None:
    tables_of_one_split(tmp_path / "set")
    assert (
        main(
            ["shard", str(tmp_path / "set/data/train-{00000..00002}-of-00003.parquet"), "--out", str(tmp_path / "out")]
        )
        == 0
    )
    dataset = feeder.ShardDataset(tmp_path / "out", fields=["row", "path"])
    assert dataset.classes == ["cat", "dog"]
    assert sorted((row, path) for *_, row, path in (dataset[i] for i in range(6)))[-1] == (
        5,
        "train-00002-of-00003.parquet#3/2.jpg",
    )
    table(tmp_path / "bad.parquet", [{**rows(1)[0], "label": 2}])
    with pytest.raises(feeder.SourceError, match="column 'label' holds the class 2, of 2 classes"):
        shard(str(tmp_path / "bad.parquet"))


def test_a_table_without_a_column_of_labels_says_which_may_be_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    photos(tmp_path / "images")
    put(tmp_path / "list.csv", "id_code,diagnosis\n" + "".join(f"{name},{k}\n" for k, name in enumerate("abc")))
    put(tmp_path / "names.csv", "id_code\na\nb\n")
    assert main(["shard", str(tmp_path / "list.csv")]) == 0
    asked = "no labels: --label-column names a column for them"
    assert f"{asked}, such as diagnosis\n" in capsys.readouterr().err
    assert main(["shard", str(tmp_path / "names.csv")]) == 0
    assert f"{asked}\n" in capsys.readouterr().err
    assert (
        main(["shard", str(tmp_path / "list.csv"), "--out", str(tmp_path / "out"), "--label-column", "diagnosis"]) == 0
    )
    assert {label for *_, label in samples_of(tmp_path / "out")} == {0, 1, 2}


def test_the_images_of_a_table_are_found_by_its_values(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for suffix in ("", ".png"):
        photos(tmp_path / "images", [f"{name}{suffix or '.jpg'}" for name in "abc"])
    put(tmp_path / "list.csv", "nr\tid\tcaption\n" + "".join(f"{k}\t{n}\ta, b\n" for k, n in enumerate("abc")))
    assert main(["shard", str(tmp_path / "list.csv"), "--suffix", ".png"]) == 0
    assert sorted(path for path, *_ in samples_of(tmp_path / "list-shards")) == ["a.png", "b.png", "c.png"]
    assert "images from column 'id' (images/*.png)" in capsys.readouterr().err
    photos(tmp_path / "more")
    assert main(["shard", str(tmp_path / "list.csv"), "--out", str(tmp_path / "out")]) == 1
    _, *commands = capsys.readouterr().err.splitlines()
    for number, command in enumerate(commands):
        assert main([*shlex.split(command)[1:], "--out", str(tmp_path / f"out{number}")]) == 0
    assert len(commands) == 2


def test_files_that_are_no_images_say_what_they_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    photos(tmp_path / "set")
    put(tmp_path / "set/x.heic", b"\0\0\0\x18ftypheic\0\0\0\0mif1heic" + bytes(100))
    put(tmp_path / "set/._a.jpg", b"\0\5\x16\7")
    assert main(["shard", str(tmp_path / "set"), "--max-bad", "1"]) == 0
    assert bad(tmp_path / "set-shards") == {"x.heic": "is HEIC, which feeder does not decode: convert it to JPEG"}
    assert "1 image rejected: is HEIC" in capsys.readouterr().err
    (tmp_path / "zips").mkdir()
    with zipfile.ZipFile(tmp_path / "zips/train.zip", "w") as file:
        file.writestr("a.jpg", encode(pixels(0)))
    for source in ("zips", "zips/train.zip"):
        assert main(["shard", str(tmp_path / source)]) == 1
        assert "unzip it first" in capsys.readouterr().err
