from __future__ import annotations

import io
import struct
import tarfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feeder.shard.format.tar import Member, Refused, TarWriter, member_bytes, read_members


def written(members: list[tuple[str, bytes]]) -> tuple[bytes, list[int], str]:
    buffer = io.BytesIO()
    writer = TarWriter(buffer)
    offsets = [writer.add(name, data) for name, data in members]
    checksum = writer.finish()
    assert writer.size_bytes == len(buffer.getvalue())
    return buffer.getvalue(), offsets, checksum


def test_tarfile_reads_what_we_write() -> None:
    members = [
        ("00000001.jpg", b"x" * 513),
        ("00000001.cls", b"7"),
        ("empty.txt", b""),
        ("a/" + "n" * 200 + ".jpg", b"long"),
    ]
    data, offsets, _ = written(members)
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        infos = tar.getmembers()
        assert [(i.name, tar.extractfile(i).read()) for i in infos] == members  # type: ignore[union-attr]
        assert [i.offset_data for i in infos] == offsets
        assert {(i.mtime, i.uid, i.gid, i.uname, i.gname, i.mode) for i in infos} == {(0, 0, 0, "", "", 0o644)}
    assert sum(member_bytes(len(d)) for _, d in members[:3]) == offsets[2]


def test_large_members_do_not_wait_in_memory() -> None:
    buffer = io.BytesIO()
    writer = TarWriter(buffer)
    writer.add("big", b"x" * (3 << 20))
    assert len(buffer.getvalue()) >= 3 << 20


def test_reading_gives_names_offsets_and_sizes(tmp_path: Path) -> None:
    data, offsets, _ = written([("a.jpg", b"123"), ("b/c.jpg", b"4567")])
    (tmp_path / "t.tar").write_bytes(data)
    assert list(read_members(str(tmp_path / "t.tar"))) == [
        Member("a.jpg", offsets[0], 3),
        Member("b/c.jpg", offsets[1], 4),
    ]


@pytest.mark.parametrize(
    ("size", "refusal"),
    [
        (b"77777777777\0", "truncated tar"),  # 8 GiB in a file of 2 KiB
        (b"\xff" * 12, "damaged tar"),  # negative in base 256
        (b"\x80" + b"\xff" * 11, "tar"),  # 2**88
        (b"not a size!\0", "not a readable tar|damaged tar"),
    ],
)
def test_lies_about_the_size_are_refused(tmp_path: Path, size: bytes, refusal: str) -> None:
    data = bytearray(written([("a.jpg", b"x" * 600)])[0])
    data[124:136] = size
    data[148:156] = b" " * 8
    data[148:156] = b"%06o\0 " % sum(data[:512])
    (tmp_path / "t.tar").write_bytes(data)
    found = list(read_members(str(tmp_path / "t.tar")))
    assert all(isinstance(m, Refused) for m in found)
    assert found


def sparse_header(kind: str) -> bytes:
    """The header of a file of 2000 bytes, of which only the first 600 stand in the tar."""
    info = tarfile.TarInfo("holes.jpg")
    info.size = 600
    if kind == "pax":
        info.pax_headers = {"GNU.sparse.size": "2000", "GNU.sparse.numblocks": "1", "GNU.sparse.map": "0,600"}
        return info.tobuf(tarfile.PAX_FORMAT)
    info.type = tarfile.GNUTYPE_SPARSE
    header = bytearray(info.tobuf(tarfile.GNU_FORMAT))
    header[386:410] = b"%011o\0%011o\0" % (0, 600)  # the first piece: where it belongs, and its size
    header[483:495] = b"%011o\0" % 2000
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return bytes(header)


@pytest.mark.parametrize("kind", ["gnu", "pax"])
def test_sparse_members_are_refused_as_their_bytes_are_not_the_files(tmp_path: Path, kind: str) -> None:
    sparse = sparse_header(kind) + (b"x" * 600).ljust(1024, b"\0")
    whole, offsets, _ = written([("a.jpg", b"123")])
    (tmp_path / "t.tar").write_bytes(sparse + whole)
    assert list(read_members(str(tmp_path / "t.tar"))) == [
        Refused("holes.jpg", "sparse member refused"),
        Member("a.jpg", len(sparse) + offsets[0], 3),
    ]


