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

from feeder.errors import DecodeError, FeederError
from feeder.loader.fast.part_answer import report_to_json
from feeder.loader.fast.sample_maker import Work
from feeder.loader.fast.work_json import work_from_json
from feeder.loader.observe.meter import Meter
from feeder.loader.slots.image_slots import Samples, SlotView
from feeder.loader.slots.region import Region
from feeder.loader.workers.watchdog import end_with_trainer
from feeder.service.frames import HEAD, WORKER_LIMITS, Kind
from feeder.service.roots import Roots

__all__ = ["ANSWER", "part_maker"]

# Head of an answer: length of the JSON that follows, kind of the frame that it becomes.
ANSWER = struct.Struct("<qq")


_REGIONS = 64
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
        found = work_from_json(message["work"], Roots(message["roots"], message["cache_dir"]).open_set)
        found.prepare()
        self._works[message["digest"]] = found
        columns = (*found.image_columns, *found.further_columns)
        sizes = [math.prod(column.shape) * np.dtype(column.dtype).itemsize for column in columns]
        row_bytes = _COLUMNS_BYTES + found.reader.label_dtype.itemsize + sum(sizes)
        return {"row_bytes": row_bytes, "further_bytes": 2 * _PAGE + _LINE * (len(sizes) + 1)}

    def make(self, message: dict[str, Any], payload: bytearray, descriptor: int) -> dict[str, Any]:
        """Makes a part; returns its report, and where in the memory its arrays are: [offset, bytes] each."""
        region = self._region(message["region"], message["region_bytes"], descriptor)
        work = self._works[message["digest"]]
        rows = len(payload) // _COLUMNS_BYTES
        numbers = np.frombuffer(payload, np.int64).reshape(3, rows)
        layout = work.layout(rows)
        memory = region.array(np.uint8, (region.size_bytes,))
        view = SlotView.of(layout, memory, Samples(*numbers))
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


def _places(memory: npt.NDArray[np.uint8], view: SlotView) -> list[list[int]]:
    base = memory.__array_interface__["data"][0]
    arrays = (view.labels, *view.images, *view.further)
    return [[array.__array_interface__["data"][0] - base, array.nbytes] for array in arrays]


def _sparse(meter: Meter) -> list[list[int]]:
    """Returns the words of a meter that are not 0, each with its place."""
    places = np.flatnonzero(meter.words)
    return [places.tolist(), meter.words[places].tolist()]
