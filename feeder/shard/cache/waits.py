"""The sign of life of a process that waits for bytes of a remote set, or lists a large folder.

A module of its own, as workers on local sets need it, too, and start without the rest of the cache.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass
class Waits:
    """Waits for bytes in this process.

    Attributes:
        heartbeat: Called every second of a wait, and now and then in a listing; a worker's sign of life.
    """

    heartbeat: Callable[[], object] = field(default=lambda: None)


waits = Waits()
