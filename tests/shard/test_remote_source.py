"""Sources that lie in stores: they give the sets that local ones give."""

from __future__ import annotations

import gzip
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from feeder.errors import ArgumentError, ShardError, SourceError, StoreError
from feeder.shard.source.open import open_source
from feeder.shard.source.table_file import ManifestColumns
from feeder.shard.source.target_sources import TargetSources
from feeder.shard.write.shard_options import ShardOptions
from feeder.shard.write.sharding import shard
from tests.support.fault_proxy import FaultProxy
from tests.support.images import encode, pixels
from tests.support.remote import Bucket
from tests.support.shard_sets import KEEP, contents, kept, rejected, samples_of, tar_members, write_tar

Upload = Callable[[Path, str], str]


@pytest.fixture
def upload(bucket: Bucket) -> Upload:
    """Copies a folder into the bucket, and returns its URL."""

    def copy(folder: Path, prefix: str) -> str:
        for path in folder.rglob("*"):
            if path.is_file():
                bucket.put(f"{prefix}/{path.relative_to(folder)}", path.read_bytes())
        return f"{bucket.url}/{prefix}"

    return copy


def _same_set(local: str, remote: str, tmp_path: Path, options: ShardOptions) -> None:
    shard(local, str(tmp_path / "from-local"), options)
    shard(remote, str(tmp_path / "from-remote"), options)
    assert contents(tmp_path / "from-remote") == contents(tmp_path / "from-local")


def test_class_folders_in_a_store(tree: Path, tmp_path: Path, upload: Upload, bucket: Bucket) -> None:
    url = upload(tree, "images")
    for name, data in {"class-0/b/deep.jpg": encode(pixels(1)), "class-0/notes.txt": b"x", "top.txt": b"y",
                       "class-0/broken.jpg": b"\xff\xd8"}.items():  # fmt: skip
        (tree.parent / "more" / name).parent.mkdir(parents=True, exist_ok=True)
        (tree.parent / "more" / name).write_bytes(data)
    upload(tree.parent / "more", "more")
    bucket.put("more/class-0/", b"")  # markers of folders, as consoles make them
    _same_set(str(tree), url, tmp_path / "1", kept(samples_per_shard=20))
    _same_set(str(tree.parent / "more"), f"{bucket.url}/more/", tmp_path / "2", kept(max_bad=1))
    unlabelled = ManifestColumns(has_labels=False)
    _same_set(str(tree.parent / "more"), f"{bucket.url}/more/", tmp_path / "3", kept(max_bad=1, columns=unlabelled))
    assert {label for *_, label in samples_of(tmp_path / "3" / "from-remote")} == {-1}


def test_a_flat_folder_with_members_in_a_store(tmp_path: Path, upload: Upload) -> None:
    folder = tmp_path / "flat"
    folder.mkdir()
    for k in range(5):
        (folder / f"{k}.jpg").write_bytes(encode(pixels(k)))
        (folder / f"{k}.txt").write_text(f"caption {k}")
    _same_set(str(folder), upload(folder, "flat"), tmp_path, kept())


def test_masks_in_a_store_become_members_if_they_are_named(bucket: Bucket, tmp_path: Path) -> None:
    for name in ("0.jpg", "0.seg.png"):
        bucket.put(f"masks/{name}", encode(pixels(1)))
    (note,) = open_source(f"{bucket.url}/masks", ManifestColumns(), str(tmp_path)).notes
    assert note.endswith("--members seg.png makes them so")
    targets = TargetSources(members=("seg.png",))
    source = open_source(f"{bucket.url}/masks", ManifestColumns(), str(tmp_path), targets=targets)
    assert [set(fields) for fields in source.table.by_fields()] == [{"seg.png"}]


