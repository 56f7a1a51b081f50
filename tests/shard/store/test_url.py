from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path

import pytest

import feeder
from feeder.errors import ArgumentError, FeederError
from feeder.shard.cache.places import mirror_folder
from feeder.shard.store.url import Url, is_remote, local_path
from feeder.shard.write.set_copy import SetCopy
from feeder.shard.write.sharding import shard


def test_a_url_is_read_into_its_parts() -> None:
    url = Url.parse("S3://bucket/sets/imagenet/?region=eu-west-1&endpoint=https://ceph.example:8443/")
    assert url == Url("s3", "bucket", "sets/imagenet", "eu-west-1", "https://ceph.example:8443")
    assert (str(url), url.name) == ("s3://bucket/sets/imagenet", "imagenet")
    assert url.object("shard-000000.tar") == "s3://bucket/sets/imagenet/shard-000000.tar (at ceph.example:8443)"
    assert Url.parse("https://Host.example:1/a b/") == Url("https", "host.example:1", "a b")
    assert (url.joined("more/x").prefix, url.joined("x").parent()) == ("sets/imagenet/more/x", url)
    assert pickle.loads(pickle.dumps(url)) == url


@pytest.mark.parametrize(
    "text",
    [
        "s3://KEY:HIDDEN@bucket/set",
        "s3://KEY:HID/DEN@bucket/set",
        "s3://KEY:HIDDEN",
        "https://user:HIDDEN/@host/set",
        "https://HIDDEN@host/set",
        "https://user:12/HIDDEN@host/set",
        "https://HID/DEN@host/set",
        "s3:/KEY:HIDDEN@bucket",
        "s3:KEY:HIDDEN@bucket",
        "KEY:HIDDEN@bucket",
        "s3://bucket/set?X-Amz-Signature=HIDDEN",
        "s3://bucket/set?region=eu-west-1&token=HIDDEN",
        "https://host/set?sig=HIDDEN",
        "https://host/set?region=HIDDEN",
        "s3://bucket/set?HIDDEN",
        "s3://bucket/set?endpoint=https://KEY:HIDDEN@host",
        "s3://bucket/set?endpoint=https://host/HIDDEN",
        "s3://bucket/set?endpoint=ftp://HIDDEN",
        "s3://bucket/set?region=not%20HIDDEN",
    ],
)
def test_a_secret_in_a_url_is_refused_and_not_shown(text: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        Url.parse(text)
    assert "HID" not in str(caught.value)
    assert "://" in str(caught.value)


@pytest.mark.parametrize(
    "opened",
    [feeder.ShardDataset, lambda path: shard(path, "out"), lambda path: SetCopy.of(path).__enter__()],
    ids=["dataset", "source", "command"],
)
def test_a_mistyped_url_with_a_secret_is_no_local_path_and_not_shown(opened: Callable[[str], object]) -> None:
    with pytest.raises(FeederError, match=r"s3:\.\.\.: expected a URL that starts with s3://") as caught:
        opened("s3:/KEY:HIDDEN@bucket/set")
    assert "HID" not in str(caught.value)


@pytest.mark.parametrize(
    "text",
    ["ftp://host/x", "s3://", "s3:///key", "s3://bucket/../x", "s3://bucket/a//b", "s3://bucket/a\nb", "https://a b/",
     "pipe:cat x", "https://host/x#part", "s3://bücket/x", "https://host/a/%2e%2E/x", "https://host/a%2f..%2fx",
     "https://host/%2e/x"],
)  # fmt: skip
def test_what_is_not_a_url_of_a_store_is_refused(text: str) -> None:
    with pytest.raises(ArgumentError):
        Url.parse(text)


def test_an_at_in_the_path_of_a_url_is_one_of_a_name_only_where_the_host_may_be_one() -> None:
    for text in ("https://host.example/set@2", "https://127.0.0.1:80/set@2", "https://[::1]:80/set@2"):
        assert str(Url.parse(text)) == text
    assert Url.parse("https://localhost/set%402").prefix == "set%402"
    assert Url.parse("s3://bucket/%2e%2e/set").prefix == "%2e%2e/set"  # a name like any other there
    with pytest.raises(ArgumentError, match=r"https://\.\.\.@2: .* write it as %40"):
        Url.parse("https://localhost/set@2")


def test_the_same_names_at_two_endpoints_are_two_places(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
    plain = Url.parse("s3://bucket/set").identity()
    there = Url.parse("s3://bucket/set?endpoint=https://one.example").identity()
    monkeypatch.setenv("AWS_ENDPOINT_URL", "https://one.example/")
    assert Url.parse("s3://bucket/set").identity() == there != plain
    assert Url.parse("s3://bucket/set?region=eu-west-1").identity() == there


def test_a_secret_in_an_endpoint_of_the_environment_is_not_shown_and_not_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "https://KEY:HIDDEN@one.example")
    folder = Path(mirror_folder(Url.parse("s3://bucket/set"), "index.bin", tmp_path))
    assert not any("HIDDEN" in path.read_text() for path in folder.iterdir())
    assert Url.parse("s3://bucket/set").object("x") == "s3://bucket/set/x (at one.example)"


def test_paths_and_file_urls_are_local() -> None:
    assert not is_remote("/data/a:b//c")
    assert not is_remote("file:///data/set")
    assert is_remote("s3://bucket/set")
    assert local_path("file:///data/a%20b") == "/data/a b"
    assert local_path("relative/set") == "relative/set"
    with pytest.raises(ArgumentError, match="this machine"):
        local_path("file://server/data")


@pytest.mark.parametrize("key", ["", "/etc/passwd", "../x", "a/../../x", "a//b", ".", "a\0b"])
def test_a_key_never_leads_out_of_its_url(key: str) -> None:
    with pytest.raises(ArgumentError):
        Url.parse("s3://bucket/set").joined(key)
