"""A relay: a worker that has parts made by the servers of an input service, and receives them into their slots.

Note [Relays]
    To the pool a relay is a worker that claims several parts at a time, each by a row of its own of the task board. So
    order, slots, counts, and what happens when it dies or hangs are those of any worker.
    It claims a part only for a server that has credit left, and only if no local worker is idle. It alone writes the
    slot of a part that it has claimed. A part that is unanswered for too long it hands back to the pool by a message,
    after it has made sure that nothing of the answer goes into the slot any more; then a local worker makes it. The
    pool puts the part back on the board and clears its row, which is the relay's sign that the row is free again. A
    loader without local workers has the relay make such parts by itself, and one that makes none has another server
    asked, too; the answer that begins to come first is taken.
    Answers that are not wanted any more are dropped as they come. They still tell that their server is at work.
    All pixels that can be are sent as uint8; where that leaves an affine map to do, the relay does it.
"""

from __future__ import annotations

import contextlib
import functools
import os
import select
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from feeder.errors import ServiceError
from feeder.loader.fast.fast_worker import Declined, finish_part, make_part, send
from feeder.loader.fast.received_part import Arrays, PartReceiver
from feeder.loader.fast.report_json import add_stages, error_from_json
from feeder.loader.fast.sample_maker import Work
from feeder.loader.fast.server_link import ServerLink
from feeder.loader.fast.servers import Servers
from feeder.loader.fast.task_board import Board, Part
from feeder.loader.fast.work_json import work_data
from feeder.loader.service_options import ServiceOptions
from feeder.loader.slots.image_slots import SlotView
from feeder.loader.workers.channel import Channel
from feeder.service.frames import HEARTBEAT_S, Frame, Kind

_LATE, _MOST_LATE_S, _LEAST_LIMIT_S = 3.0, 1.0, 0.05
_LOCAL_FIRST_S = 0.02  # idle local workers get so long to take a part first
_MOST_AT_ONCE = 2  # servers that are asked for one part
_PAUSE_MS = 2
_MOST_FAILURES = 3  # of one part, where only servers can make it
_BUSY_S = 2 * HEARTBEAT_S  # without a look at the sockets: silence does not count then


def answer_limit_s(usual_s: float, *, is_worker_free: bool) -> float:
    """Returns the time after which a server's answer to a part is late, and the part is made elsewhere.

    Args:
        usual_s: The time that its answers take, lately; 0 before the first one.
        is_worker_free: True if somebody here has nothing else to make.

    Returns:
        Three times the usual time, at most a second. If nobody is free, at most a second more than the usual time: a
        local worker would make the part in place of another one, and servers of slow parts would be of no use.
    """
    if not usual_s:
        return _MOST_LATE_S
    most_s = _MOST_LATE_S if is_worker_free else usual_s + _MOST_LATE_S
    return max(_LEAST_LIMIT_S, min(_LATE * usual_s, most_s))


@dataclass(eq=False)
class Claims:
    """Takes parts off the board that local workers do not take.

    Args:
        board: The task board.
        local_workers: Number of the workers that make parts here; 0 takes any part.
    """

    board: Board
    local_workers: int
    _seen: tuple[int, float] = field(default=(-1, 0.0), init=False)  # the oldest part that waits, and since when

    def take(self, row: int) -> Part | None:
        """Claims a part by a row; None if there is none. Lowers the event's count, so that no local worker wakes."""
        if self._are_left_to_local_workers():
            return None
        part = self.board.claim(row, fresh_only=self.local_workers > 0)
        with contextlib.suppress(BlockingIOError):
            if part is not None or not self.board.unclaimed():
                os.eventfd_read(self.board.event)
                if part is None and self.board.unclaimed():  # published meanwhile
                    os.eventfd_write(self.board.event, 1)
        return part

    def free_workers(self) -> int:
        """Returns the number of the local workers that would make another part now."""
        return self.board.idle(self.local_workers) - self.board.unclaimed()

    def _are_left_to_local_workers(self) -> bool:
        """Returns True if idle local workers are about to take all parts that wait."""
        if not self.local_workers:
            return False
        first, waiting = self.board.fresh()
        if waiting > self.board.idle(self.local_workers):
            return False
        now = time.monotonic()
        if self._seen[0] != first:
            self._seen = first, now
        return waiting > 0 and now - self._seen[1] < _LOCAL_FIRST_S


