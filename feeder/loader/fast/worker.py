"""A fast worker: claims parts of batches from the task board, makes them, and sends a report on each."""

from __future__ import annotations

import contextlib
import os
import pickle
import select
import signal
import socket
import struct
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any

import numpy as np

from feeder.errors import FeederError, WorkerError
from feeder.loader.fast.part_report import PartReport
from feeder.loader.fast.sample_maker import Work
from feeder.loader.fast.task_board import Board, Part
from feeder.loader.slots.image_slots import SlotView
from feeder.loader.slots.region import Region
from feeder.loader.slots.shared_pickle import unpack
from feeder.loader.workers.watchdog import end_with_trainer
from feeder.shard.cache.waits import waits

__all__ = ["FAILED_START", "HEAD", "make_part", "work_loop"]

# Head of a message to the trainer: length of the pickled rest, number of the part (or FAILED_START).
HEAD = struct.Struct("<qq")
FAILED_START = -1


def work_loop(channel: socket.socket, work: Work | None = None, init: Callable[[int], None] | None = None) -> None:
    """The worker's main function: makes parts until the trainer's socket closes.

    Args:
        channel: A stream socket; its first message has the worker's options and carries the shared memory.
        work: The work; None: it is in the shared memory.
        init: Called with the worker's number before the first part.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the trainer has it too, and decides what it means
    channel.settimeout(None)  # whatever the script's default for sockets is
    end_with_trainer(channel)
    hello, descriptors, _, _ = socket.recv_fds(channel, 1 << 16, 5)
    if not hello:
        return
    layout, sys.path[:], number, slots, capacity, workers, payload_bytes = pickle.loads(hello)
    try:
        ring = Region(layout.slot_bytes * slots, descriptors[0])
        board = Board(capacity, workers, (descriptors[1], descriptors[2], descriptors[3]))
        if work is None:
            work = unpack(Region(payload_bytes, descriptors[4], writable=False))
        assert work is not None
        _stay_alone()
        if init is not None:
            init(number)
        work.prepare()
    except BaseException:
        _send(channel, FAILED_START, traceback.format_exc())
        return
    whole = ring.array(np.uint8, (slots, layout.slot_bytes))
    views = [SlotView.of(layout, whole[k]) for k in range(slots)]
    poll = select.poll()
    poll.register(board.event, select.POLLIN)
    poll.register(channel, select.POLLIN)
    board.beat(number)
    waits.beat = lambda: board.beat(number)
    work.meter = board.meter(number)
    idle_from = time.perf_counter_ns()
    while True:
        ready = dict(poll.poll())
        if channel.fileno() in ready:
            return  # the trainer sends nothing after the first message: it has closed its socket
        try:
            os.eventfd_read(board.event)
        except BlockingIOError:
            continue
        part = board.claim(number)
        if part is not None:
            work.meter.add("wait_slot", time.perf_counter_ns() - idle_from)
            view = views[part.slot]
            if part.height:
                sizes = work.image_sizes(part.epoch, (part.height, part.width))
                view = SlotView.of(layout, whole[part.slot], sizes=sizes)
            make_part(channel, board, number, part, view, work)
            idle_from = time.perf_counter_ns()


def _stay_alone() -> None:
    """Lets torch use one thread, as in torch's own workers: a forked process has none of its parent's threads."""
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(1)


def make_part(channel: socket.socket, board: Board, number: int, part: Part, view: SlotView, work: Work) -> None:
    """Makes a part, and sends the trainer what does not fit in its slot."""
    started = time.perf_counter_ns()
    rows = slice(part.first, part.first + part.rows)
    report = PartReport()
    message: Any = None
    try:
        report = work.run(part.epoch, view.part(rows), lambda: board.beat(number))
        if _has_news(report):  # else a message would cost the trainer time
            message = report
    except Exception as error:
        message = _portable(error)
    report.count(board.sums(number), time.perf_counter_ns() - started)
    _send(channel, part.number, message, board)
    board.finish(number)
    if part.is_last:
        os.eventfd_write(board.sent, 1)


def _portable(error: Exception) -> Exception:
    """Returns the error as the trainer can unpickle it: feeder's own as they are, others as their traceback's text."""
    if isinstance(error, FeederError):
        return error
    return WorkerError(f"a worker failed:\n{traceback.format_exc()}")


def _send(channel: socket.socket, part: int, message: Any, board: Board | None = None) -> None:
    data = pickle.dumps(message, protocol=5) if message is not None else b""
    data = HEAD.pack(len(data), part) + data
    try:
        done = 0
        if board is not None:
            with contextlib.suppress(BlockingIOError):
                done = channel.send(data, socket.MSG_DONTWAIT)
            if done < len(data):  # the socket is full until the trainer reads
                os.eventfd_write(board.sent, 1)
        channel.sendall(memoryview(data)[done:])
    except (BrokenPipeError, ConnectionResetError):
        os._exit(0)


def _has_news(report: PartReport) -> bool:
    """Returns True if a report says anything that the slot and the meters do not."""
    further = report.extras or report.substitutions or report.left_over or report.collated
    return bool(further or report.clipped or report.slow)
