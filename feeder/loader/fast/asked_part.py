"""A part that a relay has claimed, and the requests for it to servers."""

from __future__ import annotations

from dataclasses import dataclass, field

from feeder.loader.fast.received_part import Arrays, Received
from feeder.loader.fast.server_link import ServerLink
from feeder.loader.fast.task_board import Part
from feeder.loader.slots.image_slots import SlotView

__all__ = ["AskedPart", "PartRequest", "answer_limit_s"]

_LATE, _MOST_LATE_S, _LEAST_LIMIT_S = 3.0, 1.0, 0.05


@dataclass(eq=False)
class AskedPart:
    """A part that was claimed.

    Attributes:
        part: The part.
        row: The row that it was claimed by.
        view: Its rows of the slot.
        requests: The servers that were asked, with the numbers of the requests there; empty: it waits for one.
        since_s: Time of the last request.
        failures: Number of servers, or times, that it failed on.
        is_back: True once it is another's: it was handed back to the pool, or made here.
        is_on_board: True once the pool has put it on the board again.
        received: The answer, where it came after that.
    """

    part: Part
    row: int
    view: SlotView
    requests: list[tuple[ServerLink[PartRequest], int]] = field(default_factory=list)
    since_s: float = 0.0
    failures: int = 0
    is_back: bool = False
    is_on_board: bool = False
    received: Received | None = None


@dataclass(eq=False)
class PartRequest:
    """A request for a part to one server.

    Attributes:
        asked: The part.
        is_apart: True if the answer is received beside the slot, whose rows may be another's by then.
        arrays: The memory that it is received in, once it comes.
    """

    asked: AskedPart
    is_apart: bool = False
    arrays: Arrays = field(default_factory=list)


def answer_limit_s(usual_s: float, *, is_worker_free: bool) -> float:
    """Returns the time after which a server's answer to a part is late, and the part is made elsewhere, too.

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
