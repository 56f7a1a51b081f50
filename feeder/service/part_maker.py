"""A process of a server that makes parts: the same work as in a worker of the training machine, into shared memory."""

from __future__ import annotations

import json
import math
import os
import signal
import socket
import struct
import time
import traceback
from collections.abc import Callable
from typing import Any, BinaryIO

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
from feeder.loader.workers.sockets import end_with_trainer
from feeder.service.frames import HEAD, SERVER_LIMITS, WORKER_LIMITS, Kind
from feeder.service.part_memory import WorkSize
from feeder.service.roots import Roots
from feeder.shard.cache.waits import waits

__all__ = ["ANSWER", "part_maker"]

# Head of an answer: length of what follows, kind of the frame, length of the data after the JSON.
ANSWER = struct.Struct("<qqq")

_SPARE_BYTES = 1 << 10  # for what the server adds
_MOST_REPORT_BYTES = 32 << 20
_TOO_LARGE = "its fields, or the error, are too large to be sent; make batches smaller, or leave the service out"
_PAGE, _LINE, _COLUMNS_BYTES = 4096, 64, 24  # see Layout
_HEARTBEAT_S = 1.0


def part_maker(channel: socket.socket) -> None:
    """The process's main function: makes parts until the server closes the socket.

    Args:
        channel: A stream socket. WELCOME comes on it first, with the memory for results; then WORK and PART.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    channel.settimeout(None)
    end_with_trainer(channel)
    channel.sendall(ANSWER.pack(0, Kind.HEARTBEAT, 0))  # it has started: whatever ends it now is its task's fault
    head, descriptors, _, _ = socket.recv_fds(channel, HEAD.size, 1, socket.MSG_WAITALL)
    frames = channel.makefile("rb")
    maker: _Maker | None = None
    while len(head) == HEAD.size:
        _, kind, json_bytes, payload_bytes = HEAD.unpack(head)
        most = WORKER_LIMITS[kind]
        assert json_bytes <= most[0]
        assert payload_bytes <= most[1]
        message = json.loads(_read(frames, json_bytes))
        payload = _read(frames, payload_bytes)
        if maker is None:
            maker = _Maker(message["here"], Region(message["memory_bytes"], descriptors[0]), _Heartbeat(channel))
        else:
            channel.sendall(_answer(maker, kind, message, payload))
        head = frames.read(HEAD.size)


def _read(frames: BinaryIO, size_bytes: int) -> bytes:
    data = frames.read(size_bytes)
    if len(data) < size_bytes:
        os._exit(0)  # the server is gone
    return data


def _answer(maker: _Maker, kind: int, message: dict[str, Any], payload: bytes) -> bytes:
    """Does what a frame asks for; returns the answer."""
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
    packed = json.dumps(answer | {"of": kind}).encode()
    return ANSWER.pack(len(packed) + len(data), end, len(data)) + packed + data


class _Heartbeat:
    """The sign of life of a process whose task takes long, at most once a second.

    Args:
        channel: To the server.
    """

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._next_s = 0.0

    def __call__(self) -> None:
        now = time.monotonic()
        if now >= self._next_s:
            self._next_s = now + _HEARTBEAT_S
            self._channel.sendall(ANSWER.pack(0, Kind.HEARTBEAT, 0))


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
        self._roots = Roots(**here, heartbeat=heartbeat)
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
        report = work.run(message["epoch"], view, self._heartbeat)
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


def _places(memory: npt.NDArray[np.uint8], view: SlotView) -> list[list[int]]:
    base = memory.__array_interface__["data"][0]
    arrays = (view.labels, *view.images, *view.further)
    return [[array.__array_interface__["data"][0] - base, array.nbytes] for array in arrays]
