"""The samples whose boxes are small, long or wrong, which only the members of each sample tell."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from feeder.dataset.reader import SWAPPING_ORIENTATIONS
from feeder.decoders.targets.annotations import decode_boxes
from feeder.errors import DecodeError
from feeder.system.arrays import Bools, Float32s, Int32s, Int64s

BOX_KINDS = {
    "boxes-bad": "with boxes that can't be read",
    "boxes-outside": "with a box that is empty, or reaches out of the image",
    "boxes-none": "without a box",
    "boxes-tiny": "with a box below 8 pixels wide or high",
    "boxes-long": "with a box longer than 1:8",
}
READ = 3000  # samples whose boxes one page reads at most: not fewer than are counted
COUNTED = 3000  # samples: in a larger set the kinds of boxes are not counted, but can be chosen
_NAME = "boxes.json"
_TINY_PX, _LONG, _OUTSIDE_PX = 8, 8, 1
_KNOWN = 1 << 7


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
        wanted = sum(1 << number for number, kind in enumerate(BOX_KINDS) if kind in kinds)
        left = READ

        def choose(ids: Int64s) -> Bools:
            nonlocal left
            unread = ids[self._known[ids] == 0] if self._names else ids[:0]
            for i in unread[:left].tolist():
                self._known[i] = _KNOWN | self._read(i)
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

    def _read(self, i: int) -> int:
        """Returns the kinds of a sample's boxes, a bit for each in the order of :data:`BOX_KINDS`."""
        found, number = 0, 0
        with self._lock:
            try:
                members = [self._reader.member(i, name) for name in self._names]
                boxes = [decode_boxes(data) for data in members if data is not None]
                self._reader.measure(np.array([i]))
                (turn,), (upright,) = self._reader.stored(np.array([i]))
            except DecodeError:
                return 1
        self._labels[i] = frozenset(label for each in boxes for label in each.rest.get("labels", np.empty(0)).tolist())
        for each in boxes:
            number += len(each.values)
            found |= _kinds(each.values, upright[::-1], upright if turn in SWAPPING_ORIENTATIONS else upright[::-1])
        return found | (0 if number else 1 << 2)


def _kinds(boxes: Float32s, *sizes: Int32s) -> int:
    """Returns the kinds of boxes, bits; of the sizes, int32 [2] (width, height), of the image as seen and as stored one
    must hold them."""
    sides = boxes[:, 2:] - boxes[:, :2]
    is_empty = (sides <= 0).any(axis=1)
    fits = [(boxes > -_OUTSIDE_PX).all() and (boxes[:, 2:] < np.add(size, _OUTSIDE_PX)).all() for size in sizes]
    sound = sides[~is_empty]
    tiny = (sound < _TINY_PX).any()
    long = (sound.max(axis=1) > _LONG * sound.min(axis=1)).any()
    return int(is_empty.any() or not any(fits)) << 1 | int(tiny) << 3 | int(long) << 4
