"""Training from sets in every kind of place, and with what becomes of credentials in an epoch."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import feeder
from feeder.errors import StoreError
from feeder.transforms import Compose, RandomResizedCrop
from tests.support.batches import copied_epoch, same_batches
from tests.support.fault_proxy import FaultProxy, Faults
from tests.support.google_store import GoogleStore
from tests.support.remote import Bucket
from tests.support.remote_sets import end_fetchers, make_set, upload
from tests.support.tls import TlsProxy

OTHER_KEY, OTHER_SECRET = "OTHERKEY", "OTHERSECRET"


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A set of 64 samples in 16 shards."""
    return make_set(tmp_path_factory.mktemp("local"))


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[Path]:
    with end_fetchers(tmp_path):
        yield tmp_path / "cache"


def loader(place: str | Path, cache: Path | None = None, **options: Any) -> feeder.DataLoader:
    data = feeder.ShardDataset(str(place), Compose([RandomResizedCrop(32)]), ["key"], cache_dir=cache, **options)
    return feeder.DataLoader(data, batch_size=4, seed=1, shuffle=feeder.Lanes(1, 4), num_workers=1)


def assert_same(place: str, cache: Path, local: Path) -> None:
    """Fails unless an epoch from a place is that of the local copy, and came from there."""
    remote = loader(place, cache)
    assert same_batches(copied_epoch(remote), copied_epoch(loader(local)))
    assert remote.stats()["remote"]["bytes"] > sum(path.stat().st_size for path in local.glob("*.tar")) / 2


def serve(google: GoogleStore, folder: Path) -> None:
    for path in folder.iterdir():
        if path.is_file():
            google.put(f"bucket/set/{path.name}", path.read_bytes())


def test_an_epoch_from_google_is_that_of_a_local_copy(google: GoogleStore, cache: Path, local: Path) -> None:
    serve(google, local)
    assert_same("gs://bucket/set", cache, local)


@pytest.mark.parametrize("has_weak_tags", [False, True])
def test_an_epoch_from_a_web_server_is_that_of_a_local_copy(
    google: GoogleStore, cache: Path, local: Path, has_weak_tags: bool
) -> None:
    serve(google, local)
    google.has_weak_tags = has_weak_tags
    assert_same(f"{google.url}/bucket/set", cache, local)


@pytest.mark.parametrize("is_plain", [False, True])
def test_an_epoch_over_tls_is_that_of_a_local_copy(
    bucket: Bucket, tls_proxy: TlsProxy, cache: Path, local: Path, monkeypatch: pytest.MonkeyPatch, is_plain: bool
) -> None:
    url = upload(bucket, local)
    monkeypatch.delenv("AWS_ALLOW_HTTP")
    monkeypatch.setenv("AWS_CA_BUNDLE", str(tls_proxy.authority))
    if is_plain:  # as any web server
        bucket.open_to_all()
        url = f"{tls_proxy.good}/{bucket.name}/set"
        monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("AWS_ENDPOINT_URL", tls_proxy.good)
    assert_same(url, cache, local)


@pytest.mark.parametrize("name", ["wrong_host", "expired", "good"])
def test_a_set_behind_a_certificate_that_is_not_good_is_not_opened(
    bucket: Bucket, tls_proxy: TlsProxy, cache: Path, local: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    url = upload(bucket, local)
    if name != "good":  # which nobody here trusts
        monkeypatch.setenv("AWS_CA_BUNDLE", str(tls_proxy.authority))
    monkeypatch.setenv("AWS_ENDPOINT_URL", getattr(tls_proxy, name))
    with pytest.raises(StoreError, match=rf"{url}/index.bin.*: the server's certificate is refused"):
        loader(url, cache)


@pytest.mark.parametrize("is_renewed", [True, False])
def test_credentials_that_expire_in_an_epoch_are_read_again_from_their_file(
    bucket: Bucket,
    fault_proxy: FaultProxy,
    cache: Path,
    local: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    is_renewed: bool,
) -> None:
    url, file = upload(bucket, local), tmp_path / "credentials"
    old = os.environ["AWS_ACCESS_KEY_ID"], os.environ["AWS_SECRET_ACCESS_KEY"]
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    monkeypatch.setenv("AWS_PROFILE", "training")
    keys = "[training]\naws_access_key_id = {}\naws_secret_access_key = {}\n"
    file.write_text(keys.format(*old))
    expected = copied_epoch(loader(local))
    part = sum(path.stat().st_size for path in local.glob("*.tar")) * 3 // 4  # the rest is asked for later
    iterator = iter(loader(url, cache, cache_bytes=part))
    found = copied_epoch([next(iterator)])
    if is_renewed:
        bucket.server.add_keys(OTHER_KEY, OTHER_SECRET)
        file.write_text(keys.format(OTHER_KEY, OTHER_SECRET))
    fault_proxy.set(Faults({"403": 1}, only=old[0]))
    if is_renewed:
        assert same_batches(found + copied_epoch(iterator), expected)
    else:
        with pytest.raises(StoreError, match="ExpiredToken: made up; get new credentials"):
            copied_epoch(iterator)
    assert fault_proxy.counts()["403"] > 0
