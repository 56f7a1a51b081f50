"""The samples whose boxes are small, long or wrong, which only the members of each sample tell."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from feeder.dataset.reader import SWAPPING_ORIENTATIONS
from feeder.decoders.targets.annotations import decode_boxes
from feeder.errors import DecodeError
from feeder.system.arrays import Bools, Int64s

BOX_KINDS = {
    "boxes-bad": "with boxes that can't be read",
    "boxes-outside": "with a box that is empty, or reaches out of the image",
    "boxes-none": "without a box",
    "boxes-tiny": "with a box below 8 pixels wide or high",
    "boxes-long": "with a box longer than 1:8",
}
READ = 2500  # samples whose boxes one page reads at most: not fewer than are counted
COUNTED = 2500  # samples: in a larger set the kinds of boxes are not counted, but can be chosen
_NAME = "boxes.json"
_TINY_PX, _LONG, _OUTSIDE_PX = 8, 8, 1
_BITS = {kind: 1 << number for number, kind in enumerate(BOX_KINDS)}
_KNOWN = 1 << len(_BITS)


class BoxKinds:
    """The kinds of a set's boxes, which are kept once they were read.

    Args:
        reader: Reads the set.
        lock: Is held while the set is read.
        is_remote: True for a set in a store, whose boxes are not read for this.
    """

    def __init__(self, reader: Any, lock: AbstractContextManager[Any], *, is_remote: bool) -> None:
        self._reader = reader
        self._lock = lock
        self._names = [] if is_remote else [name for name in reader.field_names() if name.endswith(_NAME)]
        self._known = np.zeros(len(reader) if self._names else 0, np.uint8)
        self._labels: dict[int, frozenset[int]] = {}

    @property
    def are_there(self) -> bool:
        """True if samples may have boxes that are read."""
        return bool(self._names)

    def counts(self) -> dict[str, int | None]:
        """Returns the number of samples by kind; empty for a set without boxes, None in place of a number of a large
        set."""
        if not self._names:
            return {}
        if len(self._known) > COUNTED:
            return dict.fromkeys(BOX_KINDS)
        return {kind: int(self.choose([kind])(np.arange(len(self._known))).sum()) for kind in BOX_KINDS}

    def classes(self) -> dict[int, list[int]] | None:
        """Returns the samples that have a box of a class, in their order, by its label; None of a large set."""
        if len(self._known) > COUNTED:
            return None
        self.choose([])(np.arange(len(self._known)))
        found: dict[int, list[int]] = {}
        for i, labels in sorted(self._labels.items()):
            for label in labels:
                found.setdefault(label, []).append(i)
        return found

    def choose(self, kinds: list[str], label: int | None = None) -> Callable[[Int64s], Bools]:
        """Returns a function that tells for samples if they are of all kinds, and have a box of a label.

        It takes ids, int64 [N], and returns bool [M], M <= N: it ends where it has read as many as one page reads.
        """
        wanted = sum(_BITS[kind] for kind in set(kinds))
        left = READ

        def choose(ids: Int64s) -> Bools:
            nonlocal left
            unread = ids[self._known[ids] == 0] if self._names else ids[:0]
            now = unread[:left]
            with self._lock:
                self._reader.measure(now)
                turns, sizes = self._reader.stored(now)
            for i, turn, (height, width) in zip(now.tolist(), turns.tolist(), sizes.tolist(), strict=True):
                canvases = [(width, height), (height, width)] if turn in SWAPPING_ORIENTATIONS else [(width, height)]
                self._known[i] = _KNOWN | sum(_BITS[kind] for kind in self._read(i, canvases))
            end = len(ids)
            if len(unread) > left:
                end = int(np.flatnonzero(ids == unread[left])[0])
            left -= min(left, len(unread))
            found = self._known[ids[:end]] if self._names else np.zeros(end, np.uint8)
            is_found = np.asarray(found & wanted == wanted)
            if label is not None:
                is_found &= np.array([label in self._labels.get(i, ()) for i in ids[:end].tolist()], bool)
            return is_found

        return choose

    def _read(self, i: int, canvases: list[tuple[int, int]]) -> set[str]:
        """Returns the kinds of a sample's boxes, of :data:`BOX_KINDS`.

        Args:
            i: The sample.
            canvases: Width and height of the image as seen, and as stored, of which one must hold the boxes.
        """
        try:
            with self._lock:
                members = [self._reader.member(i, name) for name in self._names]
            decoded = [decode_boxes(data) for data in members if data is not None]
        except DecodeError:
            return {"boxes-bad"}
        self._labels[i] = frozenset(
            label for each in decoded for label in each.rest.get("labels", np.empty(0)).tolist()
        )
        boxes = [box for each in decoded for box in each.values.tolist()]
        if not boxes:
            return {"boxes-none"}

        sides = [(right - left, bottom - top) for left, top, right, bottom in boxes]
        sound = [(min(pair), max(pair)) for pair in sides if min(pair) > 0]
        lefts, tops, rights, bottoms = zip(*boxes, strict=True)
        fits = any(
            min(*lefts, *tops) > -_OUTSIDE_PX
            and max(rights) < width + _OUTSIDE_PX
            and max(bottoms) < height + _OUTSIDE_PX
            for width, height in canvases
        )
        found = {
            "boxes-outside": len(sound) < len(sides) or not fits,
            "boxes-tiny": any(least < _TINY_PX for least, _ in sound),
            "boxes-long": any(most > _LONG * least for least, most in sound),
        }
        return {kind for kind, is_there in found.items() if is_there}
