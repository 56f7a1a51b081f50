"""Tables of samples (CSV, TSV, JSONL, Parquet): labels, targets, embedded images, and damage."""

from __future__ import annotations

import base64
import csv
import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from feeder.dataset.shards import ShardDataset
from feeder.errors import ArgumentError, ShardError, SourceError
from feeder.shard.format.manifest import Manifest
from feeder.shard.format.open_index import open_index
from feeder.shard.source import table_rows
from feeder.shard.source.table_file import ManifestColumns
from feeder.shard.source.table_rows import parquet_rows
from feeder.shard.write.index_tars import index_tars
from feeder.shard.write.sharding import shard
from tests.support.images import encode, make_tree, pixels
from tests.support.shard_sets import (
    StopAtOnce,
    kept,
    member,
    rejected,
    samples_of,
    sharded,
    write_tar,
)

JPEG = encode(pixels(1))
OPEN = "a quote is left open there"


ROWS = [
    {"path": "class-0/img-000.jpg", "label": "dog", "note": 'a, "quoted"\nnote'},
    {"path": "class-0/img-001.jpg", "label": "cat", "note": ""},
    {"path": "class-1/img-000.jpg", "label": "dog", "note": "é"},
]


@pytest.fixture
def images(tmp_path: Path) -> Path:
    return make_tree(tmp_path / "images", 2, 3)


def write_manifest(images: Path, kind: str, rows: Sequence[Mapping[str, object]]) -> Path:
    path = images / f"list.{kind}"
    if kind == "parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    elif kind == "jsonl":
        path.write_text("\n".join(json.dumps(row) for row in rows) + "\n\n")
    else:
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, rows[0].keys(), delimiter="\t" if kind == "tsv" else ",")
            writer.writeheader()
            writer.writerows(rows)
    return path


@pytest.mark.parametrize("kind", ["csv", "tsv", "jsonl", "parquet"])
def test_manifest_rows_become_samples_with_labels_and_json(images: Path, tmp_path: Path, kind: str) -> None:
    manifest = write_manifest(images, kind, ROWS)
    out = sharded(manifest, tmp_path)
    assert rejected(out) == {}
    assert Manifest.read(str(out)).classes == ["cat", "dog"]  # type: ignore[union-attr]
    expected = {row["path"]: {"dog": 1, "cat": 0}[row["label"]] for row in ROWS}
    assert {path: label for path, _, label in samples_of(out)} == expected
    for row in ROWS:
        assert json.loads(member(out, row["path"], "json") or b"") == {"note": row["note"]}
        assert member(out, row["path"], "cls") == b"%d" % expected[row["path"]]


def test_integer_labels_stay_as_they_are(images: Path, tmp_path: Path) -> None:
    rows = [{"path": f"class-0/img-00{i}.jpg", "target": label} for i, label in enumerate([7, 1000, ""])]
    out = sharded(write_manifest(images, "csv", rows), tmp_path)
    assert {path[-7:-4]: label for path, _, label in samples_of(out)} == {"000": 7, "001": 1000, "002": -1}
    assert Manifest.read(str(out)).classes is None  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("values", "labels"),
    [
        (["0.5", "2", "", "-1"], [0.5, 2.0, None, -1.0]),
        (["1.0", "0", "", "2e0"], [1, 0, -1, 2]),  # as pandas writes integers beside a gap
        (["-1", "-1", "-1", "-1"], [-1, -1, -1, -1]),
        ([-1, 1, None, 1], [-1, 1, -1, 1]),
        (["-1.0", "0", "1", "-1"], [-1, 0, 1, -1]),
        (["-1", "0.5", "1", "2"], [-1.0, 0.5, 1.0, 2.0]),
        (["-1", "b", "a", ""], [-1, 1, 0, -1]),
        (["nan", "1", "2", "3"], [-1, 1, 2, 3]),
        (["nan", "1", "ant", ""], [2, 0, 1, -1]),
    ],
)
def test_numbers_of_a_label_column_stay_numbers(
    images: Path, tmp_path: Path, values: list[object], labels: list[float | None]
) -> None:
    kind = "csv" if all(isinstance(value, str) for value in values) else "jsonl"
    rows: Sequence[Mapping[str, object]] = [
        {"path": f"class-{i // 3}/img-00{i % 3}.jpg", "label": value, "note": "n"} for i, value in enumerate(values)
    ]
    out = sharded(write_manifest(images, kind, rows), tmp_path)
    dataset = ShardDataset(out, fields=["row", "json", "path"])
    are_targets = any(isinstance(label, float) for label in labels)
    assert dataset.reader.labels().dtype == (np.float32 if are_targets else np.int64)
    for _, label, row, extras, path in dataset:  # type: ignore[attr-defined]
        expected = labels[row]
        assert path == rows[row]["path"]
        if are_targets:
            assert extras == {"note": "n", "label": expected}
            expected = math.nan if expected is None else expected
            assert label == expected or math.isnan(label) == math.isnan(expected)
        else:
            assert (extras, label) == ({"note": "n"}, expected)


