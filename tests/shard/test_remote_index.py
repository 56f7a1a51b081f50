"""Tars and sets in a store that are indexed and exported where they lie: with the files of local ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import feeder
from feeder.errors import FormatError, ShardError, SourceError, StoreError
from feeder.shard.format.open_index import open_index
from feeder.shard.write.encode import EncodeOptions
from feeder.shard.write.index_tars import index_tars
from feeder.shard.write.shard_options import ShardOptions
from feeder.shard.write.sharding import shard
from feeder.shard.write.store_lock import LOCK_NAME
from feeder.tools.cli import main
from feeder.tools.exported_images import export
from tests.support.images import encode, pixels
from tests.support.remote import Bucket
from tests.support.shard_sets import kept, tar_members, write_tar


def _files(folder: Path) -> dict[str, bytes]:
    found = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    return {name: data for name, data in found.items() if name != LOCK_NAME}


def _objects(bucket: Bucket, prefix: str) -> dict[str, bytes]:
    return {key.removeprefix(f"{prefix}/"): bucket.get(key) for key in bucket.keys() if key.startswith(f"{prefix}/")}  # noqa: SIM118


@pytest.fixture
def tars(tmp_path: Path, bucket: Bucket) -> Path:
    """Two tars in a folder, and the same in the bucket at "tars"; the second has a damaged image."""
    folder = tmp_path / "tars"
    folder.mkdir()
    for k in range(2):
        broken = [("broken.jpg", b"\xff\xd8"), ("broken.cls", b"1")] if k else []
        write_tar(folder / f"t-{k}.tar", tar_members(4, 10 * k) + broken)
    bucket.upload(folder, "tars")
    return folder


@pytest.mark.parametrize("source", ["tars", "tars/t-{0..1}.tar"])
def test_tars_in_a_store_get_the_index_of_local_ones(tars: Path, bucket: Bucket, source: str) -> None:
    local = index_tars(str(tars))
    remote = index_tars(f"{bucket.url}/{source}")
    assert _objects(bucket, "tars") == _files(tars)
    assert remote.path == f"{bucket.url}/tars/index.bin"
    assert (remote.samples, remote.rejected) == (local.samples, local.rejected)
    again = index_tars(f"{bucket.url}/tars", image_field="jpg")
    assert again.samples == 8


def test_an_index_may_lie_above_the_tars_and_have_a_name_of_its_own(tars: Path, bucket: Bucket) -> None:
    index_tars(str(tars), str(tars.parent / "seg.bin"), image_field="jpg")
    index_tars(f"{bucket.url}/tars", f"{bucket.url}/seg.bin", image_field="jpg")
    assert bucket.get("seg.bin") == (tars.parent / "seg.bin").read_bytes()
    assert bucket.get("tars/t-1.fidx-seg") == (tars / "t-1.fidx-seg").read_bytes()


def test_an_index_in_a_store_replaces_none_of_other_tars(tars: Path, bucket: Bucket) -> None:
    index_tars(f"{bucket.url}/tars/t-0.tar")
    with pytest.raises(ShardError, match=rf"{bucket.url}/tars/index\.bin: is an index for other tars \(t-0\.tar"):
        index_tars(f"{bucket.url}/tars")
    with pytest.raises(ShardError, match=r"none/index\.bin: must lie in .*/tars, or above it"):
        index_tars(f"{bucket.url}/tars", f"{bucket.url}/none/index.bin")
    with pytest.raises(ShardError, match="the index of tars in a local folder lies there"):
        index_tars(str(tars), f"{bucket.url}/tars/index.bin")
    bucket.put("images/a.jpg", encode(pixels(1)))
    with pytest.raises(SourceError, match="no tar there"):
        index_tars(f"{bucket.url}/images")
    shard(str(tars), f"{bucket.url}/set", kept(max_bad=1))
    with pytest.raises(ShardError, match="holds a shard set that feeder wrote"):
        index_tars(f"{bucket.url}/set")
    assert LOCK_NAME not in _objects(bucket, "tars")


def test_tars_behind_a_web_server_are_not_indexed_there(tars: Path, bucket: Bucket, monkeypatch: Any) -> None:
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    with pytest.raises(StoreError, match="a web server is only read"):
        index_tars(f"{bucket.open_to_all()}/tars/t-{{0..1}}.tar")


def test_images_of_a_set_in_a_store_are_exported(tree: Path, tmp_path: Path, bucket: Bucket) -> None:
    shard(str(tree), str(tmp_path / "set"), kept(samples_per_shard=15))
    bucket.upload(tmp_path / "set", "set")
    here, there = str(tmp_path / "out"), f"{bucket.url}/out"
    images = _files(tree)
    assert export(f"{bucket.url}/set", here).stored == len(images)
    assert _files(tmp_path / "out") == images
    assert export(str(tmp_path / "set"), there).out == there
    assert _objects(bucket, "out") == images
    for out in (here, there):
        with pytest.raises(ShardError, match="is not empty"):
            export(f"{bucket.url}/set", out)
    bucket.client.delete_object(Bucket=bucket.name, Key="set/shard-000001.tar")
    with pytest.raises(StoreError, match=r"set/shard-000001\.tar.*: there is no such object"):
        export(f"{bucket.url}/set", str(tmp_path / "more"))


def test_the_codebooks_of_a_set_in_a_store_come_from_its_header(tree: Path, tmp_path: Path, bucket: Bucket) -> None:
    shard(str(tree), str(tmp_path / "set"), ShardOptions(encode=EncodeOptions("packed")))
    index = open_index(tmp_path / "set" / "index.bin")
    shard_number, offset, length = index.place(0)
    data = Path(index.shard_path(shard_number)).read_bytes()[offset : offset + length]
    with pytest.raises(FormatError, match=rf"^{bucket.url}/set: no index\.bin"):
        feeder.packed_decoder(f"{bucket.url}/set")
    bucket.put("set/index.bin", (tmp_path / "set" / "index.bin").read_bytes())
    unpacked = feeder.packed_decoder(f"{bucket.url}/set")({"__key__": "a", "fpk": data})
    assert unpacked["jpg"] == (tree / index.source_path(0)).read_bytes()
    bucket.put("set/index.bin", bucket.get("set/index.bin")[:-9])
    with pytest.raises(FormatError, match=rf"^{bucket.url}/set/index\.bin.*: "):
        feeder.packed_decoder(f"{bucket.url}/set")


def test_the_commands_take_urls(tars: Path, bucket: Bucket, tmp_path: Path, capsys: Any) -> None:
    assert main(["index", f"{bucket.url}/tars", "--max-bad", "1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["path"] == f"{bucket.url}/tars/index.bin"
    assert main(["export", f"{bucket.url}/tars", "--out", str(tmp_path / "out"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["stored"] == 8
