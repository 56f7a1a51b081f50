"""Jobs share the cores of a server."""

from __future__ import annotations

import sys

import pytest

from feeder.service.frames import Kind
from feeder.service.part_queue import PartQueue, Task


def task(job: str, number: int, work: str | None = None, epoch: int = 0) -> Task:
    return Task(Kind.PART, job, job if work is None else work, epoch, number.to_bytes(8, sys.byteorder))


def turns(queue: PartQueue, count: int) -> list[str]:
    """The jobs whose tasks are taken, one after the end of the other."""
    found = []
    for _ in range(count):
        taken = queue.take()
        assert taken is not None
        found.append(taken.job)
        queue.ended(taken)
    assert not queue.running
    return found


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


@pytest.mark.parametrize("epoch", [0, 1])
def test_a_job_that_is_ahead_of_another_one_of_its_work_leaves_it_seven_of_eight_turns(epoch: int) -> None:
    queue = PartQueue()
    for number in range(20):
        queue.add(task("ahead", (1 - epoch) * 1000 + number, "work", epoch))
        queue.add(task("behind", number, "work"))
    assert turns(queue, 16).count("behind") == 15  # all of its own, and seven of the other one's eight


def test_a_turn_in_which_no_task_fits_is_not_left_to_another_job() -> None:
    queue = PartQueue()
    for number in range(20):
        queue.add(task("ahead", 1000 + number, "work"))
        queue.add(task("behind", number, "work"))
    for _ in range(8):
        assert queue.take(lambda _: False) is None
    assert turns(queue, 8).count("behind") == 8


def test_the_turns_of_a_job_of_other_work_stay_its_own() -> None:
    queue = PartQueue()
    for number in range(20):
        queue.add(task("one", number, "work"))
        queue.add(task("other", number, "work", 1))
        queue.add(task("third", number, "other work"))
    found = turns(queue, 24)
    assert found.count("third") == 8  # whatever the others do with their own turns
    assert found.count("other") == 1


def test_a_turn_that_was_left_counts_as_a_core_of_the_job_that_left_it() -> None:
    queue = PartQueue()
    for number in range(4):
        queue.add(task("ahead", 1000 + number, "work"))
        queue.add(task("behind", number, "work"))
        queue.add(task("third", number))
    taken = [queue.take() for _ in range(3)]
    assert sorted(each.job for each in taken if each) == ["behind", "behind", "third"]
    assert queue.running == {"ahead": 1, "behind": 1, "third": 1}
