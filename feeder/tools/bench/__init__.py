"""``feeder bench``: compares feeder with other loaders on given images, and one result with another."""

from __future__ import annotations

__all__: list[str] = []
