"""Captions and other files beside images, in manifests and in img2dataset's output, as members of the samples."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from feeder.dataset.shards import ShardDataset
from feeder.errors import ArgumentError, ShardError, SourceError
from feeder.fields import Array, Choice, Json, Lines, Text, Tokens
from feeder.loader.dataloader import DataLoader
from feeder.shard.source.folder import open_folder
from feeder.shard.source.pairs import open_pairs
from feeder.shard.source.target_sources import TargetSources
from feeder.shard.write.index_tars import index_tars
from feeder.shard.write.sharding import shard
from feeder.transforms import Resize
from tests.support.field_sets import npy
from tests.support.images import encode, pixels
from tests.support.shard_sets import StopAtOnce, kept, member, rejected, samples_of, sharded, write_tar
from tests.support.tokenizer_files import word_tokenizer

JPEG = encode(pixels(1))


def _write(root: Path, files: dict[str, bytes]) -> Path:
    for name, data in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
    return root


def test_files_beside_an_image_become_members_of_its_sample(tmp_path: Path) -> None:
    embedding = npy(np.ones(3, np.float32))
    source = _write(
        tmp_path / "src",
        {
            **dict.fromkeys(("cat/0.jpg", "cat/1.b.JPG", "cat/1.png", "dog/0.jpg"), JPEG),
            "cat/0.txt": b"a cat",
            "cat/0.json": b'{"n": 1}',
            "cat/0.npy": embedding,
            "cat/0.emb.NPY": embedding,
            "cat/1.b.txt": b"another cat",
            "cat/1.txt": b"a third cat",
            "dog/0.txt": b"a dog",
        },
    )
    out = sharded(source, tmp_path)
    assert rejected(out) == {}
    assert [(path, label) for path, _, label in sorted(samples_of(out))] == [
        ("cat/0.jpg", 0),
        ("cat/1.b.JPG", 0),
        ("cat/1.png", 0),
        ("dog/0.jpg", 1),
    ]
    assert [member(out, path, "txt") for path in ("cat/0.jpg", "cat/1.b.JPG", "cat/1.png", "dog/0.jpg")] == [
        b"a cat",
        b"another cat",
        b"a third cat",
        b"a dog",
    ]
    assert member(out, "cat/0.jpg", "json") == b'{"n": 1}'
    assert member(out, "cat/0.jpg", "npy") == member(out, "cat/0.jpg", "emb.npy") == embedding
    assert member(out, "cat/0.jpg", "cls") == b"0"
    note = "files beside the images are members of their samples: emb.npy (1), json (1), npy (1), txt (4)"
    assert open_folder(str(source)).notes == [f"{source}: {note}"]
    fields = {"txt": Text(), "emb.npy": Array((3,), "float32", optional=True, fill=0)}
    dataset = ShardDataset(out, Resize((8, 8)), fields=fields)
    assert sorted(dataset.column("txt")) == ["a cat", "a dog", "a third cat", "another cat"]
    assert float(np.sum(dataset.column("emb.npy"))) == 3.0


def test_a_flat_folder_has_members_too(tmp_path: Path) -> None:
    out = sharded(_write(tmp_path / "src", {"0.jpg": JPEG, "0.txt": b"flat"}), tmp_path)
    assert rejected(out) == {}
    assert member(out, "0.jpg", "txt") == b"flat"


def test_files_of_no_image_and_those_that_can_be_no_member_are_listed(tmp_path: Path) -> None:
    source = _write(
        tmp_path / "src",
        {
            **{f"a/{name}": JPEG for name in ("0.jpg", "1.jpg")},
            "a/2.txt": b"of none",
            "a/0.cls": b"7",
            "a/0.mov": b"\0" * ((16 << 20) + 1),
            "a/0.txt": b"lower",
            "a/0.TXT": b"upper",
            "a/1.höhe": b"1",
            "a/3.npy": npy(np.zeros(3)),
            "a/4.jpg": b"no image",
            "a/4.txt": b"of a file that is no image",
        },
    )
    os.mkfifo(source / "a/1.txt")
    (source / "a/5.jpg").mkdir()
    (source / "a/5.txt").write_bytes(b"of a folder")
    out = sharded(source, tmp_path)
    assert rejected(out).keys() == {
        *("a/2.txt", "a/0.cls", "a/0.mov", "a/0.txt", "a/1.höhe", "a/1.txt", "a/3.npy", "a/4.jpg", "a/5.txt")
    }
    assert member(out, "a/0.jpg", "txt") == b"upper"
    assert member(out, "a/0.jpg", "cls") == b"0"


def test_a_set_is_not_taken_for_one_with_other_captions(tmp_path: Path) -> None:
    source = _write(tmp_path / "src", {"a/0.jpg": JPEG, "a/0.txt": b"one"})
    out = str(tmp_path / "out")
    assert shard(str(source), out, kept()).written_samples == 1
    assert shard(str(source), out, kept()).written_samples == 0
    (source / "a/0.txt").write_bytes(b"three")
    with pytest.raises(ShardError):
        shard(str(source), out, kept())


def test_a_changed_caption_is_noticed_on_resume(tmp_path: Path) -> None:
    source = _write(tmp_path / "src", {f"a/{i}.{kind}": JPEG for i in range(3) for kind in ("jpg", "txt")})
    with pytest.raises(KeyboardInterrupt):
        shard(str(source), str(tmp_path / "out"), progress=StopAtOnce())
    os.utime(source / "a/1.txt", (1 << 31, 1 << 31))
    with pytest.raises(ShardError, match="over these before they changed"):
        shard(str(source), str(tmp_path / "out"))


def test_pairs_of_one_folder_are_told_apart_by_their_names_alone(tmp_path: Path) -> None:
    _write(tmp_path / "src", {"a/0.jpg": JPEG, "a/0.json": b"{}"})
    source = open_pairs(f"{tmp_path}/src/*.jpg", (("boxes", f"{tmp_path}/src/*.json"),), None)
    assert [field.name for field in source.table.stored_fields(0)] == ["boxes.json"]


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_columns_of_a_manifest_are_fields_of_json(tmp_path: Path, kind: str) -> None:
    _write(tmp_path, {f"{i}.jpg": encode(pixels(i)) for i in range(3)})
    rows: list[dict[str, Any]] = [{"path": f"{i}.jpg", "caption": f"cat {i}", "score": i / 2} for i in range(3)]
    path = tmp_path / f"table.{kind}"
    if kind == "csv":
        path.write_text("".join(",".join(map(str, row)) + "\n" for row in [rows[0], *(r.values() for r in rows)]))
    elif kind == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        import pyarrow
        import pyarrow.parquet as parquet

        parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    out = sharded(path, tmp_path)
    tokens = Tokens(word_tokenizer(tmp_path / "t.json"), max_length=4, text=Json("caption"))
    dataset = ShardDataset(out, Resize((8, 8)), fields={"json": tokens, "row": None})
    ((_, _, found, number),) = DataLoader(dataset, batch_size=3)
    assert [row[1:3] for row in found["input_ids"].tolist()] == [[7, 9 + i] for i in number.tolist()]
    captions = ShardDataset(out, fields={"json": Json("caption")}).column("json")
    assert sorted(captions) == ["cat 0", "cat 1", "cat 2"]


@pytest.fixture
def img2dataset(tmp_path: Path) -> Path:
    """The layout of img2dataset's output, output_format="webdataset": tars, and a table and statistics beside each."""
    import pyarrow
    import pyarrow.parquet as parquet

    folder = tmp_path / "laion"
    folder.mkdir()
    for number in range(2):
        members, rows = [], []
        for i in range(4):
            key = f"{number:05d}{i:04d}"
            caption = f"caption {key}\nline {key}" if i else ""
            row = {
                **{"caption": caption, "url": f"http://example.org/{key}.jpg", "key": key, "status": "success"},
                **{"error_message": None, "width": 24, "height": 16, "original_width": 240, "original_height": 160},
                **{"exif": "{}", "sha256": "0" * 64},
            }
            rows.append(row if i != 2 else {**row, "status": "failed_to_download", "error_message": "HTTP 404"})
            if i != 2:  # what could not be downloaded stands in the table only
                members += [(f"{key}.jpg", encode(pixels(i))), (f"{key}.json", json.dumps(row, indent=4).encode())]
                members.append((f"{key}.txt", caption.encode()))
        write_tar(folder / f"{number:05d}.tar", members)
        parquet.write_table(pyarrow.Table.from_pylist(rows), folder / f"{number:05d}.parquet")
        (folder / f"{number:05d}_stats.json").write_text(json.dumps({"count": 4, "successes": 3}))
    return folder