@pytest.mark.parametrize("kind", ["table", "tar"])
def test_names_among_many_samples_without_a_label_are_not_odd(tmp_path: Path, kind: str) -> None:
    texts = ["cat"] + ["-1"] * 40
    if kind == "tar":
        members = [(f"{i:02}.{name}", data) for i, text in enumerate(texts) for name, data in
                   (("jpg", encode(pixels(i))), ("cls", text.encode()))]  # fmt: skip
        source = write_tar(tmp_path / "a.tar", members)
    else:
        make_tree(tmp_path / "images", 1, len(texts))
        rows = [{"path": f"class-0/img-{i:03}.jpg", "label": text} for i, text in enumerate(texts)]
        source = write_manifest(tmp_path / "images", "csv", rows)
    shard(str(source), str(tmp_path / "out"), kept())
    assert sorted(label for _, _, label in samples_of(tmp_path / "out")) == [-1] * 40 + [0]


def test_ids_become_paths_and_targets_stand_in_the_index(images: Path, tmp_path: Path) -> None:
    (tmp_path / "tables").mkdir()
    table = tmp_path / "tables/train.csv"
    table.write_text("id,label,x,y\nimg-002,a,0.1,7\nimg-000,b,,-1\n\nimg-001,c,wrong,0\n")
    columns = ManifestColumns(targets=("x", "y"), root=str(images / "class-0"), suffix=".jpg")
    out = sharded(table, tmp_path, columns)
    assert rejected(out) == {"train.csv#3": "column 'x' holds 'wrong', expected a number"}
    index = open_index(out / "index.bin")
    assert index.targets == ("x", "y")
    found = {index.source_path(i): (int(index.column("source_row")[i]), index.column("target")[i]) for i in range(2)}
    assert {path: row for path, (row, _) in found.items()} == {"img-002.jpg": 0, "img-000.jpg": 1}
    assert found["img-002.jpg"][1].tolist() == np.array([0.1, 7], np.float32).tolist()
    assert np.isnan(found["img-000.jpg"][1][0])
    assert json.loads(member(out, "img-002.jpg", "json") or b"") == {"label": "a", "x": 0.1, "y": 7.0}
    assert member(out, "img-002.jpg", "cls") is None
    with pytest.raises(ShardError, match="labels or columns differ"):
        shard(str(table), str(out), kept(max_bad=1, samples_per_shard=5, columns=replace(columns, targets=("y",))))
    with pytest.raises(SourceError, match="nowhere: no such folder; --image-root"):
        sharded(table, tmp_path, replace(columns, root=str(tmp_path / "nowhere")))


def test_an_unfinished_run_is_not_resumed_with_other_targets(images: Path, tmp_path: Path) -> None:
    rows: Sequence[Mapping[str, object]] = [{"path": "class-0/img-000.jpg", "x": 0.5, "y": 1}]
    manifest = write_manifest(images, "csv", rows)
    x, y = (kept(columns=ManifestColumns(targets=(name,))) for name in "xy")
    with pytest.raises(KeyboardInterrupt):
        shard(str(manifest), str(tmp_path / "out"), x, progress=StopAtOnce())
    with pytest.raises(ShardError, match="over other inputs, or over these before they changed"):
        shard(str(manifest), str(tmp_path / "out"), y)
    shard(str(manifest), str(tmp_path / "out"), x)


def test_a_label_column_may_be_left_alone(images: Path, tmp_path: Path) -> None:
    manifest = write_manifest(images, "csv", [{"path": "class-0/img-000.jpg", "label": "dog"}])
    out = sharded(manifest, tmp_path, ManifestColumns(has_labels=False))
    assert [label for _, _, label in samples_of(out)] == [-1]
    assert member(out, "class-0/img-000.jpg", "json") == b'{"label":"dog"}'
    for given in ({"label": "a", "targets": ("b",)}, {"label": "a", "has_labels": False}, {"path": "a", "label": "a"}):
        with pytest.raises(ArgumentError, match="column 'a'"):
            ManifestColumns(**given)
    with pytest.raises(SourceError, match="--suffix is for manifests"):
        sharded(images / "class-0", tmp_path / "b", ManifestColumns(suffix=".jpg"))
    with pytest.raises(SourceError, match="a folder's classes are its subfolders"):
        sharded(images / "class-0", tmp_path / "b", ManifestColumns(label="a"))
    assert not (tmp_path / "b" / "out").exists()
    write_tar(tmp_path / "t.tar", [("a.jpg", JPEG), ("a.cls", b"dog")])
    index = index_tars(str(tmp_path / "t.tar"), columns=ManifestColumns(has_labels=False)).path
    assert ShardDataset(index, labels=False, fields=["cls"])[0][1:] == (-1, b"dog")
    with pytest.raises(ArgumentError, match="labels=False"):
        ShardDataset(index)


