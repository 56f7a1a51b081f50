from __future__ import annotations

import contextlib
import pickle
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feeder.dataset.shard_reader import ShardReader
from feeder.errors import DecodeError, FormatError
from feeder.shard.format.column_index import ColumnIndex
from feeder.shard.format.index_builder import IndexBuilder
from feeder.shard.format.index_file import ShardEntry
from tests.support.shard_sets import header_of, with_header, write_rows


def build(path: Path, shard: int, rows: int, fields: tuple[str, ...] = ("jpg", "cls")) -> str:
    builder = IndexBuilder()
    for i in range(rows):
        builder.add(
            key=b"%08d" % (shard * 100 + i),
            path=b"cat/\xff%d.jpg" % i,
            field=fields[0],
            offset=512 + i,
            length=10 + i,
            label=i - 1,
            width=640,
            height=480,
            orientation=6,
            source_bytes=99,
            crc32=2**32 - 1,
            members=[(field, 7 * i, 3) for field in fields[1:]],
            rows=np.array([32, 20, 12_000, 24_000][: 4 * (i % 2)], "<u4").tobytes(),
        )
    return write_rows(builder, path, ShardEntry(f"shard-{shard:06d}.tar", 10_240))


def test_rows_come_back_as_they_went_in(tmp_path: Path) -> None:
    index = ColumnIndex(build(tmp_path / "index.bin", 0, 3))
    assert len(index) == 3
    assert index.key(2) == "00000002"
    assert index.source_path(1) == "cat/\udcff1.jpg"
    assert index.image_field(0) == "jpg"
    assert index.members(2) == [("cls", 14, 3)]
    assert index.shards == (ShardEntry("shard-000000.tar", 10_240),)
    assert index.shard_path(0) == str(tmp_path / "shard-000000.tar")
    row = [int(getattr(index, c)[2]) for c in ("offset", "length", "label", "width", "height", "orientation")]
    assert row == [514, 12, 1, 640, 480, 6]
    assert index.column("row_start").tolist() == [0, 0, 4, 4]
    assert index.column("row_data").tolist() == [32, 20, 12_000, 24_000]


def test_an_index_of_no_samples_opens(tmp_path: Path) -> None:
    assert len(ColumnIndex(build(tmp_path / "index.bin", 0, 0))) == 0


def test_pickle_carries_the_path_and_no_rows(tmp_path: Path) -> None:
    index = ColumnIndex(build(tmp_path / "index.bin", 0, 500))
    data = pickle.dumps(index)
    assert len(data) < 500
    assert np.array_equal(pickle.loads(data).label, index.label)


def test_cut_off_at_any_byte_it_is_refused_by_name(tmp_path: Path) -> None:
    whole = Path(build(tmp_path / "index.bin", 0, 4)).read_bytes()
    cut = tmp_path / "cut.bin"
    data_end = whole.rstrip(b"\0").__len__()
    for length in range(0, data_end, 7):
        cut.write_bytes(whole[:length])
        with pytest.raises(FormatError, match=r"cut\.bin.*feeder index"):
            ColumnIndex(cut)


def damage(path: str, change: dict[str, object], column: str | None = None) -> None:
    """Changes the header of an index file, as someone would who knows its checksums."""
    data = Path(path).read_bytes()
    header = header_of(data)
    (header["columns"][column] if column else header).update(change)
    Path(path).write_bytes(with_header(data, header))


@pytest.mark.parametrize(
    ("column", "change"),
    [
        (None, {"version": 2}),
        (None, {"samples": 5}),
        (None, {"shards": [{"name": "../x.tar", "size_bytes": 1}]}),
        (None, {"shards": 3}),
        (None, {"shards": [{"name": "x\0.tar", "size_bytes": 1}]}),
        (None, {"shards": [{"name": "\ud800.tar", "size_bytes": 1}]}),
        ("label", {"count": float("inf")}),
        ("label", {"offset": 1 << 40}),
        ("label", {"count": -4}),
        ("label", {"dtype": "|O8"}),
        ("key_data", {"count": 3}),
        ("member_offset", {"count": 1}),
    ],
)
def test_a_hostile_header_is_refused(tmp_path: Path, column: str | None, change: dict[str, object]) -> None:
    path = build(tmp_path / "index.bin", 0, 4)
    damage(path, change, column)
    with pytest.raises(FormatError, match=r"index\.bin"):
        ColumnIndex(path)


