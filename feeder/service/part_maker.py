"""A process of a server that makes parts: the same work as in a worker of the training machine, into shared memory."""

from __future__ import annotations

import json
import math
import os
import signal
import socket
import struct
import traceback
from collections import OrderedDict
from typing import Any

import numpy as np
import numpy.typing as npt

from feeder.dataset.extras import Column
from feeder.errors import ArgumentError, DecodeError, FeederError
from feeder.loader.fast.part_answer import report_to_json
from feeder.loader.fast.sample_maker import Work
from feeder.loader.fast.work_json import work_from_json
from feeder.loader.observe.meter import Meter
from feeder.loader.slots.image_slots import Samples, Sizes, SlotView
from feeder.loader.slots.region import Region
from feeder.loader.workers.watchdog import end_with_trainer
from feeder.service.frames import HEAD, SERVER_LIMITS, WORKER_LIMITS, Kind
from feeder.service.roots import Roots
from feeder.service.work_size import WorkSize

__all__ = ["ANSWER", "part_maker"]

# Head of an answer: length of the JSON that follows, kind of the frame that it becomes.
ANSWER = struct.Struct("<qq")


_REGIONS = 64
_SPARE_BYTES = 1 << 10  # for what the server adds
_TOO_LARGE = "its fields, or the error, are too large to be sent; make batches smaller, or leave the service out"
_PAGE, _LINE, _COLUMNS_BYTES = 4096, 64, 24  # see Layout


