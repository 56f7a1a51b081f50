"""The servers of an input service, as a relay sees them: which are there, and which one takes the next part."""

from __future__ import annotations

import select
import sys
import time
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from feeder.loader.fast.server_link import Place, ServerLink
from feeder.loader.fast.service_directory import Directory
from feeder.loader.service_options import ServiceOptions
from feeder.service.frames import Frame, peer_versions
from feeder.system.text import count, say

_RECONNECT_S = 1.0
_MOST_REASONS = 4
_PATIENCE_S = 10.0  # before it is said that there is no server


class Servers:
    """The connections to the servers of a service.

    Args:
        options: The service.
        work: The work, as JSON.
        place: See :class:`ServerLink`.
    """

    def __init__(self, options: ServiceOptions, work: bytes, place: Place) -> None:
        self._options = options
        self._work = work
        self._place = place
        self._directory = Directory(options)
        self._links: dict[tuple[str, int], ServerLink] = {}
        self._not_before: dict[tuple[str, int], float] = {}
        self._losses: dict[tuple[str, int], str] = {}
        self._told: set[str] = set()
        self._silent_since_s: float | None = time.monotonic()  # None: a server was there, or its lack was told

    @property
    def are_at_work(self) -> bool:
        """True if a server has accepted the work, and has no part that is late."""
        return any(link.credit and not link.is_late for link in self._links.values())

    @property
    def cores(self) -> int:
        """Number of the cores of the servers that have accepted the work."""
        return sum(link.cores for link in self._links.values() if link.credit)

    def polled(self) -> dict[int, int]:
        """Returns what to poll for: events by descriptor."""
        found = {link.connection.fileno(): link.events() for link in self._links.values()}
        if self._directory.descriptor is not None:
            found[self._directory.descriptor] = select.POLLIN
        return found

    def serve(self, ready: Mapping[int, int]) -> Iterator[tuple[ServerLink, int, Any, Frame]]:
        """Receives and sends what there is; yields whole answers to parts, each with link, request and owner.

        A server is heard once the answers of the one before were taken: two may answer the same part at once, and the
        first answer cancels the request to the other server.
        """
        for link in self._links.values():
            events = ready.get(link.connection.fileno(), 0)
            if events:
                for answer in link.serve(events):
                    yield link, *answer

    def look(self, ready: Mapping[int, int], *, is_due: bool) -> None:
        """Reads the directory of servers; every 250 ms connects to new ones, and sends heartbeats to the others."""
        if is_due or self._directory.descriptor in ready:
            self._directory.look()
        if not is_due:
            return
        now, token = time.monotonic(), self._directory.token
        for address in self._directory.servers:
            if address not in self._links and now >= self._not_before.get(address, 0.0):
                hello = {"token": token, "versions": peer_versions(), "job": self._options.job or "job"}
                self._links[address] = ServerLink(address, hello, self._work, self._place)
        for link in self._links.values():
            link.tick()

        if self._told or any(link.credit for link in self._links.values()):
            self._silent_since_s = None
        elif self._silent_since_s is not None and now - self._silent_since_s > _PATIENCE_S:
            # So that a mistyped name is not taken for a slow service.
            self._silent_since_s = None
            self._tell(f"no server makes parts for this job yet: {self.problems()}")

    def drop_lost(self) -> list[tuple[ServerLink, list[Any]]]:
        """Ends the connections that are of no more use; returns them with the owners of what is unanswered there."""
        lost = [(address, link) for address, link in self._links.items() if link.lost]
        for address, link in lost:
            del self._links[address]
            self._not_before[address] = time.monotonic() + _RECONNECT_S
            self._losses[address] = f"server {address[0]}:{address[1]} {link.lost}"
            link.close()
            if link.refusal:
                self._tell(self._losses[address])
        return [(link, [owner for owner, _ in link.sent.values()]) for _, link in lost]

    def free(self, other_than: Collection[ServerLink] = ()) -> ServerLink | None:
        """Returns the server that is likely to answer first, of those that take another part."""
        ready = [link for link in self._links.values() if link.is_ready and link not in other_than]
        return min(ready, key=lambda link: link.load, default=None)

    def flush(self) -> None:
        """Sends what fits."""
        for link in self._links.values():
            link.flush()

    def forgive(self) -> None:
        """Begins the servers' silence anew: this process was busy, and did not listen."""
        for link in self._links.values():
            link.heard_s = time.monotonic()

    def problems(self) -> str:
        """Returns what keeps the service from being of use, as far as it is known."""
        found = [self._directory.problem, *self._told]
        for (host, port), link in self._links.items():
            if not link.credit:
                found.append(f"server {host}:{port} has not opened the set yet")
            elif link.sent:
                found.append(f"server {host}:{port} has not answered {count(len(link.sent), 'part')}")
        found += [loss for address, loss in self._losses.items() if address not in self._links]
        return "; ".join(list(dict.fromkeys(filter(None, found)))[:_MOST_REASONS]) or "its servers do not answer"

    def _tell(self, text: str) -> None:
        """Prints to standard error, once, the reason why a server is of no use."""
        if text not in self._told:
            self._told.add(text)
            say(f"feeder: service {self._options.name!r}: {text}", file=sys.stderr)