def test_bad_rows_are_listed_and_the_others_used(images: Path, tmp_path: Path) -> None:
    (images / "list.jsonl").write_text(
        '{"path": "class-0/img-000.jpg", "label": 1}\n'
        "not json\n[1]\n"
        '{"path": "gone.jpg", "label": 1}\n'
        '{"path": "./class-0//img-000.jpg", "label": 2}\n'
        '{"label": 3}\n'
        '{"path": "class-0", "label": 2}\n'
    )
    found = rejected(sharded(images / "list.jsonl", tmp_path))
    assert found == {
        "./class-0//img-000.jpg": "duplicate path; --list-column NAME joins rows that differ in that column",
        "class-0": "not a regular file",
        "gone.jpg": f"not found in {images}",
        "list.jsonl#2": "line 2: not JSON: Expecting value: line 1 column 1 (char 0)",
        "list.jsonl#3": "line 3: expected an object, got list",
        "list.jsonl#6": "no path in column 'path'",
    }


def test_csv_rows_with_too_few_columns_are_listed(images: Path, tmp_path: Path) -> None:
    (images / "list.csv").write_text("path,label\nclass-0/img-000.jpg,1\nclass-0/img-001.jpg\n")
    assert rejected(sharded(images / "list.csv", tmp_path)) == {"list.csv#2": "line 3: 1 column, expected 2"}


CAPTIONS = [
    {"image": "class-1/img-000.jpg", "caption": "é, first", "n": "7", "split": "val", "label": "dog"},
    {"image": "class-0/img-001.jpg", "caption": "alone", "n": "8", "split": "val", "label": "cat"},
    {"image": "./class-1//img-000.jpg", "caption": "second", "n": "9", "split": "val", "label": "dog"},
]


@pytest.mark.parametrize("kind", ["csv", "tsv", "jsonl", "parquet"])
def test_rows_of_the_same_image_become_one_sample_with_lists(images: Path, tmp_path: Path, kind: str) -> None:
    out = sharded(write_manifest(images, kind, CAPTIONS), tmp_path, ManifestColumns(lists=("caption", "n")))
    assert rejected(out) == {}
    dataset = ShardDataset(out, fields=["row", "path", "json"])
    assert sorted((*dataset[i][1:4], dataset[i][4]) for i in range(2)) == [
        (0, 1, "class-0/img-001.jpg", {"caption": ["alone"], "n": ["8"], "split": "val"}),
        (1, 0, "class-1/img-000.jpg", {"caption": ["é, first", "second"], "n": ["7", "9"], "split": "val"}),
    ]


def test_lists_of_joined_rows_follow_one_another(images: Path, tmp_path: Path) -> None:
    rows = [{"path": "class-0/img-000.jpg", "caption": value} for value in (["a", "b"], None, "c", [])]
    rows += [{"path": "class-0/img-001.jpg"}]
    out = sharded(write_manifest(images, "jsonl", rows), tmp_path, ManifestColumns(lists=("caption",)))
    assert json.loads(member(out, "class-0/img-000.jpg", "json") or b"") == {"caption": ["a", "b", None, "c"]}
    assert json.loads(member(out, "class-0/img-001.jpg", "json") or b"") == {"caption": [None]}


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (
            ManifestColumns(lists=("caption",)),
            r"list\.csv: rows 1 and 3 are both of 'class-1/img-000\.jpg', but differ in column 'n': '7' and '9'; "
            "--list-column n makes a list of it, too",
        ),
        (ManifestColumns(label="n", lists=("caption",)), "rows 1 and 3 .* differ in their label or targets"),
        (ManifestColumns(targets=("n",), lists=("caption",)), "rows 1 and 3 .* differ in their label or targets"),
        (ManifestColumns(lists=("text",)), "no column 'text'; it has image, caption, n"),
        (ManifestColumns(image="image", lists=("caption",)), "with the image's bytes .* can't be joined"),
    ],
)
def test_rows_that_cannot_be_joined_are_an_error(
    images: Path, tmp_path: Path, columns: ManifestColumns, message: str
) -> None:
    with pytest.raises(SourceError, match=message):
        sharded(write_manifest(images, "csv", CAPTIONS), tmp_path, columns)
    with pytest.raises(ArgumentError, match="'caption' is asked for twice"):
        replace(columns, lists=("caption", "caption"))
    with pytest.raises(SourceError, match="--list-column is for manifests"):
        sharded(images / "class-0", tmp_path, ManifestColumns(lists=("caption",)))


def test_gaps_among_the_targets_of_joined_rows_are_equal(images: Path, tmp_path: Path) -> None:
    rows = [{"path": "class-0/img-000.jpg", "x": "", "caption": text} for text in "ab"]
    columns = ManifestColumns(targets=("x",), lists=("caption",))
    out = sharded(write_manifest(images, "csv", rows), tmp_path, columns)
    assert json.loads(member(out, "class-0/img-000.jpg", "json") or b"")["caption"] == ["a", "b"]


