"""Frames come out as they went in, however the bytes arrive."""

from __future__ import annotations

import socket

import pytest

from feeder.service.frames import CLIENT_LIMITS, SERVER_LIMITS, Frame, Kind, ProtocolError, Receiver, Sender, pack_frame


def sockets() -> tuple[socket.socket, socket.socket]:
    one, two = socket.socketpair()
    two.setblocking(False)
    return one, two


@pytest.mark.parametrize("step", [1, 7, 1000])
def test_frames_in_pieces(step: int) -> None:
    one, two = sockets()
    with one, two:
        data = pack_frame(Kind.PART, {"number": 3}, 5) + b"abcde" + pack_frame(Kind.HEARTBEAT, {})
        receiver, found = Receiver(two, CLIENT_LIMITS), []
        for at in range(0, len(data), step):
            one.sendall(data[at : at + step])
            found += list(receiver.frames())
        assert [(frame.kind, frame.message) for frame in found] == [(Kind.PART, {"number": 3}), (Kind.HEARTBEAT, {})]
        assert b"".join(found[0].payload) == b"abcde"
        assert not receiver.is_midway


def test_a_payload_that_is_not_wanted_any_more_touches_no_memory() -> None:
    one, two = sockets()
    with one, two:
        place = bytearray(6)
        receiver = Receiver(two, SERVER_LIMITS, lambda kind, message, size: [memoryview(place)])
        data = pack_frame(Kind.RESULT, {}, 6) + b"abcdef"
        one.sendall(data[:-3])
        assert list(receiver.frames()) == []
        receiver.drop_payload()
        one.sendall(data[-3:] + pack_frame(Kind.HEARTBEAT, {}))
        assert [frame.kind for frame in receiver.frames()] == [Kind.RESULT, Kind.HEARTBEAT]
        assert place == b"abc\0\0\0"


def test_a_payload_of_another_size_than_its_place_is_refused() -> None:
    one, two = sockets()
    with one, two:
        receiver = Receiver(two, SERVER_LIMITS, lambda kind, message, size: [memoryview(bytearray(4))])
        one.sendall(pack_frame(Kind.RESULT, {}, 6) + b"abcdef")
        with pytest.raises(ProtocolError):
            list(receiver.frames())


def test_what_does_not_fit_is_kept_and_its_end_is_told() -> None:
    one, two = sockets()
    one.setblocking(False)
    with one, two:
        sender, payload, ended = Sender(one), memoryview(bytes(range(256)) * 16384), []
        sender.add(Kind.RESULT, {}, [payload], lambda: ended.append(True))
        sender.flush()
        assert sender.unsent_bytes > 0
        assert not ended
        receiver, found = Receiver(two, SERVER_LIMITS), list[Frame]()
        while not found:
            found += list(receiver.frames())
            sender.flush()
        assert found[0].payload == [payload]
        assert (sender.unsent_bytes, ended) == (0, [True])
