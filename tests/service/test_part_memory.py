"""The memory of a server's parts is bounded and used again, and trials share what lies in it."""

from __future__ import annotations

import errno
import fcntl
import itertools
import mmap
import os

import pytest

import feeder
from feeder.service.part_memory import PART_BYTES, MemoryPiece, PartMemory, Result, ResultWindow, memory_bytes
from feeder.system.cores import available_bytes
from feeder.system.mapping import map_other_memory

MIB = 1 << 20


def taken(memory: PartMemory, size_bytes: int) -> MemoryPiece:
    piece = memory.take(size_bytes)
    assert piece is not None
    return piece


def test_pieces_do_not_overlap_and_there_is_an_end() -> None:
    memory = PartMemory(8 * MIB)
    pieces = [taken(memory, MIB + 1) for _ in range(7)]
    assert memory.take(MIB) is None
    places = sorted((piece.offset, piece.end) for piece in pieces)
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(places))
    assert places[-1][1] <= 8 * MIB


def test_the_piece_freed_last_is_used_first() -> None:
    memory = PartMemory(8 * MIB)
    pieces = [taken(memory, MIB) for _ in range(3)]
    for piece in pieces:
        memory.release(piece)
    assert [taken(memory, MIB) for _ in range(3)] == pieces[::-1]


def test_free_pieces_of_any_size_become_one_that_is_larger_or_smaller() -> None:
    memory = PartMemory(8 * MIB)
    small = [taken(memory, MIB) for _ in range(8)]
    for piece in small:
        memory.release(piece)
    large = taken(memory, 6 * MIB)
    assert taken(memory, MIB).size_bytes == taken(memory, MIB).size_bytes == MIB
    assert memory.take(MIB) is None
    memory.release(large)
    assert all(memory.take(MIB) is not None for _ in range(6))


@pytest.mark.parametrize(("kept_s", "kept_bytes"), [(3600.0, 4 * MIB), (-1.0, 0)])
def test_pages_that_were_free_for_a_while_are_given_back(kept_s: float, kept_bytes: int) -> None:
    memory = PartMemory(8 * MIB)
    piece = taken(memory, 4 * MIB)
    assert os.fstat(memory.region.descriptor).st_blocks * 512 == 4 * MIB
    memory.release(piece)
    memory.give_back(kept_s)
    assert os.fstat(memory.region.descriptor).st_blocks * 512 == kept_bytes
    assert taken(memory, 4 * MIB) is piece
    assert os.fstat(memory.region.descriptor).st_blocks * 512 == 4 * MIB


def test_want_of_memory_costs_no_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = PartMemory(4 * MIB)

    def refuse(*arguments: int) -> None:
        raise OSError(errno.ENOSPC, "no space")

    with monkeypatch.context() as without:
        without.setattr(os, "posix_fallocate", refuse)
        with pytest.raises(OSError, match="no space"):
            memory.take(4 * MIB)
    assert memory.take(4 * MIB) is not None


def test_who_gets_the_memory_can_not_write_to_it_nor_is_it_cut_off() -> None:
    memory = PartMemory(MIB)
    memory.region.memory[:3] = b"abc"
    assert bytes(map_other_memory(memory.for_reading, MIB)[:3]) == b"abc"
    with pytest.raises(PermissionError):
        mmap.mmap(memory.for_reading, MIB, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.write(memory.for_reading, b"x")
    assert os.fstat(memory.for_reading).st_mode & 0o777 == 0o400  # nor may another user open it anew to write
    with pytest.raises(PermissionError):
        os.ftruncate(memory.region.descriptor, 0)


def test_memory_that_may_shrink_or_of_another_size_is_refused() -> None:
    made = os.memfd_create("test", os.MFD_ALLOW_SEALING)
    os.ftruncate(made, MIB)
    for size_bytes in (MIB, 0):
        with pytest.raises(ValueError, match="may shrink"):
            map_other_memory(made, size_bytes)
    fcntl.fcntl(made, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
    with pytest.raises(ValueError, match="another size"):
        map_other_memory(made, 2 * MIB)
    assert len(map_other_memory(made, MIB)) == MIB
    os.close(made)
    with open(__file__, "rb") as file, pytest.raises(ValueError, match="may shrink"):
        map_other_memory(file.fileno(), os.fstat(file.fileno()).st_size)


def test_a_window_that_the_machine_has_no_memory_for_is_refused() -> None:
    with pytest.raises(feeder.ArgumentError, match=r"--window takes .* MiB available: lower it"):
        memory_bytes(available_bytes() + (1 << 40), 1)
    with pytest.raises(feeder.ArgumentError, match="0 or more"):
        memory_bytes(-1, 1)
    assert 2 * PART_BYTES <= memory_bytes(0, 1) <= 4 * PART_BYTES


def test_the_window_keeps_the_newest_parts_and_never_memory_in_use() -> None:
    memory = PartMemory(4 * MIB)
    window = ResultWindow(2 * MIB, memory)
    pieces = [taken(memory, MIB) for _ in range(3)]
    for number, piece in enumerate(pieces):
        window.add(("work", 0, bytes([number]), None), Result(b"{}", piece, [[piece.offset, 16]], 1))
    assert [window.get(("work", 0, bytes([k]), None)) is not None for k in range(3)] == [False, True, True]
    assert [piece.users for piece in pieces] == [1, 2, 2]  # being sent, or in the window, too
    for piece in pieces:
        memory.release(piece)
    assert taken(memory, MIB) is pieces[0]
    assert taken(memory, MIB) not in pieces


def test_the_window_gives_its_memory_up() -> None:
    memory = PartMemory(4 * MIB)
    window = ResultWindow(4 * MIB, memory)
    for number in range(4):
        piece = taken(memory, MIB)
        window.add(("work", 0, bytes([number]), None), Result(b"{}", piece, [], 1))
        memory.release(piece)
    assert memory.take(MIB) is None
    assert window.drop_oldest()
    assert window.drop_oldest()
    assert [window.get(("work", 0, bytes([k]), None)) is not None for k in range(4)] == [False, False, True, True]
    assert memory.take(2 * MIB) is not None
    assert window.drop_oldest()
    assert window.drop_oldest()
    assert not window.drop_oldest()