def part_maker(channel: socket.socket) -> None:
    """The process's main function: makes parts until the server closes the socket.

    Args:
        channel: A stream socket. Frames of kind WORK and PART come on it, the latter with the memory for the result.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    channel.settimeout(None)
    end_with_trainer(channel)
    maker = _Maker()
    channel.sendall(ANSWER.pack(0, Kind.BEAT))  # it has started: whatever ends it now is its task's fault
    while True:
        head, descriptors, _, _ = socket.recv_fds(channel, HEAD.size, 1, socket.MSG_WAITALL)
        if len(head) < HEAD.size:
            return
        _, kind, json_bytes, payload_bytes = HEAD.unpack(head)
        most = WORKER_LIMITS[kind]
        assert json_bytes <= most[0]
        assert payload_bytes <= most[1]
        message = json.loads(_receive(channel, json_bytes))
        payload = _receive(channel, payload_bytes)
        answer: dict[str, Any] = {"of": kind}
        try:
            if kind == Kind.WORK:
                answer |= maker.check(message)
                kind = Kind.ACCEPTED
            else:
                answer |= maker.make(message, payload, descriptors[0])
                kind = Kind.RESULT
        except Exception as error:
            answer |= _failure(error)
            kind = Kind.FAILED
        data = json.dumps(answer).encode()
        if len(data) > SERVER_LIMITS.get(kind, SERVER_LIMITS[Kind.FAILED])[0] - _SPARE_BYTES:
            kind, data = Kind.FAILED, json.dumps({"of": answer["of"], "error": _TOO_LARGE}).encode()
        channel.sendall(ANSWER.pack(len(data), kind) + data)


def _receive(channel: socket.socket, size_bytes: int) -> bytearray:
    data = bytearray(size_bytes)
    view = memoryview(data)
    while len(view):
        count = channel.recv_into(view)
        if not count:
            os._exit(0)
        view = view[count:]
    return data


def _failure(error: Exception) -> dict[str, Any]:
    if isinstance(error, DecodeError):
        return {"decode": [error.reason, error.key, error.shard, error.offset_bytes]}
    if isinstance(error, FeederError):
        return {"error": str(error)[:2000]}
    return {"error": traceback.format_exc()[-2000:]}


class _Maker:
    """Work by its digest, until the server says that it may be forgotten, and mapped memory by its number."""

    def __init__(self) -> None:
        self._works: dict[str, Work] = {}
        self._regions: OrderedDict[int, Region] = OrderedDict()

    def check(self, message: dict[str, Any]) -> dict[str, Any]:
        """Opens the sets of some work and makes its decoder; returns what a sample takes."""
        for digest in message["forget"]:
            self._works.pop(digest, None)
        found = work_from_json(message["work"], Roots(**message["here"]))
        found.prepare()
        self._works[message["digest"]] = found
        return {"size": _size(found)}

    def make(self, message: dict[str, Any], payload: bytearray, descriptor: int) -> dict[str, Any]:
        """Makes a part; returns its report, and where in the memory its arrays are: [offset, bytes] each."""
        for number in message["closed"]:
            self._regions.pop(number, None)
        region = self._region(message["region"], message["region_bytes"], descriptor)
        work = self._works[message["digest"]]
        rows = len(payload) // _COLUMNS_BYTES
        numbers = np.frombuffer(payload, np.int64).reshape(3, rows)
        layout, sizes = work.layout(rows), None
        if message["size"] is not None:
            height, width = message["size"]
            sizes = work.image_sizes(message["epoch"], (height, width))
            _check_sizes(work, message["epoch"], sizes)
            layout = layout.at(sizes)
        memory = region.array(np.uint8, (region.size_bytes,))
        view = SlotView.of(layout, memory, Samples(*numbers), sizes)
        work.meter = Meter()
        report = work.run(message["epoch"], view)
        return report_to_json(report) | {"arrays": _places(memory, view), "stages": _sparse(work.meter)}

    def _region(self, number: int, size_bytes: int, descriptor: int) -> Region:
        if number in self._regions:
            os.close(descriptor)
        else:
            self._regions[number] = Region(size_bytes, descriptor)
            if len(self._regions) > _REGIONS:
                self._regions.popitem(last=False)
        self._regions.move_to_end(number)
        return self._regions[number]


def _size(work: Work) -> WorkSize:
    """Returns the memory that parts take; images of a batch's size count by the pixel."""
    varies = work.pad is not None or any(recipe.is_variable for recipe in work.recipes)
    row_bytes, pixel_bytes = _COLUMNS_BYTES + work.reader.label_dtype.itemsize, 0
    # Images of the batch's size, and what has their size.
    follow = [varies and (not number or recipe.has_bucket) for number, recipe in enumerate(work.recipes)]
    for is_followed, column in zip(follow, work.image_columns, strict=True):
        if is_followed:
            pixel_bytes += column.shape[0] * np.dtype(column.dtype).itemsize
        else:
            row_bytes += _bytes(column)
    for column in work.further_columns:
        if column.image is not None and follow[column.image]:
            pixel_bytes += np.dtype(column.dtype).itemsize
        else:
            row_bytes += _bytes(column)
    arrays = 1 + len(work.image_columns) + len(work.further_columns)
    return WorkSize(row_bytes, pixel_bytes, 2 * _PAGE + _LINE * arrays)


def _bytes(column: Column) -> int:
    return math.prod(column.shape) * np.dtype(column.dtype).itemsize


def _check_sizes(work: Work, epoch: int, sizes: Sizes) -> None:
    """Refuses a batch's sizes that its recipe does not make. Padded images are checked as they are decoded."""
    for recipe, size in zip(work.recipes_at(sizes[0], epoch), sizes, strict=True):
        if recipe.output_size not in (None, size):
            raise ArgumentError(f"a part of images of {size}, which the recipe makes of {recipe.output_size}")


def _places(memory: npt.NDArray[np.uint8], view: SlotView) -> list[list[int]]:
    base = memory.__array_interface__["data"][0]
    arrays = (view.labels, *view.images, *view.further)
    return [[array.__array_interface__["data"][0] - base, array.nbytes] for array in arrays]


def _sparse(meter: Meter) -> list[list[int]]:
    """Returns the words of a meter that are not 0, each with its place."""
    places = np.flatnonzero(meter.words)
    return [places.tolist(), meter.words[places].tolist()]
