"""Random numbers of unrelated things never come from one stream."""

from __future__ import annotations

from collections import Counter

from feeder.order.random import Stream


def test_no_two_uses_share_a_stream_but_the_two_that_always_did() -> None:
    numbers = {name: number for name, number in vars(Stream).items() if name.isupper()}
    counts = Counter(numbers.values())
    shared = {name for name, number in numbers.items() if counts[number] > 1}
    assert shared == {"SUBSTITUTE", "MIXUP"}
