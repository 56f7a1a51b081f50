"""``feeder bench``: feeder beside its peers on somebody's own images, and one result beside another."""

from __future__ import annotations

__all__: list[str] = []
