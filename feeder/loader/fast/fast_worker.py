"""A fast worker: claims parts of batches from the task board, makes them, and sends a report on each."""

from __future__ import annotations

import contextlib
import functools
import os
import pickle
import select
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from feeder.errors import FeederError, WorkerError
from feeder.loader.fast.sample_maker import Work
from feeder.loader.fast.task_board import Board, Part
from feeder.loader.slots.image_slots import Layout, SlotView
from feeder.loader.slots.region import Region, unpack
from feeder.loader.workers.channel import Channel, end_with_trainer
from feeder.shard.cache.waits import waits
from feeder.system.arrays import Uint8s

FAILED_START = -2  # in place of the number of a part
_MAPPED_AT_ONCE = 1 << 16  # bytes around a page that is read first; Linux's default


class Declined(NamedTuple):
    """In place of a report: another worker has to make the part.

    Attributes:
        row: The row by which it was claimed, which the pool clears; see Note [Relays].
    """

    row: int


def work_loop(connection: socket.socket, work: Work | None = None, init: Callable[[int], None] | None = None) -> None:
    """The worker's main function: makes parts until the trainer's socket closes.

    Args:
        connection: A stream socket; its only message has the worker's options and carries the shared memory.
        work: The work; None: it is in the shared memory.
        init: Called with the worker's number before the first part.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the trainer has it too, and decides what it means
    channel = Channel(connection)
    end_with_trainer(connection)

    received = channel.receive()
    if received is None:
        return
    _, hello, descriptors = received
    layout, sys.path[:], rows, slots, capacity, workers, meters, payload_bytes, relay, cpus = pickle.loads(hello)
    number = rows[0]

    if cpus is not None:
        with contextlib.suppress(OSError):  # they were taken from the job meanwhile
            os.sched_setaffinity(0, cpus)

    try:
        ring = Region(layout.slot_bytes * slots, descriptors[0])
        board = Board(capacity, workers, (descriptors[1], descriptors[2], descriptors[3]), meters=meters)
        if work is None:
            work = unpack(Region(payload_bytes, descriptors[4], writable=False))
        assert work is not None
        channel.when_full = functools.partial(os.eventfd_write, board.sent, 1)  # the trainer has to read
        if (torch := sys.modules.get("torch")) is not None:
            torch.set_num_threads(1)  # as in torch's own workers: a forked process has none of its parent's threads
        if init is not None and relay is None:
            init(number)
        work.prepare()
    except BaseException:
        send(channel, FAILED_START, traceback.format_exc())
        return

    whole = ring.array(np.uint8, (slots, layout.slot_bytes))
    view_of = _part_views(layout, whole, work)
    waits.heartbeat = lambda: board.heartbeat(number)
    if relay is not None:
        relay(channel, board, rows, view_of, work).run()
        return

    board.heartbeat(number)
    _make_parts(channel, board, number, view_of, work)


def _make_parts(channel: Channel, board: Board, number: int, view_of: Callable[[Part], SlotView], work: Work) -> None:
    """Makes parts as they come onto the board, until the trainer's socket closes."""
    poll = select.poll()
    poll.register(board.event, select.POLLIN)
    poll.register(channel.connection, select.POLLIN)
    work.meter = board.meter(number)
    idle_from = time.perf_counter_ns()

    while True:
        ready = dict(poll.poll())
        if channel.connection.fileno() in ready:
            return  # the trainer sends nothing after the first message: it has closed its socket
        try:
            os.eventfd_read(board.event)
        except BlockingIOError:
            continue
        part = board.claim(number)
        if part is not None:
            work.meter.add("wait_slot", time.perf_counter_ns() - idle_from)
            make_part(channel, board, number, part, view_of(part), work)
            idle_from = time.perf_counter_ns()


def _part_views(layout: Layout, slots: Uint8s, work: Work) -> Callable[[Part], SlotView]:
    """Returns a function that returns a part's rows of its slot, in the size of its batch.

    Args:
        layout: The layout of a slot.
        slots: uint8 [slots, slot_bytes].
        work: The work, for the sizes of images.
    """
    prefaulted: set[tuple[int, int, int]] = set()  # places of parts that were made before

    def view_of(part: Part) -> SlotView:
        sizes = work.image_sizes(part.epoch, (part.height, part.width)) if part.height else None
        view = SlotView.of(layout, slots[part.slot], sizes=sizes).part(slice(part.first, part.first + part.rows))
        place = part.slot, part.first, part.rows
        if place not in prefaulted:
            prefaulted.add(place)
            _prefault(view)
        return view

    return view_of


def _prefault(view: SlotView) -> None:
    """Prefaults a part's images: reads one byte of each 64 KiB.

    Reading maps 64 KiB at once, if the pages exist. Writing maps one page at a time, which takes longer.
    """
    for images in view.images:
        images.reshape(-1).view(np.uint8)[::_MAPPED_AT_ONCE].max(initial=0)


def make_part(
    channel: Channel,
    board: Board,
    number: int,
    part: Part,
    view: SlotView,
    work: Work,
    heartbeat: Callable[[], None] | None = None,
) -> None:
    """Makes a part, and sends the trainer what does not fit in its slot.

    Args:
        channel: To the trainer.
        board: The task board.
        number: The worker's row there.
        part: The part.
        view: The part's rows of its slot.
        work: The work.
        heartbeat: The worker's sign of life; None: its row's.
    """
    started = time.perf_counter_ns()
    message: Any
    try:
        report = work.run(part.epoch, view, heartbeat or (lambda: board.heartbeat(number)))
        message = report if report.has_news else None  # an empty report would cost the trainer time
    except Exception as error:
        message = _portable(error)
    work.meter.add_part(time.perf_counter_ns() - started)
    finish_part(channel, board, number, part, message)


def finish_part(channel: Channel, board: Board, number: int, part: Part, message: Any) -> None:
    """Sends off a part.

    Args:
        channel: To the trainer.
        board: The task board.
        number: The row by which it was claimed.
        part: The part.
        message: Its report or error; None: there is nothing to say.
    """
    send(channel, part.number, message)
    board.finish(number)
    if part.is_last:
        os.eventfd_write(board.sent, 1)


def _portable(error: Exception) -> Exception:
    """Returns the error as the trainer can unpickle it: feeder's own as they are, others as their traceback's text."""
    if isinstance(error, FeederError):
        return error
    return WorkerError(f"a worker failed:\n{traceback.format_exc()}")


def send(channel: Channel, part: int, message: Any) -> None:
    """Sends the trainer a message about a part."""
    channel.send(part, pickle.dumps(message, protocol=5) if message is not None else b"")