@dataclass(eq=False)
class _Asked:
    """A part that this relay has claimed, and the requests for it.

    Attributes:
        part: The part.
        row: The row that it was claimed by.
        view: Its rows of the slot.
        requests: The servers that were asked, with the numbers of the requests there; empty: it waits for one.
        since_s: Time of the last request.
        failures: Number of servers, or times, that it failed on.
        is_over: True once no answer is wanted any more.
        source: The server whose answer is received; None: none is.
        arrays: The memory that the answer is received in.
    """

    part: Part
    row: int
    view: SlotView
    requests: list[tuple[ServerLink, int]] = field(default_factory=list)
    since_s: float = 0.0
    failures: int = 0
    is_over: bool = False
    source: ServerLink | None = None
    arrays: Arrays = field(default_factory=list)


class Relay:
    """A relay, once it has what every worker has.

    Args:
        channel: To the trainer.
        board: The task board.
        rows: Its rows there.
        view_of: Returns a part's rows of its slot.
        work: The work, which the relay's own parts are made by.
        options: The service.
    """

    def __init__(
        self,
        channel: Channel,
        board: Board,
        rows: Sequence[int],
        view_of: Callable[[Part], SlotView],
        work: Work,
        options: ServiceOptions,
    ) -> None:
        self._channel = channel
        self._board = board
        self._view_of = view_of
        self._work = work
        self._options = options

        self._receiver = PartReceiver(work)
        self._servers = Servers(options, work_data(work), self._buffers)
        self._claims = Claims(board, 0 if options.only else options.local_workers)
        self._idle_rows = deque(rows)
        self._declined: list[int] = []  # rows of parts that were handed back, which the pool has not cleared yet
        self._asked: dict[int, _Asked] = {}
        self._poll = select.poll()
        self._polled = dict[int, int]()

        now = time.monotonic()
        self._next_s = self._looked_s = self._late_s = now
        self._answered_s = now  # when a server answered, or parts began to wait for one
        self._is_empty_handed = False
        work.meter = board.meter(rows[0])
        self._heartbeat = functools.partial(board.heartbeat, rows[0])
        self._heartbeat()

    def run(self) -> None:
        """Relays parts until the trainer closes its socket."""
        while self._channel.connection.fileno() not in (ready := self._wait()):
            self._run_once(ready)

    def _run_once(self, ready: dict[int, int]) -> None:
        """Handles answers, beats and late parts once, and claims further parts."""
        now = time.monotonic()
        if now - self._looked_s > _BUSY_S:
            self._servers.forgive()
            self._answered_s += now - self._looked_s
        self._looked_s = now

        answers = 0
        for answer in self._servers.serve(ready):
            self._handle_answer(*answer)
            answers += 1

        is_due = now >= self._next_s
        self._servers.look(ready, is_due=is_due)
        if is_due:
            self._next_s = now + HEARTBEAT_S
            self._heartbeat()
            self._board.service_cores = self._servers.cores

        has_lost = self._drop_lost()
        has_rows = self._reclaim_rows()
        # Mostly some bytes of a part have come, and there is nothing else to do.
        has_news = answers or is_due or has_lost or has_rows or self._board.event in ready
        if has_news or now >= self._late_s or self._is_empty_handed:
            self._see_to_late_parts()
            self._claim()
        self._servers.flush()

    def _wait(self) -> dict[int, int]:
        """Waits for something; returns the events by descriptor."""
        wanted = self._servers.polled() | {self._channel.connection.fileno(): select.POLLIN}
        now = time.monotonic()
        wait_s = min(self._next_s, self._late_s) - now if self._asked else self._next_s - now
        if self._wants_parts():
            if self._is_empty_handed and self._board.unclaimed():
                wait_s = min(wait_s, _PAUSE_MS / 1000)  # the event stays readable until a local worker has taken it
            else:
                wanted[self._board.event] = select.POLLIN
        if wanted != self._polled:
            for descriptor in self._polled.keys() - wanted.keys():
                self._poll.unregister(descriptor)
            for descriptor, events in wanted.items():
                self._poll.register(descriptor, events)
            self._polled = wanted
        return dict(self._poll.poll(max(0, int(wait_s * 1000) + 1)))

    # Claims.

    def _wants_parts(self) -> bool:
        """Returns True if another part may be claimed."""
        if not self._idle_rows:
            return False
        if self._servers.free() is not None:
            return True
        if self._servers.are_at_work:
            return False
        return self._is_overdue() if self._options.only else not self._options.local_workers

    def _is_overdue(self) -> bool:
        """Returns True if no server has answered for the time that a loader without local parts waits."""
        return time.monotonic() - self._answered_s > self._options.timeout_s

    def _reclaim_rows(self) -> bool:
        """Frees the rows of parts that the pool has given to others; returns True if there are any."""
        free = [row for row in self._declined if self._board.is_free(row)]
        self._declined = [row for row in self._declined if row not in free]
        self._idle_rows += free
        return bool(free)

    def _claim(self) -> None:
        """Claims parts for servers with credit left."""
        if not (self._asked or self._board.unclaimed()):
            self._answered_s = time.monotonic()
        self._is_empty_handed = False
        while self._wants_parts():
            row = self._idle_rows[0]
            part = self._claims.take(row)
            if part is None:
                self._is_empty_handed = True
                return
            self._idle_rows.popleft()
            asked = self._asked[part.number] = _Asked(part, row, self._view_of(part))
            link = self._servers.free()
            if link is not None:
                self._ask(asked, link)
            elif self._options.only:
                self._fail(asked)
            else:
                self._make_here(asked)
                return  # to look at the sockets

    # Requests and answers.

    def _ask(self, asked: _Asked, link: ServerLink) -> None:
        """Asks a server for a part."""
        numbers = [memoryview(each.view("uint8")) for each in asked.view.samples]  # type: ignore[arg-type]
        asked.requests.append((link, link.ask(asked, asked.part.epoch, numbers, asked.view.image_size)))
        asked.since_s = time.monotonic()
        self._late_s = min(self._late_s, asked.since_s + answer_limit_s(link.usual_s, is_worker_free=True))

    def _buffers(self, link: ServerLink, asked: _Asked, message: dict[str, Any]) -> list[memoryview] | None:
        """Returns the places that an answer is received into; None for one that is not wanted."""
        if asked.is_over or asked.source is not None:
            return None
        found = self._receiver.buffers(asked.view, message)
        if found is None:
            return [memoryview(b"")]  # the frame is refused: this is too short for it
        asked.source = link
        asked.arrays = found[1]
        return found[0]

    def _cancel(self, asked: _Asked) -> None:
        """Cancels the requests for a part, except each server's last one: its answer tells that the server works."""
        asked.is_over = True
        for link, number in asked.requests:
            if asked.source is link or len(link.sent) > 1:
                link.cancel(number)
        asked.requests = []
        self._forget_source(asked)

    def _forget_source(self, asked: _Asked) -> None:
        """Frees the memory that an answer was received in; another server's answer may come then."""
        self._receiver.release(asked.arrays)
        asked.source = None
        asked.arrays = []

    def _handle_answer(self, link: ServerLink, number: int, asked: _Asked, answer: Frame) -> None:
        """Ends a part by a server's answer, or forgets an answer that is not wanted any more."""
        self._answered_s = time.monotonic()
        if asked.is_over or asked.source not in (None, link):
            if answer.kind == Kind.RESULT and link.memory is not None:
                link.taken(number)
            asked.requests = [each for each in asked.requests if each != (link, number)]
            return

        asked.requests.remove((link, number))
        if answer.kind == Kind.FAILED:
            self._handle_failure(link, asked, answer)
            return

        try:
            report, stages = self._receiver.take(asked.view, answer, asked.arrays, link.memory)
            is_gone = link.memory is not None and not link.is_open()  # its memory may be another part's by now
            if not is_gone:
                add_stages(self._work.meter, stages)
        except ValueError as error:
            link.lost = f"answered what is none of the protocol: {error}"
            self._forget_source(asked)
            return
        if is_gone:
            link.lost = "is gone"
            self._forget_source(asked)
            return

        if link.memory is not None:
            link.taken(number)
        self._cancel(asked)
        self._finish(asked, report if report.has_news else None)

    def _handle_failure(self, link: ServerLink, asked: _Asked, answer: Frame) -> None:
        """Ends a part with a bad sample's error; gives a part that failed otherwise to others, if there are any."""
        error = error_from_json(answer.message)
        asked.failures += 1
        if error is not None:
            self._cancel(asked)
            self._finish(asked, error)
        elif not self._options.only:
            self._hand_back(asked)
        elif not asked.requests and asked.failures > _MOST_FAILURES:
            reason = str(answer.message.get("error"))[-500:]
            self._finish(asked, ServiceError(f"server {link.address[0]} can't make a part: {reason}"))

    def _drop_lost(self) -> bool:
        """Forgets servers that are gone, and the requests to them; returns True if there are such servers."""
        lost = self._servers.drop_lost()
        for link, parts in lost:
            for asked in parts:
                asked.requests = [each for each in asked.requests if each[0] is not link]
                if asked.source is link:
                    self._forget_source(asked)
        return bool(lost)

    def _see_to_late_parts(self) -> None:
        """Asks further servers for late parts, or hands the parts back; also those whose server is gone."""
        now = time.monotonic()
        self._late_s = now + HEARTBEAT_S
        for asked in list(self._asked.values()):
            if self._options.only:
                self._ask_further(asked, now)
            elif not asked.requests or self._is_late(asked, now):
                self._hand_back(asked)

    def _is_late(self, asked: _Asked, now: float) -> bool:
        """Returns True for a part that is unanswered for too long, whose server gets no others until it answers
        something; else notes when it may be."""
        link, _ = asked.requests[-1]
        limit_s = answer_limit_s(link.usual_s, is_worker_free=True)
        if now - asked.since_s >= limit_s and not self._is_worker_free():
            limit_s = answer_limit_s(link.usual_s, is_worker_free=False)
        if now - asked.since_s < limit_s:
            self._late_s = min(self._late_s, asked.since_s + limit_s)
            return False
        link.is_late = True
        return True

    def _is_worker_free(self) -> bool:
        """Returns True if there is a local worker for another part than those that were handed back."""
        return not self._options.only and self._claims.free_workers() > len(self._declined)

    def _ask_further(self, asked: _Asked, now: float) -> None:
        """Asks a server for a part that has none, or another one for a late part."""
        if self._is_overdue():
            self._cancel(asked)
            self._fail(asked)
        elif len(asked.requests) < _MOST_AT_ONCE:
            link = self._servers.free([link for link, _ in asked.requests])
            if link is not None and (not asked.requests or self._is_late(asked, now)):
                self._ask(asked, link)

    # Ends of parts.

    def _hand_back(self, asked: _Asked) -> None:
        """Gives a part back to the local workers, or makes it here if there is none."""
        self._cancel(asked)
        if not self._options.local_workers:
            self._make_here(asked)
            return
        del self._asked[asked.part.number]
        self._declined.append(asked.row)
        send(self._channel, asked.part.number, Declined(asked.row))
        os.eventfd_write(self._board.sent, 1)  # the trainer has to give it out again

    def _make_here(self, asked: _Asked) -> None:
        """Makes a part in this process."""
        del self._asked[asked.part.number]
        make_part(self._channel, self._board, asked.row, asked.part, asked.view, self._work, self._heartbeat)
        self._idle_rows.append(asked.row)

    def _fail(self, asked: _Asked) -> None:
        """Ends a part with the error that no server is there."""
        error = ServiceError(
            f"no server of the service {self._options.name!r} was there for {self._options.timeout_s:g} s: "
            f"{self._servers.problems()}. Start one with `feeder serve`, raise timeout=, or leave only=True out"
        )
        self._finish(asked, error)

    def _finish(self, asked: _Asked, message: Any) -> None:
        """Ends a part with its report, an error, or None; see :func:`finish_part`."""
        self._asked.pop(asked.part.number, None)
        if isinstance(message, Exception):  # else the part was counted where it was made
            self._work.meter.add_part(0)
        finish_part(self._channel, self._board, asked.row, asked.part, message)
        self._idle_rows.append(asked.row)
