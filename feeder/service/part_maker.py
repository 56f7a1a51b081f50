"""A process of a server that makes parts: the same work as in a worker of the training machine, into shared memory."""

from __future__ import annotations

import json
import math
import signal
import socket
import time
import traceback
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from feeder.dataset.extras import Column
from feeder.errors import ArgumentError, DecodeError, FeederError
from feeder.loader.fast.report_json import report_to_json
from feeder.loader.fast.sample_maker import Work
from feeder.loader.fast.work_json import work_from_json
from feeder.loader.observe.meter import Meter
from feeder.loader.slots.image_slots import Samples, Sizes, SlotView
from feeder.loader.slots.region import Region
from feeder.loader.workers.channel import Channel, end_with_trainer
from feeder.service.frames import SERVER_LIMITS, Kind
from feeder.service.part_memory import WorkSize
from feeder.service.roots import Roots
from feeder.shard.cache.waits import waits
from feeder.system.arrays import Uint8s

_SPARE_BYTES = 1 << 10  # for what the server adds
_MOST_REPORT_BYTES = 32 << 20
_TOO_LARGE = "its fields, or the error, are too large to be sent; make batches smaller, or leave the service out"
_PAGE, _LINE, _COLUMNS_BYTES = 4096, 64, 24  # see Layout


def part_maker(connection: socket.socket) -> None:
    """The process's main function: makes parts until the server closes the socket.

    Args:
        connection: A stream socket. WELCOME comes on it first, with the memory for results; then WORK and PART. Each
            message is about a :class:`Kind`, and has JSON and a payload, see :func:`join_json`.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_trainer(connection)
    channel = Channel(connection)
    channel.heartbeat()  # it has started: whatever ends it now is its task's fault
    maker: _Maker | None = None

    while (received := channel.receive()) is not None:
        kind, data, descriptors = received
        message, payload = split_json(data)
        if maker is None:
            maker = _Maker(message["here"], Region(message["memory_bytes"], descriptors[0]), channel.heartbeat)
        else:
            channel.send(*_answer(maker, kind, message, payload))


def join_json(message: Mapping[str, Any], payload: bytes = b"") -> bytes:
    """Returns a line of JSON, and bytes after it."""
    return json.dumps(message).encode() + b"\n" + payload


def split_json(data: bytes) -> tuple[dict[str, Any], bytes]:
    """Returns message and payload of :func:`join_json`."""
    line, _, payload = data.partition(b"\n")
    return json.loads(line), payload


def _answer(maker: _Maker, kind: int, message: dict[str, Any], payload: bytes) -> tuple[Kind, bytes]:
    """Carries out a message; returns the answer's kind and data."""
    answer: dict[str, Any]
    try:
        if kind == Kind.WORK:
            data = b""
            end, answer = Kind.ACCEPTED, {"size": maker.check(message, payload)}
        else:
            places, data = maker.make(message, payload)
            end, answer = Kind.RESULT, {"places": places}
            if len(data) > _MOST_REPORT_BYTES:
                raise ArgumentError(_TOO_LARGE)
    except Exception as error:
        end, answer, data = Kind.FAILED, _failure(error), b""
        if len(json.dumps(answer)) > SERVER_LIMITS[end][0] - _SPARE_BYTES:
            answer = {"error": _TOO_LARGE}
    return end, join_json(answer | {"of": kind}, data)


def _failure(error: Exception) -> dict[str, Any]:
    if isinstance(error, DecodeError):
        return {"decode": [error.reason, error.key, error.shard, error.offset_bytes]}
    if isinstance(error, FeederError):
        return {"error": str(error)[:2000]}
    return {"error": traceback.format_exc()[-2000:]}


class _Maker:
    """Work by its digest, until the server says that it may be forgotten, and the memory for results.

    Args:
        here: Arguments of :class:`feeder.service.roots.Roots`.
        memory: The memory.
        heartbeat: The sign of life.
    """

    def __init__(self, here: dict[str, Any], memory: Region, heartbeat: Callable[[], None]) -> None:
        self._heartbeat = heartbeat
        self._whole = memory.array(np.uint8, (memory.size_bytes,))
        self._works: dict[str, Work] = {}
        self._roots = Roots(**here)
        self._roots.confine()
        waits.heartbeat = heartbeat

    def check(self, message: dict[str, Any], payload: bytes) -> WorkSize:
        """Opens the sets of some work and makes its decoder; returns what a sample takes."""
        for digest in message["forget"]:
            self._works.pop(digest, None)
        try:
            value = json.loads(payload)
        except (ValueError, RecursionError):
            value = None
        if not isinstance(value, dict):
            raise ArgumentError("this is no work of this version of feeder")
        found = work_from_json(value, self._roots)
        found.prepare()
        self._works[message["digest"]] = found
        return _size(found)

    def make(self, message: dict[str, Any], payload: bytes) -> tuple[list[list[int]], bytes]:
        """Makes a part; returns where in the memory its arrays are, [offset, bytes] each, and its report as JSON."""
        work = self._works[message["digest"]]
        rows = len(payload) // _COLUMNS_BYTES
        numbers = np.frombuffer(payload, np.int64).reshape(3, rows)
        layout, sizes = work.layout(rows), None
        if message["size"] is not None:
            height, width = message["size"]
            sizes = work.image_sizes(message["epoch"], (height, width))
            _check_sizes(work, message["epoch"], sizes)
            layout = layout.at(sizes)
        offset, size_bytes = message["at"]
        view = SlotView.of(layout, self._whole[offset : offset + size_bytes], Samples(*numbers), sizes)
        work.meter = Meter()
        started = time.perf_counter_ns()
        report = work.run(message["epoch"], view, self._heartbeat)
        work.meter.add_part(time.perf_counter_ns() - started)
        return _places(self._whole, view), json.dumps(report_to_json(report, work.meter)).encode()


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


def _places(memory: Uint8s, view: SlotView) -> list[list[int]]:
    base = memory.__array_interface__["data"][0]
    arrays = (view.labels, *view.images, *view.further)
    return [[array.__array_interface__["data"][0] - base, array.nbytes] for array in arrays]
