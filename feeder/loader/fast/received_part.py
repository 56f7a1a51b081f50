"""A part that a server of the input service has made: where its arrays go, and what is left to do on it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from feeder import _native as native
from feeder.loader.fast.part_report import PartReport
from feeder.loader.fast.report_json import report_from_json
from feeder.loader.fast.sample_maker import Work
from feeder.loader.fast.work_json import given_labels, sent_divided
from feeder.loader.slots.image_slots import SlotView
from feeder.service.frames import Frame
from feeder.system.arrays import AnyArray, Uint8s

_MOST_REPORT_BYTES, _MOST_LABEL_BYTES = 32 << 20, 64 << 20

# Labels, images and further arrays of a part, uint8 [bytes] each, as they were sent.
Arrays = list[Uint8s]


class PartReceiver:
    """Takes parts that servers have made, who are trusted in nothing but their pixels.

    Args:
        work: The work, which is done to its end here.
    """

    def __init__(self, work: Work) -> None:
        self._work = work
        self._labels = given_labels(work.reader)
        self._columns = sum(not extra.columns for extra in work.values)
        self._scratch: dict[int, Arrays] = {}
        sent, own = sent_divided(work), work.divided_of(work.recipes)
        # For each image of a sample, the affine map that turns the sent uint8 into the slot's floats; or None.
        self._maps = [
            recipe.affine if theirs is not None and mine is None else None
            for recipe, theirs, mine in zip(work.recipes, sent, own, strict=True)
        ]

    def buffers(self, view: SlotView, message: Mapping[str, Any]) -> tuple[list[memoryview], Arrays] | None:
        """Returns the memory that a part is received into: buffers for its report and its arrays, and the arrays.

        Args:
            view: The part's rows of its slot.
            message: The message that announces it. One with places has its arrays in the server's memory, and none
                here.

        Returns:
            None if the message does not fit the part.
        """
        report_bytes, sizes = message.get("report"), message.get("sizes")
        if type(report_bytes) is not int or not 0 <= report_bytes <= _MOST_REPORT_BYTES:
            return None

        report = memoryview(bytearray(report_bytes))
        if "places" in message:
            return [report], []
        if not isinstance(sizes, list) or not self._fit(view, sizes):
            return None

        arrays = []
        for target, size_bytes in zip(self._targets(view), sizes, strict=True):
            kept = self._scratch.get(size_bytes)
            if target is not None:
                arrays.append(_bytes(target))
            else:
                arrays.append(kept.pop() if kept else np.empty(size_bytes, np.uint8))

        return [report, *map(memoryview, arrays)], arrays  # type: ignore[arg-type]

    def take(self, view: SlotView, answer: Frame, arrays: Arrays, memory: Uint8s | None) -> tuple[PartReport, Any]:
        """Puts a part into its slot, and does what is left to do: labels of the dataset's own, and affine maps.

        Args:
            view: The part's rows of its slot.
            answer: The frame that it came by.
            arrays: The arrays that :meth:`buffers` has returned for it.
            memory: uint8 [bytes], the server's on this host, where the arrays lie in it.

        Returns:
            The part's report, and what :func:`feeder.loader.fast.report_json.add_stages` takes once the part counts.

        Raises:
            ValueError: if it is none, or not this one.
        """
        if memory is not None:
            arrays = self._arrays_at(view, answer.message.get("places"), memory)
        try:
            value = json.loads(bytes(answer.payload[0])) if answer.payload else None
        except RecursionError:
            value = None
        if not isinstance(value, dict):
            raise ValueError("a part without a report")
        report = report_from_json(value, view.samples.ids.size, self._columns)
        if any(each.substitute >= len(self._work.reader) for each in report.substitutions):
            raise ValueError("a substitute that there is not")

        for array, target in zip(arrays, self._targets(view), strict=True):
            if target is not None and not np.may_share_memory(array, target):
                native.copy_bytes(array, _bytes(target))
        for array, affine, image in zip(arrays[1:], self._maps, view.images, strict=False):
            if affine is not None:
                native.map_pixels(array.reshape(image.shape), *affine, image)
        if self._labels is not None:
            ids = view.samples.ids.copy()
            for each in report.substitutions:
                ids[view.samples.positions == each.position] = each.substitute
            view.labels[:] = self._labels[ids]
        return report, value.get("stages")

    def _arrays_at(self, view: SlotView, places: Any, memory: Uint8s) -> Arrays:
        if not isinstance(places, list) or not all(
            isinstance(each, list) and len(each) == 2 and all(type(number) is int and number >= 0 for number in each)
            for each in places
        ):
            raise ValueError("a part without places")
        if not self._fit(view, [size for _, size in places]) or any(sum(place) > len(memory) for place in places):
            raise ValueError("a part with places that it has not")
        return [memory[offset : offset + size] for offset, size in places]

    def release(self, arrays: Arrays) -> None:
        """Takes memory back that :meth:`buffers` gave out, to give it out again."""
        for array in arrays:
            if array.base is None:
                self._scratch.setdefault(len(array), []).append(array)

    def _targets(self, view: SlotView) -> list[AnyArray | None]:
        """Returns for each array that is sent its place in the slot; None for one that something is left to do on."""
        images = [image if affine is None else None for image, affine in zip(view.images, self._maps, strict=True)]
        return [view.labels if self._labels is None else None, *images, *view.further]

    def _fit(self, view: SlotView, sizes: list[Any]) -> bool:
        """Returns True if the arrays of a part have such sizes, bytes."""
        images = [
            image.nbytes if affine is None else image.size
            for image, affine in zip(view.images, self._maps, strict=True)
        ]
        expected = [view.labels.nbytes, *images, *(each.nbytes for each in view.further)]
        if not sizes or type(sizes[0]) is not int:
            return False
        if self._labels is not None and 0 <= sizes[0] <= _MOST_LABEL_BYTES:  # those of the set, which are not used
            expected[0] = sizes[0]
        return sizes == expected


def _bytes(array: AnyArray) -> Uint8s:
    """Returns the memory of a contiguous array, uint8 [bytes]."""
    return array.reshape(-1).view(np.uint8)
