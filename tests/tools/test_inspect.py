from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from feeder.dataset.shards import ShardDataset
from feeder.errors import FormatError, ShardError, SourceError
from feeder.shard.format.manifest import ShardRecord
from feeder.shard.format.open_index import open_index
from feeder.shard.format.set_index import SetIndex
from feeder.shard.format.shard_index import write_shard_index
from feeder.shard.write.encode import EncodeOptions
from feeder.shard.write.index_tars import index_tars
from feeder.shard.write.set_writer import write_set
from feeder.shard.write.shard_options import ShardOptions
from feeder.shard.write.sharding import shard
from feeder.system.progress import Progress
from feeder.tools.cli import main
from feeder.tools.set_report import inspect, render
from feeder.tools.verify import Damage, verify
from tests.support.folder_store import FolderStore
from tests.support.images import encode, make_tree, pixels
from tests.support.remote_sets import make_set
from tests.support.shard_sets import (
    damage_row,
    write_tar,
)

KEEP = EncodeOptions("keep")


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    tree = make_tree(tmp_path / "images", 3, 8)
    (tree / "class-1" / "tall.png").write_bytes(encode(pixels(9, 10, 40), "PNG", orientation=6))
    (tree / "class-1" / "bad.jpg").write_bytes(b"x")
    shard(str(tree), str(tmp_path / "shards"), ShardOptions(samples_per_shard=9, max_bad=1))
    return tmp_path / "shards"


def test_the_report_counts_what_is_there(shards: Path) -> None:
    report = inspect(str(shards))
    assert (report.samples, report.shards, report.rejected, report.unlabelled) == (25, 3, 1, 0)
    assert report.classes == [("class-0", 8), ("class-1", 9), ("class-2", 8)]
    assert report.fields == {"jpg": 24, "png": 1, "cls": 25}
    assert report.orientations == {"1": 24, "6": 1}
    assert (report.width_px[0], report.width_px[2], report.height_px[4]) == (10, 24, 40)
    assert report.bytes == sum(p.stat().st_size for p in shards.glob("*.tar"))
    text = render(report)
    assert max(map(len, text.splitlines())) <= 80 or str(shards) in text.splitlines()[0]
    assert "class-1" in text


def test_the_report_fits_60_columns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    classes = {"a class whose name is longer than it is wide": 5, "b": 20}
    for name, count in classes.items():
        for seed in range(count):
            path = tmp_path / "images" / name / f"{seed}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(encode(pixels(seed)))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "60")
    shard("images", "shards", ShardOptions())
    lines = render(inspect("shards")).splitlines()
    assert 50 < max(map(len, lines)) <= 60


def test_a_set_in_a_store_is_shown_as_a_local_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = make_set(tmp_path, shards=2)
    sizes = sum(path.stat().st_size for path in folder.glob("*.fidx"))
    stores: list[FolderStore] = []
    monkeypatch.setattr(
        "feeder.shard.write.set_copy.open_store", lambda _: stores.append(FolderStore(str(folder))) or stores[-1]
    )

    def asked(*options: str) -> int:
        assert main(["inspect", "s3://bucket/set", "--json", *options]) == 0
        return sum(end - start for name, start, end in stores[-1].asked if name.endswith(".fidx"))

    assert main(["inspect", str(folder), "--json"]) == 0
    expected = json.loads(capsys.readouterr().out)
    assert asked() == sizes
    assert json.loads(capsys.readouterr().out) == expected | {"path": "s3://bucket/set"}
    assert asked("--verify") == 2 * sizes


def test_percentiles_are_of_all_samples_and_near_them_where_they_are_large(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng, rows = np.random.default_rng(0), []
    for number in range(60):
        path = tmp_path / "images" / "a" / f"{number:02d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        rows.append(len(data := encode(pixels(number, *rng.integers(8, 90, 2).tolist()))))
        path.write_bytes(data)
    shard(str(tmp_path / "images"), str(tmp_path / "set"), ShardOptions(samples_per_shard=7, encode=KEEP))
    expected = np.percentile(rows, (0, 5, 50, 95, 100), method="nearest").tolist()
    assert inspect(str(tmp_path / "set")).image_bytes == expected
    monkeypatch.setattr("feeder.tools.set_report.DIGITS", 4)
    found = inspect(str(tmp_path / "set")).image_bytes
    assert found[::4] == expected[::4]
    assert found != expected
    assert np.all(np.abs(np.subtract(found, expected)) <= np.array(expected) / 8)


def test_a_sound_set_verifies(shards: Path) -> None:
    assert verify(str(shards)) == []


class Heard(Progress):
    """Sums up what it is told."""

    def begin(self, samples: int, size_bytes: int, done_samples: int, done_bytes: int) -> None:
        self.expected, self.done = (samples, size_bytes), (done_samples, done_bytes)

    def advance(self, samples: int, size_bytes: int) -> None:
        self.done = (self.done[0] + samples, self.done[1] + size_bytes)


def test_verifying_and_indexing_tell_how_far_they_are(shards: Path, foreign: Path) -> None:
    heard = Heard()
    verify(str(shards), progress=heard)
    assert heard.done == heard.expected == (25, sum(p.stat().st_size for p in shards.glob("*.tar")))
    index_tars(str(foreign), progress=heard)
    assert heard.done == heard.expected
    assert heard.done[0] == 8


def test_a_flipped_bit_is_traced_to_its_sample(shards: Path) -> None:
    index = open_index(shards / "index.bin")
    victim = 11
    path = index.shard_path(int(index.column("shard")[victim]))
    with open(path, "r+b") as file:
        file.seek(int(index.column("offset")[victim]) + 100)
        byte = file.read(1)[0]
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ 1]))
    found = verify(str(shards))
    assert [(d.shard, d.sample) for d in found] == [
        ("shard-000001.tar", None),
        ("shard-000001.tar", index.key(victim)),
    ]
    assert "its bytes changed" in found[1].reason


