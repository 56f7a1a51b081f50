"""Settings of a loader found by measurement: the search, what it measures, its report, and num_workers="auto"."""

from __future__ import annotations

__all__: list[str] = []