@pytest.mark.parametrize("way", ["shard", "index"])
def test_img2datasets_output_is_taken_as_it_is(img2dataset: Path, tmp_path: Path, way: str) -> None:
    if way == "index":
        summary = index_tars(str(img2dataset))
        assert (summary.shards, summary.samples, summary.rejected) == (2, 6, [])
        shards = img2dataset
    else:
        shards = sharded(img2dataset, tmp_path)
        assert rejected(shards) == {}
    fields = {"txt": Text(), "json": Json("original_width"), "key": None}
    dataset = ShardDataset(shards, Resize((8, 8)), fields=fields)
    found = [row for batch in DataLoader(dataset, batch_size=4) for row in zip(*batch[2:], strict=True)]
    expected = [f"caption {n:05d}{i:04d}\nline {n:05d}{i:04d}" if i else "" for n in range(2) for i in (0, 1, 3)]
    assert sorted(text for text, _, _ in found) == sorted(expected)
    assert {width for _, width, _ in found} == {240}
    assert dataset.targets == [-1] * 6
    drawn = ShardDataset(shards, fields={"txt": Choice(Lines()), "json": Json("caption")})
    assert all(drawn[i][2] in drawn[i][3].splitlines() for i in range(6) if drawn.column("json")[i])


def test_a_table_of_img2dataset_beside_its_tars_names_their_folder(img2dataset: Path, tmp_path: Path) -> None:
    message = rf"00000\.parquet: no column for the images; .*: if the images are in {img2dataset}/00000\.tar, name its"
    with pytest.raises(SourceError, match=f"{message} folder, {img2dataset}$"):
        sharded(img2dataset / "00000.parquet", tmp_path)