def test_a_run_with_joined_rows_resumes_and_notices_another_list_column(images: Path, tmp_path: Path) -> None:
    manifest = write_manifest(images, "csv", CAPTIONS)
    columns = ManifestColumns(lists=("caption", "n"))
    with pytest.raises(KeyboardInterrupt):
        shard(str(manifest), str(tmp_path / "out"), kept(columns=columns), progress=StopAtOnce())
    assert shard(str(manifest), str(tmp_path / "out"), kept(columns=columns)).samples == 2
    with pytest.raises(ShardError, match="labels or columns differ"):
        shard(str(manifest), str(tmp_path / "out"), kept(columns=replace(columns, lists=("caption", "n", "split"))))


def test_the_captions_of_flickr30k_are_read_as_they_are(images: Path, tmp_path: Path) -> None:
    (images / "results.csv").write_text(
        "image_name| comment_number| comment\n"
        'class-0/img-000.jpg| 0| Two men , one with " hat " .\n'
        'class-0/img-000.jpg| 1| " Hat " again .\n'
        "class-0/img-000.jpg| 4   No delimiter .\n"  # a row of the published file is like this
    )
    columns = ManifestColumns(path="image_name", lists=("comment", "comment_number"))
    out = sharded(images / "results.csv", tmp_path, columns)
    assert rejected(out) == {"results.csv#3": "line 4: 2 columns, expected 3"}
    assert json.loads(member(out, "class-0/img-000.jpg", "json") or b"") == {
        "comment": ['Two men , one with " hat " .', '" Hat " again .'],
        "comment_number": ["0", "1"],
    }


def test_columns_between_semicolons_are_told_apart(images: Path, tmp_path: Path) -> None:
    (images / "list.csv").write_text('path;label;note\nclass-0/img-000.jpg;3;"a;b, c"\n')
    out = sharded(images / "list.csv", tmp_path)
    assert [label for _, _, label in samples_of(out)] == [3]
    assert member(out, "class-0/img-000.jpg", "json") == b'{"note":"a;b, c"}'


def test_image_bytes_come_from_parquet_and_base64(images: Path, tmp_path: Path) -> None:
    data = [encode(pixels(i)) for i in range(3)]
    rows: Sequence[Mapping[str, object]] = [
        {"image": {"bytes": d, "path": "same.jpg"}, "label": i, "id": i} for i, d in enumerate(data)
    ]
    out = sharded(write_manifest(images, "parquet", rows), tmp_path)
    assert sorted((label, d) for _, d, label in samples_of(out)) == list(enumerate(data))
    assert member(out, "list.parquet#2/same.jpg", "json") == b'{"id":1}'
    rows = [{"picture": base64.b64encode(d).decode(), "label": i} for i, d in enumerate(data)]
    rows += [{"picture": "?!", "label": 9}]
    out2 = tmp_path / "b"
    manifest = write_manifest(images, "jsonl", rows)
    shard(str(manifest), str(out2), kept(max_bad=1, columns=ManifestColumns(image="picture")))
    assert sorted((label, d) for _, d, label in samples_of(out2)) == list(enumerate(data))
    assert rejected(out2)["list.jsonl#4"].startswith("column 'picture' is not base64")


@pytest.mark.parametrize(
    ("text", "columns", "message"),
    [
        ("", ManifestColumns(), "is empty"),
        ("a,b\n1,2\n", ManifestColumns(), "no column for the images; it has a, b.*--path-column"),
        ("path,path\nx,y\n", ManifestColumns(), "names a column 'path' twice: 'path', 'path'"),
        ('"path,a\nx,y\n', ManifestColumns(), "line 1: a quote is left open there"),
        ("\n<!doctype html><p>", ManifestColumns(), "is a page of a web server or XML, which starts with .*<!doctype"),
        ("p\0a\0t\0h\0\n\0", ManifestColumns(), "looks like UTF-16 without a byte order mark"),
        ("path,label\nclass-0/img-000.jpg,1\n", ManifestColumns(label="kind"), "no column 'kind'; it has path, label"),
        ("path,a\nclass-0/img-000.jpg,0.5\n", ManifestColumns(targets=("a", "b")), "no column 'b'; it has path, a"),
        ("path,label\nclass-0/img-000.jpg,1e39\n", ManifestColumns(), "holds 1e.39, which is beyond float32"),
    ],
)
def test_a_manifest_that_cannot_be_used_says_why(
    images: Path, tmp_path: Path, text: str, columns: ManifestColumns, message: str
) -> None:
    (images / "list.csv").write_text(text)
    with pytest.raises(SourceError, match=message):
        sharded(images / "list.csv", tmp_path, columns)


