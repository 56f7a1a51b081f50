"""``feeder bench``: compares feeder with other loaders on given images."""

from __future__ import annotations

__all__: list[str] = []
