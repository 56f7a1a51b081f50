"""The folder that mirrors a part of a remote shard set, as its readers see it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class Mirror(Protocol):
    """A folder with the files of a remote shard set, under their own names, in which parts of them are still missing.

    A file has its full size once a part of it was needed, so that it may be mapped. Headers and indexes come
    as a whole.

    Attributes:
        place: URL of the set, for people.
        budget_bytes: Most bytes of the set that the folder may hold.
        reads_crops: True if of images only what crops need is to be asked for.
    """

    @property
    def place(self) -> str: ...

    @property
    def budget_bytes(self) -> int: ...

    @property
    def reads_crops(self) -> bool: ...

    def need(self, wants: Sequence[tuple[str, int, int]], *, again: bool = False) -> None:
        """Returns when ranges of files are in the folder; those of shards are checked.

        Args:
            wants: File name, relative to the set's folder, and the range's first byte and end. A range may end past the
                end of its file.
            again: True for ranges that were there, but are wrong by a checksum that the mirror does not know: they are
                fetched anew.

        Raises:
            StoreError: if they can't be had.
        """

    def open(self, name: str, expected: bytes = b"") -> int:
        """Opens a file for reading and returns its descriptor, which the caller closes.

        Args:
            name: The file, relative to the set's folder.
            expected: Its hash in the header or the index that the caller reads it by: another set may have taken the
                place of that header's in the store since. Empty for a file without one.

        Raises:
            OSError: if it can't be opened.
            ChangedError: if it has another hash.
            StoreError: if the store has no such file.
        """