@pytest.mark.parametrize(
    ("text", "taken", "left_out"),
    [
        (
            '"class-0/img-000.jpg,1\nclass-0/img-001.jpg,2\n"class-0/img-002.jpg",3\n',
            ["001", "002"],
            {2: OPEN},
        ),
        ('"class-0/img-000.jpg,1\nclass-0/img-001.jpg,2\n', ["001"], {2: OPEN}),
        ('class-0/img-000.jpg,"one\nclass-0/img-001.jpg,"two"\n', ["001"], {2: OPEN}),
        ('class-0/img-000.jpg,one\n"class-0/img-001.jpg,two', ["000"], {3: OPEN}),
        ('class-0/img-000.jpg,"a" dog\nclass-0/img-001.jpg,two\n', ["000", "001"], {}),
        ('class-0/img-000.jpg,"a \\"dog\\""\nclass-0/img-001.jpg,two\n', ["000", "001"], {}),
        ('class-0/img-000.jpg,"a \\"dog, cat\\""\nclass-0/img-001.jpg,two\n', ["001"], {2: "3 columns, expected 2"}),
        ('class-0/img-000.jpg,"a\nb"\n\n"class-0/img-001.jpg","two"\n', ["000", "001"], {}),
        ('class-0/img-000.jpg,5" disk\nclass-0/img-001.jpg,two\n', ["000", "001"], {}),
    ],
)
def test_a_stray_quote_loses_its_own_row(
    images: Path, tmp_path: Path, text: str, taken: list[str], left_out: dict[int, str]
) -> None:
    (images / "list.csv").write_text("path,text\n" + text)
    out = tmp_path / "out"
    shard(str(images / "list.csv"), str(out), kept(max_bad=1))
    assert sorted(path for path, *_ in samples_of(out)) == [f"class-0/img-{number}.jpg" for number in taken]
    assert sorted(rejected(out).values()) == [f"line {line}: {reason}" for line, reason in left_out.items() if reason]


def test_a_header_may_be_of_several_lines(images: Path, tmp_path: Path) -> None:
    (images / "list.csv").write_text('path,"two\nlines"\nclass-0/img-000.jpg,a\n')
    out = sharded(images / "list.csv", tmp_path)
    assert json.loads(member(out, "class-0/img-000.jpg", "json") or b"") == {"two\nlines": "a"}


def test_text_behind_a_quote_belongs_to_the_value(images: Path, tmp_path: Path) -> None:
    (images / "list.csv").write_text('path,text\nclass-0/img-000.jpg,"a" dog\n')
    out = sharded(images / "list.csv", tmp_path)
    assert json.loads(member(out, "class-0/img-000.jpg", "json") or b"") == {"text": "a dog"}


@pytest.mark.parametrize(
    ("text", "encoding", "note"),
    [
        ("path;text, english;label\nclass-0/img-000.jpg;a, b;3\n", "utf-8", "its columns are separated by ';'"),
        ("path,text,label,,\nclass-0/img-000.jpg,a,3,,\nclass-0/img-001.jpg,a,4\n", "utf-8", None),
        ("path,text,label\nclass-0/img-000.jpg,é,3\n", "utf-16", "read as UTF-16"),
        ("path\ttext\tlabel\nclass-0/img-000.jpg\té\t3\n", "utf-16", "read as UTF-16"),
    ],
)
def test_tables_of_spreadsheets_are_read(
    images: Path, tmp_path: Path, text: str, encoding: str, note: str | None
) -> None:
    path = images / f"list.{'tsv' if chr(9) in text else 'csv'}"
    path.write_text(text, encoding)
    summary = shard(str(path), str(tmp_path / "out"), kept())
    assert sorted(label for _, _, label in samples_of(tmp_path / "out")) == [3, 4][: text.count("class-0")]
    assert [each for each in summary.notes if note is not None and note in each] or note is None


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-32"])
@pytest.mark.parametrize(
    ("suffix", "text"),
    [
        ("csv", "path\tlabel\nclass-0/img-000.jpg\t3\n"),
        ("tsv", "path,label\nclass-0/img-000.jpg,3\n"),
        ("csv", "sep=;\npath;label\nclass-0/img-000.jpg;3\n"),
        ("jsonl", '{"path": "class-0/img-000.jpg", "label": 3}\n'),
    ],
)
def test_tables_are_read_by_their_first_bytes_and_line(
    images: Path, tmp_path: Path, suffix: str, text: str, encoding: str
) -> None:
    (images / f"list.{suffix}").write_text(text, encoding)
    summary = shard(str(images / f"list.{suffix}"), str(tmp_path / "out"), kept())
    assert [label for *_, label in samples_of(tmp_path / "out")] == [3]
    expected = [f"read as {encoding.upper()}"] if encoding != "utf-8-sig" else []
    assert [note.partition(": ")[2] for note in summary.notes if "read as" in note] == expected
    assert any("are separated by" in note for note in summary.notes) == (suffix != "jsonl" and "sep=" not in text)


