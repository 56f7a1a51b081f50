"""The search for a setting: decides which one to measure next and which one to choose. Others do the timing.

The rate of one core, known from the first runs, orders the search and excludes settings that can't win. The choice
depends on measurements alone: the finalists run in turn, and differences within the noise are ignored.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from feeder.errors import BackendError, WorkerError
from feeder.loader.auto_workers import MOST_THREADS
from feeder.tools.trial import Trial
from feeder.tools.tune.setting import ROUNDS_TO_TELL, Gain, Setting, TriedSetting, cheaper, gain

# Uncertainty of a rate from a single run.
_NEAR = 0.07
# Error that the model is assumed to have when it excludes settings.
_OPTIMISM = 1.25
# A run must exceed the target by this factor, as runs differ.
MARGIN = 1.05
_SEARCH_PART = 0.6
_FINALISTS = 4
_FEWEST_FINALISTS = 3
_ROUNDS = 5
_ROUNDS_WITH_TARGET = 3
_RUNS_PLANNED = 40
_RUN_S = (0.3, 4.0)


@dataclass(frozen=True)
class Space:
    """The settings to search among.

    Attributes:
        cores: Upper limit of workers times threads.
        baseline: The setting to compare with.
        backends: Decode backends; empty for loaders without any.
        threads: True if the loader has threads inside workers.
        in_caller: True if 0 workers may be chosen, which is a fair choice only if the caller's step is run too.
    """

    cores: int
    baseline: Setting
    backends: tuple[str, ...] = ()
    threads: bool = False
    in_caller: bool = False


@dataclass
class Outcome:
    """The outcome of a search.

    Attributes:
        points: Every setting that was tried, in order.
        baseline: The setting that the others are compared with.
        chosen: The chosen setting; None if none could be measured.
        reached: True if it reaches the target; None without a target.
        rounds: Number of runs of each finalist in turn.
        gain: Gain of the chosen setting over the baseline; None without rounds, or if they are the same.
        notes: Parts of the search that were left out, and the reasons.
    """

    points: list[TriedSetting]
    baseline: TriedSetting
    chosen: TriedSetting | None = None
    reached: bool | None = None
    rounds: int = 0
    gain: Gain | None = None
    notes: list[str] = field(default_factory=list)


class _OutOfTime(Exception):
    """The time for exploring is over."""


class Search:
    """A search for the cheapest setting that reaches a target, or is as fast as the fastest.

    Args:
        measure: Runs a setting for a number of seconds, plus its start.
        space: The settings to search among.
        target: Images/s to reach at the least cost; None: the fastest rate.
        seconds: Time limit for everything; a run in progress is not cut off.
        clock: Returns the time in seconds.
        note: Called after each run.
    """

    def __init__(
        self,
        measure: Callable[[Setting, float], Trial],
        space: Space,
        target: float | None,
        seconds: float,
        clock: Callable[[], float],
        note: Callable[[str, TriedSetting], None] = lambda stage, point: None,
    ) -> None:
        self._measure = measure
        self._space = space
        self._target = target
        self._clock = clock
        self._note = note
        self._started = clock()
        self._seconds = seconds
        self._run_s = min(max(seconds / _RUNS_PLANNED, _RUN_S[0]), _RUN_S[1])
        self._longest_s = self._run_s
        self._points: dict[Setting, TriedSetting] = {}
        self._outcome = Outcome([], TriedSetting(space.baseline, "baseline"))

    def run(self) -> Outcome:
        """Searches."""
        outcome = self._outcome
        try:
            outcome.baseline = self._try(self._space.baseline, "baseline", always=True)
            self._explore()
        except _OutOfTime:
            outcome.notes.append("not everything could be tried in the time limit: raise --seconds")
        self._final()
        outcome.points = list(self._points.values())
        self._choose()
        return outcome

    def _explore(self) -> None:
        backend = self._space.baseline.backend
        if backend is not None:
            self._try(Setting(0, backend=backend), "on one core")
        if self._target is not None and self._reaches(backend, self._target * MARGIN):
            return  # no setting costs less, and a faster one is not needed

        best = self._knee(backend)
        if not best.usable:
            return
        self._threads(best)
        for other in self._space.backends:
            if other != backend and (found := self._other(best, other)) is not best:
                self._threads(found)

    def _other(self, best: TriedSetting, backend: str) -> TriedSetting:
        """Tries another backend with workers if it is not much slower on one core."""
        alone = self._try(Setting(0, backend=backend), "on one core")
        ours = self._points[Setting(0, backend=self._space.baseline.backend)]
        if not alone.usable or (ours.usable and alone.rate * _OPTIMISM < ours.rate):
            return best
        point = self._try(replace(best.setting, backend=backend), "another backend")
        return point if point.usable and point.rate > (1 + _NEAR) * best.rate else best

    def _reaches(self, backend: str | None, wanted: float) -> bool:
        """Finds the fewest workers that give so many images/s; returns False if none do."""
        if self._space.in_caller and self._holds(self._try(Setting(0, backend=backend), "no worker")):
            return True

        make_ms = self._alone_ms(backend)
        count = math.ceil(wanted * make_ms / 1000) if make_ms else self._space.cores // 2
        too_few = 0
        enough = self._space.cores + 1  # not known to be
        while enough - too_few > 1:
            count = min(max(count, too_few + 1), enough - 1)
            point = self._try(Setting(count, backend=backend), "workers for the target")
            if self._holds(point):
                enough = count
                too_few = max(too_few, min(count - 1, int(count * wanted / point.rate / _OPTIMISM)))
            else:
                too_few = count
            count = math.ceil(count * wanted / point.rate) if point.trials else 2 * count
        return enough <= self._space.cores

    def _knee(self, backend: str | None) -> TriedSetting:
        """Returns the fewest workers that are about as fast as any number of them."""
        high = self._try(Setting(self._space.cores, backend=backend), "a worker for each core")
        while not high.usable and high.setting.num_workers > 1:
            high = self._try(Setting(high.setting.num_workers // 2, backend=backend), "fewer workers")

        low = 0
        best = high
        make_ms = self._alone_ms(backend)
        if best.usable and make_ms:
            low = int(best.rate * (1 - _NEAR) * make_ms / 1000 / _OPTIMISM)
        while high.usable and (top := high.setting.num_workers) - low > max(1, top // 8):
            point = self._try(Setting((low + top) // 2, backend=backend), "fewer workers")
            if point.usable and point.rate > best.rate:
                best = point
            if point.usable and point.rate >= (1 - _NEAR) * best.rate:
                high = point
            else:
                low = point.setting.num_workers
        return high

    def _alone_ms(self, backend: str | None) -> float | None:
        """Returns the milliseconds that an image takes on a core that nothing else uses; None if unknown."""
        alone = self._points.get(Setting(0, backend=backend))
        decodes_in_caller = backend in ("cuda", "dali")  # workers only read
        return None if alone is None or decodes_in_caller else alone.median("make_ms")

    def _threads(self, best: TriedSetting) -> None:
        """Tries fewer processes with several threads, which take less memory on the same cores."""
        threads = 2
        workers = best.setting.num_workers
        while self._space.threads and threads <= min(workers, MOST_THREADS) and workers % threads == 0:
            setting = replace(best.setting, num_workers=workers // threads, worker_threads=threads)
            point = self._try(setting, "threads for processes")
            if not point.usable or point.rate < (1 - _NEAR) * best.rate:
                return
            threads *= 2

    def _holds(self, point: TriedSetting) -> bool:
        return point.usable and self._target is not None and point.rate >= self._target * MARGIN

    def _final(self) -> None:
        """Runs the finalists in turn."""
        finalists = self._finalists()
        if not finalists or (len(finalists) < 2 and self._target is None):
            return

        rounds = _ROUNDS if self._target is None else _ROUNDS_WITH_TARGET
        for turn in range(rounds):
            if turn and self._left() < len(finalists) * self._longest_s:
                break
            for point in finalists if turn % 2 == 0 else finalists[::-1]:
                self._once(point, point.turns, f"in turn, {turn + 1} of {rounds}")
            self._outcome.rounds += 1

    def _finalists(self) -> list[TriedSetting]:
        """Returns the baseline, the fastest, and the cheapest that are about as fast or reach the target."""
        fastest_first = sorted(self._candidates(), key=lambda point: -point.rate)
        if not fastest_first:
            return []

        fastest = fastest_first[0]
        close = [p for p in fastest_first if p.rate >= (1 - 2 * _NEAR) * fastest.rate or self._holds(p)]
        holding = [p for p in close if self._holds(p)]
        cheapest, *others = _by_cost(holding or close)
        baseline = [self._outcome.baseline] * bool(self._outcome.baseline.trials)
        chosen = list(dict.fromkeys([*baseline, cheapest, fastest, *others]))[:_FINALISTS]
        # A single run may have been slowed down by chance: the next fastest settings get another run.
        few = 0 if holding else _FEWEST_FINALISTS
        return list(dict.fromkeys([*chosen, *fastest_first]))[: max(len(chosen), few)]

    def _choose(self) -> None:
        outcome = self._outcome
        candidates = self._candidates()
        compared = [p for p in candidates if p.turns] or candidates
        if not compared:
            return

        fastest = max(compared, key=lambda point: point.rate)
        equal = [p for p in compared if not _beats(fastest, p)]
        if self._target is not None:
            holding = [p for p in compared if min(p.rates) >= self._target]
            outcome.reached = bool(holding)
            equal = holding or equal
        outcome.chosen = _by_cost(equal)[0]
        if outcome.baseline.turns and outcome.baseline is not outcome.chosen:
            outcome.gain = gain(outcome.chosen.rates, outcome.baseline.rates)

    def _candidates(self) -> list[TriedSetting]:
        points = [p for p in self._points.values() if p.usable]
        with_workers = [p for p in points if p.setting.num_workers or self._space.in_caller]
        return [p for p in with_workers or points if p.setting.cores <= self._space.cores]

    def _try(self, setting: Setting, why: str, *, always: bool = False) -> TriedSetting:
        """Measures a setting, once."""
        if setting in self._points:
            return self._points[setting]

        # At least one setting with workers is measured even if time is short, so that there is one to recommend.
        first = setting.num_workers > 0 and not any(p.usable and s.num_workers for s, p in self._points.items())
        if not (always or first) and self._left() < (1 - _SEARCH_PART) * self._seconds:
            raise _OutOfTime

        point = self._points[setting] = TriedSetting(setting, why)
        try:
            self._once(point, point.trials, why)
        except (BackendError, WorkerError) as error:
            if always:
                raise
            point.problem = str(error).partition("\n")[0]
        return point

    def _once(self, point: TriedSetting, runs: list[Trial], stage: str) -> None:
        before = self._clock()
        trial = self._measure(point.setting, self._run_s)
        self._longest_s = max(self._longest_s, self._clock() - before)
        runs.append(trial)
        self._note(stage, point)

    def _left(self) -> float:
        return self._started + self._seconds - self._clock()


def _by_cost(points: list[TriedSetting]) -> list[TriedSetting]:
    """Returns the points, the cheapest first."""

    def order(a: TriedSetting, b: TriedSetting) -> int:
        return cheaper(b, a) - cheaper(a, b)

    return sorted(points, key=functools.cmp_to_key(order))


def _beats(fast: TriedSetting, slow: TriedSetting) -> bool:
    """Returns True if one is faster than the other beyond the noise; after single runs, only if by far."""
    if min(len(fast.turns), len(slow.turns)) >= ROUNDS_TO_TELL:
        return gain(fast.rates, slow.rates).certain
    return fast.rate > (1 + 2 * _NEAR) * slow.rate