def test_every_byte_that_counts_is_under_a_checksum(tmp_path: Path) -> None:
    path = Path(build(tmp_path / "index.bin", 0, 4))
    data = path.read_bytes()
    header_bytes = 16 + int.from_bytes(data[8:16], "little")
    for position in range(header_bytes):
        path.write_bytes(data[:position] + bytes([data[position] ^ 4]) + data[position + 1 :])
        with pytest.raises(FormatError, match=r"index\.bin.*feeder index"):
            ColumnIndex(path)
    for name, column in header_of(data)["columns"].items():
        start, size = column["offset"], column["count"] * np.dtype(column["dtype"]).itemsize
        for position in range(start, start + size, 5):
            path.write_bytes(data[:position] + bytes([data[position] ^ 1]) + data[position + 1 :])
            with contextlib.suppress(FormatError):  # that the columns do not fit each other is seen before
                index = ColumnIndex(path)
                assert index.damaged_columns() == [name]
                assert index.damaged_columns({*SPANS} - {name}) == []
                with pytest.raises(FormatError, match=f"column '{name}' do not match their checksum"):
                    index.check()


def test_an_index_without_checksums_opens_as_before(tmp_path: Path) -> None:
    path = Path(build(tmp_path / "index.bin", 0, 4))
    labels = ColumnIndex(path).label.tolist()
    data = path.read_bytes()
    assert ColumnIndex(path).has_checksums
    path.write_bytes(with_header(data, header_of(data), checksums=False))
    index = ColumnIndex(path)
    index.check()
    assert (index.label.tolist(), index.has_checksums) == (labels, False)


def test_a_missing_index_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="feeder shard"):
        ColumnIndex(tmp_path / "index.bin")


def fuzz_base() -> tuple[bytes, dict[str, tuple[int, int]]]:
    """An index of two samples, and where its columns start and end."""
    with tempfile.TemporaryDirectory() as folder:
        data = Path(build(Path(folder) / "index.bin", 0, 2)).read_bytes()
    header = header_of(data)
    spans = {
        name: (column["offset"], column["offset"] + column["count"] * np.dtype(column["dtype"]).itemsize)
        for name, column in header["columns"].items()
    }
    return data, spans


BASE, SPANS = fuzz_base()


VALUES = st.integers(0, 255)


IN_A_COLUMN = st.sampled_from(sorted(SPANS.values())).flatmap(lambda span: st.integers(span[0], span[1] - 1))


@settings(max_examples=400)
@given(
    edits=st.one_of(
        st.lists(st.tuples(IN_A_COLUMN, VALUES), min_size=1, max_size=3),
        st.lists(st.tuples(st.integers(0, len(BASE) - 1), VALUES), min_size=1, max_size=6),
    ),
    sealed=st.booleans(),
)
def test_no_damage_makes_reading_do_worse_than_a_named_error(
    tmp_path_factory: pytest.TempPathFactory, edits: list[tuple[int, int]], sealed: bool
) -> None:
    damaged = bytearray(BASE)
    for position, value in edits:
        damaged[position] = value
    data = bytes(damaged)
    if sealed:  # so that the damage gets past the checksums
        with contextlib.suppress(ValueError, KeyError, TypeError, AttributeError, AssertionError):
            data = with_header(data, header_of(data))
    folder = tmp_path_factory.getbasetemp() / "fuzzed-index"
    folder.mkdir(exist_ok=True)
    (folder / "index.bin").write_bytes(data)
    (folder / "shard-000000.tar").write_bytes(b"x" * 1024)
    try:
        reader = ShardReader(str(folder / "index.bin"))
        for i in range(len(reader)):
            for name in ("key", "path", "jpg", "cls"):
                with contextlib.suppress(DecodeError):
                    reader.field(i, name)
        ids = np.arange(min(len(reader), 4))
        for wanted in (None, lambda orientations, sizes: np.full((len(ids), 2), (40, 60), np.int32)):
            encoded = reader.read(ids, wanted)
            assert sum(map(len, encoded.buffers)) <= 4 * 1024
    except FormatError as error:
        assert "index.bin" in str(error) or "shard" in str(error)  # noqa: PT017
