"""The index of one shard: what it keeps, its size, and its damage."""

from __future__ import annotations

import contextlib
import hashlib
import json
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feeder.dataset.shard_reader import ShardReader
from feeder.errors import DecodeError, FormatError
from feeder.shard.format.index_builder import IndexBuilder
from feeder.shard.format.manifest import ShardRecord
from feeder.shard.format.sealed_head import read_head, sealed, short_hash
from feeder.shard.format.shard_index import NARROW, WIDE, ShardIndex
from feeder.shard.write.set_writer import write_set
from tests.support.loader_data import write_shards

BLOCKS = np.array([7], np.uint32)


def build(
    path: Path, rows: int, *, targets: tuple[str, ...] = (), numbered: bool = False, **changes: Any
) -> ShardIndex:
    builder = IndexBuilder(targets, numbered=numbered)
    for i in range(rows):
        row: dict[str, Any] = {
            "key": b"%08d" % i,
            "path": b"cat/\xff%d.jpg" % i,
            "field": "jpg" if i % 3 else "png",
            "offset": 512 + 4096 * i,
            "length": 1000 + i,
            "label": i - 1,
            "width": 640,
            "height": 90,
            "orientation": 6,
            "source_bytes": 2**40 + i,
            "crc32": 2**32 - 1 - i,
            "members": [("cls", 512 + 4096 * i + 1536, 3), ("json", 7 * i, 2**33)][: i % 3],
            "rows": np.array([32, 620, 12_000, 300_000, 300_001], "<u4").tobytes() if i % 2 else b"",
            "target": [i / 2, float("nan")][: len(targets)],
            "source_row": 3 * i,
        }
        builder.add(**row | changes)
    builder.write(str(path), BLOCKS, 5000)
    return ShardIndex(str(path))


