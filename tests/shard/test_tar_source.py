"""Tars as a source: fields, hostile members, damage, and labels from cls fields and json."""

from __future__ import annotations

import gzip
import io
import json
import os
import re
import resource
import shutil
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from feeder.dataset.shards import ShardDataset
from feeder.errors import DecodeError, SourceError
from feeder.shard.format.manifest import Manifest
from feeder.shard.format.open_index import open_index
from feeder.shard.format.tar import Member
from feeder.shard.source import tars
from feeder.shard.source.table_file import ManifestColumns
from feeder.shard.write.index_tars import index_tars
from feeder.shard.write.shard_options import ShardOptions
from feeder.shard.write.sharding import shard
from feeder.system.progress import Progress
from tests.support.images import encode, make_tree, pixels
from tests.support.shard_sets import (
    kept,
    member,
    rejected,
    samples_of,
    sharded,
    tar_members,
    write_tar,
)

JPEG = encode(pixels(1))


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


def test_a_byte_order_mark_is_no_part_of_a_label(tmp_path: Path) -> None:
    members = [
        (f"{i}.{name}", data) for i in range(2) for name, data in (("jpg", JPEG), ("cls", b"\xef\xbb\xbf%d" % i))
    ]
    shard(str(write_tar(tmp_path / "a.tar", members)), str(tmp_path / "out"), kept())
    assert sorted(label for _, _, label in samples_of(tmp_path / "out")) == [0, 1]


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
    assert {path for path, _, _ in samples_of(out)} == {"x.tar/abs", "x.tar/good", "x.tar/last"}


@pytest.mark.parametrize(
    "names",
    [
        [f"dir/video.{i:04d}.jpg" for i in range(30)],
        [f"{video}.{i:04d}.jpg" for video, frames in (("a", 9), ("b", 4)) for i in range(frames)],
        [f"2024.{i:02d}-07.{i}.jpg" for i in range(1, 13)],
        [f"v1.5_{i}.jpg" for i in range(3)],
        [f"{i % 7}.{i}5.png" for i in range(20)],
    ],
)
def test_dots_in_keys_are_an_error_that_tells_the_rule(tmp_path: Path, names: list[str]) -> None:
    members = [(f"{name[:-4]}{end}", data) for name in names for end, data in ((name[-4:], JPEG), (".cls", b"1"))]
    tar = write_tar(tmp_path / "x.tar", members)
    key, _, field = Path(names[0]).name.partition(".")
    message = (
        f"x.tar: has [0-9]+ fields such as '{field}' in [0-9]+ samples?: a key ends at the first dot of a file's name, "
        f"so that {key}.{field} is of the sample '{key}'. Pack the files with other names, such as {key}_{field}, or "
        "give --image-field if each sample has so many images"
    )
    with pytest.raises(SourceError, match=message):
        shard(str(tar), str(tmp_path / "out"), kept())
    assert not (tmp_path / "out" / "manifest.json").exists()
    shard(str(tar), str(tmp_path / "asked"), kept(max_bad=1, image_field=field))


def test_more_fields_than_a_table_numbers_are_taken_for_dots_in_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tar = write_tar(tmp_path / "x.tar", [("video.0.jpg", JPEG)])
    members = [Member(f"video.{i}.jpg", 0, 1) for i in range((1 << 16) + 1)]
    monkeypatch.setattr(tars, "read_members", lambda path: iter(members))
    with pytest.raises(
        SourceError, match=r"has 65,537 fields such as '0.jpg' in 1 sample: a key ends at the first dot"
    ):
        shard(str(tar), str(tmp_path / "out"), kept(image_field="0.jpg"))


def test_many_views_of_many_samples_are_no_dots_in_keys_and_the_note_on_them_is_short(tmp_path: Path) -> None:
    members = [(f"s{i}.{view}.jpg", JPEG) for i in range(20) for view in range(15)]
    summary = shard(str(write_tar(tmp_path / "x.tar", members)), str(tmp_path / "out"), kept())
    assert summary.samples == 20
    (note,) = (note for note in summary.notes if "several fields hold images" in note)
    assert note.endswith("'13.jpg' (20 samples) and 9 others: --image-field chooses another")


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
        "t.tar/dir/0001": "may be incomplete, next to damage or where archives meet: it has only cls, json, seg.png",
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
            found, index = rejected(out), open_index(out / "index.bin")
            rows = [json.loads(line) for line in (out / "rejected.jsonl").read_text().splitlines()]
            assert {row["path"]: row["bad"] for row in rows} == dict.fromkeys(
                ["t.tar", "t.tar/dir/0001", "t.tar/dir/0003"], True
            )
        else:
            summary = index_tars(str(path))
            found, index = {r.path: r.reason for r in summary.rejected}, open_index(summary.path)
            damages = [r.reason for r in summary.rejected if r.path == "t.tar"]
            assert [int(re.findall(r"byte (\d+)", reason)[0]) for reason in damages] == headers
        assert found["t.tar/dir/0001"].endswith("only jpg, json, seg.png")
        assert found["t.tar/dir/0003"].endswith("only cls, json, seg.png")
        labels = {index.source_path(i): int(index.column("label")[i]) for i in range(len(index))}
        assert labels == {"t.tar/dir/0000": 0, "t.tar/dir/0002": 2}


