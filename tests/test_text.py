"""Numbers and nouns as people read them."""

from __future__ import annotations

from feeder.text import count


def test_a_noun_is_in_the_plural_unless_there_is_one() -> None:
    assert [count(n, "shard") for n in (0, 1, 2, 1200)] == ["0 shards", "1 shard", "2 shards", "1,200 shards"]
    assert [count(n, "class", "classes") for n in (1, 2)] == ["1 class", "2 classes"]
