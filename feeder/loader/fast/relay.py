"""A relay: a worker that has parts made by the servers of an input service, and receives them into their slots.

Note [Relays]
    To the pool a relay is a worker that claims several parts at a time, each by a row of its own of the task board. So
    order, slots, counts, and what happens when it dies or hangs are those of any worker.
    It claims a part only for a server that has credit left, and only if no local worker is idle. It alone writes the
    slot of a part that it has claimed. A part that is unanswered for too long it hands back to the pool by a message,
    after it has made sure that nothing more of the answer goes into the slot; then a local worker may make it. The pool
    puts the part back on the board and clears its row, which is the relay's sign that the row is free again. An answer
    that comes before a worker has claimed the part again is not lost: the relay claims it, and is done. A loader
    without local workers has the relay make such parts by itself, and one that makes none has another server asked,
    too; the first answer counts.
    All pixels that can be are sent as uint8; where that leaves an affine map to do, the relay does it.
"""

from __future__ import annotations

import functools
import os
import select
import socket
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from feeder.errors import ServiceError
from feeder.loader.fast.asked_part import AskedPart, PartRequest, answer_limit_s
from feeder.loader.fast.fast_worker import Declined, finish_part, make_part, send_message
from feeder.loader.fast.part_answer import error_from_json
from feeder.loader.fast.part_report import PartReport
from feeder.loader.fast.received_part import PartReceiver, Received
from feeder.loader.fast.relay_claims import Claims
from feeder.loader.fast.sample_maker import Work
from feeder.loader.fast.server_link import ServerLink
from feeder.loader.fast.servers import Servers
from feeder.loader.fast.task_board import Board, Part
from feeder.loader.fast.work_json import work_data
from feeder.loader.service_options import ServiceOptions
from feeder.loader.slots.image_slots import SlotView
from feeder.service.frames import HEARTBEAT_S, Frame, Kind

__all__ = ["relay_loop"]