def test_a_hole_of_zeros_is_noted_and_takes_no_label(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "t.tar", tar_members(4))
    data = bytearray(path.read_bytes())
    with tarfile.open(path) as tar:
        start, end = (tar.getmember(f"dir/{name}").offset for name in ("0001.cls", "0002.jpg"))
    data[start:end] = bytes(end - start)
    path.write_bytes(data)
    out = sharded(path, tmp_path)
    reason = "may be incomplete, next to damage or where archives meet: it has only jpg"
    assert rejected(out) == {"t.tar/dir/0001": reason}
    assert sorted(path for path, _, _ in samples_of(out)) == [f"t.tar/dir/{i:04d}" for i in (0, 2, 3)]
    notes = shard(str(path), str(out), kept(max_bad=1, samples_per_shard=5)).notes
    assert sum("1 tar with another archive after the first" in note for note in notes) == 1


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


def test_nothing_is_executed(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="nothing is executed"):
        shard("pipe:cat x.tar", str(tmp_path / "out"))


def test_a_pattern_that_names_no_file_says_which(tmp_path: Path) -> None:
    write_tar(tmp_path / "t-0.tar", tar_members(1))
    with pytest.raises(SourceError, match=r"no tar at .*t-1\.tar"):
        shard(str(tmp_path / "t-{0..1}.tar"), str(tmp_path / "out"))


def test_images_are_not_taken_for_tars(tmp_path: Path) -> None:
    make_tree(tmp_path / "tree", classes=2, per_class=1)
    for pattern in (f"{tmp_path}/tree/*/*", f"{tmp_path}/tree/*/*.jpg"):
        with pytest.raises(SourceError, match="names images: give their folder, or a manifest of some of them"):
            shard(pattern, str(tmp_path / "out"))
    with pytest.raises(SourceError, match=r"no tar at .*tree; expected files, such as"):
        index_tars(f"{tmp_path}/./tree")


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
    monkeypatch.setattr("feeder.shard.source.tar_labels.LARGE_BYTES", 500_000)
    deep = b'{"k": %s1%s}' % (b"[" * 200_000, b"]" * 200_000)  # Python 3.14 takes as many as its stack does
    rows = [b'{"k": 1}', deep, b'{"k": 1, "x": "%s"}' % (b"x" * 500_000)]
    members = [(f"{i}.{field}", data) for i, row in enumerate(rows) for field, data in (("jpg", JPEG), ("json", row))]
    write_tar(tmp_path / "t.tar", members)
    shard(str(tmp_path / "t.tar"), str(tmp_path / "out"), kept(columns=ManifestColumns(**options)))
    assert rejected(tmp_path / "out") == {
        "t.tar/1": "no label: its json is nested too deeply",
        "t.tar/2": "no label: its json has 500,017 bytes, more than 500,000",
    }
    shard(str(tmp_path / "t.tar"), str(tmp_path / "all"), kept())
    with pytest.raises(DecodeError, match=r"field 'json' is not JSON: (maximum recursion depth|Stack overflow)"):
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


def test_jpegs_without_an_end_are_indexed_if_all_their_blocks_are_there(tmp_path: Path) -> None:
    data = encode(pixels(1))
    good = {"plain": data, "bare": data[:-2], "zeros": data[:-2] + bytes(64), "ones": data[:-2] + b"\xff" * 9}
    bad = {"half": data[: len(data) // 2], "padded": data[: len(data) // 2] + bytes(len(data))}
    write_tar(tmp_path / "t.tar", [(f"{name}.jpg", each) for name, each in (good | bad).items()])
    summary = index_tars(str(tmp_path / "t.tar"))
    assert [rejected.path for rejected in summary.rejected] == ["t.tar/half", "t.tar/padded"]
    dataset = ShardDataset(summary.path)
    assert all(torch.equal(dataset[i][0], dataset[0][0]) for i in range(len(good)))