@pytest.mark.parametrize("rows", [0, 1, 63, 64, 65, 200])
def test_rows_come_back_as_they_went_in(tmp_path: Path, rows: int) -> None:
    found = build(tmp_path / "a.fidx", rows, targets=("x", "y"), numbered=True)
    assert (found.samples, found.is_wide, found.targets) == (rows, False, ("x", "y"))
    assert found.blocks().tolist() == [7]
    for i in range(rows):
        assert found.details(i).key == b"%08d" % i
        assert found.details(i).path == b"cat/\xff%d.jpg" % i
        assert found.details(i).source_row == 3 * i
        assert found.row_data(i) == ([32, 620, 12_000, 300_000, 300_001] if i % 2 else [])
        members = [("cls", 512 + 4096 * i + 1536, 3), ("json", 7 * i, 2**33)][: i % 3]
        assert [(found.fields[field], *place) for field, *place in found.stored_fields(i)[1:]] == members
    for first, end in ((0, rows), (rows // 2, rows), (0, min(64, rows)), (min(1, rows), min(66, rows))):
        keys = [json.loads(line)[0] for line in found.detail_lines(first, end).split(b"\n") if line]
        assert keys == [f"{i:08d}" for i in range(first, end)]
    assert found.column("label").tolist() == [i - 1 for i in range(rows)]
    assert found.column("source_bytes").tolist() == [2**40 + i for i in range(rows)]
    assert found.column("target")[:, 0].tolist() == [i / 2 for i in range(rows)]


@pytest.mark.parametrize(
    ("change", "wide"),
    [
        ({"offset": 2**32 - 512}, False),
        ({"offset": 2**32}, True),
        ({"length": 2**32}, True),
        ({"label": 2**31}, True),
        ({"width": 65_535}, False),
        ({"width": 65_536}, True),
        ({"height": 65_536}, True),
    ],
)
def test_values_of_any_size_are_kept(tmp_path: Path, change: dict[str, int], wide: bool) -> None:
    found = build(tmp_path / "a.fidx", 3, **change)  # type: ignore[arg-type]
    (name,) = change
    assert found.is_wide == wide
    assert found.rows().dtype == (WIDE if wide else NARROW)
    assert found.column(name).tolist() == [change[name]] * 3


def test_the_bytes_depend_on_the_rows_only(tmp_path: Path) -> None:
    for name in "ab":
        build(tmp_path / name, 100)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_a_sample_of_a_photo_takes_at_most_70_bytes(tmp_path: Path) -> None:
    rng, builder, offset = np.random.default_rng(0), IndexBuilder(), 512
    for i in range(2400):
        height, length = int(rng.integers(300, 520)), int(rng.integers(50_000, 170_000))  # as of ImageNet's photos
        bands = -(-height // 32)
        steps = rng.integers(length // bands // 2, length // bands, bands)
        builder.add(
            key=b"%08d" % i,
            path=b"",
            field="jpg",
            offset=offset,
            length=length,
            label=int(rng.integers(1000)),
            width=int(rng.integers(300, 520)),
            height=height,
            orientation=1,
            source_bytes=int(rng.integers(50_000, 170_000)),
            crc32=int(rng.integers(2**32)),
            members=[("cls", offset + -(-length // 512) * 512 + 512, int(rng.integers(1, 4)))],
            rows=np.array([32, 620, *np.cumsum(steps) + 620], "<u4").tobytes(),
        )
        offset += -(-length // 512) * 512 + 1536
    path = str(tmp_path / "a.fidx")
    builder.write(path, rng.integers(0, 2**32, -(-offset // 2**18)).astype(np.uint32), offset)
    assert (tmp_path / "a.fidx").stat().st_size / 2400 < 70


@pytest.mark.parametrize(
    "data", [bytes(1 << 28), b"[]", b"{", b"[" * 10_000, b'[1,"",3,4,[]]', b'["","",1,1,[[0,-9,0]]]']
)
def test_hostile_details_are_named_errors(tmp_path: Path, data: bytes) -> None:
    build(tmp_path / "a.fidx", 1)
    whole, packed = (tmp_path / "a.fidx").read_bytes(), zlib.compress(data)
    head, _, end = read_head("a.fidx", whole[:8], memoryview(whole))
    group = struct.pack("<I", len(packed)) + packed
    head["groups"]["details"] = [len(whole) - end, len(group), short_hash(group).hex()]
    (tmp_path / "a.fidx").write_bytes(sealed(whole[:8], head) + whole[end:] + group)
    found = ShardIndex(str(tmp_path / "a.fidx"))
    with pytest.raises(FormatError, match=r"a\.fidx: damaged"):
        found.stored_fields(0)
    if len(data) > 1 << 20:
        with pytest.raises(FormatError, match=r"a\.fidx: damaged.* its details: .*inflates to more than"):
            found.detail_lines(0, 1)


def test_the_lines_of_many_rows_have_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = build(tmp_path / "a.fidx", 200)
    monkeypatch.setattr("feeder.shard.format.shard_index.MAX_CHUNK_BYTES", 8000)
    assert found.detail_lines(64, 100).count(b"\n") == 35
    with pytest.raises(FormatError, match="rows 0 to 200 inflate to more than 8000 bytes"):
        found.detail_lines(0, 200)


def test_shards_of_both_widths_are_read_together(tmp_path: Path) -> None:
    shards = []
    for number, label in enumerate((5, 2**40, 6)):
        (tmp_path / f"{number}.tar").write_bytes(bytes(5000))
        build(tmp_path / f"{number}.fidx", 2, label=label, offset=512)
        shards.append(ShardRecord(f"{number}.tar", 2, 5000, "00" * 32))
    write_set(str(tmp_path / "index.bin"), shards, None)
    reader = ShardReader(str(tmp_path / "index.bin"))
    rows = reader.index.rows(np.array([4, 3, 0]))
    assert rows.labels.tolist() == [6, 2**40, 5]
    assert rows.offset.tolist() == [512] * 3
    assert reader.index.header.info.max_label == 2**40


def test_fields_are_numbered_by_each_shard(tmp_path: Path) -> None:
    shards = []
    for number, fields in enumerate((("jpg", "cls"), ("png", "jpg"), ("cls", "png"))):
        (tmp_path / f"{number}.tar").write_bytes(bytes(5000))
        build(tmp_path / f"{number}.fidx", 2, field=fields[0], members=[(fields[1], 512, 3)])
        shards.append(ShardRecord(f"{number}.tar", 2, 5000, "00" * 32))
    write_set(str(tmp_path / "index.bin"), shards, None)
    index = ShardReader(str(tmp_path / "index.bin")).index
    assert index.fields == ("jpg", "cls", "png")
    assert index.rows(np.arange(6)).field.tolist() == [0, 0, 2, 2, 1, 1]
    assert index.column("field").tolist() == [0, 0, 2, 2, 1, 1]
    assert index.column("member_field").tolist() == [1, 1, 0, 0, 2, 2]
    assert [index.image_field(i) for i in (0, 2, 4)] == ["jpg", "png", "cls"]
    assert [index.stored_fields(i)[1][0] for i in (0, 2, 4)] == ["cls", "jpg", "png"]
    assert [i for i, *_ in index.field_places("png")] == [2, 3, 4, 5]


def values_of(folder: Path) -> list[Any]:
    """All that a set gives of its samples, or the names of the errors."""
    reader, found = ShardReader(str(folder / "index.bin")), []
    ids = np.arange(len(reader))
    for i in ids.tolist():
        for name in ("key", "path", "png", "cls", "json", "width", "orientation"):
            try:
                found.append(reader.field(i, name))
            except DecodeError as error:
                found.append(error.reason)
    for wanted in (None, lambda orientations, sizes: np.full((len(ids), 2), (40, 60), np.int32)):
        encoded = reader.read(ids, wanted)
        assert sum(map(len, encoded.buffers)) <= len(ids) << 16
        found.append(([bytes(b) for b in encoded.buffers], encoded.labels.tolist(), encoded.sizes.tolist()))
    found.append([reader.index.column("source_bytes").tolist(), [reader.index.row_data(i) for i in ids.tolist()]])
    return found


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, bytes], list[Any]]:
    folder = write_shards(tmp_path_factory.mktemp("fuzzed") / "set", 5, 3)
    files = {path.name: path.read_bytes() for path in folder.iterdir() if path.suffix in (".bin", ".fidx")}
    return folder, files, values_of(folder)


def resealed(data: bytes) -> bytes:
    """The index of a shard with hashes that match its head and groups."""
    length = int.from_bytes(data[8:16], "little")
    head = json.loads(data[32 : 32 + length])
    for entry in head["groups"].values():
        entry[2] = hashlib.sha256(data[32 + length + entry[0] : 32 + length + entry[0] + entry[1]]).hexdigest()[:32]
    text = json.dumps(head, separators=(",", ":")).encode().ljust(length)
    return data[:8] + struct.pack("<Q", len(text)) + hashlib.sha256(text).digest()[:16] + text + data[32 + length :]


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_no_damage_makes_reading_do_worse_than_a_named_error(
    base: tuple[Path, dict[str, bytes], list[Any]], data: st.DataObject
) -> None:
    folder, files, values = base
    name = data.draw(st.sampled_from(sorted(files)))
    damaged = bytearray(files[name])
    size = len(damaged)
    for position, value in data.draw(
        st.lists(st.tuples(st.integers(0, size - 1), st.integers(0, 255)), min_size=1, max_size=4)
    ):
        damaged[position] = value
    del damaged[data.draw(st.one_of(st.just(size), st.integers(0, size))) :]
    sealed = name.endswith(".fidx") and data.draw(st.booleans())
    if sealed:  # so that the damage gets past the hashes
        with contextlib.suppress(ValueError, KeyError, TypeError, AttributeError, IndexError):
            damaged = bytearray(resealed(bytes(damaged)))
    (folder / name).write_bytes(damaged)
    try:
        if sealed:
            shards = [
                ShardRecord(f"shard-00000{k}.tar", 0, (folder / f"shard-00000{k}.tar").stat().st_size, "00" * 32)
                for k in (0, 1)
            ]
            write_set(str(folder / "index.bin"), shards, None)
        found = values_of(folder)
        assert sealed or found == values
    except FormatError as error:
        assert "index.bin" in str(error) or "shard" in str(error)  # noqa: PT017
    finally:
        for each, content in files.items():
            (folder / each).write_bytes(content)
