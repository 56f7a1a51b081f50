"""Running loaders and services, asked for their metrics.

Note [Looks]
    Each time that a page asks, the endpoints are asked: at most once a second, however many pages are open. Figures are
    differences of counters over the last ten seconds or so, and curves go back for three minutes. When a counter has
    become smaller, another process serves there, and what was seen before is forgotten.
"""

from __future__ import annotations

import collections
import concurrent.futures
import threading
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from feeder.tools.browse.figures import LoaderFigures, ServiceFigures, of_loader, of_service
from feeder.tools.browse.intervals import SHOWN_S, Look
from feeder.tools.browse.metrics_reader import Values, metrics_url, read_metrics

__all__ = ["EndpointFigures", "Endpoints"]

_LEAST_S = 1.0


class EndpointFigures(NamedTuple):
    """The figures that an endpoint gives.

    Attributes:
        url: Its URL.
        problem: The reason why it does not give any; empty if it does.
        silent_s: Time since it gave some, or since the first look, seconds.
        loaders: Those of its loaders that were looked at twice.
        service: Those of a service's server; None if it is none, or was not looked at twice.
    """

    url: str
    problem: str
    silent_s: float
    loaders: list[LoaderFigures]
    service: ServiceFigures | None


class Endpoints:
    """Addresses at which loaders and services serve metrics, see Note [Looks]. For any thread.

    Args:
        places: What :func:`feeder.tools.browse.metrics_reader.metrics_url` takes.
        clock: Returns the time, seconds.

    Raises:
        ArgumentError: for a place that is none.
    """

    def __init__(self, places: Sequence[str], clock: Callable[[], float] = time.monotonic) -> None:
        self._each = [_Endpoint(url, clock) for url in dict.fromkeys(map(metrics_url, places))]
        self._clock = clock
        self._looked_s: float | None = None
        self._lock = threading.Lock()
        self._pool = concurrent.futures.ThreadPoolExecutor(max(1, len(self._each)), "feeder-live")

    def look(self) -> list[EndpointFigures]:
        """Returns the figures of each, which is asked again unless that was done within a second."""
        with self._lock:
            now = self._clock()
            if self._looked_s is None or now - self._looked_s >= _LEAST_S:
                list(self._pool.map(_Endpoint.look, self._each))
                self._looked_s = now
            return [each.figures() for each in self._each]


class _Endpoint:
    def __init__(self, url: str, clock: Callable[[], float]) -> None:
        self._url, self._clock = url, clock
        self._problem, self._answered_s = "", clock()
        self._looks: dict[str, collections.deque[Look]] = {}

    def look(self) -> None:
        try:
            found = read_metrics(self._url)
        except OSError as error:
            self._problem = str(error)
            return
        now = self._clock()
        self._problem, self._answered_s = "", now
        # A loader that has ended is shown no more.
        self._looks = {name: self._looks.get(name, collections.deque()) for name in found}
        for name, values in found.items():
            looks = self._looks[name]
            if looks and _has_restarted(looks[-1].values, values):
                looks.clear()
            looks.append(Look(now, values))
            while now - looks[0].at_s > SHOWN_S:
                looks.popleft()

    def figures(self) -> EndpointFigures:
        silent_s = self._clock() - self._answered_s
        twice = {name: looks for name, looks in self._looks.items() if len(looks) > 1}
        names = sorted((name for name in twice if name), key=lambda name: (len(name), name))
        looks = twice.get("")
        is_service = looks is not None and any(name == "feeder_service_cores" for name, _ in looks[-1].values)
        service = of_service(looks) if looks is not None and is_service else None
        return EndpointFigures(
            self._url, self._problem, silent_s, [of_loader(name, twice[name]) for name in names], service
        )


def _has_restarted(before: Values, after: Values) -> bool:
    """Returns True if a counter has become smaller."""
    return any(key[0].endswith("_total") and after.get(key, value) < value for key, value in before.items())
