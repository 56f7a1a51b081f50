from __future__ import annotations

import json
import math
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader as TorchLoader
from torch.utils.data import Subset

from feeder import DataLoader, FolderDataset, ShardDataset
from feeder.dataset.dataset_shards import write_shards
from feeder.errors import ArgumentError, FormatError, SourceError
from feeder.shard.format.index_file import INDEX_NAME
from feeder.shard.source.labels import LabelColumn
from feeder.shard.source.table_file import ManifestColumns
from feeder.shard.write.encode import EncodeOptions
from feeder.shard.write.index_tars import index_tars
from feeder.shard.write.shard_options import ShardOptions
from feeder.shard.write.sharding import shard
from feeder.tools.cli import main
from feeder.tools.set_report import inspect, render
from feeder.transforms import CutMix, MixUp, RandomResizedCrop
from tests.support.images import make_tree
from tests.support.loader_data import encode
from tests.support.shard_sets import set_classes, write_tar

COUNT = 20


def target_set(folder: Path, names: tuple[str, ...]) -> Path:
    """A set of ``COUNT`` samples whose targets are i / 8 and -i, by the row i of the table."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = ["path,x,y"]
    for i in range(COUNT):
        (folder / f"{i}.png").write_bytes(encode(i))
        lines.append(f"{i}.png,{i / 8},{-i}")
    (folder / "list.csv").write_text("\n".join(lines))
    options = ShardOptions(encode=EncodeOptions("keep"), columns=ManifestColumns(targets=names), samples_per_shard=7)
    shard(str(folder / "list.csv"), str(folder / "set"), options)
    return folder / "set"


def expected(rows: Any, names: tuple[str, ...]) -> torch.Tensor:
    columns = {"x": torch.as_tensor(rows) / 8, "y": -torch.as_tensor(rows).float()}
    found = torch.stack([columns[name] for name in names], 1).float()
    return found[:, 0] if len(names) == 1 else found


def unlabelled(folder: Path, texts: list[bytes], extra: dict[str, bytes] | None = None) -> Path:
    """An index of one tar with these ``cls`` fields and the label -1 for each."""
    fields: dict[str, Callable[[int], bytes]] = {"png": encode, "cls": lambda i: texts[i]}
    fields |= {name: lambda i, data=data: data for name, data in (extra or {}).items()}  # type: ignore[misc]
    members = [(f"{i}.{name}", data(i)) for i in range(len(texts)) for name, data in fields.items()]
    folder.mkdir(parents=True, exist_ok=True)
    write_tar(folder / "t.tar", members)
    index_tars(str(folder / "t.tar"), columns=ManifestColumns(has_labels=False))
    return folder


@pytest.mark.pairwise
@pytest.mark.parametrize("names", [("x",), ("x", "y")])
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"device": "cpu"},
        {"on_error": "skip", "memory_format": torch.channels_last},
        {"backend": "dali"},
    ],
)
def test_targets_are_float32_labels_on_the_fast_path(
    tmp_path: Path, names: tuple[str, ...], workers: int, options: dict[str, Any]
) -> None:
    if options.get("backend") == "dali":
        pytest.importorskip("nvidia.dali", reason="DALI is not installed")
    dataset = ShardDataset(target_set(tmp_path, names), RandomResizedCrop(8), fields=["row"])
    part = Subset(dataset, [3, 19, 7, 3])
    for samples, count in ((dataset, COUNT), (part, 4)):
        loader = DataLoader(samples, 3, shuffle=True, num_workers=workers, **options)
        seen = 0
        for _, labels, rows in loader:
            assert labels.dtype == torch.float32
            assert torch.equal(labels, expected(rows, names))
            seen += len(rows)
        assert seen == count


@pytest.mark.parametrize("names", [("x",), ("x", "y")])
@pytest.mark.parametrize("collate", [None, "own"])
@pytest.mark.filterwarnings("ignore:this loader runs torch's path")
def test_targets_are_float32_labels_elsewhere_too(tmp_path: Path, names: tuple[str, ...], collate: str | None) -> None:
    dataset = ShardDataset(target_set(tmp_path, names), RandomResizedCrop(8), fields=["row"])
    function = None if collate is None else (lambda samples: torch.utils.data.default_collate(samples))
    for loader in (TorchLoader(dataset, 6, collate_fn=function), DataLoader(dataset, 6, collate_fn=function)):
        for _, labels, rows in loader:
            assert labels.dtype == torch.float32
            assert torch.equal(labels, expected(rows, names))
    _, label, row = dataset[4]
    assert torch.equal(label, expected([row], names)[0])
    assert dataset.targets[4] == label.tolist()
    assert dataset.classes is None


def test_states_fit_only_the_same_targets(tmp_path: Path) -> None:
    one, two = (ShardDataset(target_set(tmp_path / name, (name,)), RandomResizedCrop(8)) for name in "xy")
    loader = DataLoader(one, 4, shuffle=True)
    whole = [labels for _, labels in loader]
    next(iter(loader))
    state = loader.state_dict()
    again = DataLoader(pickle.loads(pickle.dumps(one)), 4, shuffle=True)
    again.load_state_dict(state)
    assert len(list(again)) == len(whole) - 1
    with pytest.raises(ArgumentError, match="fingerprint"):
        DataLoader(two, 4, shuffle=True).load_state_dict(state)
    turned = ShardDataset(tmp_path / "x/set", RandomResizedCrop(8), target_transform=lambda value: -value)
    with pytest.raises(ArgumentError, match="fingerprint"):
        DataLoader(turned, 4, shuffle=True).load_state_dict(state)


@pytest.mark.parametrize("op", [MixUp, CutMix])
def test_mixing_by_class_refuses_labels_that_are_no_classes(tmp_path: Path, op: type[MixUp | CutMix]) -> None:
    targets = ShardDataset(target_set(tmp_path / "t", ("x", "y")), RandomResizedCrop(8))
    with pytest.raises(
        ArgumentError, match=f"{op.__name__}.num_classes=3. mixes class labels, but those .* are float32"
    ):
        DataLoader(targets, 4, mix=op(num_classes=3))
    _, (own, others, weight) = next(iter(DataLoader(targets, 4, mix=op())))
    assert torch.equal(own.roll(1, 0), others)
    assert 0 <= weight <= 1
    write_shards([{"png": encode(i)} for i in range(4)], tmp_path / "none")
    with pytest.raises(ArgumentError, match=r"no sample of .* has a label"):
        DataLoader(ShardDataset(tmp_path / "none", RandomResizedCrop(8)), 4, mix=op(num_classes=3))


def test_cls_fields_without_a_label_are_no_dataset_without_labels(tmp_path: Path) -> None:
    rows = {"json": b'{"kind": {"name": "x"}, "age": 0.5, "many": [1]}'}
    path = unlabelled(tmp_path / "text", [b"dog", b"cat", b"dog", b"-1"], rows)
    with pytest.raises(ArgumentError, match=r"such as b'dog'.*classes=\[\.\.\.\].*labels='key'.*labels=False"):
        ShardDataset(path)
    assert ShardDataset(path, classes=["cow", "dog", "cat"]).targets == [1, 2, 1, -1]
    with pytest.raises(ArgumentError, match=r"holds the class 'cat', which is not in the list of 1 class: 'dog'$"):
        ShardDataset(path, classes=["dog"])
    binary = unlabelled(tmp_path / "binary", [b"\xff", b"x" * 300], {})
    with pytest.raises(ArgumentError, match=r"no sample has a label.*if they are class names"):
        ShardDataset(binary, classes=["dog"])
    without = ShardDataset(path, labels=False)
    assert (without.targets, without.classes, without[0][1]) == ([-1] * 4, None, -1)
    with pytest.raises(ArgumentError, match="labels=False asks for none"):
        ShardDataset(path, labels=False, classes=["dog"])
    assert ShardDataset(path, labels="age").targets == [0.5] * 4
    with pytest.raises(ArgumentError, match=r"no sample's json has 'ages'; the first have age, kind, many"):
        ShardDataset(path, labels="ages")
    for wrong in ("kind", "many"):
        with pytest.raises(ArgumentError, match="labels are numbers or class names"):
            ShardDataset(path, labels=wrong)
    no_keys: tuple[Any, ...] = ([], 3, None, [1])
    for labels in no_keys:
        with pytest.raises(ArgumentError, match="labels must be True, False, or keys"):
            ShardDataset(path, labels=labels)
    assert ShardDataset(unlabelled(tmp_path / "none", [b"-1", b""])).targets == [-1, -1]


def test_an_odd_label_among_numbers_is_named_where_no_sample_can_be_left_out(tmp_path: Path) -> None:
    texts: list[Any] = [*range(24), "1x"]
    samples = [{"png": encode(i), "cls": text, "json": {"k": text}} for i, text in enumerate(texts)]
    with pytest.raises(SourceError, match=r"'cls' holds '1x', 1 label of 25; the others are numbers.*classes=\["):
        write_shards(samples, tmp_path / "refused")
    names = list(map(str, texts))
    write_shards(samples, tmp_path / "set", classes=names, shuffle=False)
    assert ShardDataset(tmp_path / "set").targets == list(range(25))
    with pytest.raises(ArgumentError, match=r"labels='k' holds '1x', 1 label of 25; the others are numbers"):
        ShardDataset(tmp_path / "set", labels="k")
    assert ShardDataset(tmp_path / "set", labels="k", classes=names[::-1]).targets == list(range(24, -1, -1))
    path = unlabelled(tmp_path / "text", [text.encode() for text in names[:20]] + [b"1x"])
    with pytest.raises(ArgumentError, match="the cls field holds '1x'"):
        ShardDataset(path, classes=names[:20])


def test_classes_fit_the_numbers_of_cls_fields(tmp_path: Path) -> None:
    path = unlabelled(tmp_path / "numbers", [b"5", b"1"])
    with pytest.raises(ArgumentError, match="classes= has 2 names, but there is a label 5"):
        ShardDataset(path, classes=["a", "b"])
    with pytest.raises(ArgumentError, match="cls fields hold other numbers"):
        ShardDataset(unlabelled(tmp_path / "other", [b"0.5", b"1"]), classes=["a", "b"])


def test_labels_come_from_json(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [{"kind": "dog", "n": 3, "x": 1.5}, {"kind": "cat", "n": 0}, {"n": None, "x": 2}]
    samples = [{"png": encode(i), "cls": 7, "json": row} for i, row in enumerate(rows)]
    write_shards(samples, tmp_path / "set", shuffle=False)

    def read(labels: Any, **options: Any) -> ShardDataset:
        return ShardDataset(tmp_path / "set", labels=labels, **options)

    assert ShardDataset(tmp_path / "set").targets == [7, 7, 7]
    assert (read("kind").targets, read("kind").classes) == ([1, 0, -1], ["cat", "dog"])
    assert read("kind", classes=["dog", "cat"]).targets == [0, 1, -1]
    assert (read("n").targets, read("n").classes) == ([3, 0, -1], None)
    assert read("n", classes=["a", "b", "c", "d"]).classes == ["a", "b", "c", "d"]
    with pytest.raises(ArgumentError, match="classes= has 2 names, but there is a label 3"):
        read("n", classes=["a", "b"])
    found = read(["x", "n"])
    assert np.array_equal(found.targets, [[1.5, 3], [math.nan, 0], [2, math.nan]], equal_nan=True)
    assert found[0][1].tolist() == [1.5, 3]
    unpickled = pickle.loads(pickle.dumps(found))
    assert np.array_equal(unpickled.targets, found.targets, equal_nan=True)


def test_classes_number_labels_by_name(tmp_path: Path) -> None:
    images = make_tree(tmp_path / "images", 3, 2)
    shard(str(images), str(tmp_path / "set"))
    names = ["class-2", "more", "class-0", "class-1"]
    for dataset in (
        FolderDataset(images, classes=names),
        ShardDataset(tmp_path / "set", classes=names, fields=["path"]),
    ):
        assert dataset.classes == names
        assert dataset.class_to_idx == {name: label for label, name in enumerate(names)}
        paths = dataset.column("path")
        assert [names[label] for label in dataset.targets] == [Path(path).parent.name for path in paths]
        with pytest.raises(ArgumentError, match="classes= lacks 'class-0' and 1 more, of which there are samples"):
            type(dataset)(dataset_path(dataset), classes=["class-1"])
        for wrong in ("class-0", ["class-0", 1]):
            with pytest.raises(ArgumentError, match="must be a sequence of names"):
                type(dataset)(dataset_path(dataset), classes=wrong)  # type: ignore[arg-type]
    packed = pickle.dumps(ShardDataset(tmp_path / "set", classes=[f"class-{k}" for k in range(3)]))
    assert len(packed) < 2000


def test_many_different_labels_are_targets_or_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("feeder.shard.source.labels.MAX_CLASSES", 3)
    column = LabelColumn("the table", "name another column")
    for number in (0.5, 1, 2, 3.25, 4):
        column.add(number)
    targets = column.finish().targets
    assert targets is not None
    assert targets.tolist() == [0.5, 1, 2, 3.25, 4]
    for values in (["a", "b", "c", "d"], [1, 2, 3, 4]):
        column = LabelColumn("the table", "name another column")
        with pytest.raises(SourceError, match="the table holds more than 3 different labels: name another column"):
            list(map(column.add, values))


def test_a_few_names_among_numbers_are_odd_and_many_are_classes() -> None:
    def finished(values: list[Any]) -> tuple[Any, ...]:
        column = LabelColumn("the table", "name another column")
        codes = [column.add(value) for value in values]
        found = column.finish()
        labels = found.targets if found.labels is None else np.append(found.labels, -1)[codes]
        assert labels is not None
        return labels.tolist(), found.classes, list(found.odd.values()), found.missing

    numbers: list[Any] = [0, 1] * 10
    assert finished([*numbers, "a"]) == ([*numbers, -1], None, ["a"], 0)
    assert finished([*numbers, "a", "b"]) == ([*numbers, 2, 3], ["0", "1", "a", "b"], [], 0)
    assert finished([*numbers[:18], "a", "", None]) == ([*numbers[:18], 2, -1, -1], ["0", "1", "a"], [], 2)
    halves = [number / 2 for number in numbers]
    targets, classes, odd, missing = finished([*halves, "a", None])
    assert np.array_equal(targets, [*halves, math.nan, math.nan], equal_nan=True)
    assert (classes, odd, missing) == (None, ["a"], 1)
    assert finished([*[-1] * 20, "a"]) == ([*[-1] * 20, 0], ["a"], [], 20)  # as with as many empty ones


def test_a_label_without_a_name_is_refused(tmp_path: Path) -> None:
    write_shards([{"png": encode(i), "cls": i} for i in range(3)], tmp_path, classes=["a", "b", "c"])
    set_classes(tmp_path / INDEX_NAME, ["a", "b"])
    with pytest.raises(ArgumentError, match="has a label 2, but names of 2 classes only"):
        ShardDataset(tmp_path, classes=["b", "a"])


def dataset_path(dataset: FolderDataset | ShardDataset) -> str:
    return dataset.reader.place


def as_one_hot(label: int) -> list[float]:
    return [float(k == label) for k in range(3)]


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({0: 5, 1: 5, 2: 0}, [5, 5, 5, 5, 0, 0, -1]),
        (lambda label: label >= 1, [0, 0, 1, 1, 1, 1, -1]),
        (lambda label: label / 2, [0, 0, 0.5, 0.5, 1, 1, math.nan]),
        (as_one_hot, [[1, 0, 0]] * 2 + [[0, 1, 0]] * 2 + [[0, 0, 1]] * 2 + [[math.nan] * 3]),
    ],
)
@pytest.mark.parametrize("workers", [0, 1])
def test_a_target_transform_makes_the_labels_of_every_path(
    tmp_path: Path, change: Any, found: list[Any], workers: int
) -> None:
    samples = [{"png": encode(i), "cls": label} for i, label in enumerate([0, 0, 1, 1, 2, 2, -1])]
    write_shards(samples, tmp_path / "set", shuffle=False)
    dataset = ShardDataset(tmp_path / "set", RandomResizedCrop(8), target_transform=change)
    labels = next(iter(DataLoader(dataset, 7, num_workers=workers)))[1]
    assert np.array_equal(labels, found, equal_nan=True)
    assert np.array_equal(dataset.targets, found, equal_nan=True)
    assert labels.dtype == next(iter(TorchLoader(dataset, 7)))[1].dtype
    assert labels.dtype == (torch.int64 if isinstance(found[-1], int) else torch.float32)


def test_a_target_transform_gives_several_sets_labels_of_one_kind(tmp_path: Path) -> None:
    for name, label in (("a", 0), ("b", 1)):
        write_shards([{"png": encode(label), "cls": label}], tmp_path / name)
    paths = [tmp_path / "a", tmp_path / "b"]
    assert ShardDataset(paths, target_transform=lambda label: 0.5 if label else 2).targets == [2.0, 0.5]
    targets = target_set(tmp_path / "t", ("x",))
    with pytest.raises(ArgumentError, match="join sets with labels of one kind"):
        ShardDataset([tmp_path / "a", targets], target_transform=lambda label: label)


@pytest.mark.parametrize("names", [("x",), ("x", "y")])
def test_sharding_a_set_again_keeps_its_targets(tmp_path: Path, names: tuple[str, ...]) -> None:
    first = target_set(tmp_path, names)
    shard(str(first), str(tmp_path / "again"), ShardOptions(encode=EncodeOptions("keep"), shuffle=False))
    assert ShardDataset(tmp_path / "again").targets == ShardDataset(first).targets


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({0: 1}, "no entry for the label 1"),
        (lambda label: "text", "a number or a row of numbers, got 'text' for label 0|got text for label 0"),
        (lambda label: [[1.0]], "a number or a row of numbers"),
        (lambda label: [1.0] * (label + 1), r"equal shapes for all labels, got \[1\] and \[2\]"),
    ],
)
def test_a_target_transform_that_gives_no_labels_is_refused(tmp_path: Path, change: Any, message: str) -> None:
    images = make_tree(tmp_path / "images", 2, 1)
    with pytest.raises(ArgumentError, match=message):
        FolderDataset(images, target_transform=change)


def test_columns_are_read_without_decoding(tmp_path: Path) -> None:
    samples = []
    for i in range(9):
        image = encode(i, (8 + i, 40), extension="jpg", orientation=6 if i % 2 else 1)
        samples.append({"__key__": f"k{i}", "jpg": image, "cls": i, "json": {"i": i}} | ({"txt": f"t{i}"} if i else {}))
    write_shards(samples, tmp_path / "set", samples_per_shard=4, encode="keep")
    fields = ["index", "width", "height", "orientation", "json", "txt", "path", "key", "cls"]
    dataset = ShardDataset(tmp_path / "set", fields=fields)
    part = Subset(dataset, [5, 2, 2])
    by_sample = [dataset[i] for i in range(9)]
    for number, name in enumerate(fields, 2):
        column = dataset.column(name)
        assert list(column) == [sample[number] for sample in by_sample]
        assert isinstance(column, np.ndarray) == (name in fields[:4])
    for image, _, _, width, height, orientation, extras, *_ in by_sample:
        assert tuple(image.shape[1:]) == (height, width)
        assert orientation == (6 if extras["i"] % 2 else 1)
    ignoring = ShardDataset(tmp_path / "set", exif_orientation="ignore")
    assert set(ignoring.column("width")) == {40}
    assert dataset.column("jpg")[0][:2] == b"\xff\xd8"
    loader = DataLoader(ShardDataset(tmp_path / "set", RandomResizedCrop(8), fields=fields[:4]), 9)
    for values, name in zip(next(iter(loader))[2:], fields, strict=False):
        assert torch.equal(values, torch.from_numpy(dataset.column(name)))
    assert [sample[2] for sample in part] == [5, 2, 2]  # type: ignore[attr-defined]
    for wrong, message in (
        ("depth", "is in no sample of .*; it has cls, height"),
        ("row", "is in no"),
        ("a.pt", "refused"),
    ):
        with pytest.raises(ArgumentError, match=message):
            dataset.column(wrong)


def test_columns_of_folders_come_from_the_files_heads(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a/0.jpg").write_bytes(encode(0, (24, 32), extension="jpg", orientation=6))
    for exif, sides in (("apply", (24, 32)), ("ignore", (32, 24))):
        dataset = FolderDataset(tmp_path, fields=["width", "height", "orientation"], exif_orientation=exif)
        assert dataset[0][2:] == (*sides, 6)
        assert [dataset.column(name).tolist() for name in dataset.fields] == [[side] for side in (*sides, 6)]  # type: ignore[union-attr]
        assert dataset.column("key") == ["a/0.jpg"]
    with pytest.raises(ArgumentError, match="'row' is in no sample"):
        dataset.column("row")


def test_an_index_of_another_image_field_has_targets_rows_and_names(tmp_path: Path) -> None:
    members = []
    for i, (cls, x) in enumerate([("dog", 0.5), ("cat", -1.0)]):
        fields = [("jpg", encode(i, extension="jpg")), ("mask.png", encode(i, (8, 9))), ("cls", cls.encode())]
        members += [(f"{i}.{name}", data) for name, data in [*fields, ("json", json.dumps({"x": x}).encode())]]
    write_tar(tmp_path / "t.tar", members)
    index_tars(str(tmp_path / "t.tar"), columns=ManifestColumns(targets=("x",)))
    out = str(tmp_path / "masks.bin")
    index_tars(str(tmp_path / "t.tar"), out, image_field="mask.png", columns=ManifestColumns(targets=("x",)))
    masks = ShardDataset(out)
    assert (masks.targets, masks[0][0].shape, list(masks.column("height"))) == ([0.5, -1.0], (3, 8, 9), [8, 8])
    assert masks.column("mask.png") == [encode(0, (8, 9)), encode(1, (8, 9))]
    index_tars(str(tmp_path / "t.tar"), out, image_field="mask.png")
    assert ShardDataset(out).classes == ["cat", "dog"]


def test_the_report_shows_targets_and_names(tmp_path: Path) -> None:
    report = inspect(str(target_set(tmp_path / "t", ("x", "y"))))
    assert (report.targets, report.unlabelled, report.classes) == ({"x": (0, 2.375), "y": (-19, 0)}, 0, [])
    assert "targets     x 0 to 2.375, y -19 to 0" in render(report)
    write_tar(tmp_path / "t.tar", [("0.png", encode(0)), ("0.cls", b"cat"), ("1.png", encode(1)), ("1.cls", b"ant")])
    assert inspect(index_tars(str(tmp_path / "t.tar")).path).classes == [("ant", 1), ("cat", 1)]


def test_the_commands_take_columns_for_labels(tmp_path: Path) -> None:
    images = make_tree(tmp_path / "images", 1, 3)
    (tmp_path / "list.csv").write_text("id,label,x,y\nimg-000,a,1,2\nimg-001,b,3,4\n")
    command = ["shard", str(tmp_path / "list.csv"), "--out", str(tmp_path / "set"), "-q", "--suffix", ".jpg"]
    command += ["--image-root", str(images / "class-0"), "--no-shuffle"]
    assert main([*command, "--target-column", "x", "--target-column", "y"]) == 0
    dataset = ShardDataset(tmp_path / "set")
    assert dataset.targets == [[1, 2], [3, 4]]
    assert list(dataset.column("row")) == [0, 1]
    assert main([*command, "--out", str(tmp_path / "none"), "--no-labels"]) == 0
    assert ShardDataset(tmp_path / "none").targets == [-1, -1]
    tar = str(tmp_path / "set/shard-000000.tar")
    assert main(["index", tar, "--out", str(tmp_path / "set/y.bin"), "--label-column", "y", "-q"]) == 0
    assert ShardDataset(tmp_path / "set/y.bin").targets == [2, 4]


def test_a_dataset_says_what_it_is(tmp_path: Path) -> None:
    images = make_tree(tmp_path / "images", 2, 3)
    assert repr(FolderDataset(images)) == f"FolderDataset({str(images)!r}, samples=6, classes=2)"
    text = repr(ShardDataset(target_set(tmp_path / "t", ("x",)), RandomResizedCrop(8), fields=["row"]))
    assert text.startswith(
        f"ShardDataset({str(tmp_path / 't/set' / INDEX_NAME)!r}, samples=20, fields=['row'], transform="
    )
    assert "RandomResizedCrop" in text


def test_a_slice_and_a_wrong_folder_say_what_to_write(tmp_path: Path) -> None:
    dataset = FolderDataset(make_tree(tmp_path / "images", 2, 3))
    with pytest.raises(TypeError, match=r"torch.utils.data.Subset\(dataset, range\(0, 4\)\)"):
        dataset[0:4]
    with pytest.raises(TypeError, match=r"Subset\(dataset, range\(5, -1, -2\)\)"):
        dataset[::-2]
    with pytest.raises(FormatError, match=r"typo: no such folder or index"):
        ShardDataset(tmp_path / "typo")
    (tmp_path / "empty").mkdir()
    with pytest.raises(FormatError, match=r"empty: no index\.bin in this folder.*feeder shard"):
        ShardDataset(tmp_path / "empty")
