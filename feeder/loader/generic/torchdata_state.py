"""The place of an iterator over any dataset, with workers and without, under the keys of torchdata's states."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from feeder.errors import ArgumentError
from feeder.system.text import count

# Key of the seed and the epoch that the loader decodes a dataset's images by. Only feeder has it.
DRAWS_KEY = "_draws"

# Key of the random state that the seeds of later epochs are drawn from. Only feeder has it.
SEEDS_KEY = "_seeds"


@dataclass
class GenericProgress:
    """The place of an iteration; outlives an iterator with workers.

    Attributes:
        main: The sampler's place at the last snapshot.
        workers: The workers' states at the last snapshot.
        step: Number of batches handed out by then.
        last_worker: The worker that made the last of these.
        since: Number of batches handed out since then.
        finished: The epoch is over.
    """

    main: dict[str, Any] = field(default_factory=dict)
    workers: dict[str, dict[str, Any]] = field(default_factory=dict)
    step: int = 0
    last_worker: int = 0
    since: int = 0
    finished: bool = False

    def state_dict(self) -> dict[str, Any]:
        """Returns the state, under torchdata's keys."""
        snapshot = {
            "_snapshot_step": self.step,
            "_last_yielded_worker_id": self.last_worker,
            "_main_snapshot": self.main,
            "_worker_snapshots": dict(self.workers),
        }
        return {"_snapshot": snapshot, "_steps_since_snapshot": self.since, "_iterator_finished": self.finished}


def epoch_is_over(state: dict[str, Any]) -> dict[str, Any] | None:
    """Returns the sampler's part of a state of an epoch's end; None for a place within an epoch, and if a dataset or
    iterator has a state of its own."""
    if not state["_iterator_finished"]:
        return None
    return None if _have_own(state["_snapshot"]["_worker_snapshots"]) else sampler_place(state)


def sampler_place(state: dict[str, Any]) -> dict[str, Any]:
    """Returns the sampler's part of a state."""
    found: dict[str, Any] = state["_snapshot"]["_main_snapshot"]
    return found


def _have_own(states: dict[str, Any]) -> bool:
    """Returns True if any worker's dataset or iterator has a state of its own."""
    return any(s and (s["dataset_state"] is not None or s["fetcher_state"] is not None) for s in states.values())


def worker_key(worker: int) -> str:
    """Returns a worker's key in a state."""
    return f"worker_{worker}"


def fitting_states(state: dict[str, Any], workers: int, is_iterable: bool) -> dict[str, Any]:
    """Returns the workers' states, which a resume with as many workers goes on from.

    With another number of workers the states are left out, if no dataset or iterator has put one of its own in them.
    Without workers there is one state, that of the calling process.

    Raises:
        ArgumentError: if the number differs, and a dataset is iterable or there are states of their own.
    """
    states: dict[str, Any] = state["_snapshot"]["_worker_snapshots"]
    if len(states) == max(1, workers):
        return states
    if is_iterable or _have_own(states):
        raise ArgumentError(
            f"this state is of {count(len(states), 'worker')}, each with a state of its own, and this loader has "
            f"{workers}; resume with num_workers={len(states)}"
        )
    return {}


def resumes_by_skipping(state: dict[str, Any]) -> bool:
    """Returns True if an iterable dataset has no state in any worker.

    A resume then makes the batches that were handed out once more, and drops them.
    """
    return all(
        worker["dataset_state"] is None
        and (worker["fetcher_state"] is None or worker["fetcher_state"]["dataset_iter_state"] is None)
        for worker in state["_snapshot"]["_worker_snapshots"].values()
        if worker
    )