def _without_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has the disk no room for copies of tars."""
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=0))


@pytest.mark.parametrize("has_room", [True, False])
def test_tars_in_a_store(tmp_path: Path, upload: Upload, monkeypatch: pytest.MonkeyPatch, has_room: bool) -> None:
    if not has_room:
        _without_room(monkeypatch)
    folder = tmp_path / "tars"
    folder.mkdir()
    for k in range(3):
        write_tar(folder / f"train-{k:03d}.tar", tar_members(6, first=6 * k))
    damaged = (folder / "train-001.tar").read_bytes()
    (folder / "train-001.tar").write_bytes(damaged[:-3000])
    url = upload(folder, "tars")
    options = kept(max_bad=1)
    shard(str(folder), str(tmp_path / "local"), options)
    for number, name in enumerate(("", "/train-{000..002}.tar", "/train-*.tar")):
        shard(f"{url}{name}", str(tmp_path / str(number)), options)
        assert contents(tmp_path / str(number)) == contents(tmp_path / "local")


def test_tars_in_a_store_are_read_once_also_where_a_run_is_started_again(
    tmp_path: Path, upload: Upload, fault_proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "tars"
    folder.mkdir()
    for k in range(20):  # more than are fetched ahead
        write_tar(folder / f"{k:02d}.tar", tar_members(3, first=3 * k))
    url, total = upload(folder, "tars"), sum(path.stat().st_size for path in folder.iterdir())

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    def asked_bytes() -> int:
        return sum(request.size_bytes for request in fault_proxy.requests() if ".tar" in request.target)

    with monkeypatch.context() as patched:
        patched.setattr("feeder.shard.write.write_run.write_set", interrupt)
        with pytest.raises(KeyboardInterrupt):
            shard(url, str(tmp_path / "out"), kept(samples_per_shard=10))
    assert total <= asked_bytes() <= total + 20 * 2  # the first bytes tell whether a tar is compressed
    shard(url, str(tmp_path / "out"), kept(samples_per_shard=10))
    assert asked_bytes() <= total + 2 * 20 * 2
    shard(str(folder), str(tmp_path / "local"), kept(samples_per_shard=10))
    assert contents(tmp_path / "out") == contents(tmp_path / "local")
    assert not (tmp_path / "out" / ".work").exists()


def test_of_tars_without_room_large_fields_are_passed_over_while_they_are_listed(
    tmp_path: Path, upload: Upload, fault_proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    _without_room(monkeypatch)
    folder, large = tmp_path / "tars", ("bin", bytes(range(256)) * (5 << 12))
    folder.mkdir()
    for k in range(2):
        members = [(f"{k}-{n}.{field}", data) for n in range(3) for field, data in (*sample(n), large)]
        write_tar(folder / f"{k}.tar", members)
    url = upload(folder, "tars")
    source = open_source(url, ManifestColumns(), str(tmp_path))
    asked = sum(request.size_bytes for request in fault_proxy.requests() if ".tar" in request.target)
    assert asked < 2 * 3 * (3 << 20)
    assert [source.table.label(i) for i in range(len(source.table))] == 2 * [0, 1, 2]
    assert [dict(source.read(i)) for i in range(3)] == [dict((*sample(n), large)) for n in range(3)]


def sample(n: int) -> tuple[tuple[str, bytes], ...]:
    return ("cls", b"%d" % n), ("jpg", encode(pixels(n)))


def test_compressed_tars_in_a_store(tmp_path: Path, upload: Upload) -> None:
    folder = tmp_path / "tars"
    folder.mkdir()
    for k in range(2):
        plain = write_tar(tmp_path / "plain.tar", tar_members(4, first=4 * k))
        (folder / f"{k}.tar.gz").write_bytes(gzip.compress(plain.read_bytes()))
    _same_set(str(folder), upload(folder, "tars"), tmp_path, kept())


def test_a_shard_set_in_a_store_keeps_its_classes(tree: Path, tmp_path: Path, upload: Upload) -> None:
    shard(str(tree), str(tmp_path / "set"), kept(samples_per_shard=20))
    (tmp_path / "set" / ".lock").unlink()
    url = upload(tmp_path / "set", "set")
    shard(url, str(tmp_path / "again"), kept())
    manifest = json.loads((tmp_path / "again" / "manifest.json").read_text())
    assert manifest["classes"] == [f"class-{k}" for k in range(4)]


def test_tars_behind_a_web_server(tmp_path: Path, upload: Upload, real_bucket: Bucket) -> None:
    folder = tmp_path / "tars"
    folder.mkdir()
    for k in range(2):
        write_tar(folder / f"{k}.tar", tar_members(4, first=4 * k))
    upload(folder, "tars")
    url = f"{real_bucket.open_to_all()}/tars"
    shard(str(folder), str(tmp_path / "local"), kept())
    shard(f"{url}/{{0..1}}.tar", str(tmp_path / "remote"), kept())
    assert samples_of(tmp_path / "remote") == samples_of(tmp_path / "local")
    with pytest.raises(StoreError, match="can't list its files; name them"):
        shard(url, str(tmp_path / "none"), kept())


def test_notes_and_errors_on_a_manifest_name_its_object_and_not_the_copy(tmp_path: Path, bucket: Bucket) -> None:
    bucket.put("set/1.jpg", encode(pixels(1)))
    bucket.put("set/list.csv", "path;label\n1.jpg;3\n".encode("utf-16"))
    summary = shard(f"{bucket.url}/set/list.csv", str(tmp_path / "out"), kept())
    assert [note for note in summary.notes if str(tmp_path) in note] == []
    assert f"{bucket.url}/set/list.csv: read as UTF-16" in summary.notes
    bucket.put("set/list.csv", b"<html>")
    with pytest.raises(SourceError, match=rf"^{bucket.url}/set/list.csv: is a page of a web server"):
        shard(f"{bucket.url}/set/list.csv", str(tmp_path / "b"), kept())


def test_a_manifest_in_a_store_with_paths_there(tmp_path: Path, upload: Upload) -> None:
    folder = tmp_path / "data"
    (folder / "images").mkdir(parents=True)
    for k in range(6):
        (folder / "images" / f"{k}.jpg").write_bytes(encode(pixels(k)))
    rows = [f"images/{k}.jpg,{k % 2},author {k}" for k in range(6)]
    (folder / "list.csv").write_text("\n".join(["path,label,author", *rows, "images/none.jpg,0,x", "../list.csv,0,x"]))
    url = upload(folder, "data")
    options = kept(max_bad=1)
    shard(str(folder / "list.csv"), str(tmp_path / "local"), options)
    shard(f"{url}/list.csv", str(tmp_path / "remote"), options)
    assert samples_of(tmp_path / "remote") == samples_of(tmp_path / "local")
    shard(
        str(folder / "list.csv"),
        str(tmp_path / "rooted"),
        kept(max_bad=1, columns=ManifestColumns(root=f"{url}")),
    )
    assert samples_of(tmp_path / "rooted") == samples_of(tmp_path / "local")
    assert rejected(tmp_path / "rooted").keys() == {"images/none.jpg", "../list.csv"}
    assert "no such object" in rejected(tmp_path / "rooted")["images/none.jpg"]


@pytest.mark.parametrize("by_manifest", [False, True])
def test_an_object_that_changes_while_it_is_sharded_ends_the_run(
    tree: Path, tmp_path: Path, upload: Upload, bucket: Bucket, monkeypatch: pytest.MonkeyPatch, by_manifest: bool
) -> None:
    url = upload(tree, "images")
    keys = bucket.keys()
    changed = keys[3]
    if by_manifest:
        bucket.put("list.csv", "\n".join(["path", *(f"./{key}" for key in keys)]).encode())
        url = f"{bucket.url}/list.csv"

    def open_and_change(*arguments, **options):
        source = open_source(*arguments, **options)
        bucket.put(changed, b"other bytes")
        return source

    monkeypatch.setattr("feeder.shard.write.sharding.open_source", open_and_change)
    with pytest.raises(SourceError, match=rf"{os.path.basename(changed)} .*changed while it was being sharded"):
        shard(url, str(tmp_path / "out"), kept())


def test_a_set_is_not_written_into_its_source(tree: Path, upload: Upload, bucket: Bucket) -> None:
    url = upload(tree, "images")
    for out in (url, f"{url}/set"):
        with pytest.raises(ShardError, match="lies inside the source"):
            shard(url, out, kept())
    shard(url, f"{bucket.url}/images-shards", kept())


def test_a_prefix_without_objects_is_an_error(bucket: Bucket, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=rf"{bucket.url}/none: holds no object"):
        shard(f"{bucket.url}/none", str(tmp_path / "out"))
    with pytest.raises(StoreError, match="no such object"):
        shard(f"{bucket.url}/none-{{0..3}}.tar", str(tmp_path / "out"))
    assert not (tmp_path / "out").exists() or not any((tmp_path / "out").iterdir())


def test_an_error_about_a_source_in_a_store_does_not_show_its_options(tmp_path: Path, bucket: Bucket) -> None:
    bucket.put("images/a/0.jpg", encode(pixels(1)))
    url = f"{bucket.url}/images?endpoint={bucket.server.endpoint}"
    for options in (kept(image_field="jpg"), kept(columns=ManifestColumns(suffix=".jpg"))):
        with pytest.raises(SourceError) as caught:
            shard(url, str(tmp_path / "out"), options)
        assert "endpoint" not in str(caught.value)
    with pytest.raises(ShardError, match="lies inside the source") as refused:
        shard(url, f"{bucket.url}/images/set?endpoint={bucket.server.endpoint}", kept())
    assert "endpoint" not in str(refused.value)


def test_what_a_set_records_of_a_url_holds_no_options(tree: Path, tmp_path: Path, upload: Upload) -> None:
    url = upload(tree, "images")
    out = tmp_path / "out"
    shard(f"{url}?region=us-east-1", str(out), ShardOptions(encode=KEEP))
    assert not any(b"us-east-1" in path.read_bytes() for path in out.iterdir())
    with pytest.raises(ArgumentError, match="takes only region and endpoint"):
        shard(f"{url}?X-Amz-Signature=abc", str(tmp_path / "none"))
