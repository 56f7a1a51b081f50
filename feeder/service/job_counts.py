"""Counts of the jobs of a server."""

from __future__ import annotations

from collections.abc import Collection

__all__ = ["EARLIER_JOBS", "JobCounts"]

EARLIER_JOBS = "(earlier jobs)"  # whose counts are added up
_MOST_JOBS = 256
_NAMES = ("parts", "images", "failed")


class JobCounts:
    """Counts by job. Those of the oldest jobs that are gone are added up: in months a service has many."""

    def __init__(self) -> None:
        self._counts: dict[str, dict[str, int]] = {}

    def items(self) -> list[tuple[str, dict[str, int]]]:
        """Returns the counts ``parts``, ``images`` and ``failed`` by job; for any thread."""
        return [(name, dict(counts)) for name, counts in list(self._counts.items())]

    def begin(self, job: str, present: Collection[str]) -> None:
        """Begins to count a job.

        Args:
            job: Its name.
            present: Names of the jobs that are there.
        """
        self._counts.setdefault(job, dict.fromkeys(_NAMES, 0))
        gone = [name for name in self._counts if name not in present and name != EARLIER_JOBS]
        for name in gone[: max(0, len(self._counts) - _MOST_JOBS)]:
            counts, sums = self._counts.pop(name), self._counts.setdefault(EARLIER_JOBS, dict.fromkeys(_NAMES, 0))
            for each in _NAMES:
                sums[each] += counts[each]

    def add(self, job: str, *, parts: int = 0, images: int = 0, failed: int = 0) -> None:
        """Adds to the counts of a job."""
        for name, value in zip(_NAMES, (parts, images, failed), strict=True):
            self._counts[job][name] += value