def test_images_in_tables_of_img2dataset_are_taken_and_failed_downloads_are_not_bad(tmp_path: Path) -> None:
    """A table as img2dataset writes it with output_format="parquet"."""
    import pyarrow
    import pyarrow.parquet as parquet

    rows = [
        {"caption": f"text {i}", "key": f"{i}", "status": "success", "error_message": None, "jpg": encode(pixels(i))}
        for i in range(3)
    ]
    rows[1] |= {"status": "failed_to_download", "error_message": "HTTP 404", "jpg": None}
    rows[2] |= {"status": "active", "jpg": None}
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "00000.parquet")
    summary = shard(str(tmp_path / "00000.parquet"), str(tmp_path / "out"), kept(max_bad=0.5))
    assert (summary.samples, summary.bad) == (1, 1)
    assert rejected(tmp_path / "out") == {
        "00000.parquet#2": "img2dataset failed_to_download: HTTP 404",
        "00000.parquet#3": "no image bytes in column 'jpg'",
    }
    assert ShardDataset(tmp_path / "out", fields={"json": Json("caption")})[0][2] == "text 0"


@pytest.mark.parametrize(
    ("extension", "count", "is_noted"),
    [("seg.png", 3, True), ("png", 3, True), ("seg.png", 1, True), ("v2.jpg", 3, True), ("v2.jpg", 1, False)],
)
def test_images_that_look_like_members_become_samples_and_a_note_says_how_to_join_them(
    tmp_path: Path, extension: str, count: int, is_noted: bool
) -> None:
    images = [f"cat/{i}.jpg" for i in range(6)] + [f"cat/{i}.{extension}" for i in range(count)]
    root = str(_write(tmp_path / "src", dict.fromkeys(images, JPEG)))
    source = open_folder(root)
    assert len(source.table) == 6 + count
    join = f"--members {extension} makes them so"
    assert [note.endswith(join) for note in source.notes] == [True] * is_noted
    assert len(open_folder(root, [extension]).table) == 6


def test_images_beside_images_are_members_if_they_are_named(tmp_path: Path) -> None:
    names = ["a/0.jpg", "a/1.png", "a/2.jpg", "a/3.seg.png", "b/x.v2.jpg", "b/x.jpg", "b/y.seg.jpg"]
    mask = {seed: encode(pixels(seed).convert("L"), "PNG") for seed in range(3)}
    masks = {"a/0.seg.png": mask[0], "a/1.SEG.png": mask[1], "b/x.seg.png": mask[2], "b/y.seg.png": JPEG}
    source = _write(tmp_path / "src", dict.fromkeys(names, JPEG) | masks)
    out = tmp_path / "out"
    shard(str(source), str(out), kept(targets=TargetSources(members=("seg.png",))))
    # Without an image beside it, a file that is named so is an image; and b/y.seg.png is a "png" of b/y.seg.jpg.
    assert [(path, label) for path, _, label in sorted(samples_of(out))] == [
        *((name, 0) for name in names[:4]),
        *((name, 1) for name in ("b/x.jpg", "b/x.v2.jpg", "b/y.seg.jpg", "b/y.seg.png")),
    ]
    assert [member(out, path, "seg.png") for path in ("a/0.jpg", "a/1.png", "b/x.jpg")] == [
        *mask.values(),
    ]


def test_members_that_are_beside_no_image_or_in_no_folder_are_refused(tmp_path: Path) -> None:
    source = _write(tmp_path / "src", {"a/0.jpg": JPEG, "a/1.depth.png": JPEG, "list.csv": b"path\na/0.jpg\n"})
    with pytest.raises(SourceError, match=r"no image has a file such as NAME\.depth\.png beside it"):
        open_folder(str(source), ["depth.png"])
    options = kept(targets=TargetSources(members=("seg.png",)))
    with pytest.raises(SourceError, match=r"no folder of images with 'seg\.png' beside them; leave --members out"):
        shard(str(source / "list.csv"), str(tmp_path / "out"), options)
    for name in ("seg", "a b.png", ".png", "x.txt"):
        with pytest.raises(ArgumentError, match="named as an image's field"):
            TargetSources(members=(name,))
    with pytest.raises(ArgumentError, match="leave annotations and pairs out"):
        TargetSources(pairs=(("masks", "x"),), members=("seg.png",))
