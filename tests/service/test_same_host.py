"""On the same host parts lie in the server's memory, which its clients can only read, and keep until they have them."""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import feeder
from feeder import transforms as T
from feeder.loader.fast.sample_maker import Work
from feeder.loader.fast.server_link import ServerLink
from feeder.loader.fast.work_json import work_to_json
from feeder.service.frames import CLIENT_LIMITS, Frame, Kind, Receiver, is_here, local_name, pack_frame
from feeder.system.mapping import map_other_memory
from tests.support.batches import check_same, copied_epoch
from tests.support.processes import wait_until
from tests.support.service import LocalPeer, ServiceServer

PIXELS = 3 * 16 * 16


def work_of(root: Path, seed: int = 0, size: int = 16) -> dict[str, Any]:
    dataset = feeder.ShardDataset(root / "set", transform=T.Compose([T.RandomResizedCrop(size)]))
    return work_to_json(Work(dataset.reader, dataset.recipe, "cpu", seed=seed))


def numbers_of(first: int, count: int) -> bytes:
    ids = np.arange(first, first + count)
    return np.stack([ids, ids, np.zeros(count, int)]).astype(np.int64).tobytes()


def maps_of(pid: int) -> list[str]:
    return [line for line in Path(f"/proc/{pid}/maps").read_text().splitlines() if "memfd:feeder-parts" in line]


@pytest.fixture
def peer(server: ServiceServer) -> Iterator[LocalPeer]:
    made = LocalPeer(server)
    yield made
    made.close()


@pytest.mark.parametrize("options", [(), ("--tcp-only",)])
def test_the_relay_reads_the_servers_memory_where_it_can(root: Path, tmp_path: Path, options: tuple[str, ...]) -> None:
    server = ServiceServer(tmp_path, root, *options)
    dataset = feeder.ShardDataset(root / "set", transform=T.Compose([T.RandomResizedCrop(16)]))
    only = feeder.DataLoader(dataset, batch_size=8, seed=0, service=feeder.Service(server.service, only=True))
    check_same(copied_epoch(only), copied_epoch(feeder.DataLoader(dataset, batch_size=8)))
    maps = maps_of(only.worker_pids()[-1])
    assert all(line.split()[1] == "r--s" for line in maps)
    assert len(maps) == (0 if options else 1)
    only.close()
    server.close()


def test_no_descriptor_goes_to_who_does_not_know_the_token(peer: LocalPeer) -> None:
    peer.hello(token="0" * 64)
    answer = peer.next()
    assert answer is not None
    assert answer.kind == Kind.REFUSED
    assert peer.next() is None
    assert peer.descriptors == []


def test_the_memory_can_only_be_read(peer: LocalPeer) -> None:
    peer.hello()
    welcome = peer.next()
    assert welcome is not None
    (descriptor,) = peer.descriptors
    assert fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY
    assert os.fstat(descriptor).st_mode & 0o222 == 0
    assert os.fstat(descriptor).st_size == welcome.message["memory_bytes"]


def test_a_part_stays_as_it_is_until_it_is_taken(root: Path, tmp_path: Path) -> None:
    server = ServiceServer(tmp_path, root, "--window", "0")
    peer = LocalPeer(server)
    peer.ask(work_of(root))
    memory = np.frombuffer(map_other_memory(peer.descriptors[0], os.fstat(peer.descriptors[0]).st_size), np.uint8)

    def pixels(number: int, first: int) -> tuple[list[int], bytes]:
        peer.send(Kind.PART, {"number": number, "epoch": 0}, numbers_of(first, 4))
        answer = peer.next()
        assert answer is not None
        assert (answer.kind, answer.message["number"]) == (Kind.RESULT, number)
        assert len(b"".join(answer.payload)) == answer.message["report"]
        offset, size = answer.message["places"][1]
        assert size == 4 * PIXELS
        return answer.message["places"][1], memory[offset : offset + size].tobytes()

    place, first = pixels(0, 0)
    for number in range(1, 6):  # which go elsewhere
        assert pixels(number, 4 * number)[0] != place
        peer.send(Kind.TAKEN, {"number": number})
    assert memory[place[0] : sum(place)].tobytes() == first
    peer.send(Kind.TAKEN, {"number": 0})
    again, other = pixels(6, 40)
    assert again == place
    assert other != first
    peer.close()
    server.close()


