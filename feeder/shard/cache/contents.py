"""The contents that the files of a remote set must have."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

__all__ = ["Contents", "SetContents"]


@dataclass(frozen=True, eq=False)
class Contents:
    """The contents that a file of a set must have.

    Attributes:
        size_bytes: Its size.
        identity: 16 bytes that differ for other contents.
        etag: The ETag that each range must come with; empty: any.
        blocks: uint32 [blocks], CRC-32C of each block; None where none are known.
        fetch: Returns all of it, fetched and checked, or raises OSError if the disk takes no more; None for a file that
            comes in ranges.
        check: Raises FormatError if the file at a path does not have these contents; None where nobody can tell.
        is_kept: True for a file that stays in the cache while the set is in use.
        lock: Held while all of it is fetched.
    """

    size_bytes: int
    identity: bytes
    etag: str = ""
    blocks: npt.NDArray[np.uint32] | None = None
    fetch: Callable[[], bytes | memoryview] | None = None
    check: Callable[[str], object] | None = None
    is_kept: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)


class SetContents(Protocol):
    """The files of one set. Its methods may be called by several threads."""

    def of(self, name: str) -> Contents:
        """Returns the contents of a file; what has to be read for it is fetched first.

        Raises:
            FeederError: if there is no such file, or the set is damaged.
        """

    def forget(self) -> None:
        """Asks the store for the set's header when it is needed next: it may have been replaced."""

    def replaced(self) -> list[str]:
        """Names of the files in the cache that the set has with other contents by now, as far as a new header says."""
