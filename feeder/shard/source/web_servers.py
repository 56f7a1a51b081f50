"""The servers of a manifest's URLs as all threads that read them see them: who answers, and who is to be left alone.

Note [Whose fault]
A URL that fails again and again may have a fault of its own, or its server has one, or the network. The first rejects
the row; the others pass, and must not. So a URL that its server has answered before is asked again: if it is answered
now, the fault is the other URL's. A server that has never answered is judged by those that have, as lists of images
name many servers that are gone. If nobody answers, it is waited, and in the end the run ends, to be started again.
"""

from __future__ import annotations

import email.utils
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from feeder.errors import FeederError, SourceError

__all__ = ["PassingError", "Place", "Servers", "asked_pause_s"]

FIRST_PAUSE_S, LAST_PAUSE_S = 0.25, 15.0

Place = tuple[str, int]  # host and port


class PassingError(Exception):
    """A fault that may be over at the next attempt.

    Attributes:
        is_busy: True if the server asks to be left alone for a while.
        is_reached: False if there is no connection to the server.
        pause_s: Seconds for which it asks to be left alone; 0: it does not say.
        place: The server.
    """

    def __init__(
        self,
        reason: str,
        *,
        is_busy: bool = False,
        is_reached: bool = True,
        pause_s: float = 0.0,
        place: Place = ("", 0),
    ) -> None:
        super().__init__(reason)
        self.is_busy, self.is_reached, self.pause_s, self.place = is_busy, is_reached, pause_s, place


@dataclass
class _Server:
    """A server.

    Attributes:
        url: A URL that it has answered; empty: none yet.
        answered: Time of its last answer.
        failing_from: Time of the first failure since then; None: there was none.
        rests_until: Time before which nobody asks it.
    """

    url: str = ""
    answered: float = 0.0
    failing_from: float | None = None
    rests_until: float = 0.0


class Servers:
    """Servers, and what is known of them. Several threads may use one.

    Args:
        timeout_s: Seconds without an answer after which the run ends.
        patience_s: Seconds after which a URL that fails is rejected while others are answered.
    """

    def __init__(self, timeout_s: float, patience_s: float) -> None:
        self._timeout_s, self._patience_s = timeout_s, min(patience_s, timeout_s)
        self._servers: dict[Place, _Server] = {}
        self._lock = threading.Lock()
        self._ended = threading.Event()

    def end(self) -> None:
        """Ends all waits, by an error."""
        self._ended.set()

    def answered(self, place: Place, url: str) -> None:
        """Notes that a server has answered a URL."""
        with self._lock:
            server = self._servers.setdefault(place, _Server())
            server.url, server.answered, server.failing_from = url, time.monotonic(), None

    def wait(self, place: Place) -> None:
        """Returns when a server may be asked."""
        with self._lock:
            server = self._servers.get(place)
            until = server.rests_until if server else 0.0
        self.pause(until - time.monotonic())

    def pause(self, seconds: float) -> None:
        """Waits, or raises SourceError once the waits have ended."""
        if self._ended.wait(max(0.0, seconds)):
            raise SourceError("the images behind URLs are not read any more")

    def failed(self, shown: str, began: float, fault: PassingError, ask: Callable[[str], object]) -> bool:
        """Decides about a URL that has failed; see Note [Whose fault].

        Args:
            shown: The URL, for messages.
            began: Time at which it was asked first.
            fault: The fault.
            ask: Asks a URL; raises :class:`PassingError` if there is no answer.

        Returns:
            True after a pause if the fault may be others', False if it is its own.

        Raises:
            SourceError: if nobody has answered for too long.
        """
        now = time.monotonic()
        with self._lock:
            server = self._servers.setdefault(fault.place, _Server())
            server.failing_from = now if server.failing_from is None else server.failing_from
            silent_s, waited_s = now - server.failing_from, now - began
            known = max(self._servers.values(), key=lambda each: each.answered) if not server.url else server
        if not server.url:
            waited_s = max(waited_s, silent_s)
        is_patient = fault.is_busy or (not fault.is_reached and bool(server.url))
        if waited_s >= (self._timeout_s if is_patient else self._patience_s) and self._answers(known, now, ask):
            return False
        if waited_s >= (self._timeout_s if known.url else self._patience_s):
            raise SourceError(
                f"{shown}: {fault}; for {waited_s:.0f} s no other URL is answered, too: check the network and the "
                "server, then run the same command again"
            )
        pause_s = fault.pause_s or min(LAST_PAUSE_S, max(FIRST_PAUSE_S, silent_s / 4))
        pause_s = min(pause_s, max(FIRST_PAUSE_S, self._timeout_s - waited_s))
        if fault.is_busy or not fault.is_reached:
            with self._lock:
                server.rests_until = max(server.rests_until, now + pause_s)
        self.pause(pause_s * random.uniform(1, 1.25))
        return True

    def _answers(self, server: _Server, since: float, ask: Callable[[str], object]) -> bool:
        """Returns True if a server has answered since a time, or answers now."""
        if server.url and server.answered < since:
            try:
                ask(server.url)
            except PassingError:
                return False
            except FeederError:  # it is an answer
                pass
        return bool(server.url)


def asked_pause_s(retry_after: str) -> float:
    """Returns the seconds for which a ``Retry-After`` header asks to be left alone; 0 for one that does not say."""
    if retry_after.isdecimal():
        return float(retry_after)
    try:
        return max(0.0, email.utils.parsedate_to_datetime(retry_after).timestamp() - time.time())
    except ValueError:
        return 0.0
