"""The folder that mirrors a part of a remote shard set, as its readers see it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from feeder.errors import ChangedError

__all__ = ["Mirror", "check_same", "group_file", "group_name"]


def check_same(place: str, name: str, found: bytes, expected: bytes) -> None:
    """Raises ChangedError if a file of a mirror is not the one that its reader means.

    Args:
        place: URL of the set.
        name: The file.
        found: Its hash.
        expected: The hash that it must have; empty for any.
    """
    if expected and found != expected:
        raise ChangedError(
            f"{place}/{name}: it was replaced while it was in use; create the dataset again to use the present set, or "
            "restore the earlier one in the store and start again"
        )


def group_file(index: str, group: str) -> str:
    """Returns the name that an optional group of a shard's index has in a mirror, where it is a file of its own.

    Args:
        index: File name of the index.
        group: The group, see Note [Shard index].
    """
    return f"{index}:{group}"


def group_name(file: str) -> tuple[str, str]:
    """Returns the index and the group that a file of :func:`group_file` is of; ("", "") for another file."""
    index, colon, group = file.rpartition(":")
    return (index, group) if colon else ("", "")


class Mirror(Protocol):
    """A folder with the files of a remote shard set, under their own names, in which parts of them are still missing.

    A file has its full size once a part of it was needed, so that it may be mapped. Of the index of a shard that is the
    size that the set's header has; an optional group is a file of its own, see :func:`group_file`.

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
