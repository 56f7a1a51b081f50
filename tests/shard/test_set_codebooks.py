"""The codebooks of a set: those of its shards, each once; and what is none is refused."""

from __future__ import annotations

import base64
import hashlib
import json
from pathlib import Path

import numpy as np
import pytest

from feeder import DataLoader, ShardDataset
from feeder.decoders.packed import MOST_CODEBOOKS, codebook_id, codebook_name
from feeder.errors import FormatError
from feeder.shard.format.index_builder import IndexBuilder
from feeder.shard.format.manifest import ShardRecord
from feeder.shard.format.open_index import open_index
from feeder.shard.format.sealed_head import read_head, sealed, short_hash
from feeder.shard.format.set_header import HEADER_MAGIC, SetHeader
from feeder.shard.format.shard_index import ShardIndex
from feeder.shard.write.encode import EncodeOptions
from feeder.shard.write.index_tars import index_tars
from feeder.shard.write.set_append import append
from feeder.shard.write.set_writer import write_set
from feeder.shard.write.shard_options import ShardOptions
from feeder.shard.write.sharding import shard
from feeder.tools.exported_images import export
from feeder.tools.verify import verify
from feeder.transforms import Compose, Resize
from tests.support import jpegs
from tests.support.images import encode, pixels
from tests.support.shard_sets import samples_of, write_tar

PACKED = ShardOptions(encode=EncodeOptions("packed"))
RECIPE = Compose([Resize((24, 24))])


def codebook(code: int) -> bytes:
    """A codebook of one shape, whose groups all have the width of a code."""
    shape = sum(code << 3 * group for group in range(8)).to_bytes(3, "little")
    return b"FPC\x01\0\0" + 2 * shape


A, B, C = map(codebook, (1, 2, 3))


def shard_of(folder: Path, number: int, codebooks: list[bytes]) -> ShardRecord:
    """A shard with an index that has these codebooks."""
    name = f"{number}.tar"
    (folder / name).write_bytes(bytes(5000))
    builder = IndexBuilder()
    builder.add(
        key=b"%d" % number, path=b"a.jpg", field="fpk", offset=512, length=100, label=0, width=8, height=8,
        orientation=1, source_bytes=100, crc32=0, members=[],
    )  # fmt: skip
    builder.write(str(folder / f"{number}.fidx"), np.zeros(1, np.uint32), 5000, codebooks)
    return ShardRecord(name, 1, 5000, "00" * 32)


def test_a_set_has_the_codebooks_of_its_shards_each_once(tmp_path: Path) -> None:
    each = [[A], [], [B, A], [A]]
    path = str(tmp_path / "index.bin")
    write_set(path, [shard_of(tmp_path, number, found) for number, found in enumerate(each)], None)
    assert open_index(path).codebooks == (A, B)
    write_set(path, [shard_of(tmp_path, 4, [C, B]), shard_of(tmp_path, 5, [])], None, before=SetHeader(path))
    assert open_index(path).codebooks == (A, B, C)
    assert ShardIndex(str(tmp_path / "2.fidx")).codebooks() == [B, A]


@pytest.mark.parametrize("count", [0, MOST_CODEBOOKS])
def test_a_set_may_have_no_codebook_or_many(tmp_path: Path, count: int) -> None:
    books = [b"FPC\x01\0\0" + k.to_bytes(3, "little") * 2 for k in range(count)]
    path = str(tmp_path / "index.bin")
    write_set(path, [shard_of(tmp_path, 0, books), shard_of(tmp_path, 1, books[:1])], None)
    assert open_index(path).codebooks == tuple(books)


