"""Jobs share the cores of a server, and trials its results."""

from __future__ import annotations

from feeder.service.frames import Kind
from feeder.service.part_queue import Memory, PartQueue, Result, Task, Window


def task(job: str, number: int) -> Task:
    return Task(Kind.PART, job, "work", 0, bytes([number]))


def test_a_free_core_goes_to_the_job_with_the_fewest_parts_under_way() -> None:
    queue = PartQueue()
    for number in range(8):
        queue.add(task("many", number))
    first = [queue.take() for _ in range(2)]
    assert [each.job for each in first if each] == ["many", "many"]
    queue.add(task("few", 1))
    queue.add(task("few", 2))
    taken = [queue.take() for _ in range(4)]
    assert [each.job for each in taken if each] == ["few", "few", "many", "many"]
    for each in taken[:2]:
        assert each is not None
        queue.ended(each)
    assert queue.running == {"many": 4}


def test_a_job_gets_no_more_cores_than_its_limit() -> None:
    queue = PartQueue(2)
    for number in range(3):
        queue.add(task("one", number))
    first, _ = queue.take(), queue.take()
    assert queue.take() is None
    assert first is not None
    queue.ended(first)
    assert queue.take() is not None


def test_a_part_that_nobody_wants_any_more_is_not_made() -> None:
    queue, one, two = PartQueue(), task("job", 1), task("job", 2)
    queue.add(one)
    queue.add(two)
    queue.remove(one)
    assert queue.take() is two
    assert len(queue) == 0


def test_the_window_keeps_the_newest_parts_and_never_memory_in_use() -> None:
    memory = Memory(4)
    window = Window(2 << 20, memory)
    pieces = [memory.take(1 << 20) for _ in range(3)]
    for number, piece in enumerate(pieces):
        window.add(("work", 0, bytes([number]), None), Result({}, piece, [[0, 16]]))
    assert [window.get(("work", 0, bytes([k]), None)) is not None for k in range(3)] == [False, True, True]
    assert [piece.users for piece in pieces] == [1, 2, 2]  # being sent, or in the window, too
    for piece in pieces:
        memory.release(piece)
    assert memory.take(1 << 20) is pieces[0]
    assert memory.take(1 << 20) not in pieces
