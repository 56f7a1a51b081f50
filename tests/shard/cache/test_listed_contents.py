"""The listing of a folder of objects, and the signed URLs of them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from feeder.errors import NotFoundError
from feeder.shard.cache import listed_contents
from feeder.shard.cache.listed_contents import ListedContents
from feeder.shard.store.store import Entry
from feeder.shard.store.url import Url


class _Store:
    """A store of a hundred objects, whose listing takes a while.

    Attributes:
        now: The time, seconds.
        listings: Number of them so far.
        signs: False for one that gives no signed URLs.
    """

    url = Url.parse("s3://bucket/images")

    def __init__(self, takes_s: float = 0.0) -> None:
        self.now = 0.0
        self.listings = 0
        self.signs = True
        self._takes_s = takes_s

    def list(self) -> Iterator[Entry]:
        self.listings += 1
        for number in range(100):
            self.now += self._takes_s / 100
            yield Entry(f"class/{number}.jpg", 1000 + number, f'"{number}"', modified_ns=number)

    def signed(self, key: str) -> str | None:
        return f"https://host.example:8443/bucket/images/{key}?X-Amz-Signature={'f' * 400}" if self.signs else None


def _listed(store: _Store) -> ListedContents:
    return ListedContents(cast(Any, store))


def test_signed_urls_come_with_what_their_objects_must_be_and_as_many_as_a_message_takes() -> None:
    store = _Store()
    files, names = _listed(store), [f"class/{number}.jpg" for number in (7, 3, *range(10, 100))]
    found = files.signed(names, 10_000)
    assert found["place"] == ("https", "host.example:8443")
    assert 10 < len(found["signed"]) < 25
    assert len(json.dumps(found["signed"])) <= 10_000
    assert found["signed"][1] == (
        f"/bucket/images/class/3.jpg?X-Amz-Signature={'f' * 400}", 1003, '"3"', files.of("class/3.jpg").identity.hex()
    )  # fmt: skip
    assert len(files.signed(names, 1)["signed"]) == 1
    assert len(files.signed(names, 1 << 20)["signed"]) == len(names)
    store.signs = False
    assert files.signed(names, 10_000)["signed"] == []
    with pytest.raises(NotFoundError, match=r"images/class/100\.jpg: there was no such object"):
        files.signed(["class/100.jpg"], 10_000)


@pytest.mark.parametrize(("takes_s", "kept_s"), [(1.0, 60.0), (300.0, 300.0)])
def test_a_listing_is_kept_for_a_minute_after_its_end_or_for_as_long_as_it_took(
    monkeypatch: pytest.MonkeyPatch, takes_s: float, kept_s: float
) -> None:
    store = _Store(takes_s)
    monkeypatch.setattr(listed_contents, "time", SimpleNamespace(monotonic=lambda: store.now))
    files = _listed(store)
    for after_s, listings in ((0.0, 1), (kept_s - 1, 1), (2.0, 2)):
        store.now += after_s
        files.forget()
        files.of("class/1.jpg")
        assert store.listings == listings
