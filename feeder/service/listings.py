"""Listings of folders that one process of a server has made, for the others."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Callable

import numpy as np

from feeder.dataset.folder_reader import FolderListing

__all__ = ["MOST_LISTING_BYTES", "Listings"]

MOST_LISTING_BYTES = 64 << 20  # packed; where they take more, each process makes its own
_HEAD = struct.Struct("<QQ")  # bytes of the JSON, and of the packed arrays


class Listings:
    """The listings of the folders of some work.

    Args:
        data: Those of another process, as :meth:`packed` returns them.
    """

    def __init__(self, data: bytes = b"") -> None:
        self._given = dict(_unpacked(data))
        self._made: dict[str, FolderListing] = {}

    def of(self, key: str, make: Callable[[], FolderListing]) -> FolderListing:
        """Returns the listing of a folder: the other process's, or one that is made now."""
        found = self._given.get(key) or self._made.get(key)
        if found is None:
            found = self._made[key] = make()
        return found

    def packed(self) -> bytes:
        """Returns the listings that were made here; empty if there are none, or they are too large to be handed on."""
        data = b"".join(_packed(key, listing) for key, listing in self._made.items())
        return data if len(data) <= MOST_LISTING_BYTES else b""


def _packed(key: str, listing: FolderListing) -> bytes:
    head = json.dumps([key, len(listing.labels), listing.classes, listing.members]).encode()
    lengths = np.diff(listing.path_start.astype(np.int64))
    arrays = zlib.compress(
        lengths.tobytes() + listing.labels.astype(np.int64).tobytes() + listing.path_data.tobytes(), 1
    )
    return _HEAD.pack(len(head), len(arrays)) + head + arrays


def _unpacked(data: bytes) -> list[tuple[str, FolderListing]]:
    found, at = [], 0
    while at < len(data):
        head_bytes, array_bytes = _HEAD.unpack_from(data, at)
        at += _HEAD.size
        key, samples, classes, members = json.loads(data[at : at + head_bytes])
        at += head_bytes
        arrays = zlib.decompress(data[at : at + array_bytes])
        at += array_bytes
        lengths, labels = np.frombuffer(arrays, np.int64, 2 * samples).reshape(2, samples)
        starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.uint64)
        paths = np.frombuffer(arrays, np.uint8, offset=16 * samples)
        found.append((key, FolderListing(paths, starts, labels, classes, tuple(members))))
    return found
