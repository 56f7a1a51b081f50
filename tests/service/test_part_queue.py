"""Jobs share the cores of a server."""

from __future__ import annotations

from feeder.service.frames import Kind
from feeder.service.part_queue import PartQueue, Task


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


def test_a_job_whose_task_has_to_wait_does_not_keep_others_waiting() -> None:
    queue = PartQueue()
    for job in ("large", "small"):
        queue.add(task(job, 1))
    taken = queue.take(lambda each: each.job != "large")
    assert taken is not None
    assert taken.job == "small"
    assert queue.take(lambda each: each.job != "large") is None
    assert queue.waiting("large") == 1


def test_a_task_that_was_interrupted_comes_first_again() -> None:
    queue = PartQueue()
    for number in (1, 2):
        queue.add(task("job", number))
    first = queue.take()
    assert first is not None
    queue.ended(first)
    queue.add(first, is_first=True)
    assert queue.take() is first


def test_the_job_with_the_most_cores_is_named_where_another_one_has_none() -> None:
    queue = PartQueue()
    for number in range(3):
        queue.add(task("many", number))
        queue.take()
    queue.add(task("few", 1))
    assert queue.greedy_job(3600) is None  # it has not waited so long
    assert queue.greedy_job(-1) == "many"
    queue.take()
    queue.add(task("few", 2))
    assert queue.greedy_job(-1) is None  # it has a core
