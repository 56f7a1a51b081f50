"""A server takes any requests that keep the protocol's rules, and ends connections alone for those that break them."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import struct
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

import feeder
from feeder import transforms as T
from feeder.dataset.extras import SourceNumber
from feeder.dataset.joined_reader import JoinedReader
from feeder.dataset.subset_reader import SubsetReader
from feeder.loader.fast.mixed_work import MixedWork
from feeder.loader.fast.sample_maker import Work
from feeder.loader.fast.work_json import work_to_json
from feeder.service.frames import CLIENT_LIMITS, HEAD, Kind, peer_versions
from tests.support.service import LocalPeer, Peer, ServiceServer
from tests.support.service_session import Session, read_to_end, request

MESSAGES = int(os.environ.get("FEEDER_FUZZ_MESSAGES", "8000"))
_ROW = bytes(24)


def works_of(root: Path) -> dict[str, tuple[Any, list[list[int] | None]]]:
    """Works by name, each with the sizes of images that its parts may have: also some that the server can't make."""
    found: dict[str, tuple[Any, list[list[int] | None]]] = {}
    for seed in range(3):
        dataset = feeder.ShardDataset(root / "set", transform=T.Compose([T.RandomResizedCrop(16)]))
        found[f"seed {seed}"] = work_to_json(Work(dataset.reader, dataset.recipe, "cpu", seed=seed)), [None]
    names = ("a", "b")
    joined = JoinedReader([SubsetReader(dataset.reader, np.arange(32) + first) for first in (0, 32)])
    parts = tuple(Work(reader, dataset.recipe, "cpu") for reader in joined.readers)
    mixed = MixedWork(joined, dataset.recipe, "cpu", (SourceNumber(),), names=names, works=parts)
    found["mixture"] = work_to_json(mixed), [None]
    dataset = feeder.ShardDataset(root / "set", transform=T.Compose([T.Resize(12)]))
    padded = Work(dataset.reader, dataset.recipe, "cpu", pad=feeder.PadToBatch(4), largest=(16, 16))
    found["padded"] = work_to_json(padded), [[12, 16], [16, 16], [4, 8], [1 << 15, 1 << 15]]
    return found


