"""Every input of every kind of source becomes a sample, or is rejected with a reason, or a note counts it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from feeder.dataset.dataset_shards import write_shards
from feeder.shard.source.table_file import ManifestColumns
from feeder.shard.source.target_sources import TargetSources
from feeder.shard.write.index_tars import index_tars
from feeder.shard.write.shard_options import ShardSummary
from feeder.shard.write.sharding import shard
from tests.support.images import encode, pixels
from tests.support.remote import Bucket
from tests.support.shard_sets import kept, rejected, samples_of, write_tar

JPEG, MASK = encode(pixels(1)), encode(pixels(1).convert("L"), "PNG")
XML = b"<annotation></annotation>"
LEFT_OUT = {"__MACOSX/1.jpg": JPEG, "._1.jpg": JPEG, "9.jpg.part": JPEG}
CLASSES = {"cat/1.jpg": JPEG, "cat/2.jpg": JPEG, "dog/1.jpg": b"x", "top.jpg": JPEG, **LEFT_OUT}


def _put(folder: Path, files: dict[str, bytes]) -> Path:
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return folder


def _sharded(source: Path | str, out: Path, **options: Any) -> ShardSummary:
    return shard(str(source), str(out), kept(max_bad=1, **options))


def _class_folders(place: Path, out: Path) -> ShardSummary:
    return _sharded(_put(place / "src", CLASSES), out)


def _flat_folder(place: Path, out: Path) -> ShardSummary:
    return _sharded(_put(place / "src", {"1.jpg": JPEG, "2.jpg": b"x", **LEFT_OUT}), out)


def _table(place: Path, out: Path) -> ShardSummary:
    _put(place, {"1.jpg": JPEG, "rows.csv": b"path\n1.jpg\ngone.jpg\n1.jpg\n\x00\n"})
    return _sharded(place / "rows.csv", out)


def _joined_table(place: Path, out: Path) -> ShardSummary:
    _put(place, {"1.jpg": JPEG, "2.jpg": JPEG, "rows.csv": b"path,text\n1.jpg,a\n1.jpg,b\n2.jpg,c\n"})
    summary = _sharded(place / "rows.csv", out, columns=ManifestColumns(lists=("text",)))
    assert any("3 rows joined to 2 samples" in note for note in summary.notes)
    return summary


def _tars(place: Path, out: Path) -> ShardSummary:
    folder = _put(place / "src", {"._a.tar": b"x", "b.tar.part": b"x", "c.tar.zst": b"x", "d.jpg": JPEG})
    write_tar(folder / "a.tar", [("1.jpg", JPEG), ("1.cls", b"3"), ("2.txt", b"x"), ("README", b"x")])
    hidden = [(f"{folder}/{k}.jpg", JPEG) for folder in ("__MACOSX", "./x/.thumbs") for k in range(3)]
    write_tar(folder / "E.TAR", [("1.jpg", JPEG), *hidden, ("../2.jpg", JPEG)])
    return _sharded(folder, out)


def _coco(place: Path, out: Path) -> ShardSummary:
    images = [{"id": k, "file_name": f"{k}.jpg"} for k in (1, 2)]
    data = json.dumps({"images": images, "annotations": [{"image_id": 9}], "categories": []}).encode()
    folder = _put(place / "src", {"1.jpg": JPEG, "coco.json": data, "names.txt": b"1\n2\n7\n"})
    targets = TargetSources(annotations=str(folder / "coco.json"), names=str(folder / "names.txt"))
    return _sharded(folder, out, targets=targets)


def _voc(place: Path, out: Path) -> ShardSummary:
    _put(place, {"src/1.jpg": JPEG, "src/2.jpg": JPEG, "xml/1.xml": XML, "xml/3.xml": XML})
    _put(place / "src", LEFT_OUT)
    return _sharded(place / "src", out, targets=TargetSources(annotations=str(place / "xml")))


def _pairs(place: Path, out: Path) -> ShardSummary:
    _put(place, {"src/1.jpg": JPEG, "src/2.jpg": JPEG, "masks/1.png": MASK, "masks/3.png": MASK})
    _put(place / "src", LEFT_OUT)
    return _sharded(place / "src", out, targets=TargetSources(pairs=(("masks", str(place / "masks")),)))


def _written(place: Path, out: Path) -> ShardSummary:
    samples: list[dict[str, Any]] = [
        {"__key__": "1", "jpg": JPEG},
        {"__key__": "2", "txt": "x"},
        {"__key__": "1", "jpg": JPEG},
    ]
    return write_shards(samples, out, max_bad=1)


@pytest.mark.parametrize(
    ("source", "samples", "inputs"),
    [
        (_class_folders, 2, 7),
        (_flat_folder, 1, 5),
        (_table, 1, 4),
        (_joined_table, 2, 2),
        (_tars, 2, 11),
        (_coco, 1, 4),
        (_voc, 1, 6),
        (_pairs, 1, 6),
        (_written, 1, 3),
    ],
)
def test_all_inputs_are_samples_or_rejected(
    tmp_path: Path, source: Callable[[Path, Path], ShardSummary], samples: int, inputs: int
) -> None:
    _check(tmp_path / "out", source(tmp_path, tmp_path / "out"), samples, inputs)


def test_all_objects_of_a_store_are_samples_or_rejected(tmp_path: Path, bucket: Bucket) -> None:
    for name, data in CLASSES.items():
        bucket.put(f"src/{name}", data)
    _check(tmp_path / "out", _sharded(f"{bucket.url}/src", tmp_path / "out"), 2, 7)


@pytest.mark.parametrize("command", ["shard", "index"])
def test_all_tars_of_a_store_are_read_or_left_out(tmp_path: Path, bucket: Bucket, command: str) -> None:
    write_tar(tmp_path / "a.tar", [("1.jpg", JPEG), ("@eaDir/2.jpg", JPEG)])
    for name in ("a.tar", "B.TAR"):
        bucket.put(f"src/{name}", (tmp_path / "a.tar").read_bytes())
    for name in ("._a.tar", "c.tar.xz", "d.jpg"):
        bucket.put(f"src/{name}", b"x")
    if command == "shard":
        _check(tmp_path / "out", _sharded(f"{bucket.url}/src", tmp_path / "out"), 2, 7)
    else:
        found = index_tars(f"{bucket.url}/src")
        assert (found.shards, found.samples, len(found.rejected)) == (2, 2, 5)


def _check(out: Path, summary: ShardSummary, samples: int, inputs: int) -> None:
    assert (summary.samples, summary.samples + summary.rejected, summary.inputs) == (samples, inputs, inputs)
    assert len(samples_of(out)) == samples
    lines = (out / "rejected.jsonl").read_text().splitlines() if summary.rejected else []
    assert len(lines) == summary.rejected == len(rejected(out))
    told = sum(int(found) for found in _left_out(summary.notes))
    assert told == sum("left out by its name" in reason for reason in rejected(out).values())


def _left_out(notes: list[str]) -> Iterator[str]:
    for note in notes:
        if ": left out " in note:
            yield note.partition(": left out ")[2].split()[0]
