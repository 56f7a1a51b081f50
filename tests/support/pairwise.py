"""Few of the cases of a product that still have every pair of two arguments' values."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence

__all__ = ["pairwise"]

_TIMES = 3


def pairwise(cases: Sequence[Mapping[str, Hashable]]) -> list[int]:
    """Chooses cases, each a value for every argument, and returns their numbers, in order.

    Every pair of values that some case has is in one that is chosen. A product of two arguments has no fewer cases than
    pairs: of these, cases are chosen that have each value three times. Greedy, by falling numbers of what is new.
    """
    size, times = (2, 1) if len(cases[0]) > 2 else (1, _TIMES)
    parts = [list(itertools.combinations(sorted(case.items()), size)) for case in cases]
    missing = Counter({part: min(times, count) for part, count in Counter(itertools.chain(*parts)).items()})
    chosen: set[int] = set()
    for new in range(max(map(len, parts)), 0, -1):
        for number, own in enumerate(parts):
            if number not in chosen and sum(missing[part] > 0 for part in own) >= new:
                chosen.add(number)
                missing.subtract(own)
    return sorted(chosen)
