"""Google Cloud Storage, before a stand-in."""

from __future__ import annotations

from pathlib import Path

import pytest

from feeder.errors import ChangedError, ConflictError, NotFoundError
from feeder.shard.store.store import open_store
from feeder.shard.write.sharding import shard
from tests.support.google_store import GoogleStore
from tests.support.images import make_tree
from tests.support.shard_sets import contents, kept


def test_objects_of_google_are_read_and_written_on_conditions(google: GoogleStore) -> None:
    store = open_store("gs://bucket/set")
    first = store.put("a b.tar", b"first", if_absent=True)
    assert google.objects.keys() == {"bucket/set/a b.tar"}
    with pytest.raises(ConflictError):
        store.put("a b.tar", b"second", if_absent=True)
    second = store.put("a b.tar", b"second", if_match=first)
    store.put("a b.tar", b"first", if_match=second)  # the bytes of the first again, but not the same object
    with pytest.raises(ConflictError):
        store.put("a b.tar", b"third", if_match=first)
    with pytest.raises(ChangedError):
        store.get("a b.tar", 0, 2, second.etag)
    assert store.get("a b.tar", 1, 3) == b"ir"
    assert [entry.key for entry in store.list()] == ["a b.tar"]
    store.delete("a b.tar")
    store.delete("a b.tar")
    with pytest.raises(NotFoundError, match=r"gs://bucket/set/a b\.tar"):
        store.get("a b.tar")


def test_a_set_is_written_to_google_and_read_from_there(google: GoogleStore, tmp_path: Path) -> None:
    tree = make_tree(tmp_path / "images", classes=2, per_class=4)
    shard(str(tree), str(tmp_path / "local"), kept(samples_per_shard=4))
    shard(str(tree), "gs://bucket/set", kept(samples_per_shard=4))
    (tmp_path / "local" / ".lock").unlink()
    assert {name.removeprefix("bucket/set/") for name in google.objects} == contents(tmp_path / "local").keys()
    for name in contents(tmp_path / "local"):
        assert google.objects[f"bucket/set/{name}"].data == (tmp_path / "local" / name).read_bytes()
    again = shard("gs://bucket/set", str(tmp_path / "again"), kept())
    assert (again.samples, again.classes) == (8, 2)