def test_a_chain_of_extended_headers_ends(tmp_path: Path) -> None:
    info = tarfile.TarInfo("././@LongLink")
    info.type = tarfile.GNUTYPE_LONGNAME
    info.size = 4
    (tmp_path / "t.tar").write_bytes((info.tobuf(tarfile.GNU_FORMAT) + b"abc\0".ljust(512, b"\0")) * 5000)
    found = list(read_members(str(tmp_path / "t.tar")))
    assert len(found) == 1
    assert isinstance(found[0], Refused)


def test_a_pax_header_that_claims_gigabytes_is_refused(tmp_path: Path) -> None:
    pax = tarfile.TarInfo("x.jpg")
    pax.pax_headers = {"size": "99999999999999"}
    (tmp_path / "t.tar").write_bytes(pax.tobuf(tarfile.PAX_FORMAT) + b"\0" * 1024)
    assert all(isinstance(m, Refused) for m in read_members(str(tmp_path / "t.tar")))


def test_zeros_and_damage_are_told_apart(tmp_path: Path) -> None:
    first, offsets, _ = written([("a.jpg", b"x" * 700), ("b.jpg", b"y")])
    second, more, _ = written([("c.jpg", b"z")])
    path = tmp_path / "t.tar"

    def listed(data: bytes) -> tuple[list[tuple[str, int]], list[tuple[str, bool]]]:
        path.write_bytes(data)
        found = list(read_members(str(path)))
        members = [(m.name, m.offset) for m in found if isinstance(m, Member)]
        return members, [(m.reason, m.bad) for m in found if isinstance(m, Refused)]

    a, b, end = ("a.jpg", offsets[0]), ("b.jpg", offsets[1]), len(first)
    c = ("c.jpg", end + more[0])
    padding = (1 << 20) - 1024
    assert listed(first + bytes(padding) + second + bytes(padding)) == ([a, b, ("c.jpg", c[1] + padding)], [])
    # More zeros than any padding, as in a file whose space was reserved before it was written.
    hole = f"damaged tar: 3,146,752 bytes of zeros from byte {end - 1024} on, where samples may have been; "
    assert listed(first + bytes(3 << 20) + second) == (
        [a, b, ("c.jpg", c[1] + (3 << 20))],
        [(hole + f"reading went on at byte {end + (3 << 20)}", True)],
    )
    assert listed(first + bytes(3 << 20)) == ([a, b], [(hole + "no header follows, the rest can't be read", True)])
    assert listed(first + bytes(100)) == ([a, b], [])
    # A single block of zeros, in the middle and at the end.
    lone = "damaged tar: no valid header at byte {} (a single block of zeros; two end an archive); "
    assert listed(first[:-512] + second) == (
        [a, b, ("c.jpg", c[1] - 512)],
        [(lone.format(end - 1024) + f"reading went on at byte {end - 512}", True)],
    )
    assert listed(first[:-512]) == (
        [a, b],
        [(lone.format(end - 1024) + "no header follows, the rest can't be read", True)],
    )
    # No block of zeros at all: nothing is known to be lost, but for what the last member's padding was.
    cut = "truncated tar: ends at byte {} without the two blocks of zeros that end an archive"
    assert listed(first[:-1024]) == ([a, b], [(cut.format(end - 1024), False)])
    assert listed(first[:-1030]) == ([a, b], [(cut.format(end - 1030), True)])
    # Garbage behind the end, and before the next header.
    garbage = f"damaged tar: no valid header at byte {end} (invalid header); "
    assert listed(first + b"?" * 700) == ([a, b], [(garbage + "no header follows, the rest can't be read", True)])
    assert listed(first + b"?" * 1024 + second) == (
        [a, b, ("c.jpg", c[1] + 1024)],
        [(garbage + f"reading went on at byte {end + 1024}", True)],
    )
    assert listed(b"") == ([], [("empty file", True)])