HOSTILE = {
    "bytes that are no codebook": [base64.b64encode(b"FPX" + A[3:]).decode()],
    "another version": [base64.b64encode(b"FPC\x02" + A[4:]).decode()],
    "a cut one": [base64.b64encode(A[:-1]).decode()],
    "a byte too many": [base64.b64encode(A + b"x").decode()],
    "an empty one": [""],
    "no base64": ["?!"],
    "a number": [7],
    "no list": 7,
    "too many": [base64.b64encode(A[:6] + k.to_bytes(6, "little")).decode() for k in range(MOST_CODEBOOKS + 1)],
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_shard_with_what_is_no_codebook_goes_into_no_set(tmp_path: Path, kind: str) -> None:
    shard_of(tmp_path, 0, [A])
    path = tmp_path / "0.fidx"
    head, _, end = read_head(str(path), path.read_bytes()[:8], memoryview(path.read_bytes()))
    data = path.read_bytes()[end:]
    at, size, _ = head["groups"]["codebooks"]
    text = json.dumps(HOSTILE[kind]).encode()
    assert at + size == len(data)
    head["groups"]["codebooks"] = [at, len(text), short_hash(text).hex()]
    head["groups"]["steps"][0] = at + len(text)  # which are none
    path.write_bytes(sealed(path.read_bytes()[:8], head) + data[:at] + text)
    with pytest.raises(FormatError, match=r"0\.fidx.*its codebooks"):
        write_set(str(tmp_path / "index.bin"), [ShardRecord("0.tar", 1, 5000, "00" * 32)], None)
    assert not (tmp_path / "index.bin").exists()


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_header_with_what_is_no_codebook_is_damaged(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "index.bin"
    write_set(str(path), [shard_of(tmp_path, 0, [A])], None)
    head, _, end = read_head(str(path), HEADER_MAGIC, memoryview(path.read_bytes()))
    path.write_bytes(sealed(HEADER_MAGIC, head | {"codebooks": HOSTILE[kind]}) + path.read_bytes()[end:])
    with pytest.raises(FormatError, match=r"index\.bin.*its head is wrong"):
        ShardDataset(tmp_path)


def folder_of(path: Path, images: list[bytes]) -> Path:
    (path / "a").mkdir(parents=True)
    for number, data in enumerate(images):
        (path / "a" / f"{path.name}-{number}.jpg").write_bytes(data)
    return path


def flat(seed: int) -> bytes:
    """An image of few, small coefficients."""
    return jpegs.encode(jpegs.photo(seed, 96, 80).resize((12, 10)).resize((96, 80)), quality=30)


def rough(seed: int) -> bytes:
    """An image of many, large coefficients."""
    return encode(pixels(seed, 96, 80), quality=97)


def test_an_append_adds_a_codebook_where_the_sets_do_not_fit(tmp_path: Path) -> None:
    first = folder_of(tmp_path / "first", [flat(k) for k in range(6)])
    second = folder_of(tmp_path / "second", [rough(k) for k in range(6)])
    third = folder_of(tmp_path / "third", [rough(k) for k in range(10, 13)])
    out = tmp_path / "set"
    shard(str(first), str(out), PACKED)
    (one,) = open_index(out / "index.bin").codebooks
    assert append(str(out), str(second), ShardOptions()).encoded == {"packed": 12}
    known, two = open_index(out / "index.bin").codebooks
    assert known == one != two
    # The third's images are like the second's: no further codebook, though it is not the set's first one.
    append(str(out), str(third), ShardOptions())
    assert open_index(out / "index.bin").codebooks == (one, two)
    shards = [ShardIndex(str(path)).codebooks() for path in sorted(out.glob("*.fidx"))]
    assert shards == [[one], [two], [two]]
    assert open_index(out / "index-000001.bin").codebooks == (one,)
    ids = [data[4:12] for _, data, _ in samples_of(out)]
    assert ids == [codebook_id(one)] * 6 + [codebook_id(two)] * 9
    assert verify(str(out), deep=True) == []
    export(str(out), str(tmp_path / "out"))
    originals = {path.name: path.read_bytes() for each in (first, second, third) for path in each.rglob("*.jpg")}
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").rglob("*.jpg")} == originals
    kept = tmp_path / "kept"
    shard(str(tmp_path / "out"), str(kept), ShardOptions(encode=EncodeOptions("keep")))
    assert digests(out) == digests(kept)


def test_a_full_set_takes_one_of_its_codebooks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("feeder.shard.write.write_run.MOST_CODEBOOKS", 1)
    out = tmp_path / "set"
    shard(str(folder_of(tmp_path / "first", [flat(k) for k in range(6)])), str(out), PACKED)
    (one,) = open_index(out / "index.bin").codebooks
    more = folder_of(tmp_path / "second", [rough(k) for k in range(6)])
    assert append(str(out), str(more), ShardOptions()).encoded == {"packed": 12}
    assert open_index(out / "index.bin").codebooks == (one,)
    assert verify(str(out), deep=True) == []


def test_tars_of_too_many_codebooks_have_the_last_ones_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("feeder.shard.source.tars.MOST_CODEBOOKS", 2)
    image = encode(pixels(0, 20, 20))
    for number, each in enumerate([A, B, C, A]):
        write_tar(tmp_path / f"{number}.tar", [(codebook_name(each), each), (f"{number}.jpg", image)])
    (rejected,) = index_tars(str(tmp_path)).rejected
    assert (rejected.path, rejected.reason) == (
        f"2.tar/{codebook_name(C)}",
        "more than 2 codebooks of packed images",
    )
    assert set(open_index(tmp_path / "index.bin").codebooks) == {A, B}
    assert len(ShardDataset(tmp_path)) == 4


def digests(folder: Path) -> list[str]:
    """Those of the images that a loader gives, sorted."""
    loader = DataLoader(ShardDataset(folder, RECIPE), 4, shuffle=False)
    return sorted(hashlib.sha256(image.numpy().tobytes()).hexdigest() for batch, _ in loader for image in batch)


def test_a_set_without_jpegs_gets_a_codebook_of_the_first_that_it_is_given(tmp_path: Path) -> None:
    (tmp_path / "images" / "a").mkdir(parents=True)
    pixels(0).save(tmp_path / "images" / "a" / "x.png")
    out = tmp_path / "set"
    shard(str(tmp_path / "images"), str(out), PACKED)
    append(str(out), str(folder_of(tmp_path / "more", [rough(k) for k in range(3)])), ShardOptions())
    trained = open_index(out / "index.bin").codebooks[-1]
    assert len(trained) > 6 + 2 * 3
    assert ShardIndex(str(out / "shard-000001.fidx")).codebooks() == [trained]


def test_an_interrupted_append_takes_the_same_codebook_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = folder_of(tmp_path / "first", [flat(k) for k in range(4)])
    second = folder_of(tmp_path / "second", [rough(k) for k in range(6)])
    for name in ("whole", "again"):
        shard(str(first), str(tmp_path / name), ShardOptions(samples_per_shard=2, encode=PACKED.encode))
    append(str(tmp_path / "whole"), str(second), ShardOptions())

    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("feeder.shard.write.set_append.write_set", stop)
        with pytest.raises(KeyboardInterrupt):
            append(str(tmp_path / "again"), str(second), ShardOptions())
    (tmp_path / "again" / "shard-000003.tar").unlink()
    append(str(tmp_path / "again"), str(second), ShardOptions())
    for path in (tmp_path / "whole").glob("*.tar"):
        assert (tmp_path / "again" / path.name).read_bytes() == path.read_bytes()
    again, whole = (open_index(tmp_path / name / "index.bin").codebooks for name in ("again", "whole"))
    assert again == whole