@pytest.mark.parametrize("kind", ["csv", "tsv", "jsonl", "parquet"])
def test_a_byte_order_mark_is_no_part_of_any_text_of_a_table(images: Path, tmp_path: Path, kind: str) -> None:
    """Such as of files that ``cat`` has joined, or of columns that were read with one."""
    rows = [
        {"\ufeffpath": "class-0/img-000.jpg", "label": "dog", "note": "\ufeffa"},
        {"\ufeffpath": "\ufeffclass-0/img-001.jpg", "label": "\ufeffdog", "note": "b"},
    ]
    out = sharded(write_manifest(images, kind, rows), tmp_path)
    assert Manifest.read(str(out)).classes == ["dog"]  # type: ignore[union-attr]
    found = [json.loads(member(out, f"class-0/img-00{i}.jpg", "json") or b"") for i in range(2)]
    assert found == [{"note": "a"}, {"note": "b"}]


def test_lines_of_json_that_begin_with_a_byte_order_mark_are_read(images: Path, tmp_path: Path) -> None:
    lines = [f'\ufeff{{"path": "class-0/img-00{i}.jpg", "texts": ["\\ufeffa"]}}\n' for i in range(2)]
    (images / "list.jsonl").write_text("".join(lines))
    out = sharded(images / "list.jsonl", tmp_path)
    assert len(samples_of(out)) == 2
    assert json.loads(member(out, "class-0/img-001.jpg", "json") or b"") == {"texts": ["a"]}


@pytest.mark.parametrize(
    ("suffix", "head", "row"), [("csv", "path,note\n", "{},{}\n"), ("jsonl", "", '{{"path": "{}", "note": "{}"}}\n')]
)
def test_lines_that_are_not_utf8_are_counted_in_a_note(
    images: Path, tmp_path: Path, suffix: str, head: str, row: str
) -> None:
    rows = [row.format(f"class-0/img-00{i}.jpg", note) for i, note in enumerate(["caf\xe9", "cafe"])]
    (images / f"list.{suffix}").write_text(head + "".join(rows), "latin-1")
    summary = shard(str(images / f"list.{suffix}"), str(tmp_path / "out"), kept())
    assert summary.samples == 2
    assert any(": 1 line with bytes that are not UTF-8" in note for note in summary.notes)
    (images / f"list.{suffix}").write_text(head + "".join(rows), "utf-8")
    assert not any("UTF-8" in note for note in shard(str(images / f"list.{suffix}"), str(tmp_path / "b"), kept()).notes)


def test_nan_is_a_missing_value_where_columns_are_told_apart(images: Path, tmp_path: Path) -> None:
    (images / "list.jsonl").write_text('{"path": "class-0/img-000.jpg"}\n{"path": NaN}\n')
    out = sharded(images / "list.jsonl", tmp_path)
    assert rejected(out) == {"list.jsonl#2": "no path in column 'path'"}


def test_labels_of_bytes_are_text(images: Path, tmp_path: Path) -> None:
    rows = [{"path": f"class-0/img-00{i}.jpg", "label": label} for i, label in enumerate([b"dog", b"cat"])]
    out = sharded(write_manifest(images, "parquet", rows), tmp_path)
    assert Manifest.read(str(out)).classes == ["cat", "dog"]  # type: ignore[union-attr]


def test_two_columns_of_parquet_with_one_name_are_an_error(images: Path, tmp_path: Path) -> None:
    columns = [pyarrow.array(["class-0/img-000.jpg"]), pyarrow.array([1]), pyarrow.array([2])]
    pyarrow.parquet.write_table(pyarrow.Table.from_arrays(columns, ["path", "label", "label"]), images / "list.parquet")
    with pytest.raises(SourceError, match="names a column 'label' twice: 'path', 'label', 'label'"):
        sharded(images / "list.parquet", tmp_path)


def test_images_of_hugging_face_may_be_paths(images: Path, tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"image": {"bytes": None, "path": "class-0/img-000.jpg"}, "label": 4},
        {"image": {"bytes": JPEG, "path": "class-0/img-001.jpg"}, "label": 5},
        {"image": {"bytes": None, "path": None}, "label": 6},
    ]
    out = sharded(write_manifest(images, "parquet", rows), tmp_path)
    assert sorted(label for *_, label in samples_of(out)) == [4, 5]
    assert rejected(out) == {"list.parquet#3": "no image bytes in column 'image'"}


def test_a_wild_label_is_an_error(images: Path, tmp_path: Path) -> None:
    (images / "list.csv").write_text("path,label\nclass-0/img-000.jpg,99999999999999999999\n")
    with pytest.raises(SourceError, match="holds the label 9999"):
        sharded(images / "list.csv", tmp_path)


