"""Folders of images in a store, read as they are."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch

import feeder
from feeder import transforms as T
from feeder.errors import ChangedError, DecodeError, SourceError, StoreError
from tests.support.batches import copied_epoch, same_batches
from tests.support.fault_proxy import FaultProxy, Faults
from tests.support.images import encode, make_tree, pixels
from tests.support.remote import Bucket
from tests.support.remote_sets import end_fetchers

CROP = T.Compose([T.RandomResizedCrop(16), T.RandomHorizontalFlip()])
FIELDS = ("key", "index", "txt", "width")


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[Path]:
    with end_fetchers(tmp_path):
        yield tmp_path / "cache"


@pytest.fixture
def images(tmp_path: Path, bucket: Bucket) -> Path:
    """Three classes of ten images each, one with a caption; in the bucket, too, below "images"."""
    found = make_tree(tmp_path / "images")
    (found / "class-1" / "img-003.txt").write_text("a caption")
    (found / "class-1" / "later").mkdir()
    (found / "class-1" / "later" / "img.jpg").write_bytes(encode(pixels(7)))
    for path in found.rglob("*.*"):
        bucket.put(f"images/{path.relative_to(found).as_posix()}", path.read_bytes())
    return found


def stored(bucket: Bucket, cache: Path, **options: Any) -> feeder.FolderDataset:
    return feeder.FolderDataset(f"{bucket.url}/images", CROP, FIELDS, cache_dir=cache, **options)


def loader(dataset: Any, **options: Any) -> feeder.DataLoader:
    return feeder.DataLoader(dataset, **{"batch_size": 4, "shuffle": True, "seed": 1, **options})


@pytest.mark.parametrize(
    ("workers", "cache_bytes", "requests"),
    [(0, None, 2 * 32), (2, None, 2 * 32), (0, 1 << 30, 32), (2, 1 << 30, 32)],
)
def test_epochs_are_those_of_a_local_copy_and_ask_once_for_each_object_or_once_in_each_epoch(
    bucket: Bucket, cache: Path, images: Path, workers: int, cache_bytes: int | None, requests: int
) -> None:
    dataset = stored(bucket, cache, cache_bytes=cache_bytes)
    local = feeder.FolderDataset(images, CROP, FIELDS)
    assert dataset.classes == local.classes == ["class-0", "class-1", "class-2"]
    assert dataset.targets == local.targets
    assert dataset.reader.fingerprint() == local.reader.fingerprint()
    assert dataset.reader.field(3, "path") == f"{bucket.url}/images/class-0/img-003.jpg"

    remote, other = loader(dataset, num_workers=workers), loader(local)
    for _ in range(2):
        assert same_batches(copied_epoch(remote), copied_epoch(other))
    counts = remote.stats()["remote"]
    if bucket.server.is_real:
        assert counts["requests"] == requests
        assert len(_cached(cache)) == (0 if cache_bytes is None else 31)
    assert counts["bytes"] >= sum(path.stat().st_size for path in images.rglob("*.*"))
    remote.close()


def test_faults_change_no_batch(bucket: Bucket, fault_proxy: FaultProxy, cache: Path, images: Path) -> None:
    dataset, local = stored(bucket, cache), feeder.FolderDataset(images, CROP, FIELDS)
    fault_proxy.set(Faults(dict.fromkeys(("503", "reset", "cut"), 0.1), in_turn=True, only="images/class"))
    for _ in range(2):
        assert same_batches(copied_epoch(loader(dataset)), copied_epoch(loader(local)))
    assert fault_proxy.counts().keys() == {"503", "reset", "cut"}


def test_where_signed_urls_are_refused_images_come_by_the_cache_without_asking_again(
    bucket: Bucket, fault_proxy: FaultProxy, cache: Path, images: Path
) -> None:
    dataset, local = stored(bucket, cache), feeder.FolderDataset(images, CROP, FIELDS)
    fault_proxy.set(Faults({"503": 1.0}, only="X-Amz-Signature"))
    for _ in range(2):
        assert same_batches(copied_epoch(loader(dataset)), copied_epoch(loader(local)))
    assert len(_cached(cache)) == 31
    assert len([each for each in fault_proxy.requests() if each.fault == "503"]) < 31  # and not 62


def test_sizes_come_by_the_starts_of_images(bucket: Bucket, cache: Path, tmp_path: Path) -> None:
    large = tmp_path / "large"
    (large / "a").mkdir(parents=True)
    for number, size in enumerate([(400, 300), (32, 24), (300, 500)]):
        (large / "a" / f"{number}.jpg").write_bytes(encode(pixels(number, *size), quality=97))
    (large / "a" / "late.jpg").write_bytes(late := _with_late_size((large / "a" / "0.jpg").read_bytes()))
    sizes = [path.stat().st_size for path in (large / "a").iterdir()]
    assert max(sizes) > 1 << 15
    for path in (large / "a").iterdir():
        bucket.put(f"large/a/{path.name}", path.read_bytes())

    dataset = feeder.FolderDataset(f"{bucket.url}/large", cache_dir=cache)
    local = feeder.FolderDataset(large)
    ids = np.arange(4)
    for each in (dataset, local):
        each.reader.measure()
    found, expected = dataset.reader.stored(ids), local.reader.stored(ids)
    assert found is not None
    assert expected is not None
    for mine, theirs in zip(found, expected, strict=True):
        np.testing.assert_array_equal(mine, theirs)
    if bucket.server.is_real:
        listing = next(cache.rglob("objects.json")).stat().st_size
        counts = cast(Any, dataset.reader).mirror.counts()
        assert counts["bytes"] - listing == sum(min(size, 1 << 14) for size in sizes) + len(late)
        assert counts["requests"] == 5


def test_a_process_that_is_forked_off_one_that_has_read_reads_too(bucket: Bucket, cache: Path, images: Path) -> None:
    dataset, local = stored(bucket, cache), feeder.FolderDataset(images, CROP, FIELDS)
    reader = dataset.reader
    ids = np.arange(31)
    expected = [bytes(each) for each in local.reader.read(ids).buffers]
    assert [bytes(each) for each in reader.read(ids[:9]).buffers] == expected[:9]
    forked = torch.utils.data.DataLoader(
        cast(Any, _Encoded(reader)), batch_size=4, num_workers=2, multiprocessing_context="fork", collate_fn=list
    )
    for _ in range(2):
        assert [each for batch in forked for each in batch] == expected
        assert [bytes(each) for each in reader.read(ids).buffers] == expected
    assert not _cached(cache) or not bucket.server.is_real  # as they would be after a fault


def _cached(cache: Path) -> list[Path]:
    """Returns the images in a cache."""
    return list(cache.glob("*/class-*/**/*.jpg"))


class _Encoded:
    """The encoded images of a folder, a batch at a time."""

    def __init__(self, reader: Any) -> None:
        self._reader = reader

    def __len__(self) -> int:
        return len(self._reader)

    def __getitems__(self, ids: list[int]) -> list[bytes]:
        return [bytes(each) for each in self._reader.read(np.array(ids)).buffers]


def _with_late_size(jpeg: bytes) -> bytes:
    """Returns a JPEG with comments before its header, which are longer than the start that is read."""
    comment = b"\xff\xfe" + (20_002).to_bytes(2, "big") + bytes(20_000)
    return jpeg[:2] + comment + jpeg[2:]


def test_a_run_goes_on_from_a_local_copy_and_on_other_ranks(bucket: Bucket, cache: Path, images: Path) -> None:
    first = loader(feeder.FolderDataset(images, CROP, FIELDS))
    batches = iter(first)
    for _ in range(3):
        next(batches)
    state = json.loads(json.dumps(first.state_dict()))
    rest = [key for batch in batches for key in batch[2]]

    found = []
    for rank in range(2):
        part = loader(stored(bucket, cache), batch_size=2, rank=rank, world_size=2)
        part.load_state_dict(state)
        found.append([batch[2] for batch in part])
    assert [key for both in zip(*found, strict=True) for part in both for key in part][: len(rest)] == rest


def test_an_object_that_is_no_image_is_named_or_replaced(bucket: Bucket, cache: Path, images: Path) -> None:
    bucket.put("images/class-2/img-004.jpg", b"no image at all")
    with pytest.raises(DecodeError, match=r"class-2/img-004\.jpg"):
        copied_epoch(loader(stored(bucket, cache)))
    skipping = loader(stored(bucket, cache), on_error="skip")
    with pytest.warns(UserWarning, match="1 of 31 samples"):
        assert sum(len(batch[0]) for batch in skipping) == 31
    assert [each["key"] for each in skipping.stats()["substitutions"]] == ["class-2/img-004.jpg"]


def test_an_object_that_changed_since_the_listing_is_named(bucket: Bucket, cache: Path, images: Path) -> None:
    dataset = stored(bucket, cache)
    before = (images / "class-0" / "img-002.jpg").read_bytes()
    bucket.put("images/class-0/img-002.jpg", before[:-1] + b"\0")  # of the same size
    with pytest.raises(ChangedError, match=r"class-0/img-002\.jpg.*was replaced"):
        copied_epoch(loader(dataset))


def test_an_object_that_another_job_has_brought_anew_is_not_taken_for_the_one_that_was_listed(
    bucket: Bucket, cache: Path, images: Path
) -> None:
    dataset = stored(bucket, cache)
    with end_fetchers(cache):
        pass
    bucket.put("images/class-0/img-002.jpg", encode(pixels(99)))
    assert len(copied_epoch(loader(stored(bucket, cache)))) == 8
    with pytest.raises(ChangedError, match=r"class-0/img-002\.jpg: it was replaced"):
        copied_epoch(loader(dataset))


def test_files_beside_an_image_are_those_of_a_local_copy_as_they_were_listed(
    bucket: Bucket, cache: Path, images: Path
) -> None:
    for name, data in (("img-001.TXT", b"in capitals"), ("img-002.gone", b"for now")):
        (images / "class-0" / name).write_bytes(data)
        bucket.put(f"images/class-0/{name}", data)
    dataset, local = stored(bucket, cache), feeder.FolderDataset(images, CROP, FIELDS)
    assert dataset.reader.field_names() == local.reader.field_names()
    for i in range(len(local)):
        for name in ("txt", "TXT", "gone"):
            if (i, name) != (2, "gone"):
                assert dataset.reader.member(i, name) == local.reader.member(i, name)
    bucket.put("images/class-0/img-002.gone", b"another")
    with pytest.raises(ChangedError, match=r"img-002\.gone.*was replaced"):
        dataset.reader.member(2, "gone")


def test_what_is_no_folder_of_class_folders_says_so(
    bucket: Bucket, cache: Path, images: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def opened(prefix: str) -> feeder.FolderDataset:
        return feeder.FolderDataset(f"{bucket.url}/{prefix}", cache_dir=cache)

    with pytest.raises(SourceError, match="holds no object; check the bucket and the prefix"):
        opened("nothing")
    with pytest.raises(SourceError, match="expected a folder for each class"):
        opened("images/class-0")
    bucket.put("set/index.bin", b"")
    bucket.put("set/a/b.tar", b"")
    with pytest.raises(SourceError, match="this is a shard set"):
        opened("set")
    for key in ("00000/0.jpg", "00000_stats.json", "00001/1.jpg", "00001.parquet"):
        bucket.put(f"downloads/{key}", encode(pixels(1)))
    with pytest.warns(UserWarning, match="are shards of img2dataset and no classes"):
        downloads = opened("downloads")
    assert (downloads.classes, downloads.targets) == (None, [-1, -1])
    bucket.put("images/empty/notes", b"no image")
    with pytest.raises(SourceError, match="empty: found no image in this class folder"):
        opened("images")
    bucket.put("images/empty/a.jpg", encode(pixels(1)))
    with end_fetchers(cache):
        pass
    with pytest.warns(UserWarning, match="1 object without the extension of an image, such as empty/notes"):
        assert len(opened("images")) == 32
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    with pytest.raises(StoreError, match="images"):
        feeder.FolderDataset(f"{bucket.url}/images", cache_dir=cache / "other")
