from __future__ import annotations

import base64
import csv
import errno
import gzip
import io
import json
import math
import os
import re
import resource
import shutil
import tarfile
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from feeder.dataset.folders import FolderDataset
from feeder.dataset.shards import ShardDataset
from feeder.errors import ArgumentError, DecodeError, ShardError, SourceError
from feeder.shard.format.index import Index
from feeder.shard.format.manifest import Manifest
from feeder.shard.source import parquet
from feeder.shard.source.class_folders import class_names
from feeder.shard.source.folder import open_folder
from feeder.shard.source.parquet import parquet_rows
from feeder.shard.source.table_file import ManifestColumns
from feeder.shard.write.index_tars import index_tars
from feeder.shard.write.options import ShardOptions
from feeder.shard.write.sharding import shard
from feeder.system.progress import Progress
from feeder.tools.inspect import verify
from tests.shard.test_shard import kept, samples_of
from tests.support.images import encode, make_tree, pixels

JPEG = encode(pixels(1))


def rejected(out: Path) -> dict[str, str]:
    """Reason by path, after checking that nothing got lost."""
    manifest = Manifest.read(str(out))
    rows = [json.loads(line) for line in (out / "rejected.jsonl").read_text().splitlines()]
    assert manifest is not None
    assert len(rows) == manifest.rejected
    assert manifest.samples == len(Index(out / "index.bin"))
    assert manifest.inputs == manifest.samples + manifest.rejected
    assert verify(str(out)) == []
    return {row["path"]: row["reason"] for row in rows}


def sharded(source: Path | str, tmp_path: Path, columns: ManifestColumns | None = None) -> Path:
    out = tmp_path / "out"
    shard(str(source), str(out), kept(max_bad=1, samples_per_shard=5, columns=columns or ManifestColumns()))
    return out


def member(out: Path, path: str, field: str) -> bytes | None:
    """A field of the sample with this original path."""
    index = Index(out / "index.bin")
    i = next(i for i in range(len(index)) if index.source_path(i) == path)
    with tarfile.open(index.shard_path(int(index.shard[i]))) as tar:
        try:
            return tar.extractfile(f"{index.key(i)}.{field}").read()  # type: ignore[union-attr]
        except KeyError:
            return None


# Folders


def test_class_indices_follow_torchvisions_rule(tmp_path: Path) -> None:
    names = ["b", "A", "10", "9", "é", "empty", ".hidden"]
    for name in names:
        (tmp_path / "src" / name).mkdir(parents=True)
        if name != "empty":
            (tmp_path / "src" / name / "x.jpg").write_bytes(JPEG)
    # torchvision.datasets.folder.find_classes: sorted(entry.name for entry in os.scandir(directory) if entry.is_dir())
    assert class_names(str(tmp_path / "src")) == [".hidden", "10", "9", "A", "b", "empty", "é"]
    notes: list[str] = []

    class Notes(Progress):
        def note(self, line: str) -> None:
            notes.append(line)

    shard(str(tmp_path / "src"), str(tmp_path / "out"), progress=Notes())
    assert {(path, label) for path, _, label in samples_of(tmp_path / "out")} == {
        (".hidden/x.jpg", 0),
        ("10/x.jpg", 1),
        ("9/x.jpg", 2),
        ("A/x.jpg", 3),
        ("b/x.jpg", 4),
        ("é/x.jpg", 6),
    }
    assert notes == ["class folder 'empty' holds no file; it keeps its label 5"]


def test_folders_named_as_splits_are_pointed_out(tmp_path: Path) -> None:
    for path in ("src/train/cat", "src/val/cat", "trains/train", "trains/plane"):
        (tmp_path / path).mkdir(parents=True)
        (tmp_path / path / "x.jpg").write_bytes(JPEG)
    source = open_folder(str(tmp_path / "src"))
    assert source.notes == [
        f"{tmp_path}/src: its folders train, val are taken as classes; if they are splits of one dataset, name each by "
        f"itself, {tmp_path}/src/train for example"
    ]
    with pytest.warns(UserWarning, match="train, val are taken as classes"):
        assert FolderDataset(tmp_path / "src").classes == ["train", "val"]
    assert open_folder(str(tmp_path / "src/train")).notes == []
    assert open_folder(str(tmp_path / "trains")).notes == []
    assert FolderDataset(tmp_path / "trains").classes == ["plane", "train"]


def test_nested_folders_belong_to_their_class(tmp_path: Path) -> None:
    (tmp_path / "src" / "cat" / "a" / "b").mkdir(parents=True)
    (tmp_path / "src" / "cat" / "a" / "b" / "x.jpg").write_bytes(JPEG)
    out = sharded(tmp_path / "src", tmp_path)
    assert samples_of(out) == [("cat/a/b/x.jpg", JPEG, 0)]