_MOST_AT_ONCE = 2  # servers that are asked for one part
_MOST_RETURNED = 16  # parts that were handed back, and may be answered still
_PAUSE_MS = 2
_MOST_FAILURES = 3  # of one part, where no other way to make it is left
_BUSY_S = 2 * HEARTBEAT_S  # without a look at the sockets: silence does not count then


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
        self._channel = channel
        self._board = board
        self._view_of = view_of
        self._work = work
        self._options = options

        self._receiver = PartReceiver(work)
        self._servers: Servers[PartRequest] = Servers(options, work_data(work), self._buffers)
        self._claims = Claims(board, 0 if options.only else options.local_workers)
        self._idle_rows = deque(rows)
        self._asked: dict[int, AskedPart] = {}
        self._returned: dict[int, AskedPart] = {}
        self._poll = select.poll()
        self._polled = dict[int, int]()

        now = time.monotonic()
        self._next_s = self._looked_s = self._late_s = now
        self._answered_s = now  # when a server answered, or parts began to wait for one
        self._is_empty_handed = False
        work.meter = board.meter(rows[0])
        self._sums = board.sums(rows[0])
        self._heartbeat = functools.partial(board.heartbeat, rows[0])
        self._heartbeat()

    def turn(self) -> bool:
        """Waits for something, and does what there is to do; returns False once the trainer is gone."""
        ready = self._wait()
        if self._channel.fileno() in ready:
            return False
        now = time.monotonic()
        if now - self._looked_s > _BUSY_S:
            self._servers.forgive()
            self._answered_s += now - self._looked_s
        self._looked_s = now
        answers = 0
        for answer in self._servers.serve(ready):
            self._take(*answer)
            answers += 1
        is_due = now >= self._next_s
        self._servers.look(ready, is_due=is_due)
        if is_due:
            self._next_s = now + HEARTBEAT_S
            self._heartbeat()
            self._board.service_cores = self._servers.cores
        has_lost = self._drop_lost()
        # Most turns receive some bytes of a part, and there is nothing else to do.
        if answers or is_due or has_lost or now >= self._late_s or self._board.event in ready or self._is_empty_handed:
            self._see_to_late_parts()
            self._take_again(is_due=is_due)
            self._claim()
        self._servers.flush()
        return True

    def _wait(self) -> dict[int, int]:
        """Waits for something; returns the events by descriptor."""
        wanted = self._servers.polled() | {self._channel.fileno(): select.POLLIN}
        now = time.monotonic()
        wait_s = min(self._next_s, self._late_s) - now if self._asked else self._next_s - now
        if self._wants_parts():
            if self._is_empty_handed and self._board.pending():
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

    def _claim(self) -> None:
        """Claims parts for servers with credit left."""
        if not (self._asked or self._board.pending()):
            self._answered_s = time.monotonic()
        self._is_empty_handed = False
        while self._wants_parts():
            row = self._idle_rows[0]
            part = self._claims.take(row)
            if part is None:
                self._is_empty_handed = True
                return
            self._idle_rows.popleft()
            asked = self._asked[part.number] = AskedPart(part, row, self._view_of(part))
            link = self._servers.free()
            if link is not None:
                self._ask(asked, link)
            elif self._options.only:
                self._fail(asked)
            else:
                self._make_here(asked)
                return  # to look at the sockets

    # Requests and answers.

    def _ask(self, asked: AskedPart, link: ServerLink[PartRequest]) -> None:
        request = PartRequest(asked, is_apart=bool(asked.requests))
        numbers = [memoryview(each.view("uint8")) for each in asked.view.samples]  # type: ignore[arg-type]
        asked.requests.append((link, link.ask(request, asked.part.epoch, numbers, asked.view.image_size)))
        asked.since_s = time.monotonic()
        self._late_s = min(self._late_s, asked.since_s + answer_limit_s(link.usual_s, is_worker_free=True))

    def _cancel(self, asked: AskedPart) -> None:
        """Takes back all requests for a part."""
        for link, number in asked.requests:
            self._receiver.release(link.cancel(number).arrays)
        asked.requests = []

    def _buffers(self, request: PartRequest, message: dict[str, Any]) -> list[memoryview]:
        """Returns the places that an answer is received into."""
        found = self._receiver.buffers(request.asked.view, message, apart=request.is_apart)
        if found is None:
            return [memoryview(b"")]  # which is refused, as it is too short
        request.arrays = found[1]
        return found[0]

    def _take(self, link: ServerLink[PartRequest], number: int, request: PartRequest, answer: Frame) -> None:
        """Takes a server's answer to a part."""
        asked = request.asked
        asked.requests.remove((link, number))
        self._answered_s = time.monotonic()
        if answer.kind == Kind.FAILED:
            self._take_failure(link, asked, answer)
            return
        try:
            received = self._receiver.received(asked.view, answer, request.arrays, link.memory)
        except ValueError as error:
            link.lost = f"answered what is none of the protocol: {error}"
            return
        if asked.is_back:
            received = received.copy() if link.memory is not None else received
        else:
            self._receiver.finish(asked.view, received)
        if link.memory is not None:
            if not link.is_open():  # its memory may be another part's by now
                link.lost = "is gone"
                return
            link.taken(number)
        if not asked.is_back:
            self._cancel(asked)
            self._complete(asked, received)
        elif self._returned.get(asked.part.number) is asked:
            asked.received = received
        else:
            self._receiver.release(received.arrays)

    def _take_failure(self, link: ServerLink[PartRequest], asked: AskedPart, answer: Frame) -> None:
        if asked.is_back:
            return  # a local worker finds out by itself
        error = error_from_json(answer.message)
        asked.failures += 1
        if error is not None:
            self._cancel(asked)
            self._finish(asked, PartReport(), error)
        elif not self._options.only:
            self._cancel(asked)
            self._hand_back(asked)
        elif not asked.requests and asked.failures > _MOST_FAILURES:
            reason = str(answer.message.get("error"))[-500:]
            self._finish(asked, PartReport(), ServiceError(f"server {link.address[0]} can't make a part: {reason}"))

    def _drop_lost(self) -> bool:
        """Has the parts of servers that are gone made otherwise; returns True if there are such servers."""
        lost = self._servers.drop_lost()
        for link, requests in lost:
            for request in requests:
                asked = request.asked
                asked.requests = [each for each in asked.requests if each[0] is not link]
                self._receiver.release(request.arrays)
        return bool(lost)

    def _see_to_late_parts(self) -> None:
        """Has unanswered parts made otherwise, too, and those whose server is gone."""
        now = time.monotonic()
        self._late_s = now + HEARTBEAT_S
        for asked in list(self._asked.values()):
            if self._options.only:
                self._ask_further(asked, now)
            elif not asked.requests or self._is_late(asked, now):
                self._hand_back(asked)

    def _is_late(self, asked: AskedPart, now: float) -> bool:
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
        return not self._options.only and self._claims.free_workers() > len(self._returned)

    def _ask_further(self, asked: AskedPart, now: float) -> None:
        """Asks a server for a part that has none, or another one for a late part."""
        if self._is_overdue():
            self._cancel(asked)
            self._fail(asked)
        elif len(asked.requests) < _MOST_AT_ONCE:
            link = self._servers.free([link for link, _ in asked.requests])
            if link is not None and (not asked.requests or self._is_late(asked, now)):
                self._ask(asked, link)

    # Ends of parts.

    def _hand_back(self, asked: AskedPart) -> None:
        """Has a part made by a local worker, or here if there is none."""
        asked.is_back = True
        if any(link.is_receiving(number) for link, number in asked.requests):
            self._cancel(asked)
        for link, number in asked.requests:
            link.owner(number).is_apart = True
        if not self._options.local_workers:
            self._let_go(asked)
            self._make_here(asked)
            return
        del self._asked[asked.part.number]
        if len(self._returned) >= _MOST_RETURNED:
            self._cancel(asked)
        self._returned[asked.part.number] = asked
        send_message(self._channel, asked.part.number, Declined(asked.row), self._board)
        os.eventfd_write(self._board.sent, 1)  # the trainer has to give it out again

    def _take_again(self, *, is_due: bool) -> None:
        """Claims parts that were handed back, and answered before a worker had claimed them; forgets the others."""
        for asked in self._returned.values():
            if not asked.is_on_board and self._board.is_free(asked.row):
                asked.is_on_board = True
                self._idle_rows.append(asked.row)
        for number, asked in list(self._returned.items()):
            if not asked.is_on_board:
                continue
            if asked.received is not None and self._idle_rows:
                part = self._board.claim_again(self._idle_rows[0], number)
                if part is not None:
                    del self._returned[number]
                    asked.row = self._idle_rows.popleft()
                    self._receiver.finish(asked.view, asked.received)
                    self._complete(asked, asked.received)
                    continue
            if not asked.requests or is_due:
                self._forget_if_claimed(asked)

    def _forget_if_claimed(self, asked: AskedPart) -> None:
        if (not asked.requests and asked.received is None) or not self._board.waits_again(asked.part.number):
            del self._returned[asked.part.number]
            self._let_go(asked)
            if asked.received is not None:
                self._receiver.release(asked.received.arrays)

    def _let_go(self, asked: AskedPart) -> None:
        """Takes back the requests for a part that is another's by now, but for the last one of each server, whose
        answer tells that it is at work again."""
        for link, number in list(asked.requests):
            if len(link.sent) > 1:
                asked.requests.remove((link, number))
                self._receiver.release(link.cancel(number).arrays)

    def _make_here(self, asked: AskedPart) -> None:
        del self._asked[asked.part.number]
        make_part(self._channel, self._board, asked.row, asked.part, asked.view, self._work, self._heartbeat)
        self._idle_rows.append(asked.row)

    def _fail(self, asked: AskedPart) -> None:
        error = ServiceError(
            f"no server of the service {self._options.name!r} was there for {self._options.timeout_s:g} s: "
            f"{self._servers.problems()}. Start one with `feeder serve`, raise timeout=, or leave only=True out"
        )
        self._finish(asked, PartReport(), error)

    def _complete(self, asked: AskedPart, received: Received) -> None:
        self._receiver.release(received.arrays)
        report = received.report
        self._finish(asked, report, report if report.has_news else None)

    def _finish(self, asked: AskedPart, report: PartReport, message: Any) -> None:
        self._asked.pop(asked.part.number, None)
        report.count(self._sums, report.read_ns + report.decode_ns)
        finish_part(self._channel, self._board, asked.row, asked.part, message)
        self._idle_rows.append(asked.row)