def broken(draw: random.Random, session: Session, which: int) -> bytes:
    """A frame that must end a session; ``which`` chooses among the rules."""
    known, small = draw.choice(list(CLIENT_LIMITS)), draw.choice([each for each in CLIENT_LIMITS if each != Kind.WORK])
    most = CLIENT_LIMITS[known][0]
    number: Any = draw.choice((-1, 1 << 62, True, 1.0, "1", None, [], {}))
    part = {"number": 1 << 61, "epoch": 0}
    frames = (
        request(Kind.HELLO, {"token": "", "versions": {}, "job": "fuzz"}),
        request(Kind.WORK, {}, b"{}"),
        request(Kind.TAKEN, {"number": draw.choice((1 << 61, number)) if session.is_local else 0}),
        request(Kind.CANCEL, draw.choice(({}, {"number": number}))),
        request(Kind.PART, part | {"number": number}, _ROW),
        request(Kind.PART, part | {"number": draw.choice(session.held or [-1])}, _ROW),
        request(Kind.PART, part | {"epoch": draw.choice((number, 1 << 32))}, _ROW),
        request(Kind.PART, part, draw.randbytes(draw.choice((0, 1, 23, 25)))),
        request(Kind.PART, part | {"size": draw.choice(([0, 1], [1], [1.5, 2], "x", 3, {}, [1 << 20, 1]))}, _ROW),
        request(draw.choice((Kind.HEARTBEAT, Kind.STATUS)), draw.choice(([], None, 1, "x", [{}]))),
        HEAD.pack(b"fd", known, most, 0) + draw.choice((b"[", b'{"', b"\xff")) * (most // 2) + b"}" * (most // 2),
        HEAD.pack(b"fd", known, most + 1, 0) + b"{}".rjust(most + 1),
        request(small, {}, bytes(CLIENT_LIMITS[small][1] + 1)),
        HEAD.pack(b"fd", draw.choice([*set(range(256)) - set(CLIENT_LIMITS)]), 2, 0) + b"{}",
        HEAD.pack(draw.choice((b"df", b"\0\0", b"fD")), Kind.HEARTBEAT, 2, 0) + b"{}",
    )
    return frames[which % len(frames)]


def mutated(draw: random.Random, data: bytes) -> bytes:
    """A frame of which some bytes are others, missing or more."""
    at = draw.randrange(len(data)) if draw.random() < 0.5 else draw.randrange(min(len(data), HEAD.size + 40))
    return data[:at] + draw.randbytes(draw.randrange(8)) + data[at + draw.randrange(8) :]


def end(peer: Peer, how: str) -> None:
    """Ends a connection: by a reset, or once the server has ended it, too, so that it has taken what was sent."""
    if how == "reset":
        linger = struct.pack("ii", 1, 0)
        peer.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    else:
        with contextlib.suppress(OSError):  # the server may be faster
            peer.connection.shutdown(socket.SHUT_WR)
        read_to_end(peer.connection)
    peer.close()


def check_unauthenticated(draw: random.Random, peer: Peer, server: ServiceServer) -> bool:
    """Fails if a client gets anything without the token; returns True for one that has broken the rules."""
    hello = {"token": server.token, "versions": peer_versions(), "job": "unauthenticated"}
    token = draw.choice(("", "x", server.token[:-1], server.token + "0", "\ud7ff"))
    kind = draw.choice([each for each in CLIENT_LIMITS if each != Kind.HELLO])
    no_hello: dict[str, Any] = draw.choice(({"token": None}, {"token": 1}, {"job": ""}, {"job": []}, {"job": "\ud800"}))
    what, data = draw.choice(
        (
            ("refused", request(Kind.HELLO, hello | {"token": token})),
            ("refused", request(Kind.HELLO, hello | {"versions": draw.choice(({}, None, {"feeder": "0"}))})),
            ("ended", request(kind, {"number": 0, "epoch": 0}, _ROW if CLIENT_LIMITS[kind][1] else b"")),
            ("ended", request(Kind.HELLO, draw.choice(([], None, hello | no_hello)))),
            ("ended", draw.randbytes(draw.randrange(HEAD.size, 200))),
            ("anything", mutated(draw, request(Kind.HELLO, hello))),
        )
    )
    if what == "anything":
        peer.connection.sendall(data)
        end(peer, draw.choice(("reset", "orderly")))
        return False
    peer.connection.sendall(data + request(Kind.HELLO, hello))  # which is too late
    answer = peer.next()
    assert (answer.kind if answer else None) == (Kind.REFUSED if what == "refused" else None), data
    assert answer is None or peer.next() is None
    peer.close()
    return what == "ended"


def test_random_messages_cost_connections_and_never_a_server(server: ServiceServer, root: Path) -> None:
    """FEEDER_FUZZ_MESSAGES is the number of frames behind the token that the server takes: a million is a campaign.

    A connection keeps the rules up to its last frame, and until then it has to live; one in four has no token.
    """
    draw, works, arrays = random.Random(0), works_of(root), dict[tuple[str, str], bytes]()
    sent, ways, unauthenticated = Counter[Kind](), Counter[bool](), Counter[bool]()
    before, lasts, others, faults = server.status(), 0, 0, 0
    while sent.total() < MESSAGES:
        is_local = draw.random() < 0.5
        peer = LocalPeer(server) if is_local else Peer(server)
        if draw.random() < 0.25:
            faults += check_unauthenticated(draw, peer, server)
            unauthenticated[is_local] += 1
            continue
        name = draw.choice(list(works))
        work, sizes = works[name]
        peer.ask(work, job=draw.choice(("fuzz", "fuzz 2")))
        session = Session(peer, name, sizes, draw, arrays)
        for _ in range(draw.randrange(1, 5)):
            session.talk(draw.randrange(20))
        sent += session.sent + Counter([Kind.WORK])
        ways[is_local] += session.sent.total()
        last = draw.choice(("broken", "broken", "broken", "mutated", "mutated", "cut", "twice", "none"))
        if last == "broken":
            data = broken(draw, session, lasts)
            with contextlib.suppress(ConnectionError):  # the server may end it before it has all
                peer.connection.sendall(data + request(Kind.STATUS, {}))
            assert Kind.STATUS not in [frame.kind for frame in iter(peer.next, None)], data[:200]
            peer.close()
            lasts, faults = lasts + 1, faults + 1
            continue
        ends = {"cut": session.last[: draw.randrange(len(session.last))], "twice": session.part() * 2, "none": b""}
        peer.connection.sendall(ends[last] if last in ends else mutated(draw, session.last))
        others += 2
        end(peer, draw.choice(("reset", "orderly")))
    after = server.status()
    assert sent.total() < after["messages"] - before["messages"] <= sent.total() + lasts + others + 1
    assert after["dropped"] - before["dropped"] >= faults
    assert after["lost"] == before["lost"]
    assert set(sent) == set(CLIENT_LIMITS) - {Kind.HELLO}
    assert min(ways.values()) > MESSAGES / 4
    assert min(unauthenticated.values()) > 0