def test_a_changed_label_is_traced_too(shards: Path) -> None:
    index = open_index(shards / "index.bin")
    _, (_, offset, _) = index.stored_fields(0)
    with open(shards / "shard-000000.tar", "r+b") as file:
        file.seek(offset)
        file.write(b"9")
    assert ("shard-000000.tar", index.key(0)) in [(d.shard, d.sample) for d in verify(str(shards))]


def test_a_truncated_and_a_missing_shard_are_named_with_their_samples(shards: Path) -> None:
    index = open_index(shards / "index.bin")
    os.truncate(shards / "shard-000002.tar", int(index.column("offset")[24]) + 10)
    (shards / "shard-000000.tar").unlink()
    found = verify(str(shards))
    assert Damage("shard-000000.tar", None, "can't be read: No such file or directory") in found
    assert {d.sample for d in found if d.shard == "shard-000002.tar"} == {None, index.key(24)}
    assert all("shard-000001" not in d.shard for d in found)


def test_a_changed_index_is_noticed(shards: Path) -> None:
    data = bytearray((shards / "index.bin").read_bytes())
    for position in (-200, -10):  # in its head, and in the page of its shards
        damaged = data.copy()
        damaged[position] ^= 1
        (shards / "index.bin").write_bytes(damaged)
        with pytest.raises(FormatError, match=r"index\.bin: damaged.*does not match its hash"):
            verify(str(shards))
    (shards / "index.bin").write_bytes(data)
    path = shards / "shard-000001.fidx"
    own = bytearray(path.read_bytes())
    for position in range(0, len(own), 37):
        own[position] ^= 1
        path.write_bytes(own)
        assert {damage.shard for damage in verify(str(shards))} == {"shard-000001.fidx"}, position
        own[position] ^= 1


def test_a_wrong_checksum_of_a_block_is_noticed(shards: Path) -> None:
    index = open_index(shards / "index.bin")
    assert isinstance(index, SetIndex)
    found = index.shard_index(1)
    samples = [found.sample(row) for row in range(found.samples)]
    number, blocks = index.header.shard(1), found.blocks() ^ np.uint32(1)
    write_shard_index(found.path, samples, found.fields, (), blocks, number.size_bytes)
    (shards / "manifest.json").unlink()
    shard_of = [
        ShardRecord(s.name, s.samples, s.size_bytes, s.shard_hash.hex()) for s in map(index.header.shard, range(3))
    ]
    write_set(str(shards / "index.bin"), shard_of, None)
    assert [(d.shard, "CRC-32C" in d.reason) for d in verify(str(shards))] == [("shard-000001.fidx", True)]


@pytest.mark.parametrize(
    ("column", "row", "value", "reason"),
    [
        ("field", 5, 9, "names field 9, but has 2 of them"),
        ("members", 5, [(9, 512, 1)], "names field 9, but has 2 of them"),
        ("orientation", 5, 9, "has orientation 9, expected 1 to 8"),
    ],
)
@pytest.mark.parametrize("name", ["index.bin", "other.bin"])
def test_a_damaged_index_row_is_traced_and_the_other_shards_are_verified(
    shards: Path, name: str, column: str, row: int, value: Any, reason: str
) -> None:
    index = open_index(shards / "index.bin")
    own, other = index.header.index_name(0), index.header.shard_name(1)
    key = index.key(row) if column == "orientation" else None
    offset = index.place(index.header.sample_range(1)[0])[1]
    (shards / "index.bin").rename(shards / name)  # by another name it is read without the manifest's checksums
    damage_row(shards / name, column, row, value)
    with open(shards / other, "r+b") as file:
        file.seek(offset + 100)
        file.write(b"\0" * 8)
    found = verify(str(shards if name == "index.bin" else shards / name))
    assert Damage(own, key, reason) in found
    assert any(d.shard == other and d.sample is not None for d in found)


def test_a_damaged_manifest_is_an_error_that_names_it(shards: Path) -> None:
    for text in ("{", "[]", '{"format": "feeder-shards"}', '{"format": "other", "format_version": 1}'):
        (shards / "manifest.json").write_text(text)
        with pytest.raises(FormatError, match=r"manifest\.json"):
            inspect(str(shards))


