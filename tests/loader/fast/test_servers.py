"""A relay's servers: which one of them gets the next part, and that a service without servers is no silent one."""

from __future__ import annotations

import json
import select
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from feeder.loader.fast import server_link, servers
from feeder.loader.fast.server_link import ServerLink
from feeder.loader.fast.servers import Servers
from feeder.loader.service_options import ServiceOptions
from feeder.service.frames import Kind
from tests.support.clock import Clock
from tests.support.fake_server import FakeServer
from tests.support.processes import wait_until


def test_the_lack_of_servers_is_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = Clock()
    monkeypatch.setattr(servers, "time", clock)
    one: Servers = Servers(ServiceOptions(f"file:{tmp_path}/mistyped"), b"", lambda link, owner, message: [])
    said = []
    for _ in range(20):
        one.look({}, is_due=True)
        said.append(capsys.readouterr().err)
        clock.now += 1.0
    assert [number for number, text in enumerate(said) if text] == [11]
    assert said[11].startswith(f"feeder: service 'file:{tmp_path}/mistyped': no server makes parts for this job yet: ")
    assert f"{tmp_path}/mistyped: No such file or directory" in said[11]


class Relay:
    """A relay's side of a service, and its servers.

    Args:
        folder: A folder for the service's file.
        clock: The relay's clock.
    """

    def __init__(self, folder: Path, clock: Clock) -> None:
        self._path, self._clock = folder / "service.json", clock
        self.servers: Servers = Servers(ServiceOptions(f"file:{self._path}"), b"{}", lambda link, owner, message: [])
        self.fakes: list[FakeServer] = []

    def meet(self, *credits: int) -> list[ServerLink]:
        """Makes servers with these credits; returns the links to those that take parts."""
        self.fakes = [FakeServer(credit) for credit in credits]
        self._path.write_text(json.dumps({"token": "token", "servers": [each.address for each in self.fakes]}))
        self.turn_until(lambda: self.servers.cores == sum(map(bool, credits)))
        found: dict[Any, ServerLink] = {}
        while (link := self.servers.free([*found.values()])) is not None:
            found[link.address] = link
        return [found[each.address] for each in self.fakes if each.address in found]

    def turn_until(self, condition: Callable[[], object]) -> None:
        """Takes and sends what there is, until a condition holds."""

        def turn() -> object:
            poll = select.poll()
            for descriptor, events in self.servers.polled().items():
                poll.register(descriptor, events)
            ready = dict(poll.poll(0))
            list(self.servers.serve(ready))
            self.servers.look(ready, is_due=True)
            for each in self.fakes:
                each.serve()
            self.servers.drop_lost()
            self.servers.flush()
            return condition()

        wait_until(turn)

    def has_part_made(self, link: ServerLink, seconds: float) -> None:
        """Has a server make a part, which takes so long."""
        (fake,) = (each for each in self.fakes if each.address == link.address)
        number = ask(link)
        self._clock.now += seconds
        self.turn_until(fake.answer)
        self.turn_until(lambda: number not in link.sent)

    def close(self) -> None:
        for each in self.fakes:
            each.close()
        self.fakes = []
        self.turn_until(lambda: not self.servers.cores)


def ask(link: ServerLink) -> int:
    return link.ask("", 0, [memoryview(bytes(8))] * 3)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    for module in (server_link, servers):
        monkeypatch.setattr(module, "time", made)
    return made


@pytest.fixture
def relay(tmp_path: Path, clock: Clock) -> Iterator[Relay]:
    made = Relay(tmp_path, clock)
    yield made
    made.close()


def test_parts_go_to_the_servers_in_the_ratio_of_their_credits(relay: Relay) -> None:
    small, large = relay.meet(2, 4)
    for count in range(1, 7):
        link = relay.servers.free()
        assert link is not None
        ask(link)
        if count == 3:
            assert (len(small.sent), len(large.sent)) == (1, 2)
    assert (len(small.sent), len(large.sent)) == (2, 4)
    assert relay.servers.free() is None


def test_of_servers_with_as_many_parts_the_one_that_answers_sooner_gets_the_next(relay: Relay) -> None:
    links = relay.meet(2, 2, 2)
    for link, seconds in zip(links, (0.3, 0.1, 0.2), strict=True):
        relay.has_part_made(link, seconds)
    for expected in (1, 2, 0, 1, 2, 0):
        assert relay.servers.free() is links[expected]
        ask(links[expected])
    assert relay.servers.free() is None


def test_a_server_that_has_not_answered_yet_is_tried_before_those_with_as_many_parts(relay: Relay) -> None:
    first, second = relay.meet(2, 2)
    relay.has_part_made(first, 0.001)
    assert relay.servers.free() is second
    ask(second)
    assert relay.servers.free() is first


def test_one_answer_that_hung_does_not_make_a_fast_server_a_slow_one(relay: Relay) -> None:
    fast, slow = relay.meet(2, 2)
    for link, seconds in ((fast, 0.01), (slow, 0.05), (fast, 0.8)):
        relay.has_part_made(link, seconds)
    assert relay.servers.free() is fast


def lose_by_end(relay: Relay, clock: Clock, link: ServerLink) -> None:
    relay.fakes.pop(0).close()
    relay.turn_until(lambda: link.lost)


def lose_by_silence(relay: Relay, clock: Clock, link: ServerLink) -> None:
    others, heard_s = relay.fakes[1:], clock.now

    def is_lost() -> bool:
        for each in others:
            each.say(Kind.HEARTBEAT, {})
        clock.now += 0.001
        return bool(link.lost)

    relay.turn_until(is_lost)
    assert clock.now - heard_s >= server_link.SILENCE_S


def hold_a_part_for_too_long(relay: Relay, clock: Clock, link: ServerLink) -> None:
    ask(link)
    link.is_late = True


def fill(relay: Relay, clock: Clock, link: ServerLink) -> None:
    for _ in range(4):
        ask(link)


Fault = Callable[[Relay, Clock, ServerLink], None]


@pytest.mark.parametrize("fault", [lose_by_end, lose_by_silence, hold_a_part_for_too_long, fill])
def test_no_part_goes_to_a_server_that_will_not_make_it_soon(relay: Relay, clock: Clock, fault: Fault) -> None:
    link, other = relay.meet(4, 2)
    ask(other)
    assert relay.servers.free() is link
    fault(relay, clock, link)
    assert relay.servers.free() is other
    assert relay.servers.free([other]) is None
    ask(other)
    assert relay.servers.free() is None


def test_a_server_that_was_late_gets_parts_again_once_it_answers(relay: Relay) -> None:
    (link,) = relay.meet(4)
    ask(link)
    link.is_late = True
    assert relay.servers.free() is None
    relay.turn_until(relay.fakes[0].answer)
    relay.turn_until(lambda: not link.sent)
    assert relay.servers.free() is link


def test_no_part_goes_to_a_server_that_has_not_opened_the_set(relay: Relay) -> None:
    (link,) = relay.meet(0, 1)
    assert relay.servers.free() is link
    ask(link)
    assert relay.servers.free() is None