@pytest.mark.parametrize("damage", [bytes(512), b"12 path=x.jpg\n".ljust(512, b"\0"), b"\xff" * 512])
def test_damage_in_an_extended_header_is_told(tmp_path: Path, damage: bytes) -> None:
    data = bytearray()
    for name in ("a" * 120 + ".jpg", "b.jpg"):
        info = tarfile.TarInfo(name)
        info.size = 1
        data += info.tobuf(tarfile.PAX_FORMAT) + b"x".ljust(512, b"\0")
    data[512:1024] = damage
    (tmp_path / "t.tar").write_bytes(data + bytes(1024))
    found = list(read_members(str(tmp_path / "t.tar")))
    assert found[0] == Refused(
        "",
        "damaged tar: no valid header at byte 0 (damaged records in an extended header); reading went on at byte 1024",
    )
    assert found[1:] == [Member("a" * 100, 1536, 1), Member("b.jpg", 2560, 1)]  # the first beside damage


def test_a_member_whose_long_name_is_zeroed_is_damage(tmp_path: Path) -> None:
    info = tarfile.TarInfo("a" * 120 + ".jpg")
    data = bytearray(info.tobuf(tarfile.GNU_FORMAT) + bytes(1024))
    data[512:1024] = bytes(512)
    (tmp_path / "t.tar").write_bytes(data)
    (found,) = read_members(str(tmp_path / "t.tar"))
    assert isinstance(found, Refused)
    assert (found.name, found.bad, "a header without a name" in found.reason) == ("", True, True)


def test_a_truncated_member_hides_none_that_follows(tmp_path: Path) -> None:
    data = bytearray(written([("a.jpg", b"x" * 600), ("b.jpg", b"y")])[0])
    data[124:136] = b"77777777777\0"
    data[148:156] = b" " * 8
    data[148:156] = b"%06o\0 " % sum(data[:512])
    (tmp_path / "t.tar").write_bytes(data)
    found = list(read_members(str(tmp_path / "t.tar")))
    assert found[-1] == Member("b.jpg", 2048, 1)
    assert [(m.name, "needs 8589934591 bytes at byte 512" in m.reason) for m in found if isinstance(m, Refused)] == [
        ("a.jpg", True),
        ("", True),
    ]


def test_no_more_is_read_of_an_extended_header_than_a_name_takes(tmp_path: Path) -> None:
    info = tarfile.TarInfo("././@LongLink")
    info.type, info.size = tarfile.GNUTYPE_LONGNAME, 1 << 40
    whole = written([("a.jpg", b"123")])[0]
    (tmp_path / "t.tar").write_bytes(info.tobuf(tarfile.GNU_FORMAT) + whole)
    found = list(read_members(str(tmp_path / "t.tar")))
    assert [type(member) for member in found] == [Refused, Member]
    assert "an extended header of 1099511627776 bytes" in found[0].reason  # type: ignore[union-attr]


BASE = written([("a.jpg", b"x" * 700), ("a.cls", b"1"), ("b.jpg", b"y" * 100)])[0]


@settings(max_examples=300)
@given(
    edits=st.lists(st.tuples(st.integers(0, len(BASE) - 1), st.integers(0, 255)), max_size=8),
    cut=st.integers(0, len(BASE)),
    fix_checksums=st.booleans(),
)
def test_no_damage_makes_it_raise_loop_or_point_outside(
    tmp_path_factory: pytest.TempPathFactory, edits: list[tuple[int, int]], cut: int, fix_checksums: bool
) -> None:
    data = bytearray(BASE)
    for position, value in edits:
        data[position] = value
    if fix_checksums:  # so that the damage gets past the header check
        for start in range(0, len(data) - 511, 512):
            if data[start + 257 : start + 262] == b"ustar":
                data[start + 148 : start + 156] = b" " * 8
                data[start + 148 : start + 156] = struct.pack("8s", b"%06o\0 " % sum(data[start : start + 512]))
    path = tmp_path_factory.getbasetemp() / "fuzz.tar"
    path.write_bytes(data[:cut])
    for member in read_members(str(path)):
        if isinstance(member, Member):
            assert member.size >= 0
            assert member.offset + member.size <= cut