def test_parquet_pages_are_compared_with_their_checksums(images: Path, tmp_path: Path) -> None:
    path = images / "list.parquet"
    table = pyarrow.Table.from_pylist([{"path": f"class-0/img-00{i}.jpg", "label": i + 40} for i in range(3)])
    pyarrow.parquet.write_table(table, path, compression="none", use_dictionary=False, write_page_checksum=True)
    data = path.read_bytes()
    assert data.count(bytes([41, 0, 0, 0, 0, 0, 0, 0, 42])) == 1
    path.write_bytes(data.replace(bytes([41, 0, 0, 0, 0, 0, 0, 0, 42]), bytes([41, 0, 0, 0, 0, 0, 0, 0, 43])))
    with pytest.raises(SourceError, match=r"list\.parquet: can't be read: .*CRC"):
        sharded(path, tmp_path)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (b"\x25\x02\x18\x05label", b"\x25\x00\x18\x05label", r"footer is damaged \(pyarrow ends with SIGABRT\)"),
        (b"\x05label", b"\x05la\xffel", "can't be read as Parquet: 'utf-8' codec"),
        (b"\x15\x02\x16\x06\x16", b"\x15\x02\x16\x00\x16", "is damaged: 0 of its 3 rows were found"),
    ],
    ids=["a column that has no nulls", "a name", "no values"],
)
def test_a_damaged_footer_of_parquet_is_an_error(
    images: Path, tmp_path: Path, old: bytes, new: bytes, message: str
) -> None:
    path = write_manifest(images, "parquet", [{"path": f"class-0/img-00{i}.jpg", "label": i} for i in range(3)])
    data = path.read_bytes()
    assert old in data
    path.write_bytes(data.replace(old, new))
    with pytest.raises(SourceError, match=rf"list\.parquet: .*{message}"):
        sharded(path, tmp_path)


def test_parquet_rows_that_cannot_be_read_are_listed(images: Path, tmp_path: Path) -> None:
    names = [f"class-0/img-00{i}.jpg" for i in range(3)]
    times = pyarrow.array([0, 2**60, 1], pyarrow.timestamp("ms"))
    notes = pyarrow.array([b"a", b"b", b"\xff"], pyarrow.binary()).view(pyarrow.string())
    table = pyarrow.table({"path": names, "time": times, "note": notes})
    pyarrow.parquet.write_table(table, images / "list.parquet")
    out = sharded(images / "list.parquet", tmp_path)
    found = rejected(out)
    assert found.keys() == {"list.parquet#2", "list.parquet#3"}
    assert found["list.parquet#2"].startswith("row 2: ")
    assert [path for path, _, _ in samples_of(out)] == names[:1]


