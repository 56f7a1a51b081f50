"""A relay: a worker that has parts made by the servers of an input service, and receives them into their slots.

Note [Relays]
    To the pool a relay is a worker that claims several parts at a time, each by a row of its own of the task board. So
    order, slots, counts, and what happens when it dies or hangs are those of any worker.
    It claims a part only for a server that has credit left, and only if no local worker is idle. It alone writes the
    slot of a part that it has claimed. A part that is unanswered for too long it hands back to the pool by a message,
    after it has made sure that nothing more of the answer goes into the slot; then a local worker makes it. The pool
    clears the part's row, which is the relay's sign that the row is free again. A loader without local workers has the
    relay make such parts by itself.
    All pixels that can be are sent as uint8; where that leaves an affine map to do, the relay does it.
"""

from __future__ import annotations

import contextlib
import functools
import os
import select
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from feeder.errors import ServiceError
from feeder.loader.fast.part_answer import add_stages, error_from_json, report_from_json
from feeder.loader.fast.part_report import PartReport
from feeder.loader.fast.sample_maker import Work
from feeder.loader.fast.server_link import ServerLink
from feeder.loader.fast.service_directory import Directory
from feeder.loader.fast.service_options import ServiceOptions
from feeder.loader.fast.task_board import Board, Part
from feeder.loader.fast.work_json import given_labels, sent_splits, work_to_json
from feeder.loader.fast.worker import Declined, finish_part, make_part, send_message
from feeder.loader.slots.image_slots import SlotView
from feeder.service.frames import BEAT_S, Frame, Kind
from feeder.shard.write.attempt import writer_versions
from feeder.system.text import say

__all__ = ["relay_loop"]

_FIRST_LIMIT_S = 1.0  # for an answer, before any is known
_LATE, _MOST_LATE_S, _LEAST_LIMIT_S = 3.0, 1.0, 0.05
_RECONNECT_S = 1.0
_LOCAL_FIRST_S = 0.02  # that idle local workers get to take a part
_PAUSE_MS = 2
_MOST_FAILURES = 3  # of one part, where no other way to make it is left
_BUSY_S = 2 * BEAT_S  # without a look at the sockets: silence does not count then


class _Asked:
    """A part that was claimed.

    Attributes:
        link: The server that was asked; None: it waits for one.
        request: The request there.
        failures: Number of servers, or times, that it failed on.
    """

    def __init__(self, part: Part, row: int, view: SlotView) -> None:
        self.part, self.row, self.view = part, row, view
        self.link: ServerLink | None = None
        self.request = -1
        self.failures = 0
        self.since_s = time.monotonic()
        self.scratch: list[npt.NDArray[Any]] = []


def relay_loop(
    channel: socket.socket,
    board: Board,
    rows: Sequence[int],
    view_of: Callable[[Part], SlotView],
    work: Work,
    options: ServiceOptions,
) -> None:
    """The main function of a relay, once it has what every worker has; returns when the trainer closes its socket.

    Args:
        channel: To the trainer.
        board: The task board.
        rows: Its rows there.
        view_of: Returns a part's rows of its slot.
        work: The work, which the relay's own parts are made by.
        options: The service.
    """
    relay = _Relay(channel, board, rows, view_of, work, options)
    while relay.turn():
        pass