def test_a_flat_folder_has_no_labels(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    for i in range(3):
        (tmp_path / "src" / f"{i}.jpg").write_bytes(encode(pixels(i)))
    out = sharded(tmp_path / "src", tmp_path)
    assert [label for _, _, label in samples_of(out)] == [-1] * 3
    assert member(out, "0.jpg", "cls") is None
    assert Manifest.read(str(out)).classes is None  # type: ignore[union-attr]


def test_every_kind_of_bad_file_is_listed_with_its_reason(tmp_path: Path) -> None:
    folder = make_tree(tmp_path / "src", 1, 3) / "class-0"
    good_png = encode(pixels(5), "PNG")
    (folder / "truncated.jpg").write_bytes(JPEG[: len(JPEG) // 2])
    (folder / "header-only.jpg").write_bytes(JPEG[:30])
    (folder / "truncated.png").write_bytes(good_png[:-200])
    (folder / "truncated.webp").write_bytes(encode(pixels(6), "WEBP")[:-40])
    (folder / "empty.jpg").touch()
    (folder / "text.jpg").write_text("I am no image")
    (folder / "notes.txt").write_text("neither am I")
    (folder / "loop").symlink_to("..")
    (folder / "self.jpg").symlink_to("self.jpg")
    (folder / "broken.jpg").symlink_to("nowhere.jpg")
    os.mkfifo(folder / "pipe.jpg")
    (tmp_path / "src" / "stray.jpg").write_bytes(JPEG)
    out = sharded(tmp_path / "src", tmp_path)
    found = rejected(out)
    expected = {
        "class-0/broken.jpg": "broken symlink",
        "class-0/empty.jpg": "empty file",
        "class-0/header-only.jpg": "truncated jpg",
        "class-0/loop": "symlink loop",
        "class-0/notes.txt": "not an image",
        "class-0/pipe.jpg": "not a regular file",
        "class-0/self.jpg": "symlink loop",
        "class-0/text.jpg": "not an image",
        "class-0/truncated.jpg": "truncated",
        "class-0/truncated.png": "damaged or unsupported png",
        "class-0/truncated.webp": "damaged",
        "stray.jpg": "stands outside the class folders",
    }
    assert found.keys() == expected.keys()
    for path, reason in expected.items():
        assert found[path].startswith(reason), (path, found[path])
    assert {path for path, _, _ in samples_of(out)} == {f"class-0/img-00{i}.jpg" for i in range(3)}


def test_only_files_that_claim_to_be_images_count_as_bad(tmp_path: Path) -> None:
    folder = make_tree(tmp_path / "src", 1, 3) / "class-0"
    (folder / "labels.txt").write_text("x")
    (folder / "Thumbs.db").write_bytes(b"\0")
    summary = shard(str(tmp_path / "src"), str(tmp_path / "out"))
    assert (summary.rejected, summary.bad, summary.too_many_bad) == (2, 0, None)
    (folder / "bad.jpg").write_text("x")
    summary = shard(str(tmp_path / "src"), str(tmp_path / "out2"))
    assert (summary.rejected, summary.bad) == (3, 1)
    assert "1 of 4 images (25.00%)" in str(summary.too_many_bad)


@pytest.fixture
def unprivileged() -> Iterator[Path]:
    """A scratch folder, with the rights of an ordinary user even where the tests run as root."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o777)
        user = os.geteuid()
        if user == 0:
            os.seteuid(65_534)
        try:
            yield Path(folder)
        finally:
            os.seteuid(user)


def test_an_unreadable_folder_ends_the_run_unless_it_is_to_be_skipped(unprivileged: Path) -> None:
    source = make_tree(unprivileged / "src", 3, 2)
    (source / "class-0" / "img-000.jpg").chmod(0)
    (source / "class-1").chmod(0)
    (source / "class-2").chmod(0o644)  # its names can be read, and nothing else of its files
    (source / "linked").symlink_to(source / "class-1" / "below")
    out = unprivileged / "out"
    with pytest.raises(SourceError, match=r"src/linked: unreadable folder: Permission denied; .*--skip-unreadable"):
        shard(str(source), str(out), kept(max_bad=1))
    (source / "linked").unlink()
    for name, mode in (("class-1", 0o755), ("class-2", 0o755)):
        with pytest.raises(SourceError, match=f"src/{name}: unreadable folder: Permission denied; "):
            shard(str(source), str(out), kept(max_bad=1))
        (source / name).chmod(mode)
    (source / "class-1").chmod(0)
    (source / "class-2").chmod(0o644)
    (source / "class-0" / "linked").symlink_to(source / "class-1" / "below")
    summary = shard(str(source), str(out), kept(max_bad=1, skip_unreadable=True))
    found = rejected(out)
    for name in ("class-1", "class-2"):
        (source / name).chmod(0o755)
    assert found == {
        "class-0/img-000.jpg": "unreadable: Permission denied",
        "class-0/linked": "unreadable link: Permission denied",
        "class-1": "unreadable folder: Permission denied",
        "class-2": "unreadable folder: Permission denied",
    }
    assert (summary.samples, summary.bad, summary.unreadable_folders) == (1, 1, 3)
    assert summary.loss == f"1 of 2 images and 3 unreadable folders left out, see {out}/rejected.jsonl"


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENOMEM, errno.EIO, errno.ESTALE])
@pytest.mark.parametrize("call", ["scandir", "stat"])
def test_an_error_of_the_machine_ends_the_listing_and_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, call: str
) -> None:
    source = make_tree(tmp_path / "src", 2, 3)
    options = kept(samples_per_shard=2, workers=1)
    with pytest.raises(KeyboardInterrupt):
        shard(str(source), str(tmp_path / "out"), options, progress=StopAtOnce())
    real = getattr(os, call)

    def fail(path: str, *args: object) -> object:
        if str(path).endswith("class-1" if call == "scandir" else "class-1/img-001.jpg"):
            raise OSError(code, os.strerror(code), path)
        return real(path, *args)

    with monkeypatch.context() as patch:
        patch.setattr(os, call, fail)
        with pytest.raises(SourceError, match=f"src/class-1: can't be listed: {os.strerror(code)}"):
            shard(str(source), str(tmp_path / "out"), replace(options, skip_unreadable=True))
        if call == "scandir":
            with pytest.raises(SourceError, match=f"src/class-1: can't be listed: {os.strerror(code)}"):
                FolderDataset(source)
    assert shard(str(source), str(tmp_path / "out"), options).samples == 6


def test_a_bad_spot_of_the_disk_ends_the_run_unless_its_file_is_to_be_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = make_tree(tmp_path / "src", 2, 3)
    bad = source / "class-1" / "img-001.jpg"
    real = os.read

    def fail(descriptor: int, count: int) -> bytes:
        if os.readlink(f"/proc/self/fd/{descriptor}") == str(bad):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(descriptor, count)

    monkeypatch.setattr(os, "read", fail)
    options = kept(samples_per_shard=1, max_bad=1)
    with pytest.raises(ShardError, match=r"class-1/img-001\.jpg: can't be read: Input/output error; nothing is lost"):
        shard(str(source), str(tmp_path / "out"), options)
    summary = shard(str(source), str(tmp_path / "out"), replace(options, skip_unreadable=True))
    assert (summary.samples, summary.bad) == (5, 1)
    assert rejected(tmp_path / "out") == {"class-1/img-001.jpg": "unreadable: Input/output error"}


def test_a_folder_that_vanishes_while_it_is_listed_ends_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = make_tree(tmp_path / "src", 2, 3)
    real = os.scandir

    def scandir(path: str) -> object:
        if str(path).endswith("class-0"):
            shutil.rmtree(source / "class-1")
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    with pytest.raises(SourceError, match="src/class-1: vanished while it was being listed"):
        shard(str(source), str(tmp_path / "out"))


def test_a_source_behind_an_unreadable_folder_is_not_called_missing(unprivileged: Path) -> None:
    make_tree(unprivileged / "secret" / "src", 1, 1)
    (unprivileged / "secret").chmod(0)
    for name in ("src", "list.csv", "x.tar"):
        with pytest.raises(SourceError, match=f"secret/{name}: can't be examined: Permission denied"):
            shard(str(unprivileged / "secret" / name), str(unprivileged / "out"))


def test_a_pattern_of_tars_passes_over_no_unreadable_folder(unprivileged: Path) -> None:
    for name in "ab":
        (unprivileged / name).mkdir()
        write_tar(unprivileged / name / "x.tar", [("k.jpg", JPEG)])
    (unprivileged / "b").chmod(0o300)
    with pytest.raises(SourceError, match="/b: unreadable folder: Permission denied"):
        shard(str(unprivileged / "*" / "*.tar"), str(unprivileged / "out"), kept())


def test_a_folder_dataset_passes_over_no_unreadable_folder(unprivileged: Path) -> None:
    source = make_tree(unprivileged / "src", 2, 2)
    below = source / "class-0" / "below"
    below.mkdir()
    shutil.copy(source / "class-0" / "img-000.jpg", below)
    below.chmod(0)
    with pytest.raises(SourceError, match="class-0/below: unreadable folder: Permission denied"):
        FolderDataset(source)
    below.chmod(0o755)
    assert len(FolderDataset(source)) == 5
    secret = unprivileged / "secret"
    (secret / "class-2").mkdir(parents=True)
    (source / "class-2").symlink_to(secret / "class-2")
    secret.chmod(0)
    with pytest.raises(SourceError, match="src/class-2: unreadable folder: Permission denied"):
        FolderDataset(source)


def test_odd_names_are_no_reason_to_reject(tmp_path: Path) -> None:
    folder = tmp_path / "src" / "Größe 日本"
    folder.mkdir(parents=True)
    names = [
        "a b.jpg",
        "ünïcode-🦊.jpg",
        "many.dots.in.name.jpg",
        "x" * 251 + ".jpg",
        "-rf.jpg",
        "new\nline.jpg",
        "noext",
    ]
    raw = [os.fsencode(name) for name in names] + [b"undecodable-\xff\xfe.jpg"]
    for i, name in enumerate(raw):
        with open(os.path.join(os.fsencode(folder), name), "wb") as file:
            file.write(encode(pixels(i)))
    out = sharded(tmp_path / "src", tmp_path)
    assert rejected(out) == {}
    assert {path for path, _, _ in samples_of(out)} == {f"Größe 日本/{os.fsdecode(name)}" for name in raw}


def test_the_extension_follows_the_bytes_not_the_name(tmp_path: Path) -> None:
    folder = tmp_path / "src" / "c"
    folder.mkdir(parents=True)
    kinds = {"png": "PNG", "webp": "WEBP", "bmp": "BMP", "gif": "GIF", "tiff": "TIFF", "ppm": "PPM", "jpg": "JPEG"}
    for extension, kind in kinds.items():
        (folder / f"{extension}.JPEG").write_bytes(encode(pixels(3), kind))
    index = Index(sharded(tmp_path / "src", tmp_path) / "index.bin")
    assert {index.source_path(i): index.image_field(i) for i in range(len(index))} == {f"c/{e}.JPEG": e for e in kinds}


def test_size_and_orientation_stand_in_the_index(tmp_path: Path) -> None:
    folder = tmp_path / "src" / "c"
    folder.mkdir(parents=True)
    for orientation in range(1, 9):
        (folder / f"{orientation}.jpg").write_bytes(encode(pixels(0, 30, 20), orientation=orientation))
        (folder / f"{orientation}.png").write_bytes(encode(pixels(0, 30, 20), "PNG", orientation=orientation))
    (folder / "none.jpg").write_bytes(encode(pixels(0, 30, 20)))
    index = Index(sharded(tmp_path / "src", tmp_path) / "index.bin")
    for i in range(len(index)):
        name = Path(index.source_path(i)).stem
        assert int(index.orientation[i]) == (1 if name == "none" else int(name))
        assert (int(index.width[i]), int(index.height[i])) == (30, 20)


def test_a_folder_without_images_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    with pytest.raises(SourceError, match="no image found"):
        shard(str(tmp_path / "src"), str(tmp_path / "out"))
    with pytest.raises(SourceError, match=r"missing: no such file or folder; expected a folder of images"):
        shard(str(tmp_path / "missing"), str(tmp_path / "out"))
    (tmp_path / "data.xlsx").touch()
    with pytest.raises(SourceError, match="is no dataset that feeder knows"):
        shard(str(tmp_path / "data.xlsx"), str(tmp_path / "out"))


# Manifests

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
        ([-1, 1, None, 1], [-1.0, 1.0, None, 1.0]),
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


def test_ids_become_paths_and_targets_stand_in_the_index(images: Path, tmp_path: Path) -> None:
    (tmp_path / "tables").mkdir()
    table = tmp_path / "tables/train.csv"
    table.write_text("id,label,x,y\nimg-002,a,0.1,7\nimg-000,b,,-1\n\nimg-001,c,wrong,0\n")
    columns = ManifestColumns(targets=("x", "y"), root=str(images / "class-0"), suffix=".jpg")
    out = sharded(table, tmp_path, columns)
    assert rejected(out) == {"train.csv#3": "column 'x' holds 'wrong', expected a number"}
    index = Index(out / "index.bin")
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
    with pytest.raises(ShardError, match="targets were x, are y"):
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
        sharded(images, tmp_path / "b", ManifestColumns(suffix=".jpg"))
    for columns in (ManifestColumns(has_labels=False), ManifestColumns(label="a")):
        with pytest.raises(SourceError, match="a folder's classes are its subfolders"):
            sharded(images, tmp_path / "b", columns)
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
        "./class-0//img-000.jpg": "duplicate path",
        "class-0": "not a regular file",
        "gone.jpg": "not found",
        "list.jsonl#2": "line 2: not JSON: Expecting value: line 1 column 1 (char 0)",
        "list.jsonl#3": "line 3: expected an object, got list",
        "list.jsonl#6": "no path in column 'path'",
    }


def test_csv_rows_with_too_few_columns_are_listed(images: Path, tmp_path: Path) -> None:
    (images / "list.csv").write_text("path,label\nclass-0/img-000.jpg,1\nclass-0/img-001.jpg\n")
    assert rejected(sharded(images / "list.csv", tmp_path)) == {"list.csv#2": "line 3: 1 column, expected 2"}


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
        ("path,path\nx,y\n", ManifestColumns(), "names a column twice"),
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
    ("text", "message"),
    [
        ('path,label\n"class-0/img-000.jpg,1\nclass-0/img-001.jpg,2\n"x",3\n', "can't be read|stray quote on line 2"),
        ('path,label\n"class-0/img-000.jpg,1\nclass-0/img-001.jpg,2\n', "unexpected end of data"),
        ("path,label\nclass-0/img-000.jpg,99999999999999999999\n", "holds the label 9999"),
    ],
)
def test_nothing_is_lost_by_a_stray_quote_or_a_wild_label(
    images: Path, tmp_path: Path, text: str, message: str
) -> None:
    (images / "list.csv").write_text(text)
    with pytest.raises(SourceError, match=message):
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
    monkeypatch.setattr(parquet, "BATCH_VALUES", 99_999)
    with pytest.raises(SourceError, match=r"column 'x.list.element' has 100,000 values in a row, more than 99,999"):
        sharded(images / "lists.parquet", tmp_path)
    monkeypatch.setattr(parquet, "BATCH_BYTES", 1 << 20)
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


def test_rows_that_cannot_be_written_as_json_are_listed(images: Path, tmp_path: Path) -> None:
    (images / "list.jsonl").write_text(
        '{"path": "class-0/img-000.jpg", "note": "\\ud800"}\n{"path": "class-0/img-001.jpg", "note": NaN}\n'
        '{"path": "class-0/img-002.jpg", "note": "fine"}\n'
    )
    found = rejected(sharded(images / "list.jsonl", tmp_path))
    assert sorted(found) == ["list.jsonl#1", "list.jsonl#2"]
    assert all("can't be written as JSON" in reason for reason in found.values())


def test_a_list_as_label_is_an_error(images: Path, tmp_path: Path) -> None:
    (images / "list.jsonl").write_text('{"path": "class-0/img-000.jpg", "label": [1, 2]}\n')
    with pytest.raises(SourceError, match=r"holds \[1, 2\]; labels are"):
        sharded(images / "list.jsonl", tmp_path)


class StopAtOnce(Progress):
    def advance(self, samples: int, size_bytes: int) -> None:
        raise KeyboardInterrupt


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
    with pytest.raises(ShardError, match=r"list\.csv had \d+ bytes"):
        shard(str(manifest), str(tmp_path / "out"))


# Tars


def write_tar(path: Path, members: list[tuple[str, bytes]], mode: str = "w") -> Path:
    with tarfile.open(path, mode) as tar:  # type: ignore[call-overload]
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return path


def tar_members(count: int, first: int = 0) -> list[tuple[str, bytes]]:
    found = []
    for i in range(first, first + count):
        fields = [("jpg", encode(pixels(i))), ("cls", b"%d" % (i % 3)), ("json", b'{"i":%d}' % i), ("seg.png", b"\x89")]
        found += [(f"dir/{i:04d}.{field}", data) for field, data in fields]
    return found


def test_tars_by_brace_pattern_plain_and_gzipped_keep_all_fields(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    write_tar(tmp_path / "in" / "t-0.tar", tar_members(4))
    write_tar(tmp_path / "in" / "t-1.tar", tar_members(3, 4))
    out = sharded(tmp_path / "in" / "t-{0..1}.tar", tmp_path)
    assert {path for path, _, _ in samples_of(out)} == {
        *(f"t-0.tar/dir/{i:04d}" for i in range(4)),
        *(f"t-1.tar/dir/{i:04d}" for i in range(4, 7)),
    }
    for path, data, label in samples_of(out):
        i = int(path[-4:])
        assert (data, label) == (encode(pixels(i)), i % 3)
        assert member(out, path, "json") == b'{"i":%d}' % i
        assert member(out, path, "seg.png") == b"\x89"
    # The same tars gzipped give the same shards, but for the names of the tars.
    for tar in list((tmp_path / "in").glob("*.tar")):
        Path(f"{tar}.gz").write_bytes(gzip.compress(tar.read_bytes()))
        tar.unlink()
    out2 = tmp_path / "out2"
    shard(str(tmp_path / "in"), str(out2), kept(samples_per_shard=5))
    assert (out2 / "shard-000001.tar").read_bytes() == (out / "shard-000001.tar").read_bytes()


def test_resharding_own_shards_keeps_class_names(tmp_path: Path) -> None:
    make_tree(tmp_path / "images", 2, 3)
    shard(str(tmp_path / "images"), str(tmp_path / "a"))
    shard(str(tmp_path / "a"), str(tmp_path / "b"), ShardOptions(seed=9))
    assert Manifest.read(str(tmp_path / "b")).classes == ["class-0", "class-1"]  # type: ignore[union-attr]
    assert sorted(d for _, d, _ in samples_of(tmp_path / "b")) == sorted(d for _, d, _ in samples_of(tmp_path / "a"))


def test_hostile_and_odd_tar_members_are_refused_one_by_one(tmp_path: Path) -> None:
    path = tmp_path / "x.tar"
    with tarfile.open(path, "w") as tar:

        def add(name: str, data: bytes = JPEG, kind: bytes = tarfile.REGTYPE, link: str = "") -> None:
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, link
            info.size = len(data) if kind == tarfile.REGTYPE else 0
            tar.addfile(info, io.BytesIO(data))

        add("good.jpg")
        add("soft.jpg", kind=tarfile.SYMTYPE, link="/etc/passwd")
        add("hard.jpg", kind=tarfile.LNKTYPE, link="good.jpg")
        add("/abs.jpg")
        add("../up.jpg")
        add("dev.jpg", kind=tarfile.CHRTYPE)
        add("half.jpg")
        add("half.cls", kind=tarfile.SYMTYPE, link="x")
        add("text.txt", b"no image")
        add("twice.jpg")
        add("twice.jpg")
        add("good.jpg")
        add("README")
        add("bad.jpg", b"no image")
        add("last.jpg")
    out = sharded(path, tmp_path)
    assert rejected(out) == {
        "x.tar//abs": "absolute name refused",
        "x.tar/../up": "name with '..' refused",
        "x.tar/README": "no key and extension in its name",
        "x.tar/bad": "not an image: starts with b'no image'",
        "x.tar/dev": "special member (type b'3') refused",
        "x.tar/good": "duplicate key in the same tar",
        "x.tar/half": "link to 'x' refused",
        "x.tar/hard": "link to 'good.jpg' refused",
        "x.tar/soft": "link to '/etc/passwd' refused",
        "x.tar/text": "no image among its fields: txt",
        "x.tar/twice": "two fields named 'jpg'",
    }
    assert {path for path, _, _ in samples_of(out)} == {"x.tar/good", "x.tar/last"}


def test_a_tar_cut_anywhere_gives_its_whole_samples_and_says_where_it_ends(tmp_path: Path) -> None:
    whole = write_tar(tmp_path / "whole.tar", tar_members(2)).read_bytes()
    data_end = len(whole.rstrip(b"\0"))
    first_sample_end = None
    for length in range(512, data_end, 700):
        (tmp_path / "in").mkdir()
        (tmp_path / "in" / "t.tar").write_bytes(whole[:length])
        try:
            out = sharded(tmp_path / "in", tmp_path)
            found, reasons = samples_of(out), rejected(out)
            for _, data, _ in found:
                assert data in (encode(pixels(0)), encode(pixels(1)))
            if length % 512:
                assert any("truncated tar" in r or "damaged tar" in r for r in reasons.values()), (length, reasons)
            if found:
                first_sample_end = first_sample_end or length
        except SourceError as error:
            assert "no image found" in str(error)  # noqa: PT017
        shutil.rmtree(tmp_path / "out", ignore_errors=True)
        shutil.rmtree(tmp_path / "in")
    assert first_sample_end is not None


def test_a_damaged_header_in_the_middle_is_not_taken_for_the_end(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "t.tar", tar_members(3))
    data = bytearray(path.read_bytes())
    with tarfile.open(path) as tar:
        header = tar.getmember("dir/0001.jpg").offset
    data[header : header + 20] = b"\xff" * 20
    path.write_bytes(data)
    out = sharded(path, tmp_path)
    assert rejected(out) == {
        "t.tar": f"damaged tar: no valid header at byte {header} (bad checksum); "
        f"reading went on at byte {header + 1536}",
        "t.tar/dir/0001": "may be incomplete, beside damage or where archives meet: it has only cls, json, seg.png",
    }
    assert sorted(path for path, _, _ in samples_of(out)) == ["t.tar/dir/0000", "t.tar/dir/0002"]


def test_a_zeroed_header_takes_one_sample_and_no_label(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "t.tar", tar_members(4))
    data = bytearray(path.read_bytes())
    with tarfile.open(path) as tar:
        headers = [tar.getmember(name).offset for name in ("dir/0001.cls", "dir/0003.jpg")]
    for header in headers:
        data[header : header + 512] = bytes(512)
    path.write_bytes(data)
    for mode in ("shard", "index"):
        if mode == "shard":
            out = sharded(path, tmp_path)
            found, index = rejected(out), Index(out / "index.bin")
            rows = [json.loads(line) for line in (out / "rejected.jsonl").read_text().splitlines()]
            assert {row["path"]: row["bad"] for row in rows} == dict.fromkeys(
                ["t.tar", "t.tar/dir/0001", "t.tar/dir/0003"], True
            )
        else:
            summary = index_tars(str(path))
            found, index = {r.path: r.reason for r in summary.rejected}, Index(summary.path)
            damages = [r.reason for r in summary.rejected if r.path == "t.tar"]
            assert [int(re.findall(r"byte (\d+)", reason)[0]) for reason in damages] == headers
        assert found["t.tar/dir/0001"].endswith("only jpg, json, seg.png")
        assert found["t.tar/dir/0003"].endswith("only cls, json, seg.png")
        labels = {index.source_path(i): int(index.label[i]) for i in range(len(index))}
        assert labels == {"t.tar/dir/0000": 0, "t.tar/dir/0002": 2}


def test_a_hole_of_zeros_is_noted_and_takes_no_label(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "t.tar", tar_members(4))
    data = bytearray(path.read_bytes())
    with tarfile.open(path) as tar:
        start, end = (tar.getmember(f"dir/{name}").offset for name in ("0001.cls", "0002.jpg"))
    data[start:end] = bytes(end - start)
    path.write_bytes(data)
    out = sharded(path, tmp_path)
    reason = "may be incomplete, beside damage or where archives meet: it has only jpg"
    assert rejected(out) == {"t.tar/dir/0001": reason}
    assert sorted(path for path, _, _ in samples_of(out)) == [f"t.tar/dir/{i:04d}" for i in (0, 2, 3)]
    notes = shard(str(path), str(out), kept(max_bad=1, samples_per_shard=5)).notes
    assert sum("1 tar with another archive behind the first" in note for note in notes) == 1


def test_a_sample_with_a_zeroed_label_is_rejected_and_the_others_stay_as_they_are(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "t.tar", [(name, data) for name, data in tar_members(4) if "json" not in name])
    data = bytearray(path.read_bytes())
    with tarfile.open(path) as tar:
        data[tar.getmember("dir/0001.cls").offset_data] = 0
    path.write_bytes(data)
    out = sharded(path, tmp_path)
    assert {path[-1]: label for path, _, label in samples_of(out)} == {"0": 0, "2": 2, "3": 0}
    assert rejected(out) == {"t.tar/dir/0001": "its label is binary or too long"}


def test_concatenated_tars_are_read_to_the_end(tmp_path: Path) -> None:
    parts = [write_tar(tmp_path / f"{i}.tar", tar_members(2, 2 * i)).read_bytes() for i in range(3)]
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "t.tar").write_bytes(b"".join(parts))
    out = sharded(tmp_path / "in", tmp_path)
    assert rejected(out) == {}
    assert {path for path, _, _ in samples_of(out)} == {f"t.tar/dir/{i:04d}" for i in range(6)}
    assert index_tars(str(tmp_path / "in")).samples == 6
    (tmp_path / "t.tar.gz").write_bytes(b"".join(map(gzip.compress, parts)))
    assert shard(str(tmp_path / "t.tar.gz"), str(tmp_path / "out-gz"), kept()).samples == 6


def test_samples_where_archives_meet_may_have_any_format_and_lack_what_others_lack(tmp_path: Path) -> None:
    png = encode(pixels(7), "PNG")
    several = [("0.jpg", JPEG), ("0.cls", b"1"), ("1.jpg", JPEG), ("1.cls", b"1"), ("1.json", b"{}"), ("2.png", png)]
    archive = write_tar(tmp_path / "a.tar", [*several, ("2.cls", b"1")]).read_bytes()
    other = write_tar(tmp_path / "b.tar", [("2.png", png), ("2.cls", b"1"), *several[:4]]).read_bytes()
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "t.tar").write_bytes(archive + other)
    out = sharded(tmp_path / "in", tmp_path)
    assert set(rejected(out).values()) == {"duplicate key in the same tar"}
    assert sorted(path[-1] for path, _, _ in samples_of(out)) == ["0", "1", "2"]


def test_a_damaged_gzip_gives_what_comes_before(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    packed = gzip.compress(write_tar(tmp_path / "t.tar", tar_members(30)).read_bytes())
    (tmp_path / "in" / "t.tar.gz").write_bytes(packed[: len(packed) * 2 // 3])
    out = sharded(tmp_path / "in", tmp_path)
    assert 5 < len(samples_of(out)) < 30
    assert any("damaged gzip" in reason for reason in rejected(out).values())


@pytest.mark.parametrize("source", ["pipe:cat x.tar", "http://example.invalid/x.tar", "s3://bucket/x-{0..3}.tar"])
def test_nothing_is_executed_or_fetched(tmp_path: Path, source: str) -> None:
    with pytest.raises(SourceError, match="only local files"):
        shard(source, str(tmp_path / "out"))


def test_a_pattern_that_names_no_file_says_which(tmp_path: Path) -> None:
    write_tar(tmp_path / "t-0.tar", tar_members(1))
    with pytest.raises(SourceError, match=r"no tar at .*t-1\.tar"):
        shard(str(tmp_path / "t-{0..1}.tar"), str(tmp_path / "out"))


def test_more_tars_than_descriptors_are_no_problem(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for i in range(260):
        write_tar(tmp_path / "in" / f"t-{i:03d}.tar", [("a.jpg", encode(pixels(i)))])
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 180, limits[1]))
    try:
        out = sharded(tmp_path / "in", tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert len(samples_of(out)) == 260
    assert rejected(out) == {}


def test_text_labels_of_tars_are_classes_in_sorted_order(tmp_path: Path) -> None:
    texts = [b"3", b" cat\n", b"-1", "été".encode(), b"cat", b"\xff", b""]
    members = [(f"{i}.{field}", data) for i, text in enumerate(texts) for field, data in (("JPG", JPEG), ("CLS", text))]
    write_tar(tmp_path / "t.tar", members)
    notes: list[str] = []

    class Notes(Progress):
        def note(self, line: str) -> None:
            notes.append(line)

    shard(str(tmp_path / "t.tar"), str(tmp_path / "out"), progress=Notes())
    labels = {"0": 0, "1": 1, "2": -1, "3": 2, "4": 1, "6": -1}
    assert {path[-1]: label for path, _, label in samples_of(tmp_path / "out")} == labels
    assert any("labels are class names, as the cls field holds 'cat'" in note for note in notes)
    assert any("2 samples without a label" in note for note in notes)
    assert rejected(tmp_path / "out") == {"t.tar/5": "its label is binary or too long"}
    index = index_tars(str(tmp_path / "t.tar")).path
    for path in (tmp_path / "out", index):
        dataset = ShardDataset(path, fields=["path"])
        assert dataset.classes == ["3", "cat", "été"]
        assert {sample[2][-1]: sample[1] for sample in dataset} == labels  # type: ignore[attr-defined]
    again = tmp_path / "again"
    shard(str(tmp_path / "out"), str(again))  # the names are those of the set, whichever of them are used
    assert Manifest.read(str(again)).classes == ["3", "cat", "été"]  # type: ignore[union-attr]


@pytest.mark.parametrize("odd", [b"1x", b"07", b"\0\0", b"z" * 300])
@pytest.mark.parametrize("kind", ["shard", "index", "key", "csv"])
def test_an_odd_label_is_rejected_and_moves_no_other(tmp_path: Path, odd: bytes, kind: str) -> None:
    texts = {i: odd if i == 11 else b"%d" % i for i in range(25)}
    if kind == "csv":
        for i in texts:
            (tmp_path / f"{i}.jpg").write_bytes(JPEG)
        source = tmp_path / "t.csv"
        source.write_bytes(b"path,label\n" + b"".join(b"%d.jpg,%s\n" % row for row in texts.items()))
    else:
        name, field = ("json", b'{"k": "%s"}') if kind == "key" else ("cls", b"%s")
        members = [(f"{i}.{f}", data) for i, t in texts.items() for f, data in (("jpg", JPEG), (name, field % t))]
        source = tmp_path / "t.tar"
        write_tar(source, members)
    columns = ManifestColumns(label="k" if kind == "key" else None)
    if kind == "index":
        summary = index_tars(str(source))
        found, path = {r.path: r.reason for r in summary.rejected if r.bad}, summary.path
    else:
        shard(str(source), str(tmp_path / "out"), kept(columns=columns))
        found, path = rejected(tmp_path / "out"), str(tmp_path / "out")
    dataset = ShardDataset(path, fields=["path"])
    assert {Path(row).stem: label for row, label in zip(dataset.column("path"), dataset.targets, strict=True)} == {
        str(i): i for i in texts if i != 11
    }
    assert dataset.classes is None
    assert len(found) == 1
    ((name, reason),) = found.items()
    assert "11" in name
    assert "its label" in reason or "not JSON" in reason or "control character" in reason


@pytest.mark.parametrize("options", [{"label": "k"}, {"targets": ("k",)}])
def test_json_that_is_too_large_or_too_deep_for_a_label_is_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    monkeypatch.setattr("feeder.shard.source.tar_labels.LARGE_BYTES", 100_000)
    rows = [b'{"k": 1}', b'{"k": %s1%s}' % (b"[" * 40_000, b"]" * 40_000), b'{"k": 1, "x": "%s"}' % (b"x" * 100_000)]
    members = [(f"{i}.{field}", data) for i, row in enumerate(rows) for field, data in (("jpg", JPEG), ("json", row))]
    write_tar(tmp_path / "t.tar", members)
    shard(str(tmp_path / "t.tar"), str(tmp_path / "out"), kept(columns=ManifestColumns(**options)))
    assert rejected(tmp_path / "out") == {
        "t.tar/1": "no label: its json is nested too deeply",
        "t.tar/2": "no label: its json has 100,017 bytes, more than 100,000",
    }
    shard(str(tmp_path / "t.tar"), str(tmp_path / "all"), kept())
    with pytest.raises(DecodeError, match="field 'json' is not JSON: maximum recursion depth"):
        ShardDataset(tmp_path / "all").column("json")


def test_names_beside_numbers_in_a_column_are_noted(tmp_path: Path) -> None:
    for i in range(4):
        (tmp_path / f"{i}.jpg").write_bytes(JPEG)
    for values, expected in (((3, 0, "NA", 3), 1), (("a", "b", "NA", "b"), 0)):
        (tmp_path / "t.csv").write_text("path,label\n" + "".join(f"{i}.jpg,{v}\n" for i, v in enumerate(values)))
        notes = shard(str(tmp_path / "t.csv"), str(tmp_path / f"out-{expected}"), kept()).notes
        found = [note for note in notes if "class names, as column 'label' holds 'NA' beside numbers such as 0" in note]
        assert len(found) == expected


def test_a_label_from_json_takes_the_place_of_the_cls_field(tmp_path: Path) -> None:
    rows: list[dict[str, str]] = [{"kind": "dog"}, {"kind": "cat"}, {}]
    fields = [{"jpg": JPEG, "cls": b"7", "json": json.dumps(row).encode()} for row in rows]
    write_tar(tmp_path / "t.tar", [(f"{i}.{name}", data) for i, f in enumerate(fields) for name, data in f.items()])
    shard(str(tmp_path / "t.tar"), str(tmp_path / "a"), kept(columns=ManifestColumns(label="kind"), shuffle=False))
    shard(str(tmp_path / "a"), str(tmp_path / "b"), kept(shuffle=False))
    for name in "ab":
        dataset = ShardDataset(tmp_path / name)
        assert (dataset.classes, dataset.targets) == (["cat", "dog"], [1, 0, -1])
        assert dataset.column("cls") == [b"1", b"0", None]


@pytest.mark.parametrize("index_only", [False, True])
def test_labels_and_targets_come_from_keys_of_json(tmp_path: Path, index_only: bool) -> None:
    rows: Sequence[Mapping[str, object]] = [{"kind": "dog", "age": 0.5, "x": 1}, {"kind": "cat", "age": -3, "x": 2}, {}]
    members = []
    for i, row in enumerate(rows):
        members += [(f"{i}.jpg", encode(pixels(i))), (f"{i}.json", json.dumps(row).encode()), (f"{i}.cls", b"7")]
    write_tar(tmp_path / "t.tar", members)

    def read(columns: ManifestColumns) -> ShardDataset:
        if index_only:
            return ShardDataset(index_tars(str(tmp_path / "t.tar"), columns=columns).path, fields=["path"])
        out = tmp_path / f"out-{columns.label or '-'.join(columns.targets)}"
        shard(str(tmp_path / "t.tar"), str(out), kept(columns=columns, shuffle=False))
        return ShardDataset(out, fields=["path"])

    dataset = read(ManifestColumns(label="kind"))
    assert (dataset.classes, dataset.targets) == (["cat", "dog"], [1, 0, -1])
    targets = np.array(read(ManifestColumns(label="age")).targets, np.float32)
    assert np.array_equal(targets, np.array([0.5, -3, np.nan], np.float32), equal_nan=True)
    targets = np.array(read(ManifestColumns(targets=("x", "age"))).targets, np.float32)
    assert np.array_equal(targets, np.array([[1, 0.5], [2, -3], [np.nan] * 2], np.float32), equal_nan=True)
    with pytest.raises(SourceError, match="no sample has 'kinds' in a json field"):
        read(ManifestColumns(label="kinds"))
    (tmp_path / "index.bin").unlink(missing_ok=True)
    write_tar(tmp_path / "t.tar", members[:3])
    with pytest.raises(SourceError, match="'kind' of the json field holds 'dog', expected a number"):
        read(ManifestColumns(targets=("age", "kind")))


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ([("a.json", b'{"label": 3}')], "no sample has a label in the cls field"),
        ([("a.cls", b"-1")], "no sample has a label in the cls field"),
    ],
)
def test_tars_without_labels_are_noted_once(tmp_path: Path, extra: list[tuple[str, bytes]], message: str) -> None:
    for i in range(2):
        write_tar(tmp_path / f"t-{i}.tar", [("a.jpg", encode(pixels(i))), *extra])
    pattern = str(tmp_path / "t-{0..1}.tar")
    assert shard(pattern, str(tmp_path / "out"), dry_run=True).notes == [f"{pattern}: {message}"]