def test_a_changed_class_name_is_noticed(shards: Path) -> None:
    path = shards / "manifest.json"
    text = path.read_text()
    path.write_text(text.replace("class-1", "class-7"))
    assert Damage("manifest.json", None, "its bytes do not match its checksum; restore it") in verify(str(shards))
    assert ShardDataset(shards).classes == ["class-0", "class-1", "class-2"]
    path.write_text(re.sub(r' "crc32": "[0-9a-f]{8}",\n', "", text))
    assert verify(str(shards)) == []


def test_a_folder_without_an_index_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="feeder shard"):
        inspect(str(tmp_path))
    with pytest.raises(FormatError, match="feeder shard"):
        inspect(str(tmp_path / "missing"))


# Tars that others wrote


@pytest.fixture
def foreign(tmp_path: Path) -> Path:
    folder = tmp_path / "foreign"
    folder.mkdir()
    for number in range(2):
        members = []
        for i in range(4):
            image = encode(pixels(number * 4 + i, 20 + i, 30), "PNG" if i == 2 else "JPEG", orientation=3)
            members += [(f"a/{i}.cls", b"%d" % i), (f"a/{i}.{'png' if i == 2 else 'jpg'}", image), (f"a/{i}.txt", b"t")]
        write_tar(folder / f"train-{number}.tar", members)
    return folder


def test_foreign_tars_are_indexed_where_they_are(foreign: Path) -> None:
    before = {p.name: p.read_bytes() for p in foreign.glob("*.tar")}
    summary = index_tars(str(foreign / "train-{0..1}.tar"))
    assert (summary.samples, summary.shards, summary.rejected) == (8, 2, [])
    index = open_index(summary.path)
    assert summary.path == str(foreign / "index.bin")
    assert [index.header.shard_name(number) for number in range(2)] == ["train-0.tar", "train-1.tar"]
    assert [index.key(i) for i in range(4)] == ["a/0", "a/1", "a/2", "a/3"]
    assert index.column("label").tolist() == [0, 1, 2, 3] * 2
    assert index.column("width").tolist() == [20, 21, 22, 23] * 2
    assert index.column("orientation").tolist() == [3] * 8
    for i in range(8):
        data = (foreign / index.header.shard_name(index.place(i)[0])).read_bytes()
        start = int(index.column("offset")[i])
        image = data[start : start + int(index.column("length")[i])]
        assert image == encode(pixels(i, 20 + i % 4, 30), "PNG" if i % 4 == 2 else "JPEG", orientation=3)
    assert {p.name: p.read_bytes() for p in foreign.glob("*.tar")} == before
    assert verify(str(foreign)) == []
    assert inspect(str(foreign)).settings is None


def test_a_foreign_index_is_replaced_only_for_the_same_tars(foreign: Path, tmp_path: Path) -> None:
    index_tars(str(foreign))
    index_tars(str(foreign))
    with pytest.raises(ShardError, match=r"is an index for other tars \(train-0.tar"):
        index_tars(str(foreign / "train-1.tar"))
    index_tars(str(foreign / "train-1.tar"), str(foreign / "second.bin"))
    assert len(open_index(foreign / "second.bin")) == 4
    assert len(open_index(foreign / "index.bin")) == 8
    with pytest.raises(ShardError, match="must lie in"):
        index_tars(str(foreign), str(tmp_path / "elsewhere" / "index.bin"))


def test_an_own_shard_set_keeps_its_index(shards: Path) -> None:
    before = (shards / "index.bin").read_bytes()
    with pytest.raises(ShardError, match="nothing to do"):
        index_tars(str(shards))
    assert (shards / "index.bin").read_bytes() == before


def test_bad_samples_of_foreign_tars_are_left_out_and_listed(foreign: Path) -> None:
    write_tar(foreign / "train-2.tar", [("b.jpg", b"no image"), ("c.txt", b"x"), ("d.jpg", encode(pixels(1)))])
    summary = index_tars(str(foreign))
    assert summary.samples == 9
    assert sorted(r.path for r in summary.rejected) == ["train-2.tar/b", "train-2.tar/c"]


def test_compressed_or_empty_tars_cannot_be_indexed(foreign: Path, tmp_path: Path) -> None:
    import gzip

    packed = tmp_path / "packed"
    packed.mkdir()
    (packed / "t.tar.gz").write_bytes(gzip.compress((foreign / "train-0.tar").read_bytes()))
    with pytest.raises(SourceError, match="is compressed"):
        index_tars(str(packed))
    shutil.rmtree(packed)
    packed.mkdir()
    write_tar(packed / "t.tar", [])
    with pytest.raises(SourceError, match=r"no sample found, 0 inputs rejected$"):
        index_tars(str(packed))
    write_tar(packed / "t.tar", [("a.jpg", b"x")])
    with pytest.raises(SourceError, match=r"no sample found, 1 input rejected, the first t\.tar/a: not an image"):
        index_tars(str(packed))