def test_a_small_parquet_file_does_not_take_much_memory(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = images / "list.parquet"
    image = pyarrow.array([bytes(4 << 20)], pyarrow.binary())
    repeated = pyarrow.DictionaryArray.from_arrays(pyarrow.array([0] * 200), image)
    pyarrow.parquet.write_table(pyarrow.table({"image": repeated}), path, compression="zstd")
    assert path.stat().st_size < 1 << 14
    before, most = pyarrow.total_allocated_bytes(), 0
    for _ in parquet_rows(str(path)):
        most = max(most, pyarrow.total_allocated_bytes() - before)
    assert most < 512 << 20
    lists = pyarrow.table({"path": ["class-0/img-000.jpg"], "x": pyarrow.array([[0] * 100_000])})
    pyarrow.parquet.write_table(lists, images / "lists.parquet")
    monkeypatch.setattr(table_rows, "BATCH_VALUES", 99_999)
    with pytest.raises(SourceError, match=r"column 'x.list.element' has 100,000 values in a row, more than 99,999"):
        sharded(images / "lists.parquet", tmp_path)
    monkeypatch.setattr(table_rows, "BATCH_BYTES", 1 << 20)
    with pytest.raises(SourceError, match=r"column 'image' unpacks from [\d,]+ bytes to 4,19\d,\d+, more than"):
        sharded(path, tmp_path)


def test_columns_are_found_whatever_the_first_row_lacks(images: Path, tmp_path: Path) -> None:
    (images / "list.jsonl").write_text(
        '{"path": null}\n{"path": "class-0/img-000.jpg"}\n{"path": "class-0/img-001.jpg", "label": 5}\n'
        '{"path": "class-0/img-002.jpg", "label": ""}\n'
    )
    out = sharded(images / "list.jsonl", tmp_path)
    assert {path[-7:-4]: label for path, _, label in samples_of(out)} == {"000": -1, "001": 5, "002": -1}
    (images / "list.csv").write_text("path, label\nclass-0/img-000.jpg, 4\n")
    shard(str(images / "list.csv"), str(tmp_path / "b"), kept())
    assert [label for _, _, label in samples_of(tmp_path / "b")] == [4]


def test_labels_that_look_like_numbers_but_are_written_oddly_are_names(images: Path, tmp_path: Path) -> None:
    rows = [{"path": f"class-0/img-00{i}.jpg", "label": label} for i, label in enumerate(["001", "1", "1_0"])]
    out = sharded(write_manifest(images, "csv", rows), tmp_path)
    assert Manifest.read(str(out)).classes == ["001", "1", "1_0"]  # type: ignore[union-attr]


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_values_that_json_lacks_lose_no_sample(images: Path, tmp_path: Path, kind: str) -> None:
    rows: list[dict[str, Any]] = [
        {"path": f"class-{i // 2}/img-00{i % 2}.jpg", "score": score, "several": [score, 1.5]}
        for i, score in enumerate([math.nan, math.inf, -math.inf, 0.5])
    ]
    out = sharded(write_manifest(images, kind, rows), tmp_path)
    for row, score in zip(rows, [None, "inf", "-inf", 0.5], strict=True):
        assert json.loads(member(out, row["path"], "json") or b"") == {"score": score, "several": [score, 1.5]}


def test_half_of_a_surrogate_pair_is_kept(images: Path, tmp_path: Path) -> None:
    (images / "list.jsonl").write_text('{"path": "class-0/img-000.jpg", "note": "a\\ud800b"}\n')
    out = sharded(images / "list.jsonl", tmp_path)
    assert json.loads(member(out, "class-0/img-000.jpg", "json") or b"") == {"note": "a\ud800b"}


def test_rows_that_cannot_be_written_as_json_are_listed(images: Path, tmp_path: Path) -> None:
    deep = "[" * 900 + "]" * 900
    (images / "list.jsonl").write_text(
        f'{{"path": "class-0/img-000.jpg", "note": {deep}, "score": Infinity}}\n{{"path": "class-0/img-001.jpg"}}\n'
    )
    found = rejected(sharded(images / "list.jsonl", tmp_path))
    assert list(found) == ["list.jsonl#1"], found
    assert all("can't be written as JSON" in reason for reason in found.values())


def test_a_list_as_label_is_an_error(images: Path, tmp_path: Path) -> None:
    (images / "list.jsonl").write_text('{"path": "class-0/img-000.jpg", "label": [1, 2]}\n')
    with pytest.raises(SourceError, match=r"holds \[1, 2\]; labels are"):
        sharded(images / "list.jsonl", tmp_path)


def test_a_manifest_run_resumes_from_another_working_folder(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = write_manifest(images, "csv", ROWS)
    with pytest.raises(KeyboardInterrupt):
        shard(str(manifest), str(tmp_path / "out"), progress=StopAtOnce())
    monkeypatch.chdir(images)
    shard("list.csv", str(tmp_path / "out"))


def test_a_finished_set_notices_renamed_classes_and_other_columns(images: Path, tmp_path: Path) -> None:
    manifest = write_manifest(images, "csv", ROWS)
    shard(str(manifest), str(tmp_path / "out"))
    for old, new in (("dog", "dug"), ("é", "è")):
        text = manifest.read_text()
        manifest.write_text(text.replace(old, new))
        with pytest.raises(ShardError, match="labels or columns differ"):
            shard(str(manifest), str(tmp_path / "out"))
        manifest.write_text(text)
    assert shard(str(manifest), str(tmp_path / "out")).written_shards == 0


def test_a_changed_manifest_is_noticed_on_resume(images: Path, tmp_path: Path) -> None:
    manifest = write_manifest(images, "csv", ROWS)
    with pytest.raises(KeyboardInterrupt):
        shard(str(manifest), str(tmp_path / "out"), progress=StopAtOnce())
    manifest.write_text(manifest.read_text().replace("dog", "cow"))
    os.utime(manifest, (1, 1))  # some file systems count whole seconds
    with pytest.raises(ShardError, match="over these before they changed"):
        shard(str(manifest), str(tmp_path / "out"))


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
@pytest.mark.parametrize("column", [None, "url"])
def test_a_column_of_urls_is_refused_with_the_commands_that_take_it(
    tmp_path: Path, kind: str, column: str | None
) -> None:
    rows = [{"caption": "a cat", "url": f"https://host/{k}.jpg?token=HIDDEN"} for k in range(2)]
    manifest = write_manifest(tmp_path, kind, rows)
    place = "#1: column 'url' holds a URL; " if column else ": no column for the images; it has caption, url: "
    commands = (
        rf"img2dataset --url_list {manifest} --input_format {kind} --url_col url --output_format webdataset "
        "--output_folder DIR; then feeder index DIR$"
    )
    with pytest.raises(SourceError, match=f"^{manifest}{place}download the images: {commands}") as caught:
        sharded(manifest, tmp_path, columns=ManifestColumns(path=column))
    assert "HIDDEN" not in str(caught.value)


@pytest.mark.parametrize("url", ["s3://bucket/x.jpg", "s3:/KEY:HIDDEN@bucket/x.jpg", "file:///data/HIDDEN.jpg"])
@pytest.mark.parametrize("place", ["local", "store"])
def test_another_url_among_paths_is_refused(images: Path, tmp_path: Path, url: str, place: str) -> None:
    manifest = write_manifest(images, "csv", [{"path": url}, {"path": "class-0/img-000.jpg"}])
    message = rf"{manifest}#1: column 'path' holds a URL; write paths, and .* --image-root s3://bucket/folder$"
    root = None if place == "local" else "https://127.0.0.1:1/images"
    with pytest.raises(SourceError, match=message) as caught:
        sharded(manifest, tmp_path, columns=ManifestColumns(root=root))
    assert "HIDDEN" not in str(caught.value)