class _Relay:
    def __init__(
        self,
        channel: socket.socket,
        board: Board,
        rows: Sequence[int],
        view_of: Callable[[Part], SlotView],
        work: Work,
        options: ServiceOptions,
    ) -> None:
        self._channel, self._board, self._rows, self._view_of = channel, board, rows, view_of
        self._work, self._options = work, options
        self._json = work_to_json(work)
        self._splits = sent_splits(work)
        self._labels = given_labels(work.reader)
        self._columns = sum(not extra.columns for extra in work.values)
        self._directory = Directory(options)
        self._links: dict[tuple[str, int], ServerLink] = {}
        self._not_before: dict[tuple[str, int], float] = {}
        self._told: set[str] = set()
        self._asked: dict[int, _Asked] = {}
        self._scratch: dict[int, list[npt.NDArray[np.uint8]]] = {}
        self._usual_s = 0.0
        self._next_s = self._looked_s = time.monotonic()
        self._served_s = time.monotonic()  # when there was a server, or the wait for one began
        self._seen = (-1, 0.0)  # the oldest part that waits, and since when
        self._is_empty_handed = False
        work.meter = board.meter(rows[0])
        self._beat = functools.partial(board.beat, rows[0])
        self._beat()

    def turn(self) -> bool:
        """Waits for something, and does what there is to do; returns False once the trainer is gone."""
        ready = self._poll()
        if self._channel.fileno() in ready:
            return False
        now = time.monotonic()
        if now - self._looked_s > _BUSY_S:
            for link in self._links.values():
                link.forgive()
        self._looked_s = now
        for link in list(self._links.values()):
            events = ready.get(link.connection.fileno(), 0)
            for answer in link.serve(events) if events else ():
                self._take(link, answer)
        if self._directory.descriptor in ready or now >= self._next_s:
            self._directory.look()
        if now >= self._next_s:
            self._next_s = now + BEAT_S
            self._beat()
            self._renew_links()
        self._drop_lost_links()
        self._see_to_late_parts()
        self._claim()
        return True

    def _poll(self) -> dict[int, int]:
        poll = select.poll()
        poll.register(self._channel, select.POLLIN)
        for link in self._links.values():
            poll.register(link.connection, link.events())
        if self._directory.descriptor is not None:
            poll.register(self._directory.descriptor, select.POLLIN)
        wait_s = self._next_s - time.monotonic()
        if self._asked:
            wait_s = min(wait_s, self._limit_s() / 4)
        if self._wants_parts():
            if self._is_empty_handed and self._board.pending():
                wait_s = min(wait_s, _PAUSE_MS / 1000)  # the event stays readable until a local worker has taken it
            else:
                poll.register(self._board.event, select.POLLIN)
        return dict(poll.poll(max(0, int(wait_s * 1000) + 1)))

    # Servers.

    def _renew_links(self) -> None:
        """Connects to servers that are new or were lost a while ago."""
        now, token = time.monotonic(), self._directory.token
        for address in self._directory.servers:
            if address not in self._links and now >= self._not_before.get(address, 0.0):
                hello = {"token": token, "versions": writer_versions(), "job": self._options.job or "job"}
                self._links[address] = ServerLink(address, hello, self._json, self._buffers)
        for link in self._links.values():
            link.tick()

    def _drop_lost_links(self) -> None:
        for address, link in list(self._links.items()):
            if not link.lost:
                continue
            del self._links[address]
            self._not_before[address] = time.monotonic() + _RECONNECT_S
            link.close()
            if link.refusal:
                self._tell(f"server {address[0]}:{address[1]} refuses this job: {link.refusal}")
            for number, _ in link.sent.values():
                self._asked[number].link = None  # another one, or a local worker

    def _tell(self, text: str) -> None:
        """Says on standard error, once, what keeps the service from being of use."""
        if text not in self._told:
            self._told.add(text)
            say(f"feeder: service {self._options.place!r}: {text}", file=sys.stderr)

    def _free_link(self, other_than: ServerLink | None = None) -> ServerLink | None:
        """Returns the server that has the most credit left."""
        ready = [link for link in self._links.values() if link.is_ready and link is not other_than]
        return max(ready, key=lambda link: link.credit - len(link.sent), default=None)

    def _has_servers(self) -> bool:
        return any(link.credit for link in self._links.values())

    # Parts.

    def _free_row(self) -> int | None:
        taken = {asked.row for asked in self._asked.values()}
        return next((row for row in self._rows if row not in taken and self._board.is_free(row)), None)

    def _wants_parts(self) -> bool:
        """Returns True if another part may be claimed."""
        if len(self._asked) >= len(self._rows):
            return False
        if self._free_link() is not None:
            return True
        if self._has_servers():
            return False
        return self._is_overdue() if self._options.only else not self._options.local_workers

    def _is_overdue(self) -> bool:
        """Returns True if no server was there for the time that a loader without local parts waits."""
        return time.monotonic() - self._served_s > self._options.timeout_s

    def _claim(self) -> None:
        """Claims parts for servers with credit left."""
        if self._has_servers() or not (self._board.pending() or self._asked):
            self._served_s = time.monotonic()
        self._is_empty_handed = False
        while self._wants_parts():
            row = self._free_row()
            part = None if row is None or self._leaves_to_local_workers() else self._claim_one(row)
            if part is None:
                self._is_empty_handed = True
                return
            assert row is not None
            asked = _Asked(part, row, self._view_of(part))
            self._asked[part.number] = asked
            link = self._free_link()
            if link is not None:
                self._send(asked, link)
            elif self._options.only:
                self._fail(asked)
            else:
                self._make_here(asked)
                return  # to look at the sockets

    def _claim_one(self, row: int) -> Part | None:
        """Claims a part, and takes the count that would wake a local worker for it."""
        fresh_only = self._options.local_workers > 0 and not self._options.only
        part = self._board.claim(row, fresh_only=fresh_only)
        with contextlib.suppress(BlockingIOError):
            if part is not None or not self._board.pending():
                os.eventfd_read(self._board.event)
                if part is None and self._board.pending():  # published meanwhile
                    os.eventfd_write(self._board.event, 1)
        return part

    def _leaves_to_local_workers(self) -> bool:
        """Returns True if idle local workers are about to take all parts that wait."""
        if not self._options.local_workers or self._options.only:
            return False
        first, waiting = self._board.fresh()
        if waiting > self._board.idle(self._options.local_workers):
            return False
        now = time.monotonic()
        if self._seen[0] != first:
            self._seen = first, now
        return waiting > 0 and now - self._seen[1] < _LOCAL_FIRST_S

    def _send(self, asked: _Asked, link: ServerLink) -> None:
        asked.link, asked.since_s = link, time.monotonic()
        samples = asked.view.samples
        numbers = [_bytes(each) for each in samples]
        asked.request = link.ask(asked.part.number, asked.part.epoch, numbers, asked.view.image_size)

    def _take(self, link: ServerLink, answer: Frame) -> None:
        """Takes a server's answer to a part."""
        request = answer.message.get("number")
        sent = link.sent.pop(request, None) if type(request) is int else None
        if sent is None:
            return  # it was taken back
        number, sent_s = sent
        asked = self._asked[number]
        spent_s = time.monotonic() - sent_s
        self._usual_s += (spent_s - self._usual_s) * (0.1 if self._usual_s else 1.0)
        if answer.kind == Kind.FAILED:
            error = error_from_json(answer.message)
            if error is not None:
                self._finish(asked, PartReport(), error)
            elif not self._options.only:
                self._decline(asked)
            elif asked.failures < _MOST_FAILURES:
                asked.failures += 1
                asked.link = None
            else:
                reason = str(answer.message.get("error"))[-500:]
                self._finish(asked, PartReport(), ServiceError(f"server {link.address[0]} can't make a part: {reason}"))
            return
        try:
            report = report_from_json(answer.message, asked.part.rows, self._columns)
            if any(each.substitute >= len(self._work.reader) for each in report.substitutions):
                raise ValueError("a substitute that there is not")
            add_stages(self._work.meter, answer.message.get("stages"))
        except ValueError as error:
            link.lost = f"answered what is none of the protocol: {error}"
            asked.link = None
            return
        self._complete(asked, report)
        self._finish(asked, report, report if report.has_news else None)

    def _complete(self, asked: _Asked, report: PartReport) -> None:
        """Does what is left to do on a part that was received: labels of the dataset's own, and affine maps."""
        view = asked.view
        if self._labels is not None:
            ids = view.samples.ids.copy()
            for each in report.substitutions:
                ids[view.samples.positions == each.position] = each.substitute
            view.labels[:] = self._labels[ids]
        scratch = iter(asked.scratch)
        for recipe, image, is_mapped in zip(self._work.recipes, view.images, self._maps, strict=True):
            if is_mapped:
                affine = recipe.affine
                assert affine is not None
                scale, bias = (each.reshape(3, 1, 1) for each in affine)
                pixels = next(scratch)
                np.multiply(pixels.reshape(image.shape), scale, out=image)
                image += bias
                self._scratch.setdefault(pixels.nbytes, []).append(pixels)
        asked.scratch = []

    @functools.cached_property
    def _maps(self) -> list[bool]:
        """True for each image of a sample whose pixels are sent as uint8, and stand in the slot as floats."""
        own = self._work.splits or (None,) * len(self._splits)
        return [sent is not None and here is None for sent, here in zip(self._splits, own, strict=True)]

    def _buffers(self, number: int, message: Mapping[str, Any], size_bytes: int) -> list[memoryview]:
        """Returns the places that a part is received into: its rows of the slot, where nothing is left to do on it."""
        asked, sizes = self._asked[number], message.get("sizes")
        view = asked.view
        if not isinstance(sizes, list) or len(sizes) != 1 + len(view.images) + len(view.further):
            return [memoryview(b"")]  # which is refused, as it is too short
        if self._labels is None:
            found = [_bytes(view.labels)]
        else:
            found = [memoryview(bytearray(min(int(sizes[0]), size_bytes)))]
        asked.scratch = []
        for image, is_mapped in zip(view.images, self._maps, strict=True):
            if is_mapped:
                kept = self._scratch.get(image.size)
                pixels = kept.pop() if kept else np.empty(image.size, np.uint8)
                asked.scratch.append(pixels)
                found.append(_bytes(pixels))
            else:
                found.append(_bytes(image))
        return found + [_bytes(each) for each in view.further]

    def _limit_s(self) -> float:
        """Returns the time after which a part counts as unanswered."""
        if not self._usual_s:
            return _FIRST_LIMIT_S
        return max(_LEAST_LIMIT_S, min(_LATE * self._usual_s, self._usual_s + _MOST_LATE_S))

    def _see_to_late_parts(self) -> None:
        """Has unanswered parts made otherwise, and those whose server is gone."""
        now, limit_s = time.monotonic(), self._limit_s()
        for asked in list(self._asked.values()):
            link = self._free_link(asked.link)
            if asked.link is not None:
                if now - asked.since_s < limit_s or (self._options.only and link is None):
                    continue
                self._usual_s = max(self._usual_s, min(now - asked.since_s, 10.0)) * 1.2  # until an answer says less
                asked.link.cancel(asked.request)
                asked.link = None
            if link is not None and self._options.only:
                self._send(asked, link)
            elif not self._options.only:
                self._decline(asked)
            elif self._is_overdue():
                self._fail(asked)

    def _decline(self, asked: _Asked) -> None:
        """Has a part made by a local worker, or here if there is none."""
        if not self._options.local_workers:
            self._make_here(asked)
            return
        del self._asked[asked.part.number]
        send_message(self._channel, asked.part.number, Declined(asked.row), self._board)
        os.eventfd_write(self._board.sent, 1)  # the trainer has to give it out again

    def _make_here(self, asked: _Asked) -> None:
        del self._asked[asked.part.number]
        make_part(self._channel, self._board, asked.row, asked.part, asked.view, self._work, self._beat)

    def _fail(self, asked: _Asked) -> None:
        reasons = [self._directory.problem, *sorted(self._told)]
        reason = "; ".join(filter(None, reasons)) or "its servers do not answer"
        error = ServiceError(
            f"no server of the service {self._options.place!r} was there for {self._options.timeout_s:g} s: {reason}. "
            "Start one with `feeder serve`, raise timeout=, or leave service_only=True out"
        )
        self._finish(asked, PartReport(), error)

    def _finish(self, asked: _Asked, report: PartReport, message: Any) -> None:
        self._asked.pop(asked.part.number, None)
        report.count(self._board.sums(self._rows[0]), report.read_ns + report.decode_ns)
        finish_part(self._channel, self._board, asked.row, asked.part, message)


def _bytes(array: npt.NDArray[Any]) -> memoryview:
    """Returns the memory of a contiguous array."""
    return memoryview(array.reshape(-1).view(np.uint8))  # type: ignore[arg-type]