def test_a_job_gets_no_more_memory_than_its_share(root: Path, tmp_path: Path) -> None:
    """A server of one core has 256 MiB for parts, and these take 48 each: two fit into a half, and five into all."""
    with contextlib.closing(ServiceServer(tmp_path, root, "--window", "0", silence_s=600)) as server:
        greedy, other = LocalPeer(server), LocalPeer(server)
        greedy.ask(work_of(root, size=2048), job="greedy")
        other.ask(work_of(root), job="other")
        assert os.fstat(greedy.descriptors[0]).st_size == 256 << 20
        for number in range(3):
            greedy.send(Kind.PART, {"number": number, "epoch": 0}, numbers_of(4 * number, 4))
        assert [number_of(greedy.next()) for _ in range(2)] == [0, 1]
        other.send(Kind.PART, {"number": 0, "epoch": 0}, numbers_of(0, 4))
        assert number_of(other.next()) == 0
        jobs = server.status()["jobs"]
        assert (jobs["greedy"]["parts"], jobs["greedy"]["queue"], jobs["greedy"]["busy"]) == (2, 1, 0)
        greedy.send(Kind.TAKEN, {"number": 0})
        assert number_of(greedy.next()) == 2
        for each in (greedy, other):
            each.close()


def number_of(answer: Frame | None) -> Any:
    assert answer is not None
    assert answer.kind == Kind.RESULT, answer
    return answer.message["number"]


@pytest.mark.parametrize("number", [7, -1, "0", None])
def test_a_part_that_was_not_handed_over_can_not_be_taken(peer: LocalPeer, root: Path, number: Any) -> None:
    peer.ask(work_of(root))
    peer.send(Kind.TAKEN, {"number": number})
    assert peer.next() is None


@pytest.mark.slow
def test_who_keeps_a_part_for_too_long_loses_the_connection(server: ServiceServer, peer: LocalPeer, root: Path) -> None:
    before = server.status()["dropped"]
    peer.ask(work_of(root))
    peer.send(Kind.PART, {"number": 0, "epoch": 0}, numbers_of(0, 4))
    answer = peer.next()
    assert answer is not None
    while server.status()["dropped"] == before:
        with contextlib.suppress(OSError):  # it may be dropped since
            peer.send(Kind.HEARTBEAT, {})
    assert peer.next() is None


class FakeServer:
    """A server whose messages a test writes, at the other end of a link."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.link: ServerLink = ServerLink(self._listener.getsockname(), {"job": "test"}, b"{}", lambda *_: [])
        self.connection = self._listener.accept()[0]
        self.connection.settimeout(30)
        self.receiver = Receiver(self.connection, CLIENT_LIMITS)

    def next(self) -> Kind:
        while True:
            assert not self.link.lost
            self.serve()
            for frame in self.receiver.frames(1):
                return frame.kind

    def serve(self) -> None:
        self.link.serve(self.link.events())

    def send(self, message: dict[str, Any]) -> None:
        self.connection.sendall(pack_frame(Kind.WELCOME, message))
        wait_until(lambda: self._is_readable())

    def _is_readable(self) -> bool:
        with self.link.connection.dup() as copy:
            return len(copy.recv(1, socket.MSG_PEEK)) == 1

    def close(self) -> None:
        for each in (self.link, self.connection, self._listener):
            each.close()


@pytest.fixture
def fake() -> Iterator[FakeServer]:
    made = FakeServer()
    yield made
    made.close()


def test_where_the_socket_is_out_of_reach_it_is_tcp(fake: FakeServer) -> None:
    assert fake.next() == Kind.HELLO
    fake.send({"cores": 3})
    assert fake.next() == Kind.WORK
    assert not fake.link.lost
    assert fake.link.cores == 3
    assert fake.link.memory is None


def test_the_name_of_the_socket_can_not_be_told_without_the_token() -> None:
    names = [local_name(token, port) for token in ("one", "another") for port in (1, 2)]
    assert len({*names}) == 4
    assert len({len(name) for name in names}) == 1


@pytest.mark.parametrize("gives", ["nothing", "memory that may shrink", "another size"])
def test_memory_that_is_none_ends_the_link(gives: str) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(local_name(f"test {os.getpid()}", 1))
        listener.listen()
        hello = {"token": f"test {os.getpid()}", "job": "test"}
        link: ServerLink = ServerLink(("127.0.0.1", 1), hello, b"{}", lambda *_: [])
        connection, _ = listener.accept()
        made = os.memfd_create("test", os.MFD_ALLOW_SEALING)
        os.ftruncate(made, 4096)
        if gives == "another size":
            fcntl.fcntl(made, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
        with connection:
            message = pack_frame(Kind.WELCOME, {"cores": 1, "memory_bytes": 8192})
            socket.send_fds(connection, [message], [] if gives == "nothing" else [made])
            os.close(made)
            while not link.lost:
                link.serve(link.events() | select.POLLIN)
    assert "none of the protocol" in link.lost
    assert link.memory is None
    link.close()


def test_a_server_on_another_host_is_not_looked_for_here() -> None:
    """One of the same service here may have its port."""
    assert [is_here(host) for host in ("127.0.0.1", "localhost", "192.0.2.77")] == [True, True, False]
